"""Restore a chunk's state or prefill the chunk again, or the whole prompt: whichever is sooner on this machine.

A state's size does not depend on how long the chunk is, so on a slow disk beside a fast processor reading it can take
longer than computing it. What each takes is not guessed: every prefill and every load is timed, and the rates are kept
with the store for the next process.
"""

import json
import logging
import platform
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import torch

_log = logging.getLogger(__name__)

KEPT = 0.9
"""Share of the weight of what was seen before that remains when something new is seen."""
WORTH_COMPOSING = 1.05
"""A prompt is composed unless that takes this many times as long as prefilling it; and where states must be prefilled
for it, only if it is sooner by as much: full prefill is exact."""
TRY_AGAIN = 16
"""After so many prompts that were not restored in whole one is, since a tier that is not used is not timed either."""
ROOM = 16 << 20
"""Bytes that must be free on the disk for rates to be kept."""
IN_MEMORY = "memory"


def machine(device: torch.device, model: str) -> str:
    """What measured speeds are of: a model, by its digest, on this machine's device."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor()
    return f"{platform.node()}, {name}, model {model}"


class Located(NamedTuple):
    """A chunk that could be restored: its tokens, and the tier and bytes of its state; no tier if it is not stored."""

    tokens: int
    tier: str | None
    bytes: int


class Choice(NamedTuple):
    """What to do for one prompt."""

    recompute: frozenset[int]
    """Chunks, by place, whose stored states are left where they are: prefilling them is sooner."""
    full: bool
    """Prefill the whole prompt: no slower than composing it, and exact."""
    why: str
    """For people; empty where everything that is stored is restored."""


RESTORE_ALL = Choice(frozenset(), False, "")


@dataclass
class Rate:
    """Amounts and seconds seen, the recent ones weighing more."""

    amount: float = 0.0
    seconds: float = 0.0

    def saw(self, amount: float, seconds: float) -> None:
        self.amount = KEPT * self.amount + amount
        self.seconds = KEPT * self.seconds + seconds

    def takes(self, amount: float) -> float | None:
        """Seconds for `amount`; None as long as nothing was seen."""
        return amount * self.seconds / self.amount if self.amount and self.seconds else None


@dataclass
class Planner:
    """What this machine does how fast, and what follows from it for a prompt.

    Attributes:
        prefill: tokens of the few chunks, or the one prompt, of a question.
        indexing: tokens of many chunks at a time; stands in for `prefill` until that was seen.
        compose: chunks.
        load: bytes, by tier; from memory to the device under `memory`, which every stored state goes through.
        file, machine: where the rates are kept and what they are of; nowhere if None.
    """

    prefill: Rate = field(default_factory=Rate)
    indexing: Rate = field(default_factory=Rate)
    compose: Rate = field(default_factory=Rate)
    load: dict[str, Rate] = field(default_factory=dict)
    file: Path | None = None
    machine: str = ""
    _avoided: int = 0
    _composed: bool = False

    def saw_load(self, tier: str, loaded: int, seconds: float) -> None:
        if loaded:
            self.load.setdefault(tier, Rate()).saw(loaded, seconds)

    def saw_reads(self, reads: Iterable[tuple[str, int]], seconds: float) -> None:
        """Tier and bytes of every page that was read in one call; where several tiers took part nobody knows how long
        each took."""
        loaded: dict[str, int] = {}
        for tier, amount in reads:
            if amount:
                loaded[tier] = loaded.get(tier, 0) + amount
        if len(loaded) == 1:
            for tier, amount in loaded.items():
                self.saw_load(tier, amount, seconds)

    def saw_compose(self, chunks: int, seconds: float) -> None:
        """The first of a process is not counted: kernels may have been compiled in it."""
        if self._composed and chunks:
            self.compose.saw(chunks, seconds)
        self._composed = True

    def choose(self, chunks: Sequence[Located], before: int) -> Choice:
        """For a prompt of these chunks behind `before` tokens of prefix.

        Everything is restored as long as something that counts was never timed, and where a state is missing: what is
        missing is prefilled and stored, whatever it takes, and makes the next answer fast.
        """
        prompt = self._prefilling(before + sum(chunk.tokens for chunk in chunks))
        if prompt is None or any(chunk.tier is None for chunk in chunks):
            return RESTORE_ALL
        loads = [self._loading(chunk) for chunk in chunks]
        prefills = [self._prefilling(chunk.tokens) or 0.0 for chunk in chunks]
        recompute = frozenset(place for place in range(len(chunks)) if prefills[place] < loads[place])
        compose = self.compose.takes(len(chunks)) or 0.0
        expected = compose + sum(map(min, loads, prefills))
        worth = expected * WORTH_COMPOSING < prompt if recompute else expected <= WORTH_COMPOSING * prompt
        full = not worth or len(recompute) == len(chunks)
        if not (full or recompute):
            return RESTORE_ALL
        self._avoided += 1
        if self._avoided % TRY_AGAIN == 0:
            return RESTORE_ALL
        if full:
            restoring = compose + sum(loads)
            return Choice(frozenset(), True, f"prefilling takes about {prompt:.2g} s, composing {restoring:.2g} s")
        why = f"{len(recompute)} of {len(chunks)} stored states take longer to read than to compute"
        return Choice(recompute, False, why)

    def sooner_to_prefill(self, chunks: Sequence[Located], before: int) -> str:
        """Why the whole prompt is sooner prefilled than all of these stored chunks restored; empty if it is not.

        For who can do one or the other, and nothing between. As in `choose`, what was never timed is tried.
        """
        prompt = self._prefilling(before + sum(chunk.tokens for chunk in chunks))
        if prompt is None:
            return ""
        restoring = (self.compose.takes(len(chunks)) or 0.0) + sum(map(self._loading, chunks))
        if restoring <= WORTH_COMPOSING * prompt:
            return ""
        self._avoided += 1
        if self._avoided % TRY_AGAIN == 0:
            return ""
        return f"prefilling takes about {prompt:.2g} s, composing {restoring:.2g} s"

    def _prefilling(self, tokens: int) -> float | None:
        seconds = self.prefill.takes(tokens)
        return self.indexing.takes(tokens) if seconds is None else seconds

    def _loading(self, chunk: Located) -> float:
        """Seconds until a stored state is on the device; a way never timed counts as 0, to be tried."""
        ways = {str(chunk.tier), IN_MEMORY}
        return sum(self.load[way].takes(chunk.bytes) or 0.0 for way in ways if way in self.load)

    def keep(self) -> None:
        """Keeps the rates for the next process on this machine; a hint, so a disk that refuses it is no error."""
        if self.file is None:
            return
        rates = {"prefill": self.prefill, "indexing": self.indexing, "compose": self.compose}
        rates |= {f"load {tier}": rate for tier, rate in dict(self.load).items()}
        text = json.dumps(
            {"machine": self.machine, "rates": {name: [r.amount, r.seconds] for name, r in rates.items()}}
        )
        aside = None
        try:
            if shutil.disk_usage(self.file.parent).free < ROOM:
                return  # the last of a disk belongs to what was asked to be kept
            with tempfile.NamedTemporaryFile("w", dir=self.file.parent, prefix=".speeds", delete=False) as file:
                aside = Path(file.name)
                file.write(text)
            aside.replace(self.file)
        except OSError as error:
            _log.debug("Speeds are not kept in %s: %s", self.file, error)
            if aside is not None:
                with suppress(OSError):  # it may be gone already; nothing reads it
                    aside.unlink()

    @classmethod
    def read(cls, file: Path, machine: str, *, keep: bool = True) -> "Planner":
        """With the rates in `file`, or none where there are none, of another machine, or not readable; `keep` writes
        them there again."""
        planner = cls(file=file if keep else None, machine=machine)
        try:
            kept = json.loads(file.read_text(encoding="utf-8"))
            rates = {str(name): Rate(float(a), float(s)) for name, (a, s) in kept["rates"].items()}
            possible = all(0 <= rate.amount < 1e18 and 0 <= rate.seconds < 1e9 for rate in rates.values())
            if kept["machine"] != machine or not possible:
                return planner
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return planner  # no speeds yet; they are measured again
        for name in ("prefill", "indexing", "compose"):
            setattr(planner, name, rates.pop(name, Rate()))
        planner.load = {name.removeprefix("load "): rate for name, rate in rates.items() if name.startswith("load ")}
        return planner
