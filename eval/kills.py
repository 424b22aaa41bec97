"""Kills processes that write to a store, at random moments, and looks at what is left.

    python -m linearkv.eval.kills --count 200 --seed 1 --out kills.json
    python -m linearkv.eval.kills --budget --out budget.json

Half of the trials are on pages: a process puts, replaces and deletes pages, in calls of several, and says which calls
have returned, until SIGKILL ends it; with ample room, with so little that it evicts all the time, or while it opens a
store that is far too large for its budget. Half are on an engine: it indexes a corpus, and under a tight budget goes on
asking questions whose states push each other out. Then the store is opened for reading, and for writing, and has to
hold what it promised:

- it opens, nothing is damaged, and no temporary file of the dead is left;
- what was acknowledged is there, to the bit; what was replaced or deleted does not come back. Under a tight budget the
  pages used last are there, as many as fit, and the files take no more than the budget;
- of a killed indexing run no finished chunk is prefilled again, and answers are those of a store that nobody disturbed.

`--budget` instead fills 64 MiB with pages of about 1 MiB and restarts 20 times, half of the time by SIGKILL. Disk
blocks are measured while the writer is stopped (SIGSTOP) in the middle of its work, and after every restart: pages,
temporary files and quarantine. It does so three times: with new pages only; with pages that replace others of the same
key; and with pages that are damaged now and then, so that quarantine fills up, which has a tenth of the budget for
itself.

Exits with 1 unless everything held. Needs a system with fork: children are forked from a parent that has loaded
everything and computed nothing, so a trial costs no start-up and inherits no threads.
"""

import argparse
import itertools
import json
import os
import random
import select
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from linearkv import Engine, Settings
from linearkv.cache import Hit, NotStored, PageStore, Stored, open_pages
from linearkv.eval.reference.generator import HeldOut
from linearkv.eval.seeded_pages import (
    KIB,
    MIB,
    SECRET,
    DiskUse,
    Sizes,
    disk_use,
    in_blocks,
    key_of,
    make_page,
    version_of,
)
from linearkv.models import GDNModel, load_model

PATIENCE_S = 300
"""A child that says nothing for so long hangs."""

Say = Callable[[dict[str, Any]], None]


# ---- children -----------------------------------------------------------------------------------------------------


class Child:
    """`work(say)` in a forked process; what it says arrives here, message by message, also after its death."""

    def __init__(self, work: Callable[[Say], None]) -> None:
        self._reading, writing = os.pipe()
        self._text = b""
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid:
            os.close(writing)
            return
        code = 1
        try:
            os.close(self._reading)
            torch.set_num_threads(1)
            # A message is one write: it arrives whole or not at all.
            work(lambda message: _write(writing, json.dumps(message).encode() + b"\n"))
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)

    def message(self) -> dict[str, Any] | None:
        """The next message; None when there is no more."""
        while b"\n" not in self._text:
            if not select.select([self._reading], [], [], PATIENCE_S)[0]:
                os.kill(self.pid, signal.SIGKILL)
                raise TimeoutError(f"a process said nothing for {PATIENCE_S} s")
            some = os.read(self._reading, 1 << 16)
            if not some:
                return None
            self._text += some
        line, _, self._text = self._text.partition(b"\n")
        return json.loads(line)

    def has_said(self) -> bool:
        """Whether there is something to hear, its end included."""
        return bool(self._text) or bool(select.select([self._reading], [], [], 0)[0])

    def messages(self) -> Iterator[dict[str, Any]]:
        """All messages that are left."""
        return iter(self.message, None)

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def end(self) -> str:
        """Waits for the end, and says how it came: `finished`, `killed` or `crashed`."""
        os.close(self._reading)
        _, status = os.waitpid(self.pid, 0)
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
            return "killed"
        return "crashed" if status else "finished"


def _write(descriptor: int, line: bytes) -> None:
    while line:
        line = line[os.write(descriptor, line) :]


