"""Promises of composition: maps compose as the rule runs, and averaged orders are means of explicit whole chains."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from linearkv.kernels.chunk_delta import chunk_delta
from linearkv.kernels.chunk_delta.reference import recurrent
from linearkv.kernels.compose import compose_maps, compose_states

PRECISIONS = [pytest.param(torch.float64, 1e-10, id="float64"), pytest.param(torch.float32, 1e-5, id="float32")]
COUNTS = (0, 1, 2, 3, 10, 50)
KEY_DIM, VALUE_DIM, HEADS = 16, 24, 3

# (lowest, highest) log decay and write strength of the tokens, head by head.
IDENTITY = ((-1e-6, 0.0), (0.0, 1e-4))
ORDINARY = ((-0.02, 0.0), (0.0, 0.3))
ZERO = ((-20.0, -5.0), (0.1, 0.9))
GATES = {
    "near identity": (IDENTITY, IDENTITY, IDENTITY),
    "ordinary": (ORDINARY, ORDINARY, ORDINARY),
    "near zero": (ZERO, ZERO, ZERO),
    "mixed": (IDENTITY, ORDINARY, ZERO),
}


def make_segments(n, gates="mixed", tokens=9, seed=0):
    """n segments (k, v, g, beta) of one sequence, and an initial state, in float64."""
    generator = torch.Generator().manual_seed(seed)

    def random(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    def between(bounds):
        low, high = torch.tensor(bounds, dtype=torch.float64).unbind(-1)
        return low + (high - low) * torch.rand(1, tokens, HEADS, generator=generator, dtype=torch.float64)

    decays, strengths = zip(*GATES[gates], strict=True)
    segments = [
        (
            torch.nn.functional.normalize(random(1, tokens, HEADS, KEY_DIM), dim=-1),
            random(1, tokens, HEADS, VALUE_DIM),
            between(decays),
            between(strengths),
        )
        for _ in range(n)
    ]
    return segments, random(1, HEADS, KEY_DIM, VALUE_DIM)


def make_maps(n, gates="mixed", dtype=torch.float64):
    segments, initial = make_segments(n, gates)
    maps = [chunk_delta(*segment) for segment in segments]
    return [t.to(dtype) for t, _ in maps], [u.to(dtype) for _, u in maps], initial.to(dtype)


def explicit_chain(transitions, updates, state, order):
    """One chain in float64, chunk by chunk in the order of the given indices."""
    state = state.double()
    for i in order:
        state = transitions[i].double() @ state + updates[i].double()
    return state


def explicit_mean(transitions, updates, initial, order):
    """The definition of each order: a mean of whole chains, each from the initial state."""
    n = len(transitions)
    given = list(range(n))
    chains = {
        "sequential": [given],
        "bidirectional": [given, given[::-1]],
        "cyclic": [given[r:] + given[:r] for r in range(max(n, 1))],
    }[order]
    return torch.stack([explicit_chain(transitions, updates, initial, chain) for chain in chains]).mean(0)


@pytest.mark.parametrize(("dtype", "ratio"), PRECISIONS)
@pytest.mark.parametrize("gates", GATES)
@pytest.mark.parametrize("n", COUNTS[1:])
def test_composed_maps_are_the_rule_over_the_concatenation(n, gates, dtype, ratio, assert_close):
    segments, initial = make_segments(n, gates)
    joined = [torch.cat(parts, dim=1).to(dtype) for parts in zip(*segments, strict=True)]
    maps = [chunk_delta(*(x.to(dtype) for x in segment)) for segment in segments]
    state = compose_states([t for t, _ in maps], [u for _, u in maps], initial.to(dtype))
    assert state.dtype == dtype
    reference = recurrent(*(x.double() for x in joined), initial)
    for head in range(HEADS):
        assert_close(f"head {head}", reference[:, head], state[:, head], ratio)


@pytest.mark.parametrize(("dtype", "ratio"), PRECISIONS)
@pytest.mark.parametrize("gates", GATES)
def test_composition_is_associative(gates, dtype, ratio, assert_close):
    transitions, updates, _ = make_maps(3, gates, dtype)
    first, second, third = zip(transitions, updates, strict=True)
    right = compose_maps(third, compose_maps(second, first))
    left = compose_maps(compose_maps(third, second), first)
    for name, reference, actual in zip(("transition", "update"), right, left, strict=True):
        assert_close(name, reference, actual, ratio)


@pytest.mark.parametrize(("dtype", "ratio"), PRECISIONS)
@pytest.mark.parametrize("gates", GATES)
@pytest.mark.parametrize("n", COUNTS)
@pytest.mark.parametrize("order", ["sequential", "bidirectional", "cyclic"])
def test_order_is_the_mean_of_its_explicit_chains(order, n, gates, dtype, ratio, assert_close):
    transitions, updates, initial = make_maps(n, gates, dtype)
    state = compose_states(transitions, updates, initial, order)
    reference = explicit_mean(transitions, updates, initial, order)
    for head in range(HEADS):
        assert_close(f"head {head}", reference[:, head], state[:, head], ratio)


@pytest.mark.parametrize("gates", ["near identity", "ordinary"])
@pytest.mark.parametrize("order", ["sequential", "bidirectional", "cyclic"])
def test_the_initial_state_enters_every_chain(order, gates, assert_close):
    """Another prefix state moves the result by the mean of the whole chains' transitions applied to the difference."""
    transitions, updates, initial = make_maps(7, gates)
    shift = torch.randn(initial.shape, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    moved = compose_states(transitions, updates, initial + shift, order)
    moved_by = moved - compose_states(transitions, updates, initial, order)
    no_updates = [torch.zeros_like(u) for u in updates]
    expected = explicit_mean(transitions, no_updates, shift, order)
    assert expected.norm() > 0.1 * shift.norm()
    assert_close("change of the state", expected, moved_by, 1e-10)


@pytest.mark.parametrize("order", ["sequential", "bidirectional", "cyclic"])
def test_no_chunks_leave_the_initial_state(order):
    _, _, initial = make_maps(0)
    assert torch.equal(compose_states([], [], initial, order), initial)


@pytest.mark.parametrize("order", ["bidirectional", "cyclic"])
def test_one_chunk_has_one_order(order):
    transitions, updates, initial = make_maps(1, dtype=torch.float32)
    one = compose_states(transitions, updates, initial, "sequential")
    assert torch.equal(compose_states(transitions, updates, initial, order), one)


class CountProducts(TorchDispatchMode):
    """Counts the matrix products that run inside the block."""

    products = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.overloadpacket in (
            torch.ops.aten.mm,
            torch.ops.aten.bmm,
            torch.ops.aten.addmm,
            torch.ops.aten.baddbmm,
        ):
            self.products += 1
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize(("order", "a_chunk"), [("sequential", 1), ("bidirectional", 2), ("cyclic", 7)])
@pytest.mark.parametrize("n", [2, 10, 50])
def test_matrix_products_grow_linearly(n, order, a_chunk):
    transitions, updates, initial = make_maps(n)
    with CountProducts() as count:
        compose_states(transitions, updates, initial, order)
    assert 0 < count.products <= a_chunk * n


@pytest.mark.parametrize("order", ["sequential", "bidirectional", "cyclic"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["float16", "bfloat16"])
def test_stored_half_precision_is_accumulated_in_float32(dtype, order, assert_close):
    """Only what storage rounded is lost: the composition of rounded maps has float32 accuracy."""
    transitions, updates, initial = make_maps(20, dtype=dtype)
    state = compose_states(transitions, updates, initial.float(), order)
    assert state.dtype == torch.float32
    assert_close("state", explicit_mean(transitions, updates, initial, order), state, 1e-5)


def test_composition_leaves_its_operands_alone():
    transitions, updates, initial = make_maps(5, dtype=torch.float32)
    before = [x.clone() for x in (*transitions, *updates, initial)]
    for order in ("sequential", "bidirectional", "cyclic"):
        compose_states(transitions, updates, initial, order)
    assert all(torch.equal(a, b) for a, b in zip(before, (*transitions, *updates, initial), strict=True))


def test_unknown_order_is_refused_by_name():
    with pytest.raises(ValueError, match="unknown order 'random': expected one of sequential, bidirectional, cyclic"):
        compose_states(*make_maps(2), order="random")


def test_a_missing_update_is_refused():
    transitions, updates, initial = make_maps(3)
    with pytest.raises(ValueError, match="3 transitions but 2 updates"):
        compose_states(transitions, updates[:2], initial)
