"""The file tier: one file per page, atomic, durable, verified, within a byte budget.

Layout under the tier's folder::

    pages/ab/abcdef….safetensors      a page; the subfolder is the first two digits of its key
    pages/ab/….tmp                    a page being written
    quarantine/                       what was found in place of a page and was not that page

What it promises
- A page appears under its name complete and durable, or not at all: it is written to a temporary file in the same
  folder, synchronised, renamed, and the folder is synchronised.
- Every read checks every byte (`linearkv.cache.pages`). What fails goes to quarantine and is a `Miss`; the caller
  computes the page again and the next put heals it.
- Usage never exceeds the budget, and both usage and recency survive a restart: usage is the blocks that the
  files really take; recency is the files' modification time, which we set. One put that replaces more than half of the
  budget exceeds it while it writes, by up to as much again: an old page is there until the new one takes its name.
- Any number of processes may read and write one folder. Names change only by atomic rename, and files that vanish
  underneath are no error. With several writers the budget may be passed by the pages being written at that moment.

The budget covers one folder, so one tenant. Quarantine has bounds of its own: a tenth of the budget, at most 1 GiB and
64 objects, oldest out first.
"""

import errno
import heapq
import itertools
import logging
import os
import re
import secrets
import shutil
import stat as stat_module
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import torch
from blake3 import blake3

from linearkv.cache import pages as page_format
from linearkv.cache.base import Hit, Miss, NotStored, Progress, Stored, TierStat, VerifyReport
from linearkv.cache.pages import HEAD_BYTES, MAX_PAGE_BYTES, SECRET_BYTES, Page, PageDamaged, check_key, raw_bytes
from linearkv.errors import StoreReadOnlyError

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

_log = logging.getLogger(__name__)

_SUFFIX = ".safetensors"
_PAGE_NAME = re.compile(r"([0-9a-f]{64})\.safetensors")
_TEMPORARY_NAME = re.compile(r"([0-9a-f]{8})-([0-9]+)-([0-9a-f]{8})-[0-9]+\.tmp")
_SHARD_NAME = re.compile(r"[0-9a-f]{2}")

_BLOCK = 4096
_QUARANTINE_BYTES = 1 << 30
_QUARANTINE_COUNT = 64
_ORPHAN_AGE_S = 3600
# Two changes of a folder within one clock tick leave one time behind, so a folder changed this recently is read again.
_SETTLED_NS = 100_000_000
_TOUCH_BATCH = 256

# A temporary file names its writer, so that another process can tell an unfinished write from an abandoned one.
_HOST = blake3(os.uname().nodename.encode()).hexdigest(length=4)
_RUN = secrets.token_hex(4)
_number = itertools.count()

_FULL = (errno.ENOSPC, errno.EDQUOT)
_READ_ONLY = (errno.EROFS, errno.EACCES, errno.EPERM)


def sync_folder(folder: Path, fsync: Callable[[int], None] = os.fsync) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # file systems that cannot synchronise folders say so with this
            raise
    finally:
        os.close(descriptor)


def make_folder(folder: Path, fsync: Callable[[int], None] = os.fsync) -> None:
    """Make a folder and those missing above it, and make the names of all of them durable.

    Also of those that are there already: whoever made them may have been killed before they were durable.
    """
    folder.mkdir(parents=True, exist_ok=True)
    folder = folder.resolve()
    while not os.path.ismount(folder):  # which never fails, unlike Path.is_mount
        folder = folder.parent
        with suppress(PermissionError):  # who may not read a folder has not made it
            sync_folder(folder, fsync)


