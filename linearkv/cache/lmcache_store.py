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
import mmap
import os
import re
import threading
import time
import weakref
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
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

from linearkv.cache.base import Hit, Miss, NotStored, Progress, Stored, TierStat, VerifyReport, server_name
from linearkv.cache.files import FileStore
from linearkv.cache.pages import MAX_PAGE_BYTES, Page, PageDamaged, check_key, decode, host_buffer, raw_bytes, reopen
from linearkv.errors import LinearKVError

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
_LEAVING_S = 0.05
"""How long the room of a page that LMCache still brings to a tier is waited for before another page has to go."""
_REMOTE_TIMEOUT_S = 5.0
_REMOTE_RETRY_S = (1.0, 60.0)
"""A remote that was lost is asked again after the first of these, and then ever more rarely, up to the second."""
_REDIS_VALUE_BYTES = 512 << 20
_KEY = re.compile(r"[0-9a-f]{64}")
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


def _client(url: str) -> Any:
    """The client of a Redis server, which does not connect before it is used."""
    import redis

    try:
        return redis.Redis.from_url(url, socket_timeout=_REMOTE_TIMEOUT_S, socket_connect_timeout=_REMOTE_TIMEOUT_S)
    except ValueError:  # whose words may hold a piece of a password
        raise LinearKVError(
            "the remote tier's address is not redis://[user:password@]host[:port][/database], or rediss://…, with what "
            "is not a letter or digit in the password percent-encoded"
        ) from None


def _layout(size: int) -> MemoryLayoutDesc:
    return MemoryLayoutDesc([torch.Size([size])], [torch.uint8])


