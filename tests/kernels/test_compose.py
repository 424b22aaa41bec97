"""Promises of composition: maps compose as the rule runs, and averaged orders are means of explicit whole chains."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from linearkv.kernels.backend import use_backend
from linearkv.kernels.chunk_delta import chunk_delta
from linearkv.kernels.chunk_delta.reference import recurrent
from linearkv.kernels.compose import ORDERS, compose_maps, compose_states, entry_states

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
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


def make_segments(n, gates="mixed", tokens=9, seed=0):
    """n segments (k, v, g, beta) of one sequence, and an initial state, in float64."""
    generator = torch.Generator().manual_seed(seed)

    def random(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(DEVICE)

    def between(bounds):
        low, high = torch.tensor(bounds, dtype=torch.float64).unbind(-1)
        share = torch.rand(1, tokens, HEADS, generator=generator, dtype=torch.float64)
        return (low + (high - low) * share).to(DEVICE)

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
    with use_backend("torch"):
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


@pytest.mark.parametrize("gates", GATES)
@pytest.mark.parametrize("n", COUNTS[1:])
def test_composed_maps_are_the_rule_over_the_concatenation(n, gates, precision, assert_close):
    dtype, ratio = precision
    segments, initial = make_segments(n, gates)
    joined = [torch.cat(parts, dim=1).to(dtype) for parts in zip(*segments, strict=True)]
    maps = [chunk_delta(*(x.to(dtype) for x in segment)) for segment in segments]
    state = compose_states([t for t, _ in maps], [u for _, u in maps], initial.to(dtype))
    assert state.dtype == dtype
    reference = recurrent(*(x.double() for x in joined), initial)
    for head in range(HEADS):
        assert_close(f"head {head}", reference[:, head], state[:, head], ratio)


@pytest.mark.parametrize(("dtype", "ratio"), [(torch.float64, 1e-10), (torch.float32, 1e-5)], ids=str)
@pytest.mark.parametrize("gates", GATES)
def test_composition_is_associative(gates, dtype, ratio, assert_close):
    transitions, updates, _ = make_maps(3, gates, dtype)
    first, second, third = zip(transitions, updates, strict=True)
    right = compose_maps(third, compose_maps(second, first))
    left = compose_maps(compose_maps(third, second), first)
    for name, reference, actual in zip(("transition", "update"), right, left, strict=True):
        assert_close(name, reference, actual, ratio)


@pytest.mark.parametrize("gates", GATES)
@pytest.mark.parametrize("n", COUNTS)
@pytest.mark.parametrize("order", ["sequential", "bidirectional", "cyclic"])
def test_order_is_the_mean_of_its_explicit_chains(order, n, gates, precision, assert_close):
    dtype, ratio = precision
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
    shift = torch.randn(initial.shape, generator=torch.Generator().manual_seed(9), dtype=torch.float64).to(DEVICE)
    moved = compose_states(transitions, updates, initial + shift, order)
    moved_by = moved - compose_states(transitions, updates, initial, order)
    no_updates = [torch.zeros_like(u) for u in updates]
    expected = explicit_mean(transitions, no_updates, shift, order)
    assert expected.norm() > 0.1 * shift.norm()
    assert_close("change of the state", expected, moved_by, 1e-10)


@pytest.mark.parametrize("order", ["sequential", "bidirectional", "cyclic"])
def test_no_chunks_leave_the_initial_state(backend, order):
    _, _, initial = make_maps(0, dtype=torch.float32)
    assert torch.equal(compose_states([], [], initial, order), initial)


@pytest.mark.parametrize("order", ["bidirectional", "cyclic"])
def test_one_chunk_has_one_order(backend, order):
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
def test_stored_half_precision_is_accumulated_in_float32(backend, dtype, order, assert_close):
    """Only what storage rounded is lost: the composition of rounded maps has float32 accuracy."""
    transitions, updates, initial = make_maps(20, dtype=dtype)
    state = compose_states(transitions, updates, initial.float(), order)
    assert state.dtype == torch.float32
    assert_close("state", explicit_mean(transitions, updates, initial, order), state, 1e-5)


def test_composition_leaves_its_operands_alone(backend):
    transitions, updates, initial = make_maps(5, dtype=torch.float32)
    before = [x.clone() for x in (*transitions, *updates, initial)]
    for order in ("sequential", "bidirectional", "cyclic"):
        compose_states(transitions, updates, initial, order)
    assert all(torch.equal(a, b) for a, b in zip(before, (*transitions, *updates, initial), strict=True))


def random_maps(count, lead, key_dim, value_dim, dtype, seed, decays):
    """Maps of any kind, among them near identities and near zeros, on a poisoned background."""
    generator = torch.Generator().manual_seed(seed)

    def random(*shape):
        return torch.randn(*shape, generator=generator)

    scale = torch.tensor(decays)[torch.randint(len(decays), (count, *lead, 1, 1), generator=generator)]
    noise = random(count, *lead, key_dim, key_dim) / (4 * key_dim**0.5)
    transitions = scale * (torch.eye(key_dim) + noise)
    updates = random(count, *lead, key_dim, value_dim)
    return [list(part.to(dtype).to(DEVICE)) for part in (transitions, updates)], random


@settings(max_examples=40, deadline=None)
@given(
    counts=st.lists(st.sampled_from((0, 1, 2, 3, 7)), min_size=1, max_size=4),
    pool=st.integers(1, 6),
    lead=st.sampled_from([(1,), (3,), (2, 2)]),
    dims=st.sampled_from([(16, 16), (64, 64), (5, 7), (33, 17), (20, 40)]),
    order=st.sampled_from(ORDERS),
    dtype=st.sampled_from((torch.float32, torch.float16, torch.bfloat16)),
    decays=st.sampled_from([(1.0,), (1.0, 0.5, 1e-3), (1e-6, 0.0)]),
    pack=st.booleans(),
    transposed=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_triton_composes_a_ragged_batch_as_the_reference_does(
    counts, pool, lead, dims, order, dtype, decays, pack, transposed, seed, assert_close
):
    """Requests share maps; transitions may be packed; the result may lie as [.., V, K] or as [.., K, V]."""
    (transitions, updates), random = random_maps(pool, lead, *dims, dtype, seed, decays)
    picks = torch.Generator().manual_seed(seed)
    requests = [torch.randint(pool, (count,), generator=picks).tolist() for count in counts]
    dense, rows = transitions, None
    if pack:  # all but the first
        kept = [torch.ones(lead, dtype=torch.bool), *(torch.rand(lead, generator=picks) < 0.5 for _ in range(pool - 1))]
        places = [(one.flatten().cumsum(0) - 1).where(one.flatten(), -1).view(lead) for one in kept]
        rows = [None, *(place.int().to(DEVICE) for place in places[1:])]
        dense = [t * one[..., None, None].to(DEVICE) for t, one in zip(transitions, kept, strict=True)]
        packed = [t[one.to(DEVICE)] for t, one in zip(transitions, kept, strict=True)]
        transitions = [transitions[0], *packed[1:]]
    initial = 1e3 * random(len(counts), *lead, *dims).to(DEVICE)
    expected = compose_states(
        [t.double() for t in dense], [u.double() for u in updates], initial.double(), order, requests=requests,
    )  # fmt: skip
    shape = (len(counts), *lead, *(dims[::-1] if transposed else dims))
    out = torch.full(shape, float("nan"), device=DEVICE)
    out = out.transpose(-1, -2) if transposed else out
    with use_backend("triton"):
        result = compose_states(transitions, updates, initial, order, requests=requests, rows=rows, out=out)
    assert result is out
    assert_close("states", expected, out, 2e-6)


@settings(max_examples=10, deadline=None)
@given(
    count=st.integers(0, 5),
    dims=st.sampled_from([(16, 16), (5, 7), (64, 64)]),
    dtype=st.sampled_from((torch.float32, torch.float16)),
    seed=st.integers(0, 2**32),
)
def test_entry_states_are_those_of_the_maps_before(count, dims, dtype, seed, assert_close):
    (transitions, updates), random = random_maps(count, (3,), *dims, dtype, seed, (1.0, 0.5))
    initial = random(3, *dims).to(DEVICE)
    for backend in ("torch", "triton"):
        with use_backend(backend):
            entries = entry_states(transitions, updates, initial)
            assert entries.shape == (count, 3, *dims)
            for position, entry in enumerate(entries):
                before = compose_states(transitions[:position], updates[:position], initial)
                assert_close(f"{backend} {position}", before, entry, 1e-6)


@pytest.mark.parametrize("order", ORDERS)
def test_a_state_may_be_composed_in_place(backend, order, assert_close):
    """As in a pool of states: the result takes the initial state's place."""
    (transitions, updates), random = random_maps(4, (3,), 16, 16, torch.float32, 0, (1.0, 0.5))
    initial = random(3, 16, 16).to(DEVICE)
    expected = compose_states(transitions, updates, initial, order)
    state = initial.clone()
    assert_close("state", expected, compose_states(transitions, updates, state, order, out=state), 1e-6)


