"""How fast pages come back: from memory, from disk and from a Redis server, beside plain reads of the same bytes.

    python -m linearkv.eval.throughput --page-mib 1 --pages 64 --out throughput.json

Every round measures every way once, in turn, over the same pages, so that ratios are of one moment: each is the median
over rounds of seconds divided by those of plain reads in that round. What checking
takes is parsing with it less parsing without it, of the same pages in memory. Needs
`redis-server` on the path for the remote tier; without it that row is left out.
"""

import argparse
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch

from linearkv.cache import Page, PageStore, decode, encode, open_pages, reopen
from linearkv.eval.bench import describe_machine

SECRET = bytes(range(32))


def make_pages(count: int, size: int) -> list[Page]:
    """Pages of random bytes, with about as many tensors as a state of the reference model."""
    pages = []
    for number in range(count):
        tensors = {f"{part:03d}.x": torch.randint(0, 255, (size // 24,), dtype=torch.uint8) for part in range(24)}
        pages.append(encode(f"{number * 7919 % 256:02x}{number:062x}", tensors, secret=SECRET))
    return pages


@contextmanager
def redis_server(folder: str) -> Iterator[str | None]:
    """The address of a server of our own; None where there is none to be had."""
    if shutil.which("redis-server") is None:
        yield None
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", folder]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.05)
        yield f"redis://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


def forget(files: list[Path]) -> None:
    """Asks the operating system to drop files from its page cache."""
    for file in files:
        descriptor = os.open(file, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def plain_read(files: list[Path]) -> None:
    """All bytes, each file into memory of its own, as a store must have them."""
    kept = []
    for file in files:
        buffer = torch.empty(file.stat().st_size, dtype=torch.uint8)
        with file.open("rb", buffering=0) as opened:
            assert opened.readinto(buffer.numpy().data) == buffer.numel()
        kept.append(buffer)


def measure(pages: list[Page], rounds: int, root: str) -> dict[str, Any]:
    """Seconds by way and round."""
    keys, total = [page.key for page in pages], sum(page.nbytes for page in pages)
    folder = Path(root) / "store"
    room = total + total // 4 + (64 << 20)
    options: dict[str, Any] = {"disk_bytes": None, "memory_bytes": room}
    seconds: dict[str, list[float]] = {}
    with redis_server(root) as url:
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
            for name, backend in (("LinearKV alone", "files"), ("LMCache", "lmcache")):
                fresh = open_pages(folder, SECRET, backend=backend, **options)
                fresh.get(["f" * 64])  # whatever is opened at first use is open
                timed(f"disk, warm, {name}", partial(got, fresh, "disk"))
                timed(f"memory, {name}", partial(got, fresh, "memory"))
                fresh.close()
            timed("parse and check", lambda: [decode(page.buffer, page.key, SECRET) for page in pages])
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
    """Ratios to plain reads, as the module says, and what checking takes of a plain warm read."""
    seconds: dict[str, list[float]] = result["seconds"]
    ratios = {}
    for name, taken in seconds.items():
        plain = seconds["plain reads, cold" if "cold" in name else "plain reads, warm"]
        ratios[name] = statistics.median(one / other for one, other in zip(taken, plain, strict=True))
    checked, parsed = (statistics.median(seconds[name]) for name in ("parse and check", "parse"))
    ratios["check / plain read, warm"] = (checked - parsed) / statistics.median(seconds["plain reads, warm"])
    return ratios


def main(argv: list[str] | None = None) -> None:
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


if __name__ == "__main__":
    main()