def _padded(size: int) -> int:
    """Bytes of the pool that a page of `size` takes."""
    return size + -size % _ALIGN


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
    """A Redis server as an L2 adapter. `params`: `client`; `name`, of the server; `keep_s`; `salt`; `secret`.

    A server that does not answer is a tier without pages: one warning, and it is asked again later. What a server
    refuses, as one that is full does, is one page's trouble.
    """

    def __init__(self, params: dict[str, Any], **_: Any) -> None:
        import redis

        self._client: redis.Redis = params["client"]
        self._server: str = params["name"]
        self._keep_s: int = params["keep_s"]
        self._secret: bytes = params["secret"]
        self._refusal = redis.ResponseError
        self._broken = (redis.RedisError, OSError)
        self._pause = _REMOTE_RETRY_S[0]
        self._quiet_until = 0.0
        self._lost = False
        self._refused: set[str] = set()
        self._renew_at: dict[str, float] = {}
        self.stat = TierStat("remote", folder=self._server)
        super().__init__(params["salt"], threads=4)

    def sizes(self, keys: Sequence[str]) -> dict[str, int]:
        if not keys:
            return {}

        def ask() -> list[Any]:
            pipeline = self._client.pipeline(transaction=False)
            for key in keys:
                pipeline.strlen(self._name(key))
            return list(pipeline.execute(raise_on_error=False))  # what is no string is one key's trouble

        sizes = self._call(ask, [0] * len(keys))
        return {
            key: size
            for key, size in zip(keys, sizes, strict=True)
            if isinstance(size, int) and 0 < size <= MAX_PAGE_BYTES
        }

    def load(self, into: dict[str, torch.Tensor], renewed: bool = True) -> set[str]:
        loaded = set()
        for key, buffer in into.items():
            value = self._call(partial(self._fetched, key, renewed), None)
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
                    "Page %s… in %s is damaged: %s. It is removed there.", key[:12], self._server, error.reason
                )
                self.remove([key])
                continue
            loaded.add(key)
            self.stat.hits += 1
            self.stat.bytes_loaded += len(value)
        return loaded

    def read(self, key: str, size: int, renewed: bool = True) -> Hit | Miss:
        """One page past the pool; `renewed`: to be kept for longer now."""
        buffer = host_buffer(size)
        if key in self.load({key: buffer}, renewed):
            return Hit(reopen(buffer, key), "remote", size)
        return self.misses.pop(key, Miss("absent"))

    def renew(self, keys: Iterable[str]) -> None:
        """Keep pages for longer; return at once. Asks for each at most once a day."""
        now = time.monotonic()
        due = [key for key in keys if now >= self._renew_at.get(key, 0.0)]
        self._renew_at |= dict.fromkeys(due, now + 86400)

        def ask() -> list[Any]:
            pipeline = self._client.pipeline(transaction=False)
            for key in due:
                pipeline.expire(self._name(key), self._keep_s)
            return list(pipeline.execute(raise_on_error=False))

        if due:
            self._later(lambda: self._call(ask, []))

    def store_later(self, buffers: dict[str, torch.Tensor]) -> None:
        """`store`, in another thread."""
        self._later(lambda: self.store(buffers))

    def _later(self, work: Callable[[], Any]) -> None:
        with suppress(RuntimeError):  # closed meanwhile
            self._threads.submit(work)

    def store(self, buffers: dict[str, torch.Tensor]) -> set[str]:
        kept = set()
        for key, buffer in buffers.items():
            if buffer.numel() > _REDIS_VALUE_BYTES:
                self.stat.not_kept += 1
                continue
            if self._call(partial(self._client.set, self._name(key), raw_bytes(buffer), ex=self._keep_s), False):
                kept.add(key)
                self.stat.bytes_written += buffer.numel()
            else:
                self.stat.not_kept += 1
        return kept

    def verify(self, report: VerifyReport, progress: Progress | None) -> None:
        """Read and check what the server has under this salt, and add that to a report; damaged pages are removed, and
        no page is kept for longer than before."""
        name = self._name("*")
        names = self._call(lambda: [str(n, "utf-8", "replace") for n in self._client.scan_iter(name, count=1000)], [])
        keys = [key for name in names if _KEY.fullmatch(key := name.split("@")[3])]
        for done in range(0, len(keys), 100):
            for key, size in self.sizes(keys[done : done + 100]).items():
                result = self.read(key, size, renewed=False)
                if isinstance(result, Hit):
                    report.pages += 1
                    report.bytes += size
                elif result.damaged:
                    report.damaged.append((key, f"remote: {result.reason}"))
            if progress is not None:
                progress(min(done + 100, len(keys)), len(keys))
        if self._lost:
            report.unread.append(f"the remote tier {self._server} does not answer")

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

    def _fetched(self, key: str, renewed: bool) -> bytes | None:
        """The value of a key; None where there is none, or what is there is no string."""
        pipeline = self._client.pipeline(transaction=False)
        pipeline.get(self._name(key))
        if renewed:
            pipeline.expire(self._name(key), self._keep_s)
        value = pipeline.execute(raise_on_error=False)[0]
        return value if isinstance(value, bytes) else None

    def _call(self, work: Callable[[], Any], lost: Any) -> Any:
        """What the server answers; `lost` where it does not."""
        if time.monotonic() < self._quiet_until:
            return lost
        try:
            answer = work()
        except self._refusal as error:
            kind = type(error).__name__
            if kind not in self._refused:
                self._refused.add(kind)
                _log.warning("The remote tier %s refuses: %s", self._server, error)
            return lost
        except self._broken as error:
            self._quiet_until = time.monotonic() + self._pause
            self._pause = min(2 * self._pause, _REMOTE_RETRY_S[1])
            self.stat.writable = False
            if not self._lost:
                self._lost = True
                _log.warning("The remote tier %s is lost (%s): going on without it.", self._server, error)
            return lost
        if self._lost:
            self._lost = False
            _log.warning("The remote tier %s is back.", self._server)
        self._pause = _REMOTE_RETRY_S[0]
        self.stat.writable = True
        return answer


class _Room:
    """Places in the pool that are taken, or will be in a moment: LMCache takes a place later than it is asked to."""

    def __init__(self) -> None:
        self.bytes = 0
        self._places: dict[str, int] = {}

    def __contains__(self, key: str) -> bool:
        return key in self._places

    def take(self, key: str, size: int) -> None:
        if key not in self._places:
            self._places[key] = _padded(size)
            self.bytes += _padded(size)

    def bytes_of(self, keys: Collection[str]) -> int:
        return sum(self._places.get(key, 0) for key in keys)

    def free(self, key: str) -> None:
        self.bytes -= self._places.pop(key, 0)


