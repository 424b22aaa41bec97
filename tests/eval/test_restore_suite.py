"""The restore suite passes on a sound store, and its digest sees a single bit."""

import json
import subprocess
import sys

import pytest
import torch

from linearkv import Context
from linearkv.eval.restore_suite import checks, digest


@pytest.fixture(scope="module")
def finished(tiny_checkpoint, tmp_path_factory):
    """A run of one small case with a tiny model, and its results."""
    out = tmp_path_factory.mktemp("restore") / "restore.json"
    arguments = ["--model", str(tiny_checkpoint("qwen3_5")), "--lengths", "2", "--questions", "1", "--repetitions", "1"]
    command = [sys.executable, "-m", "linearkv.eval.restore_suite", *arguments, "--out", str(out)]
    return subprocess.run(command, capture_output=True, text=True, timeout=540), out


def test_a_sound_store_passes(finished):
    done, _ = finished
    assert done.returncode == 0, done.stdout + done.stderr
    assert "repetition 1: 1 of 1" in done.stdout


def test_a_changed_answer_or_state_or_a_prefilled_chunk_fails(finished):
    """Guards the suite itself: what it compares is in the results, and each of these makes another check fail."""
    case = json.loads(finished[1].read_text())["results"][0]["cases"][0]
    assert all(checks(2, case["index"], case["ask"]).values())
    for step, name, changed in (
        ("cold_answer", "text", "another answer"),
        ("cold", "digest", "0" * 64),
        ("cold_answer", "tiers", {"disk": 1, "prefilled": 1}),
        ("warm", "digest", "0" * 64),
        ("unknown", "tiers", {"disk": 2}),
        ("unknown", "text", "another answer"),
        ("kept", "digest", "0" * 64),
    ):
        ask = {**case["ask"], step: {**case["ask"][step], name: changed}}
        assert not all(checks(2, case["index"], ask).values()), (step, name)


@pytest.mark.parametrize("name", ["recurrent", "conv_tail", "key", "value"])
def test_one_bit_of_a_context_changes_its_digest(name):
    def context():
        return Context(
            torch.ones(1, 1, 2, 2), torch.ones(1, 2, 3), torch.ones(1, 4, 1, 2), torch.ones(1, 4, 1, 2), length=4
        )

    changed = context()
    getattr(changed, name).view(torch.int32).view(-1)[-1] ^= 1
    assert digest(context()) == digest(context()) != digest(changed)
