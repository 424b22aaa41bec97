"""What every tier of the page cache does, and what it answers.

A store maps keys to pages. Everything it is asked for many keys at once it answers key by key: one damaged or missing
page never spoils the others, and a page that cannot be had is an answer (`Miss`), not an exception.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol
from urllib.parse import urlsplit

from linearkv.cache.pages import Page


class Hit(NamedTuple):
    """The page, verified."""

    page: Page
    tier: str
    """Where it was found: "memory", "disk" or "remote". For the first who asks for what was prefetched: where that was
    found."""
    bytes_loaded: int
    """Bytes read for it from disk or remote; 0 for a memory hit."""


class Miss(NamedTuple):
    """No page; compute it again and put it."""

    reason: str
    """"absent", "damaged: <why>" (moved to quarantine where possible) or "unreadable: <why>" (left in place)."""

    @property
    def damaged(self) -> bool:
        """Something was there and it was not the page."""
        return self.reason.startswith("damaged")


class Stored(NamedTuple):
    """The page is in the store; in a file tier it survives a power cut from now on."""

    bytes: int


class NotStored(NamedTuple):
    """The page is not in the store; everything stored before still is, apart from what was evicted to make room."""

    reason: str
    """"over budget: …", "disk full: …", "read-only: …" or "failed: …", each with the numbers or the system's words."""

    @property
    def lasting(self) -> bool:
        """Other pages would not be stored either."""
        return not self.reason.startswith("failed")


@dataclass
class TierStat:
    """The state of one tier. Counters start at zero when the store is opened; bytes are bytes, not pages' estimates."""

    tier: str
    pages: int = 0
    bytes: int = 0
    """Held now: bytes of memory, or of the blocks that the files take on disk."""
    budget: int | None = None
    """`bytes` is kept at or below it; None is unlimited."""
    hits: int = 0
    misses: int = 0
    """Keys that were absent or unreadable; damaged ones are counted apart."""
    damaged: int = 0
    evicted: int = 0
    not_kept: int = 0
    """Pages put that are not kept: larger than the budget, disk full, read-only."""
    bytes_loaded: int = 0
    bytes_written: int = 0
    quarantined: int = 0
    """Objects in quarantine now."""
    writable: bool = True
    """False once a write was refused by the system, or when opened for reading."""
    folder: str = ""


@dataclass
class VerifyReport:
    """What reading and checking every page found."""

    pages: int = 0
    """Pages that are exactly as written."""
    bytes: int = 0
    damaged: list[tuple[str, str]] = field(default_factory=list)
    """(key, reason); also those that could not be read."""
    orphans: list[str] = field(default_factory=list)
    """Temporary files of writers that did not finish; removed when a writer opens the store."""
    foreign: list[str] = field(default_factory=list)
    """Paths inside the store that are not ours. They are left alone and never read."""
    unread: list[str] = field(default_factory=list)
    """What could not be asked for its pages, and why."""

    @property
    def clean(self) -> bool:
        """Every page found is good. Orphans and foreign files do no harm."""
        return not self.damaged


Progress = Callable[[int, int], None]
"""Called with (done, total)."""


class PageStore(Protocol):
    """A tier, or several behind one another. All methods may be called from any thread."""

    def put(self, pages: Sequence[Page], *, bulk: bool = False) -> dict[str, Stored | NotStored]:
        """Keep pages, replacing those of the same key; return what became of each.

        `bulk` is for pages that nobody asked for yet, as when a corpus is indexed: they go to the lasting tier alone,
        so that they neither fill memory nor push out of it what is in use.

        When this returns, a `Stored` page of a file tier is on disk: data, name and folder are synchronised. May evict
        the pages not used for longest. A page of this very call is evicted only if the call alone exceeds the budget;
        then the last of it are kept. Never raises for a full, failing or read-only disk.
        """
        ...

    def get(self, keys: Sequence[str]) -> dict[str, Hit | Miss]:
        """Look pages up; return an answer for each key.

        A page from disk or remote was verified completely while it was read. Marks hits as used. Moves a damaged page
        to quarantine, so that the next put heals it. Never raises for anything found or not found on disk.
        """
        ...

    def prefetch(self, keys: Sequence[str]) -> None:
        """Begin to bring pages into memory; return at once. A hint: no answer, no error, no promise.

        Nothing has to go for them but what was prefetched before and never asked for.
        """
        ...

    def contains(self, keys: Iterable[str]) -> set[str]:
        """Those of `keys` that are in the store's lasting tier, without reading them: a get may find one damaged."""
        ...

    def locate(self, keys: Iterable[str]) -> dict[str, tuple[str, int]]:
        """Of those of `keys` that are present, the fastest tier that has the page, and its bytes. Reads no page."""
        ...

    def keys(self) -> list[str]:
        """All keys present, in no particular order."""
        ...

    def tags(self) -> dict[str, str]:
        """Key -> tag of every page present, as its first bytes claim, without checking them."""
        ...

    def touch(self, keys: Iterable[str]) -> None:
        """Mark pages as used now, so that they are not the next to be evicted. Absent keys are no error."""
        ...

    def delete(self, keys: Iterable[str]) -> int:
        """Remove pages; return how many were there. Durable in a file tier. Absent keys are no error."""
        ...

    def stat(self) -> tuple[TierStat, ...]:
        """One entry per tier, fastest first."""
        ...

    def verify(self, progress: Progress | None = None) -> VerifyReport:
        """Read and check every page of the durable tier; move damaged ones to quarantine. Reads everything: slow."""
        ...

    def close(self) -> None:
        """Stop background work and write down recency. The store must not be used afterwards. May be called twice."""
        ...


def server_name(url: str) -> str:
    """Host and port, or the socket's path, of a server's address: what may be shown of it, if anything."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or parts.path, f":{parts.port}" if parts.port else ""
    except ValueError:
        return "an address that is none"
    # An "@" that is left belongs to a password which was not percent-encoded.
    return "an address that is none" if "@" in f"{parts.path}{parts.query}{parts.fragment}" else host + port
