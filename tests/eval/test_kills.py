"""The kill test passes on a sound store, and finds what it is there to find."""

import json
import random
import subprocess
import sys

import pytest

from linearkv.cache import open_pages
from linearkv.eval.kills import Load, Promised, check_pages, compare, flip
from linearkv.eval.seeded_pages import KIB, MIB, SECRET, key_of, make_page, version_of

SIZES = (KIB, 16 * KIB)
AMPLE = Load(8, SIZES, 4, 0, 64 * MIB)


def kills(out, *arguments):
    command = [sys.executable, "-m", "linearkv.eval.kills", *arguments, "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=540)
    assert out.exists(), done.stdout + done.stderr
    return done, json.loads(out.read_text())


def test_ten_kills_leave_stores_that_keep_their_promises(tiny_checkpoint, tmp_path):
    checkpoint = str(tiny_checkpoint("qwen3_5"))
    done, result = kills(tmp_path / "kills.json", "--count", "10", "--model", checkpoint, "--documents", "12")
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(result["trials"]) == 10
    assert sum(trial["kind"].startswith("engine") for trial in result["trials"]) == 5


def test_new_pages_never_pass_the_budget_over_restarts(tmp_path):
    _, result = kills(tmp_path / "budget.json", "--budget", "--restarts", "2")
    assert result["runs"]["new pages"]["passed"], result["runs"]["new pages"]


@pytest.fixture
def written(tmp_path):
    """A folder of six pages in version 1, and what its writer promised."""
    pages = [make_page(number, 1, SIZES) for number in range(6)]
    store = open_pages(tmp_path, SECRET, memory_bytes=0, disk_bytes=None)
    answers = store.put(pages)
    store.close()
    promised = Promised(64 * MIB)
    promised.hear({"put": [(n, 1, answers[page.key].bytes) for n, page in enumerate(pages)], "refused": []})
    return tmp_path, promised


def problems_of(folder, promised):
    store = open_pages(folder, SECRET, memory_bytes=0, disk_bytes=None)
    try:
        return compare(store, AMPLE, promised)
    finally:
        store.close()


def test_what_was_promised_and_is_there_is_no_problem(written):
    said = []
    check_pages(written[0], AMPLE, written[1], said.append)
    assert said[0]["problems"] == []


def test_a_page_that_was_acknowledged_and_is_gone_is_found(written):
    folder, promised = written
    store = open_pages(folder, SECRET, memory_bytes=0, disk_bytes=None)
    store.delete([key_of(2)])
    store.close()
    assert problems_of(folder, promised) == ["page 2 was acknowledged and is gone"]


def test_a_page_that_was_replaced_and_is_old_is_found(written):
    folder, promised = written
    promised.hear({"put": [(3, 2, 8192)], "refused": []})
    assert problems_of(folder, promised) == ["page 3 has version 1, promised was one of [2]"]


def test_a_page_that_was_deleted_and_is_back_is_found(written):
    folder, promised = written
    promised.hear({"deleted": [4]})
    assert problems_of(folder, promised) == ["page 4 has version 1, promised was one of []"]


def test_a_damaged_page_is_found(written):
    folder, promised = written
    (path,) = folder.rglob(f"{key_of(5)}*")
    flip(path, random.Random(0))
    (problem,) = problems_of(folder, promised)
    assert problem.startswith("page 5 is damaged")


def test_during_a_put_both_versions_are_right_and_during_a_delete_both_answers(written):
    folder, promised = written
    promised.hear({"will_put": [(0, 2, 8192)]})
    promised.hear({"will_delete": [1]})
    assert promised.versions(0) == {1, 2}
    assert 1 not in promised.needed()
    assert problems_of(folder, promised) == []


def test_the_pages_used_last_are_needed_as_many_as_fit_beside_what_is_being_written():
    promised = Promised(3 * 8192)
    for number in range(3):
        promised.hear({"put": [(number, 1, 8192)], "refused": []})
    assert list(promised.needed()) == [0, 1, 2]
    promised.hear({"will_put": [(3, 1, 8000)]})
    assert list(promised.needed()) == [1, 2]
    promised.hear({"put": [(3, 1, 8192)], "refused": []})
    assert list(promised.needed()) == [1, 2, 3]


def test_what_is_replaced_takes_room_until_its_replacement_is_there():
    promised = Promised(4 * 8192)
    for number in range(4):
        promised.hear({"put": [(number, 1, 8192)], "refused": []})
    promised.hear({"will_put": [(0, 2, 8000)]})
    assert list(promised.needed()) == [2, 3]
    promised.hear({"put": [(0, 2, 8192)], "refused": []})
    assert list(promised.needed()) == [2, 3, 0]


def test_room_that_a_deletion_makes_brings_no_page_back():
    promised = Promised(2 * 8192)
    for number in range(3):
        promised.hear({"will_put": [(number, 1, 8000)]})
        promised.hear({"put": [(number, 1, 8192)], "refused": []})
    promised.hear({"deleted": [2]})
    assert list(promised.needed()) == [1]


def test_a_page_tells_its_version_and_none_where_it_is_another():
    page = make_page(1, 2, SIZES)
    assert version_of(page, 1, SIZES) == 2
    assert version_of(page, 3, SIZES) is None
