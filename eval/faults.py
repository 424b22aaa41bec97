"""Damages stored pages in every way a disk, a program or a person can, and counts what stores then serve.

    python -m linearkv.eval.faults --count 10000 --seed 0 [--out faults.json]

Each fault strikes the file of one of two pages in a store that was closed before. A store that is opened afresh, so
that no memory stands in front of the disk, is asked for both and given both again, and another fresh one must have
both. Where a fault lasts, as a full disk does, it ends before the pages are given once more. Faults go round all kinds
of store: the file tier alone, what `open_pages` returns of each backend, and LMCache with a Redis server behind it.

Of that last one the server is struck, or the value it has of one of the pages. There are never files of them when the
store is asked, so that what it serves is the server's. It is open when the fault comes, is asked, given the pages and
asked again, and must have both then, unless the fault lasts: then soon after its end, without being opened again.

What is counted of every kind of fault
- misses: the page was not served. served right: it was, exactly as written (every byte of the page and of its tensors).
- wrong: other bytes were served, of either page, at any time. crashes: something raised.
- lost others: the other page, which was not touched, was not served.
- healed: both pages were served, exactly, once they had been put again.

Exit code 1 if anything was wrong, crashed, lost or not healed. Faults of permission need a user who is not root: as
root they run in another process, as another user. A full disk needs the right to mount a small one, and the remote
store `redis-server` on the path, of which one is started for the run. What cannot be done is named with the reason.
"""

import argparse
import errno
import faulthandler
import json
import logging
import multiprocessing
import os
import random
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

import torch
from torch import Tensor

from linearkv.cache import FORMAT_VERSION, FileStore, Hit, Miss, Page, PageStore, Stored, encode, open_pages
from linearkv.errors import LinearKVError
from linearkv.eval.fuzz_pages import seal
from linearkv.identity import ModelIdentity, chunk_key

if TYPE_CHECKING:
    import redis

SECONDS = 120
"""No case may take longer: a store that waits for ever ends the program."""
RETURN_SECONDS = 10
"""How long a store may take to find a server again that is back."""
NOBODY = 65534
BAD = ("wrong", "crashes", "lost others", "not healed")
MODEL = ModelIdentity(
    weights="0" * 64,
    config="1" * 64,
    parameters="2" * 64,
    compute_dtype="float32",
    attention_backend="sdpa",
    gdn_backend="reference",
    versions={"torch": "2"},
    producer="faults",
)

MEMORY_BYTES = 1 << 20

Open = Callable[[Path, bytes], PageStore]

STORES: dict[str, Open] = {
    "file tier": lambda folder, secret: FileStore(folder, secret, None, threads=2),
    "backend files": partial(open_pages, memory_bytes=MEMORY_BYTES, disk_bytes=None, backend="files"),
    "backend lmcache": partial(open_pages, memory_bytes=MEMORY_BYTES, disk_bytes=None, backend="lmcache"),
}


class OpenRemote(Protocol):
    def __call__(self, folder: Path, secret: bytes, *, remote: str) -> PageStore: ...


REMOTE_STORES: dict[str, OpenRemote] = {
    "backend lmcache, Redis": partial(open_pages, memory_bytes=MEMORY_BYTES, disk_bytes=None, backend="lmcache"),
}


# ---- a Redis server -------------------------------------------------------------------------------------------------


