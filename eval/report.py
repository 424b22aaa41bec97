"""What an evaluation found: a table of modes with intervals, a verdict, and everything needed to redo it."""

import io
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from linearkv.eval.metrics import Scored, normalise, tabulate
from linearkv.eval.statistics import (
    POSITIONS,
    Estimate,
    by_group,
    decides,
    difference,
    excess_order_sensitivity,
    json_safe,
    mean,
    order_sensitivity,
    position_bucket,
    questions_needed,
    retention,
)

BASELINE = "full"
WANTED_RETENTION = 0.98
"""What a mode must keep of full prefill's score to be recommended."""
DECIDABLE_HALF_WIDTH = 0.02
COMPOSED = ("sequential", "bidirectional", "cyclic", "sequential_pivot1", "bidirectional_pivot1", "cyclic_pivot1")
"""Modes that a query can use, and that a verdict may therefore name."""


@dataclass(frozen=True)
class ModeResult:
    """One row of the table. Scores are over random orders alone; `by_position` over all orders.

    Attributes:
        em, f1: means over questions.
        retention: F1 of this mode / F1 of full prefill, paired; `lost` their difference; `em_retention` of exact match.
        order, excess: order sensitivity, and what of it exceeds full prefill's own, see `statistics.ORDER_MEASURES`.
        kl: mean KL divergence from full prefill per answer token, in nats; top1: share of the same likeliest tokens.
        reuse: share of the prompt's tokens that were not computed for the answer.
        bytes: of the chunk states that an answer is made from.
        ttft_s: seconds to the first token with states in memory; speedup: full prefill's / this mode's.
        unscored: answers without a score, by reason.
    """

    mode: str
    em: Estimate
    f1: Estimate
    retention: Estimate
    lost: Estimate
    em_retention: Estimate
    order: dict[str, Estimate]
    excess: dict[str, Estimate]
    kl: float | None
    top1: float | None
    reuse: float
    bytes: float
    ttft_s: float | None
    speedup: float | None
    by_position: dict[str, Estimate]
    by_hops: dict[str, Estimate]
    state_error: list[list[float]] | None
    key_error: list[float] | None
    value_error: list[float] | None
    unscored: dict[str, int] = field(default_factory=dict)


