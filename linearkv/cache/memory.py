"""The memory tier: pages kept in host memory within a budget, least recently used first out."""

import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence

from linearkv.cache.base import Hit, Miss, NotStored, Progress, Stored, TierStat, VerifyReport
from linearkv.cache.pages import Page, check_key


class MemoryStore:
    """A `PageStore` in host memory.

    Pages are kept as they are, without a copy, and were verified when they came from a disk: a hit costs a dictionary
    look-up. What is counted is the memory a page keeps alive, not what its tensors would need.

    Parameters
    ----------
    budget_bytes : int
        Never exceeded. 0 keeps nothing.
    """

    def __init__(self, budget_bytes: int) -> None:
        if budget_bytes < 0:
            raise ValueError(f"A memory budget cannot be negative, got {budget_bytes} bytes. Give 0 to keep nothing.")
        self._pages: OrderedDict[str, Page] = OrderedDict()  # least recently used first
        self._lock = threading.Lock()
        self._stat = TierStat("memory", budget=budget_bytes)

    def put(self, pages: Sequence[Page], *, bulk: bool = False) -> dict[str, Stored | NotStored]:
        """Keep pages; those that do not fit the budget together are the first of the call."""
        results: dict[str, Stored | NotStored] = {}
        budget = self._stat.budget or 0
        with self._lock:
            for page in pages:
                self._drop(page.key)
                size = _held(page)
                if size > budget:
                    self._stat.not_kept += 1
                    results[page.key] = NotStored(f"over budget: a page of {size} bytes, a memory budget of {budget}")
                    continue
                while self._stat.bytes + size > budget:
                    oldest = next(iter(self._pages))
                    self._drop(oldest)
                    self._stat.evicted += 1
                    if isinstance(results.get(oldest), Stored):
                        results[oldest] = NotStored(f"over budget: the call exceeds the memory budget of {budget}")
                self._pages[page.key] = page
                self._stat.bytes += size
                results[page.key] = Stored(size)
        return results

    def get(self, keys: Sequence[str]) -> dict[str, Hit | Miss]:
        """Look pages up. A hit becomes the most recently used."""
        results: dict[str, Hit | Miss] = {}
        with self._lock:
            for key in keys:
                page = self._pages.get(check_key(key))
                if page is None:
                    self._stat.misses += 1
                    results[key] = Miss("absent")
                else:
                    self._pages.move_to_end(key)
                    self._stat.hits += 1
                    results[key] = Hit(page, "memory", 0)
        return results

    def prefetch(self, keys: Sequence[str]) -> None:
        """Nothing to do: what is here is in memory."""

    def contains(self, keys: Iterable[str]) -> set[str]:
        """Those of `keys` that are present."""
        with self._lock:
            return {key for key in keys if key in self._pages}

    def locate(self, keys: Iterable[str]) -> dict[str, tuple[str, int]]:
        """Tier and bytes of those of `keys` that are present."""
        with self._lock:
            return {key: ("memory", page.nbytes) for key in keys if (page := self._pages.get(key)) is not None}

    def keys(self) -> list[str]:
        """All keys present, least recently used first."""
        with self._lock:
            return list(self._pages)

    def tags(self) -> dict[str, str]:
        """Key -> tag of every page."""
        with self._lock:
            return {key: page.tag for key, page in self._pages.items()}

    def touch(self, keys: Iterable[str]) -> None:
        """Mark pages as used now."""
        with self._lock:
            for key in keys:
                if key in self._pages:
                    self._pages.move_to_end(key)

    def delete(self, keys: Iterable[str]) -> int:
        """Forget pages; return how many were there. Their memory is free once no caller holds them."""
        with self._lock:
            return sum(self._drop(key) for key in keys)

    def stat(self) -> tuple[TierStat, ...]:
        """Counters and fill of this tier."""
        with self._lock:
            return (TierStat(**{**vars(self._stat), "pages": len(self._pages)}),)

    def verify(self, progress: Progress | None = None) -> VerifyReport:
        """An empty report: nothing here is durable, and what came from a disk was verified on the way."""
        return VerifyReport()

    def close(self) -> None:
        """Forget everything."""
        with self._lock:
            self._pages.clear()
            self._stat.bytes = 0

    def _drop(self, key: str) -> bool:
        page = self._pages.pop(key, None)
        if page is not None:
            self._stat.bytes -= _held(page)
        return page is not None


def _held(page: Page) -> int:
    """Bytes of memory that `page` keeps alive: a view of a larger buffer keeps all of that."""
    return page.buffer.untyped_storage().nbytes()
