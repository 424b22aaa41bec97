"""Feeds malformed pages to `decode` and to a store, and fails on anything but a sound page or a refusal.

    python -m linearkv.eval.fuzz_pages --seconds 60 --seed 0 [--out fuzz.json]

Three families of bytes. `sealed`: pages whose header was changed with an eye for its structure (shapes, offsets,
dtypes, names, nesting, numbers, text) and whose MAC was then made good with the right secret, so that they reach the
parser. `changed`: valid pages with bytes changed, moved, cut or added, and the MAC as it was. `foreign`: what is no
page, such as random bytes, pickles and files of `torch.save`.

Allowed is a refusal (`PageDamaged`, or a miss of the store), or, of the `sealed` family alone, a page whose tensors lie
inside its buffer, behind the header and beside one another, and whose tag is the one its first bytes say. Everything
else is a failure: another exception, a page from bytes nobody sealed, more time or memory than `SECONDS` and
`memory_bound`, and anything executed, compiled, imported or unpickled on the way, which an audit hook hears. Bytes that
failed are written to a file as hex. A case that ends the process is the one whose number is in the file `current`
beside them; `--seed N --first NUMBER --cases 1` runs a case again.

Exit code 1 if there was a failure. Needs Linux: memory is read from /proc.
"""

import argparse
import faulthandler
import json
import logging
import os
import pickle
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any, NoReturn

import safetensors.torch
import torch
from blake3 import blake3
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from linearkv.cache import FORMAT_VERSION, FileStore, Hit, Page, PageDamaged, decode, encode

SECONDS = 5.0
"""No case may take longer."""

KEY, OTHER_KEY, TAG = "ab" * 32, "cd" * 32, "5e" * 32
SECRET = bytes(range(32))

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "I64": torch.int64,
    "I16": torch.int16,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}

_MAC_AT = 8 + len('{"__metadata__":{"linearkv_page":"0001","mac":"')
_TAG_AT = _MAC_AT + 64 + len('","bytes":"') + 16 + len('","key":"') + 64 + len('","tag":"')
_DEEPEST = 100_000


def memory_bound(size: int) -> int:
    """Bytes of address space that a page of `size` bytes may take: parsed JSON is some thirty times its text."""
    return (64 << 20) + 64 * size


def seal(data: bytes | bytearray, secret: bytes) -> bytes:
    """`data` with the MAC that a writer with `secret` would give it, over the random bytes that it has already.

    Written anew from the description of the format, so that the package's own code is not its only witness.
    """
    digits = bytes(data[_MAC_AT : _MAC_AT + 32])
    salt = bytes.fromhex(digits.decode()) if re.fullmatch(rb"[0-9a-f]{32}", digits) else bytes(16)
    secret_key = blake3(secret, derive_key_context="LinearKV page MAC, format 2").digest()
    gmac = Cipher(algorithms.AES(blake3(salt, key=secret_key).digest()), modes.GCM(bytes(12))).encryptor()
    gmac.authenticate_additional_data(bytes(data[:_MAC_AT]) + b"0" * 64 + bytes(data[_MAC_AT + 64 :]))
    gmac.finalize()
    return bytes(data[:_MAC_AT]) + (salt + gmac.tag).hex().encode() + bytes(data[_MAC_AT + 64 :])


# ---- sealed: headers that no writer of ours would write -------------------------------------------------------------


@dataclass
class Entry:
    """A tensor in the header: its name as JSON text, and what is right of it.

    `odd` holds JSON texts that stand in place of a field, or, under the name "", of all that the name stands for.
    """

    name: bytes
    dtype: str
    shape: list[int]
    offsets: list[int]
    odd: dict[str, bytes] = field(default_factory=dict)

    def value(self) -> bytes:
        if "" in self.odd:
            return self.odd[""]
        right = {"dtype": self.dtype, "shape": self.shape, "data_offsets": self.offsets}
        return b"{" + b",".join(b'"%b":%b' % (k.encode(), self.odd.get(k, _json(v))) for k, v in right.items()) + b"}"


