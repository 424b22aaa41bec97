"""Text for people: terminals and pipes, sizes and counts. Standard output holds results, standard error the rest."""

import os
import re
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.console import Console

# Documents, file names and answers are data: they must not move a terminal's cursor or colour it.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def console_for(stream: TextIO) -> "Console":
    """A console that writes what it is given, without markup or guessed colours; plain where `stream` is no terminal.

    A pipe has no width, so nothing is wrapped or cut there.
    """
    from rich.console import Console

    width = None if stream.isatty() else 10_000
    return Console(file=stream, markup=False, highlight=False, emoji=False, soft_wrap=True, width=width)


def utf8(text: str) -> str:
    """An argument or environment variable as the UTF-8 that it is; as the locale says where it is not UTF-8.

    Python decodes them by the locale, so under LC_ALL=C a question in French arrives in pieces that no tokenizer takes.
    """
    try:
        return os.fsencode(text).decode("utf-8")
    except UnicodeError:
        return text


def plain(text: str) -> str:
    """`text` without control characters, each shown as a replacement mark."""
    return _CONTROL.sub("\ufffd", text)


def size(count: float) -> str:
    """Bytes for people: `812 B`, `1.1 MB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def seconds(value: float) -> str:
    """A time for people: `31 ms`, `2.4 s`, `3 min 05 s`."""
    if value < 0.9995:
        return f"{value * 1000:.0f} ms"
    if value < 60:
        return f"{value:.1f} s"
    return f"{int(value) // 60} min {int(value) % 60:02} s"
