"""The page format: one stored state is one safetensors file that proves who wrote it.

A page is one contiguous run of bytes, the same in memory, in a file and in a remote tier::

    u64 little endian   length of the header, a multiple of 8
    header              JSON, padded with spaces
                        {"__metadata__": {"linearkv_page": "0002", "mac": 64 hex digits, "bytes": 16 digits,
                                          "key": 64 hex digits, "tag": 64 hex digits, "kind": ..., further strings},
                         "name": {"dtype": "F16", "shape": [...], "data_offsets": [start, end]}, ...}
    tensors             little endian, one behind the other in the order given

Any safetensors reader can open it. We write the header ourselves because the library sorts tensors by dtype and name,
and pages are laid out layer by layer, so that the first layer can be used while the last is still arriving.

The first five metadata fields have fixed places. A few hundred bytes are therefore enough to see that a file is a page,
of which key, what it belongs to (the tag, which the owner of the page chooses), and how long it must be, before
anything is allocated. The MAC covers every byte of the page (its own digits read as zeros): 16 random bytes, and the
tag of AES-256-GMAC (NIST SP 800-38D) under a key of that page alone, which keyed BLAKE3 makes of the tenant's secret
and the random bytes; so no nonce is ever used twice. It is checked before the JSON is parsed, so nothing from an
untrusted disk reaches the parser, and nothing is ever unpickled.

This module is the only place that writes or checks a page. Every store goes through `encode` and `decode`.
"""

import hmac
import json
import logging
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from blake3 import blake3
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from torch import Tensor

from linearkv.errors import LinearKVError

_log = logging.getLogger(__name__)

Buffer = bytes | bytearray | memoryview

FORMAT_VERSION = 2
"""Version of the layout above. It is part of every key, so pages of another version are never looked up."""

SECRET_BYTES = 32
"""Length of a tenant's secret."""

MAX_PAGE_BYTES = 16 << 30
"""No page is larger: a longer file is refused before anything is allocated for it."""

_MAX_HEADER_BYTES = 16 << 20
_MAC_CONTEXT = "LinearKV page MAC, format 2"
_PAD = "__pad__"
_ZERO_MAC = b"0" * 64
_RESERVED = frozenset({"linearkv_page", "mac", "bytes", "key", "tag", "kind"})
_KEY = re.compile(r"[0-9a-f]{64}")
_HEAD = re.compile(
    rb'\{"__metadata__":\{"linearkv_page":"([0-9]{4})","mac":"([0-9a-f]{64})",'
    rb'"bytes":"([0-9]{16})","key":"([0-9a-f]{64})","tag":"([0-9a-f]{64})"'
)
_MAC_AT = 8 + len('{"__metadata__":{"linearkv_page":"0001","mac":"')

HEAD_BYTES = _MAC_AT + 64 + len('","bytes":"') + 16 + len('","key":"') + 64 + len('","tag":"') + 64 + len('"')
"""How many leading bytes `check_head` and `read_tag` need."""

NO_TAG = "0" * 64
"""The tag of a page that belongs to nothing in particular."""

_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U64": torch.uint64,
    "U32": torch.uint32,
    "U16": torch.uint16,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_DTYPE_NAMES = {dtype: name for name, dtype in _DTYPES.items()}

_SALT_BYTES = 16
_NO_NONCE = bytes(12)  # every page has a key of its own
_MAC_PART_BYTES = 1 << 30  # what OpenSSL takes at a time


