"""Promises of relocation: a moved key has the very bits that the model's own rotary operation would give it there."""

import pytest
import torch
from transformers.models.qwen3_5.modeling_qwen3_5 import apply_rotary_pos_emb as qwen3_5_rotary
from transformers.models.qwen3_next.modeling_qwen3_next import apply_rotary_pos_emb as qwen3_next_rotary

from linearkv.kernels.relocate import relocate


def make_keys(tokens, head_dim, rotary_dim, dtype, lead=()):
    generator = torch.Generator().manual_seed(tokens)
    key = torch.randn(*lead, tokens, 2, head_dim, generator=generator).to(dtype)
    angle = torch.arange(tokens)[:, None] * 1e4 ** -(torch.arange(0, rotary_dim, 2) / rotary_dim)
    angle = torch.cat([angle, angle], dim=-1)
    return key, angle.cos().to(dtype), angle.sin().to(dtype)


@pytest.mark.parametrize("rotary", [qwen3_5_rotary, qwen3_next_rotary], ids=["qwen3_5", "qwen3_next"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(("head_dim", "rotary_dim"), [(32, 32), (32, 8), (256, 64)])
@pytest.mark.parametrize("tokens", [1, 65])
def test_bits_are_those_of_the_models_own_rotary(tokens, head_dim, rotary_dim, dtype, rotary):
    key, cos, sin = make_keys(tokens, head_dim, rotary_dim, dtype)
    _, expected = rotary(key[None], key[None], cos[None], sin[None], unsqueeze_dim=2)
    assert torch.equal(relocate(key, cos, sin), expected[0])


def test_layers_are_moved_together():
    key, cos, sin = make_keys(5, 32, 8, torch.float32, lead=(3,))
    moved = relocate(key, cos, sin)
    for layer in range(3):
        assert torch.equal(moved[layer], relocate(key[layer], cos, sin))


def test_dimensions_past_the_rotary_ones_stay():
    key, cos, sin = make_keys(5, 32, 8, torch.float32)
    assert torch.equal(relocate(key, cos, sin)[..., 8:], key[..., 8:])


def test_position_zero_stays():
    key, cos, sin = make_keys(1, 32, 32, torch.bfloat16)
    assert torch.equal(relocate(key, cos, sin), key)


def test_another_precision_than_the_keys_is_refused():
    key, cos, sin = make_keys(5, 32, 8, torch.bfloat16)
    with pytest.raises(ValueError, match=r"must have the keys' dtype torch.bfloat16, not torch.float32"):
        relocate(key, cos.float(), sin.float())


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda key, cos, sin: (key[:-1], cos, sin), id="fewer keys than positions"),
        pytest.param(lambda key, cos, sin: (key, cos, sin[:, :4]), id="cos and sin differ"),
        pytest.param(lambda key, cos, sin: (key[..., :4], cos, sin), id="rotary wider than the head"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(change):
    with pytest.raises(ValueError, match="shapes do not agree"):
        relocate(*change(*make_keys(5, 32, 8, torch.float32)))