class RedisServer:
    """A server on a free port of this machine, which has nothing any more once it was stopped."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self._folder = folder
        self.start()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def client(self) -> "redis.Redis":
        import redis  # comes with LMCache, without which there is no remote store

        return redis.Redis.from_url(self.url)

    def start(self) -> None:
        command = ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        self._process = subprocess.Popen([*command, "--dir", str(self._folder)], stdout=subprocess.DEVNULL)
        until = time.monotonic() + 20
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > until:
                self.stop()
                raise RuntimeError("redis-server does not start")
            time.sleep(0.02)

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()

    def _answers(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0


@contextmanager
def redis_server(folder: Path) -> Iterator[RedisServer | None]:
    """A server of our own; None where there is none to be had."""
    if shutil.which("redis-server") is None:
        yield None
        return
    server = RedisServer(folder)
    try:
        yield server
    finally:
        server.stop()


# ---- pages and what is true of them ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Truth:
    """A page, and copies of what it must be that share no memory with it."""

    page: Page
    raw: bytes
    tensors: dict[str, Tensor]

    @property
    def key(self) -> str:
        return self.page.key

    def matches(self, page: Page) -> bool:
        """Whether `page` is this one in every bit."""
        own = self.page
        return (
            (page.key, page.kind, page.tag, page.metadata) == (own.key, own.kind, own.tag, own.metadata)
            and bytes(page.buffer.numpy()) == self.raw
            and list(page.tensors) == list(self.tensors)
            and all(_same_bits(page.tensors[name], tensor) for name, tensor in self.tensors.items())
        )


def _same_bits(one: Tensor, other: Tensor) -> bool:
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    return not one.numel() or torch.equal(one.reshape(-1).view(torch.uint8), other.reshape(-1).view(torch.uint8))


def random_tensors(chance: random.Random, tokens: int) -> dict[str, Tensor]:
    """About 3 kB of random bits, in dtypes and shapes like those of a chunk's state."""

    def bits(dtype: torch.dtype, *shape: int) -> Tensor:
        raw = bytearray(chance.randbytes(torch.Size(shape).numel() * dtype.itemsize))
        return torch.frombuffer(raw, dtype=dtype).reshape(shape)

    return {
        "layers.0.transition": bits(torch.float16, 4, 8, 8),
        "layers.0.update": bits(torch.float32, 4, 8, 8),
        "layers.0.rows": torch.empty(0, 8, dtype=torch.float16),
        "layers.1.key": bits(torch.bfloat16, 2, tokens, 8),
        "layers.1.codes": bits(torch.int8, 3, 5),
        "mask": bits(torch.uint8, tokens) > 127,
        "scale": bits(torch.float64),
        "token_ids": bits(torch.int64, tokens),
    }


def make(chance: random.Random, secret: bytes, key: str, tokens: int) -> Truth:
    """A page of `key` with random content."""
    tensors = random_tensors(chance, tokens)
    page = encode(key, tensors, secret=secret, tag=chance.randbytes(32).hex(), metadata={"chunk": "7"})
    return Truth(page, bytes(page.buffer.numpy()), {name: tensor.clone() for name, tensor in tensors.items()})


@dataclass
class Case:
    """One fault to come: two pages in a closed store, or on a server; and what a fault may need."""

    folder: Path
    chance: random.Random
    secret: bytes
    tokens: list[int]
    truth: Truth
    other: Truth
    server: RedisServer | None = None
    store: PageStore | None = None
    """With a server: the store that is open when the fault comes."""

    @classmethod
    def of(cls, folder: Path, chance: random.Random) -> "Case":
        secret = chance.randbytes(32)
        tokens = [chance.randrange(50_000) for _ in range(chance.randrange(1, 30))]
        truth, other = (
            make(chance, secret, identity(secret, ids), len(tokens)) for ids in (tokens, [*tokens, 1])
        )  # of one size, so that nothing but the content tells them apart
        return cls(folder, chance, secret, tokens, truth, other)

    @property
    def path(self) -> Path:
        """The file of the page to be struck, found by its bytes, wherever the store put it."""
        return self.path_of(self.truth)

    def path_of(self, truth: Truth) -> Path:
        for path in self.folder.rglob("*"):
            if path.is_file() and path.read_bytes() == truth.raw:
                return path
        raise RuntimeError(f"no file in {self.folder} is the page as it was put: these faults need one")

    @property
    def redis(self) -> "redis.Redis":
        assert self.server is not None
        return self.server.client()

    @property
    def name(self) -> bytes:
        """What the server calls the page to be struck, found by its bytes too."""
        return self.name_of(self.truth)

    def name_of(self, truth: Truth) -> bytes:
        client = self.redis
        for name in client.scan_iter():
            if client.get(name) == truth.raw:
                return bytes(name)
        raise RuntimeError("no value of the server is the page as it was put: these faults need one")

    def forge(self, secret: bytes | None = None, key: str | None = None) -> bytes:
        """Another valid page of the same size: of another secret or another key."""
        return make(self.chance, secret or self.secret, key or self.truth.key, len(self.tokens)).raw


def identity(secret: bytes, tokens: Sequence[int], model: ModelIdentity = MODEL, prefix: Sequence[int] = (1, 2)) -> str:
    return chunk_key(secret, model, prefix_token_ids=prefix, chunk_token_ids=tokens, storage_policy="fp16")


