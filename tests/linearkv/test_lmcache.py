"""Pages in LMCache: the contract with the release that is tested, and what its tiers of ours promise."""

import gc
import logging
import random
import shutil
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

from linearkv import Engine, Settings
from linearkv.cache import (
    FileStore,
    Hit,
    Miss,
    NotStored,
    Stored,
    TieredStore,
    encode,
    lmcache_version,
    open_pages,
    server_name,
)
from linearkv.errors import LinearKVError
from linearkv.verifying import verify_store

lmcache_store = pytest.importorskip("linearkv.cache.lmcache_store", reason="LMCache is not installed")

SECRET = bytes(range(32))
OTHER = bytes(range(1, 33))
KIB = 1 << 10


def key_of(number):
    return f"{number * 7919 % 256:02x}" + f"{number:062x}"


def page(number, secret=SECRET, size=20 * KIB, value=None):
    """A page whose content tells its number."""
    content = torch.full((size // 4,), float(number if value is None else value))
    return encode(key_of(number), {"x": content, "ids": torch.arange(5)}, secret=secret)


def number_in(result):
    assert isinstance(result, Hit), result
    values = result.page.tensors["x"]
    assert values.min() == values.max()
    assert result.page.tensors["ids"].tolist() == list(range(5))
    return int(values[0])


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "tenant"


@pytest.fixture
def opened():
    """Opens stores, and closes them."""
    stores = []

    def open_store(folder, secret=SECRET, memory_bytes=1 << 20, disk_bytes=None, **options):
        stores.append(
            open_pages(folder, secret, memory_bytes=memory_bytes, disk_bytes=disk_bytes, backend="lmcache", **options)
        )
        assert isinstance(stores[-1], lmcache_store.LMCacheStore)
        return stores[-1]

    yield open_store
    for store in stores:
        store.close()


def get(store, number):
    return store.get([key_of(number)])[key_of(number)]


# ---- which release --------------------------------------------------------------------------------------------------


def test_the_installed_release_is_one_that_is_tested():
    assert lmcache_version.refusal(lmcache_version.installed()) is None
    assert lmcache_version.missing_parts() == []


@pytest.mark.parametrize("release", ["0.5.3", "0.5.4", "0.5.5"])
def test_releases_known_to_be_wrong_are_refused_by_name(release, monkeypatch, folder, caplog):
    monkeypatch.setattr(lmcache_version, "installed", lambda: release)
    with pytest.raises(LinearKVError, match=rf"{release} is known to be wrong.*pip install \"lmcache==0\.5\.6\""):
        open_pages(folder, SECRET, memory_bytes=1 << 20, disk_bytes=None, backend="lmcache")
    store = open_pages(folder, SECRET, memory_bytes=1 << 20, disk_bytes=None)
    assert isinstance(store, TieredStore)
    assert f"LMCache {release} is known to be wrong" in caplog.text
    store.close()


def test_releases_that_were_not_tested_are_refused(monkeypatch, folder):
    monkeypatch.setattr(lmcache_version, "installed", lambda: "0.6.0")
    with pytest.raises(LinearKVError, match=r"0\.6\.0 was not tested"):
        open_pages(folder, SECRET, memory_bytes=1 << 20, disk_bytes=None, backend="lmcache")


def test_without_lmcache_pages_are_kept_all_the_same_and_a_remote_tier_is_refused(monkeypatch, folder, caplog):
    monkeypatch.setattr(lmcache_version, "installed", lambda: None)
    store = open_pages(folder, SECRET, memory_bytes=1 << 20, disk_bytes=None)
    assert isinstance(store, TieredStore)
    assert not caplog.records
    store.close()
    with pytest.raises(LinearKVError, match="LMCache is not installed"):
        open_pages(folder, SECRET, memory_bytes=1 << 20, disk_bytes=None, remote="redis://localhost:1")


def test_nothing_of_lmcache_is_imported_to_ask_for_its_release():
    code = "import sys, linearkv.cache.lmcache_version as v; v.installed(); sys.exit('lmcache' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_lmcache_prints_nothing_and_reports_nothing(tmp_path):
    code = f"""
import sys, threading
from linearkv.cache import encode, open_pages
store = open_pages({str(tmp_path)!r}, bytes(32), memory_bytes=1 << 20, disk_bytes=None, backend="lmcache")
import torch
store.put([encode("0" * 64, {{"x": torch.zeros(9)}}, secret=bytes(32))])
store.get(["0" * 64, "1" * 64])
from lmcache.usage_telemetry.identity import is_usage_tracking_enabled
assert not is_usage_tracking_enabled()
assert not [thread for thread in threading.enumerate() if "usage" in thread.name.lower()]
store.close()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


# ---- tiers ----------------------------------------------------------------------------------------------------------


def test_a_page_comes_from_disk_once_and_then_from_memory(folder, opened):
    opened(folder).put([page(1)], bulk=True)
    store = opened(folder)
    first, second = get(store, 1), get(store, 1)
    assert (first.tier, first.bytes_loaded) == ("disk", first.page.nbytes)
    assert (second.tier, second.bytes_loaded) == ("memory", 0)
    assert number_in(first) == number_in(second) == 1
    memory, disk = store.stat()
    assert (memory.hits, memory.misses, memory.pages) == (1, 1, 1)
    assert (disk.hits, disk.bytes_loaded) == (1, first.page.nbytes)


def test_a_page_that_was_put_is_in_memory_and_on_disk_and_bulk_on_disk_alone(folder, opened):
    store = opened(folder)
    store.put([page(1)])
    store.put([page(2)], bulk=True)
    assert store.locate([key_of(1), key_of(2), key_of(3)]) == {
        key_of(1): ("memory", page(1).nbytes),
        key_of(2): ("disk", page(2).nbytes),
    }
    assert store.contains([key_of(1), key_of(2), key_of(3)]) == {key_of(1), key_of(2)}


def test_a_page_stays_in_memory_when_its_first_reader_lets_it_go(folder, opened):
    opened(folder).put([page(1)], bulk=True)
    store = opened(folder)
    for expected in ("disk", "memory", "memory"):
        result = get(store, 1)
        assert result.tier == expected
        del result
        gc.collect()


@pytest.mark.parametrize(("first", "then"), [("lmcache", "files"), ("files", "lmcache")])
def test_either_backend_opens_what_the_other_wrote(folder, first, then):
    with_first = open_pages(folder, SECRET, memory_bytes=1 << 20, disk_bytes=None, backend=first)
    with_first.put([page(number) for number in range(5)])
    with_first.close()
    with_then = open_pages(folder, SECRET, memory_bytes=1 << 20, disk_bytes=None, backend=then)
    assert [number_in(get(with_then, number)) for number in range(5)] == list(range(5))
    with_then.close()


def test_a_prefetched_page_is_read_once_and_told_to_be_from_where_it_came(folder, opened):
    opened(folder).put([page(1), page(2)], bulk=True)
    store = opened(folder)
    store.get([key_of(9)])  # LMCache is there
    for _ in range(2):
        store.prefetch([key_of(1), key_of(2), key_of(3)])
    first = store.get([key_of(1), key_of(2), key_of(3)])
    size = page(1).nbytes
    assert [(first[key_of(n)].tier, first[key_of(n)].bytes_loaded) for n in (1, 2)] == [("disk", size)] * 2
    assert first[key_of(3)] == Miss("absent")
    assert [(get(store, n).tier, get(store, n).bytes_loaded, number_in(get(store, n))) for n in (1, 2)] == [
        ("memory", 0, 1),
        ("memory", 0, 2),
    ]
    assert store.stat()[1].bytes_loaded == 2 * size


def test_prefetched_pages_that_nobody_asks_for_go_first(folder, opened):
    opened(folder).put([page(number) for number in range(8)], bulk=True)
    store = opened(folder, memory_bytes=4 * 24 * KIB)
    for number in (0, 1):
        get(store, number)
    store.prefetch([key_of(2), key_of(3)])
    time.sleep(0.5)  # they are there, and make room for what another question may need
    store.prefetch([key_of(4), key_of(5)])
    wanted = [get(store, number).tier for number in (4, 5)]
    assert wanted == ["disk", "disk"]
    assert sorted(map(key_of, (0, 1, 4, 5))) == sorted(
        key for key, (tier, _) in store.locate(map(key_of, range(8))).items() if tier == "memory"
    )


def test_a_memory_full_of_what_nobody_asked_for_has_room(folder, opened):
    opened(folder).put([page(number) for number in range(8)], bulk=True)
    store = opened(folder, memory_bytes=4 * 24 * KIB)
    store.get([key_of(9)])
    store.prefetch([key_of(number) for number in range(6)])
    time.sleep(0.5)
    assert [number_in(get(store, number)) for number in (7, 6)] == [7, 6]
    assert [get(store, number).tier for number in (7, 6)] == ["memory", "memory"]
    assert [number_in(get(store, number)) for number in range(8)] == list(range(8))


def test_who_is_interrupted_leaves_no_place_taken(folder, opened, monkeypatch):
    opened(folder).put([page(number) for number in range(12)], bulk=True)
    store = opened(folder, memory_bytes=6 * 24 * KIB)
    manager = store._manager()
    wait = manager.wait_prefetch_status

    def interrupted(handle, seconds):
        monkeypatch.setattr(manager, "wait_prefetch_status", wait)
        raise KeyboardInterrupt

    monkeypatch.setattr(manager, "wait_prefetch_status", interrupted)
    with pytest.raises(KeyboardInterrupt):
        store.get([key_of(number) for number in range(6)])
    time.sleep(0.3)
    assert {result.tier for result in store.get([key_of(number) for number in range(6, 12)]).values()} == {"disk"}
    assert {result.tier for result in store.get([key_of(number) for number in range(6, 12)]).values()} == {"memory"}
    assert room_is_told_right(store)
    assert not store._loads


def test_what_is_prefetched_when_a_store_closes_is_no_error(folder, opened, caplog):
    opened(folder).put([page(number) for number in range(8)], bulk=True)
    store = opened(folder)
    store.get([key_of(9)])
    store.prefetch([key_of(number) for number in range(8)])
    store.close()
    store.prefetch([key_of(1)])
    time.sleep(2 * lmcache_store._GRACE_S)
    assert not caplog.records


def test_one_bad_page_is_its_own_trouble(folder, opened):
    opened(folder).put([page(number) for number in range(4)], bulk=True)
    files = FileStore(folder, SECRET, None)
    broken = files.path(key_of(2))
    broken.write_bytes(bytes(broken.stat().st_size))
    files.close()
    store = opened(folder)
    results = store.get([key_of(number) for number in range(5)])
    assert results[key_of(2)].damaged
    assert results[key_of(4)] == Miss("absent")
    assert [number_in(results[key_of(number)]) for number in (0, 1, 3)] == [0, 1, 3]
    assert isinstance(store.put([page(2)])[key_of(2)], Stored)
    assert number_in(get(opened(folder), 2)) == 2, "healed, and durably"


def test_a_file_of_the_right_size_and_one_wrong_bit_is_not_served(folder, opened):
    opened(folder).put([page(1)], bulk=True)
    store = opened(folder)
    path = next(folder.rglob("*.safetensors"))
    data = bytearray(path.read_bytes())
    data[-7] ^= 16
    path.write_bytes(data)
    result = get(store, 1)
    assert result.damaged
    assert "MAC" in result.reason
    assert get(store, 1) == Miss("absent")


# ---- memory ---------------------------------------------------------------------------------------------------------


def test_memory_keeps_what_was_used_last_within_its_budget(folder, opened):
    store = opened(folder, memory_bytes=100 * KIB)  # four pages of 24 KiB, with their headers and in whole blocks
    for number in range(4):
        store.put([page(number)])
    get(store, 0)
    store.put([page(4)])
    tiers = {number: get(opened_tier, number).tier for opened_tier in [store] for number in (0, 4, 2, 3)}
    assert tiers == {0: "memory", 4: "memory", 2: "memory", 3: "memory"}
    assert get(store, 1).tier == "disk"
    assert store.stat()[0].evicted >= 1


def test_many_more_pages_than_fit_are_all_right(folder, opened):
    store = opened(folder, memory_bytes=100 * KIB)
    store.put([page(number) for number in range(40)])
    chance = random.Random(1)
    for _ in range(200):
        numbers = chance.sample(range(40), 6)
        results = store.get([key_of(number) for number in numbers])
        assert [number_in(results[key_of(number)]) for number in numbers] == numbers
        memory = store.stat()[0]
        assert memory.bytes <= memory.budget


def room_is_told_right(store):
    """What the store believes to be taken of the pool is what LMCache says is."""
    with store._lock:
        store._settle(store._manager())
        return store._room.bytes == store._manager().get_l1_usage()[0]


def test_a_full_memory_takes_in_all_pages_of_a_question(folder, opened):
    opened(folder).put([page(number) for number in range(16)], bulk=True)
    store = opened(folder, memory_bytes=10 * 24 * KIB)
    store.get([key_of(number) for number in range(10)])
    wanted = [key_of(number) for number in range(10, 16)]
    assert {result.tier for result in store.get(wanted).values()} == {"disk"}
    assert {result.tier for result in store.get(wanted).values()} == {"memory"}
    assert store.stat()[0].evicted == 6
    assert room_is_told_right(store)


def test_the_room_that_is_taken_is_known_whatever_happens(folder, opened):
    rng = random.Random(3)
    opened(folder).put([page(number, size=rng.choice((3, 20, 50)) * KIB) for number in range(20)], bulk=True)
    store = opened(folder, memory_bytes=200 * KIB)
    looked_at = []
    for _ in range(300):
        numbers = rng.sample(range(22), 4)
        match rng.randrange(6):
            case 0:
                store.put([page(number, size=rng.choice((3, 20, 50)) * KIB) for number in numbers[:2]])
            case 1:
                store.prefetch([key_of(number) for number in numbers])
            case 2:
                store.delete([key_of(numbers[0])])
                store.put([page(numbers[0])], bulk=True)
            case _:
                results = store.get([key_of(number) for number in numbers])
                for number in numbers:
                    assert number > 19 or number_in(results[key_of(number)]) == number
                looked_at = [result.page for result in results.values() if isinstance(result, Hit)]
        assert store.stat()[0].bytes <= 200 * KIB
    del looked_at, results
    gc.collect()
    store.get([key_of(number) for number in range(20)])  # whatever was prefetched is waited for
    time.sleep(0.3)
    assert room_is_told_right(store)
    assert not store._loads


def test_a_page_deleted_while_it_is_loaded_does_not_come_back(folder, opened, monkeypatch):
    opened(folder).put([page(1), page(2)], bulk=True)
    store = opened(folder)
    store.get([key_of(9)])
    arrived = store._arrived

    def deleted_meanwhile(manager, load, asked=True):
        if load.key == key_of(1) and load.wanted:
            assert manager.wait_prefetch_status(load.handle, 20)
            store.delete([key_of(1)])
        return arrived(manager, load, asked)

    monkeypatch.setattr(store, "_arrived", deleted_meanwhile)
    results = store.get([key_of(1), key_of(2)])
    assert (results[key_of(1)], number_in(results[key_of(2)])) == (Miss("absent"), 2)
    monkeypatch.undo()
    assert get(store, 1) == Miss("absent")
    assert store.keys() == [key_of(2)]
    assert room_is_told_right(store)


def test_a_page_larger_than_memory_is_read_past_it(folder, opened):
    store = opened(folder, memory_bytes=64 * KIB)
    assert isinstance(store.put([page(1, size=200 * KIB)])[key_of(1)], Stored)
    assert store.stat()[0].not_kept == 1
    for _ in range(2):
        result = get(store, 1)
        assert (number_in(result), result.tier) == (1, "disk")


def test_a_page_in_use_keeps_its_place(folder, opened):
    store = opened(folder, memory_bytes=100 * KIB)
    store.put([page(number) for number in range(40)])
    tensor = get(store, 7).page.tensors["x"]  # of the page, this alone lives on
    gc.collect()
    for number in range(40):
        get(store, number)
    assert (tensor == 7).all()
    del tensor
    gc.collect()
    for number in range(20, 40):
        get(store, number)
    assert get(store, 7).tier == "disk", "its place was given back"


def test_all_of_memory_in_use_is_no_error(folder, opened):
    store = opened(folder, memory_bytes=100 * KIB)
    store.put([page(number) for number in range(12)])
    held = [get(store, number) for number in range(12)]
    assert [number_in(result) for result in held] == list(range(12))
    assert isinstance(store.put([page(20)])[key_of(20)], Stored)
    assert number_in(get(store, 20)) == 20


def test_a_page_deleted_while_in_use_is_gone_and_its_user_sees_what_it_saw(folder, opened):
    store = opened(folder)
    store.put([page(1)])
    held = get(store, 1)
    assert store.delete([key_of(1)]) == 1
    assert get(store, 1) == Miss("absent")
    assert number_in(held) == 1
    del held
    gc.collect()
    assert get(store, 1) == Miss("absent")
    store.put([page(1)])
    assert number_in(get(store, 1)) == 1


def test_a_page_replaced_by_one_of_another_size_while_it_is_loaded_is_read_anew(folder, opened, monkeypatch):
    """By another process, between the question for its size and the reading."""
    opened(folder).put([page(1)], bulk=True)
    store = opened(folder)
    store.get([key_of(9)])
    files = store._files
    read = files.get

    def replaced_meanwhile(keys, into=None):
        if into is not None:
            monkeypatch.setattr(files, "get", read)
            opened(folder).put([page(1, size=50 * KIB, value=7)], bulk=True)
        return read(keys, into=into)

    monkeypatch.setattr(files, "get", replaced_meanwhile)
    result = get(store, 1)
    assert (number_in(result), result.tier) == (7, "disk")


def test_a_page_replaced_while_in_use_is_new_for_others(folder, opened):
    store = opened(folder)
    store.put([page(1)])
    held = get(store, 1)
    store.put([page(1, value=5)])
    assert number_in(get(store, 1)) == 5
    assert number_in(held) == 1
    del held
    gc.collect()
    assert [number_in(get(store, 1)) for _ in range(3)] == [5, 5, 5]


def test_pages_in_use_outlive_their_store(folder, opened, monkeypatch):
    ended = threading.Event()
    close = lmcache_store._close

    def close_and_tell(manager):
        if manager is its_manager:  # other tests' stores may still be ending
            ended.set()
        close(manager)

    store = opened(folder)
    its_manager = store._manager()
    monkeypatch.setattr(lmcache_store, "_close", close_and_tell)
    store.put([page(number) for number in range(20)])
    held = [get(store, number) for number in range(20)]
    store.close()
    assert not ended.wait(4 * lmcache_store._GRACE_S), "somebody looks at its memory"
    assert [number_in(result) for result in held] == list(range(20))
    del held
    gc.collect()
    assert ended.wait(20), "and it ends when nobody does"


def test_memory_that_cannot_be_had_is_a_store_without_a_memory_tier(folder, opened, monkeypatch, caplog):
    def refuse(*_, **__):
        raise RuntimeError("can't allocate memory")

    monkeypatch.setattr(lmcache_store, "StorageManager", refuse)
    store = opened(folder)
    store.put([page(1)])
    assert [get(store, 1).tier for _ in range(2)] == ["disk", "disk"]
    assert "pages are read from disk" in caplog.text
    assert store.delete([key_of(1)]) == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="with a CUDA device LMCache pins its memory")
def test_memory_is_taken_as_it_is_used(folder, opened):
    def resident():
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    opened(folder)._opened.result()
    before = resident()
    opened(folder, memory_bytes=256 << 20)._opened.result()
    assert resident() - before < 64 << 20


# ---- what LMCache asks our tiers for --------------------------------------------------------------------------------


def test_a_page_given_to_lmcache_by_another_is_written_once_it_is_verified(folder, opened):
    store = opened(folder)
    manager = store._opened.result()
    good, bad = page(1), page(2)
    bad.buffer[-1] ^= 1
    for item in (good, bad):
        name = lmcache_store.object_key(item.key, lmcache_store.salt_of(SECRET))
        place = manager.reserve_write([name], lmcache_store._layout(item.nbytes))[name]
        place.get_tensor(0).copy_(item.buffer)
        manager.finish_write([name])
    deadline = time.monotonic() + 20
    while not store.contains([good.key]) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert number_in(get(opened(folder), 1)) == 1
    assert store.contains([bad.key]) == set()


def test_another_tenants_salt_finds_nothing(folder, opened):
    store = opened(folder)
    store.put([page(1)])
    manager = store._opened.result()
    wanted = page(1)
    name = lmcache_store.object_key(wanted.key, lmcache_store.salt_of(OTHER))
    rows = [lmcache_store.GroupedObjectKeys([name], 0, lmcache_store._layout(wanted.nbytes))]
    handle = manager.submit_prefetch_task(lmcache_store.PrefetchTaskSpec(rows, fetching_policy="full"))
    assert manager.wait_prefetch_status(handle, 20)
    assert not manager.query_prefetch_status(handle).hit_cells[0].test(0)


# ---- a remote tier --------------------------------------------------------------------------------------------------


class Redis:
    """A server of its own on a free port."""

    def __init__(self, folder, password=None):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.password = password
        self._folder = folder
        self.start()

    def start(self):
        command = ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        command += ["--dir", str(self._folder)] + (["--requirepass", self.password] if self.password else [])
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.02)
        raise RuntimeError("redis-server does not start")

    def stop(self):
        self._process.kill()
        self._process.wait()

    @property
    def url(self):
        return f"redis://{f':{self.password}@' if self.password else ''}127.0.0.1:{self.port}"

    def client(self):
        import redis

        return redis.Redis(port=self.port, password=self.password)


@pytest.fixture
def server(tmp_path):
    if shutil.which("redis-server") is None:
        pytest.skip("redis-server is not installed")
    running = Redis(tmp_path)
    yield running
    running.stop()


def test_bulk_pages_reach_the_remote_tier_before_put_returns_and_leave_memory(folder, opened, server):
    store = opened(folder, remote=server.url)
    store.put([page(number) for number in range(60)], bulk=True)  # more than memory holds at a time
    assert server.client().dbsize() == 60
    assert store.stat()[0].pages == 0
    assert store.stat()[-1].tier == "remote"


def test_another_machine_finds_pages_there_and_keeps_them(tmp_path, opened, server):
    opened(tmp_path / "one", remote=server.url).put([page(number) for number in range(3)], bulk=True)
    store = opened(tmp_path / "two", remote=server.url)
    assert store.locate([key_of(1)]) == {key_of(1): ("remote", page(1).nbytes)}
    results = store.get([key_of(0), key_of(1), key_of(2), key_of(3)])
    assert [(results[key_of(n)].tier, number_in(results[key_of(n)])) for n in range(3)] == [
        ("remote", 0),
        ("remote", 1),
        ("remote", 2),
    ]
    assert results[key_of(3)] == Miss("absent")
    assert store.contains([key_of(n) for n in range(4)]) == {key_of(0), key_of(1), key_of(2)}
    assert [get(store, n).tier for n in range(3)] == ["memory"] * 3


@pytest.mark.parametrize(
    "damage",
    [
        lambda value: value[:-9] + bytes([value[-9] ^ 1]) + value[-8:],
        lambda value: bytes(len(value)),
        lambda value: bytes(page(2).buffer.numpy()),
        lambda value: bytes(page(1, secret=OTHER).buffer.numpy()),
        lambda value: value[: len(value) // 2],
        lambda value: value + b"x",
        lambda value: b"hello",
    ],
    ids=["flipped bit", "zeros", "another page", "foreign tenant", "truncated", "extended", "text"],
)
def test_what_comes_from_the_remote_tier_is_verified(tmp_path, opened, server, damage):
    opened(tmp_path / "one", remote=server.url).put([page(1), page(3)], bulk=True)
    client = server.client()
    name = next(name for name in client.scan_iter() if key_of(1).encode() in name)
    client.set(name, damage(client.get(name)))
    store = opened(tmp_path / "two", remote=server.url)
    results = store.get([key_of(1), key_of(3)])
    assert isinstance(results[key_of(1)], Miss)
    assert results[key_of(1)].damaged
    assert number_in(results[key_of(3)]) == 3
    assert not client.exists(name), "it is not asked for again"
    store.put([page(1)], bulk=True)
    assert number_in(get(opened(tmp_path / "three", remote=server.url), 1)) == 1


def test_a_page_is_prefetched_from_the_remote_tier_and_has_a_file_once_it_was_asked_for(tmp_path, opened, server):
    opened(tmp_path / "here", remote=server.url).put([page(1), page(2)], bulk=True)
    there = opened(tmp_path / "there", remote=server.url)
    there.get([key_of(9)])
    there.prefetch([key_of(1), key_of(2)])
    until = time.monotonic() + 20
    while there.stat()[-1].hits < 2 and time.monotonic() < until:
        time.sleep(0.01)
    assert there.contains([key_of(1), key_of(2)]) == set()
    result = get(there, 1)
    assert (result.tier, result.bytes_loaded, number_in(result)) == ("remote", page(1).nbytes, 1)
    assert there.contains([key_of(1), key_of(2)]) == {key_of(1)}
    assert there.stat()[-1].bytes_loaded == 2 * page(1).nbytes


def test_remote_pages_are_read_past_a_memory_that_has_no_room(tmp_path, opened, server):
    opened(tmp_path / "here", remote=server.url).put([page(number) for number in range(12)], bulk=True)
    there = opened(tmp_path / "there", memory_bytes=4 * 24 * KIB, remote=server.url)
    looked_at = list(there.get([key_of(number) for number in range(6)]).values())
    assert [(number_in(result), result.tier) for result in looked_at] == [(n, "remote") for n in range(6)]
    more = there.get([key_of(number) for number in range(6, 12)])
    assert [number_in(more[key_of(number)]) for number in range(6, 12)] == list(range(6, 12))
    assert there.contains(map(key_of, range(12))) == {key_of(number) for number in range(12)}


def test_a_value_of_another_type_is_one_pages_trouble(tmp_path, opened, server):
    opened(tmp_path / "here", remote=server.url).put([page(1), page(2)], bulk=True)
    name = next(name for name in server.client().scan_iter() if key_of(1).encode() in name)
    server.client().delete(name)
    server.client().rpush(name, "not a page")
    there = opened(tmp_path / "there", remote=server.url)
    results = there.get([key_of(1), key_of(2)])
    assert (results[key_of(1)], number_in(results[key_of(2)])) == (Miss("absent"), 2)
    there.put([page(1)], bulk=True)
    assert number_in(get(opened(tmp_path / "third", remote=server.url), 1)) == 1, "and it is healed by the next put"


def test_a_full_server_is_not_a_lost_one(tmp_path, opened, server, caplog):
    store = opened(tmp_path / "here", remote=server.url)
    store.put([page(1)], bulk=True)
    server.client().config_set("maxmemory-policy", "noeviction")
    server.client().config_set("maxmemory", 1)
    assert isinstance(store.put([page(2), page(3)], bulk=True)[key_of(2)], Stored), "on disk"
    assert number_in(get(opened(tmp_path / "there", remote=server.url), 1)) == 1
    assert store.stat()[-1].not_kept == 2
    assert sum("refuses: " in record.message for record in caplog.records) == 1
    assert "is lost" not in caplog.text
    server.client().config_set("maxmemory", 0)
    store.put([page(3)], bulk=True)
    assert number_in(get(opened(tmp_path / "third", remote=server.url), 3)) == 3


def test_the_remote_tier_keeps_a_page_for_days_after_its_last_use(tmp_path, opened, server):
    opened(tmp_path / "here", remote=server.url, remote_days=2).put([page(1)], bulk=True)
    client = server.client()
    (name,) = client.keys()
    assert 0 < client.ttl(name) <= 2 * 86400
    get(opened(tmp_path / "there", remote=server.url, remote_days=5), 1)
    assert 2 * 86400 < client.ttl(name) <= 5 * 86400


def test_a_page_that_is_used_from_disk_or_memory_is_kept_remotely_too(tmp_path, opened, server):
    store = opened(tmp_path / "here", remote=server.url)
    store.put([page(1), page(2)], bulk=True)
    client = server.client()
    for name in client.scan_iter():
        client.expire(name, 100)
    get(store, 1)
    store.touch([key_of(2)])
    until = time.monotonic() + 10
    while min(map(client.ttl, client.scan_iter())) <= 100 and time.monotonic() < until:
        time.sleep(0.01)
    assert min(map(client.ttl, client.scan_iter())) > 100


def test_verifying_keeps_no_page_for_longer_and_says_what_it_could_not_ask(tmp_path, opened, server):
    store = opened(tmp_path / "here", remote=server.url)
    store.put([page(1)], bulk=True)
    client = server.client()
    (name,) = client.scan_iter()
    client.expire(name, 100)
    assert (store.verify().pages, store.verify().unread) == (2, [])
    assert 0 < client.ttl(name) <= 100
    server.stop()
    (unread,) = store.verify().unread
    assert f"127.0.0.1:{server.port} does not answer" in unread


def test_a_question_does_not_wait_for_the_remote_tier_to_take_pages(folder, opened, server, monkeypatch):
    store = opened(folder, memory_bytes=64 * KIB, remote=server.url)
    tier = store._remote()
    taken, going = tier.store, threading.Event()

    def slow(buffers):
        assert going.wait(20)
        return taken(buffers)

    monkeypatch.setattr(tier, "store", slow)
    store.put([page(1, size=200 * KIB)])  # returns, though nothing goes
    assert server.client().dbsize() == 0
    going.set()
    until = time.monotonic() + 10
    while server.client().dbsize() < 1 and time.monotonic() < until:
        time.sleep(0.01)
    assert server.client().dbsize() == 1


def test_the_remote_tier_is_verified_too(tmp_path, opened, server):
    opened(tmp_path / "other", secret=OTHER, remote=server.url).put([page(1, secret=OTHER)], bulk=True)
    store = opened(tmp_path / "here", remote=server.url)
    store.put([page(number) for number in range(3)], bulk=True)
    client = server.client()
    name = next(client.scan_iter(f"*{key_of(1)}@{store._salt}"))
    client.setrange(name, 9000, b"!")
    told = []
    report = store.verify(lambda done, total: told.append((done, total)))
    assert report.pages == 3 + 2
    ((key, reason),) = report.damaged
    assert (key, reason.startswith("remote: damaged: ")) == (key_of(1), True)
    assert told[-1] == (3, 3)
    assert (client.exists(name), client.dbsize()) == (0, 3)
    assert store.verify().clean


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("redis://host", "host"),
        ("redis://user:pass@host:6380/2?ssl=x", "host:6380"),
        ("unix:///run/redis.sock", "/run/redis.sock"),
        ("redis://user:hunt/er2@host", "an address that is none"),
        ("redis://user:hunt#er2@host", "an address that is none"),
        ("redis://user:hu[nt]er2@host", "an address that is none"),
        ("redis://host:port", "an address that is none"),
    ],
)
def test_of_an_address_only_the_server_is_shown(url, name):
    assert server_name(url) == name


@pytest.mark.parametrize("address", ["localhost:6379", "http://host", "redis://:se/cret@host", "redis://host:port"])
def test_an_address_that_is_none_is_refused_without_saying_it(folder, address):
    with pytest.raises(LinearKVError, match="address is not redis://") as refused:
        open_pages(folder, SECRET, memory_bytes=1 << 20, disk_bytes=None, remote=address)
    assert "cret" not in str(refused.value)


def test_a_damaged_file_is_healed_from_the_remote_tier(folder, opened, server):
    opened(folder, remote=server.url).put([page(1)], bulk=True)
    path = next(folder.rglob("*.safetensors"))
    path.write_bytes(bytes(path.stat().st_size))
    store = opened(folder, remote=server.url)
    result = get(store, 1)
    assert (result.tier, number_in(result)) == ("remote", 1)
    assert number_in(get(opened(folder), 1)) == 1


def test_a_lost_remote_tier_is_a_warning_and_a_miss_and_comes_back(tmp_path, opened, server, caplog, monkeypatch):
    monkeypatch.setattr(lmcache_store, "_REMOTE_RETRY_S", (0.1, 0.2))
    opened(tmp_path / "one", remote=server.url).put([page(1), page(2)], bulk=True)
    store = opened(tmp_path / "two", remote=server.url)
    assert get(store, 1).tier == "remote"
    server.stop()
    caplog.set_level(logging.WARNING)
    assert get(store, 2) == Miss("absent")
    assert get(store, 1).tier == "memory"
    assert isinstance(store.put([page(5), page(6)], bulk=True)[key_of(5)], Stored)
    assert isinstance(store.put([page(7)])[key_of(7)], Stored)
    assert store.delete([key_of(7)]) == 1
    assert sum("is lost" in record.message for record in caplog.records) == 1
    assert not store.stat()[-1].writable
    server.start()
    time.sleep(0.4)
    store.put([page(8)], bulk=True)
    assert server.client().dbsize() == 1
    assert store.stat()[-1].writable


def test_a_remote_tier_that_was_never_there_is_a_warning(folder, opened, server, caplog):
    server.stop()
    store = opened(folder, remote=server.url)
    assert isinstance(store.put([page(1)], bulk=True)[key_of(1)], Stored)
    assert number_in(get(store, 1)) == 1
    assert sum("is lost" in record.message for record in caplog.records) == 1


def test_a_password_is_used_and_never_said(tmp_path, folder, opened, server, caplog):
    guarded = Redis(tmp_path, password="correct-horse")
    try:
        store = opened(folder, remote=guarded.url)
        store.put([page(1)], bulk=True)
        assert guarded.client().dbsize() == 1
        assert "correct-horse" not in repr(store.stat())
        guarded.password = "wrong-horse"
        opened(tmp_path / "two", remote=guarded.url).put([page(1)], bulk=True)
        assert "is lost" in caplog.text
        assert "horse" not in caplog.text
    finally:
        guarded.stop()


def test_tenants_share_a_server_and_nothing_else(tmp_path, opened, server):
    opened(tmp_path / "one", remote=server.url).put([page(1)], bulk=True)
    other = opened(tmp_path / "two", secret=OTHER, remote=server.url)
    assert get(other, 1) == Miss("absent")
    assert other.locate([key_of(1)]) == {}
    other.put([page(1, secret=OTHER, value=9)], bulk=True)
    assert number_in(get(other, 1)) == 9
    assert number_in(get(opened(tmp_path / "three", remote=server.url), 1)) == 1
    other.delete([key_of(1)])
    assert number_in(get(opened(tmp_path / "four", remote=server.url), 1)) == 1


def test_deleted_pages_are_deleted_remotely(folder, opened, server):
    store = opened(folder, remote=server.url)
    store.put([page(1), page(2)], bulk=True)
    store.delete([key_of(1)])
    assert server.client().dbsize() == 1
    assert get(store, 1) == Miss("absent")


def test_a_page_larger_than_memory_is_sent_past_it(folder, opened, server):
    store = opened(folder, memory_bytes=64 * KIB, remote=server.url)
    result = store.put([page(1, size=200 * KIB)], bulk=True)[key_of(1)]
    assert not isinstance(result, NotStored)
    assert server.client().dbsize() == 1
    assert number_in(get(store, 1)) == 1


def test_a_page_that_found_no_room_in_memory_reaches_the_remote_tier(folder, opened, server):
    store = opened(folder, memory_bytes=64 * KIB, remote=server.url)
    store.put([page(1), page(2)])
    looked_at = store.get([key_of(1), key_of(2)])
    store.put([page(3)])
    until = time.monotonic() + 20
    while server.client().dbsize() < 3 and time.monotonic() < until:
        time.sleep(0.01)  # LMCache brings what is in memory there later
    assert server.client().dbsize() == 3
    assert [number_in(result) for result in looked_at.values()] == [1, 2]


def test_another_machine_indexes_without_prefilling_and_answers_alike(tiny_checkpoint, corpus, tmp_path, server):
    settings = Settings(chunk_tokens=256, remote=server.url)
    shared = {"model": tiny_checkpoint("qwen3_5"), "secret": SECRET, "settings": settings, "device": "cpu"}
    with Engine.open(tmp_path / "one", **shared) as engine:
        first = engine.index(corpus)
        answer = engine.query("Who recast the bell?", max_new_tokens=8)
    assert first.prefilled == first.chunks > 0
    with Engine.open(tmp_path / "two", **shared) as engine:
        report = engine.index(corpus)
        again = engine.query("Who recast the bell?", max_new_tokens=8)
        assert engine.verify().clean
    assert (report.prefilled, report.reused) == (0, first.prefilled)
    assert again.text == answer.text
    assert set(again.cache.tiers) <= {"memory", "disk"}


def test_verify_without_a_model_looks_at_the_remote_tier_too(tiny_checkpoint, corpus, tmp_path, server):
    settings = Settings(chunk_tokens=256, remote=server.url)
    shared = {"secret": SECRET, "settings": settings}
    with Engine.open(tmp_path / "store", tiny_checkpoint("qwen3_5"), device="cpu", **shared) as engine:
        chunks = engine.index(corpus).chunks
    client = server.client()
    client.setrange(next(client.scan_iter()), 5000, b"damage")
    report = verify_store(tmp_path / "store", **shared)
    (damaged,) = report.damaged
    assert "remote: damaged" in damaged and not report.clean
    assert report.pages >= 2 * chunks - 1
    assert verify_store(tmp_path / "store", **shared).clean, "what was damaged there is gone"
    server.stop()
    (unread,) = verify_store(tmp_path / "store", **shared).unread
    assert "does not answer" in unread
