"""Cut a document into the chunks that the model prefills: along its headings, each within a number of model tokens.

Small neighbouring sections are merged under their shared heading, large ones are split at the best boundary that keeps
each piece within the target. Nothing but headings repeated in ``heading`` and white space at the seams is left out.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from blake3 import blake3
from semantic_text_splitter import MarkdownSplitter, TextSplitter

from .documents import Document

Measure = Callable[[str], int]
"""Number of model tokens of a text."""

MIN_TARGET = 32
# Text longer than this many characters a token is taken to be over the target without being counted. It bounds the work
# on runs of white space and of anything else that a tokeniser packs tightly, and the size of such chunks.
_CHARACTERS_PER_TOKEN = 12


@dataclass(frozen=True)
class Chunk:
    """A piece of a document. ``text`` is the source without the white space around it.

    heading   the headings it lies under, joined by " > "; empty for none
    ordinal   0-based place in the document
    line_start, line_end  1-based lines of the source, both included
    metadata  what is known of this chunk only (``page`` for paged documents)
    """

    heading: str
    text: str
    line_start: int
    line_end: int
    ordinal: int
    metadata: dict[str, Any] = field(default_factory=dict, compare=False)

    @cached_property
    def rendered(self) -> str:
        """Exactly what the model sees of this chunk."""
        return render(self.heading, self.text)

    @cached_property
    def content_hash(self) -> str:
        """BLAKE3 of ``rendered``: equal chunks of different documents share it, and with it everything computed."""
        return blake3(self.rendered.encode()).hexdigest()


def render(heading: str, text: str) -> str:
    """The fixed form of a chunk: its end never depends on what follows, so neither do its token ids."""
    return f"# {heading}\n{text}\n\n" if heading else f"{text}\n\n"


def chunk_document(document: Document, measure: Measure, target_tokens: int = 512) -> list[Chunk]:
    """Chunks of a document, in order; none is empty.

    measure: counts the model tokens of a rendered chunk.
    target_tokens: no chunk is larger, its heading included; at least 32, so that any single character fits.
    """
    if target_tokens < MIN_TARGET:
        raise ValueError(f"target_tokens is {target_tokens}; use at least {MIN_TARGET}, so that every character fits")
    return _Chunker(document, measure, target_tokens).run()


class _Chunker:
    def __init__(self, document: Document, measure: Measure, target: int):
        self.document, self.sections = document, document.sections
        self.measure, self.target = measure, target
        self.chunks: list[Chunk] = []
        self.headings: dict[tuple[str, ...], str] = {}
        # Running totals of the sections' sizes, so that the size of any range costs nothing. A sum of parts differs a
        # little from the size of the whole: every chunk is measured again before it is kept.
        self.totals = [0]
        for section in self.sections:
            self.totals.append(self.totals[-1] + self.size(document.text[section.start : section.end]))

    def run(self) -> list[Chunk]:
        if self.sections:
            self.pack(0, len(self.sections), (), own=not self.sections[0].heading_path and self.sections[0].level == 0)
        return self.chunks

    def size(self, text: str) -> int:
        limit = self.target * _CHARACTERS_PER_TOKEN
        return self.target + len(text) // _CHARACTERS_PER_TOKEN if len(text) > limit else self.measure(text)

    def fits(self, heading: str, text: str) -> bool:
        return self.size(render(heading, text)) <= self.target

    def heading(self, path: tuple[str, ...]) -> str:
        """The path as one line, or nothing when it would take more than half of a chunk."""
        if path not in self.headings:
            line = " > ".join(path)
            self.headings[path] = line if not line or self.size(f"# {line}\n") <= self.target // 2 else ""
        return self.headings[path]

    def pack(self, first: int, last: int, path: tuple[str, ...], own: bool) -> None:
        """Chunks of the sections first..last, which lie under ``path``; ``own``: the first is the text right under it,
        the others are its subsections."""
        heading = self.heading(path)
        room = self.target - self.size(f"# {heading}\n\n\n")
        group: tuple[int, int] | None = None
        for start, end in self.parts(first, last, own):
            size = self.totals[end] - self.totals[start]
            if group and self.totals[end] - self.totals[group[0]] <= room:
                group = (group[0], end)
                continue
            if group:
                self.keep(*group, heading, own and group[0] == first)
            group = None
            if size <= room:
                group = (start, end)
            elif own and start == first:
                self.keep(start, end, heading, True)
            elif end - start > 1:
                self.pack(start, end, self.sections[start].heading_path, own=True)
            else:
                self.keep_one(start)
        if group:
            self.keep(*group, heading, own and group[0] == first)

    def parts(self, first: int, last: int, own: bool) -> Iterator[tuple[int, int]]:
        """The ranges that a range of sections falls into: its own text, then each subsection with all below it."""
        if own:
            yield first, first + 1
            first += 1
        while first < last:
            end = first + 1
            while end < last and self.sections[end].level > self.sections[first].level:
                end += 1
            yield first, end
            first = end

    def keep(self, first: int, last: int, heading: str, own: bool) -> None:
        """A chunk of the sections first..last-1 under the heading of their parent."""
        head, end, text = self.sections[first], self.sections[last - 1].end, self.document.text
        below = self.sections[first + 1] if first + 1 < len(self.sections) else head
        repeated = below.level > head.level and self.heading(below.heading_path)
        if own and repeated and not text[head.body : head.end].strip():
            # Only a heading, and what stands below it repeats it.
            if last > first + 1:
                self.keep(first + 1, last, heading, own=False)
        elif own:
            self.cut(heading, head.body if heading and text[head.body : end].strip() else head.start, end)
        elif all(section.level > head.level for section in self.sections[first + 1 : last]):
            self.keep_one(first, last)
        else:
            self.cut(heading, head.start, end)

    def keep_one(self, first: int, last: int | None = None) -> None:
        """A chunk of one section, or of a section with all below it, under its own heading."""
        section = self.sections[first]
        end = self.sections[(last or first + 1) - 1].end
        heading = self.heading(section.heading_path)
        if not heading:
            self.cut("", section.start, end)
        elif self.document.text[section.body : end].strip():
            self.cut(heading, section.body, end)
        else:  # a heading with nothing under it is a statement of its own
            self.cut(self.heading(section.heading_path[:-1]), section.start, end)

    def cut(self, heading: str, start: int, end: int) -> None:
        """Chunks of ``text[start:end]``: one if it fits, else as the splitter finds boundaries."""
        text = self.document.text
        if self.fits(heading, _trimmed(text[start:end])):
            self.add(heading, start, end)
            return
        kind = MarkdownSplitter if self.document.format == "markdown" else TextSplitter
        splitter = kind.from_callback(lambda piece: self.size(render(heading, piece)), self.target, trim=False)
        # A block at a time, since the splitter looks at all that is left for each piece that it cuts. The last piece of
        # a block ends where the block does, not at a boundary: it is cut again together with what follows.
        block = 2 * self.target * _CHARACTERS_PER_TOKEN
        while start < end:
            pieces = splitter.chunk_indices(text[start : min(start + block, end)])
            if start + block < end and len(pieces) > 1:
                pieces.pop()
            for _, piece in pieces:
                self.force(heading, start, start + len(piece))
                start += len(piece)

    def force(self, heading: str, start: int, end: int) -> None:
        """Keep ``text[start:end]``, halved until it fits: the splitter keeps some clusters of characters together."""
        if end - start <= 1 or self.fits(heading, _trimmed(self.document.text[start:end])):
            self.add(heading, start, end)
            return
        middle = (start + end) // 2
        self.force(heading, start, middle)
        self.force(heading, middle, end)

    def add(self, heading: str, start: int, end: int) -> None:
        """Append a chunk of ``text[start:end]``, unless that is blank."""
        text = self.document.text[start:end]
        kept = _trimmed(text)
        if not kept:
            return
        start += text.index(kept)
        pages = self.document.page_starts
        self.chunks.append(
            Chunk(
                heading,
                kept,
                self.document.line_at(start),
                self.document.line_at(start + len(kept) - 1),
                len(self.chunks),
                {"page": bisect.bisect_right(pages, start)} if pages else {},
            )
        )


def _trimmed(text: str) -> str:
    """Without blank lines at the start and white space at the end; indentation stays, since code needs it."""
    text = text.rstrip()
    blank = text[: len(text) - len(text.lstrip())]
    return text[blank.rfind("\n") + 1 :]