def parts(raw: bytes) -> dict[str, range]:
    """Where a page's parts lie: the header's length, its metadata, the tensors' layout, the tensors."""
    end = 8 + int.from_bytes(raw[:8], "little")
    metadata = raw.index(b"}") + 1
    return {
        "length": range(8),
        "metadata": range(8, metadata),
        "layout": range(metadata, end),
        "tensors": range(end, len(raw)),
    }


# ---- faults of content: bytes in, other bytes out -------------------------------------------------------------------

Change = Callable[[Case, bytes], bytes]


def flip(part: str, several: bool) -> Change:
    def change(case: Case, raw: bytes) -> bytes:
        data = bytearray(raw)
        places = parts(raw)[part]
        bits = [(at, bit) for at in places for bit in range(8)]
        for at, bit in case.chance.sample(bits, case.chance.choice([2, 3, 8, 40]) if several else 1):
            data[at] ^= 1 << bit
        return bytes(data)

    return change


def cut(first: Callable[[bytes], int], last: Callable[[bytes], int]) -> Change:
    """Keep a number of bytes from `first` up to, not including, `last`."""
    return lambda case, raw: raw[: case.chance.randrange(first(raw), last(raw))]


def _head_end(raw: bytes) -> int:
    """Behind the fields that have fixed places."""
    return raw.index(b'"tag":"') + len('"tag":"') + 64 + 1


