"""The other architectures that are served, as random models: vLLM has their layers' inputs in other orders."""

import random

import pytest
import torch
import transformers

from linearkv import compose
from linearkv.vllm.model import VLLMModel

from .conftest import MACHINE

SETTINGS = {
    "vocab_size": 512,
    "hidden_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
    "max_position_embeddings": 2048,
    "eos_token_id": 1,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "shared_expert_intermediate_size": 64,
}
KINDS = {
    "qwen3_5_moe": (transformers.Qwen3_5MoeTextConfig, transformers.Qwen3_5MoeForCausalLM),
    "qwen3_next": (transformers.Qwen3NextConfig, transformers.Qwen3NextForCausalLM),
}


@pytest.fixture(params=KINDS)
def model(request, tmp_path):
    config, made = KINDS[request.param]
    torch.manual_seed(0)
    random_model = made(config(**SETTINGS))
    with torch.no_grad():
        for name, parameter in random_model.named_parameters():
            if parameter.dim() >= 2 and "embed" not in name:
                parameter.mul_(4)  # spread, so that a dropped state shows in the logits
    random_model.save_pretrained(tmp_path)
    opened = VLLMModel(tmp_path, max_num_seqs=4, max_model_len=2048, **MACHINE)
    yield opened
    opened.close()


def test_one_chunk_right_behind_its_prefix_is_what_vllm_computes(model):
    chance = random.Random(0)
    prefix_ids, one, other, question = ([chance.randrange(3, 500) for _ in range(n)] for n in (20, 70, 33, 9))
    prefix = model.prefill_prefix(prefix_ids)
    states = model.prefill_chunks(prefix, [one, other])
    for chunk, state, wrong in zip((one, other), states, reversed(states), strict=True):
        prefilled = model.prefill(chunk, after=compose(prefix, []))
        composed = compose(prefix, [state], "sequential")
        assert torch.equal(composed.key, prefilled.key) and torch.equal(composed.conv_tail, prefilled.conv_tail)
        assert (composed.recurrent - prefilled.recurrent).norm() <= 1e-6 * prefilled.recurrent.norm()
        expected = model.logits(prefilled, question).log_softmax(-1)
        assert (model.logits(composed, question).log_softmax(-1) - expected).abs().max() <= 1e-3
        apart = model.logits(compose(prefix, [wrong], "sequential"), question).log_softmax(-1) - expected
        assert apart.abs().max() > 0.1  # that it would show