@dataclass
class Draft:
    """A page in pieces: JSON texts of the free metadata and of the tensors, and the tensors' bytes."""

    strings: list[bytes]
    entries: list[Entry]
    data: bytes

    def render(self) -> bytearray:
        """The page with a wrong MAC; lengths are right."""
        fixed = b'{"__metadata__":{"linearkv_page":"%04d","mac":"%b","bytes":"%016d","key":"%b","tag":"%b"'
        rest = b"".join(b"," + text for text in self.strings) + b"}"
        rest += b"".join(b",%b:%b" % (entry.name, entry.value()) for entry in self.entries) + b"}"
        empty = fixed % (FORMAT_VERSION, b"0" * 64, 0, KEY.encode(), TAG.encode())
        length = len(empty) + len(rest)
        length += -length % 8
        size = 8 + length + len(self.data)
        head = fixed % (FORMAT_VERSION, b"0" * 64, size, KEY.encode(), TAG.encode())
        return bytearray(length.to_bytes(8, "little") + (head + rest).ljust(length) + self.data)


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def good_draft(chance: random.Random) -> Draft:
    """A draft that is a valid page."""
    entries, end = [], 0
    for number in range(chance.randrange(5)):
        name, dtype = chance.choice(list(DTYPES.items()))
        shape = [chance.randrange(4) for _ in range(chance.randrange(4))]
        # Whole words, so that every tensor is aligned without a pad.
        shape = [*shape, 8 // dtype.itemsize]
        start, end = end, end + torch.Size(shape).numel() * dtype.itemsize
        entries.append(Entry(_json(f"layers.{number}"), name, shape, [start, end]))
    return Draft([b'"kind":"chunk"', b'"note":"n"'], entries, chance.randbytes(end))


ODD: list[bytes] = [
    b"0", b"-1", b"1", b"2", b"-0", b"1.0", b"2.5", b"1e400", b"-1e400", b"NaN", b"Infinity", b"-Infinity", b"true",
    b"false", b"null", b'""', b'"F32"', b'"f32"', b'"F99"', b'"C64"', b"[]", b"{}", b"[[]]", b"[0]", b'{"a":1}',
    b"2147483648", b"4294967296", b"%d" % (1 << 62), b"%d" % (1 << 63), b"%d" % (1 << 64), b"%d" % ((1 << 64) + 8),
    b"-%d" % (1 << 63), b"9" * 4300, b"9" * 4301, b"9" * 20_000, b"1e308", b"1e-400", b'"\\ud800"', b'"\\u0000"',
    b'"\\udc00\\ud800"', '"é"'.encode(), '"\U0001f4a5"'.encode(), b'"' + b"a" * 10_000 + b'"', b"'x'", b"undefined",
    b"01", b"+1", b".5", b"1_000", b"0x10", b"//", b"\x00", b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xef\xbb\xbf",
    b'"unclosed', b"}", b"]", b",", b":", b'"cos\\nsystem\\n(S\'true\'\\ntR."', b'"__import__(\'os\')"',
]  # fmt: skip


def nested(chance: random.Random) -> bytes:
    """Deep nesting, closed or not."""
    depth = chance.choice([10, 500, 990, 1000, 5000, _DEEPEST])
    opening, closing = chance.choice([(b"[", b"]"), (b'{"a":', b"}"), (b'[{"":', b"}]")])
    return opening * depth + (b"1" + closing * depth if chance.random() < 0.7 else b"")


def odd_value(chance: random.Random) -> bytes:
    """A JSON text, or none, that is seldom what belongs there."""
    match chance.randrange(12):
        case 0:
            return b"[" + b",".join(odd_value(chance) for _ in range(chance.randrange(4))) + b"]"
        case 1:
            return b"{" + b",".join(b'"%d":%b' % (n % 2, odd_value(chance)) for n in range(chance.randrange(4))) + b"}"
        case 2:
            return nested(chance)
        case 3:
            return b"%d" % (chance.getrandbits(chance.choice([8, 31, 33, 63, 65, 400])) * chance.choice([1, -1]))
        case _:
            return chance.choice(ODD)


def odd_shape(chance: random.Random, shape: list[int]) -> bytes:
    """A shape unlike `shape`; some have the same product, or the same modulo 2**64."""
    numbers: list[Any] = list(shape)
    match chance.randrange(12):
        case 0:
            numbers[chance.randrange(len(numbers))] += chance.choice([-1, 1, -(1 << 64), 1 << 64, 1 << 62])
        case 1:
            numbers = [0, chance.choice([1 << 31, 1 << 62, 1 << 63, 1 << 64, 10**400])]
        case 2:
            numbers = [1] * chance.choice([1, 63, 64, 65, 1000, 20_000]) + numbers
        case 3:
            numbers = [-1, *numbers] if chance.random() < 0.5 else [-number for number in numbers]
        case 4:
            numbers = [*numbers, -1, -1]
        case 5:
            numbers = [float(number) for number in numbers]
        case 6:
            numbers = [bool(number) for number in numbers]
        case 7:
            numbers = numbers[:-1]
        case 8:
            numbers = [1 << 32, 1 << 32, *numbers]
        case 9:
            numbers = [int("9" * chance.choice([18, 4000]))] * chance.choice([2, 20, 20, 600])
        case _:
            return odd_value(chance)
    return _json(numbers)


def odd_offsets(chance: random.Random, offsets: list[int]) -> bytes:
    """Offsets unlike `offsets`: moved, turned round, overlapping, beyond the end."""
    start, stop = offsets
    far = chance.choice([1, 2, 4, 7, 8, 64, 4096, 1 << 31, 1 << 40, 1 << 63, 1 << 64])
    numbers: Any = chance.choice(
        [
            [start + far, stop + far],
            [start - far, stop - far],
            [start, stop + far],
            [start - far, stop],
            [stop, start],
            [0, stop - start],
            [start],
            [start, stop, stop],
            [float(start), stop],
            [str(start), stop],
            [bool(start), stop],
            [start, None],
            {"0": start, "1": stop},
            f"{start}",
        ]
    )
    return odd_value(chance) if chance.random() < 0.2 else _json(numbers)


def change_entry(draft: Draft, chance: random.Random) -> None:
    """One tensor's description."""
    if not draft.entries:
        add_entry(draft, chance)
        return
    entry = chance.choice(draft.entries)
    match chance.randrange(8):
        case 0 if chance.random() < 0.5:
            entry.dtype = chance.choice(list(DTYPES))
        case 0:
            entry.odd["dtype"] = odd_value(chance)
        case 1 | 2:
            entry.odd["shape"] = odd_shape(chance, entry.shape)
        case 3 | 4:
            entry.odd["data_offsets"] = odd_offsets(chance, entry.offsets)
        case 5:
            entry.odd[""] = odd_value(chance)
        case 6:  # a field twice, one too many, or all but one missing
            name = chance.choice([b"dtype", b"shape", b"data_offsets", b"more"])
            again, whole = b'"%b":%b' % (name, odd_value(chance)), entry.value()
            entry.odd[""] = chance.choice([whole[:-1] + b"," + again + b"}", b"{" + again + b"," + whole[1:], b"{}"])
        case _:
            entry.name = odd_name(chance)


def odd_name(chance: random.Random) -> bytes:
    """A name that means something to the format, that is taken, or that is none."""
    names = [b'"layers.0"', b'"layers.1"', b'"__metadata__"', b'"__pad__0"', b'"__pad__"', b'"__class__"', b'""', b"1"]
    return chance.choice(names) if chance.random() < 0.6 else odd_value(chance)


def add_entry(draft: Draft, chance: random.Random) -> None:
    """Tensors more: over others, of no bytes and any shape, or a great many."""
    end = len(draft.data)
    names = [odd_name(chance)]
    if chance.random() < 0.05:
        names = [b'"many.%d"' % number for number in range(chance.choice([100, 3000]))]
    for name in names:
        shape, offsets = chance.choice([([0, 1 << 62], [end, end]), ([1], [0, 1]), ([1], [end, end + 1])])
        draft.entries.append(Entry(name, chance.choice(["U8", "F64"]), shape, offsets))
    if chance.random() < 0.3:
        draft.data += chance.randbytes(1)


def move_entries(draft: Draft, chance: random.Random) -> None:
    """The same tensors in another order, one of them twice, or one not at all."""
    match chance.randrange(3):
        case 0:
            chance.shuffle(draft.entries)
        case 1 if draft.entries:
            draft.entries.insert(chance.randrange(len(draft.entries) + 1), chance.choice(draft.entries))
        case _ if draft.entries:
            del draft.entries[chance.randrange(len(draft.entries))]


def change_strings(draft: Draft, chance: random.Random) -> None:
    """Metadata: other values, names of ours again, the kind missing."""
    match chance.randrange(4):
        case 0:
            draft.strings = [text for text in draft.strings if not text.startswith(b'"kind"')]
        case 1:
            name = chance.choice([b"linearkv_page", b"mac", b"bytes", b"key", b"tag", b"kind", b"note"])
            draft.strings.append(b'"%b":%b' % (name, odd_value(chance)))
        case 2:
            draft.strings.append(b"%b:%b" % (odd_value(chance), odd_value(chance)))
        case _:
            draft.strings = [b'"%d":"%d"' % (n, n) for n in range(chance.choice([0, 1, 2000]))] + draft.strings


def change_data(draft: Draft, chance: random.Random) -> None:
    """More or fewer bytes than the header says."""
    if chance.random() < 0.5:
        draft.data += chance.randbytes(chance.choice([1, 7, 8, 4096]))
    else:
        draft.data = draft.data[: chance.randrange(len(draft.data) + 1)]


DRAFTING: list[Callable[[Draft, random.Random], None]] = [
    change_entry, change_entry, change_entry, add_entry, move_entries, change_strings, change_data,
]  # fmt: skip


def edit_header(page: bytearray, chance: random.Random) -> None:
    """A few bytes of the header's text behind its fixed fields."""
    first, last = _MAC_AT + 64, 8 + int.from_bytes(page[:8], "little")
    for _ in range(chance.choice([1, 1, 2, 8])):
        at = chance.randrange(first, last)
        some = chance.choice([*ODD[:35], chance.randbytes(1), b'"', b"\\", b" ", b"\n"])[: last - at]
        page[at : at + len(some)] = some


def edit_length(page: bytearray, chance: random.Random) -> None:
    """A header that claims to end elsewhere."""
    length = int.from_bytes(page[:8], "little")
    choices = [length - 8, length + 8, length + 1, 0, 8, len(page) - 8, len(page), 1 << 24, 1 << 63, (1 << 64) - 8]
    page[:8] = max(0, chance.choice(choices)).to_bytes(8, "little")


def edit_fixed(page: bytearray, chance: random.Random) -> None:
    """Version, sizes, key and tag, at their fixed places."""
    at = chance.randrange(8, _MAC_AT) if chance.random() < 0.3 else chance.randrange(_MAC_AT + 64, _MAC_AT + 300)
    if at < len(page):
        page[at] = chance.choice(b'0129afAF"{}:, \x00\xff')


EDITING: list[Callable[[bytearray, random.Random], None]] = [edit_header, edit_header, edit_length, edit_fixed]


def sealed(chance: random.Random) -> bytes:
    """A page with a correct MAC and whatever else."""
    draft = good_draft(chance)
    edited = chance.random() < 0.25
    for _ in range(chance.choice([1, 1, 1, 2, 3]) if not edited or chance.random() < 0.2 else 0):
        chance.choice(DRAFTING)(draft, chance)
    page = draft.render()
    if edited:
        chance.choice(EDITING)(page, chance)
    return seal(page, SECRET)


# ---- changed and foreign: bytes that nobody sealed ------------------------------------------------------------------


def valid_page(chance: random.Random, key: str = KEY) -> bytes:
    """A page as our own writer makes it."""
    tensors = {}
    for number in range(chance.randrange(4)):
        dtype = chance.choice(list(DTYPES.values()))
        shape = [chance.randrange(5) for _ in range(chance.randrange(3))]
        size = torch.Size(shape).numel() * dtype.itemsize
        raw = torch.tensor(list(chance.randbytes(size)), dtype=torch.uint8) & (1 if dtype == torch.bool else 255)
        tensors[f"t{number}"] = raw.view(dtype).reshape(shape) if size else torch.empty(shape, dtype=dtype)
    page = bytes(encode(key, tensors, secret=SECRET, metadata={"note": "é"}, tag=TAG).buffer.numpy())
    # The random bytes of its MAC are drawn here, so that a case is the same every time.
    return seal(page[:_MAC_AT] + chance.randbytes(16).hex().encode() + page[_MAC_AT + 32 :], SECRET)


def changed(chance: random.Random) -> bytes:
    """A valid page, changed; its MAC as it was."""
    original, another = valid_page(chance), valid_page(chance)
    page = bytearray(original)
    while page in (original, another):
        for _ in range(chance.choice([1, 1, 2, 5])):
            at = chance.randrange(len(page) + 1)
            match chance.randrange(8):
                case 0 | 1 if at < len(page):
                    page[at] ^= 1 << chance.randrange(8)
                case 2:
                    page[at:at] = chance.choice([chance.randbytes(8), bytes(8), b" " * 8, *ODD[:20]])
                case 3:
                    del page[at : at + chance.choice([1, 8, 64])]
                case 4:
                    del page[at:]
                case 5:
                    page[at : at + 64] = bytes(64)
                case 6:
                    page[at:] = another[at:]
                case 7:
                    other = valid_page(chance, OTHER_KEY)
                    page = bytearray(chance.choice([other, other.replace(OTHER_KEY.encode(), KEY.encode())]))
                case _:
                    page += bytes(page)
    return bytes(page) if chance.random() < 0.9 else seal(page.ljust(400), bytes(32))


class Poison:
    """An object whose unpickling runs a command that leaves a file behind."""

    def __init__(self, mark: Path) -> None:
        self._mark = mark

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, (f"touch '{self._mark}'",)


def foreign(chance: random.Random, mark: Path) -> bytes:
    """What is no page at all, some of it behind the beginning of one. Unpickling it would make the file `mark`."""
    saved = BytesIO()
    torch.save({"x": torch.ones(2), "y": Poison(mark)}, saved)
    contents = [
        chance.randbytes(chance.choice([8, 300, 5000])),
        bytes(chance.choice([1, 8, 400, 5000])),
        b"",
        pickle.dumps(Poison(mark)),
        pickle.dumps([Poison(mark)], protocol=0),
        saved.getvalue(),
        safetensors.torch.save({"x": torch.ones(2)}, {"format": "pt"}),
        nested(chance),
        b"__import__('os').system(\"touch '%b'\")" % str(mark).encode(),
        "ünïcode \U0001f4a5".encode("utf-16"),
    ]
    content = chance.choice(contents)
    page = valid_page(chance)
    begun = page[: chance.randrange(len(page))] + content
    if begun == page:  # which ended with just these bytes
        begun += b"\0"
    return chance.choice([content, content, begun, page + content + b"\0"])


# ---- running and judging --------------------------------------------------------------------------------------------


class Executed(BaseException):
    """Something was about to be executed. Not an Exception, so that nothing on the way takes it for an error."""


class Alarms:
    """Hears, while it is on, whether this process executes, compiles, imports or unpickles anything.

    Installed once, for the rest of the process: audit hooks cannot be removed.
    """

    EVENTS = frozenset(
        [
            "exec", "compile", "import", "code.__new__", "marshal.load", "marshal.loads", "pickle.find_class",
            "ctypes.dlopen", "os.system", "os.exec", "os.fork", "os.posix_spawn", "subprocess.Popen", "socket.connect",
        ]
    )  # fmt: skip

    def __init__(self) -> None:
        self.on = False
        self.heard: list[str] = []

    def install(self) -> None:
        sys.addaudithook(self._event)
        # A pickle of plain data makes no event.
        modules: list[tuple[Any, str]] = [(pickle, "load"), (pickle, "loads"), (pickle, "Unpickler"), (torch, "load")]
        for module, name in modules:
            setattr(module, name, partial(self._called, f"{module.__name__}.{name}"))

    def _event(self, event: str, arguments: tuple) -> None:
        if self.on and event in self.EVENTS:
            self._called(event, arguments)

    def _called(self, name: str, *arguments: Any, **named: Any) -> NoReturn:
        self.heard.append(f"{name} {str(arguments)[:200]}")
        raise Executed(name)


@dataclass
class Failure:
    """A case that was not allowed. `number` and the run's seed make its bytes again."""

    number: int
    family: str
    target: str
    what: str
    file: str


@dataclass
class Result:
    """What became of the cases. `reasons`: how far the refused ones came, by the first words of the refusal."""

    seed: int
    cases: int = 0
    pages: int = 0
    refused: int = 0
    families: dict[str, int] = field(default_factory=dict)
    reasons: dict[str, int] = field(default_factory=dict)
    longest_seconds: float = 0.0
    most_memory: int = 0
    failures: list[Failure] = field(default_factory=list)


def unsound(page: Page, data: bytes) -> str:
    """What is wrong with a page decoded from `data`; nothing if its tensors lie beside one another in its buffer."""
    strings = [page.key, page.kind, page.tag, *page.metadata, *page.metadata.values(), *page.tensors]
    if not all(isinstance(value, str) for value in strings) or page.key != KEY:
        return f"its key, kind, tag, metadata or names are not the strings they should be: {strings!r:.300}"
    if page.buffer.dtype != torch.uint8 or page.buffer.numel() != len(data) or not page.buffer.is_contiguous():
        return f"its buffer is {page.buffer.dtype} {list(page.buffer.shape)}, of {len(data)} bytes"
    if bytes(page.buffer.numpy()) != data:
        return "its buffer holds other bytes"
    if page.tag.encode("utf-8", "surrogatepass") != data[_TAG_AT : _TAG_AT + 64]:
        return f"its tag is {page.tag!r:.80}, its first bytes say {data[_TAG_AT : _TAG_AT + 64]!r}"
    free = 8 + int.from_bytes(data[:8], "little")
    for name, tensor in page.tensors.items():
        if not tensor.numel():
            continue
        begin = tensor.data_ptr() - page.buffer.data_ptr()
        end = begin + tensor.numel() * tensor.itemsize
        if not tensor.is_contiguous() or not free <= begin < end <= len(data):
            return f"tensor {name!r:.80} lies at {begin} to {end}, free are {free} to {len(data)}"
        free = end
    return ""


def as_argument(data: bytes, chance: random.Random) -> Any:
    """`data` in one of the forms `decode` takes."""
    padded = torch.frombuffer(bytearray(b"\0" + data + b"\0"), dtype=torch.uint8)[1:-1]
    forms = [data, bytearray(data), memoryview(data), memoryview(bytearray(data)), padded, padded.clone()]
    return chance.choice(forms)


def peak_memory() -> int:
    """The most address space this process ever had, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmPeak:"):
            return int(line.split()[1]) << 10
    raise RuntimeError("/proc/self/status does not tell VmPeak: run this on Linux")


class Fuzzer:
    """Makes cases by number and judges what becomes of them.

    Parameters
    ----------
    seed : int
    folder : Path
        For the store whose one file is replaced, and for what failed.
    alarms : Alarms or None
        Installed already. None: whether anything is executed is not watched.
    decoder : callable
        What takes the bytes, the key and the secret.
    """

    def __init__(
        self,
        seed: int,
        folder: Path,
        alarms: Alarms | None = None,
        decoder: Callable[[Any, str, bytes], Page] = decode,
    ) -> None:
        self.result = Result(seed)
        self._folder = folder
        self._mark = folder / "executed"
        self._alarms = alarms or Alarms()
        self._decoder = decoder
        with_page = FileStore(folder / "store", SECRET, None, threads=1)
        with_page.put([encode(KEY, {}, secret=SECRET)])
        self._file = with_page.path(KEY)
        with_page.close()
        # Reading only: what is refused stays in place of being moved, and the next case overwrites it.
        self._store = FileStore(folder / "store", SECRET, None, read_only=True, threads=1)
        self._current = os.open(folder / "current", os.O_WRONLY | os.O_CREAT, 0o666)
        good = seal(good_draft(random.Random(0)).render(), SECRET)
        decode(good, KEY, SECRET)  # refused, and it would be our seal that is wrong
        # What is imported when it is first used is not the cases' doing.
        for bad in (good, good[:-1], good[:-1] + b"x", seal(good.replace(b"kind", b"dnik"), SECRET)):
            with suppress(PageDamaged):
                decode(bad, KEY, SECRET)
            self._through_store(bad)

    def close(self) -> None:
        self._store.close()
        os.close(self._current)

    def make(self, number: int) -> tuple[str, bytes, random.Random]:
        """Family and bytes of a case, and the numbers that decide how it is passed."""
        chance = random.Random(f"{self.result.seed}-{number}")
        family = chance.choices(["sealed", "changed", "foreign"], [12, 5, 3])[0]
        makers: dict[str, Callable[[random.Random], bytes]]
        makers = {"sealed": sealed, "changed": changed, "foreign": partial(foreign, mark=self._mark)}
        return family, makers[family](chance), chance

    def run(self, number: int) -> None:
        """One case."""
        family, data, chance = self.make(number)
        os.pwrite(self._current, f"{number:<20d}".encode(), 0)
        target = "store" if chance.random() < 0.125 else "decode"
        memory, started = peak_memory(), time.process_time()  # of the process: others may be busy meanwhile
        page, what = None, ""
        try:
            page = self._through_store(data) if target == "store" else self._through_decoder(data, chance)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # also panics of compiled libraries, which are no Exceptions
            what = f"{type(error).__name__}: {str(error)[:300]}"
        seconds, grown = time.process_time() - started, peak_memory() - memory

        self.result.cases += 1
        self.result.families[family] = self.result.families.get(family, 0) + 1
        self.result.longest_seconds = max(self.result.longest_seconds, seconds)
        self.result.most_memory = max(self.result.most_memory, grown)
        if isinstance(page, Page):
            self.result.pages += 1
            what = what or ("a page that nobody sealed" if family != "sealed" else unsound(page, data))
        elif page is not None:
            self.result.refused += 1
            self.result.reasons[page] = self.result.reasons.get(page, 0) + 1
        if self._alarms.heard or self._mark.exists():
            what = f"executed: {self._alarms.heard or self._mark}"
            self._alarms.heard.clear()
            self._mark.unlink(missing_ok=True)
        if not what and seconds > SECONDS:
            what = f"{seconds:.1f} s"
        if not what and grown > memory_bound(len(data)):
            what = f"{grown} bytes of memory for {len(data)}"
        if what:
            file = self._folder / f"{self.result.seed}-{number}.hex"
            file.write_text(data.hex())
            self.result.failures.append(Failure(number, family, target, what, str(file)))

    def _through_decoder(self, data: bytes, chance: random.Random) -> Page | str:
        """The page, or how far it came."""
        argument = as_argument(data, chance)
        self._alarms.on = True
        try:
            return self._decoder(argument, KEY, SECRET)
        except PageDamaged as error:
            return _stage(error.reason)
        finally:
            self._alarms.on = False

    def _through_store(self, data: bytes) -> Page | str:
        """The same through a file."""
        self._file.write_bytes(data)
        self._alarms.on = True
        try:
            result = self._store.get([KEY])[KEY]
            self._store.tags()
        finally:
            self._alarms.on = False
        if isinstance(result, Hit):
            return result.page
        if not result.damaged:  # the file is there and can be read
            raise RuntimeError(f"a miss because {result.reason}")
        return _stage(result.reason.removeprefix("damaged: "))


def _stage(reason: str) -> str:
    """Which check a refusal comes from."""
    if reason.startswith("its MAC"):
        return "MAC"
    return "header" if reason.startswith("its header cannot be used") else "first bytes"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, help="how long; 60 unless --cases is given")
    parser.add_argument("--cases", type=int, help="how many at most")
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="where bytes that failed are written; by default a new one")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(argv)
    if options.seconds is None and options.cases is None:
        options.seconds = 60.0
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)  # a line for every damaged page
    folder = options.folder or Path(tempfile.mkdtemp(prefix="fuzz-pages-"))
    folder.mkdir(parents=True, exist_ok=True)
    alarms = Alarms()
    alarms.install()
    fuzzer = Fuzzer(options.seed, folder, alarms)
    # A case that hangs, also inside compiled code, ends the process with its traceback.
    faulthandler.register(signal.SIGALRM, chain=True)
    result = fuzzer.result
    started = time.monotonic()
    while (options.cases is None or result.cases < options.cases) and (
        options.seconds is None or time.monotonic() - started < options.seconds
    ):
        signal.alarm(round(20 * SECONDS))
        failed = len(result.failures)
        fuzzer.run(options.first + result.cases)
        for failure in result.failures[failed:]:
            print(f"case {failure.number} ({failure.family}, {failure.target}): {failure.what}; bytes: {failure.file}")
    signal.alarm(0)
    fuzzer.close()
    if options.folder is None and not result.failures:
        shutil.rmtree(folder)
    print(
        f"{result.cases:,} cases of seed {options.seed}: {result.refused:,} refused, {result.pages:,} sound pages, "
        f"{len(result.failures):,} failures"
    )
    print(f"families {result.families}; refused by {result.reasons}")
    print(f"at most {result.longest_seconds:.2f} s and {result.most_memory / 1e6:.0f} MB for one case")
    if options.out is not None:
        options.out.write_text(json.dumps(vars(options) | asdict(result), default=str, indent=1) + "\n")
    return 1 if result.failures else 0


if __name__ == "__main__":
    sys.exit(main())
