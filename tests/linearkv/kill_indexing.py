"""Kills indexing at random moments, and reports how the store comes back. Run by test_durability.py, or by hand:

    python tests/linearkv/kill_indexing.py CHECKPOINT CORPUS WORK_FOLDER KILLS SEED

Prints one JSON object per kill. Children are forked from a parent that has loaded everything and computed nothing, so a
trial costs no start-up, and no thread pool is inherited.
"""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import torch

from linearkv.engine import Engine
from linearkv.settings import Settings

QUESTION = "Who recast the bell?"


def open_engine(store, checkpoint):
    return Engine.open(store, model=checkpoint, settings=Settings(chunk_tokens=256, batch_tokens=512))


def in_child(work):
    """Runs `work()` in a forked child; returns (pid, read end of a pipe with the JSON of its result)."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writing)
        return pid, reading
    code = 1
    try:
        os.close(reading)
        torch.set_num_threads(1)
        os.write(writing, json.dumps(work()).encode())
        code = 0
    finally:
        os._exit(code)


def finish(pid, reading):
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    _, status = os.waitpid(pid, 0)
    return json.loads(text) if text else {"crashed": status}


def index(store, checkpoint, corpus):
    started = time.monotonic()
    with open_engine(store, checkpoint) as engine:
        opened = time.monotonic() - started
        opened_mark(store).touch()
        report = engine.index(corpus)
        return {"opened_after": opened, "seconds": time.monotonic() - started, "chunks": report.chunks}


def opened_mark(store):
    """A file that is there once indexing has begun."""
    return store.with_name(f"{store.name}.opened")


def reopen(store, checkpoint, corpus):
    with open_engine(store, checkpoint) as engine:
        found = engine.verify()
        kept = found.chunks - found.without_state
        answer = engine.query(QUESTION, k=4, max_new_tokens=4).text if found.chunks else None
        # The query prefills and keeps what its chunks lacked, so count again before going on.
        before = engine.verify()
        report = engine.index(corpus)
        after = engine.verify()
        return {
            "kept": kept,
            "damaged": found.damaged + found.catalogue + after.damaged + after.catalogue,
            "answered": answer is not None,
            "reused": report.reused,
            "expected_reused": before.chunks - before.without_state,
            "chunks": report.chunks,
            "without_state": after.without_state,
            "orphans": after.orphans,
            "text": engine.query(QUESTION, k=4, max_new_tokens=4).text,
        }


def main():
    checkpoint, corpus, work, kills, seed = sys.argv[1], sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]), sys.argv[5]
    rng = random.Random(seed)
    whole = finish(*in_child(lambda: index(work / "whole", checkpoint, corpus)))
    reference = finish(*in_child(lambda: reopen(work / "whole", checkpoint, corpus)))
    print(json.dumps({"whole": whole, "text": reference["text"]}), flush=True)
    for number in range(kills):
        store = work / f"store{number}"
        pid, reading = in_child(lambda store=store: index(store, checkpoint, corpus))
        # Every other kill counts from when the store is open: opening takes longest, and how long varies most.
        ready = number % 2 == 1
        waited = time.monotonic() + 60
        while ready and not opened_mark(store).exists() and time.monotonic() < waited:
            time.sleep(0.002)
        moment = rng.uniform(0, whole["seconds"] - (whole["opened_after"] if ready else 0))
        time.sleep(moment)
        os.kill(pid, signal.SIGKILL)
        finished = "seconds" in finish(pid, reading)
        result = finish(*in_child(lambda store=store: reopen(store, checkpoint, corpus)))
        print(json.dumps(result | {"moment": moment, "finished": finished}), flush=True)


if __name__ == "__main__":
    main()
