"""Killed, crowded, small and read-only machines, and machines without the GPU their packages are for."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from linearkv.engine import Engine
from linearkv.errors import LinearKVError, StoreLockedError, StoreMismatchError
from linearkv.settings import Settings, usable_memory

RECORDS = 400
INDEX = """
import sys
from linearkv import Engine, Settings
with Engine.open(sys.argv[1], model=sys.argv[2], settings=Settings(chunk_tokens=64)) as engine:
    engine.index(sys.argv[3])
"""


def start(code, *arguments, **environment):
    # One thread: where cores are shared, a second one mostly waits for the first.
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"} | environment,
    )


def test_readers_answer_while_another_process_writes_and_a_kill_costs_only_what_was_under_way(
    open_engine, write, tiny_checkpoint, tmp_path
):
    """Indexing in one process; meanwhile questions are answered and a second writer is refused by name. Killed
    half-way, the next run goes on from the last batch."""
    lines = (json.dumps({"id": f"m{n}", "text": f"Bin {n} held {n * 17 % 991} bolts."}) for n in range(RECORDS))
    docs = write({"bins.jsonl": "\n".join(lines)})
    engine = open_engine(settings={"chunk_tokens": 64})
    writer = start(INDEX, tmp_path / "store", tiny_checkpoint("qwen3_5"), docs)
    answered, refused = [], 0
    try:
        while sum(tier["pages"] for tier in engine.stats()["tiers"][-1:]) < RECORDS // 4:
            assert writer.poll() is None, writer.stderr.read()
            if engine._retriever.store.counts()["chunks"]:
                answered.append(engine.query("What held bin 7?", k=2, max_new_tokens=1).cache.chunks)
                with pytest.raises(StoreLockedError, match=f"is being written by process {writer.pid} "):
                    engine.index(docs)
                refused += 1
            else:
                with pytest.raises(LinearKVError, match="nothing is indexed"):
                    engine.query("What held bin 7?")
            time.sleep(0.05)
    finally:
        writer.kill()
        writer.communicate()
    assert refused and set(answered) == {2}
    assert engine.query("What held bin 7?", k=2, max_new_tokens=1).cache.hits > 0

    kept = engine.verify()
    report = engine.index(docs)
    assert report.documents == report.chunks == RECORDS
    assert report.reused >= RECORDS // 4 - 1 and report.reused >= kept.chunks - kept.without_state
    found = engine.verify()
    assert (found.clean, found.chunks, found.without_state) == (True, RECORDS, 0)
    assert (
        engine.query(f"What held bin {RECORDS - 1}?", k=1, max_new_tokens=1)
        .sources[0]
        .document.endswith(f"#m{RECORDS - 1}")
    )


def test_indexing_leaves_memory_to_what_is_asked_for(open_engine, write):
    engine = open_engine(settings={"chunk_tokens": 64})
    engine.index(write({f"{n}.md": f"Bin {n} held {n * 17} bolts." for n in range(20)}))
    assert engine.stats()["tiers"][0]["pages"] == 1, "the canary's"
    engine.query("What held bin 7?", k=3, max_new_tokens=1)
    assert engine.stats()["tiers"][0]["pages"] == 1 + 3


def test_the_memory_budget_fits_the_machine():
    assert Settings().memory_budget <= usable_memory() // 4


def test_another_embedding_model_is_refused_until_all_is_embedded_again(open_engine, write, tmp_path):
    """Equal width does not make vectors comparable; questions and runs are refused, with the command that helps."""
    from safetensors.torch import load_file, save_file

    from linearkv.retrieval.embedder import packaged_folder

    docs = write({"lamp.md": "The lamp is kept by Ilse Brandt."})
    open_engine().index(docs)
    other = shutil.copytree(packaged_folder(), tmp_path / "other")
    weights = load_file(other / "model.safetensors")
    name = "encoder.layer.5.output.dense.weight"
    weights[name] = weights[name].flip(0).contiguous()
    save_file(weights, other / "model.safetensors", {"format": "pt"})
    engine = open_engine(settings={"embedder": other})
    for attempt in (lambda: engine.query("Who keeps the lamp?"), lambda: engine.index(docs)):
        with pytest.raises(StoreMismatchError, match=r"with all-MiniLM-L6-v2 .* with other .* index .*--re-emb"):
            attempt()
    report = engine.index(docs, reembed=True)
    assert (report.unchanged, report.prefilled, report.reused) == (1, 0, 1)
    assert engine.query("Who keeps the lamp?", k=1, max_new_tokens=1).cache.hits == 1


# What Python has not imported yet, the other user may not be allowed to read.
AS_STRANGER = """
import os, sys
from linearkv.cli import main
def run(*arguments):
    try: main([*arguments])
    except SystemExit as ended: print("status", ended.code, flush=True)
