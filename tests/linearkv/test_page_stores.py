"""The tiers: acknowledged pages stay, damaged ones are never served, budgets hold, one page's trouble is its own."""

import errno
import logging
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from linearkv.cache import (
    NO_TAG,
    FileStore,
    Hit,
    MemoryStore,
    Miss,
    NotStored,
    Page,
    Stored,
    TieredStore,
    encode,
    open_pages,
)
from linearkv.cache import files as files_module
from linearkv.errors import StoreReadOnlyError

SECRET = bytes(range(32))
PAGE_BYTES = 8192
"""What `page` takes on disk: two blocks."""
ROOT = os.geteuid() == 0
NOBODY = 65534

fork = multiprocessing.get_context("fork")


def key_of(number: int) -> str:
    return f"{number * 7919 % 256:02x}" + f"{number:062x}"


def page(number: int, secret: bytes = SECRET, size: int = PAGE_BYTES - 1000) -> Page:
    """A page whose content tells its number."""
    return encode(key_of(number), {"x": torch.full((size // 4,), float(number))}, secret=secret)


def number_in(result: Hit | Miss) -> int:
    assert isinstance(result, Hit), result
    values = result.page.tensors["x"]
    assert values.min() == values.max()
    return int(values[0])


def size(path: Path) -> int:
    """Bytes that a file takes; none of one that another thread has given its name meanwhile."""
    try:
        return path.stat().st_blocks * 512
    except FileNotFoundError:
        return 0


def on_disk(folder: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in folder.glob("pages/*/*.safetensors"))


def temporaries(folder: Path) -> list[Path]:
    return list(folder.rglob("*.tmp"))


def in_child(function: Callable[[], None], *, user: int | None = None) -> None:
    """Run `function` in a forked process, as another user if we are root; its failure fails the test."""

    def child() -> None:
        try:
            if user is not None and ROOT:
                os.setgid(user)
                os.setuid(user)
            function()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)

    process = fork.Process(target=child)
    process.start()
    process.join(30)
    assert process.exitcode == 0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "tenant"


@pytest.fixture
def store(folder: Path) -> Iterator[FileStore]:
    opened = FileStore(folder, SECRET, 1 << 20)
    yield opened
    opened.close()


@pytest.fixture
def shared_folder() -> Iterator[Path]:
    """A folder that other users can reach."""
    path = Path(tempfile.mkdtemp())
    path.chmod(0o755)
    yield path / "tenant"
    for inside in [path, *path.rglob("*")]:
        inside.chmod(0o700)
    shutil.rmtree(path)


# ---- what every store does ----------------------------------------------------------------------------------------


@pytest.fixture(params=["memory", "files", "tiered", "lmcache"])
def any_store(request, folder):
    opened = {
        "memory": lambda: MemoryStore(1 << 20),
        "files": lambda: FileStore(folder, SECRET, 1 << 20),
        "tiered": lambda: open_pages(folder, SECRET, memory_bytes=1 << 20, disk_bytes=1 << 20, backend="files"),
        "lmcache": lambda: open_pages(folder, SECRET, memory_bytes=1 << 20, disk_bytes=1 << 20, backend="lmcache"),
    }[request.param]()
    yield opened
    opened.close()


def test_pages_put_are_got_and_others_are_absent(any_store):
    assert all(isinstance(result, Stored) for result in any_store.put([page(1), page(2)]).values())
    results = any_store.get([key_of(1), key_of(3), key_of(2), key_of(1)])
    assert number_in(results[key_of(1)]) == 1
    assert number_in(results[key_of(2)]) == 2
    assert results[key_of(3)] == Miss("absent")
    assert any_store.contains([key_of(1), key_of(3)]) == {key_of(1)}
    assert sorted(any_store.keys()) == sorted([key_of(1), key_of(2)])


def test_deleted_pages_are_absent(any_store):
    any_store.put([page(1), page(2)])
    assert any_store.delete([key_of(1), key_of(9)]) == 1
    assert any_store.get([key_of(1)])[key_of(1)] == Miss("absent")
    assert any_store.keys() == [key_of(2)]


def test_putting_a_key_again_replaces_its_page(any_store):
    any_store.put([page(1)])
    before = any_store.stat()[-1].bytes
    any_store.put([encode(key_of(1), {"x": torch.full_like(page(1).tensors["x"], 5.0)}, secret=SECRET)])
    assert number_in(any_store.get([key_of(1)])[key_of(1)]) == 5
    assert any_store.stat()[-1].bytes == before


def test_nothing_asked_is_nothing_answered(any_store):
    assert any_store.put([]) == {}
    assert any_store.get([]) == {}
    assert any_store.delete([]) == 0
    any_store.prefetch([])
    assert any_store.verify().clean


def test_a_key_that_is_no_key_is_refused(any_store):
    with pytest.raises(ValueError, match="64 lowercase hex"):
        any_store.get(["../../etc/passwd"])


def test_many_threads_may_use_one_store(any_store):
    failures = []

    def work(seed: int) -> None:
        chance = random.Random(seed)
        try:
            for _ in range(30):
                number = chance.randrange(8)
                match chance.randrange(4):
                    case 0:
                        any_store.put([page(number)])
                    case 1:
                        any_store.delete([key_of(number)])
                    case 2:
                        any_store.prefetch([key_of(number)])
                    case _:
                        result = any_store.get([key_of(number)])[key_of(number)]
                        assert result == Miss("absent") or number_in(result) == number
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


# ---- memory ---------------------------------------------------------------------------------------------------------


def test_memory_keeps_what_was_used_last_within_its_budget():
    store = MemoryStore(3 * page(0).nbytes)
    store.put([page(1), page(2), page(3)])
    store.get([key_of(1)])
    store.put([page(4)])
    assert store.keys() == [key_of(3), key_of(1), key_of(4)]
    stat = store.stat()[0]
    assert (stat.pages, stat.bytes, stat.evicted) == (3, 3 * page(0).nbytes, 1)


def test_memory_says_that_a_page_larger_than_its_budget_is_not_kept():
    store = MemoryStore(1000)
    result = store.put([page(1)])[key_of(1)]
    assert isinstance(result, NotStored)
    assert "over budget" in result.reason
    assert (store.stat()[0].not_kept, store.stat()[0].bytes) == (1, 0)


def test_memory_counts_the_memory_really_held():
    whole = torch.zeros(1 << 16, dtype=torch.uint8)
    small = page(1)
    whole[: small.nbytes] = small.buffer
    view = Page(small.key, small.kind, small.tag, small.metadata, small.tensors, whole[: small.nbytes])
    store = MemoryStore(1 << 20)
    store.put([view])
    assert store.stat()[0].bytes == 1 << 16


# ---- files: what is on disk is what was written ---------------------------------------------------------------------


def damage_flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


def damage_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()
    (path / "inside").write_text("x")


def damage_link(path: Path) -> None:
    real = path.with_name("elsewhere")
    path.rename(real)
    path.symlink_to(real)


def damage_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def damage_sparse(path: Path) -> None:
    os.truncate(path, 1 << 43)


def damage_sparse_forged(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data.replace(b'"bytes":"%016d"' % len(data), b'"bytes":"%016d"' % (1 << 43)))
    os.truncate(path, 1 << 43)


DAMAGES = {
    "flipped bit": damage_flip,
    "truncated": lambda path: os.truncate(path, 5000),
    "extended": lambda path: path.write_bytes(path.read_bytes() + bytes(4096)),
    "empty": lambda path: path.write_bytes(b""),
    "zeros": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "text": lambda path: path.write_text("hello"),
    "another page": lambda path: path.write_bytes(bytes(page(77).buffer.numpy())),
    "foreign tenant": lambda path: path.write_bytes(bytes(page(1, secret=bytes(32)).buffer.numpy())),
    "directory": damage_directory,
    "link": damage_link,
    "fifo": damage_fifo,
    "8 TiB of holes": damage_sparse,
    "8 TiB of holes that it claims": damage_sparse_forged,
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_page_is_a_miss_and_healed_by_the_next_put(store, folder, damage):
    store.put([page(1), page(2)])
    damage(store.path(key_of(1)))
    results = store.get([key_of(1), key_of(2)])
    assert results[key_of(1)].damaged
    assert number_in(results[key_of(2)]) == 2
    assert store.get([key_of(1)])[key_of(1)] == Miss("absent"), "it lies in quarantine"
    assert isinstance(store.put([page(1)])[key_of(1)], Stored)
    assert number_in(store.get([key_of(1)])[key_of(1)]) == 1
    stat = store.stat()[0]
    assert (stat.damaged, stat.pages) == (1, 2)
    assert stat.bytes == on_disk(folder)


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_page_can_be_replaced_without_having_been_read(store, damage):
    store.put([page(1), page(2)])
    damage(store.path(key_of(1)))
    assert isinstance(store.put([page(1)])[key_of(1)], Stored)
    assert [number_in(store.get([key_of(number)])[key_of(number)]) for number in (1, 2)] == [1, 2]


def test_two_swapped_pages_are_both_refused(store):
    store.put([page(1), page(2)])
    one, two = store.path(key_of(1)), store.path(key_of(2))
    one.rename(one.with_name("aside"))
    two.rename(one)
    one.with_name("aside").rename(two)
    assert all(result.damaged for result in store.get([key_of(1), key_of(2)]).values())


def test_a_file_in_place_of_a_subfolder_is_moved_away_by_put(store, folder):
    store.put([page(1)])
    shard = store.path(key_of(1)).parent
    shutil.rmtree(shard)
    shard.write_text("x")
    assert isinstance(store.get([key_of(1)])[key_of(1)], Miss)
    assert isinstance(store.put([page(1)])[key_of(1)], Stored)
    assert number_in(store.get([key_of(1)])[key_of(1)]) == 1


def interrupt_next_rename(monkeypatch, before: Callable[[], object], after: Callable[[], object]) -> None:
    """Have others do something just before and just after the next renaming; `replace` is not meant."""
    rename, waiting = Path.rename, [None]

    def interrupted(path, target):
        if not waiting:
            return rename(path, target)
        waiting.clear()
        before()
        moved = rename(path, target)
        after()
        return moved

    monkeypatch.setattr(Path, "rename", interrupted)


@pytest.mark.parametrize("again", [False, True], ids=["once", "and again"])
@pytest.mark.parametrize("damage", [damage_flip, damage_link, damage_directory])
def test_a_page_that_another_process_heals_while_the_damaged_one_is_moved_away_stays(
    store, folder, damage, again, monkeypatch
):
    other = FileStore(folder, SECRET, 1 << 20)
    newer = encode(key_of(1), {"x": torch.full_like(page(1).tensors["x"], 5.0)}, secret=SECRET)
    store.put([page(1)])
    damage(store.path(key_of(1)))
    put = [page(1), newer]

    def heal() -> None:
        assert isinstance(other.put([put.pop(0)])[key_of(1)], Stored)

    interrupt_next_rename(monkeypatch, before=heal, after=heal if again else lambda: None)
    assert store.get([key_of(1)])[key_of(1)].damaged, "what it read was"
    assert number_in(store.get([key_of(1)])[key_of(1)]) == (5 if again else 1)
    stat = store.stat()[0]
    assert (stat.pages, stat.bytes) == (1, on_disk(folder))
    # A directory was moved there by the other one; a file was replaced.
    assert stat.quarantined == (damage is damage_directory)
    other.close()


def test_a_page_healed_after_the_damaged_one_was_read_is_not_moved_at_all(folder, monkeypatch):
    class HealedMeanwhile(FileStore):
        def _damaged(self, *args):
            other.put([page(1)])
            return super()._damaged(*args)

    other = FileStore(folder, SECRET, None)
    other.put([page(1)])
    damage_flip(other.path(key_of(1)))
    store = HealedMeanwhile(folder, SECRET, None)
    interrupt_next_rename(monkeypatch, before=lambda: pytest.fail("moved"), after=lambda: None)
    assert store.get([key_of(1)])[key_of(1)].damaged
    assert number_in(store.get([key_of(1)])[key_of(1)]) == 1
    for opened in (store, other):
        opened.close()


def test_a_page_that_goes_back_from_quarantine_is_durable_under_its_name_before_it_leaves(folder, monkeypatch):
    other = FileStore(folder, SECRET, None)
    other.put([page(1)])
    damage_flip(other.path(key_of(1)))
    store = WatchedStore(folder, SECRET, None)
    store.events.clear()
    interrupt_next_rename(monkeypatch, before=lambda: other.put([page(1)]), after=lambda: None)
    kept = []
    monkeypatch.setattr(store, "_fsync", lambda descriptor: kept.append(store.stat()[0].quarantined))
    assert store.get([key_of(1)])[key_of(1)].damaged
    assert kept == [1]
    assert store.stat()[0].quarantined == 0
    for opened in (store, other):
        opened.close()


def test_a_subfolder_that_another_process_heals_while_what_was_there_is_moved_away_stays(store, folder, monkeypatch):
    store.put([page(1)])
    shard = store.path(key_of(1)).parent
    shutil.rmtree(shard)
    shard.write_text("x")
    other = FileStore(folder, SECRET, None)
    interrupt_next_rename(monkeypatch, before=lambda: other.put([page(1)]), after=lambda: None)
    assert isinstance(store.put([page(1 + 256)])[key_of(1 + 256)], Stored)
    assert [number_in(store.get([key_of(number)])[key_of(number)]) for number in (1, 1 + 256)] == [1, 1 + 256]
    other.close()


def test_without_a_quarantine_a_damaged_page_is_left_in_place_and_healed(store, folder):
    (folder / "quarantine").write_text("not a folder")
    store.put([page(1)])
    damage_flip(store.path(key_of(1)))
    assert "left in place: File exists" in store.get([key_of(1)])[key_of(1)].reason
    assert isinstance(store.put([page(1)])[key_of(1)], Stored)
    assert number_in(store.get([key_of(1)])[key_of(1)]) == 1


def test_quarantine_is_bounded_in_bytes_and_count(folder, monkeypatch):
    monkeypatch.setattr(files_module, "_QUARANTINE_COUNT", 3)
    store = FileStore(folder, SECRET, 10 * 5 * PAGE_BYTES)
    for number in range(6):
        store.put([page(number)])
        damage_flip(store.path(key_of(number)))
        store.get([key_of(number)])
    assert store.stat()[0].quarantined == 3
    store.put([page(9, size=4 * PAGE_BYTES)])
    damage_flip(store.path(key_of(9)))
    store.get([key_of(9)])
    kept = list((folder / "quarantine").iterdir())
    assert sum(path.stat().st_size for path in kept) <= 5 * PAGE_BYTES
    assert any(key_of(9) in path.name for path in kept), "the newest is the one to look at"
    store.close()


def test_verify_finds_every_kind_of_trouble_and_leaves_what_is_not_ours(store, folder):
    store.put([page(number) for number in range(4)])
    damage_flip(store.path(key_of(1)))
    orphan = store.path(key_of(2)).with_name(f"{files_module._HOST}-{os.getpid()}-00000000-0.tmp")
    orphan.write_bytes(b"half")
    (folder / "pages" / "README").write_text("mine")
    misplaced = folder / "pages" / "zz.safetensors"
    misplaced.write_text("mine too")
    seen = []
    report = store.verify(lambda done, total: seen.append((done, total)))
    assert (report.pages, [key for key, _ in report.damaged]) == (3, [key_of(1)])
    assert report.orphans == [str(orphan.relative_to(folder))]
    assert sorted(report.foreign) == ["pages/README", "pages/zz.safetensors"]
    assert seen == [(done, 4) for done in range(1, 5)]
    assert not report.clean
    assert store.verify().clean
    assert misplaced.exists()


def test_nothing_of_a_secret_is_in_the_folder(folder):
    secret = os.urandom(32)
    store = FileStore(folder, secret, 1 << 20)
    store.put([page(1, secret=secret)])
    store.close()
    for path in folder.rglob("*"):
        assert secret.hex() not in path.name
        if path.is_file():
            assert secret not in path.read_bytes()
            assert secret.hex().encode() not in path.read_bytes()


# ---- files: budget and recency --------------------------------------------------------------------------------------


def test_the_least_recently_used_pages_go_first_also_after_a_restart(folder):
    store = FileStore(folder, SECRET, 4 * PAGE_BYTES)
    store.put([page(number) for number in range(4)])
    store.get([key_of(0), key_of(2)])
    store.close()
    store = FileStore(folder, SECRET, 4 * PAGE_BYTES)
    store.put([page(10), page(11)])
    assert sorted(store.keys()) == sorted(map(key_of, [0, 2, 10, 11]))
    assert store.stat()[0].evicted == 2
    store.close()


def test_usage_stays_within_the_budget_over_restarts(folder):
    budget = 10 * PAGE_BYTES + 500
    for start in range(6):
        store = FileStore(folder, SECRET, budget)
        assert store.stat()[0].bytes == on_disk(folder)
        for number in range(start * 7, start * 7 + 7):
            store.put([page(number)])
            assert on_disk(folder) <= budget
        store.close()
    assert on_disk(folder) == 10 * PAGE_BYTES


def test_a_smaller_budget_is_met_when_the_store_is_opened(folder):
    store = FileStore(folder, SECRET, None)
    store.put([page(number) for number in range(6)])
    store.close()
    store = FileStore(folder, SECRET, 2 * PAGE_BYTES)
    assert sorted(store.keys()) == sorted([key_of(4), key_of(5)])
    store.close()


def test_a_call_larger_than_the_budget_keeps_its_last_pages_and_says_so(folder):
    store = FileStore(folder, SECRET, 3 * PAGE_BYTES)
    results = store.put([page(number) for number in range(5)])
    assert [isinstance(results[key_of(number)], Stored) for number in range(5)] == [False, False, True, True, True]
    assert "over budget" in results[key_of(0)].reason
    assert sorted(store.keys()) == sorted(map(key_of, [2, 3, 4]))
    assert store.stat()[0].not_kept == 2
    store.close()


def test_a_replaced_page_lies_beside_its_replacement_for_a_moment_and_there_is_room_for_both(folder):
    store = FileStore(folder, SECRET, 3 * PAGE_BYTES)
    store.put([page(1), page(2)])
    store.put([page(2)])
    assert sorted(store.keys()) == sorted([key_of(1), key_of(2)])
    store.put([page(3)])
    store.put([page(3)])
    assert sorted(store.keys()) == sorted([key_of(2), key_of(3)])
    assert store.stat()[0].bytes == on_disk(folder) == 2 * PAGE_BYTES
    store.close()


def test_a_time_in_the_future_does_not_keep_a_page_for_ever(folder):
    store = FileStore(folder, SECRET, None)
    store.put([page(1), page(2)])
    store.close()
    future = time.time() + 10**6
    os.utime(store.path(key_of(1)), (future, future))
    store = FileStore(folder, SECRET, 2 * PAGE_BYTES)
    store.get([key_of(2)])
    store.put([page(3)])
    store.put([page(4)])
    assert sorted(store.keys()) == sorted([key_of(3), key_of(4)])
    store.close()


def test_pages_that_vanish_underneath_are_no_error(store):
    store.put([page(number) for number in range(3)])
    shutil.rmtree(store.path(key_of(0)).parent)
    store.path(key_of(1)).unlink()
    assert store.get([key_of(0)])[key_of(0)] == Miss("absent")
    assert store.keys() == [key_of(2)]
    assert store.stat()[0].bytes == PAGE_BYTES
    assert isinstance(store.put([page(0)])[key_of(0)], Stored)


@pytest.fixture
def quick_to_settle(monkeypatch):
    """Folders count as settled at once, so that only a change of their time makes the store read them again."""
    monkeypatch.setattr(files_module, "_SETTLED_NS", -1)


def test_what_another_process_adds_or_removes_is_noticed(folder, quick_to_settle):
    store = FileStore(folder, SECRET, None)
    store.put([page(1), page(2)])
    assert len(store.keys()) == 2
    time.sleep(0.02)  # more than a tick of the file system's clock
    other = FileStore(folder, SECRET, None)
    other.put([page(1 + 256), page(3)])  # one in a subfolder that is known, one in a new one
    other.delete([key_of(2)])
    other.close()
    assert sorted(store.keys()) == sorted(map(key_of, [1, 3, 257]))
    assert store.stat()[0].bytes == on_disk(folder)
    store.close()


def test_the_budget_holds_at_every_moment_of_a_put(folder):
    budget = 5 * PAGE_BYTES
    seen = []

    class Measured(FileStore):
        def _fsync(self, descriptor):
            super()._fsync(descriptor)
            files = [path for path in folder.glob("pages/*/*") if path.is_file()]
            seen.append(sum(map(size, files)))

    store = Measured(folder, SECRET, budget)
    for number in range(0, 12, 2):
        store.put([page(number), page(number + 1)])
    assert 0 < max(seen) <= budget
    store.close()


def test_a_put_that_replaces_all_of_the_budget_takes_at_most_as_much_again_for_a_moment(folder):
    budget = 3 * PAGE_BYTES
    seen = []

    class Measured(FileStore):
        def _fsync(self, descriptor):
            super()._fsync(descriptor)
            seen.append(sum(map(size, folder.glob("pages/*/*"))))

    store = Measured(folder, SECRET, budget)
    pages = [page(number) for number in range(3)]
    for _ in range(2):
        assert all(isinstance(result, Stored) for result in store.put(pages).values())
        assert on_disk(folder) == budget
    assert budget < max(seen) <= 2 * budget
    store.close()


class PausingStore(FileStore):
    """A file tier whose next call of what `pause` names waits for `go`."""

    def __init__(self, *args) -> None:
        self.pause = ""
        self.paused, self.go = threading.Event(), threading.Event()
        super().__init__(*args)

    def _wait(self, here: str) -> None:
        if self.pause == here:
            self.pause = ""
            self.paused.set()
            assert self.go.wait(10)

    def _write_all(self, descriptor, view):
        self._wait("write")
        super()._write_all(descriptor, view)

    def _sync_shard(self, shard):
        self._wait("sync")
        return super()._sync_shard(shard)

    def put_until(self, pause: str, pages: list[Page]) -> tuple[threading.Thread, dict[str, Stored | NotStored]]:
        """Put pages in a thread, which waits where it is told; return it with the answers to come."""
        results: dict[str, Stored | NotStored] = {}
        self.pause = pause
        thread = threading.Thread(target=lambda: results.update(self.put(pages)))
        thread.start()
        assert self.paused.wait(10)
        return thread, results


def test_two_puts_that_fit_the_budget_together_evict_nothing(folder):
    store = PausingStore(folder, SECRET, 2 * PAGE_BYTES)
    thread, results = store.put_until("sync", [page(1)])  # its page has its name and is not acknowledged yet
    assert isinstance(store.put([page(2)])[key_of(2)], Stored)
    store.go.set()
    thread.join()
    assert isinstance(results[key_of(1)], Stored)
    assert sorted(store.keys()) == sorted([key_of(1), key_of(2)])
    assert store.stat()[0].evicted == 0
    assert store._reserved == 0
    store.close()


def test_bytes_promised_to_pages_that_could_not_be_written_are_free_again(failing):
    failing.failures = {"write": [errno.EIO]}
    failing.put([page(number) for number in range(3)])
    failing.failures = {"write": [errno.ENOSPC, errno.ENOSPC]}
    failing.put([page(4)])
    assert failing._reserved == 0


def test_a_page_put_again_while_its_old_file_is_evicted_stays(folder, monkeypatch):
    store = PausingStore(folder, SECRET, 2 * PAGE_BYTES)
    store.put([page(1)])
    thread, results = store.put_until("write", [page(1)])
    unlink = Path.unlink

    def late(path, missing_ok=False):
        if path == store.path(key_of(1)):
            store.go.set()
            thread.join(0.3)  # time enough to put the new file there, were it allowed to
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", late)
    store.put([page(2)])
    thread.join()
    assert store.stat()[0].evicted == 1
    assert isinstance(results[key_of(1)], Stored)
    assert [number_in(store.get([key_of(number)])[key_of(number)]) for number in (1, 2)] == [1, 2]
    store.close()


def test_the_use_of_a_page_by_another_process_counts(folder, quick_to_settle):
    store = FileStore(folder, SECRET, 2 * PAGE_BYTES)
    store.put([page(1), page(2)])
    store.keys()  # from here on its own picture of the folder is settled
    reader = FileStore(folder, SECRET, 2 * PAGE_BYTES)
    reader.get([key_of(1)])
    reader.close()
    store.put([page(3)])
    assert sorted(store.keys()) == sorted([key_of(1), key_of(3)])
    store.close()


# ---- files: several processes, kills --------------------------------------------------------------------------------


def test_processes_that_write_and_read_the_same_keys_see_whole_pages_and_one_budget(folder):
    budget = 6 * PAGE_BYTES

    def work() -> None:
        chance = random.Random(os.getpid())
        store = FileStore(folder, SECRET, budget, threads=2)
        for _ in range(25):
            store.put([page(chance.randrange(12)) for _ in range(2)])
            for key, result in store.get([key_of(chance.randrange(12)) for _ in range(3)]).items():
                assert result == Miss("absent") or key_of(number_in(result)) == key
        store.close()

    processes = [fork.Process(target=work) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0, 0]
    store = FileStore(folder, SECRET, budget)
    assert on_disk(folder) <= budget
    assert store.verify().clean
    assert not temporaries(folder)
    store.close()


def test_a_writer_killed_at_any_moment_leaves_whole_pages_and_loses_none_it_acknowledged(folder):
    chance = random.Random(3)
    budget = 40 * PAGE_BYTES
    for attempt in range(12):
        receive, send = fork.Pipe(duplex=False)

        def write(send=send, attempt=attempt) -> None:
            store = FileStore(folder, SECRET, budget, threads=2)
            for number in range(attempt * 1000, attempt * 1000 + 1000):
                pages = [page(number, size=random.choice([7000, 20_000, 100_000])), page(number + 500_000)]
                for key, result in store.put(pages).items():
                    if isinstance(result, Stored):
                        send.send(key)

        writer = fork.Process(target=write)
        writer.start()
        assert receive.recv()  # it is writing now
        time.sleep(chance.random() * 0.15)
        os.kill(writer.pid, signal.SIGKILL)
        writer.join()
        send.close()
        acknowledged = []
        try:
            while True:
                acknowledged.append(receive.recv())
        except EOFError:
            receive.close()
        store = FileStore(folder, SECRET, budget)
        assert not temporaries(folder)
        assert store.verify().clean
        assert on_disk(folder) <= budget
        if acknowledged:  # the last of them cannot have been evicted by what came after it
            assert isinstance(store.get(acknowledged[-1:])[acknowledged[-1]], Hit)
        store.close()


class WatchedStore(FileStore):
    """A file tier that notes what is synchronised, and whether page 1 had its name by then."""

    def __init__(self, *args) -> None:
        self.events: list[tuple[str, bool]] = []
        super().__init__(*args)

    def _fsync(self, descriptor):
        what = Path(f"/proc/self/fd/{descriptor}").resolve()
        kind = what.suffix if what.is_file() else what.name
        self.events.append((kind, self.path(key_of(1)).exists()))
        super()._fsync(descriptor)


def test_data_is_durable_before_its_name_and_the_name_before_put_returns(folder):
    store = WatchedStore(folder, SECRET, None)
    store.events.clear()
    store.put([page(1)])
    shard = key_of(1)[:2]
    assert store.events == [("pages", False), (".tmp", False), (shard, True)]
    store.close()


class SyncedStore(FileStore):
    """A file tier that notes what is in each folder when it is synchronised; those in `broken` cannot be."""

    def __init__(self, *args) -> None:
        self.synced: list[tuple[Path, set[str]]] = []
        self.broken: set[str] = set()
        super().__init__(*args)

    def _fsync(self, descriptor):
        what = Path(f"/proc/self/fd/{descriptor}").resolve()
        if what.name in self.broken:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        if what.is_dir():
            self.synced.append((what, {path.name for path in what.iterdir()}))
        super()._fsync(descriptor)

    def durable(self, path: Path, top: Path) -> bool:
        """Whether the names of `path` and of all folders from `top` to it are."""
        path, top = path.resolve(), top.resolve()
        while path != top and any(at == path.parent and path.name in names for at, names in self.synced):
            path = path.parent
        return path == top


@pytest.mark.parametrize("made", [0, 1, 3, 4], ids=["nothing", "a folder above", "the tenant's", "all folders"])
def test_all_folders_above_a_page_are_durable_whoever_made_them(tmp_path, made):
    folders = ["above", "store", "tenant", "pages"]
    (tmp_path / Path(*folders[:made])).mkdir(parents=True, exist_ok=True)  # by one that was killed before the rest
    store = SyncedStore(tmp_path / Path(*folders[:3]), SECRET, None)
    assert isinstance(store.put([page(1)])[key_of(1)], Stored)
    assert store.durable(store.path(key_of(1)), tmp_path)
    store.close()


def test_folders_above_a_store_are_durable_also_through_a_link_and_a_relative_path(tmp_path, monkeypatch):
    (tmp_path / "real" / "inside").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "real" / "inside")
    monkeypatch.chdir(tmp_path / "link")
    store = SyncedStore("tenant", SECRET, None)
    store.put([page(1)])
    assert store.durable(store.path(key_of(1)), tmp_path)
    store.close()


def test_the_name_of_a_subfolder_that_another_process_made_is_synchronised_once(folder):
    early, late = (folder / "pages" / key_of(number)[:2] for number in (1, 2))
    early.mkdir(parents=True)
    store = SyncedStore(folder, SECRET, None)
    late.mkdir()
    for shard, number, times in ((early, 1, 1), (late, 2, 2), (late, 2 + 256, 2)):
        assert isinstance(store.put([page(number)])[key_of(number)], Stored)
        assert store.durable(shard, folder)
        assert sum(at.name == "pages" for at, _ in store.synced) == times
    store.close()


def test_what_a_killed_process_left_is_durable_once_another_counts_on_it(folder):
    first = FileStore(folder, SECRET, None)
    first.put([page(1)])  # and say it was killed before it synchronised the subfolder
    first.close()
    store = SyncedStore(folder, SECRET, None)
    assert store.contains([key_of(1)]) == {key_of(1)}
    assert store.durable(store.path(key_of(1)), folder)
    store.close()


@pytest.mark.parametrize("name", ["pages", "tenant", "above"])
def test_a_page_below_a_folder_that_could_not_be_synchronised_is_not_acknowledged(tmp_path, name):
    class Broken(SyncedStore):
        def _make_folder(self, folder):
            self.broken = {name} if not self.healed else set()
            super()._make_folder(folder)

        healed = False

    store = Broken(tmp_path / "above" / "tenant", SECRET, None)
    for _ in range(2):
        assert store.put([page(1)])[key_of(1)] == NotStored("failed: Input/output error")
    store.healed = True
    assert isinstance(store.put([page(1)])[key_of(1)], Stored)
    assert store.durable(store.path(key_of(1)), tmp_path)
    store.close()


def test_a_folder_above_that_may_not_be_listed_is_no_hindrance(shared_folder):
    shared_folder.mkdir()
    shared_folder.chmod(0o777)
    shared_folder.parent.chmod(0o711)

    def use() -> None:
        store = FileStore(shared_folder, SECRET, None)
        assert isinstance(store.put([page(1)])[key_of(1)], Stored)
        assert store.stat()[0].writable
        store.close()

    in_child(use, user=NOBODY)


def test_a_temporary_file_of_a_living_writer_is_left_alone(folder):
    FileStore(folder, SECRET, None).close()
    shard = folder / "pages" / "ab"
    shard.mkdir()
    names = {
        "mine": f"{files_module._HOST}-{os.getpid()}-{files_module._RUN}-0.tmp",
        "of a living process": f"{files_module._HOST}-{os.getppid()}-00000000-0.tmp",
        "of an earlier process with my number": f"{files_module._HOST}-{os.getpid()}-00000000-0.tmp",
        "of a dead process": f"{files_module._HOST}-4194305-00000000-0.tmp",
        "of another host": "00000000-1-00000000-0.tmp",
        "of another host, old": "00000000-2-00000000-0.tmp",
    }
    for name in names.values():
        (shard / name).write_bytes(b"half")
    long_ago = time.time() - 7200
    os.utime(shard / names["of another host, old"], (long_ago, long_ago))
    FileStore(folder, SECRET, None).close()
    left = {what for what, name in names.items() if (shard / name).exists()}
    assert left == {"mine", "of a living process", "of another host"}


# ---- files: disks that refuse ---------------------------------------------------------------------------------------


class FailingStore(FileStore):
    """A file tier whose calls to the system fail as told: `failures` maps a call's name to the errors to come."""

    def __init__(self, *args, **kwargs) -> None:
        self.failures: dict[str, list[int]] = {}
        super().__init__(*args, **kwargs)

    def _fail(self, call: str) -> None:
        if self.failures.get(call):
            number = self.failures[call].pop(0)
            raise OSError(number, os.strerror(number))

    def _write_all(self, descriptor, view):
        super()._write_all(descriptor, view[: len(view) // 2])
        self._fail("write")
        super()._write_all(descriptor, view[len(view) // 2 :])

    def _fsync(self, descriptor):
        self._fail("fsync")
        super()._fsync(descriptor)

    def _read_into(self, descriptor, view):
        self._fail("read")
        super()._read_into(descriptor, view)


@pytest.fixture
def failing(folder):
    opened = FailingStore(folder, SECRET, 10 * PAGE_BYTES)
    yield opened
    opened.close()


@pytest.mark.parametrize("call", ["write", "fsync"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT], ids=["ENOSPC", "EDQUOT"])
def test_a_full_disk_costs_the_oldest_pages_and_the_put_succeeds(failing, folder, call, number):
    failing.put([page(1)])
    failing.put([page(2)])
    failing.failures = {call: [number]}
    assert isinstance(failing.put([page(3)])[key_of(3)], Stored)
    assert sorted(failing.keys()) == sorted([key_of(2), key_of(3)])
    assert not temporaries(folder)


def test_where_nothing_may_go_a_full_disk_costs_what_is_new(folder):
    store = FailingStore(folder, SECRET, None, evict=False)
    store.put([page(1)])
    store.failures = {"write": [errno.ENOSPC, errno.ENOSPC]}
    assert "disk full" in store.put([page(2)])[key_of(2)].reason
    assert store.keys() == [key_of(1)]
    store.close()


@pytest.mark.parametrize(
    ("number", "reason"),
    [(errno.ENOSPC, "disk full"), (errno.EIO, "failed: Input/output error"), (errno.EFBIG, "failed: File too large")],
    ids=["ENOSPC", "EIO", "EFBIG"],
)
def test_a_write_that_fails_says_why_and_loses_nothing_else(failing, folder, number, reason):
    failing.put([page(number) for number in range(3)])
    failing.failures = {"write": [number, number]}
    result = failing.put([page(9)])[key_of(9)]
    assert isinstance(result, NotStored)
    assert reason in result.reason
    assert not temporaries(folder)
    assert number_in(failing.get([key_of(2)])[key_of(2)]) == 2
    assert failing.stat()[0].bytes == on_disk(folder)


def test_one_failed_write_does_not_spoil_the_rest_of_the_call(failing):
    failing.failures = {"write": [errno.EIO]}
    outcomes = list(failing.put([page(number) for number in range(5)]).values())
    assert sum(isinstance(outcome, NotStored) for outcome in outcomes) == 1
    assert len(failing.keys()) == 4


def test_a_page_whose_folder_was_not_synchronised_is_not_acknowledged(failing):
    failing.put([page(1)])
    failing._fsync = lambda descriptor: failing._fail("fsync") if Path(f"/proc/self/fd/{descriptor}").is_dir() else None
    failing.failures = {"fsync": [errno.EIO]}
    assert isinstance(failing.put([page(1)])[key_of(1)], NotStored)


def test_a_read_error_is_a_miss_with_the_reason_and_the_file_stays(failing):
    failing.put([page(1)])
    failing.failures = {"read": [errno.EIO]}
    assert failing.get([key_of(1)])[key_of(1)] == Miss("unreadable: Input/output error")
    assert number_in(failing.get([key_of(1)])[key_of(1)]) == 1


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 1 MiB; only root can make one."""
    path = tmp_path / "disk"
    path.mkdir()
    mounted = ROOT and shutil.which("mount") is not None
    if not mounted or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", path]).returncode:
        pytest.skip("needs the right to mount a file system")
    yield path
    subprocess.run(["umount", path], check=True)


def test_on_a_really_full_disk_old_pages_make_room_and_every_page_is_whole(small_disk):
    store = FileStore(small_disk / "tenant", SECRET, None)
    for number in range(200):
        result = store.put([page(number)])[key_of(number)]
        assert isinstance(result, Stored), (number, result)
    assert number_in(store.get([key_of(199)])[key_of(199)]) == 199
    assert store.stat()[0].evicted > 50
    too_large = store.put([page(500, size=2 << 20)])[key_of(500)]
    assert isinstance(too_large, NotStored)
    assert "disk full" in too_large.reason
    assert not temporaries(small_disk)
    assert store.verify().clean
    store.close()


def test_a_disk_filled_by_others_is_a_plain_answer(small_disk):
    store = FileStore(small_disk / "tenant", SECRET, None)
    with (small_disk / "ballast").open("wb", buffering=0) as file, pytest.raises(OSError, match="No space left"):
        while True:
            file.write(bytes(4096))
    assert "disk full" in store.put([page(1)])[key_of(1)].reason
    assert not temporaries(small_disk)
    (small_disk / "ballast").unlink()
    assert isinstance(store.put([page(1)])[key_of(1)], Stored)
    store.close()


# ---- files: permissions ---------------------------------------------------------------------------------------------


def make_read_only(folder: Path) -> None:
    for path in [*folder.rglob("*"), folder]:
        path.chmod(0o555 if path.is_dir() else 0o444)


def test_a_folder_that_may_not_be_written_is_used_with_one_warning(shared_folder, caplog):
    store = FileStore(shared_folder, SECRET, None)
    store.put([page(1), page(2)])
    damage_flip(store.path(key_of(2)))
    store.close()
    make_read_only(shared_folder)

    def use() -> None:
        messages = []
        handler = logging.Handler()
        handler.emit = lambda record: messages.append(record.getMessage())
        logging.getLogger("linearkv").addHandler(handler)
        store = FileStore(shared_folder, SECRET, PAGE_BYTES // 2)  # over budget, and nothing can be evicted
        assert number_in(store.get([key_of(1)])[key_of(1)]) == 1
        assert store.get([key_of(2)])[key_of(2)].damaged
        for number in (1, 2, 3):
            assert "over budget" in store.put([page(number)])[key_of(number)].reason
        store.close()
        store = FileStore(shared_folder, SECRET, None)
        for number in (3, 4):
            assert "read-only" in store.put([page(number)])[key_of(number)].reason
        assert not store.stat()[0].writable
        assert store.get([key_of(2)])[key_of(2)].damaged
        with pytest.raises(StoreReadOnlyError, match="could not be removed"):
            store.delete([key_of(1)])
        assert store.delete([key_of(8)]) == 0
        store.close()
        warnings = [message for message in messages if "is not writable" in message]
        assert len(warnings) == 2, "one for each store opened"
        assert str(shared_folder) in warnings[0]

    in_child(use, user=NOBODY)


def test_a_page_that_may_not_be_read_is_a_miss_and_its_replacement_heals_it(shared_folder):
    store = FileStore(shared_folder, SECRET, None)
    store.put([page(1)])
    store.close()
    for path in [*shared_folder.rglob("*"), shared_folder]:
        path.chmod(0o777 if path.is_dir() else 0o000)

    def use() -> None:
        store = FileStore(shared_folder, SECRET, None)
        assert store.get([key_of(1)])[key_of(1)] == Miss("unreadable: Permission denied")
        assert isinstance(store.put([page(1)])[key_of(1)], Stored)
        assert number_in(store.get([key_of(1)])[key_of(1)]) == 1
        store.close()

    in_child(use, user=NOBODY)


def test_a_folder_that_cannot_be_made_is_an_empty_store(shared_folder):
    shared_folder.parent.chmod(0o555)

    def use() -> None:
        store = FileStore(shared_folder, SECRET, None)
        assert store.get([key_of(1)])[key_of(1)] == Miss("absent")
        assert "read-only" in store.put([page(1)])[key_of(1)].reason
        assert store.keys() == []
        assert store.verify().clean
        store.close()

    in_child(use, user=NOBODY)


def test_a_store_opened_for_reading_changes_nothing(folder):
    store = FileStore(folder, SECRET, None)
    store.put([page(1), page(2)])
    store.close()
    damage_flip(store.path(key_of(2)))
    orphan = store.path(key_of(1)).with_name(f"{files_module._HOST}-4194305-00000000-0.tmp")
    orphan.write_bytes(b"half")

    def facts() -> dict[str, tuple[int, int]]:
        return {str(path): (path.stat().st_mtime_ns, path.stat().st_size) for path in folder.rglob("*")}

    before = facts()
    store = FileStore(folder, SECRET, PAGE_BYTES, read_only=True)
    assert number_in(store.get([key_of(1)])[key_of(1)]) == 1
    assert store.get([key_of(2)])[key_of(2)].damaged
    assert "opened for reading" in store.put([page(3)])[key_of(3)].reason
    with pytest.raises(StoreReadOnlyError):
        store.delete([key_of(1)])
    store.verify()
    store.close()
    assert facts() == before


# ---- memory over files ----------------------------------------------------------------------------------------------


def test_a_hit_says_its_tier_and_what_was_read(folder):
    store = open_pages(folder, SECRET, memory_bytes=1 << 20, disk_bytes=1 << 20)
    store.put([page(1)])
    assert store.get([key_of(1)])[key_of(1)][1:] == ("memory", 0)
    store.close()
    store = open_pages(folder, SECRET, memory_bytes=1 << 20, disk_bytes=1 << 20)
    assert store.get([key_of(1)])[key_of(1)][1:] == ("disk", page(1).nbytes)
    assert store.get([key_of(1)])[key_of(1)][1:] == ("memory", 0)
    memory, disk = store.stat()
    assert (memory.hits, disk.hits, disk.bytes_loaded) == (1, 1, page(1).nbytes)
    store.close()


def test_prefetched_pages_are_in_memory_and_read_once(folder):
    store = open_pages(folder, SECRET, memory_bytes=1 << 20, disk_bytes=1 << 20)
    store.put([page(number) for number in range(8)])
    store.close()
    store = open_pages(folder, SECRET, memory_bytes=1 << 20, disk_bytes=1 << 20)
    keys = [key_of(number) for number in range(9)]
    store.prefetch(keys)
    store.prefetch(keys)
    results = store.get(keys)
    assert [number_in(results[key]) for key in keys[:8]] == list(range(8))
    assert all(results[key][1:] == ("disk", page(0).nbytes) for key in keys[:8]), "told to be from where they came"
    assert results[keys[8]] == Miss("absent")
    assert store.stat()[1].bytes_loaded == 8 * page(0).nbytes
    assert all(result.tier == "memory" for result in store.get(keys[:8]).values())
    store.close()


@pytest.mark.parametrize("backend", ["files", "lmcache"])
def test_damage_that_was_found_ahead_is_told_to_who_asks(folder, backend):
    store = open_pages(folder, SECRET, memory_bytes=1 << 20, disk_bytes=1 << 20, backend=backend)
    store.put([page(1), page(2)], bulk=True)
    for number in (1, 2):
        path = FileStore(folder, SECRET, None, read_only=True).path(key_of(number))
        path.write_bytes(path.read_bytes()[:-1] + b"!")
    store.get([key_of(9)])
    store.prefetch([key_of(1), key_of(2)])
    until = time.monotonic() + 10
    while store.stat()[1].damaged < 2 and time.monotonic() < until:
        time.sleep(0.01)
    store.put([page(2)], bulk=True)
    results = store.get([key_of(1), key_of(2)])
    assert results[key_of(1)].damaged
    assert number_in(results[key_of(2)]) == 2, "what was healed meanwhile is no trouble any more"
    assert store.get([key_of(1)])[key_of(1)] == Miss("absent"), "told once"
    store.delete([key_of(2)])
    assert store.get([key_of(2)])[key_of(2)] == Miss("absent")
    store.close()


@pytest.mark.parametrize("backend", ["files", "lmcache"])
def test_nothing_that_was_asked_for_goes_for_what_is_only_likely(folder, backend):
    store = open_pages(folder, SECRET, memory_bytes=4 * PAGE_BYTES, disk_bytes=None, backend=backend)
    store.put([page(number) for number in range(10)], bulk=True)
    asked = [key_of(number) for number in range(4)]
    store.get(asked)
    for _ in range(3):
        store.prefetch([key_of(number) for number in range(4, 10)])
        time.sleep(0.1)
        assert all(result.tier == "memory" for result in store.get(asked).values())
    assert store.stat()[1].bytes_loaded == 4 * page(0).nbytes
    store.close()


@pytest.mark.parametrize("backend", ["files", "lmcache"])
def test_what_was_likely_in_vain_goes_for_what_is_likely_now(folder, backend):
    store = open_pages(folder, SECRET, memory_bytes=4 * PAGE_BYTES, disk_bytes=None, backend=backend)
    store.put([page(number) for number in range(10)], bulk=True)
    store.get([key_of(0), key_of(1)])
    for first in (2, 4, 6):
        keys = [key_of(first), key_of(first + 1)]
        store.prefetch(keys)
        until = time.monotonic() + 10
        while store.stat()[1].hits < first + 2 and time.monotonic() < until:
            time.sleep(0.01)
    assert {result.tier for result in store.get(keys).values()} == {"disk"}, "told to be from where it came"
    assert {result.tier for result in store.get([*keys, key_of(0), key_of(1)]).values()} == {"memory"}
    assert store.stat()[1].hits == 8
    store.close()


def test_without_memory_nothing_is_read_in_vain(folder):
    store = open_pages(folder, SECRET, memory_bytes=0, disk_bytes=1 << 20)
    store.put([page(1)])
    store.prefetch([key_of(1)])
    assert store.get([key_of(1)])[key_of(1)][1:] == ("disk", page(1).nbytes)
    assert store.stat()[1].bytes_loaded == page(1).nbytes
    store.close()


class SlowStore(FileStore):
    """A file tier that waits for `go` before it reads."""

    def __init__(self, *args) -> None:
        self.reading, self.go = threading.Event(), threading.Event()
        super().__init__(*args)

    def _read_into(self, descriptor, view):
        self.reading.set()
        assert self.go.wait(10)
        super()._read_into(descriptor, view)


class KeptMemory(MemoryStore):
    """A memory tier that can be looked at after it was closed."""

    def close(self) -> None:
        pass


def test_a_page_deleted_while_it_is_prefetched_does_not_come_back(folder):
    first = FileStore(folder, SECRET, None)
    first.put([page(1)])
    first.close()
    files, memory = SlowStore(folder, SECRET, None), KeptMemory(1 << 20)
    store = TieredStore(memory, files)
    store.prefetch([key_of(1)])
    assert files.reading.wait(10)
    store.delete([key_of(1)])
    files.go.set()
    store.close()  # waits for the load
    assert files.stat()[0].hits == 1
    assert memory.keys() == []


def test_a_page_deleted_while_it_is_prefetched_and_asked_for_again_does_not_come_back(folder):
    files, memory = SlowStore(folder, SECRET, None), KeptMemory(1 << 20)
    files.put([page(1)])
    store, later = TieredStore(memory, files), threading.Event()
    store._pool.submit(later.wait, 10)  # so that the second load waits for the first
    store.prefetch([key_of(1)])
    assert files.reading.wait(10)
    store.delete([key_of(1)])
    store.prefetch([key_of(1)])
    files.go.set()
    assert store.get([key_of(1)])[key_of(1)] == Miss("absent")
    later.set()
    store.close()
    assert files.stat()[0].hits == 1
    assert memory.keys() == []


def test_a_page_deleted_while_it_is_read_does_not_come_back(folder):
    files, memory = SlowStore(folder, SECRET, None), KeptMemory(1 << 20)
    files.put([page(1), page(2)])
    store = TieredStore(memory, files)
    results: dict[str, Hit | Miss] = {}
    reader = threading.Thread(target=lambda: results.update(store.get([key_of(1)])))
    reader.start()
    assert files.reading.wait(10)
    store.delete([key_of(1)])
    files.go.set()
    reader.join()
    assert number_in(results[key_of(1)]) == 1, "it was there when it was asked for"
    assert store.get([key_of(1)])[key_of(1)] == Miss("absent")
    assert number_in(store.get([key_of(2)])[key_of(2)]) == 2
    assert memory.keys() == [key_of(2)], "what is read after a deletion is kept"
    store.close()


def test_a_page_read_just_before_its_file_is_deleted_does_not_stay_in_memory(folder):
    class ReadLate(FileStore):
        def delete(self, keys):
            assert number_in(store.get([key_of(1)])[key_of(1)]) == 1
            return super().delete(keys)

    memory = KeptMemory(1 << 20)
    store = TieredStore(memory, ReadLate(folder, SECRET, None))
    store.put([page(1)], bulk=True)
    assert store.delete([key_of(1)]) == 1
    assert memory.keys() == []
    store.close()


def test_what_is_hot_in_memory_is_not_evicted_from_disk_first(folder):
    store = open_pages(folder, SECRET, memory_bytes=1 << 20, disk_bytes=2 * PAGE_BYTES)
    store.put([page(1)])
    store.put([page(2)])
    store.get([key_of(1)])
    store.put([page(3)])
    store.close()
    reopened = FileStore(folder, SECRET, None)
    assert sorted(reopened.keys()) == sorted([key_of(1), key_of(3)])
    reopened.close()


def test_a_page_the_disk_refused_is_said_so_and_served_from_memory(folder):
    store = open_pages(folder, SECRET, memory_bytes=1 << 20, disk_bytes=100)
    assert "over budget" in store.put([page(1)])[key_of(1)].reason
    assert store.get([key_of(1)])[key_of(1)].tier == "memory"
    store.close()


def test_every_store_lists_the_tags_of_its_pages(any_store):
    any_store.put([page(1), encode(key_of(2), {"x": torch.ones(2)}, secret=SECRET, tag="5e" * 32)])
    assert any_store.tags() == {key_of(1): NO_TAG, key_of(2): "5e" * 32}


def test_a_touched_page_is_not_the_next_to_go(any_store):
    any_store.put([page(1)])
    any_store.put([page(2)])
    any_store.touch([key_of(1), key_of(9)])
    for number in range(3, 400):
        any_store.put([page(number)])
        if not any_store.contains([key_of(2)]):
            break
    else:
        pytest.fail("nothing was evicted")
    assert any_store.contains([key_of(1)]) == {key_of(1)}
