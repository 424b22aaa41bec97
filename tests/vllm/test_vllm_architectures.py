"""The other architectures that are served, as random models: vLLM has the inputs of their layers in other orders, or
they are part of a model that sees."""

import random

import pytest
import torch
import transformers

from linearkv import compose
from linearkv.errors import UnsupportedModelError
from linearkv.models import REFERENCE
from linearkv.vllm.jobs import JOBS
from linearkv.vllm.model import VLLMModel

from .conftest import MACHINE

SETTINGS = {
    "vocab_size": 8200,
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
}
EXPERTS = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "shared_expert_intermediate_size": 64,
}
SEEING = {
    "depth": 1,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_heads": 2,
    "out_hidden_size": 128,
    "num_position_embeddings": 16,
    "deepstack_visual_indexes": [],
}


def qwen3_5(folder):
    """As Qwen3.5's checkpoints are published: the model that sees, and its processor."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(REFERENCE)
    for name in ("vision_start", "vision_end", "image", "video"):
        token = f"<|{name}|>"
        tokenizer.add_tokens([token], special_tokens=True)
        setattr(tokenizer, f"{name}_token", token)
        setattr(tokenizer, f"{name}_token_id", tokenizer.convert_tokens_to_ids(token))
    seen = {"image_processor": transformers.Qwen2VLImageProcessor(patch_size=16)}
    seen["video_processor"] = transformers.Qwen3VLVideoProcessor(patch_size=16)
    transformers.Qwen3VLProcessor(tokenizer=tokenizer, **seen).save_pretrained(folder)
    config = transformers.Qwen3_5Config(
        text_config={**SETTINGS, "intermediate_size": 128},
        vision_config=SEEING,
        image_token_id=tokenizer.image_token_id,
        video_token_id=tokenizer.video_token_id,
    )
    return transformers.Qwen3_5ForConditionalGeneration(config)


def qwen3_5_moe(folder):
    return transformers.Qwen3_5MoeForCausalLM(transformers.Qwen3_5MoeTextConfig(**SETTINGS, **EXPERTS))


def qwen3_next(folder):
    return transformers.Qwen3NextForCausalLM(transformers.Qwen3NextConfig(**SETTINGS, **EXPERTS))


@pytest.fixture(params=[qwen3_5, qwen3_5_moe, qwen3_next], ids=lambda make: make.__name__)
def model(request, tmp_path):
    torch.manual_seed(0)
    random_model = request.param(tmp_path)
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


def test_a_config_that_cannot_be_read_is_refused(tmp_path):
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(UnsupportedModelError, match="cannot be read as a model"):
        VLLMModel(tmp_path)


def test_states_are_the_same_whether_or_not_a_server_sees(tmp_path):
    """`Engine` starts a published checkpoint for text alone, and a server as it is told."""
    torch.manual_seed(0)
    qwen3_5(tmp_path).save_pretrained(tmp_path)
    identities = []
    for text_alone in (True, False):
        model = VLLMModel(tmp_path, max_num_seqs=4, max_model_len=2048, language_model_only=text_alone, **MACHINE)
        assert text_alone == (not list(model._worker.model.visual.parameters()))
        identities.append(model.identify())
        stream = model.stream(model.empty_context(), [5, 6, 7], 20)
        next(stream)
        model.close()
        stream.close()  # later than its engine
        assert not JOBS._jobs and not model._outputs
    assert identities[0] == identities[1]
