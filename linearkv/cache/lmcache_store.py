"""Pages in LMCache: its host memory in front of our own tiers, which it reads through a plugin.

LMCache (`StorageManager`, in this process) owns the memory: one pool, pinned where there is a GPU, and the traffic into
it. What lies behind are two tiers of ours, each an L2 adapter plugin:

- `FileTier`, the file store (`linearkv.cache.files`): one way a page is written, one way it is checked. LMCache's own
  disk adapters serve flipped bits as hits, do not repair, forget their capacity at a restart and do not synchronise.
- `RemoteTier`, a Redis server, under the names and with the bytes that LMCache's own Redis adapter uses. That adapter
  never reconnects, and one value of another size than expected spoils its connection for the next; so redis-py speaks.

Whatever is in the pool was sealed here or verified on the way in, so a hit in memory checks nothing. What LMCache does
not do for us: `put` writes files itself, because LMCache stores later and never says when; and where the pool has no
room a page is read past it.

This module is all there is of LMCache in the project; `tests/linearkv/test_lmcache.py` holds it to its contract.
"""

import atexit
import logging
import os
import threading
import time
import weakref
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import torch
from blake3 import blake3
from lmcache.lmcache_native import Bitmap
from lmcache.v1.distributed.api import (
    GroupedObjectKeys,
    MemoryLayoutDesc,
    ObjectKey,
    PrefetchHandle,
    PrefetchTaskSpec,
)
from lmcache.v1.distributed.config import (
    EvictionConfig,
    L1ManagerConfig,
    L1MemoryManagerConfig,
    StorageManagerConfig,
)
from lmcache.v1.distributed.internal_api import L2StoreResult
from lmcache.v1.distributed.l2_adapters.base import AdapterUsage, L2AdapterInterface
from lmcache.v1.distributed.l2_adapters.config import L2AdapterConfigBase, L2AdaptersConfig
from lmcache.v1.distributed.l2_adapters.plugin_l2_adapter import (
    PluginL2AdapterConfig,  # of all that there are, this one
)
from lmcache.v1.distributed.storage_manager import StorageManager
from lmcache.v1.memory_management import MemoryObj
from lmcache.v1.platform import create_event_notifier
from lmcache.v1.platform.torch_ops import mem_alloc

from linearkv.cache.base import Hit, Miss, NotStored, Progress, Stored, TierStat, VerifyReport
from linearkv.cache.files import FileStore
from linearkv.cache.pages import MAX_PAGE_BYTES, Page, PageDamaged, check_key, decode, raw_bytes, reopen

_log = logging.getLogger(__name__)
_Result = TypeVar("_Result")

NATIVE_MODULE = Bitmap.__module__
_MODEL = "linearkv"
"""LMCache's model name in our keys. What model a page is of is in the key itself."""
_ALIGN = 4096
_FOREVER = 10**9
"""Seconds that a read lock holds: until it is given back, and not LMCache's five minutes."""
_PATIENCE_S = 60.0
"""How long a page that is on its way through LMCache is waited for before it is read past it."""
_REMOTE_TIMEOUT_S = 5.0
_REMOTE_RETRY_S = (1.0, 60.0)
"""A remote that was lost is asked again after the first of these, and then ever more rarely, up to the second."""
_REDIS_VALUE_BYTES = 512 << 20
_patching = threading.Lock()

_GRACE_S = 0.5
_exiting = threading.Event()
_ended = threading.Condition()
_ending = 0  # managers that are being closed


@atexit.register
def _exit() -> None:
    """LMCache takes a second or two to close, which a process that ends need not wait for; but one that ends in the
    middle of it is aborted."""
    with _ended:
        _exiting.set()
        while _ending:
            _ended.wait()


def salt_of(secret: bytes) -> str:
    """A tenant's salt in LMCache's keys: 32 hex digits that tell nothing of the secret."""
    return blake3(secret, derive_key_context="LinearKV LMCache salt 1").hexdigest(length=16)


def object_key(key: str, salt: str) -> ObjectKey:
    """LMCache's name for a page."""
    return ObjectKey(bytes.fromhex(check_key(key)), _MODEL, 0, 0, salt)


