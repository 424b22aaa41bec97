"""What holds between processes: one writer, readers at any time, kills at any moment, machines that differ."""

import fcntl
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil
import pytest

from linearkv.errors import StoreLockedError
from linearkv.retrieval import DocumentStore, Retriever

FILES = {f"l{n}.md": f"Locker {n} contains {n * 7} buttons." for n in range(200)} | {
    "records.jsonl": "".join(json.dumps({"id": n, "text": f"Bin {n} held {n * 17} bolts."}) + "\n" for n in range(300))
}


@pytest.fixture
def start(index_process, tmp_path):
    """Start an indexing process; those still running at the end are killed."""
    running = []

    def start(corpus, store="store", pause=0.0):
        process = subprocess.Popen(
            [sys.executable, str(index_process), str(tmp_path / store), str(corpus), str(pause)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        running.append(process)
        return process

    yield start
    for process in running:
        process.kill()
        process.communicate()


def content(folder):
    """All that a store says, without row numbers."""
    with DocumentStore(folder, mode="ro") as store:
        return store._all(
            "SELECT files.path, documents.path, documents.content_hash, ordinal, contents.content_hash, heading, text,"
            " windows, line_start FROM files JOIN documents ON file_id = files.id"
            " JOIN chunks ON document_id = documents.id JOIN contents ON contents.id = chunks.content_id"
            " JOIN vectors ON vectors.content_id = contents.id ORDER BY 2, 4"
        ), store.verify()


def test_a_second_writer_is_refused_with_the_name_of_the_first(start, write, tmp_path, hashing_embedder, words):
    first = start(write(FILES), pause=30)
    assert first.stdout.readline().startswith("batch")
    with (
        Retriever(tmp_path / "store", hashing_embedder, words, 64) as second,
        pytest.raises(StoreLockedError, match=rf"process {first.pid} \(.*index_process.py"),
    ):
        second.sync(tmp_path / "corpus")


def test_a_lock_dies_with_its_process(start, write, tmp_path):
    first = start(write(FILES), pause=30)
    first.stdout.readline()
    first.kill()
    first.wait()
    with DocumentStore(tmp_path / "store") as store, store.writing():
        pass


@pytest.fixture
def looking(tmp_path):
    """Share the writer's lock, as who only looks whether somebody writes; returns what ends it."""
    (tmp_path / "store").mkdir(exist_ok=True)
    with (tmp_path / "store" / "writer.lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        yield lambda: fcntl.flock(file, fcntl.LOCK_UN)


def test_who_only_looks_whether_somebody_writes_is_not_in_the_way(looking, write, quick):
    threading.Timer(0.05, looking).start()
    assert quick.sync(write({"a.md": "lamp"})).added == 1


def test_a_writer_that_is_done_is_not_named_as_the_one_who_writes(write, tmp_path, start, looking):
    looking()
    assert start(write({"a.md": "lamp"})).wait() == 0
    with (
        (tmp_path / "store" / "writer.lock").open() as file,
        DocumentStore(tmp_path / "store", lock_timeout=0) as store,
    ):
        fcntl.flock(file, fcntl.LOCK_SH)
        with pytest.raises(StoreLockedError, match="is being written by another process: wait"), store.writing():
            pass


def test_readers_see_whole_batches_while_a_writer_is_at_work(start, write, tmp_path, hashing_embedder):
    writer = start(write(FILES), pause=0.05)
    writer.stdout.readline()
    sizes = []
    with Retriever(tmp_path / "store", hashing_embedder, mode="ro") as reader:
        while writer.poll() is None:
            assert reader.search("What is in locker 3?", 3)
            sizes.append(reader.store.counts()["distinct_chunks"])
            time.sleep(0.01)
        assert "records.jsonl#299" in [hit.path for hit in reader.search("bolts of bin 299", 5)]
    assert len(set(sizes)) > 2 and all(size % 64 == 0 or size == 500 for size in sizes)
    assert writer.returncode == 0


def test_killed_at_random_moments_a_run_goes_on_and_ends_as_an_uninterrupted_one(start, write, tmp_path):
    corpus = write(FILES)
    assert start(corpus, "whole").wait() == 0
    moments = random.Random(5)
    for _ in range(6):
        process = start(corpus, "store", 0.05)
        process.stdout.readline()
        time.sleep(moments.uniform(0, 0.3))
        process.send_signal(signal.SIGKILL)
        process.wait()
        if (tmp_path / "store" / "documents.sqlite").exists():
            with DocumentStore(tmp_path / "store") as store:
                assert store.verify() == []
    last = start(corpus)
    output, _ = last.communicate()
    _, documents, added, unchanged = output.split("\n")[-2].split()
    assert int(documents) == 500 and int(unchanged) > 0 and int(added) < 500
    assert content(tmp_path / "store") == content(tmp_path / "whole")


def test_killed_while_it_took_over_a_narrower_folder_a_wider_one_goes_on_to_a_whole_index(start, write, tmp_path):
    docs = write({f"people/{name}": text for name, text in FILES.items()})
    write({f"l{n}.md": f"Cellar {n} contains {n * 7} buttons." for n in range(200)})
    assert start(docs / "people").wait() == 0
    process = start(docs, pause=30)
    assert process.stdout.readline().startswith("batch")
    process.kill()
    process.wait()
    assert start(docs).wait() == 0
    shutil.rmtree(docs / "people")
    assert start(docs).wait() == 0
    assert start(docs, "whole").wait() == 0
    assert content(tmp_path / "store") == content(tmp_path / "whole")


@pytest.mark.parametrize("settings", [{"LC_ALL": "C", "PYTHONUTF8": "0"}, {"LC_ALL": "C.UTF-8"}], ids=["C", "UTF-8"])
def test_the_index_is_the_same_under_any_locale(write, tmp_path, index_process, settings, quick):
    text = "Café Zoë serves “smörgås” for €9."
    corpus = write(
        {"utf8 é.txt": text, "old.txt": text.encode("cp1252"), "wide.txt": text.encode("utf-16"), "a.txt": "plain"}
    )
    (corpus / os.fsdecode(b"pond_\xff.txt")).write_text("nine carp")
    quick.sync(corpus)
    environment = {key: os.environ[key] for key in ("PATH", "HOME") if key in os.environ}
    command = [sys.executable, str(index_process), str(tmp_path / "other"), str(corpus)]
    subprocess.run(command, env=environment | settings | {"PYTHONCOERCECLOCALE": "0"}, check=True)
    assert content(tmp_path / "other") == content(tmp_path / "store")
    assert len(content(tmp_path / "other")[0]) == 5


READ = """
import json, os, sys
sys.path.insert(0, sys.argv[1])
from hashing import HashingEmbedder, words
from linearkv.retrieval import Retriever
from linearkv.errors import LinearKVError

if os.geteuid() == 0:  # root may write whatever the mode says
    os.setgroups([])
    os.setgid(12345)
    os.setuid(12345)
try:
    with Retriever(sys.argv[2], HashingEmbedder(), mode="ro") as retriever:
        print(json.dumps([hit.path for hit in retriever.search("buttons of locker 3", 1)]))
    Retriever(sys.argv[2], HashingEmbedder(), words, 64)
except LinearKVError as error:
    print(f"{type(error).__name__}: {error}")
"""


@pytest.fixture
def read_as_stranger(index_process):
    """Search a store, then open it for writing, as a user without a home who may not write there; what was printed."""

    def read(store):
        for path in store.iterdir():
            path.chmod(0o444)
        store.chmod(0o555)
        command = [sys.executable, "-B", "-c", READ, str(index_process.parent), str(store)]
        environment = {"PATH": os.environ["PATH"]}
        try:
            result = subprocess.run(command, env=environment, cwd="/", capture_output=True, text=True, check=True)
        finally:
            store.chmod(0o755)
        return result.stdout.splitlines()

    return read


@pytest.fixture
def public(write):
    """A folder that other users may enter; pytest's own are private."""
    with tempfile.TemporaryDirectory(prefix="linearkv-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def test_a_read_only_store_is_searched_without_writing_and_refused_for_indexing(
    public, read_as_stranger, write, hashing_embedder, words
):
    store = public / "store"
    with Retriever(store, hashing_embedder, words, 64) as retriever:
        retriever.sync(write(FILES))
    before = sorted(path.name for path in store.iterdir())
    found, refusal = read_as_stranger(store)
    assert json.loads(found) == ["l3.md"]
    assert refusal.startswith(f"StoreReadOnlyError: {store}") and "not writable" in refusal
    assert sorted(path.name for path in store.iterdir()) == before


def test_a_read_only_copy_with_unmerged_changes_is_refused_with_what_to_do(start, public, read_as_stranger, write):
    store = public / "store"
    writer = start(write(FILES), store, pause=30)
    writer.stdout.readline()
    writer.kill()
    writer.wait()
    (store / "documents.sqlite-shm").unlink()
    (refusal,) = read_as_stranger(store)
    assert "left unmerged changes in documents.sqlite-wal: run any linearkv command" in refusal


def test_memory_does_not_grow_with_the_corpus(quick, write):
    line = "Bin {n} was counted on day {n} and held {n} bolts. " * 12
    corpus = write({"big.jsonl": "".join(json.dumps({"id": n, "text": line.format(n=n)}) + "\n" for n in range(6000))})
    sizes = []
    quick.sync(corpus, on_batch=lambda batch: sizes.append((batch.documents, psutil.Process().memory_info().rss)))
    third = [size for documents, size in sizes if 1500 < documents < 2500]
    last = [size for documents, size in sizes if documents > 5000]
    assert max(last) - max(third) < 16 << 20
