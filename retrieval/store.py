"""The document store: one SQLite file with documents, chunks, vectors and the lexical index.

Promises
- A batch of documents is written in one durable transaction: after a kill it is there entirely or not at all.
- One thread of one process writes at a time (``writing``); any other is refused with the name of the first. Readers,
  threads of the same process included, need no lock, do not wait for the writer, and see whole batches.
- A document that another one replaces is hidden by the very transaction that makes it so.
- A folder that cannot be written can be read: nothing is created in it.
- Nothing in the file depends on where the folder lies.
- What it says of a document can be taken out whole (``records``) and put into an empty file (``put_record``): vectors
  alone are then to be made again.

A *content* is a distinct rendered chunk. Documents that share a chunk share its content, and with it its vectors.
Contents, once removed, never give their number to another one.
"""

from __future__ import annotations

import json
import os
import re
import sqlite3
import sys
import threading
import time
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from graphlib import CycleError, TopologicalSorter
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

import numpy as np
from filelock import FileLock, Timeout

from linearkv.errors import (
    LinearKVError,
    StoreDamagedError,
    StoreFullError,
    StoreLockedError,
    StoreMismatchError,
    StoreReadOnlyError,
)

from .chunker import Chunk, render
from .documents import Document
from .walking import relative_path

SCHEMA_VERSION = 2
FILE = "documents.sqlite"
_LOCK, _HOLDER = "writer.lock", "writer.json"
LOCK_TIMEOUT = 1.0
"""Seconds to wait for another writer: for those who hold the lock for an instant, to see whether somebody writes."""

# What a document's metadata calls it, for others that replace it.
_OWN_ID = "CAST(json_extract(metadata, '$.id') AS TEXT)"
_INDEXES = f"""
CREATE INDEX documents_by_path ON documents (path);
CREATE INDEX documents_by_own_id ON documents ({_OWN_ID});
CREATE INDEX documents_hidden ON documents (hidden) WHERE hidden IS NOT NULL;
CREATE INDEX documents_replacing ON documents (replaces) WHERE replaces IS NOT NULL;
"""
_WORDS = "fts5(heading, text, content='', tokenize='unicode61')"
_INSERT_WORDS = "INSERT INTO {} (rowid, heading, text) VALUES (?, ?, ?)"
_SCHEMA = f"""
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE roots (id INTEGER PRIMARY KEY, label TEXT NOT NULL, location BLOB NOT NULL UNIQUE);
CREATE TABLE files (
    id INTEGER PRIMARY KEY, root_id INTEGER NOT NULL REFERENCES roots, path TEXT NOT NULL,
    signature TEXT, recipe TEXT, findings TEXT NOT NULL DEFAULT '[]', UNIQUE (root_id, path));
CREATE TABLE documents (
    id INTEGER PRIMARY KEY, file_id INTEGER NOT NULL REFERENCES files ON DELETE CASCADE, path TEXT NOT NULL,
    title TEXT NOT NULL, metadata TEXT NOT NULL, content_hash TEXT NOT NULL, recipe TEXT NOT NULL,
    sync INTEGER NOT NULL, superseded TEXT, replaces TEXT, hidden TEXT, UNIQUE (file_id, path));
CREATE TABLE contents (
    id INTEGER PRIMARY KEY AUTOINCREMENT, content_hash TEXT NOT NULL UNIQUE, heading TEXT NOT NULL,
    text TEXT NOT NULL);
CREATE TABLE chunks (
    document_id INTEGER NOT NULL REFERENCES documents ON DELETE CASCADE, ordinal INTEGER NOT NULL,
    content_id INTEGER NOT NULL REFERENCES contents, line_start INTEGER NOT NULL, line_end INTEGER NOT NULL,
    metadata TEXT NOT NULL, PRIMARY KEY (document_id, ordinal)) WITHOUT ROWID;
CREATE INDEX chunks_of_content ON chunks (content_id);
CREATE TABLE vectors (
    content_id INTEGER NOT NULL REFERENCES contents ON DELETE CASCADE, embedder TEXT NOT NULL,
    windows BLOB NOT NULL, PRIMARY KEY (content_id, embedder));
CREATE VIRTUAL TABLE words USING {_WORDS};
{_INDEXES}"""
# Format 1 can be read as it is, and is brought to this one by the first who writes. It has two columns that nothing
# uses, and may blame a file for a package that was missing: every file is read once more.
_READABLE = ("1", str(SCHEMA_VERSION))
_FROM_1 = f"""
ALTER TABLE contents DROP COLUMN token_ids;
ALTER TABLE contents DROP COLUMN tokenizer;
UPDATE files SET signature = NULL;
{_INDEXES}"""

_TABLES = {"meta", "roots", "files", "documents", "contents", "chunks", "vectors", "words"}
# What of `meta` says something of the documents, and is kept with their records.
_META_RECORDED = ("calibration",)

_SHOWN_PATH = "CASE WHEN roots.label = '' THEN documents.path ELSE roots.label || ':' || documents.path END"
_SHOWN_FILE = "CASE WHEN roots.label = '' THEN files.path ELSE roots.label || ':' || files.path END"
_OF_DOCUMENTS = "documents JOIN files ON files.id = file_id JOIN roots ON roots.id = root_id"
_VISIBLE = "FROM chunks JOIN documents ON documents.id = document_id WHERE hidden IS NULL"
# Scripts written without spaces between words: each character is a word of the lexical index.
_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003134f"
)
_UNSPACED_CHARACTER = re.compile(f"[{_UNSPACED}]")
_QUESTION_PART = re.compile(f"[{_UNSPACED}]+|[^\\s!-/:-@\\[-`{{-~{_UNSPACED}]+")
_MAX_QUESTION_WORDS = 200


@dataclass(frozen=True)
class Root:
    """An indexed folder. ``label`` is "" for the first of a store; paths of the others are shown as ``label:path``."""

    id: int
    label: str
    location: str

    def shown(self, path: str) -> str:
        return f"{self.label}:{path}" if self.label else path