def result_of(work: Callable[[Say], None]) -> dict[str, Any]:
    """The only message of `work`; where it crashed, a problem."""
    child = Child(work)
    said = list(child.messages())
    if child.end() != "finished" or not said:
        return {"problems": ["the check of the store crashed"]}
    return said[-1]


# ---- pages --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Load:
    """What a process does to a store of pages."""

    numbers: int
    """Different pages."""
    sizes: Sizes
    together: int
    """Most pages of one call."""
    memory_bytes: int
    disk_bytes: int
    replace: bool = True
    """Whether pages that are there are put again, in other versions."""


def churn(folder: Path, load: Load, seed: int, calls: int | None, say: Say) -> None:
    """Puts, replaces and now and then deletes pages, and says before each call what it will do, and after it what came
    of it. Closes the store after `calls`, or after the call in which it gets a SIGTERM. Another `seed` puts other
    versions, or where none are replaced other pages."""
    rng = random.Random(seed)
    told: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: told.append(number))
    say({"opening": True})
    store = open_pages(folder, SECRET, memory_bytes=load.memory_bytes, disk_bytes=load.disk_bytes)
    say({"opened": True})
    begin = 0 if load.replace else seed << 16
    versions = dict.fromkeys(range(begin, begin + load.numbers), seed << 16)
    for call in itertools.count():
        if call == calls or told:
            break
        if rng.random() < 0.1:
            numbers = rng.sample(sorted(versions), 2)
            say({"will_delete": numbers})
            store.delete([key_of(number) for number in numbers])
            say({"deleted": numbers})
            continue
        count = rng.randint(1, load.together)
        if load.replace:
            numbers = rng.sample(sorted(versions), count)
            versions.update((number, versions[number] + 1) for number in numbers)
        else:
            numbers = list(range(max(versions) + 1, max(versions) + 1 + count))
            versions = dict.fromkeys([*versions, *numbers][-load.numbers :], 0)
        pages = {number: make_page(number, versions[number], load.sizes) for number in numbers}
        say({"will_put": [(number, versions[number], page.nbytes) for number, page in pages.items()]})
        outcomes = store.put(list(pages.values()), bulk=rng.random() < 0.5)
        answers = [(number, versions[number], outcomes[page.key]) for number, page in pages.items()]
        stored = [(number, version, done.bytes) for number, version, done in answers if isinstance(done, Stored)]
        refused = [f"page {number}: {done.reason}" for number, _, done in answers if isinstance(done, NotStored)]
        say({"put": stored, "refused": refused})
    store.close()
    say({"closed": True})


@dataclass
class Promised:
    """What a store has to hold, from what its writer said."""

    budget: int
    newest: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Page -> version and bytes, of the calls that returned."""
    sure: dict[int, int] = field(default_factory=dict)
    """Page -> bytes on disk, of those that cannot have been evicted; used longest ago first."""
    under_way: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Page -> version and bytes, of the put that was not over."""
    going: set[int] = field(default_factory=set)
    """Of the delete that was not over."""
    problems: list[str] = field(default_factory=list)
    calls: int = 0

    def hear(self, message: dict[str, Any]) -> None:
        """Takes in one message of `churn`."""
        if "opened" in message:
            self.sure = self.needed()
        if "will_put" in message:
            self.under_way = {number: (version, in_blocks(size)) for number, version, size in message["will_put"]}
        if "put" in message:
            self.sure = self.needed()
            self.under_way = {}
            for number, version, size in message["put"]:
                self.newest[number] = version, size
                self.sure.pop(number, None)
                self.sure[number] = size
            self.problems += message["refused"]
        if "will_delete" in message:
            self.going = set(message["will_delete"])
        if "deleted" in message:
            for number in message["deleted"]:
                self.newest.pop(number, None)
                self.sure.pop(number, None)
            self.going = set()
        self.calls += "put" in message or "deleted" in message

    def needed(self) -> dict[int, int]:
        """The pages that have to be there, and their bytes; used longest ago first.

        Of those used last, as many as fit beside what is being written, and beside what that replaces.
        """
        room = self.budget - sum(
            size + self.newest.get(number, (0, 0))[1] for number, (_, size) in self.under_way.items()
        )
        needed = {}
        for number, size in reversed(self.sure.items()):
            if number not in self.under_way:
                room -= size
            if room < 0:
                break
            if number not in self.going:
                needed[number] = size
        return dict(reversed(needed.items()))

    def versions(self, number: int) -> set[int]:
        """What may be found under a number, if anything is."""
        return {known[number][0] for known in (self.newest, self.under_way) if number in known}