def _layout(size: int) -> MemoryLayoutDesc:
    return MemoryLayoutDesc([torch.Size([size])], [torch.uint8])


class _Tier(L2AdapterInterface):
    """An L2 adapter over blocking calls, which run in threads. A key of another salt is never found."""

    def __init__(self, salt: str, threads: int) -> None:
        super().__init__()
        self._salt = salt
        self._done: tuple[dict[int, Any], ...] = ({}, {}, {})  # results of stores, look-ups and loads by task
        self._signals = [create_event_notifier() for _ in self._done]
        self._tasks = 0
        self._tasks_lock = threading.Lock()
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="linearkv-tier")
        self.misses: dict[str, Miss] = {}
        """Why pages that were found could not be loaded; whoever asked for them takes the entry out."""

    # ---- what a tier does -------------------------------------------------------------------------------------------

    def sizes(self, keys: Sequence[str]) -> dict[str, int]:
        """Bytes of those of `keys` that are there."""
        raise NotImplementedError

    def load(self, into: dict[str, torch.Tensor]) -> set[str]:
        """Fill buffers with verified pages; return the keys of those that are filled."""
        raise NotImplementedError

    def store(self, buffers: dict[str, torch.Tensor]) -> set[str]:
        """Keep pages; return the keys of those that are kept."""
        raise NotImplementedError

    # ---- what LMCache asks for --------------------------------------------------------------------------------------

    def get_store_event_fd(self) -> int:
        return int(self._signals[0].fileno())

    def get_lookup_and_lock_event_fd(self) -> int:
        return int(self._signals[1].fileno())

    def get_load_event_fd(self) -> int:
        return int(self._signals[2].fileno())

    def submit_store_task(self, keys: list[ObjectKey], objects: list[MemoryObj]) -> int:
        buffers = self._ours(keys, objects)
        size = sum(buffer.numel() for buffer in buffers.values())

        def work() -> L2StoreResult:
            return L2StoreResult(len(self.store(buffers)) == len(keys), size)

        return self._submit(0, work, L2StoreResult(False, 0))

    def pop_completed_store_tasks(self) -> dict[int, L2StoreResult]:
        with self._tasks_lock:
            done = dict(self._done[0])
            self._done[0].clear()
        return done

    def submit_lookup_and_lock_task(
        self, keys: list[ObjectKey], group_layout_descs: dict[int, MemoryLayoutDesc]
    ) -> int:
        wanted = {group: layout.shapes[0].numel() for group, layout in group_layout_descs.items()}

        def work() -> Bitmap:
            found = self.sizes([key.chunk_hash.hex() for key in keys if key.cache_salt == self._salt])
            return _bits(
                [
                    key.cache_salt == self._salt
                    and found.get(key.chunk_hash.hex(), -1) == wanted.get(key.object_group_id)
                    for key in keys
                ]
            )

        return self._submit(1, work, Bitmap(len(keys)))

    def query_lookup_and_lock_result(self, task_id: int) -> Bitmap | None:
        return self._take(1, task_id)

    def submit_unlock(self, keys: list[ObjectKey]) -> None:
        """Nothing was locked: a page that goes between look-up and load is a miss."""

    def submit_load_task(self, keys: list[ObjectKey], objects: list[MemoryObj]) -> int:
        buffers = self._ours(keys, objects)

        def work() -> Bitmap:
            loaded = self.load(buffers)
            return _bits([key.cache_salt == self._salt and key.chunk_hash.hex() in loaded for key in keys])

        return self._submit(2, work, Bitmap(len(keys)))

    def query_load_result(self, task_id: int) -> Bitmap | None:
        return self._take(2, task_id)

    def close(self) -> None:
        """Let what was begun end, and take nothing more."""
        self._threads.shutdown(cancel_futures=True)
        for signal in self._signals:
            signal.close()

    def report_status(self) -> dict[str, Any]:
        return {"is_healthy": True, "type": type(self).__name__}

    def _ours(self, keys: list[ObjectKey], objects: list[MemoryObj]) -> dict[str, torch.Tensor]:
        return {
            key.chunk_hash.hex(): item.get_tensor(0)
            for key, item in zip(keys, objects, strict=True)
            if key.cache_salt == self._salt
        }

    def _submit(self, kind: int, work: Callable[[], _Result], failed: _Result) -> int:
        with self._tasks_lock:
            self._tasks += 1
            task = self._tasks

        def run() -> None:
            result = failed
            try:
                result = work()
            except Exception:
                _log.exception("%s failed; its pages are computed again", type(self).__name__)
            with self._tasks_lock:
                self._done[kind][task] = result
            self._signals[kind].notify()

        self._threads.submit(run)
        return task

    def _take(self, kind: int, task: int) -> Any:
        with self._tasks_lock:
            return self._done[kind].pop(task, None)