@dataclass(frozen=True)
class StoredFile:
    id: int
    signature: str | None
    recipe: str | None
    findings: list[list[str]]


@dataclass(frozen=True)
class StoredChunk:
    """A distinct chunk."""

    content_hash: str
    heading: str
    text: str

    @property
    def rendered(self) -> str:
        return render(self.heading, self.text)


@dataclass(frozen=True)
class Place:
    """Where a content occurs: one chunk of one document. ``file`` is the path of its file, ``path`` its own: they
    differ for the records of a JSON lines file. Both are as shown."""

    path: str
    file: str
    title: str
    metadata: dict[str, Any]
    ordinal: int
    line_start: int
    line_end: int


class _NoIndexYet(LinearKVError):
    """The file has no tables: nothing was indexed."""


class DocumentStore:
    """The store in ``folder``.

    mode: "rw" creates it where needed, "ro" opens what is there and never writes.
    lock_timeout: seconds to wait for another writer before StoreLockedError.

    Raises StoreReadOnlyError ("rw" in a folder that cannot be written), StoreMismatchError (another format version),
    StoreDamagedError and LinearKVError (nothing there to read). One object may be used by several threads: while one of
    them writes, the others read.
    """

    def __init__(self, folder: str | Path, mode: Literal["rw", "ro"] = "rw", lock_timeout: float = LOCK_TIMEOUT):
        self.folder = Path(folder).expanduser().absolute()
        self.mode = mode
        self.path = self.folder / FILE
        self.lock_timeout = lock_timeout
        # The thread that writes has a connection of its own; the others share one, of which each view is for itself.
        self._reader_guard, self._writer_guard = threading.RLock(), threading.RLock()
        self._immutable: tuple[int, ...] | None = None
        if mode == "rw":
            self._require_writable()
        elif not self.path.is_file():
            raise LinearKVError(f"no index in {self.folder}: make one first with linearkv index")
        # Each thread holds or waits for the lock on its own: it stands between threads as it does between processes.
        self._lock = FileLock(self.folder / _LOCK, thread_local=True)
        self._holder = self.folder / _HOLDER
        self._writer: sqlite3.Connection | None = None
        self._reader = self._connect()
        self._opened = _inode(self.path)

    # ---- opening -------------------------------------------------------------------------------------------------

    def _require_writable(self) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreReadOnlyError(f"the store's folder {self.folder} cannot be made: {error.strerror}") from error
        existing = self.path if self.path.exists() else self.folder
        for path in {self.folder, existing}:
            if not os.access(path, os.W_OK):
                raise StoreReadOnlyError(
                    f"{path} is not writable for user {os.geteuid() if hasattr(os, 'geteuid') else ''}: "
                    "open the store for reading, or index as a user who may write there"
                )

    def _connect(self) -> sqlite3.Connection:
        """The connection to read by; the one to write by is made first where there is to be one."""
        with _explained(self):
            if self.mode == "ro":
                reader = self._connect_read_only()
            else:
                self._writer = self._open("rwc")
                self._create(self._writer)
                self._writer.execute("PRAGMA foreign_keys = ON")
                reader = self._open("ro")
            version = dict(reader.execute("SELECT key, value FROM meta WHERE key = 'schema'")).get("schema")
        if version not in _READABLE:
            reader.close()
            if self._writer:
                self._writer.close()
            raise StoreMismatchError(
                f"the index in {self.folder} has format {version}, this LinearKV reads {' and '.join(_READABLE)}: "
                "index the corpus into a new folder, or use the LinearKV version that made it"
            )
        return reader

    def _open(self, mode: str, extra: str = "") -> sqlite3.Connection:
        # As a URI of percent-encoded bytes: folder names need not be UTF-8.
        uri = f"file:{quote(os.fsencode(self.path))}?mode={mode}{extra}"
        connection = sqlite3.connect(uri, uri=True, timeout=30, isolation_level=None, check_same_thread=False)
        connection.execute("PRAGMA busy_timeout = 30000")
        return connection

    def _create(self, connection: sqlite3.Connection) -> None:
        deadline = time.monotonic() + 30
        while True:
            try:
                connection.execute("PRAGMA journal_mode = WAL")
                break
            except sqlite3.OperationalError as error:
                # The switch ignores the busy timeout while another process opens the same new file.
                if "locked" not in str(error) or time.monotonic() > deadline:
                    raise
                time.sleep(0.02)
        connection.execute("PRAGMA synchronous = FULL")
        if connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'meta'").fetchone():
            return
        connection.execute("BEGIN IMMEDIATE")
        if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'meta'").fetchone():
            _execute_all(connection, _SCHEMA)
            connection.execute("INSERT INTO meta VALUES ('schema', ?), ('generation', '0')", (str(SCHEMA_VERSION),))
        connection.execute("COMMIT")

    def _connect_read_only(self) -> sqlite3.Connection:
        wal = self.path.with_name(FILE + "-wal")
        if os.access(self.folder, os.W_OK):
            return self._open("ro")
        if not wal.exists() or wal.stat().st_size == 0:
            # SQLite would make a -shm file beside a WAL database; immutable reads the main file alone.
            self._immutable = self._fingerprint()
            return self._open("ro", "&immutable=1")
        connection = self._open("ro")
        try:
            connection.execute("SELECT 1 FROM meta").fetchone()
        except sqlite3.OperationalError as error:
            connection.close()
            raise LinearKVError(
                f"{self.folder} cannot be written, and the last writer left unmerged changes in {wal.name}: run any "
                "linearkv command on the store once where it is writable, then copy it"
            ) from error
        return connection

    def _fingerprint(self) -> tuple[int, ...]:
        wal = self.path.with_name(FILE + "-wal")
        status = self.path.stat()
        return status.st_ino, status.st_size, status.st_mtime_ns, wal.stat().st_size if wal.exists() else 0

    def close(self) -> None:
        with self._reader_guard, self._writer_guard:
            self._reader.close()
            if self._writer:
                self._writer.close()  # the last one to close merges what is left and removes SQLite's side files

    def __enter__(self) -> DocumentStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _damaged(self, why: str) -> StoreDamagedError:
        return StoreDamagedError(
            f"{self.path} is damaged ({why}): linearkv repair makes it anew from the records of documents; where there "
            "are none, delete the file and index again, cached chunk states are found anew"
        )

    # ---- reading and writing -------------------------------------------------------------------------------------

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        """What this thread reads by."""
        if self._writer and self._lock.is_locked:
            with self._writer_guard, _explained(self):
                yield self._writer
        else:
            with self._reader_guard, _explained(self):
                yield self._reader

    @contextmanager
    def reading(self) -> Iterator[None]:
        """One consistent view of the store for all reads inside, whatever a writer does meanwhile."""
        with self._connection() as db:
            if self._immutable is not None and self._immutable != self._fingerprint():
                # Someone who may write there did: what was read so far is no longer the file.
                db.close()
                self._immutable = None
                self._reader = db = self._connect()
            if db.in_transaction:
                yield
                return
            db.execute("BEGIN")
            try:
                yield
            finally:
                db.execute("COMMIT")

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Be the writer: hold the store's lock. May be nested. At the end everything is merged into the main file."""
        if not self._writer:
            raise StoreReadOnlyError(f"the store in {self.folder} is open for reading only")
        if self._lock.is_locked:
            yield
            return
        self._acquire()
        try:
            if _inode(self.path) != self._opened:
                # What would be written into the old file, nobody would find.
                raise LinearKVError(
                    f"{self.path} was removed or made anew (linearkv repair) since it was opened: open the store again"
                )
            self._upgrade()
            yield
        finally:
            # Readers or a full disk may be in the way: then the changes stay in the WAL, where they are safe.
            with suppress(sqlite3.Error), self._writer_guard:
                self._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            with suppress(OSError):  # only a courtesy: nobody is to be sent to a process that is done
                self._holder.unlink()
            self._lock.release()

    def _acquire(self) -> None:
        _take(self._lock, self.folder, self.lock_timeout)
        with suppress(OSError):  # only a courtesy to whoever is refused
            aside = self._holder.with_suffix(f".{os.getpid()}")
            entry = {
                "pid": os.getpid(),
                "command": " ".join(sys.argv)[:500],
                "since": time.strftime("%Y-%m-%d %H:%M:%S"),
            }
            aside.write_text(json.dumps(entry))
            aside.replace(self._holder)

    def _upgrade(self) -> None:
        if self.get("schema") == str(SCHEMA_VERSION):
            return
        with self.transaction() as db:
            _execute_all(db, _FROM_1)
            self.hide_replaced(db)
            db.execute("UPDATE meta SET value = ? WHERE key = 'schema'", (str(SCHEMA_VERSION),))

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """A durable change: all of it or nothing. Only inside ``writing``, by the thread that entered it; the others
        see it, and a new generation, when it is complete."""
        assert self._lock.is_locked, "changes need the writer's lock"
        with self._connection() as db:
            db.execute("BEGIN IMMEDIATE")
            try:
                yield db
                db.execute("UPDATE meta SET value = CAST(value AS INTEGER) + 1 WHERE key = 'generation'")
                db.execute("COMMIT")
            except BaseException:
                if db.in_transaction:
                    db.execute("ROLLBACK")
                raise

    def _all(self, sql: str, parameters: Sequence[Any] | dict[str, Any] = ()) -> list[tuple[Any, ...]]:
        with self._connection() as db:
            return db.execute(sql, parameters).fetchall()

    def _one(self, sql: str, parameters: Sequence[Any] | dict[str, Any] = ()) -> Any:
        rows = self._all(sql, parameters)
        return rows[0][0] if rows else None

    # ---- meta, roots, files --------------------------------------------------------------------------------------

    @property
    def generation(self) -> int:
        """Grows with every change that was committed."""
        return int(self._one("SELECT value FROM meta WHERE key = 'generation'"))

    def get(self, key: str) -> str | None:
        return self._one("SELECT value FROM meta WHERE key = ?", (key,))

    def put(self, **values: str) -> None:
        with self.transaction() as db:
            db.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", values.items())

    def roots(self) -> list[Root]:
        rows = self._all("SELECT id, label, location FROM roots ORDER BY id")
        return [Root(key, label, os.fsdecode(location)) for key, label, location in rows]

    def add_root(self, label: str, location: str) -> Root:
        with self.transaction() as db:
            cursor = db.execute("INSERT INTO roots (label, location) VALUES (?, ?)", (label, os.fsencode(location)))
            return Root(int(cursor.lastrowid or 0), label, location)

    def move_root(self, root: Root, location: str) -> Root:
        with self.transaction() as db:
            db.execute("UPDATE roots SET location = ? WHERE id = ?", (os.fsencode(location), root.id))
        return Root(root.id, root.label, location)

    def absorb(self, inner: Sequence[Root], location: str) -> None:
        """Make the roots that lie in ``location`` one root there, in one step. What was read of their files is kept,
        under longer paths."""
        with self.transaction() as db:
            (outer,) = db.execute(
                "INSERT INTO roots (label, location) VALUES (?, ?)"
                " ON CONFLICT DO UPDATE SET label = label RETURNING id",
                (inner[0].label, os.fsencode(location)),
            ).fetchone()
            for root in inner:
                prefix = relative_path(root.location, location) + "/"
                db.execute(
                    "DELETE FROM files WHERE root_id = ? AND ? || path IN (SELECT path FROM files WHERE root_id = ?)",
                    (root.id, prefix, outer),
                )
                db.execute(
                    "UPDATE documents SET path = ? || path WHERE file_id IN (SELECT id FROM files WHERE root_id = ?)",
                    (prefix, root.id),
                )
                # Read again, since what was found wrong with a file is noted under its path.
                db.execute(
                    "UPDATE files SET root_id = ?, path = ? || path, signature = NULL WHERE root_id = ?",
                    (outer, prefix, root.id),
                )
                db.execute("DELETE FROM roots WHERE id = ?", (root.id,))
            self.hide_replaced(db)

    def drop_empty_roots(self, keep: Iterable[int]) -> None:
        kept = ",".join(str(int(key)) for key in keep) or "0"
        with self.transaction() as db:
            db.execute(f"DELETE FROM roots WHERE id NOT IN ({kept}) AND id NOT IN (SELECT root_id FROM files)")

    def file(self, root: Root, path: str) -> StoredFile | None:
        rows = self._all(
            "SELECT id, signature, recipe, findings FROM files WHERE root_id = ? AND path = ?", (root.id, path)
        )
        if not rows:
            return None
        key, signature, recipe, findings = rows[0]
        return StoredFile(key, signature, recipe, json.loads(findings))

    def files_under(self, root: Root, prefix: str) -> list[tuple[int, str]]:
        """(id, path) of the files of a root at ``prefix`` or below; "" for all."""
        return self._all(
            "SELECT id, path FROM files WHERE root_id = ? AND (? = '' OR path = ? OR substr(path, 1, ?) = ?)",
            (root.id, prefix, prefix, len(prefix) + 1, prefix + "/"),
        )

    def indexed_files(self, root: Root) -> list[tuple[int, str]]:
        """(id, path) of the files of a root that have documents, by path."""
        return self._all(
            "SELECT id, path FROM files WHERE root_id = ? AND EXISTS"
            " (SELECT 1 FROM documents WHERE file_id = files.id) ORDER BY path",
            (root.id,),
        )

    def begin_file(self, db: sqlite3.Connection, root: Root, path: str) -> int:
        """The file's id. Until ``finish_file`` it counts as changed, so that an interrupted run reads it again."""
        sql = "INSERT INTO files (root_id, path) VALUES (?, ?) ON CONFLICT DO UPDATE SET signature = NULL RETURNING id"
        return int(db.execute(sql, (root.id, path)).fetchone()[0])

    def documents_in(self, file_id: int) -> int:
        """Documents of a file, without those whose own metadata leaves them out."""
        sql = "SELECT COUNT(*) FROM documents WHERE file_id = ? AND superseded IS NULL"
        return int(self._one(sql, (file_id,)))

    def document_state(self, file_id: int, path: str) -> tuple[str, str] | None:
        """(content hash, recipe) of a stored document."""
        rows = self._all("SELECT content_hash, recipe FROM documents WHERE file_id = ? AND path = ?", (file_id, path))
        return (rows[0][0], rows[0][1]) if rows else None

    # ---- documents -----------------------------------------------------------------------------------------------

    def touch_document(self, db: sqlite3.Connection, file_id: int, path: str, sync: int) -> None:
        db.execute("UPDATE documents SET sync = ? WHERE file_id = ? AND path = ?", (sync, file_id, path))

    def put_document(
        self, db: sqlite3.Connection, file_id: int, document: Document, chunks: list[Chunk], recipe: str, sync: int
    ) -> None:
        """Write a document with its chunks over what was stored of it. Whether others replace it is for
        ``hide_replaced`` to say, before the transaction ends."""
        row = {
            "path": document.path,
            "title": document.title,
            "metadata": document.metadata,
            "content_hash": document.content_hash,
            "recipe": recipe,
            "superseded": document.superseded,
            "replaces": document.replaces,
        }
        self._put_document(db, file_id, row, [(chunk, None) for chunk in chunks], sync)

    def _put_document(
        self,
        db: sqlite3.Connection,
        file_id: int,
        row: dict[str, Any],
        chunks: Iterable[tuple[Chunk, int | None]],
        sync: int,
    ) -> None:
        """A document by its columns, and its chunks, each with the number that its content would like to have."""
        (document_id,) = db.execute(
            "INSERT INTO documents (file_id, path, title, metadata, content_hash, recipe, sync, superseded, replaces,"
            " hidden) VALUES (:file_id, :path, :title, :metadata, :content_hash, :recipe, :sync, :superseded,"
            " :replaces, :superseded) ON CONFLICT DO UPDATE SET title = :title, metadata = :metadata,"
            " content_hash = :content_hash, recipe = :recipe, sync = :sync, superseded = :superseded,"
            " replaces = :replaces, hidden = :superseded RETURNING id",
            row
            | {
                "file_id": file_id,
                "sync": sync,
                "metadata": json.dumps(row["metadata"], ensure_ascii=False),
                "replaces": json.dumps(row["replaces"]) if row["replaces"] else None,
            },
        ).fetchone()
        db.execute("DELETE FROM chunks WHERE document_id = ?", (document_id,))
        for chunk, number in chunks:
            db.execute(
                "INSERT INTO chunks VALUES (?, ?, ?, ?, ?, ?)",
                (
                    document_id,
                    chunk.ordinal,
                    self._content(db, chunk, number),
                    chunk.line_start,
                    chunk.line_end,
                    json.dumps(chunk.metadata),
                ),
            )

    def _content(self, db: sqlite3.Connection, chunk: Chunk, number: int | None) -> int:
        """The id of a chunk's content, which is made if it is new, as ``number`` where that is free."""
        row = db.execute("SELECT id FROM contents WHERE content_hash = ?", (chunk.content_hash,)).fetchone()
        if row:
            return int(row[0])
        if db.execute("SELECT 1 FROM contents WHERE id = ?", (number,)).fetchone():
            number = None
        cursor = db.execute(
            "INSERT INTO contents (id, content_hash, heading, text) VALUES (?, ?, ?, ?)",
            (number, chunk.content_hash, chunk.heading, chunk.text),
        )
        values = (cursor.lastrowid, _spaced(chunk.heading), _spaced(chunk.text))
        db.execute(_INSERT_WORDS.format("words"), values)
        return int(cursor.lastrowid or 0)

    def put_vectors(self, db: sqlite3.Connection, embedder: str, vectors: dict[str, np.ndarray]) -> None:
        """Vectors by content hash, float32 [windows, dimension]."""
        db.executemany(
            "INSERT OR REPLACE INTO vectors SELECT id, ?, ? FROM contents WHERE content_hash = ?",
            [(embedder, np.ascontiguousarray(rows, "<f4").tobytes(), key) for key, rows in vectors.items()],
        )

    def finish_file(
        self,
        db: sqlite3.Connection,
        file_id: int,
        signature: str | None,
        recipe: str,
        findings: list[list[str]],
        sync: int,
    ) -> list[str]:
        """Mark a file as read; documents that it no longer has are removed, and their content hashes returned."""
        gone = db.execute("SELECT id, content_hash FROM documents WHERE file_id = ? AND sync <> ?", (file_id, sync))
        rows = gone.fetchall()
        db.executemany("DELETE FROM documents WHERE id = ?", [(row[0],) for row in rows])
        db.execute(
            "UPDATE files SET signature = ?, recipe = ?, findings = ? WHERE id = ?",
            (signature, recipe, json.dumps(findings), file_id),
        )
        return [row[1] for row in rows]

    def remove_files(self, file_ids: Sequence[int]) -> list[str]:
        """Remove files with their documents; returns the documents' content hashes."""
        hashes: list[str] = []
        for start in range(0, len(file_ids), 500):
            with self.transaction() as db:
                for file_id in file_ids[start : start + 500]:
                    hashes += [
                        row[0] for row in db.execute("SELECT content_hash FROM documents WHERE file_id = ?", (file_id,))
                    ]
                    db.execute("DELETE FROM files WHERE id = ?", (file_id,))
                self.hide_replaced(db)
        return hashes

    def remove_documents(self, shown: str) -> int:
        """Remove the document at a path as shown, or those of the file or folder at it; returns how many."""
        rows = self._all(
            f"SELECT documents.id, files.id FROM {_OF_DOCUMENTS}"
            f" WHERE :shown IN ({_SHOWN_PATH}, {_SHOWN_FILE})"
            f" OR substr({_SHOWN_FILE}, 1, :length) = :shown || '/'",
            {"shown": shown, "length": len(shown) + 1},
        )
        if rows:
            with self.transaction() as db:
                db.executemany("DELETE FROM documents WHERE id = ?", [(row[0],) for row in rows])
                db.executemany("UPDATE files SET signature = NULL WHERE id = ?", [(row[1],) for row in rows])
                db.execute("DELETE FROM files WHERE signature IS NULL AND id NOT IN (SELECT file_id FROM documents)")
                self.hide_replaced(db)
        return len(rows)

    def hide_replaced(self, db: sqlite3.Connection) -> None:
        """Hide every document that an active one replaces, by its id or its path; show those no longer replaced. Part
        of every transaction that changes documents, so that what is replaced is never served."""
        paths, replacements, _ = _replacements(db)
        reasons = {key: f"replaced by {paths[by[0]]}" for key, by in replacements.items()}
        hidden = db.execute("SELECT id, superseded, hidden FROM documents WHERE hidden IS NOT NULL").fetchall()
        wanted = reasons | {key: superseded or reasons.get(key) for key, superseded, _ in hidden}
        now = {key: reason for key, _, reason in hidden}
        changes = [(reason, key) for key, reason in wanted.items() if reason != now.get(key)]
        db.executemany("UPDATE documents SET hidden = ? WHERE id = ?", changes)

    def replacement_circles(self) -> list[list[tuple[int, str, str]]]:
        """Documents that replace one another in a circle, each the next and the last one the first: (root id, path of
        its file, path as shown). None of them hides another."""
        with self.reading(), self._connection() as db:
            paths, _, circles = _replacements(db)
            sql = "SELECT root_id, files.path FROM files JOIN documents ON file_id = files.id WHERE documents.id = ?"
            return [[(*self._all(sql, (key,))[0], paths[key]) for key in circle] for circle in circles]

    def hidden_documents(self) -> list[tuple[int, str, str, str]]:
        """(root id, path of its file, path as shown, reason) of the documents that stay out of the index."""
        return self._all(
            f"SELECT root_id, files.path, {_SHOWN_PATH}, hidden FROM {_OF_DOCUMENTS}"
            " WHERE hidden IS NOT NULL ORDER BY 3"
        )

    def remove_orphans(self) -> int:
        """Remove the contents that no document has any more, with vectors and words."""
        count = 0
        while rows := self._all(
            "SELECT id, heading, text FROM contents WHERE NOT EXISTS"
            " (SELECT 1 FROM chunks WHERE content_id = contents.id) LIMIT 500"
        ):
            with self.transaction() as db:
                for key, heading, text in rows:
                    # A contentless index forgets a text only when it is told that text.
                    db.execute(
                        "INSERT INTO words (words, rowid, heading, text) VALUES ('delete', ?, ?, ?)",
                        (key, _spaced(heading), _spaced(text)),
                    )
                    db.execute("DELETE FROM contents WHERE id = ?", (key,))
            count += len(rows)
        return count

    # ---- records -------------------------------------------------------------------------------------------------

    def records(self) -> Iterator[dict[str, Any]]:
        """All that the store says of each document, hidden ones included, as JSON-ready values for ``put_record``.

        ``place`` names the document: the folder that was indexed, the path of the file in it, and its own path. A
        record of the place ``[]`` has what was found out about all of them together.

        Raises StoreDamagedError for a text that is not what it is filed as, so that no record is made of it.
        """
        found = {key: value for key in _META_RECORDED if (value := self.get(key)) is not None}
        if found:
            yield {"place": [], "meta": found}
        last = 0
        while rows := self._all(
            "SELECT documents.id, label, location, files.path, documents.path, title, metadata, content_hash,"
            f" documents.recipe, superseded, replaces FROM {_OF_DOCUMENTS} WHERE documents.id > ?"
            " ORDER BY documents.id LIMIT 256",
            (last,),
        ):
            for key, label, location, file, path, title, metadata, content_hash, recipe, superseded, replaces in rows:
                yield {
                    "place": [os.fsdecode(location), file, path],
                    "label": label,
                    "document": {
                        "path": path,
                        "title": title,
                        "metadata": self._value(metadata),
                        "content_hash": content_hash,
                        "recipe": recipe,
                        "superseded": superseded,
                        "replaces": self._value(replaces or "[]"),
                    },
                    "chunks": self._chunks_of(key),
                }
            last = rows[-1][0]

    def _chunks_of(self, document_id: int) -> list[tuple[int, dict[str, Any]]]:
        """The chunks of a document, each with the id of its content."""
        chunks = []
        for key, filed, heading, text, ordinal, line_start, line_end, metadata in self._all(
            "SELECT contents.id, content_hash, heading, text, ordinal, line_start, line_end, metadata FROM chunks"
            " JOIN contents ON contents.id = content_id WHERE document_id = ? ORDER BY ordinal",
            (document_id,),
        ):
            chunk = Chunk(heading, text, line_start, line_end, ordinal, self._value(metadata))
            if chunk.content_hash != filed:
                raise self._damaged(f"the text of chunk {key} is not the one that was stored")
            chunks.append((key, asdict(chunk)))
        return chunks

    def _value(self, text: str) -> Any:
        try:
            return json.loads(text)
        except ValueError as error:
            raise self._damaged(f"{text[:40]!r} is no metadata: {error}") from None

    def put_record(self, db: sqlite3.Connection, record: dict[str, Any]) -> bool:
        """Write what ``records`` said of a document, over what is there of it; returns whether it was a document's. Its
        file is read again at the next sync. Whether others replace it is for ``hide_replaced`` to say."""
        if not record["place"]:
            db.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", record["meta"].items())
            return False
        location, file, _ = record["place"]
        (root_id,) = db.execute(
            "INSERT INTO roots (label, location) VALUES (?, ?) ON CONFLICT DO UPDATE SET label = label RETURNING id",
            (record["label"], os.fsencode(location)),
        ).fetchone()
        file_id = self.begin_file(db, Root(root_id, record["label"], location), file)
        chunks = [(Chunk(**chunk), number) for number, chunk in record["chunks"]]
        self._put_document(db, file_id, record["document"], chunks, sync=0)
        return True

    # ---- vectors -------------------------------------------------------------------------------------------------

    def without_vectors(self, hashes: Iterable[str], embedder: str) -> list[str]:
        """Those of the content hashes that have no vectors of this embedder."""
        sql = "SELECT 1 FROM contents JOIN vectors ON content_id = contents.id WHERE content_hash = ? AND embedder = ?"
        return [key for key in hashes if not self._one(sql, (key, embedder))]

    def contents_without_vectors(self, embedder: str, limit: int) -> list[StoredChunk]:
        rows = self._all(
            "SELECT content_hash, heading, text FROM contents WHERE NOT EXISTS (SELECT 1 FROM vectors"
            " WHERE content_id = contents.id AND embedder = ?) LIMIT ?",
            (embedder, limit),
        )
        return [StoredChunk(key, heading, text) for key, heading, text in rows]

    def count_without_vectors(self, embedder: str) -> int:
        sql = "SELECT count(*) FROM contents WHERE id NOT IN (SELECT content_id FROM vectors WHERE embedder = ?)"
        return int(self._one(sql, (embedder,)))

    def damaged_vectors(self) -> list[tuple[int, str]]:
        """(content id, embedder) of vectors that cannot be what an embedder gave."""
        with self._connection() as db:
            rows = db.execute("SELECT content_id, embedder, CAST(windows AS BLOB) FROM vectors")
            return [(key, embedder) for key, embedder, windows in rows if not _of_length_1(windows)]

    def drop_vectors(self, which: Iterable[tuple[int, str]]) -> None:
        """Forget vectors, by content id and embedder."""
        with self.transaction() as db:
            db.executemany("DELETE FROM vectors WHERE content_id = ? AND embedder = ?", which)

    def keep_vectors_of(self, embedder: str, name: str) -> None:
        """From now on this embedder's vectors are the store's; those of any other are removed."""
        with self.transaction() as db:
            db.execute("DELETE FROM vectors WHERE embedder <> ?", (embedder,))
            values = [("embedder", embedder), ("embedder_name", name)]
            db.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", values)

    def live_ids(self) -> set[int]:
        """Ids of the contents that a visible document has."""
        return {row[0] for row in self._all(f"SELECT DISTINCT content_id {_VISIBLE}")}

    def vectors(self, ids: Iterable[int], embedder: str, dimension: int) -> Iterator[tuple[int, np.ndarray]]:
        """(content id, float32 [windows, dimension]) for those ids that have vectors of this embedder."""
        sql = "SELECT windows FROM vectors WHERE content_id = ? AND embedder = ?"
        for key in ids:
            blob = self._one(sql, (key, embedder))
            if blob is not None:
                yield key, np.frombuffer(blob, "<f4").reshape(-1, dimension)

    # ---- searching -----------------------------------------------------------------------------------------------

    def lexical(self, question: str, limit: int, allowed: set[int]) -> list[int]:
        """Ids of the contents that share words with the question, best first by BM25, among ``allowed``.

        The list ends where a content scores less than a third of the best: it shares only words that most have, and a
        rank among thousands of equals would say nothing.
        """
        expression = match_expression(question)
        found: list[int] = []
        if not expression:
            return found
        best = 0.0
        with self._connection() as db:
            sql = "SELECT rowid, bm25(words, 2.0, 1.0) FROM words WHERE words MATCH ? ORDER BY 2, 1"
            for key, score in db.execute(sql, (expression,)):
                if key not in allowed:
                    continue
                best = best or score
                # Scores of FTS5 are negative, the best one first.
                if len(found) == limit or score > best / 3:
                    break
                found.append(key)
        return found

    def content(self, content_id: int) -> tuple[str, str, str]:
        """(content hash, heading, text)"""
        row = self._all("SELECT content_hash, heading, text FROM contents WHERE id = ?", (content_id,))[0]
        return row[0], row[1], row[2]

    def places(self, content_id: int) -> list[Place]:
        """Where a content occurs in visible documents, ordered by path."""
        rows = self._all(
            f"SELECT {_SHOWN_PATH}, {_SHOWN_FILE}, title, documents.metadata, chunks.metadata, ordinal, line_start,"
            " line_end"
            f" FROM {_OF_DOCUMENTS} JOIN chunks ON documents.id = document_id WHERE content_id = ?"
            " AND hidden IS NULL ORDER BY 1, ordinal",
            (content_id,),
        )
        return [
            Place(path, file, title, json.loads(a) | json.loads(b), *rest) for path, file, title, a, b, *rest in rows
        ]

    def documents(self) -> Iterator[tuple[int, str, str, dict[str, Any]]]:
        """(id, path and its file's path as shown, metadata) of the visible documents."""
        for key, path, file, metadata in self._all(
            f"SELECT documents.id, {_SHOWN_PATH}, {_SHOWN_FILE}, metadata FROM {_OF_DOCUMENTS}"
            " WHERE hidden IS NULL ORDER BY 2"
        ):
            yield key, path, file, json.loads(metadata)

    def contents_of(self, document_ids: Iterable[int]) -> set[int]:
        found: set[int] = set()
        for key in document_ids:
            found.update(row[0] for row in self._all("SELECT content_id FROM chunks WHERE document_id = ?", (key,)))
        return found

    # ---- for the engine ------------------------------------------------------------------------------------------

    def iter_chunks(self, batch: int = 256) -> Iterator[StoredChunk]:
        """Every live distinct chunk, oldest first. Memory holds ``batch`` of them, and no transaction stays open
        between batches; chunks that are added meanwhile are met too."""
        last = 0
        while rows := self._all(
            "SELECT id, content_hash, heading, text FROM contents"
            f" WHERE id > ? AND id IN (SELECT content_id {_VISIBLE}) ORDER BY id LIMIT ?",
            (last, batch),
        ):
            for _, key, heading, text in rows:
                yield StoredChunk(key, heading, text)
            last = rows[-1][0]

    def live_hashes(self) -> set[str]:
        """Content hashes of every chunk that can be retrieved."""
        return {
            row[0] for row in self._all(f"SELECT content_hash FROM contents WHERE id IN (SELECT content_id {_VISIBLE})")
        }

    def counts(self) -> dict[str, int]:
        """Visible documents and chunks, and distinct chunks."""
        return {
            "documents": int(self._one("SELECT count(*) FROM documents WHERE hidden IS NULL")),
            "chunks": int(self._one(f"SELECT count(*) {_VISIBLE}")),
            "distinct_chunks": int(self._one(f"SELECT count(DISTINCT content_id) {_VISIBLE}")),
        }

    def damage(self) -> list[str]:
        """What is wrong with the file that only making it anew puts right, in words. Reads everything but vectors:
        SQLite's own check, rows whose others are gone, texts that are not what they are filed as, and an index of words
        that is not of these texts."""
        try:
            missing = _TABLES - {row[0] for row in self._all("SELECT name FROM sqlite_master")}
            if missing:
                return [f"it has no {', '.join(sorted(missing))}"]
            wrong = [row[0] for row in self._all("PRAGMA integrity_check(10)") if row[0] != "ok"]
            wrong += [f"a row of {row[0]} belongs to none of {row[2]}" for row in self._all("PRAGMA foreign_key_check")]
            if not wrong:
                for _ in self.records():
                    pass
                if not self._words_are_those_of_the_texts():
                    wrong.append("the index of words is not that of the texts")
        except StoreDamagedError as error:
            return [str(error)]
        return wrong[:10]

    def _words_are_those_of_the_texts(self) -> bool:
        """Compares the lexical index, into which SQLite's own check does not look, with one made anew for a moment."""
        with _explained(self), closing(self._open("ro", "&immutable=1" if self._immutable else "")) as db:
            db.execute("BEGIN")
            db.execute(f"CREATE VIRTUAL TABLE temp.anew USING {_WORDS}")
            for key, heading, text in db.execute("SELECT id, heading, text FROM contents"):
                db.execute(_INSERT_WORDS.format("temp.anew"), (key, _spaced(heading), _spaced(text)))
            db.execute("CREATE VIRTUAL TABLE temp.kept_words USING fts5vocab(main, words, instance)")
            db.execute("CREATE VIRTUAL TABLE temp.anew_words USING fts5vocab(temp, anew, instance)")
            pairs = (
                ("* FROM temp.kept_words", "* FROM temp.anew_words"),
                ("* FROM main.words_docsize", "* FROM temp.anew_docsize"),
                ("block FROM main.words_data WHERE id = 1", "block FROM temp.anew_data WHERE id = 1"),
            )
            return all(
                kept == made
                for this, that in pairs
                for kept, made in zip_longest(db.execute(f"SELECT {this}"), db.execute(f"SELECT {that}"))
            )

    def verify(self) -> list[str]:
        """What is wrong with the file, in words; empty if nothing is. Does not read every text: see ``damage``."""
        problems = [row[0] for row in self._all("PRAGMA quick_check") if row[0] != "ok"]
        embedder = self.get("embedder")
        missing = self._one(
            f"SELECT count(*) FROM contents WHERE id IN (SELECT content_id {_VISIBLE}) AND NOT EXISTS"
            " (SELECT 1 FROM vectors WHERE content_id = contents.id AND embedder = ?)",
            (embedder,),
        )
        if missing:
            problems.append(f"{missing} chunk(s) have no vectors: index again")
        return problems