@pytest.mark.parametrize("order", ORDERS)
def test_states_of_any_strides(backend, order, assert_close):
    (transitions, updates), random = random_maps(3, (2, 3), 16, 16, torch.float32, 0, (1.0, 0.5))
    shared = random(1, 1, 3, 16, 16).to(DEVICE).expand(2, 2, -1, -1, -1)
    out = torch.full((3, 2, 2, 16, 16), float("nan"), device=DEVICE).permute(2, 1, 0, 3, 4)
    compose_states(transitions, updates, shared, order, requests=[[0, 1, 2], [2]], out=out)
    for request, maps in enumerate(([0, 1, 2], [2])):
        picked = [[part[index] for index in maps] for part in (transitions, updates)]
        assert_close("state", compose_states(*picked, shared[request], order), out[request], 1e-6)


def test_states_beyond_float16_stay_finite(assert_close):
    """Updates of 6e4 each add up past what float16 holds; the kernel's parts of a state must not overflow."""
    transitions = [torch.eye(16, device=DEVICE).half() for _ in range(40)]
    updates = [torch.full((16, 16), 6e4, device=DEVICE).half() for _ in range(40)]
    initial = torch.full((16, 16), 1e-30, device=DEVICE)
    with use_backend("triton"):
        state = compose_states(transitions, updates, initial, "bidirectional")
    assert_close("state", torch.full((16, 16), 40 * 6e4, device=DEVICE), state, 1e-6)


