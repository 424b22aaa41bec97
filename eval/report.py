"""What an evaluation found: a table of modes with intervals, a verdict, and everything needed to redo it."""

import io
import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from linearkv.eval.metrics import Scored, normalise, tabulate
from linearkv.eval.statistics import (
    DISTANCES,
    POSITIONS,
    Estimate,
    by_group,
    decides,
    difference,
    distance_bucket,
    excess_order_sensitivity,
    grouped,
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
WORTHWHILE = 100
"""Up to how many times the present number of questions a verdict asks for."""
ANSWERABLE_ALONE = 0.25
"""Share of full prefill's F1 above which answers without documents deserve a warning."""
PIVOTS = ("sequential_pivot1", "bidirectional_pivot1", "cyclic_pivot1")
COMPOSED = ("sequential", "bidirectional", "cyclic", *PIVOTS)
"""Modes that a query can use, and that a verdict may therefore name; the simplest first."""

_WIDTH, _MOST_NOTES, _MOST_REASONS = 140, 8, 3


@dataclass(frozen=True)
class ModeResult:
    """One row of the table. Means over questions, of random orders alone; `by_position` and `lost_by_position` are over
    all orders in which the gold chunk's position is known.

    Attributes:
        em, f1: exact match and F1.
        retention: F1 of this mode / F1 of full prefill, paired; `lost` their difference; `em_retention` of exact match.
        vs_sequential: F1 of this mode minus that of `sequential`, paired; None where that was not evaluated.
        order, excess: order sensitivity, and what of it exceeds full prefill's own, see `statistics.ORDER_MEASURES`.
        kl: KL divergence from full prefill per answer token, in nats; top1: share of the same likeliest tokens.
        reuse: share of the prompts' tokens that were not computed for the answer.
        bytes: of the chunk states that an answer is made from.
        ttft_s: seconds to the first token with states in memory; speedup: full prefill's / this mode's.
        by_position: exact match by position of the gold chunk, see `gold_places`; `lost_by_position` its difference to
            full prefill's, paired: positions hold different questions, so only these can be compared with each other.
        lost_by_distance: the same by the places from one gold chunk to the other, where there are two.
        by_hops: exact match by hops; `retention_by_hops` of F1, as `retention`.
        state_error, key_error, value_error: relative errors per layer, and of states per head.
        unscored: answers without a score, by reason, of all orders.
    """

    mode: str
    em: Estimate
    f1: Estimate
    retention: Estimate
    lost: Estimate
    em_retention: Estimate
    vs_sequential: Estimate | None
    order: dict[str, Estimate]
    excess: dict[str, Estimate]
    kl: Estimate
    top1: Estimate
    reuse: float
    bytes: float
    ttft_s: float | None
    speedup: float | None
    by_position: dict[str, Estimate]
    lost_by_position: dict[str, Estimate]
    lost_by_distance: dict[str, Estimate]
    by_hops: dict[str, Estimate]
    retention_by_hops: dict[str, Estimate]
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
        names = list(usable[0]["modes"]) if usable else []
        seed = about.get("options", {}).get("seed", 0)
        rule = about.get("options", {}).get("rule", "linearkv")
        scores = {name: _Scores(usable, name, rule) for name in names}
        modes = [_mode_result(name, usable, scores, seed) for name in names]
        described = [record["maps"] for record in usable if "maps" in record]
        maps = {name: _mean_of_arrays([one[name] for one in described]) for name in described[0]} if described else None
        # Without repetition, so that a report's notes can be given to it again.
        said = dict.fromkeys([*_warnings(modes), *notes, *map(_left_out, filter(_failed, records))])
        return cls(about, modes, list(records), list(said), maps)

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
        said = f"{best.mode} keeps {_percent(best.retention)} of full prefill's F1 at {best.reuse:.0%} reuse"
        return f"{said} on these questions{self._lost_on_hops(best)}{self._how_sure(best)}"

    def _lost_on_hops(self, best: ModeResult) -> str:
        """Groups of questions on which the mode surely keeps too little, and a pivot that may not."""
        if len(best.retention_by_hops) < 2:
            return ""
        said = []
        for hops, kept in best.retention_by_hops.items():
            if keeps_enough(kept) == "no":
                pivots = [mode for mode in self._candidates if mode.mode in PIVOTS]
                better = [mode for mode in pivots if keeps_enough(mode.retention_by_hops[hops]) != "no"]
                pivot = max(better, key=lambda mode: _known(mode.retention_by_hops[hops]), default=None)
                advice = "" if pivot is None else f" (use {pivot.mode} there)"
                said.append(f"{_percent(kept)} on {hops}-hop questions{advice}")
        return f", but {' and '.join(said)}" if said else ""

    def _how_sure(self, best: ModeResult) -> str:
        """What stands behind the colon where the mode does not surely keep enough."""
        wanted, kept = f"{WANTED_RETENTION:.0%}", best.retention
        if keeps_enough(kept) == "yes":
            return ""
        if keeps_enough(kept) == "no":
            undecided = sum(keeps_enough(mode.retention) == "undecided" for mode in self._candidates)
            none = f"is sure to keep {wanted} ({undecided} undecided)" if undecided else f"keeps {wanted}"
            return f": no composed mode {none}; prefer full prefill where that matters"
        few = f": too few questions to say whether that is {wanted}"
        if kept.low is None:
            return few
        distance = abs(_known(kept) - WANTED_RETENTION)
        needed = questions_needed(kept, distance) if distance else None
        # Scores that are equal throughout lack nothing but number.
        if needed and (kept.questions < needed <= WORTHWHILE * kept.questions or kept.low == kept.high):
            return f"{few}; about {needed:,} questions would tell"
        return f": too close to {wanted} to tell"

    @property
    def recommended(self) -> ModeResult | None:
        """The composed mode to use; None where scores do not tell.

        Of those that surely keep enough the one that reuses most, the simplest where several do. Where none does,
        sequential unless another is surely better: of these, what keeps most.
        """
        full = self._named(BASELINE)
        if full is None or not full.f1.value or not self._candidates:
            return None
        good = [mode for mode in self._candidates if keeps_enough(mode.retention) == "yes"]
        if good:
            return max(good, key=lambda mode: (round(mode.reuse, 2), -COMPOSED.index(mode.mode)))
        simplest = self._named("sequential")
        if simplest in self._candidates:
            better = [mode for mode in self._candidates if mode.vs_sequential and (mode.vs_sequential.low or 0) > 0]
            return max(better, key=lambda mode: _known(mode.retention), default=simplest)
        return max(self._candidates, key=lambda mode: _known(mode.retention))

    @property
    def _candidates(self) -> list[ModeResult]:
        return [mode for mode in self.modes if mode.mode in COMPOSED and mode.retention.value is not None]

    def summary(self) -> str:
        """The verdict and the table, as text."""
        table = _table(self.modes, [*_COLUMNS, _VS_SEQUENTIAL])
        compared = self._named("sequential") is not None and max(map(len, table)) <= _WIDTH
        if not compared:
            table = _table(self.modes, _COLUMNS)
        lines = [f"{self.verdict}.", "", *table, "", *self._legend(compared)]
        if self.maps is not None:
            lines += ["", *self._described()]
        return "\n".join(lines)

    def missing(self) -> list[str]:
        """Which distances from full prefill have no mean, and why."""
        found = [(mode.mode, name, one) for mode in self.modes for name, one in (("KL", mode.kl), ("top-1", mode.top1))]
        return [f"{mode} has no mean {name}: {one.reason}" for mode, name, one in found if one.value is None]

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON-ready values; what is not known is None, never NaN."""
        modes = [self._flat(mode) for mode in self.modes]
        return json_safe(
            {
                "verdict": self.verdict,
                "questions": self._scored,
                "left_out": sum(map(_failed, self.records)),
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

    @property
    def _scored(self) -> int:
        full = self._named(BASELINE)
        return full.f1.questions if full is not None else 0

    def _legend(self, compared: bool) -> list[str]:
        usable, failed = ([one for one in self.records if _failed(one) is left] for left in (False, True))
        left_out = f"{len(failed)} left out: {_frequent(map(_reason, failed))}" if failed else "none left out"
        options, full = self.about.get("options", {}), self._named(BASELINE)
        lines = [f"{len(usable)} questions asked, {left_out}."]
        if usable:
            k = f"k {options['k']} asked for, " if "k" in options else ""
            used = f"{np.mean([len(record['chunks']) for record in usable]):.1f} chunks used on average"
            orders = range_text(len(_shuffled(record, record["orders"])) for record in usable)
            rule = options.get("rule", "linearkv")
            lines.append(f"{k}{used}; {orders} random orders each; scoring rule {rule}.")
        lines.append(
            f"{self._scored} questions scored; 95% intervals over questions. kept: F1 / full prefill's. flips: share "
            "of questions right in some orders and wrong in others. KL: nats per answer token."
            + (" vs seq: F1 minus sequential's." if compared else "")
        )
        unscored = full.unscored if full is not None else {}
        lines += [f"{count} answers unscored: {reason}." for reason, count in unscored.items() if count]
        lines += [f"{said}." for said in self.missing()]
        remarks = [record["note"] for record in usable if record.get("note")]
        if remarks:
            lines.append(f"{len(remarks)} cases have a note: {_frequent(remarks)}.")
        # Questions that were left out are counted above.
        notes = [note for note in self.notes if note not in {*map(_left_out, failed)}]
        lines += [f"note: {note}" for note in notes[:_MOST_NOTES]]
        if len(notes) > _MOST_NOTES:
            lines.append(f"\u2026 and {len(notes) - _MOST_NOTES} more notes")
        return lines

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

    @staticmethod
    def _flat(mode: ModeResult) -> dict[str, Any]:
        """A row with plain numbers under the names people look for, and the intervals beside them."""
        entry = json_safe(mode)
        for name in ("em", "f1", "retention", "lost", "em_retention", "vs_sequential", "kl", "top1"):
            estimate = entry.pop(name) or _NOT_COMPARED
            entry[name] = estimate["value"]
            entry[f"{name}_interval"] = None if estimate["low"] is None else [estimate["low"], estimate["high"]]
            if estimate["reason"]:
                entry[f"{name}_reason"] = estimate["reason"]
        return entry | {"keeps_enough": keeps_enough(mode.retention)}


_NOT_COMPARED = {"value": None, "low": None, "reason": "sequential was not evaluated"}

_Column = tuple[str, Literal["left", "right"], Callable[[ModeResult], str]]
_COLUMNS: tuple[_Column, ...] = (
    ("mode", "left", lambda mode: mode.mode),
    ("EM", "right", lambda mode: number_text(mode.em.value)),
    ("F1", "right", lambda mode: number_text(mode.f1.value)),
    ("kept", "right", lambda mode: _percent(mode.retention)),
    ("worst", "right", lambda mode: number_text(mode.order["worst"].value)),
    ("flips", "right", lambda mode: number_text(mode.order["flips"].value)),
    ("KL", "right", lambda mode: number_text(mode.kl.value, 4)),
    ("top-1", "right", lambda mode: number_text(mode.top1.value)),
    ("reuse", "right", lambda mode: f"{mode.reuse:.0%}"),
    ("TTFT", "right", lambda mode: "-" if mode.speedup is None else f"{mode.speedup:.1f}x"),
)
_VS_SEQUENTIAL: _Column = ("vs seq", "right", lambda mode: _signed(mode.vs_sequential))


def _table(modes: Sequence[ModeResult], columns: Sequence[_Column]) -> list[str]:
    """Lines of the table, as wide as it is."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for name, justify, _ in columns:
        table.add_column(name, justify=justify, no_wrap=True)
    for mode in modes:
        table.add_row(*(cell(mode) for *_, cell in columns))
    drawn = io.StringIO()
    Console(width=1000, file=drawn, color_system=None).print(table)
    return [line.rstrip() for line in drawn.getvalue().splitlines()]


def _mode_result(name: str, records: Sequence[dict[str, Any]], scores: dict[str, "_Scores"], seed: int) -> ModeResult:
    ours, full, sequential = scores[name], scores[BASELINE], scores.get("sequential")
    timed = [record["ttft_s"] for record in records if name in record.get("ttft_s", {})]
    entries = [record["modes"][name] for record in records]
    hops = [str(record["hops"]) if record["hops"] else None for record in records]
    in_place = grouped(ours.all_em, ours.positions, POSITIONS)
    at_distance = grouped(ours.all_em, ours.distances, DISTANCES)
    of_hops = grouped(ours.f1, hops)
    return ModeResult(
        mode=name,
        em=mean(ours.em, seed=seed),
        f1=mean(ours.f1, seed=seed),
        retention=retention(ours.f1, full.f1, seed=seed),
        lost=difference(ours.f1, full.f1, seed=seed),
        em_retention=retention(ours.em, full.em, seed=seed),
        vs_sequential=difference(ours.f1, sequential.f1, seed=seed) if sequential is not None else None,
        order=order_sensitivity(ours.em, ours.texts, seed=seed),
        excess=excess_order_sensitivity(ours.em, ours.texts, full.em, full.texts, seed=seed),
        kl=mean(_distances(records, name, "kl"), seed=seed),
        top1=mean(_distances(records, name, "top1"), seed=seed),
        reuse=1 - sum(_of_shuffled(records, name, "computed")) / sum(_of_shuffled(records, name, "prompt")),
        bytes=float(np.mean(_of_shuffled(records, name, "bytes"))),
        ttft_s=float(np.median([one[name] for one in timed])) if timed else None,
        speedup=float(np.median([one[BASELINE] / one[name] for one in timed])) if timed else None,
        by_position=by_group(ours.all_em, ours.positions, POSITIONS, seed=seed),
        lost_by_position={place: difference(em, full.all_em, seed=seed) for place, em in in_place.items()},
        lost_by_distance={apart: difference(em, full.all_em, seed=seed) for apart, em in at_distance.items()},
        by_hops=by_group(ours.em, hops, seed=seed),
        retention_by_hops={group: retention(f1, full.f1, seed=seed) for group, f1 in of_hops.items()},
        state_error=_mean_of_arrays([entry.get("state_error") for entry in entries]),
        key_error=_mean_of_arrays([entry.get("key_error") for entry in entries]),
        value_error=_mean_of_arrays([entry.get("value_error") for entry in entries]),
        unscored=ours.unscored,
    )


class _Scores:
    """Scores of one mode as arrays `[questions, orders]`, padded with NaN where a question has fewer orders."""

    def __init__(self, records: Sequence[dict[str, Any]], mode: str, rule: str) -> None:
        width = max(len(record["orders"]) for record in records)
        shuffles = max(len(_shuffled(record, record["orders"])) for record in records)
        none = Scored(None, None, "")
        rows, self.texts, self.positions, self.distances = [], [], [], []
        for record in records:
            entry = record["modes"][mode]
            scored = [Scored(em, f1, entry["unscored"]) for em, f1 in zip(entry["em"], entry["f1"], strict=True)]
            rows.append(scored + [none] * (width - len(scored)))
            texts = [normalise(text, rule) for text in _shuffled(record, entry["answers"])]
            self.texts.append([*texts, *[None] * (shuffles - len(texts))])
            places = gold_places(record)
            self.positions.append(places + [None] * (width - len(places)))
            apart = gold_distances(record)
            self.distances.append(apart + [None] * (width - len(apart)))
        table = tabulate(rows)
        self.all_em, self.unscored = table.em, table.unscored
        # Random orders come first in every record.
        self.em, self.f1 = table.em[:, :shuffles], table.f1[:, :shuffles]


def _shuffled(record: dict[str, Any], values: Sequence[Any]) -> list[Any]:
    """Those of the random orders, of a value per order."""
    return [value for value, order in zip(values, record["orders"], strict=True) if order["label"] == "shuffle"]


def _of_shuffled(records: Sequence[dict[str, Any]], mode: str, name: str) -> list[Any]:
    return [value for record in records for value in _shuffled(record, record["modes"][mode][name])]


def _distances(records: Sequence[dict[str, Any]], mode: str, name: str) -> np.ndarray:
    """Of each question the mean over its random orders; infinite where one of them is, which records have as None."""
    of = [_shuffled(record, record["modes"][mode][name]) for record in records]
    return np.array([np.mean([math.inf if value is None else value for value in values]) for values in of])


def gold_places(record: dict[str, Any]) -> list[str | None]:
    """Where the gold chunk stands in each order, one of `POSITIONS`.

    Orders that put gold somewhere say where. In a random one several gold chunks stand in several places: only one
    alone has a position. None elsewhere, and where there is nothing else to stand before or behind.
    """
    gold, count = record["gold"], len(record["chunks"])
    places: list[str | None] = []
    for order in record["orders"]:
        put = order["label"].removeprefix("gold ")
        if put in POSITIONS and 0 < len(gold) < count:
            places.append(put)
        elif len(gold) == 1 and count > 1:
            places.append(position_bucket(order["indices"].index(gold[0]), count))
        else:
            places.append(None)
    return places


def gold_distances(record: dict[str, Any]) -> list[str | None]:
    """How far apart two gold chunks stand in each order, one of `DISTANCES`; None where there are not two, and in
    orders that put them together."""
    if len(record["gold"]) != 2:
        return [None] * len(record["orders"])
    found: list[str | None] = []
    for order in record["orders"]:
        one, other = (order["indices"].index(index) for index in record["gold"])
        found.append(distance_bucket(abs(one - other)) if order["label"] == "shuffle" else None)
    return found


def range_text(numbers: Iterable[int]) -> str:
    """The smallest and the largest: 1 to 8."""
    found = sorted(numbers)
    return " to ".join(map(str, sorted({*found[:1], *found[-1:]})))


def _failed(record: dict[str, Any]) -> bool:
    return "error" in record


def _reason(record: dict[str, Any]) -> str:
    """Why the question was left out, which may be the same for many."""
    return str(record["error"]).removeprefix(f"question {record['id']}: ")


def _left_out(record: dict[str, Any]) -> str:
    return f"question {record['id']} was left out: {_reason(record)}"


def _frequent(reasons: Iterable[str]) -> str:
    """The most frequent of them with their counts."""
    counts = Counter(reasons).most_common()
    said = [f"{reason} ({count})" for reason, count in counts[:_MOST_REASONS]]
    more = len(counts) - len(said)
    return "; ".join([*said, f"and {more} other{'s' if more > 1 else ''}"] if more else said)


def _warnings(modes: Sequence[ModeResult]) -> list[str]:
    alone = next((mode.retention.value for mode in modes if mode.mode == "prefix_only"), None)
    if alone is None or alone <= ANSWERABLE_ALONE:
        return []
    return [
        f"prefix_only scores {alone:.0%} of full prefill's F1: questions can be answered without their documents, so "
        "what modes keep flatters them"
    ]


def _mean_of_arrays(arrays: Sequence[Any]) -> Any:
    known = [np.array(array, dtype=np.float64) for array in arrays if array is not None]
    return json_safe(np.mean(known, axis=0)) if known else None


def keeps_enough(kept: Estimate) -> str:
    """yes, no or undecided."""
    return decides(kept.low, kept.high, WANTED_RETENTION, questions=kept.questions)


def _known(estimate: Estimate) -> float:
    return -math.inf if estimate.value is None else estimate.value


def number_text(value: float | None, digits: int = 3) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _signed(estimate: Estimate | None) -> str:
    if estimate is None or estimate.value is None or estimate.low is None or estimate.high is None:
        return "-"
    return f"{estimate.value:+.3f} [{estimate.low:+.3f}, {estimate.high:+.3f}]"


def _percent(estimate: Estimate) -> str:
    if estimate.value is None:
        return "-"
    if estimate.low is None or estimate.high is None:
        return f"{100 * estimate.value:.1f}%"
    return f"{100 * estimate.value:.1f}% [{100 * estimate.low:.1f}, {100 * estimate.high:.1f}]"