@contextmanager
def _explained(store: DocumentStore) -> Iterator[None]:
    """SQLite's errors as ours, with what to do."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        text = str(error)
        if "disk is full" in text or "disk I/O" in text:
            raise StoreFullError(
                f"{store.path}: {text}; free some space and index again, finished work is kept"
            ) from error
        if "not a database" in text or "malformed" in text or "decode to UTF-8" in text:
            raise store._damaged(text) from error
        if "no such table" in text:
            raise _NoIndexYet(f"no index in {store.folder} yet: make one first with linearkv index") from error
        if "readonly" in text or "unable to open" in text:
            raise StoreReadOnlyError(f"{store.path} cannot be opened or written: {text}") from error
        raise


def set_aside_damaged(folder: str | Path, lock_timeout: float = LOCK_TIMEOUT) -> tuple[list[str], Path | None]:
    """Move the file of a damaged store to another name beside it, from where it may be taken back or removed.

    Returns what is wrong with it (see ``DocumentStore.damage``), and where it is now; nothing and None where it is as
    it should be, or where there is none. Raises StoreLockedError while somebody writes.
    """
    folder = Path(folder).expanduser().absolute()
    path = folder / FILE
    if not path.is_file():
        return [], None
    lock = FileLock(folder / _LOCK)
    _take(lock, folder, lock_timeout)
    try:
        try:
            with DocumentStore(folder, "ro") as store:
                wrong = store.damage()
        except StoreDamagedError as error:
            wrong = [str(error)]
        except _NoIndexYet:
            wrong = []
        if not wrong:
            return [], None
        aside = folder / f"damaged-{datetime.now():%Y%m%d-%H%M%S-%f}-{FILE}"
        # SQLite finds its side files by the name of the first.
        for ending in ("", "-wal", "-shm"):
            with suppress(FileNotFoundError):
                path.with_name(path.name + ending).rename(aside.with_name(aside.name + ending))
        return wrong, aside
    finally:
        lock.release()


def _take(lock: FileLock, folder: Path, timeout: float) -> None:
    """Take the writer's lock, or say who has it."""
    try:
        lock.acquire(timeout=timeout)
    except Timeout:
        raise StoreLockedError(
            f"{folder} is being written by {_described(folder / _HOLDER)}: wait until it ends, or stop it"
        ) from None


