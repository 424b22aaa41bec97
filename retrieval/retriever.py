"""The index of a corpus, as the engine uses it: ``sync`` keeps it in step, ``search`` asks the vectors and the words
and fuses both by reciprocal rank."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from linearkv.errors import LinearKVError, StoreMismatchError

from .chunker import MIN_TARGET, Measure, render
from .decoding import clean
from .embedder import TextEmbedder
from .index import VectorIndex
from .loaders import MAX_BYTES
from .store import LOCK_TIMEOUT, DocumentStore, StoredChunk
from .syncing import Batch, Progress, Sync, SyncReport, embed_missing
from .walking import below, inside, relative_path

_RANK_CONSTANT = 60


@dataclass(frozen=True)
class Hit:
    """A retrieved chunk. ``chunk_id`` is ``path#`` and the start of the content hash: it stays the same while the chunk
    does, wherever in its document the chunk moves.

    score       fused reciprocal ranks; comparable within one search only
    similarity  best cosine of a window of the chunk with the question; None when it was found by its words alone
    position    0-based rank in the result; ``ordinal`` the 0-based place in the document
    also_in     other documents that contain the very same chunk
    """

    chunk_id: str
    path: str
    title: str
    heading: str
    text: str
    rendered: str
    content_hash: str
    score: float
    similarity: float | None
    position: int
    ordinal: int
    line_start: int
    line_end: int
    metadata: dict[str, Any]
    also_in: list[str]


class Retriever:
    """The index in ``folder``.

    measure        counts model tokens of a chunk; needed by ``sync`` only
    tokenizer      identity of what ``measure`` counts with: another one chunks every document again at its next sync
    target_tokens  no chunk is larger
    mode           "rw", or "ro" for a store that is only searched
    lock_timeout   seconds to wait for another writer

    May be used by several threads: while one of them syncs or removes, the others search what is committed. A second
    one that would write is refused like another process.
    """

    def __init__(
        self,
        folder: str | Path,
        embedder: TextEmbedder,
        measure: Measure | None = None,
        target_tokens: int = 512,
        *,
        tokenizer: str = "",
        mode: Literal["rw", "ro"] = "rw",
        lock_timeout: float = LOCK_TIMEOUT,
    ):
        if target_tokens < MIN_TARGET:
            raise ValueError(f"target_tokens is {target_tokens}; use at least {MIN_TARGET}")
        self.store = DocumentStore(folder, mode, lock_timeout)
        self.embedder = embedder
        self.measure = measure
        self.target_tokens = target_tokens
        self.tokenizer = tokenizer
        self._index: VectorIndex | None = None
        # The thread that writes may search as well, and sees another state of the store than the others do.
        self._index_guard = threading.Lock()
        self._generation = -1

    def close(self) -> None:
        self.store.close()

    def __enter__(self) -> Retriever:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def writing(self) -> AbstractContextManager[None]:
        """Hold the writer's lock over several calls of this thread. StoreLockedError names the process that has it."""
        return self.store.writing()

    # ---- search --------------------------------------------------------------------------------------------------

    def search(self, query: str, k: int = 6, *, where: dict[str, Any] | None = None) -> list[Hit]:
        """The k best distinct chunks, best first; fewer if there are fewer, none for a blank question.

        where: what documents must have, by metadata key: a value, or a list of which one must match; a list in the
        metadata matches by any of its entries. The key ``path`` matches a document, or all of a folder or file.
        """
        if k < 1:
            raise ValueError(f"k is {k}; ask for at least one chunk")
        query = clean(query)
        if not query.strip():
            return []
        self._require_embedder()
        question = self.embedder.encode_query(query)
        with self.store.reading(), self._index_guard:
            index = self._fresh_index()
            allowed = index.ids if where is None else index.ids & self._matching(where)
            if not allowed:
                return []
            depth = max(50, 4 * k)
            near = index.search(question, depth, None if where is None else allowed)
            scores: dict[int, float] = {}
            for ranked in ([key for key, _ in near], self.store.lexical(query, depth, allowed)):
                for rank, key in enumerate(ranked, 1):
                    scores[key] = scores.get(key, 0.0) + 1.0 / (_RANK_CONSTANT + rank)
            similarity = dict(near)
            best = sorted(scores, key=lambda key: (-scores[key], -similarity.get(key, -2.0), key))[:k]
            return [self._hit(key, scores[key], similarity.get(key), at, where) for at, key in enumerate(best)]

    def _hit(
        self, key: int, score: float, similarity: float | None, position: int, where: dict[str, Any] | None
    ) -> Hit:
        content_hash, heading, text = self.store.content(key)
        places = self.store.places(key)
        place = next(p for p in places if where is None or _matches(p.path, p.file, p.metadata, where))
        return Hit(
            chunk_id=f"{place.path}#{content_hash[:16]}",
            path=place.path,
            title=place.title,
            heading=heading,
            text=text,
            rendered=render(heading, text),
            content_hash=content_hash,
            score=score,
            similarity=similarity,
            position=position,
            ordinal=place.ordinal,
            line_start=place.line_start,
            line_end=place.line_end,
            metadata=place.metadata,
            also_in=list(dict.fromkeys(p.path for p in places if p.path != place.path)),
        )

    def _matching(self, where: dict[str, Any]) -> set[int]:
        return self.store.contents_of(
            key for key, path, file, metadata in self.store.documents() if _matches(path, file, metadata, where)
        )

    def _fresh_index(self) -> VectorIndex:
        """The vector index as of the store's present generation: what was added or removed since is applied."""
        generation = self.store.generation
        if self._index is None or generation != self._generation:
            self._require_embedder()
            if self._index is None:
                self._index = VectorIndex(self.embedder.dimension)
            live = self.store.live_ids()
            self._index.remove(self._index.ids - live)
            new = sorted(live - self._index.ids)
            for start in range(0, len(new), 4096):
                rows = self.store.vectors(new[start : start + 4096], self.embedder.identity, self.embedder.dimension)
                self._index.add(rows)
            self._generation = generation
        return self._index

    def _require_embedder(self) -> None:
        stored = self.store.get("embedder")
        if stored is not None and stored != self.embedder.identity:
            raise StoreMismatchError(
                f"the index in {self.store.folder} was embedded with {self.store.get('embedder_name')} ({stored[:12]})"
                f" and is opened with {self.embedder.name} ({self.embedder.identity[:12]}): vectors of two models "
                "cannot be compared. Open it with the first, or embed everything again: linearkv index ... --re-embed "
                "(in Python: index(..., reembed=True))"
            )

    # ---- for the engine ------------------------------------------------------------------------------------------

    def iter_chunks(self, batch: int = 256) -> Iterator[StoredChunk]:
        """Every distinct chunk that can be retrieved."""
        return self.store.iter_chunks(batch)

    def live_hashes(self) -> set[str]:
        """Content hashes of all chunks that can be retrieved: whatever else is cached may go."""
        return self.store.live_hashes()

    def embed_missing(self, progress: Callable[[int, int], None] | None = None) -> int:
        """Embed the chunks whose vectors are missing or damaged; returns how many those were. Each batch is durable.

        progress: called with (done, total).
        """
        done = 0
        with self.store.writing():
            self._require_embedder()
            self.store.drop_vectors(self.store.damaged_vectors())
            total = self.store.count_without_vectors(self.embedder.identity)
            for count in embed_missing(self.store, self.embedder):
                done += count
                if progress:
                    progress(done, total)
        with self._index_guard:
            self._index = None  # it may hold what was damaged
        return done

    def remove(self, paths: str | Path | Iterable[str | Path]) -> int:
        """Remove documents, by their paths as shown in hits or as the file system knows them; folders and JSON lines
        files go with all in them. Returns how many documents went. They come back with the next sync if their files are
        still there.

        Raises ValueError for a blank path, before anything is removed.
        """
        given = _listed(paths)
        for path in given:
            # Path("") is Path("."): it stands for the working directory, but rarely says so on purpose.
            if path == Path() or not str(path).strip():
                raise ValueError(f"a path to remove is {path!r}, which is blank: name a document, a file or a folder")
        count = 0
        with self.store.writing():
            for path in map(str, given):
                count += self._remove_shown(path) or self._remove_location(path)
            self.store.remove_orphans()
        return count

    def _remove_shown(self, path: str) -> int:
        # Paths as shown are printable; others may hold bytes that SQLite cannot take.
        return self.store.remove_documents(path.rstrip("/")) if path.isprintable() else 0

    def _remove_location(self, path: str) -> int:
        location = os.path.realpath(Path(path).expanduser())
        for root in self.store.roots():
            if location == root.location:
                return len(self.store.remove_files([key for key, _ in self.store.files_under(root, "")]))
            if inside(location, root.location):
                return self.store.remove_documents(root.shown(relative_path(location, root.location)))
        return 0

    # ---- sync ----------------------------------------------------------------------------------------------------

    def sync(
        self,
        paths: str | Path | Iterable[str | Path],
        *,
        follow_outside: bool = False,
        leave_out: Iterable[str | Path] = (),
        max_bytes: int = MAX_BYTES,
        reembed: bool = False,
        on_batch: Callable[[Batch], None] | None = None,
        progress: Callable[[Progress], None] | None = None,
    ) -> SyncReport:
        """Bring the index in step with files and folders.

        Documents that vanished from these paths are removed; those of other folders stay. What is wrong with a single
        file is in the report. Each batch is durable before ``on_batch`` is called with it.

        leave_out: folders that are not entered, beside the index's own.
        reembed: also accept a store of another embedding model, and embed all of it again.
        Raises StoreLockedError, StoreMismatchError, StoreFullError; what was committed before is kept.
        """
        if self.measure is None:
            raise LinearKVError("this retriever was opened without measure, which chunking needs: pass measure=")
        with self.store.writing():
            if not reembed:
                self._require_embedder()
            return Sync(
                self.store,
                self.embedder,
                self.measure,
                self.target_tokens,
                self.tokenizer,
                follow_outside=follow_outside,
                leave_out=leave_out,
                max_bytes=max_bytes,
                on_batch=on_batch,
                progress=progress,
            ).run(_listed(paths))


def _listed(paths: str | Path | Iterable[str | Path]) -> list[str | Path]:
    return [paths] if isinstance(paths, (str, Path)) else list(paths)


def _matches(path: str, file: str, metadata: dict[str, Any], where: dict[str, Any]) -> bool:
    for key, wanted in where.items():
        choices = wanted if isinstance(wanted, (list, tuple, set)) else [wanted]
        if key == "path":
            prefixes = [str(choice).rstrip("/") for choice in choices]
            if not any(path == prefix or below(file, prefix) for prefix in prefixes):
                return False
        else:
            value = metadata.get(key)
            values = value if isinstance(value, list) else [value]
            if not any(choice in values for choice in choices):
                return False
    return True