def check_pages(folder: Path, load: Load, promised: Promised, say: Say) -> None:
    """Opens a killed writer's store for reading and for writing and compares it with what was promised."""
    before = disk_use(folder)
    files = files_in(folder)
    store = open_pages(folder, SECRET, memory_bytes=0, disk_bytes=load.disk_bytes, read_only=True)
    problems = [f"opened for reading: {problem}" for problem in compare(store, load, promised)]
    store.close()
    if files_in(folder) != files:
        problems.append("opening for reading changed files")

    store = open_pages(folder, SECRET, memory_bytes=load.memory_bytes, disk_bytes=load.disk_bytes)
    opened = disk_use(folder)
    problems += [f"opened for writing: {problem}" for problem in compare(store, load, promised)]
    problems += tidy(store, folder, load.disk_bytes)
    page = make_page(load.numbers, 0, load.sizes)
    if not isinstance(store.put([page])[page.key], Stored) or not right(store, load.numbers, {0}, load.sizes):
        problems.append("a page put after the restart is not there")
    store.close()
    if opened.temporary or disk_use(folder).temporary:
        problems.append(f"temporary files are left: {opened.temporary}")
    if opened.files > load.disk_bytes:
        problems.append(f"{opened.files} bytes on disk once opened, the budget is {load.disk_bytes}")
    say({"problems": problems, "temporary_of_the_dead": len(before.temporary), "files_of_the_dead": len(files)})


def compare(store: PageStore, load: Load, promised: Promised) -> list[str]:
    """What of the promises does not hold."""
    problems = []
    needed = promised.needed()
    # Those used last come last, so that asking for them leaves the order as it is.
    numbers = [*(number for number in range(load.numbers) if number not in needed), *needed]
    for number, found in zip(numbers, store.get([key_of(number) for number in numbers]).values(), strict=True):
        if isinstance(found, Hit):
            version = version_of(found.page, number, load.sizes)
            if version not in promised.versions(number):
                allowed = sorted(promised.versions(number))
                problems.append(f"page {number} has version {version}, promised was one of {allowed}")
        elif found.reason != "absent":
            problems.append(f"page {number} is {found.reason}")
        elif number in needed:
            problems.append(f"page {number} was acknowledged and is gone")
    return problems


def tidy(store: PageStore, folder: Path, budget: int) -> list[str]:
    """What is not in order in a store that was opened for writing."""
    report = store.verify()
    on_disk = store.stat()[-1]
    problems = [f"damaged: {key}: {reason}" for key, reason in report.damaged]
    problems += [f"left over: {name}" for name in report.orphans]
    problems += [f"not the store's own: {name}" for name in report.foreign]
    if on_disk.quarantined:
        problems.append(f"{on_disk.quarantined} objects are in quarantine")
    if on_disk.bytes > budget or disk_use(folder).files > budget:
        problems.append(
            f"{on_disk.bytes} bytes by its own count and {disk_use(folder).files} on disk, the budget is {budget}"
        )
    return problems


def right(store: PageStore, number: int, versions: set[int], sizes: Sizes) -> bool:
    found = store.get([key_of(number)])[key_of(number)]
    return isinstance(found, Hit) and version_of(found.page, number, sizes) in versions


