"""Identity: the key of a stored state is a hash of everything that shapes the state.

A state may be used only where computing it again would give the same state. So whatever has an influence is part of
its key: weights, effective configuration, parameters in memory (merged adapters among them), dtype, backends and their
versions, the tokens before it and its own, how it is stored, and the format of the page. A difference in any of them is
another key, so a miss, never a wrong answer. The hash is keyed with the tenant's secret: equal text under two tenants
gives unrelated keys, and nobody without the secret can tell which text a key belongs to.

The tokenizer is not part of it: states depend on token ids, not on how they came about. Its digest (`tokenizer_digest`)
belongs to the chunks' catalogue, which has to be made anew when it changes.

Everything is encoded by `canonical`: typed, with lengths, so that different values never share an encoding.
"""

import json
import logging
import os
import stat
import struct
import tempfile
import time
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Any

import torch
from blake3 import blake3
from torch import Tensor

from linearkv.cache.pages import FORMAT_VERSION, SECRET_BYTES, host_buffer, raw_bytes

_log = logging.getLogger(__name__)

WEIGHT_FILES = ("*.safetensors", "*.safetensors.index.json", "*.bin", "*.bin.index.json", "*.pt", "*.pth", "*.gguf")
"""Patterns of the files that hold a checkpoint's weights."""

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "*.model",
    "*.tiktoken",
    "chat_template*",
    "additional_chat_templates/*",
)
"""Patterns of the files that decide which token ids a text becomes."""

_PIECE_BYTES = 64 << 20
_CACHE_ENTRIES = 4096
# A file changed this recently could change again within the clock tick that its times already show.
_SETTLED_NS = 2_000_000_000


@dataclass(frozen=True)
class ModelIdentity:
    """Everything about a loaded model that shapes its states. Fields hold digests or exact names, never paths.

    Attributes
    ----------
    weights : str
        `digest_folder(checkpoint, WEIGHT_FILES)`.
    config : str
        `digest_value` of the configuration *in effect*: RoPE scaling, sliding windows and overrides included; names
        and paths left out, or moving the checkpoint would change every key.
    parameters : str
        `digest_parameters` of the loaded model: alone sees merged adapters and quantisation done in memory.
    compute_dtype : str
        "bfloat16".
    attention_backend, gdn_backend : str
        Which code computes them: "sdpa", "triton".
    versions : Mapping[str, str]
        Of every library whose code computes: {"torch": "2.13.0", "transformers": "5.16.0"}.
    producer : str
        What captured the state: "linearkv 0.1.0".
    """

    weights: str
    config: str
    parameters: str
    compute_dtype: str
    attention_backend: str
    gdn_backend: str
    versions: Mapping[str, str]
    producer: str

    def digest(self) -> str:
        """64 hex digits over all fields."""
        return digest_value({**asdict(self), "versions": dict(self.versions)})


def chunk_key(
    secret: bytes,
    model: ModelIdentity,
    *,
    prefix_token_ids: Sequence[int] | Tensor | None,
    chunk_token_ids: Sequence[int] | Tensor,
    storage_policy: str,
    format_version: int = FORMAT_VERSION,
    kind: str = "chunk",
) -> str:
    """The key of one state.

    Parameters
    ----------
    secret : bytes
        The tenant's 32 bytes.
    model : ModelIdentity
    prefix_token_ids : sequence of int, Tensor or None
        All tokens the state was computed behind (primer chunks included); None for a state computed from nothing.
        None and an empty prefix are different keys.
    chunk_token_ids : sequence of int or Tensor
        The chunk's own tokens.
    storage_policy : str
        "fp32", "fp16", "compact".
    format_version : int
        Of the page format.
    kind : str
        What is stored: states of different kinds of the same tokens have different keys.

    Returns
    -------
    str
        64 lowercase hex digits.
    """
    if len(secret) != SECRET_BYTES:
        raise ValueError(f"A tenant's secret is {SECRET_BYTES} bytes, got {len(secret)}.")
    described = canonical(
        {
            "model": model.digest(),
            "prefix": None if prefix_token_ids is None else _tokens(prefix_token_ids),
            "chunk": _tokens(chunk_token_ids),
            "storage_policy": storage_policy,
            "format_version": format_version,
            "kind": kind,
        }
    )
    return blake3(described, key=blake3(secret, derive_key_context="LinearKV state key 1").digest()).hexdigest()