class PageDamaged(LinearKVError):
    """The bytes are not the page that was asked for. `reason` says why, in words fit for a report."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, eq=False)
class Page:
    """One stored state: its bytes, and tensors that are views of them.

    Attributes
    ----------
    key : str
        64 lowercase hex digits, see `linearkv.identity.chunk_key`.
    kind : str
        What the tensors are, for the reader of them ("chunk").
    tag : str
        64 lowercase hex digits: what the page belongs to, so that it can be found and removed with it.
    metadata : Mapping[str, str]
        Free strings of the writer.
    tensors : Mapping[str, Tensor]
        Name -> CPU tensor, in the order written. Views of `buffer`: **read only**. Stores hand the same page to every
        caller, so writing into a tensor would change what later callers see. Clone first.
    buffer : Tensor
        uint8 [bytes]: the page exactly as it lies in a file.
    """

    key: str
    kind: str
    tag: str
    metadata: Mapping[str, str]
    tensors: Mapping[str, Tensor]
    buffer: Tensor = field(repr=False)

    @property
    def nbytes(self) -> int:
        """Bytes of the page, header included."""
        return self.buffer.numel()

    def tensors_on(self, device: torch.device, names: Sequence[str] | None = None) -> Mapping[str, Tensor]:
        """`tensors`, or those of `names`, on `device`: moved in one copy, which a GPU is given without waiting for it.

        On a CPU the tensors themselves. Dtypes, shapes and order are the same, and the new tensors share one buffer:
        of the whole page, or of it from the first to the last of `names`, which should follow each other.
        """
        chosen = self.tensors if names is None else {name: self.tensors[name] for name in names}
        if device.type == "cpu":
            return chosen
        begin = self.buffer.data_ptr()
        places = [(tensor.data_ptr() - begin, tensor.nbytes) for tensor in chosen.values() if tensor.numel()]
        first, last = 0, self.nbytes
        if names is not None and places:
            first, last = min(place for place, _ in places), max(place + size for place, size in places)
            first -= first % 256  # what is aligned in the page stays aligned
        moved = self.buffer[first:last].to(device, non_blocking=True)
        return {
            name: _view(moved, tensor.data_ptr() - begin - first if tensor.numel() else 0, tensor.dtype, tensor.shape)
            for name, tensor in chosen.items()
        }


def check_key(key: str) -> str:
    """Return `key` if it is 64 lowercase hex digits; raise ValueError otherwise. Keys become file names."""
    if not isinstance(key, str) or not _KEY.fullmatch(key):
        raise ValueError(
            f"A page key is 64 lowercase hex digits, got {key!r}. Make it with linearkv.identity.chunk_key."
        )
    return key


def raw_bytes(buffer: Tensor) -> memoryview:
    """The bytes of a uint8 CPU tensor, without a copy."""
    return buffer.numpy().data


def host_buffer(size: int) -> Tensor:
    """uint8 [size] in host memory, for a page: pinned in a process that uses a GPU, where it can be had.

    From pinned memory a GPU takes pages at the speed of its link and without waiting; from other memory at a tenth of
    it. PyTorch rounds pinned memory up to a power of two and keeps what was freed for the next page.
    """
    if size and torch.cuda.is_initialized():
        try:
            return torch.empty(size, dtype=torch.uint8, pin_memory=True)
        except RuntimeError as error:  # more than the system lets a process lock; slower memory holds the same page
            _log.debug("A page of %d bytes is not pinned: %s", size, error)
    return torch.empty(size, dtype=torch.uint8)


def encode(
    key: str,
    tensors: Mapping[str, Tensor],
    *,
    secret: bytes,
    kind: str = "chunk",
    tag: str = NO_TAG,
    metadata: Mapping[str, str] | None = None,
) -> Page:
    """Copy tensors into one sealed page.

    Parameters
    ----------
    key : str
        64 lowercase hex digits.
    tensors : Mapping[str, Tensor]
        Any shapes (also empty and zero-dimensional), any strides, any device; floating point from 8 to 64 bits,
        integers or bool. They are laid out in the mapping's order.
    secret : bytes
        The tenant's 32 bytes. A key for the MAC is derived from them; they do not occur in the page.
    tag : str
        64 lowercase hex digits, see `Page.tag`.
    kind, metadata
        Strings that come back with the page. They and the tag are readable by whoever can read the file.

    Returns
    -------
    Page
        On the CPU, sharing no memory with `tensors`.

    Raises
    ------
    ValueError
        A bad key, secret, name, dtype or layout; the message names it.
    """
    check_key(key)
    if not _KEY.fullmatch(tag):
        raise ValueError(f"A page tag is 64 lowercase hex digits, got {tag!r}.")
    mac_key = _mac_key(secret)
    strings = dict(metadata or {})
    for name in strings:
        if name in _RESERVED:
            raise ValueError(f"Page metadata may not use the name {name!r}: the page format uses it. Choose another.")

    fields: list[str] = []
    layout: list[tuple[str, Tensor, int]] = []
    gaps: list[tuple[int, int]] = []
    end = 0
    for name, tensor in tensors.items():
        if name.startswith(_PAD) or name == "__metadata__":
            raise ValueError(f"A tensor may not be called {name!r}: the page format uses that name. Choose another.")
        if tensor.dtype not in _DTYPE_NAMES or tensor.layout != torch.strided or tensor.is_meta:
            raise ValueError(
                f"Tensor {name!r} ({tensor.dtype}, {tensor.layout}, {tensor.device}) cannot be stored: "
                f"pages hold dense tensors of {', '.join(sorted(_DTYPES))}."
            )
        # safetensors allows no holes, so what aligns a tensor to its element size has to be a tensor itself.
        if tensor.numel() and (gap := -end % tensor.itemsize):
            fields.append(_field(f"{_PAD}{len(gaps)}", "U8", [gap], end, end + gap))
            gaps.append((end, end + gap))
            end += gap
        start, end = end, end + tensor.numel() * tensor.itemsize
        fields.append(_field(name, _DTYPE_NAMES[tensor.dtype], list(tensor.shape), start, end))
        layout.append((name, tensor, start))

    described = "".join(f",{_json(name)}:{_json(value)}" for name, value in {"kind": kind, **strings}.items())
    # Every number before `described` has a fixed width, so the header's length does not depend on what it says.
    head = '{{"__metadata__":{{"linearkv_page":"{:04d}","mac":"{}","bytes":"{:016d}","key":"{}","tag":"{}"'
    rest = (described + "}" + "".join("," + text for text in fields) + "}").encode()
    length = len(head.format(FORMAT_VERSION, "0" * 64, 0, key, tag)) + len(rest)
    length += -length % 8
    size = 8 + length + end
    if length > _MAX_HEADER_BYTES or size > MAX_PAGE_BYTES:
        raise ValueError(
            f"The page would have a header of {length} bytes and {size} bytes in all; the limits are "
            f"{_MAX_HEADER_BYTES} and {MAX_PAGE_BYTES}. Store fewer or smaller tensors in one page."
        )
    header = (head.format(FORMAT_VERSION, "0" * 64, size, key, tag).encode() + rest).ljust(length)

    # Indexing often runs under inference_mode, whose tensors may not be used elsewhere; a page outlives it.
    with torch.inference_mode(False), torch.no_grad():
        buffer = host_buffer(size)
        # Tensors of a GPU are laid out there and come over in one copy.
        devices = [tensor.device for tensor in tensors.values() if tensor.device.type != "cpu"]
        laid_out = torch.empty(size, dtype=torch.uint8, device=devices[0]) if devices else buffer
        for start, stop in gaps:
            laid_out[8 + length + start : 8 + length + stop] = 0
        for _, tensor, start in layout:
            _view(laid_out, 8 + length + start, tensor.dtype, tensor.shape).copy_(tensor.detach())
        if laid_out is not buffer:
            buffer[8 + length :].copy_(laid_out[8 + length :])
        view = raw_bytes(buffer)
        view[:8] = length.to_bytes(8, "little")
        view[8 : 8 + length] = header
        stored = {name: _view(buffer, 8 + length + start, tensor.dtype, tensor.shape) for name, tensor, start in layout}
    view[_MAC_AT : _MAC_AT + 64] = _mac(view, mac_key, os.urandom(_SALT_BYTES))
    return Page(key, kind, tag, strings, stored, buffer)


def check_head(head: Buffer, size: int, key: str) -> int:
    """Check what a page's first bytes say against what is known of it; nothing is proven yet.

    Parameters
    ----------
    head : bytes-like
        The first `HEAD_BYTES` bytes, or all there are.
    size : int
        Bytes of the whole page as found.
    key : str
        The key it was looked up by.

    Returns
    -------
    int
        Length of the header in bytes.

    Raises
    ------
    PageDamaged
        Not a page, another format version, another length, or a page of another key.
    """
    first = bytes(memoryview(head)[:HEAD_BYTES])
    if size == 0:
        raise PageDamaged("the page is empty")
    if not any(first):
        raise PageDamaged("the page begins with zeros only")
    if size < HEAD_BYTES or len(first) < HEAD_BYTES:
        raise PageDamaged(f"{size} bytes are too few for a page")
    match = _HEAD.fullmatch(first, 8)
    if not match:
        raise PageDamaged("it does not begin like a LinearKV page")
    version, _, said, found, _ = match.groups()
    if int(version) != FORMAT_VERSION:
        raise PageDamaged(f"page format {int(version)}, this version of LinearKV reads {FORMAT_VERSION}")
    if int(said) != size:
        raise PageDamaged(f"{size} bytes, but the page was written with {int(said)}")
    length = int.from_bytes(first[:8], "little")
    if length % 8 or not HEAD_BYTES - 8 < length <= min(_MAX_HEADER_BYTES, size - 8):
        raise PageDamaged(f"a header of {length} bytes is impossible in a page of {size}")
    if found.decode() != key:
        raise PageDamaged(f"the page of another key, {found.decode()[:12]}…")
    return length


def read_tag(head: Buffer) -> str | None:
    """The tag that a page's first `HEAD_BYTES` bytes claim, unproven; None if they are not those of a page."""
    match = _HEAD.fullmatch(bytes(memoryview(head)[:HEAD_BYTES]), 8)
    return match[5].decode() if match else None


