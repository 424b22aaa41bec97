"""Nearest vectors in memory, over FAISS. The document store is the only place where vectors are kept: this index is
filled from it when it is opened, so there is no index file that could be stale, torn or foreign."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import faiss
import numpy as np


class VectorIndex:
    """Exact inner-product search over vectors of length 1. One id may have several vectors; the best one counts."""

    def __init__(self, dimension: int):
        self.dimension = dimension
        self.ids: set[int] = set()
        # IDMap2 over Flat: exact, fast to 10^5 vectors, and able to remove.
        self._index = faiss.IndexIDMap2(faiss.IndexFlatIP(dimension))

    def __len__(self) -> int:
        return len(self.ids)

    def add(self, rows: Iterable[tuple[int, np.ndarray]]) -> None:
        """Add (id, float32 [windows, dimension]) pairs; ids must be new."""
        rows = list(rows)
        if not rows:
            return
        vectors = np.concatenate([vector for _, vector in rows]).astype(np.float32, copy=False)
        ids = np.repeat(np.array([key for key, _ in rows], np.int64), [len(vector) for _, vector in rows])
        self._index.add_with_ids(np.ascontiguousarray(vectors), ids)
        self.ids.update(key for key, _ in rows)

    def remove(self, ids: Collection[int]) -> None:
        """Forget all vectors of these ids."""
        if ids:
            self._index.remove_ids(faiss.IDSelectorBatch(np.fromiter(ids, np.int64, len(ids))))
            self.ids.difference_update(ids)

    def search(self, queries: np.ndarray, k: int, allowed: Collection[int] | None = None) -> list[tuple[int, float]]:
        """The k best ids with their scores, best first, ties by id; fewer when there are fewer.

        queries: float32 [windows of the question, dimension]; an id's score is its best over all of them.
        allowed: search among these ids only.
        """
        total = self._index.ntotal
        parameters = None
        if allowed is not None:
            if not allowed:
                return []
            selector = faiss.IDSelectorBatch(np.fromiter(allowed, np.int64, len(allowed)))
            parameters = faiss.SearchParameters(sel=selector)  # type: ignore[call-arg]
        wanted = min(k, len(self.ids))
        fetch = min(total, 2 * k + 8)
        while wanted > 0:
            scores, found = self._index.search(np.ascontiguousarray(queries, np.float32), fetch, params=parameters)
            best: dict[int, float] = {}
            for key, score in zip(found.ravel().tolist(), scores.ravel().tolist(), strict=True):
                if key >= 0:  # FAISS pads with -1
                    best[key] = max(score, best.get(key, -2.0))
            # Several windows of one text may crowd out other texts: look further.
            if len(best) >= wanted or fetch >= total:
                return sorted(best.items(), key=lambda item: (-item[1], item[0]))[:k]
            fetch = min(total, 4 * fetch)
        return []
