"""A store outlives the server that filled it; what was damaged meanwhile is prefilled, and said."""

import json
import random
import subprocess
import sys
import time

import pytest

from linearkv.client import completion, indexing
from linearkv.planner import KEPT

from .conftest import MACHINE, open_engine


def test_the_suite_passes_in_processes_of_its_own(tmp_path):
    """A short run of `linearkv.eval.vllm_restore`, whose figures stand in the documentation."""
    out = tmp_path / "restore.json"
    command = [sys.executable, "-m", "linearkv.eval.vllm_restore"]
    command += ["--lengths", "1", "5", "--repetitions", "1", "--options", json.dumps(MACHINE), "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    (repetition,) = json.loads(out.read_text())["results"]
    assert repetition["passed"] == 2 and repetition["hit_rate"] == 1


def wait_until_stored(engine, pages):
    """States are written beside the engine."""
    for _ in range(200):
        if engine.counts["stored"] == pages:
            return
        time.sleep(0.05)
    raise AssertionError(engine.counts)


def test_a_damaged_page_ends_what_is_reused_and_is_set_aside(checkpoint, prompt, chunks, questions, tmp_path):
    store = tmp_path / "store"
    body = completion(prompt, chunks[:3], questions[0].question, max_tokens=6)
    with open_engine(checkpoint, store) as engine:
        for request in indexing(prompt, chunks[:2]):
            engine.run([request])
        wait_until_stored(engine, 3)
        before = set(store.rglob("pages/*/*.safetensors"))
        *_, third = indexing(prompt, [chunks[2]])
        engine.run([third])
        (whole,) = engine.run([body])
        wait_until_stored(engine, 4)
    (page,) = set(store.rglob("pages/*/*.safetensors")) - before
    data = bytearray(page.read_bytes())
    data[len(data) // 2] ^= 1
    page.write_bytes(data)
    lengths = [len(prompt.chunk_ids(chunk)) for chunk in chunks[:3]]
    prefix = len(prompt.prefix_ids)
    assert whole.cached == prefix + sum(lengths)
    with open_engine(checkpoint, store) as engine:
        (output,) = engine.run([body])
        assert output.cached == prefix + sum(lengths[:2]) and output.tokens
        assert engine.counts["damaged"] == engine.counts["partly"] == 1
        assert not page.exists() and list(store.rglob("quarantine/*"))
        engine.run([third])
        (healed,) = engine.run([body])
        assert healed.cached == whole.cached and healed.tokens == whole.tokens
        assert engine.counts["damaged"] == 1


def test_a_store_that_cannot_be_read_is_prefilled_and_counted(
    checkpoint, prompt, chunks, questions, tmp_path, monkeypatch
):
    """Whatever goes wrong in making a context, its request is answered as any other."""
    body = completion(prompt, chunks[:2], questions[0].question, max_tokens=6)
    with open_engine(checkpoint, tmp_path / "store") as engine:
        for request in indexing(prompt, chunks[:2]):
            engine.run([request])
        (plain,) = engine.run([{name: value for name, value in body.items() if name != "kv_transfer_params"}])
        monkeypatch.setattr("linearkv.vllm.serving.compose_in_parts", lambda *given: 1 / 0)
        (output,) = engine.run([body])
        assert output.tokens == plain.tokens and not output.cached
        assert engine.counts["failed"] == engine.counts["prefilled"] == 1
        monkeypatch.undo()
        (again,) = engine.run([body])
        assert again.cached and engine.counts["failed"] == 1


def test_the_planner_prefills_what_takes_longer_to_load(checkpoint, prompt, chunks, questions, tmp_path, monkeypatch):
    monkeypatch.setenv("LINEARKV_RESTORE", "auto")
    body = completion(prompt, chunks[:2], questions[0].question, max_tokens=2)
    with open_engine(checkpoint, tmp_path / "store") as engine:
        for request in indexing(prompt, chunks[:2]):
            engine.run([request])
        (restored,) = engine.run([body])
        assert restored.cached
        planner = engine.scheduler.connector.serving.planner
        planner.prefill.saw(1e9, 1)
        planner.compose.saw(1, 60)
        (prefilled,) = engine.run([body])
        assert not prefilled.cached and engine.counts["planned"] == 1
        assert prefilled.params is not None and prefilled.params["linearkv"]["reason"].startswith("planned")
        more = completion(prompt, chunks[:3], questions[0].question, max_tokens=2)
        (prefilled,) = engine.run([more])
        assert prefilled.params["linearkv"]["unknown"] == [2]


def test_the_planner_knows_what_prefilling_takes(checkpoint, tmp_path):
    """Of steps that prefill, the time until they are computed: most of what a long prompt's request takes."""
    options = {"max_num_batched_tokens": 4096, "enable_prefix_caching": False}
    with open_engine(checkpoint, tmp_path / "store", **options) as engine:
        chance = random.Random(0)
        body = {"prompt": [chance.randrange(3, 8000) for _ in range(3000)], "max_tokens": 1, "logprobs": 1}
        short = {**body, "prompt": body["prompt"][:20]}  # in whose step what the last one took is noted
        engine.run([body])
        engine.run([short])
        rate = engine.scheduler.connector.serving.planner.prefill
        assert not rate.amount  # what was computed first may have been compiled for
        for _ in range(2):
            before = rate.amount, rate.seconds
            began = time.perf_counter()
            engine.run([body])
            whole = time.perf_counter() - began
            engine.run([short])
            assert rate.amount == pytest.approx(KEPT * before[0] + 3000)
            assert 0.3 * whole < rate.seconds - KEPT * before[1] < whole
