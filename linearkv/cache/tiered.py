"""Memory over files: what is used often stays in memory, everything lies on disk."""

import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from linearkv.cache.base import Hit, Miss, NotStored, Progress, Stored, TierStat, VerifyReport
from linearkv.cache.files import FileStore
from linearkv.cache.memory import MemoryStore
from linearkv.cache.pages import Page


class TieredStore:
    """A `PageStore` of a memory tier in front of a file tier.

    `get` looks in memory first, reads the rest from disk and promotes it; `put` writes through. `prefetch` loads into
    memory in the background, where nothing has to go for it but what was prefetched in vain; the first `get` for such a
    key waits for it instead of reading it again, and is told that it came from disk. Memory hits count as use of the
    file too, so what is hot in memory is not the first to be evicted from disk.

    Parameters
    ----------
    memory : MemoryStore
    files : FileStore
        Both are owned from now on: `close` closes them.
    """

    def __init__(self, memory: MemoryStore, files: FileStore) -> None:
        self._memory = memory
        self._files = files
        self._lock = threading.Lock()
        self._on_the_way: dict[str, Future[Hit | Miss]] = {}
        self._unasked: dict[str, Miss | None] = {}
        """What `prefetch` did and nobody asked for yet: None for a page in memory, or why there is none."""
        self._deletions = 0
        """How often pages were deleted. What was read before a deletion is not brought to memory after it."""
        self._pool = ThreadPoolExecutor(2, thread_name_prefix="linearkv-prefetch")

    def put(self, pages: Sequence[Page], *, bulk: bool = False) -> dict[str, Stored | NotStored]:
        """Keep pages in memory, unless `bulk`, and write them to disk; the answers are the disk's.

        A page that could not be stored on disk may still be found in memory until it is evicted from there.
        """
        if not bulk:
            self._memory.put(pages)
        with self._lock:
            for page in pages:
                self._unasked.pop(page.key, None)
        return self._files.put(pages)

    def get(self, keys: Sequence[str]) -> dict[str, Hit | Miss]:
        """Look pages up in memory, then on disk. `Hit.tier` says where each was found."""
        with self._lock:
            coming = {key: self._on_the_way[key] for key in keys if key in self._on_the_way}
            deletions = self._deletions
        hits = {
            key: result
            for key, result in self._memory.get([key for key in keys if key not in coming]).items()
            if isinstance(result, Hit)
        }
        self._files.touch(hits)
        found = self._files.get([key for key in keys if key not in hits and key not in coming])
        with self._lock:
            if deletions == self._deletions:
                self._memory.put([result.page for result in found.values() if isinstance(result, Hit)])
        results: dict[str, Hit | Miss] = hits | found | {key: future.result() for key, future in coming.items()}
        with self._lock:
            for key, result in results.items():
                if key not in self._unasked:
                    continue
                trouble = self._unasked.pop(key)
                if key in hits:
                    results[key] = Hit(hits[key].page, "disk", hits[key].page.nbytes)
                elif trouble is not None and isinstance(result, Miss):
                    results[key] = trouble
        return {key: results[key] for key in keys}

    def prefetch(self, keys: Sequence[str]) -> None:
        """Begin to load pages into memory, as far as that has room to spare; return at once."""
        budget = self._memory.stat()[0].budget or 0
        if not budget:
            self._files.prefetch(keys)
            return
        with self._lock:
            held = self._memory.contains([*keys, *self._unasked])
            self._unasked = {key: why for key, why in self._unasked.items() if why is not None or key in held}
            wanted = [key for key in dict.fromkeys(keys) if key not in held and key not in self._on_the_way]
            coming = sum(size for _, size in self._files.locate(self._on_the_way).values())
            for key, (_, size) in self._files.locate(wanted).items():
                if self._memory.stat()[0].bytes + coming + size > budget:
                    self._memory.delete([key for key, why in self._unasked.items() if why is None])
                if self._memory.stat()[0].bytes + coming + size <= budget:
                    coming += size
                    self._on_the_way[key] = self._pool.submit(self._load, key)

    def contains(self, keys: Iterable[str]) -> set[str]:
        """Those of `keys` that have a file: what is in memory alone would not outlive the process."""
        return self._files.contains(keys)

    def locate(self, keys: Iterable[str]) -> dict[str, tuple[str, int]]:
        """Tier and bytes of those of `keys` that are present: memory before disk."""
        keys = list(keys)
        held = self._memory.locate(keys)
        return held | self._files.locate([key for key in keys if key not in held])

    def keys(self) -> list[str]:
        """Keys in either tier."""
        return list({*self._memory.keys(), *self._files.keys()})

    def tags(self) -> dict[str, str]:
        """Key -> tag of every page in either tier."""
        return self._memory.tags() | self._files.tags()

    def touch(self, keys: Iterable[str]) -> None:
        """Mark pages as used now, in both tiers."""
        keys = list(keys)
        self._memory.touch(keys)
        self._files.touch(keys)

    def delete(self, keys: Iterable[str]) -> int:
        """Remove pages from both tiers; return how many were there."""
        keys = set(keys)
        present = self._memory.contains(keys) | self._files.contains(keys)
        try:
            self._files.delete(keys)
        finally:  # after the files, or what is read in between would stay in memory
            with self._lock:
                self._deletions += 1
                for key in keys:
                    self._on_the_way.pop(key, None)
                    self._unasked.pop(key, None)
                self._memory.delete(keys)
        return len(present)

    def stat(self) -> tuple[TierStat, ...]:
        """Memory, then disk."""
        return self._memory.stat() + self._files.stat()

    def verify(self, progress: Progress | None = None) -> VerifyReport:
        """Read and check every file."""
        return self._files.verify(progress)

    def close(self) -> None:
        """Drop loads that have not begun, then close both tiers."""
        self._pool.shutdown(cancel_futures=True)
        self._files.close()
        self._memory.close()

    def _load(self, key: str) -> Hit | Miss:
        """Bring one page from disk to memory, unless it was deleted meanwhile."""
        with self._lock:
            deletions = self._deletions
        try:
            result = self._files.get([key])[key]
            with self._lock:
                if isinstance(result, Hit) and deletions == self._deletions:
                    self._memory.put([result.page])
                    self._unasked[key] = None
                elif key in self._on_the_way and isinstance(result, Miss) and result.reason != "absent":
                    self._unasked[key] = result
            return result
        finally:
            with self._lock:
                self._on_the_way.pop(key, None)
