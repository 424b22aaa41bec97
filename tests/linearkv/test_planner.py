"""Promises of the planner: a stored state is restored unless prefilling is sooner, by what was measured; the choice is
visible, can be forced, and changes nothing about what an answer may be."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from linearkv import Engine, Settings
from linearkv.planner import IN_MEMORY, TRY_AGAIN, Located, Planner, Rate

MB = 1_000_000


def planner(prefill_tokens_s=1000.0, disk_bytes_s=100 * MB, memory_bytes_s=1e12, compose_chunks_s=1e6):
    """With rates as if one second of each had been seen."""
    made = Planner(prefill=Rate(prefill_tokens_s, 1.0), compose=Rate(compose_chunks_s, 1.0))
    made.load = {"disk": Rate(disk_bytes_s, 1.0), IN_MEMORY: Rate(memory_bytes_s, 1.0)}
    return made


def test_nothing_measured_restores_everything():
    choice = Planner().choose([Located(500, "disk", 100 * MB), Located(5, "memory", MB)], 40)
    assert choice == (frozenset(), False, "")


def test_a_fast_disk_is_read():
    assert planner().choose([Located(500, "disk", 10 * MB)] * 6, 40) == (frozenset(), False, "")


def test_states_that_take_longer_to_read_than_to_compute_are_computed():
    chunks = [Located(500, "disk", 10 * MB), Located(50, "disk", 10 * MB), Located(500, "memory", 10 * MB)]
    choice = planner().choose(chunks, 40)
    assert (choice.recompute, choice.full) == ({1}, False)
    assert choice.why == "1 of 3 stored states take longer to read than to compute"


def test_a_slow_disk_gives_full_prefill():
    choice = planner(disk_bytes_s=MB).choose([Located(500, "disk", 100 * MB)] * 3, 40)
    assert choice.full
    assert choice.why == "prefilling takes about 1.5 s, composing 3e+02 s"


def test_missing_states_are_computed_and_kept_whatever_it_takes():
    choice = planner(disk_bytes_s=MB).choose([Located(500, None, 0)] * 3, 40)
    assert choice == (frozenset(), False, "")


def test_the_way_to_the_device_counts():
    slow = planner(memory_bytes_s=10 * MB)
    assert slow.choose([Located(50, "memory", 10 * MB), Located(5000, "disk", 10 * MB)], 0).recompute == {0}


@given(
    chunks=st.lists(
        st.tuples(st.integers(1, 5000), st.sampled_from(("disk", "memory")), st.integers(1, 10**9)), min_size=1
    ),
    rates=st.tuples(*[st.floats(1e-3, 1e12)] * 4),
    before=st.integers(0, 1000),
)
def test_the_expected_time_is_never_longer_than_full_prefill(chunks, rates, before):
    made = planner(*rates)
    located = [Located(*chunk) for chunk in chunks]
    choice = made.choose(located, before)
    prompt = made.prefill.takes(before + sum(chunk.tokens for chunk in located))
    ways = [sum(made.load[way].takes(c.bytes) for way in {c.tier, IN_MEMORY}) for c in located]
    seconds = [
        made.prefill.takes(chunk.tokens) if place in choice.recompute else ways[place]
        for place, chunk in enumerate(located)
    ]
    assert choice.full or sum(seconds) + made.compose.takes(len(located)) <= 1.05 * prompt * (1 + 1e-9)


def test_slow_composing_gives_full_prefill_too():
    """Whatever makes it slow: states that are there at once may still take long to compose."""
    assert planner(compose_chunks_s=0.5).choose([Located(500, "memory", MB)] * 3, 40).full


def test_a_tier_that_is_avoided_is_tried_again():
    """Nothing that is never read is ever timed again: one slow moment must not decide for good."""
    made = planner(disk_bytes_s=MB)
    choices = [made.choose([Located(500, "disk", 100 * MB)] * 3, 40).full for _ in range(2 * TRY_AGAIN)]
    assert choices.count(False) == 2


def test_the_first_composition_of_a_process_is_not_counted():
    made = Planner()
    made.saw_compose(4, 30.0)  # kernels are compiled in it
    made.saw_compose(4, 0.1)
    assert made.compose.takes(4) == pytest.approx(0.1)


def test_indexing_stands_in_for_prefill_until_that_was_seen():
    made = planner(disk_bytes_s=MB)
    made.prefill, made.indexing = Rate(), Rate(1000.0, 1.0)
    chunks = [Located(500, "disk", 100 * MB)] * 3
    assert made.choose(chunks, 40).full
    made.prefill.saw(1.0, 1000.0)
    assert made.choose(chunks, 40) == (frozenset(), False, "")


def test_recent_measurements_weigh_more():
    rate = Rate()
    assert rate.takes(10) is None
    for _ in range(30):
        rate.saw(100, 1.0)
    for _ in range(30):
        rate.saw(100, 10.0)
    assert 8 < rate.takes(100) < 10


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", '{"machine": "m"}', '{"machine": "m", "rates": {"prefill": [1]}}', "\x00", "null",
     '{"machine": "m", "rates": {"prefill": [-1, 1]}}', '{"machine": "m", "rates": {"prefill": [1e400, 1]}}'],
)  # fmt: skip
def test_speeds_that_cannot_be_read_are_measured_again(tmp_path, text):
    (tmp_path / "speeds.json").write_text(text)
    assert Planner.read(tmp_path / "speeds.json", "m").prefill == Rate()


def test_speeds_are_kept_for_this_machine_alone(tmp_path):
    file = tmp_path / "speeds.json"
    first = Planner.read(file, "this machine")
    first.prefill.saw(1000, 2.0)
    first.saw_load("disk", 5 * MB, 0.5)
    first.keep()
    assert Planner.read(file, "this machine").prefill == first.prefill
    assert Planner.read(file, "this machine").load == first.load
    assert Planner.read(file, "another").prefill == Rate()


@pytest.fixture
def engine(tiny_checkpoint, corpus, tmp_path):
    with Engine.open(
        tmp_path / "store",
        tiny_checkpoint("qwen3_5"),
        device="cpu",
        settings=Settings(chunk_tokens=256, restore="auto"),
    ) as opened:
        opened.index(corpus)
        yield opened


QUESTION = "Who recast the bell?"


def slow_disk(engine):
    engine.states.planner.load["disk"] = Rate(1.0, 1e6)


def test_forced_never_prefills_every_chunk_and_stores_nothing(engine):
    stored = engine.query(QUESTION, k=4, max_new_tokens=8, restore="always")
    never = engine.query(QUESTION, k=4, max_new_tokens=8, restore="never")
    assert stored.cache.tiers == {"disk": 4}
    assert never.cache.tiers == {"recomputed": 4}
    assert never.cache.hits == never.cache.bytes_loaded == 0
    assert never.cache.plan == "restore is never: every chunk was prefilled"
    assert never.text == stored.text
    assert never.cache.prompt_tokens == stored.cache.prompt_tokens


def test_a_slow_disk_is_answered_by_full_prefill_and_says_so(engine):
    full = engine.query(QUESTION, k=4, max_new_tokens=8, mode="full")
    slow_disk(engine)
    answer = engine.query(QUESTION, k=4, max_new_tokens=8)
    assert (answer.mode, answer.text, answer.cache.tiers) == ("full", full.text, {"full": 4})
    assert answer.cache.plan.startswith("prefilling takes about")


def test_forced_always_reads_a_slow_disk(engine):
    slow_disk(engine)
    answer = engine.query(QUESTION, k=4, max_new_tokens=8, restore="always")
    assert (answer.mode, answer.cache.tiers, answer.cache.plan) == ("bidirectional", {"disk": 4}, "")


def test_some_chunks_computed_and_some_restored_compose_as_all_restored(engine, tiny_checkpoint, tmp_path):
    expected = engine.query(QUESTION, k=4, max_new_tokens=8, restore="always")
    engine.close()
    store, model = tmp_path / "store", tiny_checkpoint("qwen3_5")
    with Engine.open(store, model, device="cpu", settings=engine.settings) as again:  # with nothing in memory
        again.query(QUESTION, k=2, max_new_tokens=8, restore="always")
        slow_disk(again)
        answer = again.query(QUESTION, k=4, max_new_tokens=8)
    assert answer.cache.tiers == {"memory": 2, "recomputed": 2}
    assert answer.text == expected.text
    assert answer.cache.plan == "2 of 4 stored states take longer to read than to compute"


def test_what_was_measured_is_there_after_a_restart(engine, tiny_checkpoint, tmp_path):
    engine.query(QUESTION, k=4, max_new_tokens=1)
    indexing = engine.states.planner.indexing
    assert indexing.amount > 0
    assert engine.states.planner.load["disk"].amount > 0
    engine.close()
    kept = json.loads(next(tmp_path.glob("store/tenants/*/speeds.json")).read_text())
    assert kept["rates"]["indexing"] == [indexing.amount, indexing.seconds]
    assert [file.name for file in tmp_path.glob("store/tenants/*/*speeds*")] == ["speeds.json"]
    with Engine.open(tmp_path / "store", tiny_checkpoint("qwen3_5"), device="cpu") as again:
        assert again.states.planner.indexing == indexing


def test_an_unknown_wish_is_refused(engine):
    with pytest.raises(ValueError, match="unknown restore 'sometimes': expected one of auto, always, never"):
        engine.query(QUESTION, restore="sometimes")
