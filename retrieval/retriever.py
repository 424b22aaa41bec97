# Paths are text here, because file names need not be UTF-8 and are compared as they are.
# ruff: noqa: PTH110, PTH111, PTH112, PTH116, PTH119, PTH120
"""Keep an index in step with its corpus, and search it.

``sync`` walks the given paths, reads what changed, chunks and embeds it, and commits batch after batch; an interrupted
run goes on from the last batch. ``search`` asks the vectors and the words and fuses both by reciprocal rank.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from linearkv.errors import LinearKVError, StoreMismatchError

from .chunker import MIN_TARGET, Chunk, Measure, chunk_document, render
from .decoding import clean
from .documents import Document, Note, Skipped
from .embedder import TextEmbedder
from .index import VectorIndex
from .loaders import MAX_BYTES, load
from .store import DocumentStore, Root, StoredChunk
from .walking import Found, Unreadable, shown, walk

# What loading and chunking do to a file; another number reads every file again.
_RECIPE = "v1"
_RANK_CONSTANT = 60
_BATCH_CHUNKS = 64
# A batch is also written when it holds this much text or this many documents (most of them unchanged, perhaps).
_BATCH_CHARACTERS = 1 << 20
_BATCH_DOCUMENTS = 1024
_MAX_FINDINGS = 1000
# A file that changed within this time of being read may change again under the same time stamp.
_SETTLED_NS = 2_000_000_000


@dataclass(frozen=True)
class Batch:
    """One committed batch: content hashes of its chunks, in order, and running totals of this sync."""

    content_hashes: list[str]
    documents: int
    chunks: int


@dataclass(frozen=True)
class Progress:
    """How far a sync is. Files and bytes are those found; ``embedded`` counts chunks that were new."""

    files_done: int
    files: int
    bytes_done: int
    bytes: int
    embedded: int


@dataclass
class SyncReport:
    """What a sync found and did.

    ``documents`` and ``chunks`` are the index's totals afterwards. ``renamed`` documents are not counted as added and
    removed. ``embedded`` is the number of distinct chunks that were embedded.
    """

    documents: int = 0
    chunks: int = 0
    added: int = 0
    unchanged: int = 0
    updated: int = 0
    removed: int = 0
    renamed: int = 0
    embedded: int = 0
    skipped: list[Skipped] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    seconds: float = 0.0


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

    May be used by several threads, one at a time: a search waits while another thread syncs. To search meanwhile, open
    a second one with mode="ro".
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
        lock_timeout: float = 0.0,
    ):
        if target_tokens < MIN_TARGET:
            raise ValueError(f"target_tokens is {target_tokens}; use at least {MIN_TARGET}")
        self.store = DocumentStore(folder, mode, lock_timeout)
        self.embedder = embedder
        self.measure = measure
        self.target_tokens = target_tokens
        self.tokenizer = tokenizer
        self._index: VectorIndex | None = None
        self._generation = -1

    def close(self) -> None:
        self.store.close()

    def __enter__(self) -> Retriever:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def writing(self) -> AbstractContextManager[None]:
        """Hold the writer's lock over several calls. StoreLockedError names the process that has it."""
        return self.store.writing()

    # ---- search --------------------------------------------------------------------------------------------------

    def search(self, query: str, k: int = 6, *, where: dict[str, Any] | None = None) -> list[Hit]:
        """The k best distinct chunks, best first; fewer if there are fewer, none for a blank question.

        where: what documents must have, by metadata key: a value, or a list of which one must match; a list in the
        metadata matches by any of its entries. The key ``path`` matches a document, or all below a folder or file.
        """
        if k < 1:
            raise ValueError(f"k is {k}; ask for at least one chunk")
        query = clean(query)
        if not query.strip():
            return []
        self._require_embedder()
        question = self.embedder.encode_query(query)
        with self.store.reading():
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
        place = next(p for p in places if where is None or _matches(p.path, p.metadata, where))
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
        documents = [key for key, path, metadata in self.store.documents() if _matches(path, metadata, where)]
        return self.store.contents_of(documents)

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
                "(sync(..., reembed=True))"
            )

    # ---- for the engine ------------------------------------------------------------------------------------------

    def iter_chunks(self, batch: int = 256) -> Iterator[StoredChunk]:
        """Every distinct chunk that can be retrieved, with its token ids where they were set for this tokenizer."""
        return self.store.iter_chunks(self.tokenizer, batch)

    def set_token_ids(self, token_ids: dict[str, Sequence[int]]) -> None:
        """Keep the token ids of chunks, by content hash."""
        self.store.set_token_ids(self.tokenizer, token_ids)

    def live_hashes(self) -> set[str]:
        """Content hashes of all chunks that can be retrieved: whatever else is cached may go."""
        return self.store.live_hashes()

    def remove(self, paths: Iterable[str]) -> int:
        """Remove documents, by their paths as shown in hits or as the file system knows them; folders and JSON lines
        files go with all below them. Returns how many documents went. They come back with the next sync if their files
        are still there."""
        count = 0
        with self.store.writing():
            for path in paths:
                count += self.store.remove_documents(path.rstrip("/")) or self._remove_location(path)
            self.store.hide_replaced()
            self.store.remove_orphans()
        return count

    def _remove_location(self, path: str) -> int:
        location = os.path.realpath(os.path.expanduser(path))
        for root in self.store.roots():
            if location == root.location:
                return len(self.store.remove_files([key for key, _ in self.store.files_under(root, "")]))
            if _inside(location, root.location):
                return self.store.remove_documents(root.shown(_relative(location, root.location)))
        return 0

    # ---- sync ----------------------------------------------------------------------------------------------------

    def sync(
        self,
        paths: str | Path | Iterable[str | Path],
        *,
        follow_outside: bool = False,
        max_bytes: int = MAX_BYTES,
        reembed: bool = False,
        on_batch: Callable[[Batch], None] | None = None,
        progress: Callable[[Progress], None] | None = None,
    ) -> SyncReport:
        """Bring the index in step with files and folders.

        Documents that vanished from these paths are removed; those of other folders stay. What is wrong with a single
        file is in the report. Each batch is durable before ``on_batch`` is called with it.

        reembed: also accept a store of another embedding model, and embed all of it again.
        Raises StoreLockedError, StoreMismatchError, StoreFullError; what was committed before is kept.
        """
        given = [paths] if isinstance(paths, (str, Path)) else list(paths)
        if self.measure is None:
            raise LinearKVError("this retriever was opened without measure, which chunking needs: pass measure=")
        with self.store.writing():
            if not reembed:
                self._require_embedder()
            return _Sync(self, follow_outside, max_bytes, on_batch, progress).run(given)


