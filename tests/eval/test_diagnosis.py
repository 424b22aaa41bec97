"""Swapping parts with full prefill: nothing swapped is composition, everything swapped is full prefill."""

import pytest
import torch

from linearkv.eval.diagnosis import PARTS, Swaps, register
from linearkv.eval.modes import MODES, Task

KINDS = ("qwen3_5", "qwen3_5_moe", "qwen3_next")
ORDER = (2, 0, 1)


def ids(length, seed):
    return torch.randint(3, 500, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


@pytest.fixture
def task_of(tiny_model):
    def make(kind="qwen3_5"):
        model = tiny_model(kind)
        chunks = [ids(length, seed) for seed, length in enumerate((20, 9, 70))]
        return Task(model, model.prefill_prefix(ids(17, 99)), chunks, [ORDER], storage="fp32")

    return make


def assert_same(one, other, assert_close):
    for name in ("recurrent", "conv_tail", "key", "value"):
        assert_close(name, getattr(one, name), getattr(other, name), 1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_everything_from_full_prefill_is_full_prefill(kind, task_of, assert_close):
    task = task_of(kind)
    full = task.full[0]
    made = Swaps(task).composed(ORDER, full, PARTS, keys_and_values=True, seam=True)
    assert_same(full, made, assert_close)


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_from_full_prefill_is_composition(kind, task_of, assert_close):
    task = task_of(kind)
    made = Swaps(task).composed(ORDER, task.full[0])
    assert_same(task.composed(ORDER, "sequential"), made, assert_close)


def test_one_layer_changes_that_layer_alone(task_of):
    task = task_of()
    swaps, full = Swaps(task), task.full[0]
    plain = swaps.composed(ORDER, full).recurrent
    for layer in range(swaps.layers):
        swapped = swaps.composed(ORDER, full, PARTS, layers=(layer,)).recurrent
        changed = [not torch.equal(a, b) for a, b in zip(plain, swapped, strict=True)]
        assert [i for i, did in enumerate(changed) if did] in ([layer], [])  # the first layer sees tokens alone
    assert not torch.equal(plain[-1], swaps.composed(ORDER, full, PARTS, layers=(swaps.layers - 1,)).recurrent[-1])


def test_the_parts_of_a_map_are_swapped_one_by_one(task_of):
    task = task_of()
    swaps, full = Swaps(task), task.full[0]
    states = [swaps.composed(ORDER, full, (name,)).recurrent for name in PARTS]
    assert all(not torch.equal(a, b) for i, a in enumerate(states) for b in states[:i])


def test_what_maps_are_like_is_told_per_layer_and_head(task_of):
    task = task_of()
    found = Swaps(task).describe(ORDER)
    shape = tuple(task.prefix.recurrent.shape[:2])
    assert {torch.tensor(values).shape for values in found.values()} == {torch.Size(shape)}
    beta = torch.tensor(found["beta_alone"])
    assert ((beta > 0) & (beta < 1)).all() and (torch.tensor(found["g_context"]) <= 0).all()
    # The first layer sees nothing but the tokens and, at a seam, three others.
    error = torch.tensor(found["update_error"])
    assert error[0].max() < error[-1].max()


def test_diagnostic_modes_stand_in_the_table_once_asked_for(task_of):
    before = set(MODES)
    task = task_of()
    names = register(len(task.model.gdn_layers))
    try:
        assert set(MODES) - before == set(names)
        assert {"swap_all", "swap_beta", "swap_maps_of_0", "gamma_0.9"} <= set(names)
        for name in names:
            (prepared,) = MODES[name].prepare(task)
            assert prepared.context.length == task.full[0].length
    finally:
        for name in names:
            MODES.pop(name, None)


def test_gamma_scales_transitions_and_no_updates(task_of):
    """With one chunk: half the transition keeps half of what the prefix left behind."""
    task = task_of()
    task = Task(task.model, task.prefix, task.chunks[:1], [(0,)], storage="fp32")
    names = register(len(task.model.gdn_layers))
    try:
        (half,) = MODES["gamma_0.5"].prepare(task)
    finally:
        for name in names:
            MODES.pop(name, None)
    state = task.states[0]
    expected = 0.5 * state.transition @ task.prefix.recurrent + state.update
    assert torch.allclose(half.context.recurrent, expected, atol=1e-6)


def test_gamma_of_one_layer_leaves_the_others_alone(task_of):
    task = task_of()
    names = register(len(task.model.gdn_layers))
    moved = []
    try:
        (plain,) = MODES["sequential"].prepare(task)
        for layer in range(len(task.model.gdn_layers)):
            (scaled,) = MODES[f"gamma_0.8_of_{layer}"].prepare(task)
            pairs = zip(plain.context.recurrent, scaled.context.recurrent, strict=True)
            changed = [i for i, (a, b) in enumerate(pairs) if not torch.equal(a, b)]
            assert changed in ([layer], [])  # a random layer may forget everything: then there is nothing to scale
            moved += changed
    finally:
        for name in names:
            MODES.pop(name, None)
    assert moved
