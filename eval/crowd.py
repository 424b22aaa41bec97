"""Many processes on one store of pages: does anybody read something wrong, crash, hang or grow.

    python -m linearkv.eval.crowd --readers 8 --seconds 300 --out crowd.json

One process puts, replaces and deletes pages under a budget that makes it evict all the time; another changes bytes of
files, or cuts them off, so that pages are found damaged, moved to quarantine and put anew while everybody reads. The
readers ask for random pages and compare what they get with what the page has to be, to the bit. Some keep pages in
memory; some open the store for reading only; all close and open it again now and then. A reader that keeps nothing in
memory must also never see an older version of a page than it saw before.

It passes if no process reads anything wrong or ends early, each gets something done every `--patience` seconds, the
folder stays within budget and quarantine, and no process takes much more memory in the last third of the time than in
the first. Afterwards the store must be in order. Exits with 1 otherwise. Needs Linux, for /proc.
"""

import argparse
import faulthandler
import json
import logging
import multiprocessing
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from ctypes import c_int, c_uint64
from multiprocessing.context import SpawnProcess
from multiprocessing.sharedctypes import RawArray, RawValue
from pathlib import Path
from typing import Any

import torch

from linearkv.cache import Hit, Miss, NotStored, open_pages
from linearkv.eval.seeded_pages import KIB, MIB, SECRET, Sizes, disk_use, key_of, make_page, version_of

NUMBERS = 400
SIZES: Sizes = (KIB, 128 * KIB)
BUDGET = 12 * MIB  # about half of all pages
MEMORY = 2 * MIB
TOGETHER = 6
"""Most pages of one call."""
QUARANTINE = BUDGET // 10
UNDER_WAY = 2 * TOGETHER * SIZES[1]
"""What the budget may be passed by while pages are being written."""
REOPEN_EVERY = 500
"""Calls after which a process closes the store and opens it again."""
GROWTH, GROWTH_BYTES = 1.1, 16 * MIB
"""Memory in the last third of the time is at most so many times that in the first, and so much more."""
START_S = 600


class Shared:
    """What processes tell each other, without locks that one of them could die holding."""

    def __init__(self, folder: Path, seed: int, names: Sequence[str]) -> None:
        self.folder = folder
        self.seed = seed
        self.stop = RawValue(c_int, 0)
        self.done = RawArray(c_uint64, len(names))
        """Calls that each process has finished."""
        self.hurt = RawArray(c_uint64, NUMBERS)
        """How often each page was damaged, twice over: odd while it is being damaged."""

    @property
    def pages(self) -> Path:
        return self.folder / "store"

    def report(self, name: str) -> Path:
        return self.folder / f"{name}.json"


def begin(shared: Shared, name: str) -> random.Random:
    """What every process does first."""
    faulthandler.register(signal.SIGUSR1)  # says where it is, should it hang
    torch.set_num_threads(1)
    logging.getLogger("linearkv").setLevel(logging.ERROR)  # every damaged page is a warning, and there are many
    return random.Random(f"{shared.seed} {name}")


def read(shared: Shared, place: int, name: str, memory_bytes: int, read_only: bool) -> None:
    """Gets random pages and compares them."""
    rng = begin(shared, name)
    counts: Counter[str] = Counter()
    wrong: list[str] = []
    newest: dict[int, int] = {}
    while not shared.stop.value:
        store = open_pages(shared.pages, SECRET, memory_bytes=memory_bytes, disk_bytes=BUDGET, read_only=read_only)
        for _ in range(REOPEN_EVERY):
            numbers = rng.sample(range(NUMBERS), rng.randint(1, TOGETHER))
            if rng.random() < 0.1:
                store.prefetch([key_of(number) for number in numbers])
            found = store.get([key_of(number) for number in numbers])
            for number in numbers:
                result = found[key_of(number)]
                counts[outcome(result)] += 1
                if isinstance(result, Hit):
                    version = version_of(result.page, number, SIZES)
                    if version is None:
                        wrong.append(f"page {number} from {result.tier} has the bytes of no version")
                    elif not memory_bytes and version < newest.get(number, 0):
                        wrong.append(f"page {number} had version {newest[number]} before and {version} after")
                    else:
                        newest[number] = version
                elif result.reason != "absent" and not result.damaged:
                    wrong.append(f"page {number} is {result.reason}")
            shared.done[place] += 1
            if shared.stop.value:
                break
            time.sleep(0.002)  # leaves the others something of the machine
        counts["evicted"] += store.stat()[-1].evicted
        counts["openings"] += 1
        store.close()
    shared.report(name).write_text(json.dumps({"counts": counts, "wrong": wrong}))