def _bits(values: Sequence[bool]) -> Bitmap:
    bits = Bitmap(len(values))
    bits.batched_set([index for index, value in enumerate(values) if value])
    return bits


class FileTier(_Tier):
    """A `FileStore` as an L2 adapter. `params`: `files`, the store; `salt`; `secret`."""

    def __init__(self, params: dict[str, Any], **_: Any) -> None:
        self._files: FileStore = params["files"]
        self._secret: bytes = params["secret"]
        self.dealt_with: set[str] = set()
        """Pages that whoever gives them to LMCache has brought to the files, or could not, already."""
        super().__init__(params["salt"], threads=4)

    def sizes(self, keys: Sequence[str]) -> dict[str, int]:
        return {key: size for key, (_, size) in self._files.locate(keys).items()}

    def load(self, into: dict[str, torch.Tensor]) -> set[str]:
        results = self._files.get(list(into), into=into)
        self.misses |= {key: result for key, result in results.items() if isinstance(result, Miss)}
        return {key for key, result in results.items() if isinstance(result, Hit)}

    def store(self, buffers: dict[str, torch.Tensor]) -> set[str]:
        """Write what is not there, verified first."""
        there = {key for key in buffers if key in self.dealt_with}
        self.dealt_with -= there
        there |= {key for key, size in self.sizes([*buffers]).items() if size == buffers[key].numel()}
        pages = []
        for key, buffer in buffers.items():
            if key not in there:
                try:
                    pages.append(decode(buffer.clone(), key, self._secret))
                except PageDamaged as error:
                    _log.warning("Page %s… in memory is damaged: %s. It is not written.", key[:12], error.reason)
        stored = self._files.put(pages) if pages else {}  # a put makes room, also for nothing
        return there | {key for key, result in stored.items() if isinstance(result, Stored)}

    def delete(self, keys: list[ObjectKey]) -> None:
        self._files.delete([key.chunk_hash.hex() for key in keys if key.cache_salt == self._salt])

    def get_usage(self) -> AdapterUsage:
        stat = self._files.stat()[0]
        return AdapterUsage(stat.bytes, stat.budget or 0, {self._salt: stat.bytes})


