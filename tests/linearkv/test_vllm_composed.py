"""Contexts in parts: the same as whole ones, from states and from pages, whatever is stored."""

from dataclasses import replace

import pytest
import torch

from linearkv import compose
from linearkv.cache import encode
from linearkv.kernels.backend import use_backend
from linearkv.kernels.compose import ORDERS
from linearkv.storage import POLICIES, pack, unpack
from linearkv.vllm import composed as parts
from linearkv.vllm.composed import Composed, compose_in_parts

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture(scope="module")
def model(tiny_model):
    return tiny_model("qwen3_5", "bfloat16")


@pytest.fixture(scope="module")
def prefix(model):
    return model.prefill_prefix(range(3, 20))


@pytest.fixture(scope="module")
def states(model, prefix):
    return model.prefill_chunks(prefix, [range(30, 95), range(7, 9), range(100, 101), range(200, 333)])


def pages(model, states, policy):
    return [
        encode(f"{number:064x}", pack(state, model.layer_types, policy), secret=b"0" * 32)
        for number, state in enumerate(states)
    ]


def same(made, whole):
    assert made.length == whole.length
    for name in ("recurrent", "conv_tail", "key", "value"):
        assert torch.equal(torch.cat([getattr(part.context, name) for part in made.parts]), getattr(whole, name)), name


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("policy", POLICIES)
def test_pages_and_states_make_the_context_that_compose_makes(model, prefix, states, policy, order):
    stored = pages(model, states, policy)
    unpacked = [unpack(page.tensors) for page in stored]
    whole = compose(prefix, unpacked, order)
    same(compose_in_parts(prefix, stored, order, model.layer_types), whole)
    same(compose_in_parts(prefix, unpacked, order, model.layer_types), whole)
    same(compose_in_parts(prefix, [stored[0], *unpacked[1:3], stored[3]], order, model.layer_types), whole)
    same(Composed.of(whole), whole)


def on_device(prefix):
    """Where kernels run: on the GPU where there is one, else on the CPU, interpreted."""
    moved = {name: getattr(prefix, name).to(DEVICE) for name in ("recurrent", "conv_tail", "key", "value")}
    return replace(prefix, **moved, rotary=lambda at: tuple(part.to(DEVICE) for part in prefix.rotary(at.cpu())))


@pytest.mark.parametrize(
    ("size", "policy", "order"), [(4, "fp16", "bidirectional"), (100, "fp32", "sequential"), (4, "fp32", "cyclic")]
)
def test_what_is_composed_by_where_it_lies_is_the_same(model, prefix, states, policy, size, order):
    """As on a GPU: of pages, of states on the device, and of both."""
    prefix = on_device(prefix)
    stored = pages(model, states, policy)
    here = [unpack(page.tensors).to(DEVICE) for page in stored]
    whole = compose(prefix, here, order)
    groups = parts._groups(model.layer_types, size)
    for chunks in (stored, here, [stored[0], *here[1:3], stored[3]], [stored[0], stored[0], here[0]]):
        expected = whole if len(chunks) == 4 else compose(prefix, [here[0]] * 3, order)
        with use_backend("triton"):
            placed = parts._Placed.of(prefix, chunks, groups)
            contexts = [placed.compose(number, order) for number in range(len(groups))]
        for name in ("conv_tail", "key", "value"):
            found = torch.cat([getattr(context, name) for context in contexts])
            assert torch.equal(found, getattr(expected, name)), name
        found = torch.cat([context.recurrent for context in contexts])
        assert (found - expected.recurrent).norm() <= 1e-6 * expected.recurrent.norm()
        assert all(context.length == expected.length for context in contexts)


@pytest.mark.gpu
@pytest.mark.parametrize("order", ORDERS)
def test_pages_that_arrive_on_a_gpu_are_composed_there(model, prefix, states, order):
    """In parts, on a stream beside the default one."""
    stored, stream = pages(model, states, "fp16"), torch.cuda.Stream()
    prefix = on_device(prefix)
    stream.wait_stream(torch.cuda.current_stream())
    made = compose_in_parts(prefix, stored, order, model.layer_types, stream)
    made.parts[-1].ready.synchronize()
    whole = compose(prefix, [unpack(page.tensors) for page in stored], order)
    assert torch.equal(torch.cat([part.context.key for part in made.parts]), whole.key)
    assert (made.recurrent - whole.recurrent).norm() <= 1e-6 * whole.recurrent.norm()


def test_what_lies_otherwise_or_does_not_fit_is_left_to_compose(model, prefix, states):
    groups = parts._groups(model.layer_types, 4)
    stored = pages(model, states, "fp16")
    assert parts._Placed.of(prefix, stored, groups) is not None
    packed = pages(model, states, "compact")
    assert parts._Placed.of(prefix, [*stored[:2], packed[2]], groups) is None
    assert parts._Placed.of(prefix, [unpack(page.tensors) for page in packed], groups) is None
    assert parts._Placed.of(prefix, [stored[0], pages(model, states, "fp32")[1]], groups) is None
    assert parts._Placed.of(prefix, [], groups) is None
    apart = replace(states[0], update=states[0].update.transpose(0, 1).contiguous().transpose(0, 1))
    assert parts._Placed.of(prefix, [apart], groups) is None
    uneven = replace(states[0], update=states[0].update * torch.tensor([1.0, 1e9, 1.0])[:, None, None, None])
    assert parts._Placed.of(prefix, pages(model, [uneven], "fp16"), groups) is None
    wider = replace(prefix, conv_tail=prefix.conv_tail.float())
    assert parts._Placed.of(wider, stored, groups) is None


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("kinds", ["GGGA", "GAGA", "GGAGGAGGGG", "AGGGGGGGGA", "GA" * 6, "GGGAGGGAGGGA"])
@pytest.mark.parametrize("size", [1, 2, 4, 100])
def test_layers_in_groups_are_all_layers_once(kinds, size, policy):
    """Any pattern of layers, also one whose groups do not lie evenly in a page."""
    names = {"G": "linear_attention", "A": "full_attention"}
    types = [names[kind] for kind in kinds]
    chance = torch.Generator().manual_seed(len(kinds))
    gdn, attention = kinds.count("G"), kinds.count("A")
    from linearkv.states import ChunkState

    state = ChunkState(
        transition=torch.randn(gdn, 2, 4, 4, generator=chance) * torch.logspace(-9, 0, 2)[:, None, None],
        update=torch.randn(gdn, 2, 4, 6, generator=chance) * (1e6 if policy == "fp16" else 1),  # some stay float32
        conv_tail=torch.randn(gdn, 5, 3, generator=chance).bfloat16(),
        key=torch.randn(attention, 7, 1, 4, generator=chance).bfloat16(),
        value=torch.randn(attention, 7, 1, 4, generator=chance).bfloat16(),
        token_ids=torch.arange(7),
    )
    page = encode("a" * 64, pack(state, types, policy), secret=b"0" * 32)
    groups = parts._groups(types, size)
    assert [layer for group in groups for layer in range(group.first, group.last)] == list(range(len(types)))
    assert all(set(types[group.first : group.last]) == set(types) for group in groups)
    whole = unpack(page.tensors).dense()
    some = [parts._layers(page, group, torch.device("cpu")).dense() for group in groups]
    for name in ("transition", "update", "conv_tail", "key", "value"):
        found = torch.cat([getattr(part, name).to(getattr(whole, name).dtype) for part in some])
        assert torch.equal(found, getattr(whole, name)), name
