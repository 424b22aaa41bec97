"""Restore a chunk's state or prefill the chunk again, or the whole prompt: whichever is sooner on this machine.

A state's size does not depend on how long the chunk is, so on a slow disk beside a fast processor reading it can take
longer than computing it. What each takes is not guessed: every prefill and every load is timed, and the rates are kept
with the store for the next process.
"""

import json
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

_log = logging.getLogger(__name__)

KEPT = 0.9
"""Share of the weight of what was seen before that remains when something new is seen."""


WORTH_COMPOSING = 1.05
"""How many times as long full prefill must take for a prompt to be composed although states are prefilled for it."""
IN_MEMORY = "memory"


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
        prefill: tokens of chunks and of whole prompts.
        load: bytes, by tier; from memory to the device under `memory`, which every state goes through.
        compose: chunks.
        file, machine: where the rates are kept and what they are of; nowhere if None.
    """

    prefill: Rate = field(default_factory=Rate)
    load: dict[str, Rate] = field(default_factory=dict)
    compose: Rate = field(default_factory=Rate)
    file: Path | None = None
    machine: str = ""

    def saw_load(self, tier: str, loaded: int, seconds: float) -> None:
        if loaded:
            self.load.setdefault(tier, Rate()).saw(loaded, seconds)

    def choose(self, chunks: Sequence[Located], before: int, after: int) -> Choice:
        """For a prompt of these chunks behind `before` tokens of prefix, with `after` tokens behind them.

        As long as nothing was timed, what is stored is restored. Chunks that are missing are prefilled and stored
        whatever it takes: that is what makes the next answer fast.
        """
        loads = [self._loading(chunk) for chunk in chunks]
        prefills = [self.prefill.takes(chunk.tokens) for chunk in chunks]
        recompute, expected = set(), self.compose.takes(len(chunks)) or 0.0
        for place, (load, prefill) in enumerate(zip(loads, prefills, strict=True)):
            if prefill is None or load is None:
                continue
            if chunks[place].tier is not None and prefill < load:
                recompute.add(place)
            expected += min(load, prefill) if chunks[place].tier is not None else 0.0
        prompt = self.prefill.takes(before + sum(chunk.tokens for chunk in chunks))
        stored = all(chunk.tier is not None for chunk in chunks)
        # Full prefill is exact: it is taken where composing saves next to nothing, or nothing would be restored.
        little = prompt is not None and (len(recompute) == len(chunks) or WORTH_COMPOSING * expected >= prompt)
        if recompute and stored and little:
            return Choice(frozenset(), True, f"prefilling takes {prompt:.2g} s, restoring about {expected:.2g} s")
        why = f"{len(recompute)} of {len(chunks)} stored states take longer to read than to compute"
        return Choice(frozenset(recompute), False, why if recompute else "")

    def _loading(self, chunk: Located) -> float | None:
        """Seconds until a stored state is on the device; a way never timed counts as 0, to be tried."""
        if chunk.tier is None:
            return None
        ways = {chunk.tier, IN_MEMORY}
        return sum(self.load[way].takes(chunk.bytes) or 0.0 for way in ways if way in self.load)

    def keep(self) -> None:
        """Keeps the rates for the next process on this machine; a hint, so a disk that refuses it is no error."""
        if self.file is None:
            return
        rates = {"prefill": self.prefill, "compose": self.compose} | {f"load {k}": v for k, v in self.load.items()}
        text = json.dumps(
            {"machine": self.machine, "rates": {name: [r.amount, r.seconds] for name, r in rates.items()}}
        )
        aside = self.file.with_name(f"{self.file.name}.{os.getpid()}")
        try:
            aside.write_text(text, encoding="utf-8")
            aside.replace(self.file)
        except OSError as error:
            _log.debug("Speeds are not kept in %s: %s", self.file, error)

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
        planner.prefill = rates.pop("prefill", planner.prefill)
        planner.compose = rates.pop("compose", planner.compose)
        planner.load = {name.removeprefix("load "): rate for name, rate in rates.items() if name.startswith("load ")}
        return planner