class RemoteTier(_Tier):
    """A Redis server as an L2 adapter. `params`: `url`; `salt`; `secret`.

    A server that does not answer is a tier without pages: one warning, and it is asked again later.
    """

    def __init__(self, params: dict[str, Any], **_: Any) -> None:
        import redis

        self._url: str = params["url"]
        self._secret: bytes = params["secret"]
        self._broken = (redis.RedisError, OSError)
        self._client = redis.Redis.from_url(
            self._url, socket_timeout=_REMOTE_TIMEOUT_S, socket_connect_timeout=_REMOTE_TIMEOUT_S
        )
        self._pause = _REMOTE_RETRY_S[0]
        self._quiet_until = 0.0
        self._lost = False
        self._arrival = threading.Condition()
        self._expected: dict[str, bool] = {}  # whether pages that are waited for have been dealt with
        self.stat = TierStat("remote", folder=self._named())
        super().__init__(params["salt"], threads=4)

    def sizes(self, keys: Sequence[str]) -> dict[str, int]:
        if not keys:
            return {}

        def ask() -> list[int]:
            pipeline = self._client.pipeline(transaction=False)
            for key in keys:
                pipeline.strlen(self._name(key))
            return list(pipeline.execute())

        sizes = self._call(ask, [0] * len(keys))
        return {key: size for key, size in zip(keys, sizes, strict=True) if 0 < size <= MAX_PAGE_BYTES}

    def load(self, into: dict[str, torch.Tensor]) -> set[str]:
        loaded = set()
        for key, buffer in into.items():
            value = self._call(partial(self._client.get, self._name(key)), None)
            if value is None or len(value) != buffer.numel():
                self.stat.misses += 1
                continue
            raw_bytes(buffer)[:] = value
            try:
                decode(buffer, key, self._secret)
            except PageDamaged as error:
                self.misses[key] = Miss(f"damaged: {error.reason}")
                self.stat.damaged += 1
                _log.warning(
                    "Page %s… in %s is damaged: %s. It is removed there.", key[:12], self._named(), error.reason
                )
                self.remove([key])
                continue
            loaded.add(key)
            self.stat.hits += 1
            self.stat.bytes_loaded += len(value)
        return loaded

    def store(self, buffers: dict[str, torch.Tensor]) -> set[str]:
        kept = set()
        for key, buffer in buffers.items():
            if buffer.numel() > _REDIS_VALUE_BYTES:
                self.stat.not_kept += 1
                continue
            if self._call(partial(self._client.set, self._name(key), raw_bytes(buffer)), False):
                kept.add(key)
                self.stat.bytes_written += buffer.numel()
            else:
                self.stat.not_kept += 1
        with self._arrival:
            self._expected |= {key: True for key in buffers if key in self._expected}
            self._arrival.notify_all()
        return kept

    def expect(self, key: str) -> None:
        """`wait` will be called for a page that LMCache is about to be given."""
        with self._arrival:
            self._expected[key] = False

    def wait(self, keys: Collection[str]) -> None:
        """Return when LMCache has brought `keys` here, or tried to."""
        until = time.monotonic() + _PATIENCE_S
        with self._arrival:
            while not all(self._expected[key] for key in keys) and time.monotonic() < until:
                self._arrival.wait(0.1)
            for key in keys:
                del self._expected[key]

    def remove(self, keys: Collection[str]) -> None:
        """Remove pages; where the server is lost they stay, and are of no use to anybody else."""
        if keys:
            self._call(lambda: self._client.delete(*map(self._name, keys)), 0)

    def delete(self, keys: list[ObjectKey]) -> None:
        self.remove([key.chunk_hash.hex() for key in keys if key.cache_salt == self._salt])

    def close(self) -> None:
        super().close()
        self._client.close()

    def _name(self, key: str) -> str:
        """As LMCache's own Redis adapter names an object."""
        return f"{_MODEL}@{0:08x}@{0:x}@{key}@{self._salt}"

    def _named(self) -> str:
        """The server, without a password."""
        return self._url.rpartition("@")[2].removeprefix("redis://").removeprefix("rediss://")

    def _call(self, work: Callable[[], Any], lost: Any) -> Any:
        """What the server answers; `lost` where it does not."""
        if time.monotonic() < self._quiet_until:
            return lost
        try:
            answer = work()
        except self._broken as error:
            self._quiet_until = time.monotonic() + self._pause
            self._pause = min(2 * self._pause, _REMOTE_RETRY_S[1])
            self.stat.writable = False
            if not self._lost:
                self._lost = True
                _log.warning("The remote tier %s is lost (%s): going on without it.", self._named(), error)
            return lost
        if self._lost:
            self._lost = False
            _log.warning("The remote tier %s is back.", self._named())
        self._pause = _REMOTE_RETRY_S[0]
        self.stat.writable = True
        return answer


