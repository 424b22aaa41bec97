"""The page cache: chunk states that outlive the process, in memory and on disk, and never come back wrong.

    store = open_pages(tenant.folder, tenant.secret, memory_bytes=2 << 30, disk_bytes=64 << 30)
    store.put([encode(key, tensors, secret=tenant.secret)])
    match store.get([key])[key]:
        case Hit(page, tier, bytes_loaded): page.tensors["layers.0.update"]
        case Miss(reason): ...                      # compute it again and put it

This package knows bytes and keys, nothing of models. Keys come from `linearkv.identity`, secrets from
`linearkv.tenants`.
"""

from pathlib import Path

from linearkv.cache.base import Hit, Miss, NotStored, PageStore, Stored, TierStat, VerifyReport
from linearkv.cache.files import FileStore
from linearkv.cache.memory import MemoryStore
from linearkv.cache.pages import FORMAT_VERSION, NO_TAG, Page, PageDamaged, decode, encode
from linearkv.cache.tiered import TieredStore

__all__ = [
    "FORMAT_VERSION",
    "FileStore",
    "Hit",
    "NO_TAG",
    "MemoryStore",
    "Miss",
    "NotStored",
    "Page",
    "PageDamaged",
    "PageStore",
    "Stored",
    "TierStat",
    "TieredStore",
    "VerifyReport",
    "decode",
    "encode",
    "open_pages",
]


def open_pages(
    folder: Path | str,
    secret: bytes,
    *,
    memory_bytes: int,
    disk_bytes: int | None,
    read_only: bool = False,
) -> TieredStore:
    """Open one tenant's pages: a memory tier over files in `folder`/pages.

    Parameters
    ----------
    folder : Path
        The tenant's folder (`linearkv.tenants.Tenant.folder`).
    secret : bytes
        The tenant's 32 bytes.
    memory_bytes : int
        Budget of the memory tier.
    disk_bytes : int or None
        Budget on disk; None is unlimited.
    read_only : bool
        Change nothing on disk.
    """
    return TieredStore(MemoryStore(memory_bytes), FileStore(folder, secret, disk_bytes, read_only=read_only))
