"""Promises of relocation: a moved key has the very bits that the model's own rotary operation would give it there, and
keys and values of many chunks land where they are told to."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.models.qwen3_5.modeling_qwen3_5 import apply_rotary_pos_emb as qwen3_5_rotary
from transformers.models.qwen3_next.modeling_qwen3_next import apply_rotary_pos_emb as qwen3_next_rotary

from linearkv.kernels.backend import use_backend
from linearkv.kernels.relocate import relocate

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


@pytest.fixture(params=["torch", "triton"])
def backend(request):
    with use_backend(request.param):
        yield request.param


def make_parts(lengths, head_dim, rotary_dim, dtype, device, layers=1, heads=2):
    """Keys and values of chunks of these lengths, and cos and sin of the positions one after another."""
    generator = torch.Generator().manual_seed(sum(lengths))
    keys, values = (
        [torch.randn(layers, n, heads, head_dim, generator=generator).to(dtype).to(device) for n in lengths]
        for _ in range(2)
    )
    angle = torch.arange(sum(lengths))[:, None] * 1e4 ** -(torch.arange(0, rotary_dim, 2) / max(1, rotary_dim))
    angle = torch.cat([angle, angle], dim=-1)
    return keys, values, angle.cos().to(dtype).to(device), angle.sin().to(dtype).to(device)


@pytest.mark.parametrize("rotary", [qwen3_5_rotary, qwen3_next_rotary], ids=["qwen3_5", "qwen3_next"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("head_dim", "rotary_dim"), [(32, 32), (32, 8), (256, 64)])
@pytest.mark.parametrize("lengths", [(1,), (65,), (3, 0, 1, 17)], ids=str)
def test_bits_are_those_of_the_models_own_rotary(backend, device, lengths, head_dim, rotary_dim, dtype, rotary):
    keys, values, cos, sin = make_parts(lengths, head_dim, rotary_dim, dtype, device)
    whole = torch.cat(keys, dim=1)
    _, expected = rotary(whole, whole, cos[None], sin[None], unsqueeze_dim=2)
    key, value = relocate(keys, values, cos, sin)
    assert torch.equal(key, expected)
    assert torch.equal(value, torch.cat(values, dim=1))


@settings(max_examples=25, deadline=None)
@given(
    lengths=st.lists(st.sampled_from((0, 1, 2, 15, 16, 17, 40)), min_size=1, max_size=4),
    layers=st.integers(1, 3),
    heads=st.integers(1, 3),
    dims=st.sampled_from([(8, 8), (32, 8), (20, 6), (5, 2), (64, 0)]),
    block=st.sampled_from((1, 3, 16)),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 2**32),
)
def test_triton_scatters_into_paged_blocks_as_the_reference_does(
    lengths, layers, heads, dims, block, dtype, seed, device
):
    """Every slot named is written, and no other: caches begin as NaN and must end the same, NaN for NaN."""
    keys, values, cos, sin = make_parts(lengths, *dims, dtype, device, layers, heads)
    tokens = sum(lengths)
    blocks = -(-tokens // block) + 2
    slots = torch.randperm(blocks * block, generator=torch.Generator().manual_seed(seed))[:tokens].to(device)
    caches = {}
    for name in ("torch", "triton"):
        # As vLLM lays them out: keys and values beside each other, heads outside the tokens of a block.
        pages = torch.full((layers, blocks, heads, block, 2 * dims[0]), float("nan"), dtype=dtype, device=device)
        key, value = (part.transpose(2, 3) for part in pages.chunk(2, dim=-1))
        with use_backend(name):
            assert relocate(keys, values, cos, sin, out=(key, value), slots=slots) == (key, value)
        caches[name] = pages
    assert torch.equal(caches["triton"].nan_to_num(7e4), caches["torch"].nan_to_num(7e4))
    assert int((~caches["torch"].isnan()).sum()) == 2 * layers * tokens * heads * dims[0]


def test_layers_are_moved_together(backend, device):
    keys, values, cos, sin = make_parts((5, 9), 32, 8, torch.float32, device, layers=3)
    key, value = relocate(keys, values, cos, sin)
    for layer in range(3):
        one = slice(layer, layer + 1)
        alone = relocate([part[one] for part in keys], [part[one] for part in values], cos, sin)
        assert torch.equal(key[one], alone[0])
        assert torch.equal(value[one], alone[1])


def test_parts_that_lie_anywhere_in_memory_are_read_right(backend, device):
    """Views of larger tensors: not contiguous, and not aligned."""
    keys, values, cos, sin = make_parts((5, 9), 8, 8, torch.bfloat16, device)
    expected = relocate(keys, values, cos, sin)
    shifted = [torch.cat([part.new_zeros(1), part.flatten()])[1:].view(part.shape) for part in keys]
    strided = [part.repeat_interleave(2, dim=1)[:, ::2] for part in values]
    turned = [part.transpose(1, 2).contiguous().transpose(1, 2) for part in keys]  # dense, and heads outside tokens
    for some_keys, some_values in ((shifted, strided), (turned, values), (keys, [part.clone() for part in values])):
        key, value = relocate(some_keys, some_values, cos, sin)
        assert torch.equal(key, expected[0])
        assert torch.equal(value, expected[1])


@pytest.mark.parametrize("lands", [[5, -1, 0, 3], [5, 0, -1, 3]], ids=str)
def test_a_token_of_a_negative_slot_goes_nowhere(backend, device, lands):
    """vLLM's padding; and slots may be a column of a larger table."""
    keys, values, cos, sin = make_parts((4,), 8, 8, torch.float32, device)
    cache = [torch.full((1, 2, 4, 2, 8), float("nan"), device=device) for _ in range(2)]
    slots = torch.tensor([[land, 9] for land in lands], device=device)[:, 0]
    relocate(keys, values, cos, sin, out=(cache[0], cache[1]), slots=slots)
    kept = [token for token, land in enumerate(lands) if land >= 0]
    for moved, part in zip(cache, relocate(keys, values, cos, sin), strict=True):
        flat = moved.flatten(1, 2)
        assert torch.equal(flat[:, [lands[token] for token in kept]], part[:, kept])
        assert int((~flat.isnan()).any(-1).any(-1).sum()) == 3