class LMCacheStore:
    """A `PageStore` of LMCache's memory over files, and a remote tier behind them where there is one.

    Memory is LMCache's; which page goes is decided here, least recently used first, when room is needed, since LMCache
    looks once a second. A page in memory is a view of the pool that holds one of LMCache's read locks until its last
    tensor is let go, here and by everybody who got it: nothing is written where somebody looks.

    Parameters
    ----------
    files : FileStore
        Owned from now on: `close` closes it.
    secret : bytes
        The tenant's 32 bytes.
    memory_bytes : int
        Of the pool.
    remote : str or None
        `redis://[user:password@]host:port[/database]`, or `rediss://`.
    """

    def __init__(self, files: FileStore, secret: bytes, memory_bytes: int, remote: str | None = None) -> None:
        self._files = files
        self._secret = secret
        self._salt = salt_of(secret)
        most = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 10 * 9  # a pool is one piece, taken at once
        self._budget = min(memory_bytes, most) // _ALIGN * _ALIGN
        self._url = remote
        self._lock = threading.RLock()
        self._held: OrderedDict[str, Page] = OrderedDict()  # least recently used first
        self._coming: dict[str, PrefetchHandle] = {}  # what `prefetch` began to load
        self._late: list[tuple[str, PrefetchHandle]] = []  # loads that were not waited for to the end
        self._locks: Counter[str] = Counter()  # read locks in LMCache: one for each page that is looked at
        self._let_go: deque[str] = deque()  # pages that nobody looks at any more; a finaliser may run anywhere
        self._leaving: set[str] = set()  # to be taken out of the pool once LMCache itself has done with them
        self._stat = TierStat("memory", budget=self._budget)
        self._tiers: dict[str, _Tier] = {}
        self._closed = False
        self._opener = ThreadPoolExecutor(1, thread_name_prefix="linearkv-lmcache")
        self._opened: Future[StorageManager | None] = self._opener.submit(self._open)

    # ---- the store's interface --------------------------------------------------------------------------------------

    def put(self, pages: Sequence[Page], *, bulk: bool = False) -> dict[str, Stored | NotStored]:
        """Write pages to disk, then give them to LMCache, unless they are `bulk` and there is nothing remote to fill.

        The answers are the disk's. With a remote tier, `bulk` waits until that has the pages, or is lost.
        """
        results: dict[str, Stored | NotStored] = dict(self._files.put(pages))
        manager, remote = self._manager(), self._remote()
        if manager is None:
            return results
        latest = {page.key: page for page in pages}
        for key in latest:
            self._forget(manager, key)
        if not bulk:
            for page in latest.values():
                self._keep(manager, page)
        elif remote is not None:
            sent: list[str] = []
            room = 0
            for page in latest.values():
                if sent and room + page.nbytes > self._budget // 2:  # the rest of the pool is for others
                    self._sent(manager, remote, sent)
                    sent, room = [], 0
                if self._keep(manager, page, waited_for=remote):
                    sent.append(page.key)
                    room += page.nbytes
            self._sent(manager, remote, sent)
        return results

    def get(self, keys: Sequence[str]) -> dict[str, Hit | Miss]:
        """Look pages up in memory, on disk and remotely. `Hit.tier` says where each was found."""
        unique = list(dict.fromkeys(check_key(key) for key in keys))
        manager = self._manager()
        if manager is None:
            return dict(self._files.get(unique))
        self._await(manager, unique)
        results: dict[str, Hit | Miss] = {}
        with self._lock:
            for key in unique:
                page = self._held.get(key)
                if page is not None:
                    self._held.move_to_end(key)
                    results[key] = Hit(page, "memory", 0)
            self._stat.hits += len(results)
            self._stat.misses += len(unique) - len(results)
        self._files.touch(results)
        missing = [key for key in unique if key not in results]
        results |= self._from_below(manager, missing)
        results |= self._files.get([key for key in missing if key not in results])
        return {key: results[key] for key in unique}

    def prefetch(self, keys: Sequence[str]) -> None:
        """Begin to bring pages into memory; return at once. A `get` for one of them waits for it."""
        manager = self._manager(wait=False)
        if manager is None:
            return
        with self._lock:
            wanted = [key for key in keys if key not in self._held and key not in self._coming]
            for key, (_, size) in self._files.locate(wanted).items():
                if not self._taken(key) and self._make_room(manager, size):
                    self._coming[key] = self._submit(manager, key, size)

    def contains(self, keys: Iterable[str]) -> set[str]:
        """Those of `keys` that have a file: what is elsewhere alone may not outlive the process."""
        return self._files.contains(keys)

    def locate(self, keys: Iterable[str]) -> dict[str, tuple[str, int]]:
        """Tier and bytes of those of `keys` that are present: memory before disk before remote."""
        keys = list(keys)
        with self._lock:
            held = {key: ("memory", self._held[key].nbytes) for key in keys if key in self._held}
        held |= self._files.locate([key for key in keys if key not in held])
        remote = self._remote()
        if remote is not None:
            far = remote.sizes([key for key in keys if key not in held])
            held |= {key: ("remote", size) for key, size in far.items()}
        return held

    def keys(self) -> list[str]:
        """Keys in memory or on disk."""
        with self._lock:
            return list({*self._held, *self._files.keys()})

    def tags(self) -> dict[str, str]:
        """Key -> tag of every page in memory or on disk."""
        with self._lock:
            held = {key: page.tag for key, page in self._held.items()}
        return held | self._files.tags()

    def touch(self, keys: Iterable[str]) -> None:
        """Mark pages as used now, in memory and on disk."""
        keys = list(keys)
        with self._lock:
            for key in keys:
                if key in self._held:
                    self._held.move_to_end(key)
        self._files.touch(keys)

    def delete(self, keys: Iterable[str]) -> int:
        """Remove pages from every tier; return how many there were in memory or on disk."""
        keys = set(keys)
        manager = self._manager()
        present = self._files.contains(keys)
        if manager is not None:
            self._await(manager, keys)
            with self._lock:
                present |= {key for key in keys if key in self._held}
                for key in keys:
                    self._forget(manager, key)
        self._files.delete(keys)
        remote = self._remote()
        if remote is not None:
            remote.remove(keys)
        return len(present)

    def stat(self) -> tuple[TierStat, ...]:
        """Memory, disk, and the remote tier if there is one."""
        manager = self._manager(wait=False)
        with self._lock:
            if manager is not None:
                self._settle(manager)
            used = manager.get_l1_usage()[0] if manager is not None else 0
            memory = TierStat(**{**vars(self._stat), "pages": len(self._held), "bytes": used})
        remote = self._remote()
        return (memory, *self._files.stat(), *((remote.stat,) if remote is not None else ()))

    def verify(self, progress: Progress | None = None) -> VerifyReport:
        """Read and check every file."""
        return self._files.verify(progress)

    def close(self) -> None:
        """Close the files; LMCache ends in the background, once nobody looks at a page of its pool."""
        if self._closed:
            return
        self._closed = True
        self._files.close()
        with self._lock:
            self._held.clear()
        threading.Thread(target=self._end, name="linearkv-lmcache-end", daemon=True).start()

    # ---- LMCache ----------------------------------------------------------------------------------------------------

    def _open(self) -> StorageManager | None:
        """The storage manager; None where its memory cannot be had, which is a store without a memory tier."""
        params = {"salt": self._salt, "secret": self._secret}
        plugins = [_plugin("FileTier", params | {"files": self._files})]
        if self._url is not None:
            plugins.append(_plugin("RemoteTier", params | {"url": self._url}))
        memory = L1MemoryManagerConfig(self._budget, use_lazy=False, align_bytes=_ALIGN, shm_name="")
        config = StorageManagerConfig(
            L1ManagerConfig(memory, write_ttl_seconds=_FOREVER, read_ttl_seconds=_FOREVER),
            EvictionConfig("noop"),  # see `_make_room`
            L2AdaptersConfig(plugins),
            prefetch_policy="retain",  # by default what was loaded goes with its first reader
            prefetch_max_in_flight=64,
        )
        try:
            with _untouched_memory():
                manager = StorageManager(config)
        except Exception as error:  # no memory, or whatever else stops it: the pages are on disk
            _log.warning("LMCache does not start with %d bytes (%s): pages are read from disk.", self._budget, error)
            self._stat.writable = False
            return None
        self._tiers = {type(tier).__name__: tier for _, tier in manager.l2_adapters() if isinstance(tier, _Tier)}
        return manager

    def _manager(self, wait: bool = True) -> StorageManager | None:
        if self._closed or not (wait or self._opened.done()):
            return None
        return self._opened.result()

    def _remote(self) -> RemoteTier | None:
        if self._url is None or self._manager() is None:
            return None
        tier = self._tiers["RemoteTier"]
        assert isinstance(tier, RemoteTier)
        return tier

    def _end(self) -> None:
        """Close LMCache. Its memory may still be looked at: until then it stays."""
        manager = self._opened.result()
        self._opener.shutdown()
        while manager is not None and not _exiting.wait(_GRACE_S):
            with self._lock:
                self._settle(manager)
            if not self._locks:
                _close(manager)
                return

    def _submit(self, manager: StorageManager, key: str, size: int, memory_only: bool = False) -> PrefetchHandle:
        """Ask for one page, which will be locked: LMCache has one layout, and so one size, for all of a task."""
        row = GroupedObjectKeys([object_key(key, self._salt)], 0, _layout(size))
        # Never "prefix", which throws away what is found behind the first that is not.
        return manager.submit_prefetch_task(PrefetchTaskSpec([row], fetching_policy="full"), skip_l2=memory_only)

    def _arrived(self, manager: StorageManager, key: str, handle: PrefetchHandle) -> Page | None:
        """The page that a task has brought, which is held from now on; None where it did not."""
        if not manager.wait_prefetch_status(handle, _PATIENCE_S):
            with self._lock:
                self._late.append((key, handle))
            return None
        result = manager.query_prefetch_status(handle)
        if result is None or not result.hit_cells[0].test(0):
            return None
        with self._lock:
            self._locks[key] += 1
            _, objects = manager.unsafe_read([object_key(key, self._salt)])
            # A storage of its own, which ends with the last tensor of the page.
            place = objects[0].get_tensor(0).numpy().view()
            weakref.finalize(place, self._let_go.append, key).atexit = False
            with torch.inference_mode(False):
                page = reopen(torch.from_numpy(place), key)
            self._held[key] = page
            self._held.move_to_end(key)
        return page

    def _settle(self, manager: StorageManager) -> None:
        """Give back the places of pages that nobody looks at any more. Call with the lock."""
        for key, handle in [*self._late]:
            result = manager.query_prefetch_status(handle)
            if result is not None:
                self._late.remove((key, handle))
                if result.hit_cells[0].test(0):
                    self._locks[key] += 1
                    self._let_go.append(key)
        while self._let_go:
            key = self._let_go.popleft()
            manager.finish_read_prefetched([object_key(key, self._salt)])
            self._locks[key] -= 1
            if not self._locks[key]:
                del self._locks[key]
                self._leaving.add(key)
        for key in [*self._leaving]:
            _, locked = manager.delete_l1_keys([object_key(key, self._salt)])
            if not locked:
                self._leaving.discard(key)

    # ---- reading ----------------------------------------------------------------------------------------------------

    def _await(self, manager: StorageManager, keys: Iterable[str]) -> None:
        """Wait for those of `keys` that `prefetch` began to load."""
        with self._lock:
            coming = {key: self._coming.pop(key) for key in keys if key in self._coming}
        for key, handle in coming.items():
            self._arrived(manager, key, handle)

    def _from_below(self, manager: StorageManager, keys: list[str]) -> dict[str, Hit | Miss]:
        """Pages that LMCache brings from a file, or else from the remote tier; and what is wrong with others."""
        if not keys:
            return {}
        results = self._loaded(manager, {key: size for key, (_, size) in self._files.locate(keys).items()}, "disk")
        remote = self._remote()
        rest = [key for key in keys if not isinstance(results.get(key), Hit)]
        if remote is not None and rest:
            far = self._loaded(manager, remote.sizes(rest), "remote")
            self._files.put([result.page for result in far.values() if isinstance(result, Hit)])
            results |= far
        return results

    def _loaded(self, manager: StorageManager, sizes: dict[str, int], tier: str) -> dict[str, Hit | Miss]:
        """What LMCache brings into memory of pages of these sizes; nothing of those that it has no room for."""
        tasks = {}
        for key, size in sizes.items():
            if not self._taken(key) and self._make_room(manager, size):
                tasks[key] = self._submit(manager, key, size)
        results: dict[str, Hit | Miss] = {}
        for key, handle in tasks.items():
            page = self._arrived(manager, key, handle)
            if page is not None:
                results[key] = Hit(page, tier, page.nbytes)
            for below in self._tiers.values():
                miss = below.misses.pop(key, None)
                if page is None and miss is not None and miss.reason != "absent":
                    results[key] = miss
        return results

    # ---- memory -----------------------------------------------------------------------------------------------------

    def _keep(self, manager: StorageManager, page: Page, waited_for: "RemoteTier | None" = None) -> bool:
        """Copy a page into the pool, from where LMCache brings it to the tiers below; whether there was room."""
        name = object_key(page.key, self._salt)
        files = self._tiers["FileTier"]
        assert isinstance(files, FileTier)
        with self._lock:
            place = None
            if self._make_room(manager, page.nbytes) and not self._taken(page.key):
                place = manager.reserve_write([name], _layout(page.nbytes)).get(name)
            if place is None:  # larger than the pool; what it replaces is in use; or the room is in pieces
                self._stat.not_kept += 1
                return False
            place.get_tensor(0).copy_(page.buffer)
            files.dealt_with.add(page.key)
            if waited_for is not None:
                waited_for.expect(page.key)
            manager.finish_write([name])
            self._arrived(manager, page.key, self._submit(manager, page.key, page.nbytes, memory_only=True))
        return True

    def _sent(self, manager: StorageManager, remote: RemoteTier, keys: list[str]) -> None:
        """Wait until the remote tier has bulk pages, which then leave memory again."""
        remote.wait(keys)
        until = time.monotonic() + _PATIENCE_S
        with self._lock:
            for key in keys:
                self._forget(manager, key)
            while self._leaving & set(keys) and time.monotonic() < until:
                time.sleep(0.001)  # LMCache has done with them a moment after they are there
                self._settle(manager)

    def _make_room(self, manager: StorageManager, size: int) -> bool:
        """Evict what was used least recently, until `size` more bytes fit; False if they cannot."""
        needed = size + -size % _ALIGN
        with self._lock:
            self._settle(manager)
            while manager.get_l1_usage()[0] + needed > self._budget:
                if needed > self._budget or not self._held:
                    return False
                self._held.popitem(last=False)
                self._stat.evicted += 1
                self._settle(manager)
        return True

    def _forget(self, manager: StorageManager, key: str) -> None:
        """Let a page out of memory: at once, or when nobody looks at it any more."""
        with self._lock:
            self._held.pop(key, None)
            self._settle(manager)

    def _taken(self, key: str) -> bool:
        """Whether the pool has a place of this name that is not served any more: what was evicted, replaced or deleted
        and is still looked at. Until it is free the page is read past the pool."""
        with self._lock:
            return key not in self._held and (key in self._locks or key in self._leaving)