def outcome(result: Hit | Miss) -> str:
    if isinstance(result, Hit):
        return f"from {result.tier}"
    return result.reason.partition(":")[0]


def write(shared: Shared, place: int, name: str) -> None:
    """Puts, replaces and deletes pages, and looks at what became of the pages it put."""
    rng = begin(shared, name)
    counts: Counter[str] = Counter()
    wrong: list[str] = []
    versions = dict.fromkeys(range(NUMBERS), 0)

    def unhurt_since(number: int, before: int) -> bool:
        return before % 2 == 0 and shared.hurt[number] == before

    while not shared.stop.value:
        store = open_pages(shared.pages, SECRET, memory_bytes=0, disk_bytes=BUDGET)
        for _ in range(REOPEN_EVERY):
            numbers = rng.sample(range(NUMBERS), rng.randint(1, TOGETHER))
            if rng.random() < 0.1:
                counts["deleted"] += store.delete([key_of(number) for number in numbers])
            else:
                hurt = {number: shared.hurt[number] for number in numbers}
                for number in numbers:
                    versions[number] += 1
                answers = store.put([make_page(number, versions[number], SIZES) for number in numbers])
                refused = [answer.reason for answer in answers.values() if isinstance(answer, NotStored)]
                wrong += [f"a page was not stored: {reason}" for reason in refused]
                counts["put"] += len(answers)
                for number, result in zip(numbers, store.get([key_of(n) for n in numbers]).values(), strict=True):
                    if isinstance(result, Hit) and version_of(result.page, number, SIZES) != versions[number]:
                        wrong.append(f"page {number} was put in version {versions[number]} and is another")
                    elif isinstance(result, Miss) and unhurt_since(number, hurt[number]):
                        wrong.append(f"page {number} was put and is {result.reason}")
                    counts[outcome(result)] += 1
            shared.done[place] += 1
            if shared.stop.value:
                break
        counts["evicted"] += store.stat()[-1].evicted
        counts["openings"] += 1
        store.close()
    shared.report(name).write_text(json.dumps({"counts": counts, "wrong": wrong}))


def damage(shared: Shared, place: int, name: str) -> None:
    """Changes a byte of a file, or cuts it off, several times a second. Times stay as they were, as on a bad disk."""
    rng = begin(shared, name)
    counts: Counter[str] = Counter()
    numbers = {key_of(number): number for number in range(NUMBERS)}
    while not shared.stop.value:
        time.sleep(rng.uniform(0, 0.3))
        shared.done[place] += 1
        files = [path for path in shared.pages.rglob("*") if path.stem in numbers and "quarantine" not in path.parts]
        if not files:
            continue
        path = rng.choice(files)
        number = numbers[path.stem]
        shared.hurt[number] += 1
        try:
            counts[hurt(path, rng)] += 1
        except FileNotFoundError:  # evicted since it was chosen
            counts["gone"] += 1
        shared.hurt[number] += 1
    shared.report(name).write_text(json.dumps({"counts": counts, "wrong": []}))


