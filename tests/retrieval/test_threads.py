"""What holds between the threads of one process that share a retriever: one writes, the others read meanwhile."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from linearkv.errors import StoreLockedError
from linearkv.retrieval import VectorIndex

PATIENCE = 60  # seconds; only a thread that waits for the writer would take them


@pytest.fixture
def elsewhere():
    """Call something in another thread; its result."""
    pool = ThreadPoolExecutor(1)
    yield lambda *call: pool.submit(*call).result(PATIENCE)
    pool.shutdown(wait=False)


def test_a_search_does_not_wait_for_the_run_of_another_thread(quick, write, elsewhere):
    sizes = []

    def search(_):
        assert elsewhere(quick.search, "What is in locker 3?", 1)[0].path == "l03.md"
        sizes.append(elsewhere(quick.store.counts)["documents"])

    quick.sync(write({f"l{n:02}.md": f"Locker {n} contains {n * 7} buttons." for n in range(200)}), on_batch=search)
    assert sizes == [64, 128, 192, 200]


def test_a_search_does_not_wait_for_what_a_writer_does_between_its_transactions(quick, write, elsewhere):
    quick.sync(write({"a.md": "A lamp."}))
    with quick.writing():
        assert elsewhere(quick.search, "lamp", 1)[0].path == "a.md"


def test_a_change_is_seen_by_no_other_thread_until_it_is_committed(quick, elsewhere):
    with quick.writing():
        with quick.store.transaction() as db:
            db.execute("INSERT INTO meta VALUES ('mark', 'made')")
            assert elsewhere(quick.store.get, "mark") is None
        assert elsewhere(quick.store.get, "mark") == "made"


def test_a_view_stays_as_it_is_while_another_thread_commits(quick):
    opened, committed = threading.Event(), threading.Event()

    def view():
        with quick.store.reading():
            before = quick.store.generation
            opened.set()
            assert committed.wait(PATIENCE)
            return quick.store.generation - before

    with ThreadPoolExecutor(1) as pool, quick.writing():
        change = pool.submit(view)
        assert opened.wait(PATIENCE)
        quick.store.put(mark="made")
        committed.set()
        assert change.result(PATIENCE) == 0
    assert quick.store.get("mark") == "made"


def test_a_second_thread_that_would_write_is_refused(quick, write, elsewhere):
    corpus = write({"a.md": "A lamp."})
    with quick.writing():
        with pytest.raises(StoreLockedError, match=r"by process \d+ \(this one: another thread"):
            elsewhere(quick.sync, corpus)
        assert quick.sync(corpus).added == 1
    assert elsewhere(quick.sync, corpus).unchanged == 1


def test_the_writer_and_another_thread_do_not_search_the_vectors_at_one_moment(quick, write, monkeypatch):
    """They see different states of the store, and the vectors are brought in step with that of whoever searches."""
    search, entered, inside, most = VectorIndex.search, threading.Event(), [], 0

    def watched(*arguments):
        nonlocal most
        inside.append(threading.get_ident())
        most = max(most, len(inside))
        entered.set()
        time.sleep(0.2)
        inside.pop()
        return search(*arguments)

    monkeypatch.setattr(VectorIndex, "search", watched)
    quick.sync(write({"a.md": "A lamp."}))
    with ThreadPoolExecutor(1) as pool, quick.writing():
        other = pool.submit(quick.search, "lamp", 1)
        assert entered.wait(PATIENCE)
        assert quick.search("lamp", 1) == other.result(PATIENCE)
    assert most == 1


def test_many_threads_search_while_one_indexes_and_removes(quick, write):
    corpus = write({f"l{n}.md": f"Locker {n} contains {n * 7} buttons." for n in range(200)})
    quick.sync(corpus / "l3.md")
    with ThreadPoolExecutor(4) as pool:
        done = []

        def search():
            count = 0
            while not done:
                assert quick.search("What is in locker 3?", 3)[0].path == "l3.md"
                count += 1
            return count

        searches = [pool.submit(search) for _ in range(4)]
        try:
            for _ in range(2):
                quick.sync(corpus)
                quick.remove([f"l{n}.md" for n in range(100, 200)])
        finally:
            done.append(True)
        assert all(search.result() for search in searches)
    assert quick.store.verify() == []
