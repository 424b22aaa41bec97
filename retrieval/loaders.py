"""Read one file into documents. Whatever is wrong with a file becomes a report line; nothing here ends the run.

Markdown and reStructuredText keep their source text: headings are found, nothing is rendered, no directive is executed.
HTML is reduced to its main text as Markdown, PDF to the text of its pages. A JSON lines file gives one document for
each line. Everything else that is text, source code included, is one section of plain text.
"""

from __future__ import annotations

import io
import json
import math
import os
import re
import stat
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any, BinaryIO

import yaml
from markdown_it import MarkdownIt

from .decoding import byte_order_mark, clean, decode, looks_binary
from .documents import Document, Note, Section, Skipped, whole
from .walking import Found, Unreadable

Item = Document | Skipped | Note

MAX_BYTES = 64 << 20
_MAX_FRONT_MATTER = 64 << 10
# Of metadata: far from where any parser that it goes through later would give up.
_MAX_LEVELS = 50
# Up to these sizes, in characters, structure is read: the parsers take 50 to 100 times the memory of their text, and
# docutils takes seconds for 100 kB.
_MAX_MARKDOWN = 8 << 20
_MAX_RST = 512 << 10
_MAX_HTML = 8 << 20
_MARKDOWN = {".md", ".markdown", ".mdown", ".mkd", ".mdx"}
_RST = {".rst", ".rest"}
_HTML = {".html", ".htm", ".xhtml"}
_JSON_LINES = {".jsonl", ".ndjson"}
_TEXT_FIELDS = ("text", "content", "body")
_NO_LOADER = frozenset(
    suffix
    for group in (
        ".docx .doc .xlsx .xls .pptx .ppt .odt .ods .odp .epub",
        ".zip .gz .bz2 .xz .zst .tar .7z .rar .jar .whl",
        ".png .jpg .jpeg .gif .webp .bmp .tiff .ico .mp3 .mp4 .wav .flac .ogg .avi .mov .mkv .woff .woff2 .ttf .otf",
        ".so .dll .dylib .exe .o .a .pyc .class .bin .safetensors .pt .pth .onnx .gguf .npy .npz .parquet .sqlite .db",
    )
    for suffix in group.split()
)


def load(found: Found, max_bytes: int = MAX_BYTES) -> Iterator[Item]:
    """Documents and report lines of one file, in the order of the file.

    max_bytes: larger files are skipped; for JSON lines, which are read line by line, it bounds a line.
    """
    try:
        yield from _load(found, max_bytes)
    except Exception as error:  # whatever a parser trips over, one file must not end the run
        yield Unreadable(found.path, f"cannot be read: {type(error).__name__}: {' '.join(str(error).split())[:200]}")


def _load(found: Found, max_bytes: int) -> Iterator[Item]:
    suffix = PurePosixPath(found.path).suffix.lower()
    if suffix in _NO_LOADER:
        yield Skipped(found.path, f"{suffix} files are not read")
        return
    try:
        with _open_regular(found.location) as file:
            if suffix in _JSON_LINES:
                yield from _json_lines(found.path, file, max_bytes)
                return
            data = file.read(max_bytes + 1)
    except _NotRegular as error:
        yield Skipped(found.path, str(error))
        return
    except OSError as error:
        yield Unreadable(found.path, f"cannot be read: {error.strerror}")
        return
    if len(data) > max_bytes:
        yield Skipped(found.path, f"larger than the limit of {max_bytes:,} bytes")
        return
    yield from _parse(found.path, suffix, data)


def _parse(path: str, suffix: str, data: bytes) -> Iterator[Item]:
    if not data:
        yield Skipped(path, "empty")
        return
    if suffix == ".pdf":
        yield from _pdf(path, data)
        return
    if looks_binary(data):
        yield Skipped(path, "binary, not text")
        return
    notes: list[str] = []
    text = decode(data, notes.append, _declared_charset(data) if suffix in _HTML else None)
    if suffix in _HTML:
        document = _html(path, text, notes)
    elif suffix in _MARKDOWN:
        document = _markdown(path, text, notes)
    elif suffix in _RST:
        document = _rst(path, text, notes)
    else:
        document = Document(path, text, whole(text), title=_stem(path))
    yield from (Note(path, note) for note in notes)
    if isinstance(document, Skipped) or any(
        document.text[section.start : section.end].strip() for section in document.sections
    ):
        yield document
    else:
        yield Skipped(path, "empty behind its front matter" if document.metadata else "empty")


