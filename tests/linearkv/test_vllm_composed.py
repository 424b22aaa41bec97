"""Contexts in parts: the same as whole ones, from states and from pages, whatever is stored."""

import pytest
import torch

from linearkv import compose
from linearkv.cache import encode
from linearkv.kernels.compose import ORDERS
from linearkv.storage import POLICIES, pack, unpack
from linearkv.vllm import composed as parts
from linearkv.vllm.composed import Composed, compose_in_parts


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
    groups = list(parts._groups(types, size))
    assert [layer for group in groups for layer in range(group.first, group.last)] == list(range(len(types)))
    assert all(set(types[group.first : group.last]) == set(types) for group in groups)
    arriving = parts._Arriving(page, groups, torch.device("cpu"))
    whole = unpack(page.tensors).dense()
    some = [arriving.layers(number).dense() for number in range(len(groups))]
    for name in ("transition", "update", "conv_tail", "key", "value"):
        found = torch.cat([getattr(part, name).to(getattr(whole, name).dtype) for part in some])
        assert torch.equal(found, getattr(whole, name)), name