def decode(data: Tensor | Buffer, key: str, secret: bytes) -> Page:
    """Check a page and return its tensors as views of `data`.

    Parameters
    ----------
    data : Tensor or bytes-like
        The whole page: a contiguous uint8 CPU tensor or a writable buffer is used in place (the page keeps it alive;
        it must not change any more), a read-only one is copied.
    key : str
        The key it was looked up by; a page of any other key is refused.
    secret : bytes
        The tenant's 32 bytes.

    Raises
    ------
    PageDamaged
        Anything at all is not as it was written: length, format, key, MAC, header, layout.
    """
    check_key(key)
    mac_key = _mac_key(secret)
    buffer = _as_buffer(data)
    view = raw_bytes(buffer)
    length = check_head(view[:HEAD_BYTES], len(view), key)
    said = bytes(view[_MAC_AT : _MAC_AT + 64])
    if not hmac.compare_digest(said, _mac(view, mac_key, bytes.fromhex(said[: 2 * _SALT_BYTES].decode()))):
        raise PageDamaged("its MAC does not match: the bytes were changed, or it was written with another secret")
    try:
        return _parse(buffer, 8 + length, key)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RuntimeError) as error:
        # The MAC matched, so our own secret sealed these bytes; still a page to refuse, not to crash on.
        raise PageDamaged(f"its header cannot be used: {str(error)[:200]}") from error