def files_in(folder: Path) -> list[tuple[str, int, int]]:
    """Name, bytes and time of every file; of those that are not going while they are listed."""
    found = []
    for place, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):
                stat = Path(place, name).lstat()
                found.append((str(Path(place, name).relative_to(folder)), stat.st_size, stat.st_mtime_ns))
    return sorted(found)


ROOMY = 1 << 30
SMALL: Sizes = (KIB, 128 * KIB)
PAGE_TRIALS = {
    "ample": Load(48, SMALL, 6, 0, ROOMY),
    "tight": Load(48, SMALL, 6, 0, MIB),
    "opening": Load(400, (KIB, 16 * KIB), 40, 0, MIB),
    "large": Load(16, (256 * KIB, 2 * MIB), 4, 0, 12 * MIB),
    "ample, with memory": Load(48, SMALL, 6, MIB, ROOMY),
    "tight, with memory": Load(48, SMALL, 6, MIB, MIB),
}


def page_trial(folder: Path, kind: str, rng: random.Random) -> dict[str, Any]:
    """One killed writer of pages."""
    load = PAGE_TRIALS[kind]
    promised = Promised(load.disk_bytes)
    opened = False
    if kind == "opening":  # a store that has far more than the next opening has room for
        roomy = replace(load, disk_bytes=ROOMY)
        for message in (child := Child(lambda say: churn(folder, roomy, 1, 40, say))).messages():
            promised.hear(message)
        if child.end() != "finished":
            promised.problems.append("the first writer crashed")
        promised.budget, promised.calls = load.disk_bytes, 0
    seed = rng.randrange(2, 1 << 15)
    child = Child(lambda say: churn(folder, load, seed, None, say))
    # After a number of messages, and then somewhere within the next call or two.
    wanted = 1 if kind == "opening" else rng.randrange(60)
    times: list[float] = []
    for message in itertools.islice(child.messages(), wanted):
        promised.hear(message)
        opened |= "opened" in message
        times.append(time.monotonic())
    if kind == "opening":  # while it evicts, wherever that is
        left = rng.uniform(0.3, 1) * len(files_in(folder))
        while not child.has_said() and len(files_in(folder)) > left:
            time.sleep(0)
    else:
        step = (times[-1] - times[1]) / (len(times) - 2) if len(times) > 2 else 0.01
        time.sleep(rng.uniform(0, 2 * step))
    child.kill()
    for message in child.messages():
        promised.hear(message)
        opened |= "opened" in message
    if (ended := child.end()) != "killed":
        promised.problems.append(f"the writer {ended}")
    result = result_of(lambda say: check_pages(folder, load, promised, say))
    return {
        "kind": f"pages, {kind}",
        "calls": promised.calls,
        "opened": opened,
        "in_a_call": bool(promised.under_way or promised.going),
        "acknowledged": len(promised.newest),
        "needed": len(promised.needed()),
        **result,
        "problems": promised.problems + result["problems"],
    }


# ---- the engine ---------------------------------------------------------------------------------------------------


