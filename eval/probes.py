"""Whether one tenant can find out, or get, anything of another in the same store: by asking, and by the clock.

    python -m linearkv.eval.probes --count 10000 --seed 0 [--out probes.json]

Two tenants hold states of texts, some of them the same in both. Both are open in one process, and the first has its
own in memory. The second probes for those of the first: with its own key of the same text, with the first's keys, with
keys a digit off and random ones, after the first's files were copied into its folder, and in the first's folder. No
probe may find anything, whether it asks for the page or only whether there is one.

Then it times probes for what the first has, for what nobody has, and again for what nobody has, in random order. The
difference between the last two is noise. Differences are measured by ranks: `shift` is the share of pairs, one probe of
each kind, in which the first took longer, ties half, less one half. The noise floor is the shift that relabelled probes
for what nobody has stay below with the probability 1 - ALPHA, all comparisons together; p is that of a two-sided
Mann-Whitney test. That a difference would be seen is shown by probes for what the second tenant has itself.

Exit code 1 if a probe found something, if a difference is beyond the noise floor (which chance alone brings about with
the probability ALPHA), or if the difference that is there was not seen.
"""

import argparse
import gc
import json
import logging
import math
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from linearkv.cache import Hit, Page, PageStore, Stored, encode, open_pages
from linearkv.identity import ModelIdentity, chunk_key
from linearkv.tenants import Tenant, open_tenant

ALPHA = 0.01
TEXTS = 64
"""That the first tenant alone has, in the part without a clock."""
SHARED = 32
"""That both have."""
RELABELLINGS = 4000
MODEL = ModelIdentity(
    weights="0" * 64,
    config="1" * 64,
    parameters="2" * 64,
    compute_dtype="float32",
    attention_backend="sdpa",
    gdn_backend="reference",
    versions={"torch": "2"},
    producer="probes",
)

Text = tuple[int, ...]
"""Token ids."""


def key_of(tenant: Tenant, text: Text) -> str:
    """The tenant's key of a text's state."""
    return chunk_key(tenant.secret, MODEL, prefix_token_ids=(1, 2), chunk_token_ids=text, storage_policy="fp16")


def page_of(tenant: Tenant, text: Text, key: str | None = None) -> Page:
    """The tenant's page of a text; the same tensors for any tenant."""
    ids = torch.tensor(text)
    tensors = {"update": torch.outer(ids, ids).sin(), "token_ids": ids}
    return encode(key or key_of(tenant, text), tensors, secret=tenant.secret)


def some_texts(chance: random.Random, count: int) -> list[Text]:
    return [tuple(chance.randrange(50_000) for _ in range(chance.randrange(8, 24))) for _ in range(count)]


def open_store(tenant: Tenant, **options: Any) -> PageStore:
    return open_pages(tenant.folder, tenant.secret, **{"memory_bytes": 1 << 20, "disk_bytes": None, **options})


def fill(tenant: Tenant, texts: Iterable[Text]) -> None:
    """Put the tenant's pages of `texts`."""
    with closing(open_store(tenant)) as store:
        put(store, [page_of(tenant, text) for text in texts])


def put(store: PageStore, pages: Sequence[Page]) -> None:
    for start in range(0, len(pages), 64):
        outcomes = store.put(pages[start : start + 64], bulk=True)
        if not all(isinstance(outcome, Stored) for outcome in outcomes.values()):
            raise RuntimeError(f"pages could not be put: {outcomes}")


@contextmanager
def in_use(tenant: Tenant, texts: Sequence[Text]) -> Iterator[None]:
    """The tenant's own store stays open in this process, with its pages of `texts` in memory."""
    pages = [key_of(tenant, text) for text in texts]
    with closing(open_store(tenant, memory_bytes=64 << 20)) as store:
        for _ in range(2):
            found = store.get(pages)
        tiers = Counter(result.tier if isinstance(result, Hit) else result.reason for result in found.values())
        del found
        if tiers["memory"] != len(pages):
            raise RuntimeError(f"the tenant's own pages are not in its memory: {dict(tiers)}")
        yield


# ---- asking ---------------------------------------------------------------------------------------------------------