def reopen(buffer: Tensor, key: str) -> Page:
    """The page in memory that this process has sealed or verified and kept since: parsed, and not verified again.

    Parameters
    ----------
    buffer : Tensor
        uint8 [bytes] on the CPU, aligned to 8 bytes, the whole page; used in place.
    key : str
        Its key.

    Raises
    ------
    PageDamaged
        It is not a page of that key.
    """
    view = raw_bytes(buffer)
    length = check_head(view[:HEAD_BYTES], len(view), key)
    return _parse(buffer, 8 + length, key)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; ValueError where it says something twice, of which readers would take one or the other."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name occurs twice")
    return found


def _parse(buffer: Tensor, data_at: int, key: str) -> Page:
    """Turn an authenticated header into a `Page`; raise ValueError for a layout that `encode` would not write."""
    header = json.loads(bytes(raw_bytes(buffer)[8:data_at]), object_pairs_hook=_unique)
    strings = header.pop("__metadata__")
    if not all(isinstance(value, str) for value in strings.values()):
        raise ValueError("a metadata value is not a string")
    tensors = {}
    end = 0
    for name, entry in header.items():
        dtype = _DTYPES[entry["dtype"]]
        shape = entry["shape"]
        start, stop = entry["data_offsets"]
        if not all(type(n) is int and n >= 0 for n in [*shape, start, stop]):
            raise ValueError(f"tensor {name!r} has the shape {shape} at {start} to {stop}")
        if start != end or stop - start != _size(shape, dtype):
            raise ValueError(f"tensor {name!r} ({entry['dtype']} {shape}) cannot lie at {start} to {stop}")
        end = stop
        if not name.startswith(_PAD):
            tensors[name] = _view(buffer, data_at + start, dtype, shape)
    if data_at + end != buffer.numel():
        raise ValueError(f"the tensors end at {data_at + end} of {buffer.numel()} bytes")
    metadata = {name: value for name, value in strings.items() if name not in _RESERVED}
    return Page(key, strings["kind"], strings["tag"], metadata, tensors, buffer)