store, copy, model, docs = sys.argv[1:]
options = ["--store", store, "--model", model]
run("query", "Who keeps the lamp?", "--store", copy, "--model", model, "--json")
print("---", flush=True)
print("---", file=sys.stderr, flush=True)
os.environ.pop("HOME", None)
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(12345)
    os.setuid(12345)
run("query", "Who keeps the lamp?", *options, "--json")
run("index", docs, *options)
"""


def test_a_store_shared_for_reading_answers_a_user_without_name_or_home(write, tiny_checkpoint, tmp_path):
    """A finished store and model that may not be written: the same answer, one warning, and not a byte changed."""
    docs = write({"lamp.md": "The lamp is kept by Ilse Brandt."})
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        shutil.copytree(tiny_checkpoint("qwen3_5"), place / "model")
        shutil.copytree(docs, place / "docs")
        with Engine.open(place / "store", model=place / "model", settings=Settings()) as engine:
            engine.index(place / "docs")
        copy = shutil.copytree(place / "store", tmp_path / "copy")  # for whoever may write to do so
        for path in (place, *place.rglob("*")):
            path.chmod(0o555 if path.is_dir() else 0o444)

        def everything():
            return {path: (os.lstat(path).st_mtime_ns, os.lstat(path).st_size) for path in place.rglob("*")}

        before = everything()
        arguments = (place / "store", copy, place / "model", place / "docs")
        running = start(AS_STRANGER, *arguments, HOME=str(tmp_path))
        out, err = running.communicate()
        after = everything()
        for path in (place, *place.rglob("*")):
            path.chmod(0o755)
    (mine, theirs), warnings = out.split("---\n"), err.split("---\n")[1]
    assert running.returncode == 0, err
    answers = [json.loads(part.partition("status")[0]) for part in (mine, theirs)]
    assert answers[0]["text"] == answers[1]["text"] and answers[1]["cache"]["hits"] == 1
    assert theirs.count("status 0") == 1 and theirs.endswith("status 1\n")
    folder = next(path for path in before if path.parent.name == "tenants")
    line = f"warning: {folder} is not writable: answering from it, keeping nothing new"
    assert [text for text in warnings.splitlines() if text.startswith(line[:20])] == [line] * 2
    assert f"error: {folder} is not writable for user id " in warnings
    changed = {path.name for path in before.keys() | after.keys() if before.get(path) != after.get(path)}
    assert changed == set()


WITHOUT_A_GPU = """
import json, sys
from linearkv.cli import main
def run(*arguments):
    try: main([*arguments])
    except SystemExit as ended: print("status", ended.code, flush=True)
store, model = sys.argv[1:]
run("--help")
print([name for name in ("torch", "linearkv.kernels.compose") if name in sys.modules], flush=True)
run("query", "Who keeps the lamp?", "--store", store, "--model", model, "--json")
run("query", "Who keeps the lamp?", "--store", store, "--model", model, "--json")
"""


def test_packages_for_a_gpu_that_is_not_there_change_no_answer(open_engine, write, tiny_checkpoint, tmp_path):
    """They are never imported, and that they do not run is said once."""
    write({"lamp.md": "The lamp is kept by Ilse Brandt."})
    engine = open_engine()
    engine.index(tmp_path / "docs")
    expected = engine.query("Who keeps the lamp?").text
    engine.close()
    for package in ("fla", "causal_conv1d"):
        write({f"{package}/__init__.py": "raise RuntimeError('0 active drivers')"}, folder="packages")
    environment = {"PYTHONPATH": str(tmp_path / "packages"), "CUDA_VISIBLE_DEVICES": ""}
    running = start(WITHOUT_A_GPU, tmp_path / "store", tiny_checkpoint("qwen3_5"), **environment)
    out, err = running.communicate()
    help_text, *answers = out.split("status 0\n")[:-1]
    assert "Usage" in help_text and answers[0].startswith("[]\n"), out + err
    answers = [json.loads(text.removeprefix("[]\n")) for text in answers]
    assert [(a["text"], a["cache"]["hits"]) for a in answers] == [(expected, 1)] * 2
    assert err.count("no CUDA device: computing with torch on the CPU; ") == 1
    assert "fla and causal_conv1d not used" in err