def test_dimensions_past_the_rotary_ones_stay(backend, device):
    keys, values, cos, sin = make_parts((5,), 32, 8, torch.float32, device)
    assert torch.equal(relocate(keys, values, cos, sin)[0][..., 8:], keys[0][..., 8:])


def test_position_zero_stays(backend, device):
    keys, values, cos, sin = make_parts((1,), 32, 32, torch.bfloat16, device)
    assert torch.equal(relocate(keys, values, cos, sin)[0], keys[0])


@pytest.mark.parametrize("changed", ["cos", "values"])
def test_another_precision_than_the_keys_is_refused(changed):
    keys, values, cos, sin = make_parts((5,), 32, 8, torch.bfloat16, "cpu")
    parts = {"cos": (keys, values, cos.float(), sin), "values": (keys, [values[0].float()], cos, sin)}[changed]
    with pytest.raises(ValueError, match="cos must have the dtype of the keys, values and sin"):
        relocate(*parts)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda key, value, cos, sin: ([key[:, :-1]], [value], cos, sin), id="fewer keys than values"),
        pytest.param(lambda key, value, cos, sin: ([key], [value], cos[1:], sin[1:]), id="fewer positions"),
        pytest.param(lambda key, value, cos, sin: ([key], [value], cos, sin[:, :4]), id="cos and sin differ"),
        pytest.param(lambda key, value, cos, sin: ([key], [value], cos[:, :7], sin[:, :7]), id="odd rotary"),
        pytest.param(
            lambda key, value, cos, sin: ([key[..., :4]], [value[..., :4]], cos, sin), id="rotary wider than the head"
        ),
    ],
)
def test_shapes_that_do_not_fit_are_refused(change):
    keys, values, cos, sin = make_parts((5,), 32, 8, torch.float32, "cpu")
    with pytest.raises(ValueError, match="shapes do not agree"):
        relocate(*change(keys[0], values[0], cos, sin))


@pytest.mark.parametrize(
    ("key_cache", "value_cache", "slots", "message"),
    [
        ((1, 1, 4, 2, 32), (1, 1, 4, 2, 32), None, "no room for 5 tokens"),
        ((1, 1, 8, 3, 32), (1, 1, 8, 3, 32), None, "does not fit keys"),
        ((1, 8, 2, 32), (1, 8, 2, 32), None, r"must be torch.float32 \[La, B, S, H, D\]"),
        ((1, 1, 8, 2, 32), (1, 1, 8, 2, 32), torch.arange(4), r"slots must be int64 \[5\]"),
        ((1, 4, 4, 2, 32), (1, 2, 8, 2, 32), torch.arange(5), "key and value cache differ"),
    ],
)
def test_a_cache_that_does_not_fit_is_refused(key_cache, value_cache, slots, message):
    keys, values, cos, sin = make_parts((5,), 32, 8, torch.float32, "cpu")
    with pytest.raises(ValueError, match=message):
        relocate(keys, values, cos, sin, out=(torch.empty(key_cache), torch.empty(value_cache)), slots=slots)
