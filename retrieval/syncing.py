# Paths are text here, because file names need not be UTF-8 and are compared as they are.
# ruff: noqa: PTH110, PTH112, PTH116, PTH119, PTH120
"""One run that brings an index in step with its corpus: which folders, which files changed, which documents are gone.

Work is collected into batches; each is embedded and then committed in one transaction, so that an interrupted run goes
on from the last batch. A file counts as read only when its last document is committed.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from .chunker import Chunk, Measure, chunk_document
from .documents import Document, Note, Skipped
from .embedder import TextEmbedder
from .loaders import load
from .store import DocumentStore, Root
from .walking import Found, Unreadable, below, inside, relative_path, shown, walk

# What loading and chunking do to a file; another number reads every file again.
_RECIPE = "v1"
_BATCH_CHUNKS = 64
# A batch is also written when it holds this much text or this many documents (most of them unchanged, perhaps).
_BATCH_CHARACTERS = 1 << 20
_BATCH_DOCUMENTS = 1024
_MAX_FINDINGS = 1000
# A file that changed within this time of being read may change again under the same time stamp.
_SETTLED_NS = 2_000_000_000
# Files, and documents of each, by which a corpus that moved is recognised.
_SAMPLE_FILES = 64
_SAMPLE_DOCUMENTS = 16


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


class Sync:
    """One run of ``Retriever.sync``; the writer's lock is held around it."""

    def __init__(
        self,
        store: DocumentStore,
        embedder: TextEmbedder,
        measure: Measure,
        target_tokens: int,
        tokenizer: str,
        *,
        follow_outside: bool,
        leave_out: Iterable[str | Path],
        max_bytes: int,
        on_batch: Callable[[Batch], None] | None,
        progress: Callable[[Progress], None] | None,
    ):
        self.store, self.embedder = store, embedder
        self.measure, self.target = measure, target_tokens
        self.recipe = f"{_RECIPE}/{target_tokens}/{tokenizer}/{max_bytes}"
        self.follow_outside, self.max_bytes = follow_outside, max_bytes
        self.leave_out = frozenset(os.path.realpath(folder) for folder in (store.folder, *leave_out))
        self.on_batch, self.progress = on_batch, progress
        self.report = SyncReport()
        self.number = int(self.store.get("sync") or 0) + 1
        self.added: Counter[str] = Counter()
        self.gone: Counter[str] = Counter()
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
            for item in self.walk(scope.start, scope.root.location):
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
        self.store.remove_orphans()
        self.store.drop_empty_roots(scope.root.id for scope in scopes)
        self.finish(scopes)
        if self.progress:
            self.progress(Progress(len(found), len(found), total, total, self.report.embedded))
        self.report.seconds = time.monotonic() - started
        return self.report

    def walk(self, start: str, root: str) -> Iterator[Found | Skipped]:
        return walk(start, root=root, follow_outside=self.follow_outside, leave_out=self.leave_out)

    def skip(self, path: str, reason: str) -> None:
        self.report.skipped.append(Skipped(path, reason))

    # ---- which folders --------------------------------------------------------------------------------------------

    def scopes(self, paths: list[str | Path]) -> list[_Scope]:
        """The parts of the corpus that the given paths name, none inside another."""
        places = [(os.path.realpath(Path(path).expanduser()), str(path)) for path in paths]
        # Roots first, all of them: a wider folder takes over what a narrower one before it was given as.
        for location, _ in places:
            self.cover(location)
        scopes: list[_Scope] = []
        for location, given in places:
            scope = self.scope(location, given)
            if scope is not None:
                scopes.append(scope)
        unique: list[_Scope] = []
        for scope in scopes:
            within = any(inside(scope.start, other.start) and scope != other for other in scopes)
            if not within and scope not in unique:
                unique.append(scope)
        return unique

    def cover(self, location: str) -> None:
        """See to it that a place, if it exists, lies in a root, and that no other root lies in that one."""
        if not os.path.exists(location):
            return
        folder = location if os.path.isdir(location) else os.path.dirname(location)
        roots = self.store.roots()
        outer = min((root.location for root in roots if inside(folder, root.location)), key=len, default=folder)
        inner = [root for root in roots if inside(root.location, outer) and root.location != outer]
        if inner:
            self.store.absorb(inner, outer)
        elif all(root.location != outer for root in roots):
            self.new_root(outer, roots)

    def new_root(self, folder: str, roots: list[Root]) -> None:
        """Make a folder that has to do with none of the roots one of them: a new one, or one that was moved there."""
        name = _base(folder)
        for root in roots:
            if _base(root.location) != name or os.path.exists(root.location):
                continue
            if self.moved(root, folder):
                self.store.move_root(root, folder)
                return
            text = f"does not exist, and {shown(folder)} holds other documents: its own stay in the index"
            self.report.notes.append(Note(shown(root.location), text))
        self.store.add_root(_new_label(name, {root.label for root in roots}), folder)

    def moved(self, root: Root, folder: str) -> bool:
        """Whether a folder holds what was indexed from a root: of a sample of its files at least half, at the same
        places and with a document unchanged. A common name, even of many files, would say little."""
        stored = self.store.indexed_files(root)
        sample = stored[:: -(-len(stored) // _SAMPLE_FILES) or 1]
        found = {item.path: item for item in self.walk(folder, folder) if isinstance(item, Found)}
        kept = sum(path in found and self.unchanged(file_id, found[path]) for file_id, path in sample)
        return kept > 0 and 2 * kept >= len(sample)

    def unchanged(self, file_id: int, found: Found) -> bool:
        """Whether a file has a document, among its first ones, that is stored as it is."""
        documents = (item for item in load(found, self.max_bytes) if isinstance(item, Document))
        for document in islice(documents, _SAMPLE_DOCUMENTS):
            state = self.store.document_state(file_id, document.path)
            if state and state[0] == document.content_hash:
                return True
        return False

    def scope(self, location: str, given: str) -> _Scope | None:
        holding = [root for root in self.store.roots() if inside(location, root.location)]
        root = min(holding, key=lambda root: len(root.location), default=None)
        if root is None:
            self.skip(given, "does not exist")
            return None
        prefix = relative_path(location, root.location)
        if not os.path.exists(location):
            if not os.path.isdir(root.location):
                self.skip(given, f"{shown(root.location)} does not exist; its documents stay in the index")
                return None
            if not self.store.files_under(root, prefix):
                self.skip(given, "does not exist")
                return None
        return _Scope(root, prefix, location)

    def remove_vanished(self, scopes: list[_Scope], alive: set[int], kept: list[tuple[Root, str]]) -> None:
        vanished = []
        for scope in scopes:
            for file_id, path in self.store.files_under(scope.root, scope.prefix):
                if file_id in alive:
                    continue
                if any(root == scope.root and below(path, prefix) for root, prefix in kept):
                    self.report.notes.append(Note(scope.root.shown(path), "could not be read: stays as last read"))
                else:
                    vanished.append(file_id)
        for key in self.store.remove_files(vanished):
            self.gone[key] += 1

    # ---- one file -------------------------------------------------------------------------------------------------

    def file(self, root: Root, found: Found) -> _File:
        """Read a file if it changed."""
        stored = self.store.file(root, found.path)
        file = _File(stored.id if stored else None)
        signature = _signature(found.location)
        if stored and signature and stored.signature == signature and stored.recipe == self.recipe:
            self.report.unchanged += self.store.documents_in(stored.id)
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
            if stored and self.store.documents_in(stored.id):
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
        counted = document.superseded is None  # what is left out is reported as skipped
        if state == (document.content_hash, self.recipe):
            self.report.unchanged += counted
            self.pending.append(lambda db: self.store.touch_document(db, file.known_id, path, self.number))
        else:
            if state is None:
                self.added[document.content_hash] += counted
            elif state[0] == document.content_hash:
                self.report.unchanged += counted  # chunked again by another recipe
            else:
                self.report.updated += 1
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
            self.store.hide_replaced(db)
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
        for count in embed_missing(self.store, self.embedder):
            self.report.embedded += count

    def finish(self, scopes: list[_Scope]) -> None:
        report = self.report
        report.renamed = (self.added & self.gone).total()
        report.added = self.added.total() - report.renamed
        report.removed = self.gone.total() - report.renamed
        counts = self.store.counts()
        report.documents, report.chunks = counts["documents"], counts["chunks"]

        def given(root_id: int, file: str) -> bool:
            return any(scope.root.id == root_id and below(file, scope.prefix) for scope in scopes)

        for root_id, file, path, reason in self.store.hidden_documents():
            if given(root_id, file):
                self.skip(path, reason)
        for circle in self.store.replacement_circles():
            if any(given(root_id, file) for root_id, file, _ in circle):
                first, *others = [path for _, _, path in circle]
                text = f"replaces {', which replaces '.join([*others, first])}: none of them is left out"
                self.report.notes.append(Note(first, text))


def embed_missing(store: DocumentStore, embedder: TextEmbedder) -> Iterator[int]:
    """Vectors of this embedder for all that is stored without, batch by batch; yields the size of each that is
    durable. Then they are the store's."""
    identity = embedder.identity
    while chunks := store.contents_without_vectors(identity, _BATCH_CHUNKS):
        vectors = embedder.encode([chunk.rendered for chunk in chunks])
        with store.transaction() as db:
            store.put_vectors(
                db, identity, {chunk.content_hash: rows for chunk, rows in zip(chunks, vectors, strict=True)}
            )
        yield len(chunks)
    if store.get("embedder") != identity:
        store.keep_vectors_of(identity, embedder.name)


def _new_label(name: str, taken: set[str]) -> str:
    """The first root of a store has no label; a later one has its folder's name, with a number where that is taken."""
    if not taken:
        return ""
    label, number = name, 1
    while label in taken:
        number += 1
        label = f"{name}-{number}"
    return label


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
