"""Bytes to text, the same on every machine: the locale is never asked, and nothing is dropped without a word."""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable

import charset_normalizer

REPLACEMENT = "\ufffd"

# UTF-32 first: its little-endian mark starts with UTF-16's.
_MARKS = [
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
]
_UNWANTED = re.compile("[\x00\ud800-\udfff]")
_CONTROL = re.compile(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f\x7f]")
_UTF8_SEQUENCE = re.compile(rb"[\xc2-\xdf][\x80-\xbf]|[\xe0-\xef][\x80-\xbf]{2}|[\xf0-\xf4][\x80-\xbf]{3}")


def byte_order_mark(data: bytes) -> tuple[int, str] | None:
    """Length and encoding of the byte-order mark that ``data`` starts with, or None."""
    for mark, encoding in _MARKS:
        if data.startswith(mark):
            return len(mark), encoding
    return None


def looks_binary(data: bytes) -> bool:
    """Whether the bytes are no text in any encoding known here: many control bytes, and not UTF-16 or UTF-32."""
    sample = data[:65536]
    if byte_order_mark(sample) or _bare_utf16(sample):
        return False
    # Compressed or random bytes have a tenth of them; a text may hold a stray one, however short it is.
    return len(_CONTROL.findall(sample)) > 2 + 0.03 * len(sample)


def decode(data: bytes, note: Callable[[str], None], declared: str | None = None) -> str:
    """Text of a file.

    In this order: a byte-order mark; UTF-8; the encoding that the file itself declares; UTF-16 by its zero bytes;
    UTF-8 with a few stray bytes (replaced and counted); windows-1252; the best guess of charset-normalizer.

    note: called with one sentence for each thing that a reader of the report should know.
    """
    mark = byte_order_mark(data)
    if mark:
        length, encoding = mark
        return clean(_forgiving(data[length:], encoding, note), note)
    try:
        return clean(data.decode("utf-8"), note)
    except UnicodeDecodeError:
        pass
    if declared:
        try:
            return clean(data.decode(declared), note)
        except (LookupError, UnicodeError):
            note(f"declares the encoding {declared!r}, which its bytes do not fit: ignored")
    bare = _bare_utf16(data[:65536])
    if bare:
        note(f"has no byte-order mark: read as {bare} because of its zero bytes")
        return clean(_forgiving(data, bare, note), note)
    text = data.decode("utf-8", "replace")
    strays = text.count(REPLACEMENT) - data.count(REPLACEMENT.encode())
    if len(_UTF8_SEQUENCE.findall(data)) >= 2 * strays:
        return clean(_forgiving(data, "utf-8", note), note)
    western = _windows_1252(data)
    if western is not None:
        note("is not UTF-8: read as windows-1252")
        return clean(western, note)
    best = charset_normalizer.from_bytes(data).best()
    if best is not None:
        note(f"is not UTF-8: read as {best.encoding}, the best guess; save it as UTF-8 to be sure")
        return clean(data.decode(best.encoding, "replace"), note)
    return clean(_forgiving(data, "utf-8", note), note)


def clean(text: str, note: Callable[[str], None] = lambda _: None) -> str:
    """Text as the store and the model may see it: newlines as ``\\n``; zero characters and lone surrogates, which
    SQLite and tokenisers cannot carry, as U+FFFD; byte-order marks from the middle of joined files removed."""
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    text, replaced = _UNWANTED.subn(REPLACEMENT, text)
    if replaced:
        note(f"{replaced} character(s) that cannot be stored (NUL or lone surrogate) shown as {REPLACEMENT}")
    marks = text.count("\ufeff")
    if marks:
        text = text.replace("\ufeff", "")
        note(f"{marks} byte-order mark(s) inside the text removed")
    return text


def _forgiving(data: bytes, encoding: str, note: Callable[[str], None]) -> str:
    """Decode, with each undecodable byte run replaced, counted and the first one located."""
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        shown = data[error.start : error.end].hex(" ")
        text = data.decode(encoding, "replace")
        count = text.count(REPLACEMENT) - data.decode(encoding, "ignore").count(REPLACEMENT)
        note(f"{count} place(s) are not {encoding}, the first in line {line} (bytes {shown}): shown as {REPLACEMENT}")
        return text


def _bare_utf16(sample: bytes) -> str | None:
    """UTF-16 without a mark: mostly ASCII characters, so nearly every second byte is zero."""
    if len(sample) < 8:
        return None
    even, odd = sample[0::2], sample[1::2]
    if odd.count(0) > 0.6 * len(odd) and even.count(0) < 0.05 * len(even):
        return "utf-16-le"
    if even.count(0) > 0.6 * len(even) and odd.count(0) < 0.05 * len(odd):
        return "utf-16-be"
    return None


def _windows_1252(data: bytes) -> str | None:
    """The text, if it reads like a western European one: few accented letters, and no symbols inside words."""
    try:
        text = data.decode("cp1252")
    except UnicodeDecodeError:
        return None
    letters = sum(char.isalpha() for char in text)
    accented = sum(char.isalpha() and char > "\x7f" for char in text)
    if accented > 0.3 * letters or re.search(r"[^\W\d_][¡-¿×÷][^\W\d_]", text):
        return None
    return text