def prefix_key(secret: bytes, model: ModelIdentity, token_ids: Sequence[int] | Tensor) -> str:
    """The key of the state of a prefix, which is kept exactly, for who serves from states without computing them."""
    return chunk_key(
        secret, model, prefix_token_ids=None, chunk_token_ids=token_ids, storage_policy="fp32", kind="prefix"
    )


def canonical(value: Any) -> bytes:
    """Encode a value so that equal values give equal bytes and different values different bytes.

    Takes None, bool, int, float, str, bytes, sequences and mappings of these. Lists and tuples are the same; mappings
    are the same in any order. True, 1, 1.0 and "1" are four different values.

    Raises
    ------
    TypeError
        Anything else; the message says where it is.
    """
    return _encode(value, "")


def _encode(value: Any, where: str) -> bytes:
    if value is None:
        return _part(b"n", b"")
    if isinstance(value, bool):
        return _part(b"b", b"1" if value else b"0")
    if isinstance(value, int):
        return _part(b"i", b"%d" % value)
    if isinstance(value, float):
        return _part(b"f", b"nan" if value != value else struct.pack(">d", value))
    if isinstance(value, str):
        # surrogatepass: any string has an encoding, also one that is not valid text.
        return _part(b"s", value.encode("utf-8", "surrogatepass"))
    if isinstance(value, bytes):
        return _part(b"y", value)
    if isinstance(value, Mapping):
        items = [_encode(key, where) + _encode(item, f"{where}[{key!r}]") for key, item in value.items()]
        return _part(b"m", b"".join(sorted(items)))
    if isinstance(value, list | tuple):
        return _part(b"l", b"".join(_encode(item, f"{where}[{index}]") for index, item in enumerate(value)))
    raise TypeError(
        f"{type(value).__name__} at {where or 'the top'} has no canonical encoding: {value!r}. Turn it into text."
    )


def _part(tag: bytes, content: bytes) -> bytes:
    return tag + struct.pack(">Q", len(content)) + content


def digest_value(value: Any) -> str:
    """64 hex digits over a value that `canonical` takes, such as a configuration."""
    return blake3(canonical(value)).hexdigest()


def _tokens(ids: Sequence[int] | Tensor) -> bytes:
    """Token ids as 8 bytes each; ValueError for what is not a row of ids."""
    if isinstance(ids, Tensor):
        if ids.dim() != 1 or ids.dtype.is_floating_point or ids.dtype == torch.bool:
            raise ValueError(f"Token ids are integers [tokens], got {ids.dtype} {list(ids.shape)}.")
        ids = ids.tolist()
    packed = array("q", ids)
    return struct.pack(f"<{len(packed)}q", *packed)


def digest_parameters(tensors: Mapping[str, Tensor] | Iterable[tuple[str, Tensor]]) -> str:
    """64 hex digits over the names, dtypes, shapes and bytes of tensors, in any order.

    Takes `model.state_dict()` or `model.named_parameters()`. Tensors on a GPU are brought over in pieces of 64 MiB,
    always to the same place: fresh memory for each costs more than copying it. Tensor subclasses made of several
    tensors (quantised weights) are taken by those. Some gigabytes a second.

    Raises
    ------
    ValueError
        A tensor without data (device "meta"): the model is not loaded completely.
    """
    named = dict(tensors)
    hasher = blake3(max_threads=blake3.AUTO)
    brought: list[Tensor] = []
    for name in sorted(named):
        _hash_tensor(hasher, name, named[name].detach(), brought)
    return hasher.hexdigest()


def _hash_tensor(hasher: Any, name: str, tensor: Tensor, brought: list[Tensor]) -> None:
    if hasattr(tensor, "__tensor_flatten__"):
        parts, context = tensor.__tensor_flatten__()
        hasher.update(canonical([name, type(tensor).__name__, list(parts), repr(context)]))
        for part in parts:
            _hash_tensor(hasher, f"{name}.{part}", getattr(tensor, part), brought)
        return
    if tensor.is_meta:
        raise ValueError(f"Parameter {name!r} has no data (device meta). Load the model completely first.")
    hasher.update(canonical([name, str(tensor.dtype), list(tensor.shape)]))
    if tensor.numel():
        raw = tensor.contiguous().reshape(-1).view(torch.uint8)
        for piece in raw.split(_PIECE_BYTES):
            if piece.device.type != "cpu":
                if not brought:
                    brought.append(host_buffer(_PIECE_BYTES))
                piece = brought[0][: len(piece)].copy_(piece)
            hasher.update(raw_bytes(piece))


