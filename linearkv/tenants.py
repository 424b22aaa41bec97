"""Tenants: each has a folder of its own and a random secret, and nothing of one can be found or forged with another's.

The secret keys the identity of every state (`linearkv.identity`) and the MAC of every page (`linearkv.cache.pages`).
It is 32 random bytes, never derived from the tenant's name: made when the tenant is first opened and kept in the store
with mode 0600, or given by the caller and then never written down.

The tenant's folder is named by a hash of its name, so a name can neither leave the store's folder nor be read off it
(who guesses a name can confirm it). A folder appears together with its secret by one rename, so there is never a folder
without a secret unless somebody removed it, and two processes that open a new tenant at once agree on one secret.

A secret that others may write is refused: they could put in one of their own and forge pages. One that others may read
is used with a warning, because a store may be shared for reading on purpose.

Pages are not encrypted. The secret proves who wrote them and hides what they are of; keeping their bytes from others is
the work of file permissions (tenant folders have mode 0700) and of disk encryption.
"""

import errno
import logging
import os
import re
import secrets
import shutil
import stat
import time
from dataclasses import dataclass, field
from pathlib import Path

from blake3 import blake3

from linearkv.cache.files import make_folder, sync_folder
from linearkv.cache.pages import SECRET_BYTES
from linearkv.errors import LinearKVError, StoreMismatchError, StoreReadOnlyError

_log = logging.getLogger(__name__)

_SECRET = "secret"
_CHECK = "secret-check"
_SECRET_MARK = "linearkv-secret-1"
_CHECK_MARK = "linearkv-secret-check-1"
_ABANDONED_S = 3600
_SHARE = (
    "Run as the owner of the store; or, for others to read all of it, its secrets included, let the owner run: "
    "chmod -R a+rX '{store}'"
)


class TenantSecretError(LinearKVError):
    """A tenant's secret is missing, damaged, unreadable or open to others; the message says what to do."""


@dataclass(frozen=True)
class Tenant:
    """An open tenant.

    Attributes
    ----------
    name : str
    folder : Path
        `<store>/tenants/<hash of the name>`: everything of this tenant lies in it.
    secret : bytes
        32 bytes. Kept out of repr, so that it does not end up in logs.
    """

    name: str
    folder: Path
    secret: bytes = field(repr=False)


def tenant_folder(store: Path | str, name: str) -> Path:
    """Where a tenant's files lie. Any non-blank text is a name; names are compared code point by code point.

    Raises
    ------
    ValueError
        A blank name, or one that UTF-8 cannot carry.
    """
    if not name.strip():
        raise ValueError(f"A tenant's name cannot be blank, got {name!r}. Give a name such as 'default'.")
    try:
        encoded = name.encode()
    except UnicodeEncodeError:
        raise ValueError(f"The tenant name {name!r} holds a lone surrogate. Give a name that is valid text.") from None
    return Path(store) / "tenants" / blake3(encoded, derive_key_context="LinearKV tenant folder 1").hexdigest(length=16)


def open_tenant(store: Path | str, name: str, *, secret: bytes | None = None, create: bool = True) -> Tenant:
    """Open a tenant, making it on first use.

    Parameters
    ----------
    store : Path
        The store's folder.
    name : str
        Any non-blank text.
    secret : bytes or None
        32 bytes, to be given at every opening; only a check value is kept in the store. None: the store keeps one.
    create : bool
        Whether a tenant that does not exist is made.

    Raises
    ------
    TenantSecretError
        The secret kept in the store is missing, damaged, not readable, or may be written by others. It is never
        replaced silently: with another secret every page would be lost.
    StoreMismatchError
        `secret` is not the one this tenant was made with, or it was made with one and none is given.
    StoreReadOnlyError
        The tenant has to be made and the folder is not writable.
    ValueError
        A bad name or a secret of another length.
    """
    if secret is not None and len(secret) != SECRET_BYTES:
        raise ValueError(f"A tenant's secret is {SECRET_BYTES} bytes, got {len(secret)}. Make one: os.urandom(32).")
    folder = tenant_folder(store, name)
    if not _exists(folder):
        if not create:
            raise TenantSecretError(f"The store {store} has no tenant {name!r}. Index something for it first.")
        _create(folder, secret)
    return Tenant(name, folder, _load(folder, name, secret))


def destroy_tenant(store: Path | str, name: str) -> bool:
    """Remove a tenant's secret and everything else of it; return whether it existed.

    The folder is renamed first, so that the tenant is gone at one moment, also if the removal is interrupted; what then
    remains is removed when the next tenant is made or destroyed. Removal does not overwrite: on most disks bytes can be
    recovered for some time.
    """
    folder = tenant_folder(store, name)
    doomed = folder.parent / f".destroyed-{secrets.token_hex(8)}"
    try:
        folder.rename(doomed)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise StoreReadOnlyError(
            f"Tenant {name!r} could not be destroyed: {folder.parent} is not writable ({error.strerror})."
        ) from error
    sync_folder(folder.parent)
    try:
        (doomed / _SECRET).unlink(missing_ok=True)
        shutil.rmtree(doomed)
    except OSError as error:
        raise StoreReadOnlyError(
            f"Tenant {name!r} is gone, but some of its files remain in {doomed}: {error.strerror}. Remove that folder."
        ) from error
    _clean(folder.parent)
    return True