def _close(manager: StorageManager) -> None:
    """Close LMCache, unless the process ends."""
    global _ending
    with _ended:
        if _exiting.is_set():
            return
        _ending += 1
    try:
        manager.close()
    finally:
        with _ended:
            _ending -= 1
            _ended.notify_all()


@contextmanager
def _untouched_memory() -> Iterator[None]:
    """Without a GPU, let LMCache take its pool without writing to all of it: the system gives pages as they are used.

    As released it fills the pool with zeros, so a budget of 2 GiB takes seconds to open and is resident at once.
    """

    def allocate(size: int) -> tuple[torch.Tensor, int]:
        memory = torch.empty(size + _ALIGN, dtype=torch.uint8)
        begin = -memory.data_ptr() % _ALIGN
        return memory[begin : begin + size], memory.data_ptr() + begin

    with _patching:
        released = mem_alloc._alloc_page_aligned_pinned_view
        try:
            if not torch.cuda.is_available():
                mem_alloc._alloc_page_aligned_pinned_view = allocate
            yield
        finally:
            mem_alloc._alloc_page_aligned_pinned_view = released


def _plugin(name: str, params: dict[str, Any]) -> L2AdapterConfigBase:
    described = {"type": "plugin", "module_path": __name__, "class_name": name, "adapter_params": params}
    config = PluginL2AdapterConfig.from_dict(described)
    config.serde_config = PluginL2AdapterConfig._parse_serde_config(described)  # from_dict leaves these two out
    config.eviction_config = PluginL2AdapterConfig._parse_eviction_config(described)
    return config