def _size(shape: list[int] | torch.Size, dtype: torch.dtype) -> int:
    """Bytes of a tensor; of one that no page has room for, some number beyond that.

    A header may hold numbers of thousands of digits, and the product of many such takes minutes.
    """
    size = 0 if 0 in shape else dtype.itemsize
    for length in shape:
        size *= length
        if size > MAX_PAGE_BYTES:
            break
    return size


def _view(buffer: Tensor, at: int, dtype: torch.dtype, shape: list[int] | torch.Size) -> Tensor:
    """The tensor of `shape` that lies at byte `at` of `buffer`."""
    size = _size(shape, dtype)
    if not size:
        return torch.empty(shape, dtype=dtype, device=buffer.device)
    return buffer[at : at + size].view(dtype).view(shape)


def _as_buffer(data: Tensor | Buffer) -> Tensor:
    """`data` as a uint8 CPU tensor [bytes] aligned to 8 bytes, without a copy where that is possible."""
    if isinstance(data, Tensor):
        if data.dtype != torch.uint8 or data.dim() != 1 or data.device.type != "cpu":
            raise ValueError(
                f"A page is a uint8 CPU tensor [bytes], got {data.dtype} {list(data.shape)} {data.device}."
            )
        buffer = data.contiguous()
    else:
        view = memoryview(data).cast("B")
        if view.readonly or not len(view):
            buffer = torch.empty(len(view), dtype=torch.uint8)
            raw_bytes(buffer)[:] = view
        else:
            buffer = torch.frombuffer(view, dtype=torch.uint8)
    aligned = buffer.data_ptr() % 8 == 0 and buffer.storage_offset() % 8 == 0
    return buffer if aligned else buffer.clone()


def _field(name: str, dtype: str, shape: list[int], start: int, end: int) -> str:
    """One tensor's entry in the header."""
    return f'{_json(name)}:{{"dtype":"{dtype}","shape":{_json(shape)},"data_offsets":[{start},{end}]}}'


def _json(value: str | list[int]) -> str:
    """`value` as compact JSON; ValueError for text that UTF-8 cannot carry, which other readers would refuse."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{value!r} holds a lone surrogate and cannot be stored as UTF-8. Replace it first.") from None
    return text


def _mac_key(secret: bytes) -> bytes:
    """The key for MACs that belongs to a tenant's secret."""
    if len(secret) != SECRET_BYTES:
        raise ValueError(f"A tenant's secret is {SECRET_BYTES} bytes, got {len(secret)}.")
    return blake3(secret, derive_key_context=_MAC_CONTEXT).digest()


def _mac(view: memoryview, key: bytes, salt: bytes) -> bytes:
    """The MAC of a page with its MAC field read as zeros, as 64 hex digits: the salt, and the tag."""
    page_key = blake3(salt, key=key).digest()
    gmac = Cipher(algorithms.AES(page_key), modes.GCM(_NO_NONCE)).encryptor()
    for part in (view[:_MAC_AT], _ZERO_MAC, view[_MAC_AT + 64 :]):
        for start in range(0, len(part), _MAC_PART_BYTES):
            gmac.authenticate_additional_data(part[start : start + _MAC_PART_BYTES])
    gmac.finalize()
    return (salt + gmac.tag).hex().encode()
