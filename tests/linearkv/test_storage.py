"""Promises of the storage policies: what each keeps of a state, and what that costs in a composed one."""

import dataclasses

import pytest
import torch

from linearkv import Engine, Settings, compose, pack, unpack
from linearkv.models import load_model
from linearkv.storage import FORGOTTEN, POLICIES


@pytest.fixture(scope="module")
def reference():
    return load_model("reference", device="cpu")


@pytest.fixture(scope="module")
def prefix(reference):
    return reference.prefill_prefix(range(100, 140))


@pytest.fixture(scope="module")
def states(reference, prefix):
    chunks = [[300 + 7 * i + j % 90 for j in range(40 + 60 * i)] for i in range(6)]
    return reference.prefill_chunks(prefix, chunks)


def stored(states, model, policy):
    return [unpack(pack(state, model.layer_types, policy)) for state in states]


def gdn_bytes(state):
    return state.transition.nbytes + state.update.nbytes


def test_compact_is_fp16_without_the_transitions_that_have_decayed(reference, states):
    for full, half, small in zip(
        states, stored(states, reference, "fp16"), stored(states, reference, "compact"), strict=True
    ):
        kept = torch.linalg.vector_norm(full.transition, dim=(-2, -1)) > FORGOTTEN
        assert torch.equal(small.rows >= 0, kept)
        assert torch.equal(small.dense().transition, half.transition * kept[..., None, None])
        assert small.transition.shape[0] == int(kept.sum())
        for name in ("update", "conv_tail", "key", "value", "token_ids"):
            assert torch.equal(getattr(small, name), getattr(half, name)), name


def test_compact_takes_less_where_heads_forget(reference, states):
    half, small = (sum(map(gdn_bytes, stored(states, reference, policy))) for policy in ("fp16", "compact"))
    assert small < 0.85 * half
    assert sum(state.nbytes for state in stored(states, reference, "compact")) < sum(s.nbytes for s in states)


@pytest.mark.parametrize("order", ["sequential", "bidirectional", "cyclic"])
def test_a_composed_state_loses_no_more_to_compact_than_to_fp16(reference, prefix, states, order):
    """Relative error by head: of fp16, and what leaving transitions out adds to it."""
    exact = compose(prefix, states, order).recurrent
    errors = {}
    for policy in POLICIES:
        state = compose(prefix, stored(states, reference, policy), order).recurrent
        errors[policy] = (state - exact).norm(dim=(-2, -1)) / exact.norm(dim=(-2, -1))
    assert float(errors["fp32"].max()) == 0
    assert float(errors["compact"].median()) < 1e-3
    assert float((errors["compact"] - errors["fp16"]).max()) < 1e-4


def test_heads_that_forget_nothing_are_all_kept(reference, states):
    state = dataclasses.replace(states[0], transition=torch.ones_like(states[0].transition))
    again = unpack(pack(state, reference.layer_types, "compact"))
    assert torch.equal(again.dense().transition, state.transition.half())
    assert int(again.rows.min()) == 0


def test_heads_that_forget_everything_need_no_transition(reference, prefix, states):
    state = dataclasses.replace(states[0], transition=torch.zeros_like(states[0].transition))
    again = unpack(pack(state, reference.layer_types, "compact"))
    assert again.transition.shape[0] == 0
    assert torch.equal(compose(prefix, [again]).recurrent, state.update.half().float())


def test_a_packed_state_cannot_be_packed_again(reference, states):
    with pytest.raises(ValueError, match="packed already"):
        pack(stored(states, reference, "compact")[0], reference.layer_types, "fp16")


def test_a_packed_transition_that_does_not_fit_its_rows_is_refused(reference, states):
    small = stored(states, reference, "compact")[0]
    with pytest.raises(ValueError, match="do not agree"):
        dataclasses.replace(small, rows=None)


def test_an_engine_answers_from_compact_states_as_from_fp16_ones(corpus, tmp_path):
    answers = {}
    for policy in ("fp16", "compact"):
        settings = Settings(storage=policy, chunk_tokens=128)
        with Engine.open(tmp_path / policy, device="cpu", settings=settings) as engine:
            engine.index(corpus)
            engine.query("Who recast the bell?", k=4)
            answer = engine.query("Who recast the bell?", k=4)
            answers[policy] = answer.text, answer.cache.hits, engine.stats()
    assert answers["fp16"][:2] == answers["compact"][:2]


def test_a_transition_that_is_not_a_number_is_kept_and_shows(reference, prefix, states):
    """Left out it would compose to a plausible state."""
    broken = states[0].transition.clone()
    broken[0, 0] = float("nan")
    again = unpack(pack(dataclasses.replace(states[0], transition=broken), reference.layer_types, "compact"))
    assert compose(prefix, [again]).recurrent[0, 0].isnan().all()


def test_rows_that_name_no_transition_are_refused(reference, states):
    small = stored(states, reference, "compact")[0]
    with pytest.raises(ValueError, match="rows name transition 1000"):
        dataclasses.replace(small, rows=torch.full_like(small.rows, 1000))
