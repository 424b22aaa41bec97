"""A small crowd on one store for a few seconds; `python -m linearkv.eval.crowd` is the long run."""

import json
import subprocess
import sys

import pytest


@pytest.fixture(scope="module")
def crowd(tmp_path_factory):
    out = tmp_path_factory.mktemp("crowd") / "crowd.json"
    arguments = ["--readers", "3", "--seconds", "5", "--patience", "120", "--out", str(out)]
    command = [sys.executable, "-m", "linearkv.eval.crowd", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=540)
    assert out.exists(), done.stdout + done.stderr
    return json.loads(out.read_text())


def test_nobody_reads_anything_wrong_hangs_crashes_or_grows(crowd):
    assert crowd["problems"] == []


def test_the_crowd_really_reads_evicts_and_meets_damage(crowd):
    """Guards the program itself."""
    counts = crowd["counts"]
    readers = [counts[f"reader {number}"] for number in range(3)]
    assert all(reader["from disk"] for reader in readers)
    assert counts["writer"]["evicted"]
    assert counts["damager"]["changed"]
    assert sum(each.get("damaged", 0) for each in counts.values())