def zeros_within(case: Case, raw: bytes) -> bytes:
    size = case.chance.choice([1, 16, 512])
    start = case.chance.randrange(len(raw) // size) * size
    return raw[:start] + bytes(size) + raw[start + size :]


def zeros_behind(case: Case, raw: bytes) -> bytes:
    start = case.chance.randrange(1, len(raw))
    return raw[:start] + bytes(len(raw) - start)


def longer(case: Case, raw: bytes) -> bytes:
    return raw + case.chance.choice([b"\0", bytes(4096), b" " * 8, raw, case.chance.randbytes(100)])


def shifted(case: Case, raw: bytes) -> bytes:
    """A byte too many or too few in the middle; the length can be right all the same."""
    at = case.chance.randrange(len(raw))
    return case.chance.choice([raw[:at] + b"\0" + raw[at:], raw[:at] + raw[at + 1 :], raw[:at] + raw[at + 1 :] + b"\0"])


def torn(case: Case, raw: bytes) -> bytes:
    """The beginning of this page and the end of an older one of the same key and size."""
    at = case.chance.randrange(parts(raw)["metadata"].stop, len(raw))
    return raw[:at] + case.forge()[at:]


def of_another_version(case: Case, raw: bytes) -> bytes:
    """With its MAC as it was, or made good by the owner of the secret, as another version of the program would."""
    version = case.chance.choice([0, FORMAT_VERSION + 1, 10, 9999])
    mark = b'"linearkv_page":"%04d"'
    data = raw.replace(mark % FORMAT_VERSION, mark % version)
    return case.chance.choice([data, seal(data, case.secret)])


def of_another_layout(case: Case, raw: bytes) -> bytes:
    """Other shapes or dtypes of the same size, sealed by who does not have the secret, or not sealed again."""
    edits = [(b"[4,8,8]", b"[8,8,4]"), (b'"F16"', b'"I16"'), (b'"mask"', b'"mark"')]
    edited = raw.replace(*case.chance.choice(edits))
    tensors = {name: tensor.clone().reshape(-1) for name, tensor in case.truth.tensors.items()}
    forged = encode(case.truth.key, tensors, secret=case.chance.randbytes(32), tag=case.truth.page.tag)
    return case.chance.choice([edited, seal(edited, case.chance.randbytes(32)), bytes(forged.buffer.numpy())])


def of_another_model(case: Case, raw: bytes) -> bytes:
    return case.forge(key=identity(case.secret, case.tokens, model=replace(MODEL, weights="f" * 64)))


def of_another_prefix(case: Case, raw: bytes) -> bytes:
    return case.forge(key=identity(case.secret, case.tokens, prefix=(1, 3)))


def of_another_tenant(case: Case, raw: bytes) -> bytes:
    """Under that tenant's own key of the same text, or under this one's."""
    secret = case.chance.randbytes(32)
    return case.forge(secret, case.chance.choice([case.truth.key, identity(secret, case.tokens)]))


def relabelled(case: Case, raw: bytes) -> bytes:
    """Another page of this tenant whose key was overwritten."""
    return case.other.raw.replace(case.other.key.encode(), case.truth.key.encode())


CONTENT: dict[str, Change] = {
    **{f"one bit, {part}": flip(part, False) for part in ("length", "metadata", "layout", "tensors")},
    **{f"several bits, {part}": flip(part, True) for part in ("length", "metadata", "layout", "tensors")},
    "cut to nothing": lambda case, raw: b"",
    "cut in the fixed fields": cut(lambda raw: 1, _head_end),
    "cut in the header": cut(_head_end, lambda raw: parts(raw)["tensors"].start),
    "cut in the tensors": cut(lambda raw: parts(raw)["tensors"].start, lambda raw: len(raw) - 1),
    "last byte missing": lambda case, raw: raw[:-1],
    "zeros": lambda case, raw: bytes(len(raw)),
    "zeros in a block": zeros_within,
    "zeros to the end": zeros_behind,
    "longer": longer,
    "shifted": shifted,
    "torn": torn,
    "another version": of_another_version,
    "another layout": of_another_layout,
    "another model": of_another_model,
    "another prefix": of_another_prefix,
    "another tenant": of_another_tenant,
    "relabelled": relabelled,
}


def overwrite(case: Case, change: Change) -> None:
    """Change the value, or the file's bytes: in place or in a new file, half of the time with no trace in its times."""
    data = raw = case.truth.raw
    while data == raw:  # a block of zeros can be one already
        data = change(case, raw)
    if case.server is not None:
        case.redis.set(case.name, data)
        return
    path = case.path
    before = path.stat()
    if case.chance.random() < 0.5:
        path.unlink()
    path.write_bytes(data)
    if case.chance.random() < 0.5:
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


# ---- other faults: what lies there is no file, or the system refuses ------------------------------------------------

Undo = Callable[[], object]
Inject = Callable[[Case], Undo | None]


def swap(case: Case) -> None:
    if case.server is not None:
        names = case.name, case.name_of(case.other)
        case.redis.mset(dict(zip(names, (case.other.raw, case.truth.raw), strict=True)))
        return
    one, two = case.path, case.path_of(case.other)
    aside = one.with_name("aside")
    one.rename(aside)
    two.rename(one)
    aside.rename(two)


def vanish(case: Case) -> None:
    case.path.unlink()


def empty_file(case: Case) -> None:
    path = case.path
    path.unlink()
    path.touch()


def holes(case: Case) -> None:
    """A file of terabytes that takes no room, half of the time with a header that says so."""
    path, size = case.path, 1 << 42
    if case.chance.random() < 0.5:
        mark = b'"bytes":"%016d"'
        path.write_bytes(case.truth.raw.replace(mark % len(case.truth.raw), mark % size))
    os.truncate(path, size)


def folder(case: Case) -> None:
    path = case.path
    path.unlink()
    path.mkdir()
    if case.chance.random() < 0.5:
        (path / "inside").write_text("x")


def link(case: Case) -> None:
    """A link to the page itself elsewhere, to another page, to nothing, to itself, to a folder or to a device."""
    path, elsewhere = case.path, case.folder / "elsewhere"
    other = case.path_of(case.other)
    path.rename(elsewhere)
    targets = [elsewhere, other, case.folder / "nothing", path, case.folder, Path("/dev/zero")]
    path.symlink_to(case.chance.choice(targets))


def pipe(case: Case) -> None:
    path = case.path
    path.unlink()
    os.mkfifo(path)


def read_error(case: Case) -> Undo:
    """Reading the file fails, at once or after some of it, as often as it is tried."""
    inode, number = case.path.stat().st_ino, case.chance.choice([errno.EIO, errno.ESTALE, errno.ETIMEDOUT])
    some = case.chance.choice([0.0, 0.5])
    read = FileStore._read_into

    def failing(self: FileStore, descriptor: int, view: memoryview) -> None:
        if os.fstat(descriptor).st_ino == inode:
            read(self, descriptor, view[: int(some * len(view))])
            raise OSError(number, os.strerror(number))
        read(self, descriptor, view)

    def undo() -> None:
        FileStore._read_into = read  # type: ignore[method-assign]

    FileStore._read_into = failing  # type: ignore[method-assign]
    return undo


def writes_cut_short(case: Case) -> Undo:
    """The page is damaged, and no file may grow as long as it."""
    overwrite(case, flip("tensors", False))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (case.chance.randrange(len(case.truth.raw)), before[1]))
    quiet = logging.root.manager.disable
    logging.disable()  # what is logged may go to a file too, and that one may not grow either

    def undo() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        logging.disable(quiet)

    return undo


