"""Promises of chunk delta: its map is the rule run token by token, for any lengths, heads, dims and dtypes."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from linearkv.kernels.backend import accumulation_dtype, use_backend
from linearkv.kernels.chunk_delta import chunk_delta
from linearkv.kernels.chunk_delta.reference import recurrent

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
LENGTHS = (1, 2, 3, 63, 64, 65, 127, 128, 129, 200)

# (lowest, highest) log decay and write strength: from heads that forget nothing to heads that keep nothing.
DTYPES = [  # backend, dtype of keys and of values, allowed error
    ("torch", torch.float64, torch.float64, 1e-10),
    ("triton", torch.float32, torch.float32, 1e-5),
    ("triton", torch.bfloat16, torch.bfloat16, 1e-5),
    ("triton", torch.float32, torch.bfloat16, 1e-5),
    ("triton", torch.float16, torch.float16, 1e-5),
]
GATES = {
    "near identity": ((-1e-4, 0.0), (0.0, 1e-3)),
    "ordinary": ((-0.2, 0.0), (0.1, 0.9)),
    "overwriting": ((-1e-3, 0.0), (0.95, 1.0)),
    "near zero": ((-20.0, -5.0), (0.1, 0.9)),
    "mixed": ((-80.0, 0.0), (0.0, 1.0)),
}


@pytest.fixture(params=["torch float64", "torch float32", "triton float32"])
def precision(request):
    """(dtype, allowed relative error) while the backend of that name runs."""
    backend, name = request.param.split()
    with use_backend(backend):
        yield getattr(torch, name), 1e-10 if name == "float64" else 1e-5


@pytest.fixture(params=["torch", "triton"])
def backend(request):
    with use_backend(request.param):
        yield request.param


def make_segment(tokens, *, batch=1, key_heads=2, value_heads=2, key_dim=16, value_dim=24, gates="ordinary", seed=0):
    """Random k, v, g, beta and a state to start from, in float64."""
    generator = torch.Generator().manual_seed(seed)

    def random(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    def between(low, high):
        share = torch.rand(batch, tokens, value_heads, generator=generator, dtype=torch.float64)
        return low + (high - low) * share

    k = torch.nn.functional.normalize(random(batch, tokens, key_heads, key_dim), dim=-1)
    v = random(batch, tokens, value_heads, value_dim)
    (g, beta), initial = (between(*bounds) for bounds in GATES[gates]), random(batch, value_heads, key_dim, value_dim)
    return tuple(x.to(DEVICE) for x in (k, v, g, beta, initial))


def run_map(k, v, g, beta, initial, lengths=None):
    transition, update = chunk_delta(k, v, g, beta, lengths)
    return transition @ initial + update


@pytest.mark.parametrize("gates", GATES)
@pytest.mark.parametrize("tokens", LENGTHS)
def test_map_is_the_rule_token_by_token(tokens, gates, precision, assert_close):
    dtype, ratio = precision
    segment = [x.to(dtype) for x in make_segment(tokens, gates=gates, seed=tokens)]
    reference = recurrent(*(x.double() for x in segment))
    actual = run_map(*segment)
    assert actual.dtype == dtype
    assert_close("state", reference, actual, ratio)


@pytest.mark.parametrize(
    ("key_heads", "value_heads", "key_dim", "value_dim"),
    [(1, 1, 64, 64), (2, 2, 128, 128), (1, 3, 5, 7), (2, 4, 33, 17), (1, 1, 128, 64), (2, 6, 64, 128), (1, 2, 1, 1)],
)
def test_any_heads_and_head_dims(key_heads, value_heads, key_dim, value_dim, precision, assert_close):
    dtype, ratio = precision
    shape = {"key_heads": key_heads, "value_heads": value_heads, "key_dim": key_dim, "value_dim": value_dim}
    segment = [x.to(dtype) for x in make_segment(130, **shape)]
    assert_close("state", recurrent(*(x.double() for x in segment)), run_map(*segment), ratio)


def test_a_key_head_serves_consecutive_value_heads(assert_close):
    k, v, g, beta, initial = make_segment(70, key_heads=2, value_heads=6)
    state = run_map(k, v, g, beta, initial)
    for head in range(6):
        one = slice(head, head + 1)
        alone = run_map(k[:, :, head // 3, None], v[:, :, one], g[:, :, one], beta[:, :, one], initial[:, one])
        assert_close(f"value head {head}", alone[:, 0], state[:, head], 1e-12)


@settings(max_examples=30, deadline=None)
@given(
    lengths=st.lists(st.sampled_from((0, 1, 2, 3, 31, 63, 64, 65, 127, 128, 129)), min_size=1, max_size=5),
    padding=st.integers(0, 70),
    key_heads=st.sampled_from((1, 2)),
    group=st.sampled_from((1, 3)),
    dims=st.tuples(st.integers(1, 20), st.integers(1, 20)),
    gates=st.sampled_from(sorted(GATES)),
    dtypes=st.sampled_from(DTYPES),
    seed=st.integers(0, 2**32),
)
def test_padding_of_a_ragged_batch_is_never_read(
    lengths, padding, key_heads, group, dims, gates, dtypes, seed, assert_close
):
    shape = {"key_heads": key_heads, "value_heads": key_heads * group, "key_dim": dims[0], "value_dim": dims[1]}
    k, v, g, beta, initial = make_segment(max(lengths) + padding, batch=len(lengths), gates=gates, seed=seed, **shape)
    backend, key_dtype, value_dtype, ratio = dtypes
    k, v, g, beta = k.to(key_dtype), v.to(value_dtype), *(x.to(accumulation_dtype(k.to(key_dtype))) for x in (g, beta))
    for row, length in enumerate(lengths):
        for x in (k, v, g, beta):
            x[row, length:] = float("nan")
    column = torch.tensor([[length, 7] for length in lengths])[:, 0]  # not contiguous, as a column of a table is not
    with use_backend(backend):
        transition, update = chunk_delta(k, v, g, beta, column)
    state = transition.double() @ initial + update.double()
    for row, length in enumerate(lengths):
        alone = recurrent(*(x[row : row + 1, :length].double() for x in (k, v, g, beta)), initial[row : row + 1])
        assert_close(f"row {row} of length {length}", alone[0], state[row], ratio)


def test_lengths_beyond_the_batch_count_as_all_of_it(backend):
    k, v, g, beta, _ = (x.float() for x in make_segment(70, batch=2))
    whole, clamped = chunk_delta(k, v, g, beta), chunk_delta(k, v, g, beta, torch.tensor([100, 70]))
    for one, other in zip(whole, clamped, strict=True):
        assert torch.equal(one, other)


def test_no_tokens_are_the_identity_map():
    k, v, g, beta, _ = make_segment(0, batch=2)
    transition, update = chunk_delta(k, v, g, beta)
    assert torch.equal(transition, torch.eye(16).to(transition).expand_as(transition))
    assert torch.equal(update, torch.zeros_like(update))


@pytest.mark.parametrize("strong", [-200.0, -1e4, -float("inf")])
def test_mild_decay_after_a_strong_one_keeps_its_digits(backend, strong, assert_close):
    """The difference of two running sums has lost the digits of what came after a big step."""
    k, v, g, beta, initial = make_segment(200, gates="near identity")
    beta = beta + 0.3
    g[:, ::50] = strong
    segment = [x.float() for x in (k, v, g, beta, initial)]
    assert_close("state", recurrent(*(x.double() for x in segment)), run_map(*segment), 1e-6)


def test_the_same_key_again_and_again_overwrites_exactly(backend, assert_close):
    """The worst case of the block solve: every token's key equals every other's, and every write is nearly full."""
    k, v, g, beta, initial = make_segment(192, gates="overwriting")
    segment = [x.float() for x in (k[:, :1].expand_as(k), v, g, beta, initial)]
    assert_close("state", recurrent(*(x.double() for x in segment)), run_map(*segment), 1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])
def test_half_precision_inputs_are_accumulated_in_float32(dtype, assert_close):
    """The only error of half-precision operands is that of the operands: the result is the float32 result of them."""
    segment = [x.to(dtype) for x in make_segment(130)]
    actual = chunk_delta(*segment[:4])
    wide = chunk_delta(*(x.float() for x in segment[:4]))
    for name, reference, part in zip(("transition", "update"), wide, actual, strict=True):
        assert part.dtype == torch.float32
        assert_close(name, reference, part, 0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda k, v, g, beta: (k, v[:, :-1], g, beta), "shapes do not agree"),
        (lambda k, v, g, beta: (k, v, g[..., :1], beta), "shapes do not agree"),
        (lambda k, v, g, beta: (k, v, g, beta[:, :1]), "shapes do not agree"),
        (lambda k, v, g, beta: (k[:, :, [0, 1, 1]], v, g, beta), "2 value heads cannot be served by 3 key heads"),
        (lambda k, v, g, beta: (k, v, g, beta, torch.tensor([5, 5])), r"lengths must be integers \[1\]"),
        (lambda k, v, g, beta: (k, v, g, beta, torch.tensor([5.0])), "lengths must be integers"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(backend, change, message):
    k, v, g, beta, _ = (x.float() for x in make_segment(5))
    with pytest.raises(ValueError, match=message):
        chunk_delta(*change(k, v, g, beta))
