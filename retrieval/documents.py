"""What loading a corpus yields: documents with their headings, and report lines for everything else."""

from __future__ import annotations

import bisect
import json
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from blake3 import blake3


@dataclass(frozen=True)
class Skipped:
    """Something that was not indexed: ``path`` as shown to people (escaped), and why."""

    path: str
    reason: str


@dataclass(frozen=True)
class Note:
    """Something that was indexed, but not quite as found (an encoding was assumed, a character replaced)."""

    path: str
    text: str


@dataclass(frozen=True)
class Section:
    """One heading and the text up to the next heading, as offsets into ``Document.text``.

    ``text[start:body]`` is the heading as written (empty before the first heading), ``text[body:end]`` what follows it.
    """

    heading_path: tuple[str, ...]
    level: int
    start: int
    body: int
    end: int


@dataclass
class Document:
    """One document of a corpus: a file, or one record of a JSON lines file.

    path      POSIX path relative to the indexed root; a record is ``file.jsonl#id``
    text      the whole text, newlines as ``\\n``; front matter included, but in no section
    sections  in order, without gaps or overlaps, covering ``text`` behind the front matter
    format    "markdown" (sections are split along Markdown structure) or "text"
    record_line  the line of a JSON lines file this document was; None for a file of its own
    page_starts  offsets at which the pages of a paged document start
    """

    path: str
    text: str
    sections: list[Section]
    title: str = ""
    metadata: dict[str, Any] = field(default_factory=dict)
    format: str = "text"
    record_line: int | None = None
    page_starts: tuple[int, ...] = ()

    @cached_property
    def content_hash(self) -> str:
        """BLAKE3 of everything but the path, so that a moved document is recognised."""
        head = json.dumps([self.title, self.metadata, self.format, self.record_line], sort_keys=True)
        return blake3(f"{head}\n{self.text}".encode()).hexdigest()

    @cached_property
    def _line_starts(self) -> list[int]:
        starts, at = [0], self.text.find("\n")
        while at >= 0:
            starts.append(at + 1)
            at = self.text.find("\n", at + 1)
        return starts

    def line_at(self, offset: int) -> int:
        """1-based line of the source at ``offset`` (of the extracted text for HTML and PDF)."""
        if self.record_line is not None:
            return self.record_line
        return bisect.bisect_right(self._line_starts, offset)

    @property
    def superseded(self) -> str | None:
        """Why this document stays out of the index by its own metadata, or None."""
        status = str(self.metadata.get("status", "")).strip().lower()
        return f"its metadata says status: {status}" if status in ("superseded", "deprecated") else None

    @property
    def replaces(self) -> list[str]:
        """Ids or paths of the documents that this one replaces."""
        if self.superseded:
            return []
        value = self.metadata.get("replaces") or []
        return [str(item).strip() for item in (value if isinstance(value, list) else [value]) if str(item).strip()]


def whole(text: str, heading: str = "") -> list[Section]:
    """The sections of a text without structure of its own: one, under ``heading`` if there is one."""
    return [Section((heading,) if heading else (), 1 if heading else 0, 0, 0, len(text))]