def full_disk(case: Case) -> Undo:
    """The page is damaged or gone, and nothing is left of the disk."""
    if case.chance.random() < 0.5:
        vanish(case)
    else:
        overwrite(case, flip("tensors", False))
    ballast = case.folder.parent / "ballast"
    with ballast.open("wb", buffering=0) as file:
        try:
            while file.write(bytes(4096)):
                continue
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
    return ballast.unlink


def unreadable(case: Case) -> None:
    case.path.chmod(0)


def closed_folder(case: Case) -> Undo:
    folder = case.path.parent
    folder.chmod(0)
    return lambda: folder.chmod(0o700)


def folder_not_writable(case: Case) -> Undo:
    """The page is damaged, and may neither be moved nor replaced."""
    folder = case.path.parent
    overwrite(case, flip("tensors", False))
    folder.chmod(0o500)
    return lambda: folder.chmod(0o700)


# ---- faults of a Redis server ---------------------------------------------------------------------------------------


def value_gone(case: Case) -> None:
    case.redis.delete(case.name)


def value_of_another_type(case: Case) -> None:
    name, raw, client = case.name, case.truth.raw, case.redis
    client.delete(name)
    case.chance.choice(
        [
            lambda: client.rpush(name, raw),
            lambda: client.sadd(name, raw),
            lambda: client.zadd(name, {raw: 1}),
            lambda: client.hset(name, "page", raw),
            lambda: client.xadd(name, {"page": raw}),
        ]
    )()


def value_larger_than_memory(case: Case) -> None:
    """Zeros behind the page, more than memory has room for; half of the time with a header that says so."""
    name, size = case.name, case.chance.choice([2 << 20, 64 << 20])
    if case.chance.random() < 0.5:
        mark = b'"bytes":"%016d"'
        case.redis.set(name, case.truth.raw.replace(mark % len(case.truth.raw), mark % size))
    case.redis.setrange(name, size - 1, b"\0")


def memory_full(case: Case) -> Undo:
    """Somebody looks at as much as fits into memory; half of the time the page is damaged too."""
    assert case.store is not None
    if case.chance.random() < 0.5:
        overwrite(case, flip("tensors", False))
    ballast = encode("0" * 64, {"x": torch.zeros(MEMORY_BYTES - 2048, dtype=torch.uint8)}, secret=case.secret)
    case.store.put([ballast])
    looked_at = case.store.get([ballast.key])
    if not isinstance(hit := looked_at[ballast.key], Hit) or hit.tier != "memory":
        raise RuntimeError(f"memory does not hold the page that is to fill it: {hit}")
    del hit
    return looked_at.clear


def server_full(case: Case) -> Undo:
    """The page is damaged or gone, and the server takes nothing more."""
    if case.chance.random() < 0.5:
        value_gone(case)
    else:
        overwrite(case, flip("tensors", False))
    case.redis.config_set("maxmemory-policy", "noeviction")
    case.redis.config_set("maxmemory", 1)
    return lambda: case.redis.config_set("maxmemory", 0)


def server_stopped(case: Case) -> Undo:
    """Killed; half of the time another one, with nothing in it, is there at once."""
    server = case.server
    assert server is not None
    server.stop()
    if case.chance.random() < 0.5:
        server.start()
        return lambda: None
    return server.start


FILE, PAGE, USER = "a file", "a page, be it in a file or on a server", "a user who is not root"
DISK, SERVER = "a small disk", "a Redis server"


class Kind(NamedTuple):
    """A kind of fault. `spares`: the other page has to be served. `needs`: where it can be done."""

    inject: Inject
    spares: bool = True
    needs: str = FILE


