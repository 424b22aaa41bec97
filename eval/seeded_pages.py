"""Pages whose bytes follow from a number and a version, so that whoever reads one can tell whether it is right.

What `linearkv.eval.kills` and `linearkv.eval.crowd` put into page stores, and how they count what lies on disk.
"""

import hashlib
import os
from pathlib import Path
from typing import NamedTuple

import torch

from linearkv.cache import Page, encode

SECRET = bytes(range(32))
KIB, MIB = 1 << 10, 1 << 20
BLOCK = 4096
"""Files take whole blocks."""

Sizes = tuple[int, int]
"""Least and most bytes of a page's content."""


def key_of(number: int) -> str:
    """The key of page `number`, whatever its version."""
    return hashlib.blake2b(f"page {number}".encode(), digest_size=32).hexdigest()


def make_page(number: int, version: int, sizes: Sizes) -> Page:
    """Version `version` of page `number`."""
    content = content_of(number, version, sizes)
    return encode(key_of(number), {"content": content}, secret=SECRET, metadata={"version": str(version)})


def content_of(number: int, version: int, sizes: Sizes) -> torch.Tensor:
    """uint8 [bytes]: length and every byte follow from the arguments."""
    generator = torch.Generator().manual_seed(number << 32 | version)
    length = int(torch.randint(sizes[0], sizes[1] + 1, (), generator=generator))
    return torch.randint(0, 256, (length,), dtype=torch.uint8, generator=generator)


def version_of(page: Page, number: int, sizes: Sizes) -> int | None:
    """Which version of page `number` this is; None if it is not to the bit what that version has to be."""
    said = page.metadata.get("version", "")
    if not said.isdecimal() or set(page.metadata) != {"version"} or set(page.tensors) != {"content"}:
        return None
    right = page.key == key_of(number) and torch.equal(page.tensors["content"], content_of(number, int(said), sizes))
    return int(said) if right else None


def in_blocks(size: int) -> int:
    """What a file of `size` bytes takes on disk."""
    return size + -size % BLOCK


class DiskUse(NamedTuple):
    """Bytes of the blocks that the files in a folder take."""

    files: int
    """All of them: pages, temporary files, quarantine."""
    quarantine: int
    """Of these, in quarantine."""
    temporary: list[str]
    """Names of temporary files."""


def disk_use(folder: Path) -> DiskUse:
    """What lies in `folder` now. Files may come and go meanwhile; one that was renamed is counted once."""
    seen: dict[int, tuple[int, bool]] = {}
    temporary = []
    for place, _, names in os.walk(folder):
        quarantined = "quarantine" in Path(place).relative_to(folder).parts
        for name in names:
            try:
                found = Path(place, name).lstat()
            except FileNotFoundError:  # evicted or renamed since it was listed
                continue
            seen[found.st_ino] = found.st_blocks * 512, quarantined
            if name.endswith(".tmp"):
                temporary.append(name)
    files = sum(size for size, _ in seen.values())
    return DiskUse(files, sum(size for size, quarantined in seen.values() if quarantined), temporary)
