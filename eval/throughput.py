"""How fast pages come back: from memory, from disk and from a Redis server, beside plain reads of the same bytes.

    python -m linearkv.eval.throughput --page-mib 1 --pages 64 --out throughput.json

Every round measures every way once, in turn, over the same pages, so that ratios are of one moment: each is the median
over rounds of seconds divided by those of plain reads in that round. What checking takes is the MACs of the same pages
in memory. Parsing with it less parsing without it would be more: pages as large as the processor's cache are parsed
slower after anything that has read them, and a read from disk has. Plain reads go into fresh memory, as a store's
first reads must; into memory that was used before, as in a store that has been full for a while, they are faster, and
checking is more of them: that ratio is told beside. Needs `redis-server` on the path for the remote tier; without it
that row is left out.

Exits with 1 unless checking takes less than 15% of a plain warm read, both in one thread (stores read and check in
several), and a hit in memory less than a check would, so that it has none.
"""

import argparse
import json
import mmap
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from linearkv.cache import Page, PageStore, decode, encode, open_pages, reopen
from linearkv.eval.bench import describe_machine, forget
from linearkv.eval.faults import redis_server

SECRET = bytes(range(32))
CHECK_SHARE = 0.15
"""Of a plain warm read, what checking has to take less than."""


def make_pages(count: int, size: int) -> list[Page]:
    """Pages of random bytes, with about as many tensors as a state of the reference model."""
    pages = []
    for number in range(count):
        tensors = {f"{part:03d}.x": torch.randint(0, 255, (size // 24,), dtype=torch.uint8) for part in range(24)}
        pages.append(encode(f"{number * 7919 % 256:02x}{number:062x}", tensors, secret=SECRET))
    return pages


def plain_read(files: list[Path]) -> None:
    """All bytes, each file into memory of its own, as a store must have them."""
    kept = []
    for file in files:
        # Not from malloc, which gives the memory of the round before: reading into that takes a fifth of the time.
        buffer = mmap.mmap(-1, file.stat().st_size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with file.open("rb", buffering=0) as opened:
            assert opened.readinto(buffer) == len(buffer)
        kept.append(buffer)


def read_again(files: list[Path], memory: bytearray) -> None:
    """All bytes, each file into the same memory."""
    for file in files:
        with file.open("rb", buffering=0) as opened:
            assert opened.readinto(memory) == file.stat().st_size


def measure(pages: list[Page], rounds: int, root: str) -> dict[str, Any]:
    """Seconds by way and round."""
    keys, total = [page.key for page in pages], sum(page.nbytes for page in pages)
    folder, mac = Path(root) / "store", AESGCM(SECRET)
    room = total + total // 4 + (64 << 20)
    options: dict[str, Any] = {"disk_bytes": None, "memory_bytes": room}
    seconds: dict[str, list[float]] = {}
    used = bytearray(max(page.nbytes for page in pages))
    with redis_server(Path(root)) as server:
        url = None if server is None else server.url
        stores: dict[str, PageStore] = {
            "LMCache": open_pages(folder, SECRET, backend="lmcache", **options),
            "LinearKV alone": open_pages(folder, SECRET, backend="files", **options),
        }
        stores["LinearKV alone"].put(pages, bulk=True)
        os.sync()
        files = sorted(folder.rglob("*.safetensors"))
        if url is not None:
            filled = open_pages(Path(root) / "filled", SECRET, backend="lmcache", remote=url, **options)
            filled.put(pages, bulk=True)
            filled.close()

        def timed(name: str, work: Callable[[], Any]) -> None:
            started = time.perf_counter()
            work()
            seconds.setdefault(name, []).append(time.perf_counter() - started)

        def got(store: PageStore, tier: str) -> None:
            found = store.get(keys)
            tiers = {getattr(result, "tier", "none") for result in found.values()}
            assert tiers == {tier}, tiers

        for number in range(rounds + 1):
            timed("plain reads, warm", lambda: plain_read(files))
            timed("plain reads, warm, used memory", lambda: read_again(files, used))
            for name, backend in (("LinearKV alone", "files"), ("LMCache", "lmcache")):
                fresh = open_pages(folder, SECRET, backend=backend, **options)
                fresh.get(["f" * 64])  # whatever is opened at first use is open
                timed(f"disk, warm, {name}", partial(got, fresh, "disk"))
                timed(f"memory, {name}", partial(got, fresh, "memory"))
                fresh.close()
            timed("parse and check", lambda: [decode(page.buffer, page.key, SECRET) for page in pages])
            timed("check", lambda: [mac.encrypt(bytes(12), b"", page.buffer.numpy().data) for page in pages])
            timed("parse", lambda: [reopen(page.buffer, page.key) for page in pages])
            if url is not None:
                with tempfile.TemporaryDirectory(dir=root) as empty:
                    store = open_pages(empty, SECRET, backend="lmcache", remote=url, **options)
                    store.get(["f" * 64])
                    timed("remote", partial(got, store, "remote"))
                    store.close()
            forget(files)
            timed("plain reads, cold", lambda: plain_read(files))
            for name, backend in (("LinearKV alone", "files"), ("LMCache", "lmcache")):
                forget(files)
                fresh = open_pages(folder, SECRET, backend=backend, **options)
                fresh.get(["f" * 64])
                timed(f"disk, cold, {name}", partial(got, fresh, "disk"))
                fresh.close()
            if not number:  # the first round warms up
                seconds.clear()
        for store in stores.values():
            store.close()
    return {"bytes": total, "seconds": seconds}


def summarised(result: dict[str, Any]) -> dict[str, float]:
    """Ratios to plain reads, as the module says, what checking takes of a plain warm read, and what a hit in memory
    takes of a check."""
    seconds: dict[str, list[float]] = result["seconds"]

    def ratio(taken: list[float], of: list[float]) -> float:
        return statistics.median(one / other for one, other in zip(taken, of, strict=True))

    ratios = {
        name: ratio(taken, seconds["plain reads, cold" if "cold" in name else "plain reads, warm"])
        for name, taken in seconds.items()
    }
    for name in ("plain reads, warm", "plain reads, warm, used memory"):
        ratios[f"check / {name.replace('reads', 'read')}"] = ratio(seconds["check"], seconds[name])
    for store in ("LinearKV alone", "LMCache"):
        ratios[f"memory / check, {store}"] = ratio(seconds[f"memory, {store}"], seconds["check"])
    return ratios


def broken_limits(ratios: dict[str, float]) -> list[str]:
    """Which of the limits that the module names are not kept, in words."""
    broken = []
    share = ratios["check / plain read, warm"]
    if share >= CHECK_SHARE:
        broken.append(f"checking takes {share:.1%} of a plain warm read, not less than {CHECK_SHARE:.0%}")
    for store in ("LinearKV alone", "LMCache"):
        share = ratios[f"memory / check, {store}"]
        if share >= 1:
            broken.append(f"a hit in memory ({store}) takes {share:.2f} of what a check takes, so it may have one")
    return broken


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--page-mib", type=float, default=1.0)
    parser.add_argument("--pages", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="linearkv-throughput-") as root:
        result = measure(make_pages(given.pages, int(given.page_mib * (1 << 20))), given.rounds, root)
    result["ratios"] = summarised(result)
    print(f"{given.pages} pages of {given.page_mib} MiB; seconds as a multiple of plain reads of the same bytes")
    for name, ratio in result["ratios"].items():
        print(f"  {name:32s} {ratio:8.3f}")
    if given.out is not None:
        made = {"command": argv or sys.argv[1:], "machine": describe_machine(torch.device("cpu"))} | result
        given.out.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
    broken = broken_limits(result["ratios"])
    for line in broken:
        print(f"NOT KEPT: {line}")
    if not broken:
        print(f"kept: checking takes less than {CHECK_SHARE:.0%} of a plain warm read, nothing of a hit in memory")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