KINDS: dict[str, Kind] = {
    **{name: Kind(partial(overwrite, change=change), needs=PAGE) for name, change in CONTENT.items()},
    "two pages swapped": Kind(swap, spares=False, needs=PAGE),
    "file gone": Kind(vanish),
    "empty file": Kind(empty_file),
    "terabytes of holes": Kind(holes),
    "folder": Kind(folder),
    "link": Kind(link),
    "pipe": Kind(pipe),
    "read error": Kind(read_error),
    "writes cut short": Kind(writes_cut_short),
    "disk full": Kind(full_disk, spares=False, needs=DISK),  # other pages make room
    "file not readable": Kind(unreadable, needs=USER),
    "folder closed": Kind(closed_folder, spares=False, needs=USER),
    "folder not writable": Kind(folder_not_writable, needs=USER),
    "value gone": Kind(value_gone, needs=SERVER),
    "value of another type": Kind(value_of_another_type, needs=SERVER),
    "value larger than memory": Kind(value_larger_than_memory, needs=SERVER),
    "memory full": Kind(memory_full, needs=SERVER),
    "server full": Kind(server_full, needs=SERVER),
    "server stopped": Kind(server_stopped, spares=False, needs=SERVER),
}


# ---- striking -------------------------------------------------------------------------------------------------------


class Plan(NamedTuple):
    """A case by number; with the run's seed it is the same every time, but for the random bytes in MACs."""

    number: int
    kind: str
    store: str


@dataclass
class Struck:
    """What became of a case. `what`: words for what went wrong."""

    plan: Plan
    counts: Counter[str] = field(default_factory=Counter)
    what: str = ""


Verdicts = tuple[str, str]
"""Of the page that was struck and of the other: "misses", "served right" or "wrong"."""
BOTH_RIGHT: Verdicts = ("served right", "served right")


def judge(case: Case, store: PageStore, tier: str) -> Verdicts:
    """What a store serves, which has to come from `tier`."""
    results = store.get([case.truth.key, case.other.key])

    def verdict(truth: Truth) -> str:
        result = results[truth.key]
        if isinstance(result, Miss):
            return "misses"
        if result.tier != tier:
            raise RuntimeError(f"a page came from {result.tier}, which hides the {tier} tier")
        return "served right" if truth.matches(result.page) else "wrong"

    return verdict(case.truth), verdict(case.other)


def put(case: Case, store: PageStore, bulk: bool = False) -> None:
    outcomes = store.put([case.truth.page, case.other.page], bulk=bulk)
    if not all(isinstance(outcome, Stored) for outcome in outcomes.values()):
        raise RuntimeError(f"pages cannot be put where nothing is wrong: {outcomes}")


def on_disk(case: Case, inject: Inject, opened: Callable[[], PageStore]) -> tuple[list[Verdicts], Verdicts]:
    """What was served after the fault, and after healing."""
    with closing(opened()) as store:
        put(case, store)
    undo = inject(case)
    try:
        with closing(opened()) as store:
            found = judge(case, store, "disk")
            store.put([case.truth.page, case.other.page])
    finally:
        if undo is not None:
            undo()
    if undo is not None:
        with closing(opened()) as store:
            put(case, store)
    with closing(opened()) as store:
        return [found], judge(case, store, "disk")


def on_server(case: Case, inject: Inject, opened: Callable[[], PageStore]) -> tuple[list[Verdicts], Verdicts]:
    """The same of values of a Redis server; what was served is told of every time the store was asked."""

    def served(store: PageStore) -> Verdicts:
        for path in case.folder.rglob("*.safetensors"):
            path.unlink()
        return judge(case, store, "remote")

    case.redis.flushall()
    with closing(opened()) as store:
        put(case, store, bulk=True)  # which waits for the server
    with closing(opened()) as store:
        if case.chance.random() < 0.5:
            store.get(["f" * 64])  # it is connected when the fault comes
        case.store = store
        undo = inject(case)
        try:
            looks = [served(store)]
            store.put([case.truth.page, case.other.page], bulk=True)
            looks.append(served(store))
        finally:
            if undo is not None:
                undo()
        until = time.monotonic() + RETURN_SECONDS
        while undo is not None and looks[-1] != BOTH_RIGHT and time.monotonic() < until:
            put(case, store, bulk=True)
            looks.append(served(store))
            time.sleep(0.05)
    with closing(opened()) as store:
        healed = served(store)
    return looks, healed if looks[-1] == BOTH_RIGHT else looks[-1]