class Asking:
    """The second tenant with its store open, and what it may know of the first, all keys and files included.

    Parameters
    ----------
    victim, prober : Tenant
        Of one store.
    """

    def __init__(self, victim: Tenant, prober: Tenant, chance: random.Random) -> None:
        self._victim, self._prober, self._chance = victim, prober, chance
        shared, self._texts = some_texts(chance, SHARED), some_texts(chance, TEXTS)
        fill(victim, shared + self._texts)
        fill(prober, shared)
        self._shared = shared
        self._stack = ExitStack()
        self._stack.enter_context(in_use(victim, shared + self._texts))
        self._own = self._stack.enter_context(closing(open_store(prober)))
        # Its owner's memory is not the prober's to use; reading alone leaves what is refused in place.
        others = Tenant(victim.name, victim.folder, prober.secret)
        self._others = self._stack.enter_context(closing(open_store(others, memory_bytes=0, read_only=True)))

    def close(self) -> None:
        self._stack.close()

    def same_text(self) -> str:
        """The prober's own key of a text that the victim has."""
        return self._look(self._own, key_of(self._prober, self._text()))

    def others_key(self) -> str:
        """The victim's key, in the prober's store."""
        return self._look(self._own, self._key())

    def random_key(self) -> str:
        return self._look(self._own, self._chance.randbytes(32).hex())

    def one_digit_off(self) -> str:
        """A key of either tenant with one digit changed."""
        own = key_of(self._prober, self._chance.choice(self._shared))
        key = self._chance.choice([self._key(), own])
        at = self._chance.randrange(64)
        digit = self._chance.choice([digit for digit in "0123456789abcdef" if digit != key[at]])
        return self._look(self._own, key[:at] + digit + key[at + 1 :])

    def copied_under_others_key(self) -> str:
        """The victim's file in the prober's folder, under the name it had."""
        text = self._text()
        return self._copied(text, key_of(self._victim, text))

    def copied_under_own_key(self) -> str:
        """The victim's file in the prober's folder, under the name that the prober's page of the text would have."""
        text = self._text()
        return self._copied(text, key_of(self._prober, text))

    def in_others_folder(self) -> str:
        """The victim's folder opened with the prober's secret, asked for the key of either."""
        text = self._text()
        return self._page(self._others, key_of(self._chance.choice([self._victim, self._prober]), text))

    def _text(self) -> Text:
        return self._chance.choice(self._texts)

    def _key(self) -> str:
        return key_of(self._victim, self._chance.choice(self._texts + self._shared))

    def _look(self, store: PageStore, key: str) -> str:
        """What a store tells of a key: a page, or that there is one, in any of the ways there are to ask."""
        told = [name for name in ("contains", "locate") if getattr(store, name)([key])]
        store.prefetch([key])
        return " ".join([*told, *([page] if (page := self._page(store, key)) else [])])

    def _page(self, store: PageStore, key: str) -> str:
        return "get" if isinstance(store.get([key])[key], Hit) else ""

    def _copied(self, text: Text, key: str) -> str:
        """The prober puts a page of its own, writes the victim's over its file, and opens its store anew."""
        own = page_of(self._prober, text, key)
        with closing(open_store(self._prober, memory_bytes=0)) as store:
            put(store, [own])
        file = file_of(self._prober.folder, own)
        file.write_bytes(bytes(page_of(self._victim, text).buffer.numpy()))
        with closing(open_store(self._prober, memory_bytes=0)) as store:
            found = self._page(store, key)
            store.delete([key])
        return found


def file_of(folder: Path, page: Page) -> Path:
    """The file that is `page`, whatever its name."""
    raw = bytes(page.buffer.numpy())
    for path in folder.rglob("*"):
        if path.is_file() and path.stat().st_size == len(raw) and path.read_bytes() == raw:
            return path
    raise RuntimeError(f"no file in {folder} is the page as it was put")


PROBES: dict[str, Callable[[Asking], str]] = {
    "same text": Asking.same_text,
    "the other's key": Asking.others_key,
    "random key": Asking.random_key,
    "one digit off": Asking.one_digit_off,
    "file copied, under the other's key": Asking.copied_under_others_key,
    "file copied, under one's own key": Asking.copied_under_own_key,
    "in the other's folder": Asking.in_others_folder,
}


@dataclass
class Asked:
    """Probes by kind, and those that found something, by kind and by what told it."""

    probes: dict[str, int]
    found: dict[str, dict[str, int]]

    @property
    def hits(self) -> int:
        return sum(sum(counts.values()) for counts in self.found.values())


