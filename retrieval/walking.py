# Paths are text here, because file names need not be UTF-8 and are compared as they are.
# ruff: noqa: PTH115, PTH116, PTH118, PTH208
"""Find the files of a corpus: every real file once, in a fixed order, and a report line for whatever is left out.

Rules. Names that start with a dot, ``__pycache__`` and ``node_modules`` are not entered. Links are followed inside the
indexed folder only (``follow_outside`` lifts this). A file that can be reached by several names is read under its own
name rather than a link's. Only regular files are opened: no pipes, sockets or devices.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .documents import Skipped

_LEFT_OUT = {"__pycache__", "node_modules"}
_KINDS = [
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a character device"),
    (stat.S_ISBLK, "a block device"),
]


@dataclass(frozen=True)
class Found:
    """A regular file: ``path`` relative to the root as shown (POSIX, escaped), ``location`` to open it by."""

    path: str
    location: str
    size: int


@dataclass(frozen=True)
class Unreadable(Skipped):
    """Skipped for a reason that may lie outside the file: it is tried again at the next run, and what was indexed of it
    earlier stays."""


def shown(name: str) -> str:
    """A file name as printable text, different names staying different: backslashes doubled, bytes that are not UTF-8
    and unprintable characters as escapes. Does not depend on the locale."""
    text = os.fsencode(name).replace(b"\\", b"\\\\").decode("utf-8", "backslashreplace")
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def inside(location: str, folder: str) -> bool:
    """Whether a place is a folder, or in it."""
    return location == folder or location.startswith(folder.rstrip(os.sep) + os.sep)


def relative_path(location: str, folder: str) -> str:
    """Path as shown of something in a folder; "" for the folder itself."""
    relative = os.path.relpath(location, folder)
    return "" if relative == "." else "/".join(map(shown, Path(relative).parts))


def below(file: str, prefix: str) -> bool:
    """Whether a file, by its path as shown, is the file or in the folder at ``prefix``; "" holds all."""
    return prefix in ("", file) or file.startswith(prefix + "/")


def _left_out(name: str) -> str | None:
    if name.startswith("."):
        return "hidden (its name starts with a dot)"
    return "a folder of tools" if name in _LEFT_OUT else None


def walk(
    start: str, *, root: str, follow_outside: bool = False, leave_out: frozenset[str] = frozenset()
) -> Iterator[Found | Skipped]:
    """Every file at or under ``start``, which lies in the folder ``root``; both real, absolute paths.

    leave_out: real paths of folders that are not entered (the store itself, when it lies inside the corpus).
    """
    yield from _Walk(root, follow_outside, leave_out).run(start)


class _Walk:
    def __init__(self, root: str, follow_outside: bool, leave_out: frozenset[str]):
        self.root, self.follow_outside, self.leave_out = root, follow_outside, leave_out
        self.folders: dict[tuple[int, int], str] = {}
        self.files: dict[tuple[int, int], str] = {}
        self.links: list[tuple[str, str]] = []
        # Entries still to visit, the next one last: folders may be nested deeper than Python's stack.
        self.entries: list[tuple[str, str]] = []

    def run(self, start: str) -> Iterator[Found | Skipped]:
        self.entries.append((start, relative_path(start, self.root)))
        links: list[tuple[str, str]] = []
        while self.entries or links or self.links:
            if self.entries:
                yield from self._visit(*self.entries.pop())
            elif links:
                yield from self._follow(*links.pop())
            else:
                # Links come last, so that a file with a name of its own is never known by a link's.
                links, self.links = self.links[::-1], []

    def _visit(self, location: str, path: str) -> Iterator[Found | Skipped]:
        try:
            status = os.lstat(location)
        except FileNotFoundError:
            return  # gone since it was listed or indexed
        except OSError as error:
            yield Unreadable(path, f"cannot be read: {error.strerror}")
            return
        if stat.S_ISLNK(status.st_mode):
            self.links.append((location, path))
        elif stat.S_ISDIR(status.st_mode):
            yield from self._folder(location, path, status)
        else:
            yield self._file(location, path, status)

    def _folder(self, location: str, path: str, status: os.stat_result) -> Iterator[Found | Skipped]:
        seen = self.folders.get((status.st_dev, status.st_ino))
        if seen is not None:
            yield Skipped(path, f"the same folder as {seen or '.'}, which is indexed already")
            return
        if location in self.leave_out:
            yield Skipped(path, "holds the index itself")
            return
        self.folders[status.st_dev, status.st_ino] = path
        try:
            names = sorted(os.listdir(location), key=os.fsencode)
        except OSError as error:
            yield Unreadable(path, f"cannot be read: {error.strerror}")
            return
        entries = []
        for name in names:
            inner = f"{path}/{shown(name)}" if path else shown(name)
            if reason := _left_out(name):
                yield Skipped(inner, reason)
            else:
                entries.append((os.path.join(location, name), inner))
        self.entries += reversed(entries)

    def _file(self, location: str, path: str, status: os.stat_result) -> Found | Skipped:
        if not stat.S_ISREG(status.st_mode):
            kind = next((text for test, text in _KINDS if test(status.st_mode)), "not a regular file")
            return Skipped(path, f"{kind}: not opened")
        seen = self.files.setdefault((status.st_dev, status.st_ino), path)
        if seen != path:
            return Skipped(path, f"the same file as {seen}, which is indexed already")
        return Found(path, location, status.st_size)

    def _follow(self, location: str, path: str) -> Iterator[Found | Skipped]:
        target = os.path.realpath(location)
        try:
            status = os.stat(target)
        except OSError as error:
            reason = "a link to nothing" if isinstance(error, FileNotFoundError) else f"a link: {error.strerror}"
            yield Skipped(path, f"{reason}: {shown(os.readlink(location))}")
            return
        within = inside(target, self.root)
        parts = Path(target[len(self.root) :]).parts if within else ()
        if not within and not self.follow_outside:
            yield Skipped(path, f"a link out of the indexed folder, to {shown(target)} (follow_outside is off)")
        elif any(_left_out(name) for name in parts):
            yield Skipped(path, f"a link to something hidden: {shown(os.readlink(location))}")
        elif stat.S_ISDIR(status.st_mode):
            yield from self._folder(target, path, status)
        else:
            yield self._file(target, path, status)