def strike(
    plan: Plan, folder: Path, seed: int, stores: Mapping[str, Open], servers: Mapping[str, RedisServer]
) -> Struck:
    """One fault, in a folder of its own. `servers`: those of the stores that have one."""
    struck = Struck(plan, Counter(injected=1))
    kind = KINDS[plan.kind]
    case = Case.of(folder / str(plan.number), random.Random(f"{seed}-{plan.number}"))
    case.server = servers.get(plan.store)
    suffer = on_disk if case.server is None else on_server
    try:
        looks, healed = suffer(case, kind.inject, partial(stores[plan.store], case.folder, case.secret))
    except KeyboardInterrupt:
        raise
    except BaseException:  # also panics of compiled libraries, which are no Exceptions
        struck.counts["crashes"] += 1
        struck.what = traceback.format_exc(limit=-6)
    else:
        found = looks[0][0]
        struck.counts[found] += 1
        if found != "wrong" and any("wrong" in look for look in (*looks, healed)):
            struck.counts["wrong"] += 1
        if kind.spares and any(other == "misses" for _, other in looks):
            struck.counts["lost others"] += 1
        struck.counts["healed" if healed == BOTH_RIGHT else "not healed"] += 1
        if any(struck.counts[name] for name in BAD):
            struck.what = f"the page and the other: {list(dict.fromkeys(looks))}; in the end: {healed}"
    shutil.rmtree(case.folder)
    return struck


def strike_all(
    plans: Sequence[Plan],
    folder: Path,
    seed: int,
    stores: Mapping[str, Open],
    servers: Mapping[str, RedisServer],
    watched: bool,
) -> list[Struck]:
    """Each of `plans`; if `watched`, a case that does not end in `SECONDS` ends the process."""
    done = []
    before = threading.active_count()
    for plan in plans:
        if watched:
            signal.alarm(SECONDS)
        done.append(strike(plan, folder, seed, stores, servers))
        if threading.active_count() > before + 200:  # stores may end in the background, slower than others are opened
            while threading.active_count() > before + 20:
                time.sleep(0.05)
    if watched:
        signal.alarm(0)
    return done