def ask(victim: Tenant, prober: Tenant, count: int, seed: int) -> Asked:
    """Make `count` probes, of each kind in turn. The tenants have to be without pages yet."""
    probes: Counter[str] = Counter()
    found: dict[str, Counter[str]] = {}
    names = list(PROBES)
    with closing(Asking(victim, prober, random.Random(seed))) as asking:
        for number in range(count):
            name = names[number % len(names)]
            told = PROBES[name](asking)
            probes[name] += 1
            if told:
                found.setdefault(name, Counter())[told] += 1
    return Asked(dict(probes), {name: dict(counts) for name, counts in found.items()})


# ---- timing ---------------------------------------------------------------------------------------------------------


class Ranks(NamedTuple):
    """Two samples as one: the rank of every value, ties sharing the mean of theirs, and the variance of a rank."""

    ranks: np.ndarray
    variance: float

    @classmethod
    def of(cls, values: np.ndarray) -> "Ranks":
        _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
        means = np.cumsum(counts) - (counts - 1) / 2
        total = len(values)
        ties = float((counts.astype(float) ** 3 - counts).sum())
        return cls(means[inverse], (total + 1 - ties / (total * (total - 1))) / 12)

    def shift(self, first: np.ndarray) -> float:
        """P(a value at the places `first` is larger than one elsewhere), ties half, less one half."""
        n = len(first)
        rest = len(self.ranks) - n
        return float((self.ranks[first].sum() - n * (n + 1) / 2) / (n * rest)) - 0.5


def mann_whitney(one: np.ndarray, other: np.ndarray) -> tuple[float, float]:
    """`shift` of `one` against `other` and its two-sided p-value, normal approximation with ties."""
    ranks = Ranks.of(np.concatenate([one, other]))
    shift = ranks.shift(np.arange(len(one)))
    spread = math.sqrt(ranks.variance / (len(one) * len(other)))
    return shift, math.erfc(abs(shift) / spread / math.sqrt(2)) if spread else 1.0


def noise_floor(one: np.ndarray, other: np.ndarray, level: float, seed: int) -> float:
    """The size of shift that two groups out of both samples, drawn at random, stay below with probability `level`."""
    ranks = Ranks.of(np.concatenate([one, other]))
    generator = np.random.default_rng(seed)
    shifts = [abs(ranks.shift(generator.permutation(len(ranks.ranks))[: len(one)])) for _ in range(RELABELLINGS)]
    return float(np.quantile(shifts, level))


@dataclass
class Comparison:
    """Probes for what is there against probes for what nobody has (`there`, `nobody`), and the latter among themselves.

    Medians in ns; `difference` is that of the medians, `noise_difference` that between the two halves of nobody's.
    """

    what: str
    call: str
    probes: int
    median_there: float
    median_nobody: float
    difference: float
    noise_difference: float
    shift: float
    p: float
    noise_shift: float
    noise_p: float
    floor: float

    @property
    def within(self) -> bool:
        return abs(self.shift) <= self.floor


def compare(what: str, call: str, times: Sequence[np.ndarray], level: float, seed: int) -> Comparison:
    """`times` in ns are of probes for what is there, for what nobody has, and again for what nobody has."""
    there, nobody, again = times
    medians = [float(np.median(some)) for some in times]
    shift, p = mann_whitney(there, nobody)
    noise_shift, noise_p = mann_whitney(again, nobody)
    return Comparison(
        what,
        call,
        len(there),
        medians[0],
        medians[1],
        medians[0] - medians[1],
        medians[2] - medians[1],
        shift,
        p,
        noise_shift,
        noise_p,
        noise_floor(nobody, again, level, seed),
    )


def timed(call: Callable[[list[str]], Any], groups: Sequence[Sequence[str]], chance: random.Random) -> list[np.ndarray]:
    """Nanoseconds of one call for every key, in random order over all groups, returned by group."""
    shuffled = [(group, key) for group, keys in enumerate(groups) for key in keys]
    chance.shuffle(shuffled)
    # Copies in the order of use: where a key lies in memory must not depend on its group.
    order = [(group, [key.encode().decode()]) for group, key in shuffled]
    times: list[list[int]] = [[] for _ in groups]
    gc.collect()
    gc.disable()
    try:
        for group, asked in order:
            started = time.perf_counter_ns()
            call(asked)
            times[group].append(time.perf_counter_ns() - started)
    finally:
        gc.enable()
    return [np.array(group) for group in times]