@dataclass
class Whole:
    """What a store that nobody disturbed does, and what is asked of it."""

    model: GDNModel
    docs: Path
    questions: list[str]
    chunks: int = 0
    page_bytes: int = 0
    """Of all states."""
    answers: list[str] = field(default_factory=list)
    gaps: dict[str, list[float]] = field(default_factory=dict)
    """Seconds before each message of a process that is not killed, by kind."""

    def settings(self, kind: str) -> Settings:
        """Small batches, so that states are acknowledged a few at a time."""
        ample = Settings(chunk_tokens=512, batch_tokens=512, restore="always")
        if kind == "ample":
            return ample
        return ample.model_copy(update={"disk_budget": self.page_bytes // 3, "memory_budget": 0})

    def open(self, store: Path, kind: str, read_only: bool | None = None) -> Engine:
        return Engine.open(store, self.model, settings=self.settings(kind), read_only=read_only)

    def ask(self, engine: Engine) -> list[str]:
        return [self.answer(engine, question) for question in self.questions]

    def answer(self, engine: Engine, question: str) -> str:
        return engine.query(question, 6, max_new_tokens=8).text


def engine_work(whole: Whole, store: Path, kind: str, say: Say) -> None:
    """Indexes; under a tight budget also asks, so that states that were evicted push out others."""
    with whole.open(store, kind) as engine:
        say({"opened": True})
        report = engine.index(
            whole.docs, progress=lambda stage, done, total: say({stage: done}) if stage == "prefilling" else None
        )
        say({"indexed": report.chunks})
        if kind == "tight":
            for question in whole.questions * 3:
                say({"answer": whole.answer(engine, question)})
        say({"disk": engine.stats()["tiers"][-1], "answers": whole.ask(engine)})


def undisturbed(model: str, folder: Path, seed: int, documents: int) -> Whole:
    """Indexes and asks once, without being killed."""
    asked = HeldOut(seed).questions(3, chunks=documents)
    docs = folder / "docs"
    docs.mkdir()
    for position, (heading, text) in enumerate(asked[0].chunks):
        (docs / f"{position:02d}.md").write_text(f"# {heading or 'Note'}\n\n{text}\n", encoding="utf-8")
    loaded = load_model(model, device="cpu", dtype="float32")
    whole = Whole(loaded, docs, [question.question for question in asked])
    for kind in ("ample", "tight"):
        child = Child(lambda say, kind=kind: engine_work(whole, folder / kind, kind, say))  # type: ignore[misc]
        times, said = [time.monotonic()], []
        for message in child.messages():
            times.append(time.monotonic())
            said.append(message)
        if child.end() != "finished":
            sys.exit("the engine failed without being killed")
        whole.gaps[kind] = [after - before for before, after in itertools.pairwise(times)]
        if kind == "ample":
            whole.chunks = max(message.get("indexed", 0) for message in said)
            whole.page_bytes = said[-1]["disk"]["bytes"]
            whole.answers = said[-1]["answers"]
        elif said[-1]["disk"]["evicted"] < whole.chunks or said[-1]["answers"] != whole.answers:
            sys.exit(f"the tight store does not do what it is for: {said[-1]}, answers were {whole.answers}")
    return whole


def check_engine(whole: Whole, store: Path, kind: str, opened: bool, finished: int, say: Say) -> None:
    """Opens a killed engine's store for reading and for writing, goes on with it, and compares."""
    problems = []
    before = disk_use(store)
    if opened:
        with whole.open(store, kind, read_only=True) as engine:
            found = engine.verify()
            problems += [f"opened for reading: {trouble}" for trouble in found.damaged + found.catalogue]
            if found.chunks == whole.chunks and whole.ask(engine) != whole.answers:
                problems.append("opened for reading: answers differ")
    with whole.open(store, kind) as engine:
        found = engine.verify()
        problems += found.damaged + found.catalogue
        problems += [f"left over: {name}" for name in found.orphans]
        kept = found.chunks - found.without_state
        report = engine.index(whole.docs)
        if report.chunks != whole.chunks:
            problems.append(f"{report.chunks} chunks after indexing again, expected were {whole.chunks}")
        if kind == "ample" and not finished <= kept == report.reused == whole.chunks - report.prefilled:
            problems.append(
                f"{finished} chunks were finished and {kept} there; {report.reused} were used again and "
                f"{report.prefilled} prefilled"
            )
        if whole.ask(engine) != whole.answers:
            problems.append("answers differ from those of an undisturbed store")
        after = engine.verify()
        if kind == "ample" and after.without_state:
            problems.append(f"{after.without_state} chunks have no state after indexing again")
        folder = Path(engine.stats()["tiers"][-1]["folder"])
        budget = whole.settings(kind).disk_budget
        problems += tidy(engine.states.pages, folder / "pages", budget if budget is not None else ROOMY)
    say({"problems": problems, "kept": kept, "temporary_of_the_dead": len(before.temporary)})


def engine_trial(folder: Path, kind: str, whole: Whole, rng: random.Random) -> dict[str, Any]:
    """One killed engine."""
    child = Child(lambda say: engine_work(whole, folder, kind, say))
    # After a number of messages, and then somewhere before the next.
    gaps = whole.gaps[kind]
    wanted = rng.randrange(len(gaps))
    said = list(itertools.islice(child.messages(), wanted))
    time.sleep(rng.uniform(0, gaps[wanted]))
    child.kill()
    said += child.messages()
    ended = child.end()
    opened = any("opened" in message for message in said)
    finished = max((message.get("prefilling", 0) for message in said), default=0)
    result = result_of(lambda say: check_engine(whole, folder, kind, opened, finished, say))
    if ended == "crashed":
        result["problems"].append("the engine crashed")
    return {
        "kind": f"engine, {kind}",
        "opened": opened,
        "finished": finished,
        "chunks": whole.chunks,
        "indexed": any("indexed" in message for message in said),
        **result,
    }


# ---- the budget ---------------------------------------------------------------------------------------------------

FULL = Load(96, (900 * KIB, 1100 * KIB), 4, 0, 64 * MIB, replace=False)
BUDGET_RUNS = {
    "new pages": (FULL, False),
    "pages replaced": (replace(FULL, replace=True), False),
    "damage": (FULL, True),
}


def budget_run(folder: Path, load: Load, restarts: int, samples: int, rng: random.Random, damage: bool) -> dict:
    """The most that the files in `folder` took, of the budget, over restarts under load."""
    most = {"at work": 0, "at rest": 0, "own count": 0, "quarantine": 0, "at work, without quarantine": 0}
    problems: list[str] = []

    def saw(moment: str, use: DiskUse) -> None:
        most[moment] = max(most[moment], use.files)
        most["quarantine"] = max(most["quarantine"], use.quarantine)
        most["at work, without quarantine"] = max(most["at work, without quarantine"], use.files - use.quarantine)

    def rest(say: Say) -> None:
        if damage:
            for path in rng.sample(sorted(folder.glob("pages/*/*")), 3):
                flip(path, rng)
        store = open_pages(folder, SECRET, memory_bytes=load.memory_bytes, disk_bytes=load.disk_bytes)
        opened = disk_use(folder)
        bad = store.verify().damaged
        own = store.stat()[-1]
        store.close()
        if not damage and (bad or own.quarantined):
            say({"problems": [f"damaged: {bad}, in quarantine: {own.quarantined}"]})
        else:
            say({"problems": [], "own": own.bytes, "pages": own.pages, "opened": opened})

    for restart in range(restarts):
        seed = restart + 1
        child = Child(lambda say, seed=seed: churn(folder, load, seed, None, say))  # type: ignore[misc]
        child.message()
        for _ in range(samples):
            time.sleep(rng.uniform(0, 0.1))
            os.kill(child.pid, signal.SIGSTOP)
            _, status = os.waitpid(child.pid, os.WUNTRACED)
            if not os.WIFSTOPPED(status):
                raise RuntimeError(f"the writer ended by itself, with status {status}")
            saw("at work", disk_use(folder))
            os.kill(child.pid, signal.SIGCONT)
        killed = restart % 2 == 0
        os.kill(child.pid, signal.SIGKILL if killed else signal.SIGTERM)
        for message in child.messages():
            problems += message.get("refused", [])
        if (ended := child.end()) != ("killed" if killed else "finished"):
            problems.append(f"the writer {ended}")
        result = result_of(rest)
        problems += result["problems"]
        if "own" in result:
            saw("at rest", DiskUse(*result["opened"]))
            most["own count"] = max(most["own count"], result["own"])
        saw("at rest", disk_use(folder))
    return {"budget": load.disk_bytes, "most": most, "problems": problems}


def flip(path: Path, rng: random.Random) -> None:
    """Changes one byte of a file, as a bad disk does."""
    with path.open("r+b") as file:
        at = rng.randrange(path.stat().st_size)
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1 << rng.randrange(8)]))


