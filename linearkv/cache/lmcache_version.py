"""Which LMCache this project runs on. Asking does not import LMCache, which takes half a second."""

import importlib.util
import os
from importlib.metadata import PackageNotFoundError, version

# Read when LMCache is imported: its loggers print by themselves, and what matters of it is said by ours; and it tells
# nobody how it is used.
os.environ.setdefault("LMCACHE_LOG_LEVEL", "CRITICAL")
os.environ.setdefault("LMCACHE_TRACK_USAGE", "false")

TESTED = ("0.5.6",)
"""Releases that the contract test ran on. Its interface is not stable: every other release is refused until it did."""
KNOWN_BAD = dict.fromkeys(
    ("0.5.3", "0.5.4", "0.5.5"), "it stores one of several kernel pages of hybrid models and fails on salted keys"
)
NATIVE = ("lmcache.lmcache_native", "lmcache.lmcache_redis", "lmcache.lmcache_fs")
"""Compiled parts. Without the first nothing works; without another one its tier does not."""


def installed() -> str | None:
    """The release that is installed, None if none is."""
    try:
        return version("lmcache")
    except PackageNotFoundError:
        return None


def refusal(release: str | None) -> str | None:
    """Why a release is not used, with what to do about it; None if it is."""
    install = f'pip install "lmcache=={TESTED[-1]}"'
    if release is None:
        return f"LMCache is not installed: {install}"
    if release in TESTED:
        return None
    if release in KNOWN_BAD:
        return f"LMCache {release} is known to be wrong ({KNOWN_BAD[release]}): {install}"
    return f"LMCache {release} was not tested with this version of LinearKV, {', '.join(TESTED)} was: {install}"


def missing_parts() -> list[str]:
    """Compiled parts that this installation lacks."""
    return [name for name in NATIVE if importlib.util.find_spec(name) is None]