def digest_folder(
    folder: Path | str,
    patterns: Sequence[str] = ("*",),
    *,
    cache: Path | str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> str:
    """64 hex digits over the names and contents of files in a folder.

    Parameters
    ----------
    folder : Path
    patterns : sequence of str
        Shell patterns of paths relative to `folder`; a file counts once, whichever patterns match it.
    cache : Path or None
        JSON file of digests by device, inode, size and times, so that unchanged files are not read again. By default
        `linearkv/file-digests.json` in the user's cache folder. One that cannot be read or written is done without.
    progress : callable
        Called with (bytes done, bytes in all) while files are read.

    Raises
    ------
    FileNotFoundError
        No file matches.
    OSError
        A file cannot be read: without it there is no identity.
    """
    folder = Path(folder)
    files = _matching(folder, patterns)
    if not files:
        raise FileNotFoundError(
            f"{folder} has no file that matches {', '.join(patterns)}. Is it a checkpoint's folder?"
        )
    digests = _DigestCache(Path(cache) if cache is not None else _default_cache())
    total = sum(path.stat().st_size for _, path in files)
    done = 0
    entries = []
    for name, path in files:
        size, digest = digests.of(path, partial(_shift, progress, done, total) if progress else None)
        done += size
        entries.append([name, size, digest])
    digests.save()
    return digest_value(entries)


def _shift(progress: Callable[[int, int], None], base: int, total: int, done: int) -> None:
    """Report progress within one file as progress over all."""
    progress(base + done, total)


def tokenizer_digest(folder: Path | str, *, cache: Path | str | None = None) -> str:
    """`digest_folder` over the files of a tokenizer, chat template included."""
    return digest_folder(folder, TOKENIZER_FILES, cache=cache)


def _matching(folder: Path, patterns: Sequence[str]) -> list[tuple[str, Path]]:
    """(relative POSIX path, path) of the files that match, sorted. Links are followed: hubs keep blobs behind them."""
    found = []
    for root, folders, names in os.walk(folder, followlinks=False):
        folders.sort()
        for name in names:
            path = Path(root) / name
            relative = path.relative_to(folder).as_posix()
            if any(fnmatch(relative, pattern) for pattern in patterns) and path.is_file():
                found.append((relative, path))
    return sorted(found)


def _default_cache() -> Path | None:
    """The file of digests in the user's cache folder; None for a user without a home."""
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(base) if base else Path.home() / ".cache") / "linearkv" / "file-digests.json"
    except RuntimeError:
        return None


class _DigestCache:
    """Digests of files by what the file system says of them. The change time cannot be set back by a program."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._digests: dict[str, str] = {}
        self._changed = False
        if path is not None:
            with suppress(OSError, ValueError):  # missing, unreadable or damaged: digests are computed again
                loaded = json.loads(path.read_bytes())
                if isinstance(loaded, dict):
                    self._digests = {key: value for key, value in loaded.items() if isinstance(value, str)}

    def of(self, path: Path, progress: Callable[[int], None] | None) -> tuple[int, str]:
        """(size, digest) of a file."""
        with path.open("rb") as file:
            before = os.fstat(file.fileno())
            if not stat.S_ISREG(before.st_mode):
                raise OSError(f"{path} is not a regular file")
            known = self._digests.get(_facts(before))
            if known is not None:
                return before.st_size, known
            hasher = blake3(max_threads=blake3.AUTO)
            size = 0
            piece = bytearray(8 << 20)
            while got := file.readinto(piece):
                hasher.update(memoryview(piece)[:got])
                size += got
                if progress is not None:
                    progress(size)
            after = os.fstat(file.fileno())
        digest = hasher.hexdigest()
        newest = max(after.st_mtime_ns, after.st_ctime_ns)
        if _facts(before) == _facts(after) and time.time_ns() - newest > _SETTLED_NS:
            self._digests[_facts(after)] = digest
            self._changed = True
        return size, digest

    def save(self) -> None:
        """Write the cache by rename, newest entries kept; without it the next start is slower, nothing else."""
        if self._path is None or not self._changed:
            return
        kept = dict(list(self._digests.items())[-_CACHE_ENTRIES:])
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile("w", dir=self._path.parent, suffix=".tmp", delete=False) as file:
                json.dump(kept, file)
            Path(file.name).replace(self._path)
        except OSError as error:
            _log.debug("digests of files were not kept in %s: %s", self._path, error)


def _facts(found: os.stat_result) -> str:
    return f"{found.st_dev}:{found.st_ino}:{found.st_size}:{found.st_mtime_ns}:{found.st_ctime_ns}"
