"""The page cache: chunk states that outlive the process, in memory and on disk, and never come back wrong.

    store = open_pages(tenant.folder, tenant.secret, memory_bytes=2 << 30, disk_bytes=64 << 30)
    store.put([encode(key, tensors, secret=tenant.secret)])
    match store.get([key])[key]:
        case Hit(page, tier, bytes_loaded): page.tensors["layers.0.update"]
        case Miss(reason): ...                      # compute it again and put it

This package knows bytes and keys, nothing of models. Keys come from `linearkv.identity`, secrets from
`linearkv.tenants`.
"""

import logging
from pathlib import Path

from linearkv.cache import lmcache_version
from linearkv.cache.base import Hit, Miss, NotStored, PageStore, Stored, TierStat, VerifyReport, server_name
from linearkv.cache.files import FileStore
from linearkv.cache.memory import MemoryStore
from linearkv.cache.pages import FORMAT_VERSION, NO_TAG, Page, PageDamaged, decode, encode, reopen
from linearkv.cache.tiered import TieredStore
from linearkv.errors import LinearKVError

_log = logging.getLogger(__name__)

BACKENDS = ("auto", "lmcache", "files")

__all__ = [
    "BACKENDS",
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
    "reopen",
    "server_name",
]


def open_pages(
    folder: Path | str,
    secret: bytes,
    *,
    memory_bytes: int,
    disk_bytes: int | None,
    read_only: bool = False,
    backend: str = "auto",
    remote: str | None = None,
    remote_days: int = 30,
) -> PageStore:
    """Open one tenant's pages: memory over files in `folder`/pages. Either backend opens what the other wrote.

    Parameters
    ----------
    folder : Path
        The tenant's folder (`linearkv.tenants.Tenant.folder`).
    secret : bytes
        The tenant's 32 bytes.
    memory_bytes : int
        Budget of the memory tier; 0 is none.
    disk_bytes : int or None
        Budget on disk; None is unlimited.
    read_only : bool
        Change nothing on disk.
    backend : str
        Who keeps memory: `lmcache`, `files` (this package alone), or `auto`: LMCache where a tested release is
        installed and there is memory for it to keep.
    remote : str or None
        A Redis server behind the disk, `redis://host:port`; needs LMCache.
    remote_days : int
        How long that server keeps a page after its last use.

    Raises
    ------
    LinearKVError
        LMCache was asked for, or is needed for `remote`, and cannot be used; or `remote` is no address.
    """
    if backend not in BACKENDS:
        raise ValueError(f"unknown backend {backend!r}: expected one of {', '.join(BACKENDS)}")
    release = lmcache_version.installed()
    refusal = lmcache_version.refusal(release)
    if backend == "files" and remote is not None:
        refusal = "the backend is 'files'"
    if backend != "files" and not memory_bytes:
        refusal = "it keeps memory, and the memory budget is 0"
    if refusal is not None and (backend == "lmcache" or remote is not None):
        where = "in LMCache" if remote is None else f"at {server_name(remote)}"
        raise LinearKVError(f"Pages cannot be kept {where}: {refusal}")
    if refusal is not None and release is not None and backend == "auto" and memory_bytes:
        _log.warning("LMCache is not used: %s", refusal)
    files = FileStore(folder, secret, disk_bytes, read_only=read_only)
    if backend == "files" or refusal is not None:
        return TieredStore(MemoryStore(memory_bytes), files)
    from linearkv.cache.lmcache_store import LMCacheStore  # half a second, for those who use it

    return LMCacheStore(files, secret, memory_bytes, remote, remote_days)