def _matches(path: str, metadata: dict[str, Any], where: dict[str, Any]) -> bool:
    for key, wanted in where.items():
        choices = wanted if isinstance(wanted, (list, tuple, set)) else [wanted]
        if key == "path":
            prefixes = [str(choice).rstrip("/") for choice in choices]
            if not any(_below(path, prefix) for prefix in prefixes):
                return False
        else:
            value = metadata.get(key)
            values = value if isinstance(value, list) else [value]
            if not any(choice in values for choice in choices):
                return False
    return True


@dataclass
class _File:
    """A file of this sync; its id in the store is known once its first batch is written."""

    id: int | None

    @property
    def known_id(self) -> int:
        assert self.id is not None
        return self.id


@dataclass(frozen=True)
class _Scope:
    """A part of the corpus to bring in step: all files of ``root`` at or below ``prefix`` (as shown)."""

    root: Root
    prefix: str
    start: str


class _Sync:
    """One run of ``Retriever.sync``."""

    def __init__(
        self,
        retriever: Retriever,
        follow_outside: bool,
        max_bytes: int,
        on_batch: Callable[[Batch], None] | None,
        progress: Callable[[Progress], None] | None,
    ):
        self.store, self.embedder = retriever.store, retriever.embedder
        self.measure, self.target = retriever.measure, retriever.target_tokens
        self.recipe = f"{_RECIPE}/{self.target}/{retriever.tokenizer}/{max_bytes}"
        self.follow_outside, self.max_bytes = follow_outside, max_bytes
        self.on_batch, self.progress = on_batch, progress
        self.report = SyncReport()
        self.number = int(self.store.get("sync") or 0) + 1
        self.added: Counter[str] = Counter()
        self.gone: Counter[str] = Counter()
        # Roots that lie inside a folder given now: their documents move over to it.
        self.absorbed: list[Root] = []
        # Work of the present batch, in order: documents, unchanged documents, ends of files.
        self.pending: list[Callable[[Any], None]] = []
        self.chunks: dict[str, Chunk] = {}
        self.order: list[str] = []
        self.characters = 0
        self.seen_documents = self.seen_chunks = 0

    def run(self, paths: list[str | Path]) -> SyncReport:
        started = time.monotonic()
        self.store.put(sync=str(self.number))
        self.embed_again()
        scopes = self.scopes(paths)
        found: list[tuple[_Scope, Found]] = []
        kept: list[tuple[Root, str]] = []
        for scope in scopes:
            for item in walk(
                scope.start,
                root=scope.root.location,
                follow_outside=self.follow_outside,
                leave_out=frozenset([os.path.realpath(self.store.folder)]),
            ):
                if isinstance(item, Found):
                    found.append((scope, item))
                else:
                    self.skip(scope.root.shown(item.path), item.reason)
                    if isinstance(item, Unreadable):
                        kept.append((scope.root, item.path))
        total = sum(item.size for _, item in found)
        done = 0
        files: list[_File] = []
        for number, (scope, item) in enumerate(found):
            if self.progress:
                self.progress(Progress(number, len(found), done, total, self.report.embedded))
            files.append(self.file(scope.root, item))
            done += item.size
        self.flush()
        self.remove_vanished(scopes, {file.id for file in files if file.id is not None}, kept)
        self.store.hide_replaced()
        self.store.remove_orphans()
        self.store.drop_empty_roots(scope.root.id for scope in scopes)
        self.finish(scopes)
        if self.progress:
            self.progress(Progress(len(found), len(found), total, total, self.report.embedded))
        self.report.seconds = time.monotonic() - started
        return self.report

    def skip(self, path: str, reason: str) -> None:
        self.report.skipped.append(Skipped(path, reason))

    # ---- which folders --------------------------------------------------------------------------------------------

    def scopes(self, paths: list[str | Path]) -> list[_Scope]:
        """The parts of the corpus that the given paths name, none inside another."""
        scopes: list[_Scope] = []
        for path in paths:
            scope = self.scope(os.path.realpath(os.path.expanduser(path)), str(path))
            if scope is not None:
                scopes.append(scope)
        unique: list[_Scope] = []
        for scope in scopes:
            within = any(_inside(scope.start, other.start) and scope != other for other in scopes)
            if not within and scope not in unique:
                unique.append(scope)
        return unique

    def scope(self, location: str, given: str) -> _Scope | None:
        roots = self.store.roots()
        exists = os.path.exists(location)
        for root in roots:
            if _inside(location, root.location):
                if not exists and not os.path.isdir(root.location):
                    self.skip(given, f"{shown(root.location)} does not exist; its documents stay in the index")
                    return None
                prefix = _relative(location, root.location)
                if not exists and not self.store.files_under(root, prefix):
                    self.skip(given, "does not exist")
                    return None
                return _Scope(root, prefix, location)
        if not exists:
            self.skip(given, "does not exist")
            return None
        folder = location if os.path.isdir(location) else os.path.dirname(location)
        name = _base(folder)
        nested = [root for root in roots if _inside(root.location, folder)]
        moved = [root for root in roots if _base(root.location) == name and not os.path.exists(root.location)]
        if nested:
            # The wider folder takes over; the documents of the narrower one get their longer paths.
            root = self.store.add_root(nested[0].label, folder)
            self.absorbed += nested
        elif moved:
            root = self.store.move_root(moved[0], folder)
        else:
            root = self.store.add_root(_new_label(name, {root.label for root in roots}), folder)
        return _Scope(root, "" if folder == location else shown(os.path.basename(location)), location)

    def remove_vanished(self, scopes: list[_Scope], alive: set[int], kept: list[tuple[Root, str]]) -> None:
        vanished = []
        for scope in scopes:
            for file_id, path in self.store.files_under(scope.root, scope.prefix):
                if file_id in alive:
                    continue
                if any(root == scope.root and _below(path, prefix) for root, prefix in kept):
                    self.report.notes.append(Note(scope.root.shown(path), "could not be read: stays as last read"))
                else:
                    vanished.append(file_id)
        for root in self.absorbed:
            vanished += [file_id for file_id, _ in self.store.files_under(root, "")]
        for key in self.store.remove_files(vanished):
            self.gone[key] += 1

    # ---- one file -------------------------------------------------------------------------------------------------

    def file(self, root: Root, found: Found) -> _File:
        """Read a file if it changed."""
        stored = self.store.file(root, found.path)
        file = _File(stored.id if stored else None)
        signature = _signature(found.location)
        if stored and signature and stored.signature == signature and stored.recipe == self.recipe:
            self.report.unchanged += len(self.store.document_hashes(stored.id))
            self.replay(root, stored.findings)
            return file
        self.pending.append(lambda db: setattr(file, "id", self.store.begin_file(db, root, found.path)))
        findings: list[list[str]] = []
        dropped = 0
        unreadable = False
        for item in load(found, self.max_bytes):
            if isinstance(item, Document):
                self.document(file, item)
            elif len(findings) >= _MAX_FINDINGS:
                dropped += 1
            else:
                unreadable |= isinstance(item, Unreadable)
                kind, text = ("skipped", item.reason) if isinstance(item, Skipped) else ("note", item.text)
                findings.append([kind, item.path, text])
        if dropped:
            findings.append(["note", found.path, f"{dropped} more findings like these are not listed"])
        self.replay(root, findings)
        if unreadable:
            if stored:
                self.report.notes.append(Note(root.shown(found.path), "could not be read: stays as last read"))
            return file
        if signature != _signature(found.location):
            signature = None  # it changed while it was read
        self.pending.append(lambda db: self.finish_file(db, file, signature, findings))
        return file

    def finish_file(self, db: Any, file: _File, signature: str | None, findings: list[list[str]]) -> None:
        for key in self.store.finish_file(db, file.known_id, signature, self.recipe, findings, self.number):
            self.gone[key] += 1

    def replay(self, root: Root, findings: list[list[str]]) -> None:
        for kind, path, text in findings:
            if kind == "skipped":
                self.skip(root.shown(path), text)
            else:
                self.report.notes.append(Note(root.shown(path), text))

    def document(self, file: _File, document: Document) -> None:
        state = self.store.document_state(file.id, document.path) if file.id is not None else None
        path = document.path
        if state == (document.content_hash, self.recipe):
            self.report.unchanged += 1
            self.pending.append(lambda db: self.store.touch_document(db, file.known_id, path, self.number))
        else:
            if state is None:
                self.added[document.content_hash] += 1
            elif state[0] == document.content_hash:
                self.report.unchanged += 1  # chunked again by another recipe
            else:
                self.report.updated += 1
            assert self.measure is not None
            chunks = [] if document.superseded else chunk_document(document, self.measure, self.target)
            self.pending.append(
                lambda db: self.store.put_document(db, file.known_id, document, chunks, self.recipe, self.number)
            )
            self.chunks.update((chunk.content_hash, chunk) for chunk in chunks)
            self.order += [chunk.content_hash for chunk in chunks]
            self.characters += len(document.text)
            self.seen_chunks += len(chunks)
        self.seen_documents += 1
        if (
            len(self.chunks) >= _BATCH_CHUNKS
            or self.characters >= _BATCH_CHARACTERS
            or len(self.pending) >= _BATCH_DOCUMENTS
        ):
            self.flush()

    def flush(self) -> None:
        """Embed what is new in the present batch and commit all of it."""
        if not self.pending:
            return
        missing = self.store.without_vectors(self.chunks, self.embedder.identity)
        vectors = self.embed([self.chunks[key].rendered for key in missing])
        with self.store.transaction() as db:
            for work in self.pending:
                work(db)
            self.store.put_vectors(db, self.embedder.identity, dict(zip(missing, vectors, strict=True)))
        order = list(dict.fromkeys(self.order))
        self.pending, self.chunks, self.order, self.characters = [], {}, [], 0
        if self.on_batch and order:
            self.on_batch(Batch(order, self.seen_documents, self.seen_chunks))

    def embed(self, texts: list[str]) -> list[Any]:
        vectors = self.embedder.encode(texts) if texts else []
        self.report.embedded += len(texts)
        return vectors

    def embed_again(self) -> None:
        """Vectors of this embedder for all that is stored without; then they are the store's. Interrupted, it goes on
        where it was; until the end readers use the old ones."""
        identity = self.embedder.identity
        while chunks := self.store.contents_without_vectors(identity, _BATCH_CHUNKS):
            vectors = self.embed([chunk.rendered for chunk in chunks])
            with self.store.transaction() as db:
                self.store.put_vectors(
                    db, identity, {chunk.content_hash: rows for chunk, rows in zip(chunks, vectors, strict=True)}
                )
        if self.store.get("embedder") != identity:
            self.store.keep_vectors_of(identity, self.embedder.name)

    def finish(self, scopes: list[_Scope]) -> None:
        report = self.report
        report.renamed = (self.added & self.gone).total()
        report.added = self.added.total() - report.renamed
        report.removed = self.gone.total() - report.renamed
        counts = self.store.counts()
        report.documents, report.chunks = counts["documents"], counts["chunks"]
        for root_id, path, path_shown, reason in self.store.hidden_documents():
            if any(scope.root.id == root_id and _below(path, scope.prefix) for scope in scopes):
                self.skip(path_shown, reason)