@contextmanager
def small_disk(folder: Path) -> Iterator[str]:
    """Mount a file system of 256 kB on `folder`; yields why it cannot be, if it cannot."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "none", str(folder)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        yield "needs the right to mount a file system"
        return
    try:
        yield ""
    finally:
        subprocess.run(["umount", folder], check=True)


def as_nobody(plans: Sequence[Plan], folder: Path, seed: int) -> list[Struck] | None:
    """`strike_all` in a process that gives up being root; None if it then cannot reach the folder."""
    context = multiprocessing.get_context("spawn")  # a fork would have locks of this process's threads
    receive, send = context.Pipe(duplex=False)
    process = context.Process(target=_become_nobody, args=(plans, folder, seed, send))
    process.start()
    send.close()
    try:
        return receive.recv()
    except EOFError:
        process.join()
        raise RuntimeError(f"the process of user {NOBODY} ended with exit code {process.exitcode}") from None
    finally:
        process.join()


def _become_nobody(plans: Sequence[Plan], folder: Path, seed: int, send: Connection) -> None:
    faulthandler.register(signal.SIGALRM, chain=True)
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as warm:  # what a store imports when it is first used may be root's alone
        for name in {plan.store for plan in plans}:
            strike(Plan(0, "file gone", name), Path(warm), seed, STORES, {})
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    reached = os.access(folder, os.W_OK | os.X_OK)
    send.send(strike_all(plans, folder, seed, STORES, {}, watched=True) if reached else None)


# ---- the run --------------------------------------------------------------------------------------------------------


@dataclass
class Report:
    """Counts by kind of fault and by store; what could not be done, and why; what went wrong."""

    kinds: dict[str, dict[str, int]]
    stores: dict[str, dict[str, int]]
    skipped: dict[str, str]
    failures: list[dict[str, object]]

    @property
    def totals(self) -> dict[str, int]:
        return _sum(self.kinds.values())

    @property
    def good(self) -> bool:
        return not any(self.totals.get(name) for name in BAD)


def _sum(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for some in counts:
        total.update(some)
    return dict(total)


def run(
    count: int,
    seed: int,
    stores: Mapping[str, Open] | None = None,
    kinds: Sequence[str] = tuple(KINDS),
    folder: Path | None = None,
    watched: bool = False,
    remote_stores: Mapping[str, OpenRemote] | None = None,
) -> Report:
    """Inject `count` faults, of all `kinds` in all `stores` in turn.

    Parameters
    ----------
    stores, remote_stores : dict or None
        Name -> how to open one, of those with a server behind them given its address. Neither: `STORES` and
        `REMOTE_STORES`, those that can be opened here. Where this process is root's, others are spared faults of
        permission, for which another process would have to know them.
    folder : Path or None
        Where stores are made. None: a temporary folder.
    watched : bool
        Whether a case that does not end in `SECONDS` ends the process, by its alarm clock.
    """
    skipped = {}
    foreign = stores is not None and os.geteuid() == 0
    if stores is None and remote_stores is None:
        stores, remote_stores = STORES, REMOTE_STORES
    opens, remote_stores, servers = dict(stores or {}), remote_stores or {}, {}
    struck: list[Struck] = []
    with ExitStack() as until_the_end:
        root = until_the_end.enter_context(tempfile.TemporaryDirectory(dir=folder, prefix="linearkv-faults-"))
        server = until_the_end.enter_context(redis_server(Path(root))) if remote_stores else None
        for name, opened in remote_stores.items():
            if server is None:
                skipped[name] = "needs redis-server on the path"
            else:
                opens[name], servers[name] = partial(opened, remote=server.url), server
        for name in [*opens]:
            with tempfile.TemporaryDirectory() as place:
                try:
                    opens[name](Path(place), bytes(32)).close()
                except LinearKVError as error:
                    skipped[name] = str(error)
                    del opens[name]
        disk = Path(root) / "disk"
        refusal = until_the_end.enter_context(small_disk(disk))

        def fits(kind: str, store: str) -> bool:
            needs = KINDS[kind].needs
            return needs == PAGE or (needs == SERVER) == (store in servers)

        possible = []
        for name in kinds:
            needs = KINDS[name].needs
            if refusal and needs == DISK:
                skipped[name] = refusal
            elif foreign and needs == USER:
                skipped[name] = "needs stores that another process knows"
            elif not any(fits(name, store) for store in opens):
                skipped[name] = f"needs {needs}, which no store here has"
            else:
                possible.append(name)
        pairs = [(kind, store) for store in opens for kind in possible if fits(kind, store)]
        plans = [Plan(number, *pairs[number % len(pairs)]) for number in range(count)]

        def needing(*what: str) -> list[Plan]:
            return [plan for plan in plans if KINDS[plan.kind].needs in what]

        if os.geteuid() == 0 and needing(USER):
            Path(root).chmod(0o711)
            theirs = Path(root) / "nobody"
            theirs.mkdir()
            os.chown(theirs, NOBODY, NOBODY)
            done = as_nobody(needing(USER), theirs, seed)
            if done is None:
                unreached = [name for name in possible if KINDS[name].needs == USER]
                skipped |= dict.fromkeys(unreached, f"needs a folder that user {NOBODY} can reach")
                possible = [name for name in possible if name not in unreached]
            struck += done or []
        else:
            struck += strike_all(needing(USER), Path(root), seed, opens, servers, watched)
        struck += strike_all(needing(DISK), disk, seed, opens, servers, watched)
        struck += strike_all(needing(PAGE, FILE, SERVER), Path(root), seed, opens, servers, watched)
    return Report(
        kinds={name: _sum([case.counts for case in struck if case.plan.kind == name]) for name in possible},
        stores={name: _sum([case.counts for case in struck if case.plan.store == name]) for name in opens},
        skipped=skipped,
        failures=[{**case.plan._asdict(), "what": case.what} for case in struck if case.what],
    )


COLUMNS = ("injected", "misses", "served right", "wrong", "crashes", "lost others", "healed", "not healed")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="where stores are made; by default the system's temporary folder")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)  # a line for every damaged page
    faulthandler.register(signal.SIGALRM, chain=True)
    started = time.monotonic()
    report = run(options.count, options.seed, folder=options.folder, watched=True)
    print(f"{'':28s}" + "".join(f"{name:>14s}" for name in COLUMNS))
    for name, counts in [*report.kinds.items(), *report.stores.items(), ("all", report.totals)]:
        print(f"{name:28s}" + "".join(f"{counts.get(column, 0):14,d}" for column in COLUMNS))
    for name, reason in report.skipped.items():
        print(f"{name}: skipped, {reason}")
    for failure in report.failures[:20]:
        print(f"fault {failure['number']} ({failure['kind']}, {failure['store']}): {failure['what']}")
    if options.out is not None:
        result = asdict(report) | {"totals": report.totals, "seconds": round(time.monotonic() - started)}
        options.out.write_text(json.dumps(vars(options) | result, default=str, indent=1) + "\n")
    return 0 if report.good else 1


if __name__ == "__main__":
    sys.exit(main())