class _NotRegular(Exception):
    pass


def _open_regular(location: str) -> BinaryIO:
    # Non-blocking, then checked: the file may have become a pipe since it was listed.
    descriptor = os.open(location, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _NotRegular("not a regular file: not read")
    return os.fdopen(descriptor, "rb")


def _stem(path: str) -> str:
    return PurePosixPath(path).stem


# ---- Markdown -------------------------------------------------------------------------------------------------------


def _markdown(path: str, text: str, notes: list[str]) -> Document:
    metadata, start = front_matter(text, notes)
    if len(text) > _MAX_MARKDOWN:
        notes.append(f"Markdown over {_MAX_MARKDOWN:,} characters: its headings are not read")
        sections = [Section((), 0, start, start, len(text))]
    else:
        sections = _markdown_sections(text, start)
    return Document(path, text, sections, _title(path, metadata, sections), metadata, format="markdown")


def _title(path: str, metadata: dict[str, Any], sections: list[Section]) -> str:
    first = next((section.heading_path[-1] for section in sections if section.heading_path), "")
    return str(metadata.get("title") or first or _stem(path))


def _markdown_sections(text: str, start: int) -> list[Section]:
    """Sections of ``text[start:]``. Only headings of the document itself count, not those in quotes or lists."""
    parser = MarkdownIt("commonmark").enable("table").disable("inline")  # structure only: inline markup stays source
    tokens = parser.parse(text[start:])
    line_starts = [start] + [match.end() for match in re.compile("\n").finditer(text, start)] + [len(text)]
    headings = []
    for opening, inline in zip(tokens, tokens[1:], strict=False):
        if opening.type == "heading_open" and opening.level == 0 and opening.map:
            first, last = opening.map
            headings.append((int(opening.tag[1]), inline.content, line_starts[first], line_starts[last]))
    return _sections(headings, start, len(text))


def _sections(headings: list[tuple[int, str, int, int]], start: int, end: int) -> list[Section]:
    """From (level, title, start, end of the heading as written), in order, to sections that cover start..end."""
    first = headings[0][2] if headings else end
    sections = [Section((), 0, start, start, first)] if first > start else []
    above: list[tuple[int, str]] = []
    for index, (level, title, at, body) in enumerate(headings):
        above = [entry for entry in above if entry[0] < level] + [(level, " ".join(title.split()))]
        until = headings[index + 1][2] if index + 1 < len(headings) else end
        sections.append(Section(tuple(name for _, name in above if name), level, at, body, until))
    return sections


class _PlainYaml(yaml.SafeLoader):
    """Safe YAML without aliases: a few nested ones expand to gigabytes when written out again."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases (*name) are not supported")
        return super().compose_node(parent, index)


def front_matter(text: str, notes: list[str]) -> tuple[dict[str, Any], int]:
    """Metadata between ``---`` lines at the start of ``text`` (the first 64 Ki characters), and the offset behind it.
    Front matter that is not valid YAML is left in the text, with a note."""
    start = text[:_MAX_FRONT_MATTER]
    match = re.match(r"---[ \t]*\n(.*?)(?<=\n)(?:---|\.\.\.)[ \t]*(?:\n|\Z)", start, re.DOTALL)
    if not match:
        return {}, 0
    try:
        value = plain(yaml.load(match[1], _PlainYaml))  # noqa: S506 (a SafeLoader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        notes.append(f"front matter is not valid YAML ({' '.join(str(error).split())[:200]}): left in the text")
        return {}, 0
    if value is None:
        return {}, match.end()
    if not isinstance(value, dict):
        # Two horizontal rules with prose between them are Markdown, not broken front matter.
        return {}, 0
    return value, match.end()


def plain(value: Any, levels: int = _MAX_LEVELS) -> Any:
    """Metadata as JSON can carry it: string keys, dates and unusual numbers as strings, storable characters.

    Raises ValueError for what is nested too deeply, and for integers of thousands of digits.
    """
    if not levels:
        raise ValueError(f"nested more than {_MAX_LEVELS} levels deep")
    if isinstance(value, dict):
        return {clean(str(key)): plain(item, levels - 1) for key, item in value.items()}
    if isinstance(value, (list, tuple, set)):
        return [plain(item, levels - 1) for item in value]
    if isinstance(value, str):
        return clean(value)
    if value is None or isinstance(value, bool):
        return value
    # Compared before anything else: an integer may be too large for a float.
    if isinstance(value, (int, float)) and abs(value) < 2**53 and math.isfinite(value):
        return value
    return clean(str(value))


# ---- reStructuredText -----------------------------------------------------------------------------------------------

_RST_SETTINGS = {
    "_disable_config": True,
    "file_insertion_enabled": False,  # include, csv-table :file: and :url: read nothing
    "raw_enabled": False,
    "doctitle_xform": False,
    "report_level": 5,
    "halt_level": 6,
    "warning_stream": False,
}


def _rst(path: str, text: str, notes: list[str]) -> Document:
    sections = whole(text)
    if len(text) > _MAX_RST:
        notes.append(f"reStructuredText over {_MAX_RST:,} characters: its headings are not read")
    else:
        try:
            sections = _rst_sections(text)
        except (Exception, RecursionError) as error:
            # docutils raises whatever an odd construct trips over; the text itself is good.
            notes.append(f"its headings could not be read ({type(error).__name__}): indexed as plain text")
    return Document(path, text, sections, _title(path, {}, sections))


def _rst_sections(text: str) -> list[Section]:
    from docutils import nodes
    from docutils.core import publish_doctree

    tree = publish_doctree(text, settings_overrides=dict(_RST_SETTINGS))
    titles: list[tuple[int, str]] = []

    def collect(node: Any, level: int) -> None:
        for child in node.children:
            if isinstance(child, nodes.section):
                title = child.next_node(nodes.title)
                titles.append((level, title.rawsource if title is not None else ""))
                collect(child, level + 1)

    collect(tree, 1)
    # docutils keeps no reliable line of a title: find each, in order, by its text and the line of punctuation below.
    lines = text.split("\n")
    offsets = [0]
    for line in lines:
        offsets.append(min(len(text), offsets[-1] + len(line) + 1))
    adornment = re.compile(r"([^\w\s])\1*\s*$", re.ASCII)
    headings, at = [], 0
    for level, title in titles:
        for row in range(at, len(lines) - 1):
            if lines[row].strip() == title.strip() and adornment.match(lines[row + 1]):
                over = row > at and lines[row - 1].rstrip() == lines[row + 1].rstrip()
                headings.append((level, title, offsets[row - 1 if over else row], offsets[row + 2]))
                at = row + 2
                break
    return _sections(headings, 0, len(text))


# ---- HTML and PDF ---------------------------------------------------------------------------------------------------


def _missing(path: str, package: str, error: ImportError) -> Unreadable:
    broken = "" if isinstance(error, ModuleNotFoundError) else f" (it is there, but: {' '.join(str(error).split())})"
    return Unreadable(path, f"needs {package}: pip install 'linearkv[docs]'{broken}")


def _declared_charset(data: bytes) -> str | None:
    match = re.search(
        rb"""<meta[^>]{0,200}?charset\s*=\s*["']?\s*([A-Za-z0-9_.:-]{2,40})""", data[:4096], re.IGNORECASE
    )
    return match[1].decode() if match else None


def _html(path: str, source: str, notes: list[str]) -> Document | Skipped:
    try:
        import trafilatura
    except ImportError as error:
        return _missing(path, "trafilatura", error)
    if len(source) > _MAX_HTML:
        return Skipped(path, f"HTML over {_MAX_HTML:,} characters: split the page, or save it as text")
    try:
        text = trafilatura.extract(
            source, output_format="markdown", include_tables=True, include_comments=False, favor_recall=True
        )
        if not text:
            text = trafilatura.html2txt(source)
            if not text or not text.strip():
                return Skipped(path, "no text was found in the page")
            notes.append("no main text was recognised: all text of the page is indexed")
        described = trafilatura.extract_metadata(source)
    except Exception as error:  # a parser of arbitrary pages: one bad page must not end the run
        return Skipped(path, f"the HTML could not be parsed: {type(error).__name__}: {error}")
    text = clean(text or "")
    sections = _markdown_sections(text, 0)
    title = clean(described.title) if described is not None and described.title else ""
    metadata = {"title": title} if title else {}
    return Document(path, text, sections, _title(path, metadata, sections), metadata, format="markdown")


def _pdf(path: str, data: bytes) -> Iterator[Item]:
    try:
        import pypdf
    except ImportError as error:
        yield _missing(path, "pypdf", error)
        return
    pages: list[str] = []
    notes: list[str] = []
    try:
        reader = pypdf.PdfReader(io.BytesIO(data))
        if reader.is_encrypted and not reader.decrypt(""):
            yield Skipped(path, "an encrypted PDF: its password is needed")
            return
        for number, page in enumerate(reader.pages, 1):
            try:
                pages.append(clean(page.extract_text() or "", notes.append))
            except Exception as error:
                pages.append("")
                notes.append(f"page {number} could not be read ({type(error).__name__}: {error})")
        title = str(reader.metadata.get("/Title") or "") if reader.metadata else ""
    except Exception as error:  # pypdf raises many kinds on damaged files
        yield Skipped(path, f"the PDF could not be read: {type(error).__name__}: {error}")
        return
    yield from (Note(path, note) for note in notes)
    starts, text = [], ""
    for content in pages:
        starts.append(len(text))
        text += content.rstrip() + "\n\n"
    if not text.strip():
        yield Skipped(path, "a PDF without text (scanned pages?): run it through text recognition first")
        return
    yield Document(path, text, whole(text), clean(title) or _stem(path), page_starts=tuple(starts))


# ---- JSON lines -----------------------------------------------------------------------------------------------------


def _json_lines(path: str, file: BinaryIO, max_bytes: int) -> Iterator[Item]:
    """One document for each line, read one at a time: memory does not grow with the file."""
    taken: dict[str, int] = {}
    number = documents = 0
    for number, line in enumerate(_lines(file, max_bytes), 1):
        if line is None:
            yield Skipped(f"{path}#line-{number}", f"a line larger than the limit of {max_bytes:,} bytes")
            continue
        notes: list[str] = []
        text = decode(line, notes.append)
        if not text.strip():
            continue
        item = _record(path, number, text, notes, taken)
        yield from (Note(item.path, note) for note in notes)
        documents += isinstance(item, Document)
        yield item
    if not number:
        yield Skipped(path, "empty")
    elif not documents:
        yield Skipped(path, "no record in it could be indexed")


def _lines(file: BinaryIO, max_bytes: int) -> Iterator[bytes | None]:
    """Lines without their end, in UTF-8 wherever the file starts with a mark; None for a line over the limit."""
    mark = byte_order_mark(file.read(4))
    if mark and mark[1] != "utf-8":
        file.seek(mark[0])
        wide = io.TextIOWrapper(file, encoding=mark[1], errors="replace", newline="\n")
        while wide_line := wide.readline(max_bytes + 1):
            yield None if len(wide_line) > max_bytes else wide_line.encode()
        return
    file.seek(mark[0] if mark else 0)
    while line := file.readline(max_bytes + 1):
        if len(line) > max_bytes:
            while not line.endswith(b"\n") and (line := file.readline(1 << 20)):
                pass
            yield None
        else:
            yield line


def _record(path: str, number: int, line: str, notes: list[str], taken: dict[str, int]) -> Document | Skipped:
    here = f"{path}#line-{number}"
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        return Skipped(here, f"line {number} is not valid JSON: {error}")
    if not isinstance(record, dict):
        return Skipped(here, f"line {number} is a JSON {type(record).__name__}, not an object")
    field = next((name for name in _TEXT_FIELDS if isinstance(record.get(name), str)), None)
    if field is None:
        has = ", ".join(map(repr, list(record)[:10])) or "nothing"
        return Skipped(here, f"line {number} has no string field {' / '.join(_TEXT_FIELDS)}; it has {has}")
    text = clean(record[field], notes.append)
    if not text.strip():
        return Skipped(here, f"line {number} has an empty {field!r}")
    title = clean(str(record.get("title") or ""))
    try:
        metadata = {key: value for key, value in plain(record).items() if key != field}
    except ValueError as error:
        return Skipped(here, f"line {number} has metadata that cannot be kept: {error}")
    name = _record_name(record.get("id"), number)
    seen = taken[name] = taken.get(name, 0) + 1
    if seen > 1:
        notes.append(f"line {number} repeats the id {name!r}: indexed as {name}~{seen}")
        name = f"{name}~{seen}"
    return Document(f"{path}#{name}", text, whole(text, title), title or name, metadata, record_line=number)


def _record_name(value: Any, number: int) -> str:
    if isinstance(value, bool) or not isinstance(value, (str, int)) or value == "":
        return f"line-{number}"
    text = clean(str(value))[:200]
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
