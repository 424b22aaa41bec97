"""States kept where the model computes, ready to compose, least recently used first out."""

import threading
from collections import OrderedDict
from collections.abc import Collection

from linearkv.cache import TierStat
from linearkv.states import ChunkState


class DeviceStates:
    """A tier in front of the page store: states that have been through a page, by the key of it.

    What is kept is not checked again, as in the memory tier. Safe to use from several threads.

    Args:
        budget_bytes: of the device's memory, never exceeded; 0 keeps nothing.
    """

    def __init__(self, budget_bytes: int) -> None:
        self._states: OrderedDict[str, tuple[str, ChunkState]] = OrderedDict()  # key -> tag and state
        self._stat = TierStat("device", budget=budget_bytes)
        self._lock = threading.Lock()

    def get(self, keys: Collection[str]) -> dict[str, ChunkState]:
        """Those of `keys` that are here, now the most recently used."""
        found = {}
        with self._lock:
            for key in keys:
                if key in self._states:
                    self._states.move_to_end(key)
                    found[key] = self._states[key][1]
            self._stat.hits += len(found)
            self._stat.misses += len(keys) - len(found)
        return found

    def contains(self, keys: Collection[str]) -> set[str]:
        with self._lock:
            return {key for key in keys if key in self._states}

    def put(self, key: str, tag: str, state: ChunkState) -> None:
        """Keep a state, unless it alone is over the budget."""
        budget = self._stat.budget or 0
        with self._lock:
            self._drop(key)
            if state.nbytes > budget:
                self._stat.not_kept += 1
                return
            while self._stat.bytes + state.nbytes > budget:
                self._drop(next(iter(self._states)))
                self._stat.evicted += 1
            self._states[key] = (tag, state)
            self._stat.bytes += state.nbytes

    def has_room(self, size: int) -> bool:
        """Whether so many bytes would be kept without another state going for it."""
        with self._lock:
            return self._stat.bytes + size <= (self._stat.budget or 0)

    def keep_only(self, tags: Collection[str]) -> None:
        """Drop every state whose page has none of these tags."""
        with self._lock:
            for key in [key for key, (tag, _) in self._states.items() if tag not in tags]:
                self._drop(key)

    def clear(self) -> None:
        self.keep_only(())

    def stat(self) -> TierStat:
        """Counters and fill."""
        with self._lock:
            return TierStat(**{**vars(self._stat), "pages": len(self._states)})

    def _drop(self, key: str) -> None:
        if key in self._states:
            self._stat.bytes -= self._states.pop(key)[1].nbytes
