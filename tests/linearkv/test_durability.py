"""What was acknowledged survives a kill at any moment, and the rest is done again."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

KILLS = 30


@pytest.fixture(scope="module")
def trials(tiny_checkpoint, tmp_path_factory):
    """Results of killing the indexing process at 30 random moments, and of an undisturbed run."""
    work = tmp_path_factory.mktemp("kills")
    corpus = work / "docs"
    corpus.mkdir()
    for number in range(64):
        name = "bell" if number == 5 else f"box {number}"
        (corpus / f"{number:02d}.md").write_text(f"# The {name}\n\nThe {name} was recast by person {number * 37}.\n")
    program = Path(__file__).with_name("kill_indexing.py")
    command = [sys.executable, str(program), str(tiny_checkpoint("qwen3_5")), str(corpus), str(work), str(KILLS), "11"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=540)
    assert done.returncode == 0, done.stderr
    first, *rest = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(rest) == KILLS
    return first, rest


def test_reopening_after_a_kill_always_works(trials):
    assert [t for t in trials[1] if "crashed" in t] == []


def test_no_kill_leaves_a_damaged_page_or_catalogue(trials):
    assert [t["damaged"] for t in trials[1] if t["damaged"]] == []


def test_finished_chunks_are_kept_and_the_rest_is_redone(trials):
    for trial in trials[1]:
        assert trial["reused"] == trial["expected_reused"]
        assert (trial["chunks"], trial["without_state"]) == (64, 0)


def test_the_kills_hit_the_prefill_phase_too(trials):
    """Guards the test itself: some kills must leave a part of the states behind, some none, some all."""
    kept = [t["kept"] for t in trials[1]]
    assert any(0 < k < 64 for k in kept)
    assert any(k == 0 for k in kept)


def test_answers_after_a_kill_are_those_of_an_undisturbed_store(trials):
    assert {t["text"] for t in trials[1]} == {trials[0]["text"]}


def test_temporary_files_of_the_killed_are_removed(trials):
    assert [t["orphans"] for t in trials[1] if t["orphans"]] == []