class FileStore:
    """A `PageStore` in a folder.

    Opening scans the folder (time proportional to the number of files; no page is read), removes what dead writers
    left, and evicts down to the budget.

    Parameters
    ----------
    folder : Path
        Made if missing. One tenant's folder: all pages are sealed with one secret.
    secret : bytes
        The tenant's 32 bytes.
    budget_bytes : int or None
        Bytes on disk; None is unlimited.
    read_only : bool
        Change nothing on disk: no clean-up, no quarantine, no recency; put answers `NotStored`. A folder that turns out
        not to be writable is treated the same, with one warning, so a store on a read-only disk can be used.
    evict : bool
        Whether pages may go to make room; without, also a full disk costs none.
    threads : int
        Pages read or written at the same time.

    Notes
    -----
    A store has threads, so a forked child cannot use its parent's: open one in the child, or spawn.
    """

    def __init__(
        self,
        folder: Path | str,
        secret: bytes,
        budget_bytes: int | None,
        *,
        read_only: bool = False,
        evict: bool = True,
        threads: int | None = None,
    ) -> None:
        if budget_bytes is not None and budget_bytes < 0:
            raise ValueError(f"A disk budget cannot be negative, got {budget_bytes} bytes. None is unlimited.")
        if len(secret) != SECRET_BYTES:
            raise ValueError(f"A tenant's secret is {SECRET_BYTES} bytes, got {len(secret)}.")
        self.folder = Path(folder)
        self._pages = self.folder / "pages"
        self._quarantine = self.folder / "quarantine"
        self._secret = secret
        self._budget = budget_bytes
        self._read_only = read_only
        self._may_evict = evict
        self._warned = False
        self._lock = threading.RLock()
        self._stat = TierStat("disk", budget=budget_bytes, folder=str(self.folder), writable=not read_only)
        self._sizes: dict[str, int] = {}
        self._used: dict[str, int] = {}  # key -> ns, the page's modification time
        self._order: list[tuple[int, str]] = []  # heap over _used; an entry whose time is not the page's is stale
        self._settled: dict[str, int] = {}  # shard -> modification time of the folder when it was read
        self._reserved = 0  # bytes promised to pages being written
        self._durable: set[Path] = set()  # folders whose names are known to be durable
        self._synced: set[str] = set()  # subfolders of which all names that were there once are durable
        self._last_time = 0
        self._touched: dict[str, int] = {}
        self._pool = ThreadPoolExecutor(threads or min(8, os.cpu_count() or 1), thread_name_prefix="linearkv-pages")

        if not read_only:
            try:
                self._make_folder(self._pages)
                shards = self._shards()
                self._sync_folder(self._pages)
                self._durable.update(shards)
                self._remove_orphans()
            except OSError as error:
                self._refused(error)
        with self._lock:
            self._refresh()
            self._make_room(0)

    # ---- the store's interface ----------------------------------------------------------------------------------

    def put(self, pages: Sequence[Page], *, bulk: bool = False) -> dict[str, Stored | NotStored]:
        """Write pages, durably when this returns. See `PageStore.put`."""
        results: dict[str, Stored | NotStored] = {}
        batch = {page.key: page for page in pages}
        if self._read_only:
            with self._lock:
                self._stat.not_kept += len(batch)
            return {key: NotStored(f"read-only: {self.folder} was opened for reading") for key in batch}

        # Decide first what fits, newest first, so that nothing is written only to be evicted by its own call.
        planned = 0
        for key, page in reversed(batch.items()):
            size = _rounded(page.nbytes)
            if self._budget is not None and planned + size > self._budget:
                results[key] = NotStored(
                    f"over budget: {page.nbytes} bytes; the disk budget is {self._budget} and newer pages of the same "
                    f"call take {planned} of it"
                )
            else:
                planned += size
        chosen = [page for key, page in batch.items() if key not in results]

        self._flush_recency()
        with self._lock:
            self._refresh()
            self._make_room(planned, keep=batch)  # also beside what they replace, which goes when they are there
            self._reserved += planned
            promised = {page.key: _rounded(page.nbytes) for page in chosen}
            # In the order given, whatever order the threads write in.
            times = {page.key: self._now() for page in chosen}
        try:
            written = list(self._map(lambda page: self._write(page, times, promised), chosen))
            # One synchronisation per folder makes all the names in it durable.
            unsafe = dict(self._map(self._sync_shard, {page.key[:2] for page in chosen}))
        finally:
            with self._lock:
                self._reserved -= sum(promised.values())
                promised.clear()
        for page, outcome in zip(chosen, written, strict=True):
            error = unsafe.get(page.key[:2])
            if isinstance(outcome, Stored) and error is not None:
                outcome = NotStored(f"failed: its folder could not be synchronised: {error}")
            results[page.key] = outcome
        with self._lock:
            self._make_room(0, keep=batch)
            for key, result in results.items():
                if isinstance(result, Stored) and key not in self._sizes:
                    results[key] = result = NotStored(
                        f"over budget: evicted at once; the disk budget is {self._budget}"
                    )
                if isinstance(result, Stored):
                    self._stat.bytes_written += result.bytes
                else:
                    self._stat.not_kept += 1
        return results

    def get(self, keys: Sequence[str], into: Mapping[str, torch.Tensor] | None = None) -> dict[str, Hit | Miss]:
        """Read and verify pages, several at a time. See `PageStore.get`.

        `into` has a uint8 CPU tensor `[bytes]`, which nobody else changes, for the page of each key: the page is read
        there. A file of another size is a `Miss`.
        """
        unique = list(dict.fromkeys(check_key(key) for key in keys))
        places = into or {}
        results = dict(zip(unique, self._map(lambda key: self._read(key, places.get(key)), unique), strict=True))
        with self._lock:
            for key, result in results.items():
                if isinstance(result, Hit):
                    self._stat.hits += 1
                    self._stat.bytes_loaded += result.bytes_loaded
                elif result.damaged:
                    self._stat.damaged += 1
                    _log.warning("Page %s… is %s. It will be computed again.", key[:12], result.reason)
                else:
                    self._stat.misses += 1
                    if result.reason != "absent":
                        _log.warning("Page %s… is %s. It will be computed again.", key[:12], result.reason)
        self.touch(key for key, result in results.items() if isinstance(result, Hit))
        return results

    def prefetch(self, keys: Sequence[str]) -> None:
        """Ask the system to read the files ahead, where it takes such hints."""
        if not hasattr(os, "posix_fadvise"):
            return
        for key in keys:
            with suppress(OSError):  # a hint; get will say what is wrong
                descriptor = os.open(self.path(key), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
                try:
                    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_WILLNEED)
                finally:
                    os.close(descriptor)

    def contains(self, keys: Iterable[str]) -> set[str]:
        """Those of `keys` that have a file, durably: whoever wrote it may have been killed before it was."""
        found = {key for key in keys if self.path(key).is_file()}
        if self._read_only:
            return found
        shards = {key[:2] for key in found} - self._synced
        failed = {shard for shard, trouble in self._pool.map(self._sync_shard, shards) if trouble is not None}
        self._synced |= shards - failed
        return {key for key in found if key[:2] not in failed}

    def locate(self, keys: Iterable[str]) -> dict[str, tuple[str, int]]:
        """Tier and bytes of those of `keys` that have a file."""
        found = {}
        for key in keys:
            with suppress(OSError):  # no file; or one that get will explain
                found[key] = "disk", self.path(key).stat().st_size
        return found

    def keys(self) -> list[str]:
        """Keys of all files, also those other processes wrote."""
        with self._lock:
            self._refresh()
            return list(self._sizes)

    def tags(self) -> dict[str, str]:
        """Key -> tag of every page, as its first bytes claim; pages that cannot be read are left out."""
        found = {}
        for key in self.keys():
            with suppress(OSError), self.path(key).open("rb", buffering=0) as file:
                tag = page_format.read_tag(file.read(HEAD_BYTES))
                if tag is not None:
                    found[key] = tag
        return found

    def delete(self, keys: Iterable[str]) -> int:
        """Unlink pages and synchronise their folders.

        Raises
        ------
        StoreReadOnlyError
            A page is there and may not be removed. Whoever asked for its removal has to know.
        """
        keys = list(keys)
        if self._read_only and self.contains(keys):
            raise StoreReadOnlyError(
                f"{self.folder} was opened for reading, nothing can be removed. Open it for writing."
            )
        removed = []
        try:
            for key in keys:
                # What is there may be anything; what is not a file is not a page, and get will move it away.
                with suppress(FileNotFoundError, IsADirectoryError):
                    self.path(key).unlink()
                    removed.append(key)
                with self._lock:
                    self._forget(key)
        except OSError as error:
            raise StoreReadOnlyError(
                f"Page {key[:12]}… in {self.folder} could not be removed ({error.strerror}). "
                f"Make the folder writable for user id {os.geteuid()} and try again."
            ) from error
        finally:
            for shard in {key[:2] for key in removed}:
                self._sync_shard(shard)
        return len(removed)

    def touch(self, keys: Iterable[str]) -> None:
        """Mark pages as used now. Written to disk in batches; what a kill loses is recency, never a page."""
        if not self._stat.writable:
            return
        with self._lock:
            for key in keys:
                self._touched[key] = self._now()
            full = len(self._touched) >= _TOUCH_BATCH
        if full:
            self._flush_recency()

    def stat(self) -> tuple[TierStat, ...]:
        """Counters and fill, counting what other processes wrote or removed."""
        with self._lock:
            self._refresh()
            held = {"pages": len(self._sizes), "quarantined": len(self._quarantined())}
            return (TierStat(**{**vars(self._stat), **held}),)

    def verify(self, progress: Progress | None = None) -> VerifyReport:
        """Read and check every page; move damaged ones to quarantine. Recency is left as it is."""
        report = VerifyReport()
        keys = []
        for path in self._entries():
            match = _PAGE_NAME.fullmatch(path.name)
            if match and match[1][:2] == path.parent.name:
                keys.append(match[1])
            elif not _TEMPORARY_NAME.fullmatch(path.name):
                report.foreign.append(str(path.relative_to(self.folder)))
            elif self._abandoned(path):
                report.orphans.append(str(path.relative_to(self.folder)))
        keys.sort()
        for done, (key, result) in enumerate(zip(keys, self._map(self._check, keys), strict=True), start=1):
            if isinstance(result, int):
                report.pages += 1
                report.bytes += result
            elif result.reason != "absent":  # evicted or deleted meanwhile
                report.damaged.append((key, result.reason))
                with self._lock:
                    self._stat.damaged += result.damaged
            if progress is not None:
                progress(done, len(keys))
        return report

    def close(self) -> None:
        """Write recency down and stop the threads."""
        self._flush_recency()
        self._pool.shutdown()

    def path(self, key: str) -> Path:
        """Where the page of `key` lies or would lie."""
        return self._pages / check_key(key)[:2] / (key + _SUFFIX)

    # ---- reading ------------------------------------------------------------------------------------------------

    def _read(self, key: str, place: torch.Tensor | None = None) -> Hit | Miss:
        """Read one page into memory of our own and check it there, so that nothing can change it afterwards."""
        path = self.path(key)
        found: os.stat_result | None = None
        try:
            # Not through links, and without waiting for the other end of a pipe somebody put there.
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                found = os.fstat(descriptor)
                buffer = self._load(descriptor, found, key, place)
            finally:
                os.close(descriptor)
            page = page_format.decode(buffer, key, self._secret)
        except FileNotFoundError:
            return Miss("absent")
        except PageDamaged as error:
            return self._damaged(path, found, error.reason)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENXIO):
                return self._damaged(path, None, "not a regular file")
            return Miss(f"unreadable: {error.strerror or error}")
        except RuntimeError as error:  # torch's word for memory that cannot be had
            return Miss(f"unreadable: {error}")
        return Hit(page, "disk", page.nbytes)

    def _load(self, descriptor: int, found: os.stat_result, key: str, place: torch.Tensor | None) -> torch.Tensor:
        """The bytes of an open file as uint8 [bytes]; PageDamaged before allocating if it cannot be the page."""
        if not stat_module.S_ISREG(found.st_mode):
            raise PageDamaged("not a regular file")
        if found.st_size > MAX_PAGE_BYTES:
            raise PageDamaged(f"{found.st_size} bytes are too many for a page")
        head = bytearray(min(HEAD_BYTES, found.st_size))
        self._read_into(descriptor, memoryview(head))
        page_format.check_head(head, found.st_size, key)
        if place is not None and place.numel() != found.st_size:
            raise FileNotFoundError(f"a page of {found.st_size} bytes, and no longer one of {place.numel()}")
        buffer = page_format.host_buffer(found.st_size) if place is None else place
        self._read_into(descriptor, raw_bytes(buffer))
        return buffer

    def _read_into(self, descriptor: int, view: memoryview) -> None:
        """Fill `view` from the start of the file; PageDamaged if the file is shorter."""
        done = 0
        while done < len(view):
            got = os.preadv(descriptor, [view[done:]], done)
            if not got:
                raise PageDamaged(f"the file ends at {done} of {len(view)} bytes")
            done += got

    def _check(self, key: str) -> int | Miss:
        """`_read` for `verify`: the page's size instead of the page, so that only pages being checked are in memory."""
        result = self._read(key)
        return result.bytes_loaded if isinstance(result, Hit) else result

    def _damaged(self, path: Path, found: os.stat_result | None, reason: str) -> Miss:
        """Move what lies at `path` to quarantine, unless another process has put a good page there meanwhile."""

        def wrong(now: os.stat_result) -> bool:
            if found is None:
                return not stat_module.S_ISREG(now.st_mode)
            return (now.st_ino, now.st_mtime_ns) == (found.st_ino, found.st_mtime_ns)

        if self._stat.writable:
            try:
                self._set_aside(path, wrong)
            except OSError as error:
                reason += f" (left in place: {error.strerror})"
        return Miss(f"damaged: {reason}")

    # ---- writing ------------------------------------------------------------------------------------------------

    def _write(self, page: Page, times: dict[str, int], promised: dict[str, int]) -> Stored | NotStored:
        """Write one page of a call; on a full disk make room once and try again.

        `times`: key -> time of use; `promised`: key -> bytes reserved for the call's pages that are not written yet.
        """
        try:
            try:
                return self._write_file(page, times[page.key], promised)
            except OSError as error:
                if error.errno not in _FULL:
                    raise
                with self._lock:
                    self._trim_quarantine(0, 0)
                    if self._may_evict:
                        self._evict(_rounded(page.nbytes), times)
                return self._write_file(page, times[page.key], promised)
        except OSError as error:
            words = error.strerror or str(error)
            if error.errno in _FULL:
                return NotStored(f"disk full: {page.nbytes} bytes do not fit into {self.folder} ({words}). Free space.")
            if error.errno in _READ_ONLY:
                self._refused(error)
                return NotStored(f"read-only: {self.folder} is not writable ({words})")
            return NotStored(f"failed: {words}")

    def _write_file(self, page: Page, used: int, promised: dict[str, int]) -> Stored:
        """Temporary file, data, time, synchronise, rename. On any failure nothing is left behind."""
        path = self.path(page.key)
        self._make_folder(path.parent)
        temporary = path.parent / f"{_HOST}-{os.getpid()}-{_RUN}-{next(_number)}.tmp"
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            try:
                self._write_all(descriptor, raw_bytes(page.buffer))
                os.utime(descriptor, ns=(used, used))
                self._fsync(descriptor)
                # Some file systems tell the blocks only later.
                size = max(_on_disk(os.fstat(descriptor)), page.nbytes)
            finally:
                os.close(descriptor)
            with self._lock:  # what lies there and what is known of it change together, for the threads that evict
                try:
                    temporary.replace(path)
                except IsADirectoryError:
                    self._set_aside(path, lambda now: stat_module.S_ISDIR(now.st_mode))
                    temporary.replace(path)
                self._remember(page.key, size, used)
                self._reserved -= promised.pop(page.key, 0)
                self._stat.writable = True
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        return Stored(size)

    def _write_all(self, descriptor: int, view: memoryview) -> None:
        """Write all of `view`; the system may take it in pieces."""
        done = 0
        while done < len(view):
            done += os.write(descriptor, view[done:])

    def _fsync(self, descriptor: int) -> None:
        """Wait until a file or folder is on disk."""
        os.fsync(descriptor)

    def _sync_shard(self, shard: str) -> tuple[str, str | None]:
        """Make the names in a subfolder durable; return it with what went wrong, if anything."""
        try:
            self._sync_folder(self._pages / shard)
        except FileNotFoundError:
            return shard, None  # nothing could be written there
        except OSError as error:
            return shard, error.strerror or str(error)
        return shard, None

    def _sync_folder(self, folder: Path) -> None:
        sync_folder(folder, self._fsync)

    def _make_folder(self, folder: Path) -> None:
        """Make our folder or one inside it, durably; something else of its name inside is moved to quarantine.

        One that another process made is made durable too, once: that process may be killed before it does.
        """
        if folder in self._durable and folder.is_dir():
            return
        if folder == self.folder:
            make_folder(folder, self._fsync)
        else:
            self._make_folder(folder.parent)
            try:
                folder.mkdir(exist_ok=True)
            except FileExistsError:
                self._set_aside(folder, lambda now: not stat_module.S_ISDIR(now.st_mode))
                folder.mkdir(exist_ok=True)
            self._sync_folder(folder.parent)
        self._durable.add(folder)

    def _refused(self, error: OSError) -> None:
        """The system does not let us write: say so once, and keep serving what is there."""
        with self._lock:
            self._stat.writable = False
            first, self._warned = not self._warned, True
        if first:
            _log.warning(
                "%s is not writable (%s): stored states are used, new ones are not kept. "
                "Make the folder writable for user id %d to keep them.",
                self.folder,
                error.strerror,
                os.geteuid(),
            )

    # ---- budget and recency -------------------------------------------------------------------------------------

    def _make_room(self, needed: int, keep: Iterable[str] = ()) -> None:
        """Evict until `needed` more bytes fit the budget beside what is promised to others. Call with the lock."""
        if self._budget is not None:
            over = self._stat.bytes + self._reserved + needed - self._budget
            # Several writers can make the pages to keep exceed the budget by themselves; then they go too.
            if over > 0 and (over := over - self._evict(over, keep)) > 0 and not needed:
                self._evict(over, ())

    def _evict(self, wanted: int, keep: Iterable[str]) -> int:
        """Remove least recently used pages, but none of `keep`, until `wanted` bytes are free; return the bytes freed.

        Call with the lock.
        """
        freed = 0
        kept = []
        keep = set(keep)
        while freed < wanted and self._order and self._stat.writable:
            used, key = heapq.heappop(self._order)
            if self._used.get(key) != used:
                continue
            if key in keep:
                kept.append((used, key))
                continue
            path = self.path(key)
            try:
                found = path.lstat()
                if used < found.st_mtime_ns <= time.time_ns():  # another process used it since
                    self._remember(key, _on_disk(found), found.st_mtime_ns)
                    continue
                # If another process puts the page again just before this, the new one goes: no harm, as any page may be
                # evicted right after it was put, and is then computed again.
                path.unlink()
            except FileNotFoundError:
                freed += self._forget(key)
                continue
            except OSError as error:
                kept.append((used, key))
                self._refused(error)
                break
            freed += self._forget(key)
            self._stat.evicted += 1
        for entry in kept:
            heapq.heappush(self._order, entry)
        return freed

    def _remember(self, key: str, size: int, used: int) -> None:
        """Note a page's size on disk and its time of use. Call with the lock."""
        self._stat.bytes += size - self._sizes.get(key, 0)
        self._sizes[key] = size
        if self._used.get(key) != used:
            self._used[key] = used
            heapq.heappush(self._order, (used, key))
            if len(self._order) > 1024 + 4 * len(self._used):  # mostly stale entries
                self._order = [(used, key) for key, used in self._used.items()]
                heapq.heapify(self._order)

    def _forget(self, key: str) -> int:
        """Note that a page is gone; return the bytes it took. Call with the lock."""
        size = self._sizes.pop(key, 0)
        self._used.pop(key, None)
        self._touched.pop(key, None)
        self._stat.bytes -= size
        return size

    def _now(self) -> int:
        """The time in ns, later at each call, so that order of use is never lost in a coarse clock."""
        with self._lock:
            self._last_time = max(time.time_ns(), self._last_time + 1)
            return self._last_time

    def _flush_recency(self) -> None:
        """Write noted uses to the files' times. Best effort: it only decides what is evicted first."""
        with self._lock:
            touched, self._touched = self._touched, {}
            for key, used in touched.items():
                if key not in self._sizes:
                    continue
                try:
                    os.utime(self.path(key), ns=(used, used), follow_symlinks=False)
                except OSError as error:
                    _log.debug("the use of page %s… could not be noted: %s", key[:12], error)
                    continue
                self._remember(key, self._sizes[key], used)

    def _refresh(self) -> None:
        """Bring usage up to date with the disk, reading only subfolders that changed. Call with the lock."""
        now = time.time_ns()
        seen = set()
        for shard in self._shards():
            seen.add(shard.name)
            try:
                changed = shard.stat().st_mtime_ns
                if self._settled.get(shard.name) == changed:
                    continue
                found = {}
                with os.scandir(shard) as entries:
                    for entry in entries:
                        match = _PAGE_NAME.fullmatch(entry.name)
                        if match and match[1][:2] == shard.name:
                            with suppress(FileNotFoundError):  # evicted by another process since it was listed
                                entry_stat = entry.stat(follow_symlinks=False)
                                if stat_module.S_ISREG(entry_stat.st_mode):
                                    found[match[1]] = entry_stat
            except OSError as error:
                _log.debug("%s could not be listed: %s", shard, error)
                continue
            for key in [key for key in self._sizes if key[:2] == shard.name and key not in found]:
                self._forget(key)
            for key, entry_stat in found.items():
                # A time in the future (a clock set back) counts once as now, or it would keep the page for ever.
                mtime = entry_stat.st_mtime_ns
                used = max(mtime if mtime <= now else 0, self._used.get(key, 0)) or now
                self._remember(key, _on_disk(entry_stat), used)
            if now - changed > _SETTLED_NS:
                self._settled[shard.name] = changed
            else:
                self._settled.pop(shard.name, None)
        for key in [key for key in self._sizes if key[:2] not in seen]:
            self._forget(key)

    def _shards(self) -> list[Path]:
        """The subfolders that may hold pages."""
        try:
            with os.scandir(self._pages) as entries:
                return sorted(
                    Path(entry.path) for entry in entries if _SHARD_NAME.fullmatch(entry.name) and entry.is_dir()
                )
        except OSError as error:
            if error.errno != errno.ENOENT:
                _log.warning("%s cannot be listed: %s. Its pages are not used.", self._pages, error.strerror)
            return []

    # ---- what is not a page -------------------------------------------------------------------------------------

    def _entries(self) -> list[Path]:
        """Everything in pages/ and its subfolders, whatever it is."""
        shards = self._shards()
        found = []
        for folder in (self._pages, *shards):
            with suppress(FileNotFoundError, PermissionError):  # none, or none that we may see
                found += [path for path in folder.iterdir() if path not in shards]
        return found

    def _abandoned(self, path: Path) -> bool:
        """Whether the writer of a temporary file is gone: a dead process of this host, or silent for an hour."""
        match = _TEMPORARY_NAME.fullmatch(path.name)
        if not match:
            return False
        host, process, run = match.groups()
        if host == _HOST:
            if int(process) == os.getpid():
                return run != _RUN
            try:
                os.kill(int(process), 0)
            except (ProcessLookupError, OverflowError):
                return True
            except PermissionError:
                _log.debug("the writer of %s runs as another user", path)
        try:
            return time.time() - path.lstat().st_mtime > _ORPHAN_AGE_S
        except FileNotFoundError:
            return False

    def _remove_orphans(self) -> None:
        for path in self._entries():
            if self._abandoned(path):
                try:
                    path.unlink(missing_ok=True)
                except IsADirectoryError:
                    _log.debug("%s is a folder, and left alone", path)

    def _quarantined(self) -> list[Path]:
        """What is in quarantine, oldest first."""
        try:
            return sorted(self._quarantine.iterdir())
        except OSError:  # none yet, or none that we may see
            return []

    def _set_aside(self, path: Path, wrong: Callable[[os.stat_result], bool]) -> None:
        """Move what lies at `path` to quarantine, within its bounds, if it is `wrong`: it may be healed by now."""
        with self._lock:
            try:
                if not wrong(path.lstat()):
                    return
                self._quarantine.mkdir(exist_ok=True)
                aside = self._quarantine / f"{self._now():020d}-{path.name}"
                path.rename(aside)
                if not wrong(aside.lstat()):
                    # Another process healed it just before the rename, so it goes back; if something newer has the name
                    # by now, that stays.
                    with suppress(FileExistsError):
                        (os.rename if aside.is_dir() else os.link)(aside, path)
                    self._sync_folder(path.parent)
                    aside.unlink(missing_ok=True)
                    return
            except FileNotFoundError:
                _log.debug("%s vanished before it was moved to quarantine", path)
                return
            match = _PAGE_NAME.fullmatch(path.name)
            if match:
                self._forget(match[1])
            budget = _QUARANTINE_BYTES if self._budget is None else min(self._budget // 10, _QUARANTINE_BYTES)
            self._trim_quarantine(budget, _QUARANTINE_COUNT)

    def _trim_quarantine(self, budget: int, count: int) -> None:
        """Remove the oldest objects in quarantine until `count` objects and `budget` bytes are left."""
        total = 0
        for position, path in enumerate(reversed(self._quarantined())):
            with suppress(FileNotFoundError):  # another process trims as well
                total += _tree_size(path)
            if position >= count or total > budget:
                try:
                    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)
                except OSError as error:
                    _log.debug("%s stays in quarantine: %s", path, error)

    def _map(self, function: Callable[[_Item], _Result], items: Collection[_Item]) -> Iterable[_Result]:
        """`map` in the store's threads; in this one where there is nothing to share out."""
        return self._pool.map(function, items) if len(items) > 1 else [function(item) for item in items]


def _rounded(size: int) -> int:
    """What a file of `size` bytes takes on disk, in whole blocks."""
    return size + -size % _BLOCK


def _on_disk(found: os.stat_result) -> int:
    """Bytes a file takes: its blocks, as `du` counts, or its length on file systems that do not tell.

    Not the length alone: a damaged file of terabytes of holes takes nothing, and must not push out good pages.
    """
    return found.st_blocks * 512 or found.st_size


def _tree_size(path: Path) -> int:
    """Bytes of a file, or of all files in a folder."""
    size = _on_disk(path.lstat())
    if path.is_dir() and not path.is_symlink():
        size += sum(_on_disk(entry.lstat()) for entry in path.rglob("*"))
    return size
