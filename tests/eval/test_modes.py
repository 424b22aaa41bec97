"""Every mode of the evaluation is what its name says."""

from dataclasses import replace

import pytest
import torch

from linearkv import LinearKVError, compose
from linearkv.eval.modes import MODES, Prepared, Task, find_modes, mode
from linearkv.eval.seam import cut_chunks, recompute_seams

KINDS = ("qwen3_5", "qwen3_5_moe", "qwen3_next")
NAMED = [
    "full", "sequential", "bidirectional", "cyclic", "sequential_pivot1", "bidirectional_pivot1", "zero_start",
    "zero_start_seam8", "additive", "last_state", "full_canonical", "sequential_canonical", "prefix_cache",
    "prefix_only", "no_context",
]  # fmt: skip


def ids(length, seed):
    return torch.randint(3, 500, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


def task_of(model, lengths=(20, 9, 33), orders=((0, 1, 2), (2, 0, 1), (1, 2, 0)), prefix=17, **more):
    chunks = [ids(length, seed) for seed, length in enumerate(lengths)]
    return Task(model, model.prefill_prefix(ids(prefix, 99)), chunks, orders, storage="fp32", **more)


def contexts(name, task):
    return [prepared.context for prepared in MODES[name].prepare(task)]


def with_seams(task, orders, length, kind="sequential"):
    return recompute_seams(task.model, task.prefix, cut_chunks(task.model, task.chunks, length), orders, kind)


def assert_same(one, other, assert_close, bound=1e-5):
    assert one.length == other.length
    for name in ("recurrent", "conv_tail", "key", "value"):
        assert_close(name, getattr(one, name), getattr(other, name), bound)


def test_the_modes_of_the_design_are_there():
    assert set(NAMED) <= set(MODES)


@pytest.mark.parametrize("name", sorted(MODES))
def test_a_mode_gives_one_context_per_order_that_can_be_answered_from(name, tiny_model):
    task = task_of(tiny_model("qwen3_5"))
    prepared = list(MODES[name].prepare(task))
    assert len(prepared) == len(task.orders)
    for one in prepared:
        assert 0 <= one.computed <= one.context.length
        assert torch.isfinite(task.model.logits(one.context, ids(5, 7))).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("lengths", [(20, 9, 33), (3, 1, 2), (5, 64, 1)])
def test_with_every_token_a_seam_token_it_is_full_prefill(kind, lengths, tiny_model, assert_close):
    task = task_of(tiny_model(kind), lengths)
    made = with_seams(task, task.orders, max(lengths))
    for full, seamed in zip(task.full, made, strict=True):
        assert_same(full, seamed, assert_close)


@pytest.mark.parametrize("kind", KINDS)
def test_a_seam_of_the_first_chunk_alone_changes_nothing(kind, tiny_model, assert_close):
    """Behind no prefix the first chunk is exact already, so one chunk must stay what it is whatever its seam."""
    task = task_of(tiny_model(kind), (20,), ((0,),), prefix=0)
    for length in (1, 4, 19):
        made = with_seams(task, task.orders, length)
        assert_same(task.full[0], made[0], assert_close)


def test_seams_do_not_depend_on_which_orders_share_a_batch(tiny_model, assert_close):
    task = task_of(tiny_model("qwen3_5"))
    together = with_seams(task, task.orders, 8)
    for order, made in zip(task.orders, together, strict=True):
        assert_same(made, with_seams(task, [order], 8)[0], assert_close)


def test_seams_of_chunks_shorter_than_a_seam(tiny_model, assert_close):
    """The third chunk is all seam; the others are not."""
    task = task_of(tiny_model("qwen3_5"), (20, 9, 3))
    made = with_seams(task, task.orders, 8)
    for full, seamed in zip(task.full, made, strict=True):
        assert full.length == seamed.length
        assert not torch.equal(full.recurrent, seamed.recurrent)


def test_the_averaged_order_of_seams_is_a_mean_of_chains(tiny_model, assert_close):
    """Two chunks: cyclic and bidirectional are one and the same, and differ from sequential in the state alone."""
    task = task_of(tiny_model("qwen3_5"), (20, 9), ((0, 1),))
    made = {kind: with_seams(task, task.orders, 4, kind)[0] for kind in ("sequential", "bidirectional", "cyclic")}
    assert_same(made["cyclic"], made["bidirectional"], assert_close)
    assert_close("key", made["cyclic"].key, made["sequential"].key, 1e-6)
    assert not torch.allclose(made["cyclic"].recurrent, made["sequential"].recurrent, rtol=1e-3)


def test_a_seam_needs_a_token(tiny_model):
    task = task_of(tiny_model("qwen3_5"))
    with pytest.raises(ValueError, match="at least one token long, not 0"):
        with_seams(task, task.orders, 0)


@pytest.mark.parametrize("name", ["sequential", "bidirectional", "cyclic", "last_state", "additive"])
def test_one_chunk_is_exact_in_every_composed_mode(name, tiny_model, assert_close):
    task = task_of(tiny_model("qwen3_5"), (40,), ((0,),))
    made = contexts(name, task)[0]
    if name == "additive":  # which forgets the transition
        assert not torch.allclose(made.recurrent, task.full[0].recurrent, rtol=1e-2)
    else:
        assert_same(task.full[0], made, assert_close)


@pytest.mark.parametrize("name", ["sequential_pivot1", "bidirectional_pivot1", "cyclic_pivot1"])
def test_a_pivot_comes_last_and_is_prefilled_from_the_composed_state(name, tiny_model, assert_close):
    task = task_of(tiny_model("qwen3_5"), best=1)
    kind = name.removesuffix("_pivot1")
    for order, prepared in zip(task.orders, MODES[name].prepare(task), strict=True):
        rest = compose(task.prefix, [task.states[i] for i in order if i != 1], order=kind)
        assert_same(task.model.prefill(task.chunks[1], rest), prepared.context, assert_close)
        assert prepared.computed == len(task.chunks[1])


@pytest.mark.parametrize("name", ["full_canonical", "sequential_canonical", "prefix_only", "no_context"])
def test_modes_that_do_not_see_the_order_give_the_same_for_every_order(name, tiny_model):
    made = contexts(name, task_of(tiny_model("qwen3_5")))
    assert all(torch.equal(made[0].recurrent, other.recurrent) for other in made[1:])


@pytest.mark.parametrize("name", ["full_canonical", "sequential_canonical"])
def test_the_canonical_order_does_not_depend_on_how_the_chunks_were_listed(name, tiny_model):
    task = task_of(tiny_model("qwen3_5"))
    turned = replace(task, chunks=task.chunks[::-1])
    assert torch.allclose(contexts(name, task)[0].recurrent, contexts(name, turned)[0].recurrent, rtol=1e-4, atol=1e-6)


def test_a_prefix_cache_has_the_prefix_in_whole_blocks_of_16(tiny_model):
    task = task_of(tiny_model("qwen3_5"), (20, 9, 33), ((0, 1, 2), (0, 2, 1)))
    prepared = list(MODES["prefix_cache"].prepare(task))
    assert [one.context.length - one.computed for one in prepared] == [16, 16]


def test_zero_state_keeps_keys_and_forgets_states(tiny_model):
    task = task_of(tiny_model("qwen3_5"))
    for made, composed in zip(contexts("zero_state", task), contexts("sequential", task), strict=True):
        assert not made.recurrent.any() and composed.recurrent.any()
        assert torch.equal(made.key, composed.key)


def test_a_mode_of_ones_own_stands_beside_the_others(tiny_model):
    @mode("halves", "half of the state")
    def halves(task):
        for order in task.orders:
            context = task.composed(order, "sequential")
            yield Prepared(replace(context, recurrent=context.recurrent / 2), computed=0)

    try:
        assert [found.name for found in find_modes(["halves", "cyclic", "halves"])] == ["full", "halves", "cyclic"]
    finally:
        del MODES["halves"]


def test_an_unknown_mode_is_refused_with_the_known_ones():
    with pytest.raises(LinearKVError, match="unknown modes nonsense: expected some of full, sequential"):
        find_modes(["full", "nonsense"])


def test_chunks_by_depth_come_from_behind_as_much_as_is_nearest(tiny_model, assert_close):
    """Three chunks of a primer's length: the second lands one primer deep, the third two."""
    primer = ids(20, 50)
    task = task_of(tiny_model("qwen3_5"), (20, 20, 20), primer=primer)
    before = compose(task.prefix, [])
    depths = [before, *(task.model.prefill(primer * times, after=before) for times in (1, 2))]
    states = [task.model.prefill_chunks(depth, task.chunks) for depth in depths]
    for name, levels in (("primer_by_depth", (0, 1, 2)), ("primer_late", (0, 1, 1))):
        for order, context in zip(task.orders, contexts(name, task), strict=True):
            picked = [states[level][index] for level, index in zip(levels, order, strict=True)]
            assert_same(compose(task.prefix, picked, order="sequential"), context, assert_close)
        for order, context in zip(task.orders, contexts(f"{name}_kv", task), strict=True):
            picked = [
                replace(states[0][index], key=states[level][index].key, value=states[level][index].value)
                for level, index in zip(levels, order, strict=True)
            ]
            assert_same(compose(task.prefix, picked, order="sequential"), context, assert_close)


def test_depth_ends_where_the_models_positions_do(tiny_model, assert_close):
    primer = ids(3000, 50)
    task = task_of(tiny_model("qwen3_5"), (1600, 1600, 20), orders=((0, 1, 2),), primer=primer)
    assert len(task.primed_states(5)) == 3
    assert_close("key", task.primed_states(0)[0].key, task.primed_states(5)[0].key, 1e-6)