@dataclass
class EvalReport:
    """What an evaluation found.

    Attributes:
        about: options, question file, model, machine: everything needed to run it again.
        modes: the table, full prefill first.
        records: one per question, see `linearkv.eval.runner`.
        notes: what a person should know of the questions.
        maps: what maps are like in context and alone, per GDN layer and head, where that was asked; see
            `linearkv.eval.diagnosis.Swaps.describe`.
    """

    about: dict[str, Any]
    modes: list[ModeResult]
    records: list[dict[str, Any]]
    notes: list[str] = field(default_factory=list)
    maps: dict[str, list[list[float]]] | None = None

    @classmethod
    def of(cls, records: Sequence[dict[str, Any]], about: dict[str, Any], notes: Sequence[str] = ()) -> "EvalReport":
        """The report of a run's records. The same records give the same report to the bit."""
        usable = [record for record in records if "modes" in record]
        failed = [f"question {record['id']} was left out: {record['error']}" for record in records if "error" in record]
        names = list(usable[0]["modes"]) if usable else []
        seed = about.get("options", {}).get("seed", 0)
        rule = about.get("options", {}).get("rule", "linearkv")
        scores = {name: _Scores(usable, name, rule) for name in names}
        modes = [_mode_result(name, usable, scores[name], scores[BASELINE], seed) for name in names]
        described = [record["maps"] for record in usable if "maps" in record]
        maps = {name: _mean_of_arrays([one[name] for one in described]) for name in described[0]} if described else None
        return cls(about, modes, list(records), [*notes, *failed], maps)

    @property
    def verdict(self) -> str:
        """One sentence a person can act on."""
        full = self._named(BASELINE)
        if full is None or full.f1.value is None:
            reason = full.f1.reason if full is not None else "no question could be asked"
            return f"nothing can be said: {reason}"
        if not full.f1.value:
            return "full prefill answers nothing right here: scores cannot tell modes apart; look at KL and agreement"
        best = self.recommended
        if best is None:
            return f"full prefill scores F1 {full.f1.value:.3f}; no composed mode was evaluated"
        kept = _percent(best.retention)
        said = f"{best.mode} keeps {kept} of full prefill's F1 at {best.reuse:.0%} reuse on these questions"
        if self._keeps(best) != "yes":
            if any(self._keeps(mode) == "undecided" for mode in self._candidates):
                needed = questions_needed(best.retention, DECIDABLE_HALF_WIDTH)
                more = f"about {needed:,} questions would tell" if needed is not None else "more questions would tell"
                said += f": too few questions to say whether that is {WANTED_RETENTION:.0%}; {more}"
            else:
                said += f": no composed mode keeps {WANTED_RETENTION:.0%}; prefer full prefill where that matters"
        return said

    @property
    def recommended(self) -> ModeResult | None:
        """The composed mode to use: of those that surely keep enough the one that reuses most, else what keeps most;
        None where scores do not tell."""
        full = self._named(BASELINE)
        if full is None or not full.f1.value or not self._candidates:
            return None
        good = [mode for mode in self._candidates if self._keeps(mode) == "yes"]
        if good:
            return max(good, key=lambda mode: (round(mode.reuse, 2), _known(mode.retention)))
        return max(self._candidates, key=lambda mode: _known(mode.retention))

    @property
    def _candidates(self) -> list[ModeResult]:
        return [mode for mode in self.modes if mode.mode in COMPOSED and mode.retention.value is not None]

    def summary(self) -> str:
        """The verdict and the table, as text."""
        from rich.console import Console
        from rich.table import Table

        table = Table(box=None, pad_edge=False)
        for name, justify in _COLUMNS:
            table.add_column(name, justify=justify, no_wrap=True)
        for mode in self.modes:
            table.add_row(*_cells(mode))
        drawn = io.StringIO()
        Console(width=140, file=drawn, color_system=None).print(table)
        lines = [f"{self.verdict}.", "", *drawn.getvalue().splitlines(), "", *self._legend()]
        if self.maps is not None:
            lines += ["", *self._described()]
        return "\n".join(line.rstrip() for line in lines)

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON-ready values; what is not known is None, never NaN."""
        modes = [self._flat(mode) for mode in self.modes]
        return json_safe(
            {
                "verdict": self.verdict,
                "questions": len(self.records),
                "modes": modes,
                "notes": self.notes,
                "maps": self.maps,
                **self.about,
                "records": self.records,
            }
        )

    def to_json(self, path: str | Path | None = None) -> str:
        """`to_dict` as text, also written to `path` if one is given."""
        text = json.dumps(self.to_dict(), allow_nan=False)
        if path is not None:
            Path(path).write_text(text + "\n", encoding="utf-8")
        return text

    def to_html(self, path: str | Path | None = None) -> str:
        """The report as one page for a browser that needs nothing else, also written to `path` if one is given."""
        from linearkv.eval.page import page

        text = page(self)
        if path is not None:
            Path(path).write_text(text, encoding="utf-8", newline="\n")
        return text

    def _named(self, name: str) -> ModeResult | None:
        return next((mode for mode in self.modes if mode.mode == name), None)

    def _keeps(self, mode: ModeResult) -> str:
        estimate = mode.retention
        return decides(estimate.low, estimate.high, WANTED_RETENTION, questions=estimate.questions)

    def _legend(self) -> list[str]:
        full = self._named(BASELINE)
        questions = full.f1.questions if full is not None else 0
        orders = full.f1.answers // questions if full is not None and questions else 0
        lines = [
            f"{questions} questions, {orders} random orders each; 95% intervals over questions. kept: F1 / full "
            f"prefill's. flips: share of questions right in some orders and wrong in others. KL: nats per answer token."
        ]
        unscored = {reason: count for reason, count in (full.unscored if full is not None else {}).items() if count}
        lines += [f"{count} answers unscored: {reason}." for reason, count in unscored.items()]
        return lines + [f"note: {note}" for note in self.notes[:8]]

    def _described(self) -> list[str]:
        """Maps in context and alone, layer by layer, means over the heads."""
        assert self.maps is not None
        lines = ["layer    k err  v err  beta: context  alone    g: context  alone     T norm  T err  U norm  U err"]
        columns = ["k_error", "v_error", "beta_context", "beta_alone", "g_context", "g_alone"]
        columns += ["transition_norm", "transition_error", "update_norm", "update_error"]
        for layer in range(len(self.maps["k_error"])):
            k, v, *rest = (float(np.mean(self.maps[name][layer])) for name in columns)
            widths = (14, 7, 14, 7, 11, 7, 8, 7)
            cells = "".join(f"{value:{width}.3f}" for value, width in zip(rest, widths, strict=True))
            lines.append(f"{layer:5d} {k:8.3f}{v:7.3f} {cells}")
        return lines

    def _flat(self, mode: ModeResult) -> dict[str, Any]:
        """A row with plain numbers under the names people look for, and the intervals beside them."""
        entry = json_safe(mode)
        for name in ("em", "f1", "retention", "lost", "em_retention"):
            estimate = entry.pop(name)
            entry[name] = estimate["value"]
            entry[f"{name}_interval"] = None if estimate["low"] is None else [estimate["low"], estimate["high"]]
            if estimate["reason"]:
                entry[f"{name}_reason"] = estimate["reason"]
        return entry | {"keeps_enough": self._keeps(mode)}


_COLUMNS: tuple[tuple[str, Literal["left", "right"]], ...] = (
    ("mode", "left"),
    ("EM", "right"),
    ("F1", "right"),
    ("kept", "right"),
    ("worst", "right"),
    ("flips", "right"),
    ("KL", "right"),
    ("top-1", "right"),
    ("reuse", "right"),
    ("TTFT", "right"),
)


def _cells(mode: ModeResult) -> list[str]:
    return [
        mode.mode,
        number_text(mode.em.value),
        number_text(mode.f1.value),
        _percent(mode.retention),
        number_text(mode.order["worst"].value),
        number_text(mode.order["flips"].value),
        "-" if mode.kl is None else f"{mode.kl:.4f}",
        number_text(mode.top1),
        f"{mode.reuse:.0%}",
        "-" if mode.speedup is None else f"{mode.speedup:.1f}x",
    ]


def _mode_result(
    name: str, records: Sequence[dict[str, Any]], ours: "_Scores", full: "_Scores", seed: int
) -> ModeResult:
    times = [(record["ttft_s"][name], record["ttft_s"][BASELINE]) for record in records if "ttft_s" in record]
    entries = [record["modes"][name] for record in records]
    prompts = sum(sum(entry["prompt"]) for entry in entries)
    return ModeResult(
        mode=name,
        em=mean(ours.em, seed=seed),
        f1=mean(ours.f1, seed=seed),
        retention=retention(ours.f1, full.f1, seed=seed),
        lost=difference(ours.f1, full.f1, seed=seed),
        em_retention=retention(ours.em, full.em, seed=seed),
        order=order_sensitivity(ours.em, ours.texts, seed=seed),
        excess=excess_order_sensitivity(ours.em, ours.texts, full.em, full.texts, seed=seed),
        kl=_mean(value for entry in entries for value in entry["kl"]),
        top1=_mean(value for entry in entries for value in entry["top1"]),
        reuse=1 - sum(sum(entry["computed"]) for entry in entries) / prompts,
        bytes=float(np.mean([value for entry in entries for value in entry["bytes"]])),
        ttft_s=float(np.median([own for own, _ in times])) if times else None,
        speedup=float(np.median([base / own for own, base in times])) if times else None,
        by_position=by_group(ours.all_em, ours.positions, POSITIONS, seed=seed),
        by_hops=by_group(ours.em, [record["hops"] and str(record["hops"]) for record in records], seed=seed),
        state_error=_mean_of_arrays([entry.get("state_error") for entry in entries]),
        key_error=_mean_of_arrays([entry.get("key_error") for entry in entries]),
        value_error=_mean_of_arrays([entry.get("value_error") for entry in entries]),
        unscored=ours.unscored,
    )


class _Scores:
    """Scores of one mode as arrays `[questions, orders]`, padded with NaN where a question has fewer orders."""

    def __init__(self, records: Sequence[dict[str, Any]], mode: str, rule: str) -> None:
        width = max(len(record["orders"]) for record in records)
        shuffles = max(sum(order["label"] == "shuffle" for order in record["orders"]) for record in records)
        none = Scored(None, None, "")
        rows, self.texts, self.positions = [], [], []
        for record in records:
            entry, orders = record["modes"][mode], record["orders"]
            scored = [Scored(em, f1, entry["unscored"]) for em, f1 in zip(entry["em"], entry["f1"], strict=True)]
            rows.append(scored + [none] * (width - len(scored)))
            texts: list[str | None] = [normalise(text, rule) for text in entry["answers"]]
            shuffled = [text for text, order in zip(texts, orders, strict=True) if order["label"] == "shuffle"]
            self.texts.append(shuffled + [None] * (shuffles - len(shuffled)))
            places = gold_places(record)
            self.positions.append(places + [None] * (width - len(places)))
        table = tabulate(rows)
        self.all_em, self.unscored = table.em, table.unscored
        # Random orders come first in every record.
        self.em, self.f1 = table.em[:, :shuffles], table.f1[:, :shuffles]


def gold_places(record: dict[str, Any]) -> list[str | None]:
    """Where the last of the gold chunks stands in each order, one of `POSITIONS`: what comes after it is what an answer
    has to survive. None where no gold is known or there is nothing to order."""
    gold, count = set(record["gold"]), len(record["chunks"])
    if not gold or count < 2:
        return [None] * len(record["orders"])
    last = [max(i for i, index in enumerate(order["indices"]) if index in gold) for order in record["orders"]]
    return [position_bucket(place, count) for place in last]


def _mean(values: Any) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def _mean_of_arrays(arrays: Sequence[Any]) -> Any:
    known = [np.array(array, dtype=np.float64) for array in arrays if array is not None]
    return json_safe(np.mean(known, axis=0)) if known else None


def _known(estimate: Estimate) -> float:
    return -math.inf if estimate.value is None else estimate.value


def number_text(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _percent(estimate: Estimate) -> str:
    if estimate.value is None:
        return "-"
    if estimate.low is None or estimate.high is None:
        return f"{100 * estimate.value:.1f}%"
    return f"{100 * estimate.value:.1f}% [{100 * estimate.low:.1f}, {100 * estimate.high:.1f}]"
