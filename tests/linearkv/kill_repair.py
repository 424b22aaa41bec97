"""Ends a repair before each of its durable steps, and reports how the store comes back. Run by test_verify_repair.py.

    python tests/linearkv/kill_repair.py CHECKPOINT STORE WORK_FOLDER

STORE has a damaged catalogue and lacks states. Prints one JSON object per step: what was found after a second repair.
As in kill_indexing.py, children are forked from a parent that has computed nothing.
"""

import json
import os
import shutil
import sys
from pathlib import Path

from kill_indexing import QUESTION, finish, in_child

from linearkv import engine as engines
from linearkv.cache import FileStore
from linearkv.engine import Engine
from linearkv.retrieval import DocumentStore
from linearkv.settings import Settings


def open_engine(store, checkpoint, **options):
    # A batch a chunk, so that there are steps between states.
    return Engine.open(store, model=checkpoint, settings=Settings(chunk_tokens=256, batch_tokens=1), **options)


def before(step, owner, name):
    """Ends the process when `owner.name` is called and `step` calls were made of all that are watched so."""
    original = getattr(owner, name)

    def watched(*args, **options):
        if next(step) < 0:
            os._exit(9)
        return original(*args, **options)

    setattr(owner, name, watched)


def repair_until(count, store, checkpoint):
    step = iter([0] * count + [-1])
    for owner, name in ((Path, "rename"), (Path, "replace"), (DocumentStore, "transaction"), (FileStore, "delete")):
        before(step, owner, name)
    with open_engine(store, checkpoint, repair=True) as engine:
        engine.repair()
    return {"finished": True}


def look(store, checkpoint):
    with open_engine(store, checkpoint, repair=True) as engine:
        report = engine.repair()
        again = engine.repair()
        found = engine.verify()
        hits = engine.search(QUESTION, k=8)
        return {
            "lost": report.lost,
            "idle": (again.restored, again.embedded, again.prefilled, again.set_aside),
            "clean": found.clean,
            "missing": (found.without_state, found.without_record),
            "found": [[hit.chunk_id, hit.also_in, hit.line_start, hit.metadata] for hit in hits],
            "text": engine.query(QUESTION, k=4, max_new_tokens=4).text,
            "aside": len(list(Path(store).glob("tenants/*/index/damaged-*.sqlite"))),
        }


def main():
    checkpoint, damaged, work = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    engines.RESTORED_AT_A_TIME = 3
    for count in range(1000):
        store = work / f"store{count}"
        shutil.copytree(damaged, store)
        result = finish(*in_child(lambda store=store, count=count: repair_until(count, store, checkpoint)))
        after = finish(*in_child(lambda store=store: look(store, checkpoint)))
        print(json.dumps(after | {"finished": "finished" in result}), flush=True)
        shutil.rmtree(store)
        if "finished" in result:
            break


if __name__ == "__main__":
    main()