def clock(victim: Tenant, prober: Tenant, count: int, seed: int) -> tuple[list[Comparison], list[Comparison]]:
    """`count` timed probes of each kind, half of them for what the victim has; then the control, a tenth as many.

    Each series begins with as many calls that do not count as a group has keys. The tenants have to be without pages.
    """
    chance = random.Random(seed)
    half, own = count // 2, max(1, count // 20)
    theirs, nobodys, again = (some_texts(chance, half) for _ in range(3))
    mine, missing, missing_again = (some_texts(chance, own) for _ in range(3))
    fill(victim, theirs)
    fill(prober, mine)

    def keys(texts: Iterable[Text], tenant: Tenant) -> list[str]:
        return [key_of(tenant, text) for text in texts]

    asked = {
        "same text": [keys(texts, prober) for texts in (theirs, nobodys, again)],
        "the other's key": [keys(theirs, victim), *([chance.randbytes(32).hex() for _ in theirs] for _ in range(2))],
    }
    control = [keys(texts, prober) for texts in (mine, missing, missing_again)]
    comparisons, controls = [], []
    with in_use(victim, theirs), closing(open_store(prober)) as store:
        calls: dict[str, Callable[[list[str]], Any]]
        calls = {"get": store.get, "contains": store.contains, "locate": store.locate}
        level = 1 - ALPHA / (len(asked) * len(calls))
        for call, function in calls.items():
            for what, groups in asked.items():
                timed(function, [[chance.randbytes(32).hex() for _ in range(half)]], chance)
                comparisons.append(compare(what, call, timed(function, groups, chance), level, seed))
        for call, function in calls.items():
            controls.append(compare("one's own", call, timed(function, control, chance), level, seed))
    return comparisons, controls


def show(comparison: Comparison) -> str:
    return (
        f"{comparison.what:18s} {comparison.call:9s} {comparison.probes:7,d} {comparison.median_there:9,.0f} "
        f"{comparison.median_nobody:9,.0f} {comparison.difference:7,.0f} {comparison.noise_difference:7,.0f} "
        f"{comparison.shift:+9.4f} {comparison.noise_shift:+9.4f} {comparison.floor:8.4f} {comparison.p:8.3f} "
        f"{comparison.noise_p:8.3f}  {'within noise' if comparison.within else 'BEYOND NOISE'}"
    )


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=10_000, help="probes in all, and again in each timed series")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)  # a line for every page of the other tenant that is refused
    with tempfile.TemporaryDirectory(prefix="linearkv-probes-") as folder:
        victim, prober = (open_tenant(Path(folder) / "asked", name) for name in ("victim", "prober"))
        asked = ask(victim, prober, options.count, options.seed)
        victim, prober = (open_tenant(Path(folder) / "timed", name) for name in ("victim", "prober"))
        comparisons, controls = clock(victim, prober, options.count, options.seed)
    for name, count in asked.probes.items():
        print(f"{name:36s} {count:7,d} probes, {sum(asked.found.get(name, {}).values())} found something")
    print(
        f"\n{'':28s} {'probes':>7s} {'median ns':>19s} {'difference':>15s} {'shift':>19s} {'noise':>8s} {'p':>17s}\n"
        f"{'':28s} {'each':>7s} {'there':>9s} {'nobody':>9s} {'':>7s} {'noise':>7s} {'':>9s} {'noise':>9s} "
        f"{'floor':>8s} {'':>8s} {'noise':>8s}"
    )
    for comparison in [*comparisons, *controls]:
        print(show(comparison))
    quiet = all(comparison.within for comparison in comparisons)
    sharp = not any(comparison.within for comparison in controls)
    print(f"\n{sum(asked.probes.values()):,} probes, {asked.hits} found something")
    print(f"timing: {'no difference' if quiet else 'A DIFFERENCE'} beyond the noise floor")
    if not sharp:
        print("control: what is there was not told from what is not, so the timing shows nothing")
    if options.out is not None:
        rows = [asdict(one) | {"within": one.within} for one in comparisons]
        result: dict[str, Any] = {"asked": asdict(asked), "timing": rows, "controls": [asdict(one) for one in controls]}
        result |= {"found": asked.hits, "within_noise": quiet, "control_seen": sharp}
        options.out.write_text(json.dumps(vars(options) | result, default=str, indent=1) + "\n")
    return 0 if not asked.hits and quiet and sharp else 1


if __name__ == "__main__":
    sys.exit(main())