# ---- the program --------------------------------------------------------------------------------------------------


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200, help="kills, half of them of engines")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--model", default="reference", help="'reference', or the folder of a checkpoint")
    parser.add_argument("--documents", type=int, default=24, help="of the corpus that engines index")
    parser.add_argument("--budget", action="store_true", help="measure a disk budget over restarts instead")
    parser.add_argument("--restarts", type=int, default=20, help="with --budget")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(argv)
    rng = random.Random(options.seed)
    with tempfile.TemporaryDirectory(prefix="linearkv-kills-") as folder:
        run = run_budget if options.budget else run_kills
        result, passed = run(options, Path(folder), rng)
    if options.out is not None:
        options.out.write_text(json.dumps({**vars(options), **result}, default=str, indent=1) + "\n")
    if not passed:
        sys.exit(1)


def run_kills(options: argparse.Namespace, folder: Path, rng: random.Random) -> tuple[dict[str, Any], bool]:
    engines = options.count // 2
    whole = undisturbed(options.model, folder, options.seed, options.documents) if engines else None
    trials = []
    for number in range(options.count):
        with tempfile.TemporaryDirectory(dir=folder) as place:
            try:
                if number % 2 and whole is not None:
                    kind = ("ample", "tight")[number // 2 % 2]
                    trial = engine_trial(Path(place) / "store", kind, whole, rng)
                else:
                    kind = list(PAGE_TRIALS)[number // 2 % len(PAGE_TRIALS)]
                    trial = page_trial(Path(place) / "store", kind, rng)
            except TimeoutError as error:
                trial = {"kind": kind, "problems": [str(error)]}
        trials.append(trial)
        for problem in trial["problems"]:
            print(f"kill {number + 1} ({trial['kind']}): {problem}", flush=True)
    good = sum(not trial["problems"] for trial in trials)
    summary = {}
    for kind in dict.fromkeys(trial["kind"] for trial in trials):
        some = [trial for trial in trials if trial["kind"] == kind]
        summary[kind] = {
            "kills": len(some),
            "held": sum(not trial["problems"] for trial in some),
            "in the middle of a call": sum(trial.get("in_a_call", False) for trial in some),
            "before it was open": sum(not trial["opened"] for trial in some if "opened" in trial),
            "while prefilling": sum(trial.get("finished", 0) > 0 and not trial["indexed"] for trial in some),
            "while asking": sum(trial.get("indexed", False) for trial in some),
            "temporary files left": sum(trial.get("temporary_of_the_dead", 0) for trial in some),
        }
        print(f"{kind:28s} " + ", ".join(f"{name} {value}" for name, value in summary[kind].items()))
    print(f"{good} of {len(trials)} kills left a store that keeps its promises")
    return {"summary": summary, "trials": trials}, good == len(trials)


def run_budget(options: argparse.Namespace, folder: Path, rng: random.Random) -> tuple[dict[str, Any], bool]:
    runs = {}
    passed = True
    for name, (load, damage) in BUDGET_RUNS.items():
        run = budget_run(folder / name, load, options.restarts, 40, rng, damage)
        budget, most = run["budget"], run["most"]
        bound = 1.11 if damage else 1.01
        run["passed"] = (
            max(most["at work"], most["at rest"], most["own count"]) <= bound * budget
            and most["at work, without quarantine"] <= 1.01 * budget
            and not run["problems"]
        )
        passed &= run["passed"]
        runs[name] = run
        print(f"{name}: most of a budget of {budget >> 20} MiB over {options.restarts} restarts", flush=True)
        for moment, size in most.items():
            print(f"  {moment:28s} {size / budget:7.4f}")
        for problem in run["problems"]:
            print(f"  {problem}")
    return {"runs": runs}, passed


if __name__ == "__main__":
    main()