def _exists(folder: Path) -> bool:
    try:
        return stat.S_ISDIR(folder.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise TenantSecretError(
            f"{folder} cannot be opened by user id {os.geteuid()} ({error.strerror}). "
            f"{_SHARE.format(store=folder.parents[1])}"
        ) from error


def _create(folder: Path, secret: bytes | None) -> None:
    """Make the folder with its secret aside, then rename it into place; if another process was first, its one stays."""
    new = folder.parent / f".new-{secrets.token_hex(8)}"
    try:
        make_folder(folder.parent)
        _clean(folder.parent)
        new.mkdir(mode=0o700)
        if secret is None:
            _write(new / _SECRET, _SECRET_MARK, secrets.token_bytes(SECRET_BYTES))
        else:
            _write(new / _CHECK, _CHECK_MARK, _check_value(secret))
        sync_folder(new)
        try:
            new.rename(folder)
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                raise
            shutil.rmtree(new)
        sync_folder(folder.parent)
    except (NotADirectoryError, FileExistsError) as error:
        blocking = next(path for path in (folder.parent, *folder.parents) if path.exists() and not path.is_dir())
        raise StoreReadOnlyError(
            f"A tenant cannot be made in {folder.parent}: {blocking} is not a folder. Give another store."
        ) from error
    except OSError as error:
        shutil.rmtree(new, ignore_errors=True)
        raise StoreReadOnlyError(
            f"A tenant cannot be made in {folder.parent}: {error.strerror}. "
            f"Make the folder writable for user id {os.geteuid()}, or free space on its disk."
        ) from error


def _load(folder: Path, name: str, given: bytes | None) -> bytes:
    """The tenant's secret, after comparing what is kept with what was given."""
    check = _read(folder / _CHECK, _CHECK_MARK)
    if check is not None:
        if given is None:
            raise StoreMismatchError(f"Tenant {name!r} was made with a secret of its own. Give it: secret=….")
        if not secrets.compare_digest(check, _check_value(given)):
            raise StoreMismatchError(f"The secret given is not the one that tenant {name!r} was made with.")
        return given
    kept = _read(folder / _SECRET, _SECRET_MARK)
    if kept is None:
        raise TenantSecretError(
            f"{folder / _SECRET} is missing, and without it none of this tenant's pages can be used. Restore it from a "
            f"backup, or destroy tenant {name!r} (linearkv.tenants.destroy_tenant) and index again."
        )
    if given is not None and not secrets.compare_digest(kept, given):
        raise StoreMismatchError(f"The secret given is not the one the store keeps for tenant {name!r}. Leave it out.")
    return kept


def _check_value(secret: bytes) -> bytes:
    """What is kept of a secret the caller gives: enough to recognise it, of no use for anything else."""
    return blake3(secret, derive_key_context="LinearKV secret check 1").digest()


def _write(path: Path, mark: str, value: bytes) -> None:
    """One line: mark, value and checksum in hex. Never readable by others, not even for a moment."""
    text = f"{mark} {value.hex()}"
    line = f"{text} {blake3(text.encode()).hexdigest(length=8)}\n".encode()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(line)
        file.flush()
        os.fsync(file.fileno())


def _read(path: Path, mark: str) -> bytes | None:
    """The value in a file that `_write` wrote; None if there is no file."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise TenantSecretError(
            f"{path} cannot be read by user id {os.geteuid()} ({error.strerror}). "
            f"{_SHARE.format(store=path.parents[2])}"
        ) from error
    try:
        owner, mode = os.fstat(descriptor).st_uid, os.fstat(descriptor).st_mode
        content = os.read(descriptor, 4096) if stat.S_ISREG(mode) else b""
    finally:
        os.close(descriptor)
    if mode & 0o022:
        # Who can write it can put in a secret of his own and then forge pages.
        raise TenantSecretError(f"{path} can be written by others (mode {mode & 0o777:04o}). Run: chmod 600 '{path}'")
    if mode & 0o044 and os.geteuid() in (owner, 0):
        # A store shared for reading has to be readable, so this is the owner's decision to take. Whoever it is shared
        # with can do nothing about it.
        _log.warning(
            "%s can be read by others (mode %04o). Unless that is meant: chmod 600 '%s'", path, mode & 0o777, path
        )
    line = re.fullmatch(rb"((\S+) ([0-9a-f]{64})) ([0-9a-f]{16})\n", content)
    if not line or line[2] != mark.encode() or line[4].decode() != blake3(line[1]).hexdigest(length=8):
        raise TenantSecretError(
            f"{path} is damaged ({len(content)} bytes). Restore it from a backup; if there is none, destroy the tenant "
            f"(linearkv.tenants.destroy_tenant) and index again. A new one would make all pages useless."
        )
    return bytes.fromhex(line[3].decode())


def _clean(folder: Path) -> None:
    """Remove what interrupted creations and destructions left among the tenants' folders."""
    for path in folder.glob(".destroyed-*"):
        shutil.rmtree(path, ignore_errors=True)
    for path in folder.glob(".new-*"):
        try:
            old = time.time() - path.stat().st_mtime > _ABANDONED_S
        except FileNotFoundError:  # its process finished
            continue
        if old:
            shutil.rmtree(path, ignore_errors=True)