def _inode(path: Path) -> tuple[int, int] | None:
    """What tells a file from another one that has its name."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


def _of_length_1(windows: bytes) -> bool:
    """Whether the rows of a vector have length 1, as all do: then the sum of squares counts them."""
    if not windows or len(windows) % 4:
        return False
    values = np.frombuffer(windows, "<f4").astype(np.float64)
    total = float(values @ values)
    return bool(np.isfinite(total)) and round(total) >= 1 and abs(total - round(total)) < 1e-3 * total


def _execute_all(db: sqlite3.Connection, statements: str) -> None:
    # Not executescript, which would commit the transaction.
    for statement in statements.split(";\n"):
        db.execute(statement)


def _replacements(db: sqlite3.Connection) -> tuple[dict[int, str], dict[int, list[int]], list[list[int]]]:
    """Paths as shown of the documents that replace others; {document: those that replace it, in order of their paths};
    and the circles that were left out of this, each in the order of replacing."""
    paths: dict[int, str] = {}
    replaced_by: dict[int, list[int]] = {}
    rows = db.execute(
        f"SELECT documents.id, replaces, documents.path, root_id, {_SHOWN_PATH} FROM {_OF_DOCUMENTS}"
        " WHERE replaces IS NOT NULL ORDER BY 5"
    ).fetchall()
    for key, names, path, root_id, shown in rows:
        paths[key] = shown
        beside = path.rpartition("/")[0]
        for name in json.loads(names):
            near = os.path.normpath(f"{beside}/{name}").replace(os.sep, "/").lstrip("/")
            for other in _named(db, root_id, name) or _named(db, root_id, near):
                if other != key and key not in replaced_by.setdefault(other, []):
                    replaced_by[other].append(key)
    circles: list[list[int]] = []
    while True:
        try:
            TopologicalSorter(replaced_by).prepare()
            return paths, {key: by for key, by in replaced_by.items() if by}, circles
        except CycleError as error:
            circle = error.args[1]
            for new, old in zip(circle, circle[1:], strict=False):
                replaced_by[old].remove(new)
            circles.append(circle[:-1])


def _named(db: sqlite3.Connection, root_id: int, name: str) -> list[int]:
    """The documents of a root that have this path, with or without its ending, or this id in their metadata."""
    rows = db.execute(
        f"SELECT id, path, {_OWN_ID} FROM documents"
        " WHERE (path = :name OR (path > :name || '.' AND path < :name || '/')"
        f" OR {_OWN_ID} = :name) AND (SELECT root_id FROM files WHERE files.id = file_id) = :root",
        {"name": name, "root": root_id},
    )
    return [key for key, path, own_id in rows if name in (path, re.sub(r"\.\w+$", "", path), own_id)]


def _described(holder: Path) -> str:
    try:
        entry = json.loads(holder.read_text())
        who = "this one: another thread, or the store opened twice" if entry["pid"] == os.getpid() else entry["command"]
        return f"process {entry['pid']} ({who}, since {entry['since']})"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"


def _spaced(text: str) -> str:
    """Text as the lexical index sees it: composed, and one word for each character of scripts without spaces."""
    return _UNSPACED_CHARACTER.sub(r" \g<0> ", unicodedata.normalize("NFC", text))


def match_expression(question: str) -> str:
    """A question as an FTS5 expression in which everything is a word: no operator, column, prefix or quote survives."""
    terms: dict[str, None] = {}
    for part in _QUESTION_PART.findall(unicodedata.normalize("NFC", question)):
        if _UNSPACED_CHARACTER.match(part):
            # Neighbouring pairs: single characters say too little, and a whole run is rarely repeated.
            for at in range(max(1, len(part) - 1)):
                terms[" ".join(part[at : at + 2])] = None
        else:
            terms[part.casefold()] = None
        if len(terms) >= _MAX_QUESTION_WORDS:
            break
    return " OR ".join(f'"{term}"' for term in terms)
