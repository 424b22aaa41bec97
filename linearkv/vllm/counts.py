"""What the plugin counts."""

import threading

COUNTED = {
    "composed": "Requests served from a composed context.",
    "partly": "Of these, requests of which a chunk was not known, so that all behind it was prefilled.",
    "prefilled": "Requests with chunks of which nothing could be composed, prefilled as any other.",
    "planned": "Requests whose states would have taken longer to load than to compute; prefilled as any other.",
    "refused": "Requests whose boundaries or ids were not those of their prompt; prefilled as any other.",
    "failed": "Requests whose context could not be loaded or composed; prefilled as any other.",
    "recomposed": "Contexts composed again after vLLM had preempted their request.",
    "changed": "Of these, contexts that were not what they had been: states had gone meanwhile.",
    "chunks": "Chunks whose states were composed.",
    "tokens": "Prompt tokens that were not computed.",
    "bytes": "Bytes of states read from below host memory.",
    "seconds": "Seconds of loading and composing, beside the engine.",
    "damaged": "Stored states that failed their check and were set aside.",
    "stored": "States indexed and stored.",
    "not_stored": "States that were indexed and could not be stored.",
}
"""Name of every counter, and what it counts."""


class Counts:
    """Counters of one engine, from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._new: dict[str, float] = {}
        self._all: dict[str, float] = dict.fromkeys(COUNTED, 0)

    def add(self, **amounts: float) -> None:
        with self._lock:
            for name, amount in amounts.items():
                self._all[name] += amount
                self._new[name] = self._new.get(name, 0) + amount

    def all(self) -> dict[str, float]:
        """Since the engine was started."""
        with self._lock:
            return dict(self._all)

    def new(self) -> dict[str, float]:
        """Since this was called last."""
        with self._lock:
            new, self._new = self._new, {}
        return {name: amount for name, amount in new.items() if amount}