def _new_label(name: str, taken: set[str]) -> str:
    """The first root of a store has no label; a later one has its folder's name, with a number where that is taken."""
    if not taken:
        return ""
    label, number = name, 1
    while label in taken:
        number += 1
        label = f"{name}-{number}"
    return label


def _inside(location: str, folder: str) -> bool:
    return location == folder or location.startswith(folder.rstrip(os.sep) + os.sep)


def _relative(location: str, folder: str) -> str:
    """Path as shown of something in a folder; "" for the folder itself."""
    relative = os.path.relpath(location, folder)
    return "" if relative == "." else "/".join(map(shown, Path(relative).parts))


def _below(path: str, prefix: str) -> bool:
    return prefix == "" or path == prefix or path.startswith((prefix + "/", prefix + "#"))


def _base(location: str) -> str:
    return shown(os.path.basename(location)) or "root"


def _signature(location: str) -> str | None:
    """What tells that a file is as it was without reading it, or None while it is too young to tell."""
    try:
        status = os.stat(location)
    except OSError:
        return None
    if time.time_ns() - max(status.st_mtime_ns, status.st_ctime_ns) < _SETTLED_NS:
        return None
    return f"{status.st_size}:{status.st_mtime_ns}:{status.st_ctime_ns}:{status.st_ino}"
