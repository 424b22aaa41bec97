"""What every part of the page shares: which modes belong together, which answers count, how numbers are written."""

from typing import Any

from linearkv.eval.report import BASELINE, COMPOSED, EvalReport, ModeResult
from linearkv.eval.statistics import Estimate

BASELINES = ("full_canonical", "full_best_last", "prefix_cache", "prefix_only", "no_context")
"""Modes, beside full prefill, that compose nothing."""


def groups(report: EvalReport) -> list[tuple[str, list[ModeResult]]]:
    """Modes as a reader tells them apart."""
    full = [mode for mode in report.modes if mode.mode == BASELINE]
    composed = [mode for mode in report.modes if mode.mode in COMPOSED]
    others = [mode for mode in report.modes if mode.mode not in (BASELINE, *COMPOSED, *BASELINES)]
    baselines = [mode for mode in report.modes if mode.mode in BASELINES]
    return [
        ("Ceiling", full),
        ("Composed modes: what a query can use", composed),
        ("Other recipes and ablations", others),
        ("Baselines that compose nothing", baselines),
    ]


def kind_of(mode: ModeResult) -> str:
    if mode.mode in COMPOSED:
        return "composed"
    return "baseline" if mode.mode in (BASELINE, *BASELINES) else "other"


def full_prefill(report: EvalReport) -> ModeResult:
    return next(mode for mode in report.modes if mode.mode == BASELINE)


def shuffled(record: dict[str, Any], mode: str) -> list[tuple[float | None, str]]:
    """(exact match, answer) of the random orders."""
    entry = record["modes"][mode]
    each = zip(record["orders"], entry["em"], entry["answers"], strict=True)
    return [(em, answer) for order, em, answer in each if order["label"] == "shuffle"]


def percent(value: float | None, digits: int = 1) -> str:
    return "-" if value is None else f"{100 * value:.{digits}f}%"


def interval_text(estimate: Estimate, *, signed: bool = False) -> str:
    if estimate.low is None or estimate.high is None:
        return ""
    sign = "+" if signed else ""
    return minus(f"{100 * estimate.low:{sign}.1f} to {100 * estimate.high:{sign}.1f}")


def minus(text: str) -> str:
    return text.replace("-", "\u2212")