@dataclass(eq=False)
class _Load:
    """A page on its way into memory."""

    key: str
    handle: PrefetchHandle
    tier: str = "memory"
    """Where it comes from."""
    wanted: bool = True
    """False once it was deleted or replaced on its way."""


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
    remote_days : int
        How long the server keeps a page after its last use.

    Raises
    ------
    LinearKVError
        `remote` is no such address.
    """

    def __init__(
        self, files: FileStore, secret: bytes, memory_bytes: int, remote: str | None = None, remote_days: int = 30
    ) -> None:
        self._files = files
        self._secret = secret
        self._salt = salt_of(secret)
        most = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 10 * 9  # a pool is one piece, taken at once
        self._budget = min(memory_bytes, most) // _ALIGN * _ALIGN
        self._server = None if remote is None else _client(remote)
        self._remote_name = "" if remote is None else server_name(remote)
        self._remote_s = remote_days * 86400
        self._lock = threading.RLock()
        self._held: OrderedDict[str, Page] = OrderedDict()  # least recently used first
        self._room = _Room()
        self._loads: dict[str, list[_Load]] = {}  # on their way
        self._coming: dict[str, _Load] = {}  # of these, what `prefetch` began
        self._unasked: dict[str, str] = {}  # of `_held`, what `prefetch` brought and nobody asked for yet; its tier
        self._late: list[_Load] = []  # loads that were not waited for to the end
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
        """Write pages to disk, then give them to LMCache, which brings them to the remote tier; what finds no room
        in memory goes there past it, and what is `bulk` before this returns.

        The answers are the disk's.
        """
        results: dict[str, Stored | NotStored] = dict(self._files.put(pages))
        manager, remote = self._manager(), self._remote()
        if manager is None:
            return results
        latest = {page.key: page for page in pages}
        for key in latest:
            self._forget(manager, key)
        until = time.monotonic() + _LEAVING_S
        past = {page.key: page.buffer for page in latest.values() if bulk or not self._keep(manager, page, until)}
        if remote is not None and past:
            remote.store(past) if bulk else remote.store_later(past)
        return results

    def get(self, keys: Sequence[str]) -> dict[str, Hit | Miss]:
        """Look pages up in memory, on disk and remotely. `Hit.tier` says where each was found."""
        unique = list(dict.fromkeys(check_key(key) for key in keys))
        manager = self._manager()
        if manager is None:
            return dict(self._files.get(unique))
        self._await(manager, unique)
        troubles = {key: self._trouble(key) for key in unique}
        results: dict[str, Hit | Miss] = {}
        with self._lock:
            for key in unique:
                page = self._held.get(key)
                if page is not None:
                    self._held.move_to_end(key)
                    tier = self._unasked.pop(key, "memory")
                    results[key] = Hit(page, tier, 0 if tier == "memory" else page.nbytes)
            in_memory = sum(result.tier == "memory" for result in results.values() if isinstance(result, Hit))
            self._stat.hits += in_memory
            self._stat.misses += len(unique) - in_memory
        self._files.touch(results)
        self._renew(results)
        self._keep_files(results)
        missing = [key for key in unique if key not in results]
        results |= self._from_below(manager, missing) if missing else {}
        for key, trouble in troubles.items():
            if trouble is not None and isinstance(results[key], Miss):
                results[key] = trouble
        return {key: results[key] for key in unique}

    def prefetch(self, keys: Sequence[str]) -> None:
        """Begin to bring pages into memory, as far as it has room to spare; return at once.

        The first `get` for one of them waits for it, and is told that it came from the tier it was brought from. Pages
        that nobody asks for until the next call are the first to make room.
        """
        manager = self._manager(wait=False)
        if manager is None:
            return
        self._no_more_awaited(manager)
        with self._lock:
            wanted = [key for key in dict.fromkeys(keys) if key not in self._held and key not in self._coming]
        near = {key: size for key, (_, size) in self._files.locate(wanted).items()}
        self._begin(manager, near, "disk")
        far = [key for key in wanted if key not in near]
        remote = self._remote()
        if remote is not None and far:
            with suppress(RuntimeError):  # closed meanwhile
                self._opener.submit(lambda: self._begin(manager, remote.sizes(far), "remote"))

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
        self._renew(keys)

    def delete(self, keys: Iterable[str]) -> int:
        """Remove pages from every tier; return how many there were in memory or on disk."""
        keys = set(keys)
        manager, remote = self._manager(), self._remote()
        present = self._files.contains(keys)
        # Memory last: what is read from below until then is forgotten with the rest.
        self._files.delete(keys)
        if remote is not None:
            remote.remove(keys)
        if manager is not None:
            self._await(manager, keys)
            with self._lock:
                present |= {key for key in keys if key in self._held}
                for key in keys:
                    self._forget(manager, key)
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
        """Read and check every file, and every page of this tenant in the remote tier."""
        report = self._files.verify(progress)
        remote = self._remote()
        if remote is not None:
            remote.verify(report, progress)
        return report

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
        if self._server is not None:
            remote = {"client": self._server, "name": self._remote_name, "keep_s": self._remote_s}
            plugins.append(_plugin("RemoteTier", params | remote))
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
        if self._server is None or self._manager() is None:
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

    def _submit(self, manager: StorageManager, key: str, size: int, tier: str) -> _Load:
        """Ask for one page, which will be locked: LMCache has one layout, and so one size, for all of a task."""
        row = GroupedObjectKeys([object_key(key, self._salt)], 0, _layout(size))
        with self._lock:
            # Never "prefix", which throws away what is found behind the first that is not.
            task = PrefetchTaskSpec([row], fetching_policy="full")
            load = _Load(key, manager.submit_prefetch_task(task, skip_l2=tier == "memory"), tier)
            self._loads.setdefault(key, []).append(load)
            self._room.take(key, size)
        return load

    def _arrived(self, manager: StorageManager, load: _Load, asked: bool = True) -> Page | None:
        """The page that was on its way, which is held from now on; None where it did not come, or is not wanted any
        more. `asked`: by somebody who gets it now."""
        key = load.key
        if not manager.wait_prefetch_status(load.handle, _PATIENCE_S):
            with self._lock:
                self._late.append(load)
            return None
        with self._lock:
            if not self._ended(manager, load):
                return None
            if not load.wanted:
                self._let_go.append(key)
                return None
            _, objects = manager.unsafe_read([object_key(key, self._salt)])
            # A storage of its own, which ends with the last tensor of the page.
            place = objects[0].get_tensor(0).numpy().view()
            weakref.finalize(place, self._let_go.append, key).atexit = False
            with torch.inference_mode(False):
                page = reopen(torch.from_numpy(place), key)
            if not asked and key not in self._held:
                self._unasked[key] = load.tier
            self._held[key] = page
            self._held.move_to_end(key)
            self._leaving.discard(key)
        return page

    @contextmanager
    def _given_up(self, loads: Sequence[_Load]) -> Iterator[None]:
        """Who is interrupted while waiting for `loads` leaves no place taken for ever."""
        try:
            yield
        except BaseException:
            with self._lock:
                self._late += [load for load in loads if load in self._loads.get(load.key, ())]
            raise

    def _ended(self, manager: StorageManager, load: _Load) -> bool:
        """Whether a load that has ended brought its page, which is then locked. Call with the lock, once."""
        key = load.key
        result = manager.query_prefetch_status(load.handle)
        self._loads[key].remove(load)
        if not self._loads[key]:
            del self._loads[key]
        if result is not None and result.hit_cells[0].test(0):
            self._locks[key] += 1
            return True
        if key not in self._locks and key not in self._leaving and key not in self._loads:
            self._room.free(key)
        return False

    def _settle(self, manager: StorageManager) -> None:
        """Give back the places of pages that nobody looks at any more. Call with the lock."""
        for load in [*self._late]:
            if manager.wait_prefetch_status(load.handle, 0):
                self._late.remove(load)
                if self._ended(manager, load):
                    self._let_go.append(load.key)
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
                if key not in self._locks and key not in self._loads:
                    self._room.free(key)

    # ---- reading ----------------------------------------------------------------------------------------------------

    def _begin(self, manager: StorageManager, sizes: dict[str, int], tier: str) -> None:
        """Have pages of these sizes brought from `tier`, as far as there is room."""
        for key, size in sizes.items():
            with self._lock:
                if self._closed:
                    return
                known = key in self._held or key in self._coming or self._taken(key)
                if not known and self._make_room(manager, key, size, 0.0, guessed=True):
                    self._coming[key] = self._submit(manager, key, size, tier)

    def _await(self, manager: StorageManager, keys: Iterable[str]) -> None:
        """Wait for those of `keys` that `prefetch` began to load."""
        with self._lock:
            coming = [self._coming.pop(key) for key in keys if key in self._coming]
        with self._given_up(coming):
            for load in coming:
                self._arrived(manager, load, asked=False)

    def _no_more_awaited(self, manager: StorageManager) -> None:
        """What `prefetch` brought and nobody asked for becomes the least recently used."""
        with self._lock:
            there = [key for key, load in self._coming.items() if manager.wait_prefetch_status(load.handle, 0)]
            self._await(manager, there)
            for key in there:
                if key in self._held:
                    self._held.move_to_end(key, last=False)

    def _from_below(self, manager: StorageManager, keys: list[str]) -> dict[str, Hit | Miss]:
        """Pages from files, or else from the remote tier: into memory where there is room, and past it where not."""
        located = {key: size for key, (_, size) in self._files.locate(keys).items()}
        results = self._loaded(manager, located, "disk")
        results |= self._files.get([key for key in keys if key not in results])
        remote = self._remote()
        missing = [key for key, result in results.items() if isinstance(result, Miss)]
        if remote is None:
            return results
        sizes = remote.sizes(missing)
        far = self._loaded(manager, sizes, "remote")
        far |= {key: remote.read(key, size) for key, size in sizes.items() if key not in far}
        self._keep_files(far)
        damaged = {key for key in missing if isinstance(result := results[key], Miss) and result.damaged}
        self._renew(key for key, result in results.items() if isinstance(result, Hit))
        return results | {key: r for key, r in far.items() if isinstance(r, Hit) or key not in damaged}

    def _renew(self, keys: Iterable[str]) -> None:
        """Let the remote tier know that pages were used which did not come from there."""
        remote = self._remote()
        if remote is not None:
            remote.renew(keys)

    def _keep_files(self, results: dict[str, Hit | Miss]) -> None:
        """Write files of what came from the remote tier."""
        pages = [result.page for result in results.values() if isinstance(result, Hit) and result.tier == "remote"]
        if pages:  # a put makes room, also for nothing
            self._files.put(pages)

    def _loaded(self, manager: StorageManager, sizes: dict[str, int], tier: str) -> dict[str, Hit | Miss]:
        """What LMCache brings into memory of pages of these sizes; nothing of those that it has no room for."""
        until = time.monotonic() + _LEAVING_S
        loads: list[_Load] = []
        with self._given_up(loads):
            for key, size in sizes.items():
                with self._lock:
                    if not self._taken(key) and self._make_room(manager, key, size, until):
                        loads.append(self._submit(manager, key, size, tier))
            pages = {load.key: self._arrived(manager, load) for load in loads}
        results: dict[str, Hit | Miss] = {}
        for key, page in pages.items():
            trouble = self._trouble(key)
            if page is not None:
                results[key] = Hit(page, tier, page.nbytes)
            elif trouble is not None:
                results[key] = trouble
        return results

    def _trouble(self, key: str) -> Miss | None:
        """What was wrong with a page that a tier found and could not load; told once."""
        told = [tier.misses.pop(key, None) for tier in self._tiers.values()]
        return next((miss for miss in told if miss is not None and miss.reason != "absent"), None)

    # ---- memory -----------------------------------------------------------------------------------------------------

    def _keep(self, manager: StorageManager, page: Page, until: float) -> bool:
        """Copy a page into the pool, from where LMCache brings it to the tiers below; whether there was room."""
        name = object_key(page.key, self._salt)
        files = self._tiers["FileTier"]
        assert isinstance(files, FileTier)
        with self._lock:
            place = None
            if page.key not in self._room and self._make_room(manager, page.key, page.nbytes, until):
                place = manager.reserve_write([name], _layout(page.nbytes)).get(name)
            if place is None:  # larger than the pool; what it replaces is in use; or the room is in pieces
                self._stat.not_kept += 1
                return False
            place.get_tensor(0).copy_(page.buffer)
            files.dealt_with.add(page.key)
            manager.finish_write([name])
            self._arrived(manager, self._submit(manager, page.key, page.nbytes, "memory"))
        return True

    def _make_room(self, manager: StorageManager, key: str, size: int, until: float, guessed: bool = False) -> bool:
        """Evict what was used least recently, until a page has room; False if it cannot have any.

        What is `guessed` takes the place of nothing that was asked for. Until the time `until` room is waited for that
        LMCache is about to give back.
        """
        needed = _padded(size)
        with self._lock:
            self._settle(manager)
            while key not in self._room and self._room.bytes + needed > self._budget:
                leaving = self._room.bytes_of(self._leaving)
                if leaving and self._room.bytes - leaving + needed <= self._budget:
                    if time.monotonic() >= until:
                        return False
                    time.sleep(0.001)
                    self._settle(manager)
                    continue
                self._no_more_awaited(manager)
                goes = next((key for key in self._held if not guessed or key in self._unasked), None)
                if needed > self._budget or goes is None:
                    return False
                self._forget(manager, goes)
                self._stat.evicted += 1
        return True

    def _forget(self, manager: StorageManager, key: str) -> None:
        """Let a page out of memory: at once, or when nobody looks at it any more."""
        with self._lock:
            self._held.pop(key, None)
            self._unasked.pop(key, None)
            self._trouble(key)
            for load in self._loads.get(key, ()):
                load.wanted = False
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
        pool = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            with suppress(OSError):  # a kernel without them; with them, what is loaded first is loaded twice as fast
                pool.madvise(mmap.MADV_HUGEPAGE)
        memory = torch.frombuffer(pool, dtype=torch.uint8)
        return memory, memory.data_ptr()

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
