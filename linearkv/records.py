"""Records: one sealed page for each document, with all that the catalogue says of it.

The catalogue is made anew from them without the documents, as states are from the catalogue. A record holds the texts,
headings, places and metadata of a document's chunks, so that a chunk which stands in several documents keeps all of its
places; it does not hold vectors, which are embedded again. States are made of text, but cannot carry this: a document
that is moved, or gains a line at its top, changes what the catalogue says of every chunk and none of their states.

Records lie in a file store of their own, `records/`, which has no budget: a state may be evicted, a record may not. A
record's key is of the document's place and its tag of all that it says, so that what is new, changed or gone is seen
without reading any.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import torch
from blake3 import blake3

from linearkv.cache import FileStore, Hit, NotStored, Page, VerifyReport, encode
from linearkv.errors import StoreDamagedError

FOLDER = "records"
_GROUP, _GROUP_BYTES = 1024, 16 << 20


class Records:
    """The records of one tenant.

    Args:
        folder: the tenant's.
        secret: the tenant's 32 bytes.
        read_only: change nothing on disk.
    """

    def __init__(self, folder: Path, secret: bytes, *, read_only: bool = False) -> None:
        self.folder = folder / FOLDER
        self._secret = secret
        self._read_only = read_only
        self._name_key = blake3(secret, derive_key_context="LinearKV record 1").digest()

    def keep(
        self, records: Iterable[dict[str, Any]], progress: Callable[[int, int | None], None] | None = None
    ) -> list[str]:
        """Brings them in step with the catalogue's (`DocumentStore.records`), durably when it returns.

        What is new or changed is written before anything that is gone is removed.

        Args:
            progress: called with (records looked at, None).

        Returns:
            Why some could not be written, one reason of each kind.
        """
        reasons: dict[str, str] = {}
        with closing(self._open()) as files:
            present = files.tags()
            durable = files.contains(present)
            gone = set(present)
            group: list[Page] = []
            size = 0
            for done, (key, tag, data) in enumerate(map(self._named, records), 1):
                if progress is not None:
                    progress(done, None)
                gone.discard(key)
                if present.get(key) == tag and key in durable:
                    continue
                tensor = torch.frombuffer(bytearray(data), dtype=torch.uint8)
                group.append(encode(key, {"record": tensor}, secret=self._secret, tag=tag, kind="record"))
                size += len(data)
                if len(group) == _GROUP or size > _GROUP_BYTES:
                    _put(files, group, reasons)
                    group, size = [], 0
            _put(files, group, reasons)
            files.delete(gone)
        return list(reasons.values())

    def missing(self, records: Iterable[dict[str, Any]]) -> int:
        """How many of the catalogue's records are not here as they should be."""
        with closing(self._open(read_only=True)) as files:
            present = files.tags()
        return sum(present.get(key) != tag for key, tag, _ in map(self._named, records))

    def count(self) -> int:
        """How many there are."""
        with closing(self._open(read_only=True)) as files:
            return len(files.keys())

    def read(self) -> Iterator[dict[str, Any]]:
        """Every record, for `DocumentStore.put_record`. Call `verify` first, which takes damaged ones out of the way.

        Raises:
            StoreDamagedError: one cannot be read all the same.
        """
        with closing(self._open()) as files:
            for key in sorted(files.keys()):
                found = files.get([key])[key]
                if not isinstance(found, Hit):
                    raise StoreDamagedError(f"{files.path(key)} is {found.reason}: run linearkv repair again")
                yield json.loads(bytes(found.page.tensors["record"].numpy()))

    def verify(self, progress: Callable[[int, int], None] | None = None) -> VerifyReport:
        """Reads and checks every record; damaged ones are moved to quarantine."""
        with closing(self._open()) as files:
            return files.verify(progress)

    def _named(self, record: dict[str, Any]) -> tuple[str, str, bytes]:
        """Key, tag and bytes of a record."""
        data = json.dumps(record).encode()
        place = json.dumps(record["place"]).encode()
        return blake3(place, key=self._name_key).hexdigest(), blake3(data, key=self._name_key).hexdigest(), data

    def _open(self, read_only: bool = False) -> FileStore:
        return FileStore(self.folder, self._secret, None, read_only=read_only or self._read_only, evict=False)


def _put(files: FileStore, group: list[Page], reasons: dict[str, str]) -> None:
    for outcome in files.put(group).values():
        if isinstance(outcome, NotStored):
            reasons.setdefault(outcome.reason.partition(":")[0], f"records of documents: {outcome.reason}")