def hurt(path: Path, rng: random.Random) -> str:
    """Damages one file, and says how."""
    with path.open("r+b", buffering=0) as file:
        found = os.fstat(file.fileno())
        at = rng.randrange(found.st_size)
        if cut := rng.random() < 0.2:
            file.truncate(max(at, 1))
        else:
            flipped = os.pread(file.fileno(), 1, at)[0] ^ 1 << rng.randrange(8)
            os.pwrite(file.fileno(), bytes([flipped]), at)
        os.utime(file.fileno(), ns=(found.st_atime_ns, found.st_mtime_ns))
    return "cut off" if cut else "changed"


class Watch:
    """Looks at processes and folder while they work."""

    def __init__(self, shared: Shared, processes: dict[str, SpawnProcess], patience_s: float) -> None:
        self.shared = shared
        self.processes = processes
        self.patience_s = patience_s
        self.problems: list[str] = []
        self.memory: dict[str, list[int]] = {name: [] for name in processes}
        self.disk: list[int] = []
        self.quarantine: list[int] = []
        self._last = dict.fromkeys(processes, (0, time.monotonic()))

    def until_all_work(self) -> bool:
        """Waits until every process has done something, since they take long to start."""
        end = time.monotonic() + START_S
        while not all(self.shared.done):
            if time.monotonic() > end or not self.all_live():
                self.problems.append("not every process could start")
                return False
            time.sleep(0.1)
        self._last = dict.fromkeys(self.processes, (0, time.monotonic()))
        return True

    def look(self) -> bool:
        """Notes what there is to see; False if a process has ended or hangs."""
        for (name, process), done in zip(self.processes.items(), self.shared.done, strict=True):
            before, when = self._last[name]
            if done != before:
                self._last[name] = done, time.monotonic()
            elif time.monotonic() - when > self.patience_s:
                self.problems.append(f"{name} did nothing for {self.patience_s:g} s, after {done} calls")
                os.kill(process.pid or 0, signal.SIGUSR1)
        if not self.all_live() or self.problems:
            return False
        for name, process in self.processes.items():
            self.memory[name].append(resident_bytes(process.pid or 0))
        use = disk_use(self.shared.pages)
        self.disk.append(use.files)
        self.quarantine.append(use.quarantine)
        return True

    def all_live(self) -> bool:
        ended = [(name, process.exitcode) for name, process in self.processes.items() if not process.is_alive()]
        self.problems += [f"{name} ended early, with exit code {code}" for name, code in ended]
        return not ended

    def end(self) -> None:
        """Asks all processes to stop, and ends those that do not."""
        self.shared.stop.value = 1
        end = time.monotonic() + self.patience_s
        for name, process in self.processes.items():
            process.join(max(0.0, end - time.monotonic()))
            if process.is_alive():
                self.problems.append(f"{name} did not stop")
                os.kill(process.pid or 0, signal.SIGUSR1)
                time.sleep(1)
                process.kill()
                process.join()
            elif process.exitcode:
                self.problems.append(f"{name} ended with exit code {process.exitcode}")

    def grown(self) -> dict[str, tuple[float, float]]:
        """Mean bytes of memory of each process in the first and in the last third of the time."""
        return {
            name: (statistics.mean(seen[: len(seen) // 3]), statistics.mean(seen[-(len(seen) // 3) :]))
            for name, seen in self.memory.items()
            if len(seen) >= 3
        }


def resident_bytes(pid: int) -> int:
    """Memory of a process, without the files it maps."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * KIB
    return 0


def check_afterwards(pages: Path) -> list[str]:
    """What is not in order in the store, once damage that nobody has found yet is set aside."""
    problems = []
    store = open_pages(pages, SECRET, memory_bytes=0, disk_bytes=BUDGET)
    store.verify()
    report = store.verify()
    problems += [f"afterwards: damaged: {key}: {reason}" for key, reason in report.damaged]
    problems += [f"afterwards: left over: {name}" for name in [*report.orphans, *disk_use(pages).temporary]]
    problems += [f"afterwards: not the store's own: {name}" for name in report.foreign]
    keys = {key_of(number): number for number in range(NUMBERS)}
    for key, result in store.get(list(keys)).items():
        if isinstance(result, Hit) and version_of(result.page, keys[key], SIZES) is None:
            problems.append(f"afterwards: page {keys[key]} has the bytes of no version")
        elif isinstance(result, Miss) and result.reason != "absent":
            problems.append(f"afterwards: page {keys[key]} is {result.reason}")
    use = disk_use(pages)
    if use.files - use.quarantine > BUDGET or use.quarantine > QUARANTINE:
        problems.append(f"afterwards: {use.files - use.quarantine} bytes of pages, {use.quarantine} in quarantine")
    store.close()
    return problems


def run(folder: Path, readers: int, seconds: float, patience_s: float, seed: int) -> dict[str, Any]:
    """Everything; `problems` is empty if it passed."""
    spawn = multiprocessing.get_context("spawn")
    names = ["writer", "damager", *(f"reader {number}" for number in range(readers))]
    shared = Shared(folder, seed, names)
    (folder / "store").mkdir()
    works: list[tuple[Any, tuple[Any, ...]]] = [(write, ()), (damage, ())]
    # Half of the readers keep pages in memory, and a quarter opens for reading only.
    works += [(read, (MEMORY if number % 2 else 0, number % 4 == 2)) for number in range(readers)]
    processes = {
        name: spawn.Process(target=work, args=(shared, place, name, *more), name=name, daemon=True)
        for place, (name, (work, more)) in enumerate(zip(names, works, strict=True))
    }
    watch = Watch(shared, processes, patience_s)
    for process in processes.values():
        process.start()
    started = time.monotonic()
    if watch.until_all_work():
        started = time.monotonic()
        while time.monotonic() - started < seconds and watch.look():
            time.sleep(min(0.5, seconds / 60))
    took = time.monotonic() - started
    watch.end()
    problems = watch.problems
    counts = {}
    for name in names:
        if shared.report(name).exists():
            report = json.loads(shared.report(name).read_text())
            counts[name] = report["counts"]
            problems += [f"{name}: {wrong}" for wrong in report["wrong"]]
    grown = watch.grown()
    for name, (first, last) in grown.items():
        if last > GROWTH * first + GROWTH_BYTES:
            problems.append(f"{name} grew from {first / MIB:.0f} to {last / MIB:.0f} MiB of memory")
    most = max(watch.disk, default=0)
    if most > BUDGET + QUARANTINE + UNDER_WAY:
        problems.append(f"{most} bytes on disk, the budget is {BUDGET}, and {QUARANTINE} for quarantine")
    problems += check_afterwards(shared.pages)
    return {
        "seconds": took,
        "counts": counts,
        "calls": dict(zip(names, shared.done, strict=True)),
        "memory": {name: {"first": first, "last": last} for name, (first, last) in grown.items()},
        "disk": {"budget": BUDGET, "most": most, "most_in_quarantine": max(watch.quarantine, default=0)},
        "problems": problems,
    }


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--readers", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--patience", type=float, default=20, help="seconds in which every process gets something done")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="linearkv-crowd-") as folder:
        result = run(Path(folder), options.readers, options.seconds, options.patience, options.seed)
    for name, counts in result["counts"].items():
        first, last = (size / MIB for size in result["memory"].get(name, {"first": 0, "last": 0}).values())
        what = ", ".join(f"{what} {count}" for what, count in sorted(counts.items()))
        print(f"{name:10s} {result['calls'][name]:8d} calls, {first:.0f} to {last:.0f} MiB of memory; {what}")
    disk = result["disk"]
    print(
        f"disk: at most {disk['most'] / MIB:.1f} MiB, {disk['most_in_quarantine'] / MIB:.1f} of it in quarantine; "
        f"the budget is {disk['budget'] / MIB:.0f}"
    )
    for problem in result["problems"][:50]:
        print(problem)
    print(f"{len(result['problems'])} problems in {result['seconds']:.0f} s")
    if options.out is not None:
        options.out.write_text(json.dumps({**vars(options), **result}, default=str, indent=1) + "\n")
    if result["problems"]:
        sys.exit(1)


if __name__ == "__main__":
    main()