def test_a_layer_stored_in_float32_among_float16_ones_keeps_its_precision(backend, assert_close):
    (transitions, updates), random = random_maps(3, (2,), 16, 16, torch.float32, 0, (1.0,))
    mixed = [transitions[0].half(), *transitions[1:]]
    state = compose_states(mixed, updates, random(2, 16, 16).to(DEVICE) * 0, "sequential")
    with use_backend("torch"):
        expected = compose_states([t.double() for t in mixed], updates, torch.zeros_like(state), "sequential")
    assert_close("state", expected, state, 1e-6)


def test_a_narrower_result_is_rounded_once(backend):
    (transitions, updates), random = random_maps(4, (2,), 16, 16, torch.float16, 0, (1.0,))
    initial = random(2, 16, 16).to(DEVICE)
    wide = compose_states(transitions, updates, initial, "bidirectional")
    narrow = torch.empty_like(wide, dtype=torch.bfloat16)
    assert torch.equal(compose_states(transitions, updates, initial, "bidirectional", out=narrow), wide.bfloat16())


def test_unknown_order_is_refused_by_name():
    with pytest.raises(ValueError, match="unknown order 'random': expected one of sequential, bidirectional, cyclic"):
        compose_states(*make_maps(2), order="random")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"updates": 2}, "3 transitions but 2 updates"),
        ({"rows": [None]}, "3 transitions but rows of 1"),
        ({"requests": [[0], [1]]}, "2 requests but 1 initial states"),
        ({"requests": [[0, 3]], "batch": True}, r"request \[0, 3\] names maps that are not among the 3"),
        ({"initial": torch.zeros(1, 3, 4, 4, device=DEVICE)}, r"map 0 has transition \(1, 3, 16, 16\)"),
        (
            {"rows": [None, None, torch.zeros(1, 3, device=DEVICE)]},
            r"map 2 has transition|map 2 has rows torch.float32",
        ),
        ({"out": torch.zeros(3)}, r"out has shape \(3,\)"),
    ],
)
def test_operands_that_do_not_fit_are_refused(change, message):
    transitions, updates, initial = make_maps(3)
    updates = updates[: change.pop("updates", 3)]
    initial = change.pop("initial", initial[None] if change.pop("batch", False) else initial)
    with pytest.raises(ValueError, match=message):
        compose_states(transitions, updates, initial, **change)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("backend", ["torch", "triton"])
def test_layers_may_lie_apart(order, backend):
    """As in a page, where transitions, updates and more of a layer stand before the next layer's."""
    with use_backend(backend):
        chance = torch.Generator().manual_seed(0)
        layers, heads, size, count = 3, 2, 16, 5
        device = "cuda" if torch.cuda.is_available() else "cpu"
        whole = torch.randn(count, layers, 2 * heads + 1, size, size, generator=chance).mul_(0.2).half().to(device)
        transitions = [one[:, :heads] for one in whole]
        updates = [one[:, heads : 2 * heads] for one in whole]
        initial = torch.randn(layers, heads, size, size, generator=chance).to(device)
        assert not transitions[0].is_contiguous()
        expected = compose_states(
            [t.contiguous() for t in transitions], [u.contiguous() for u in updates], initial, order
        )
        assert torch.equal(compose_states(transitions, updates, initial, order), expected)
        rows = torch.tensor([[0, -1], [1, 2], [-1, 3]], dtype=torch.int32, device=device)
        packed = whole[0].flatten(0, 1)[:4].contiguous()
        mixed = [packed, *transitions[1:]]
        expected = compose_states(
            [packed, *(t.contiguous() for t in transitions[1:])],
            [u.contiguous() for u in updates],
            initial,
            order,
            rows=[rows, *[None] * (count - 1)],
        )
        assert torch.equal(compose_states(mixed, updates, initial, order, rows=[rows, *[None] * (count - 1)]), expected)
