"""The page from its parts: what was run, the table, the drawings, the questions that flip, and how to run it again."""

import json
import re
import shlex
from collections import Counter
from collections.abc import Sequence
from typing import Any

from markupsafe import Markup, escape

from linearkv.eval.metrics import normalise
from linearkv.eval.modes import MODES
from linearkv.eval.page.figures import figures
from linearkv.eval.page.reading import BASELINES, full_prefill, groups, interval_text, kind_of, minus, percent, shuffled
from linearkv.eval.page.template import render
from linearkv.eval.report import (
    BASELINE,
    COMPOSED,
    WANTED_RETENTION,
    EvalReport,
    ModeResult,
    gold_places,
    keeps_enough,
    number_text,
    range_text,
)
from linearkv.eval.statistics import POSITIONS, RESAMPLES, json_safe

EXAMPLES = 20
"""Questions shown side by side, at most."""

_LONGEST_TEXT, _LONGEST_ANSWER, _MOST_ANSWERS, _MOST_NOTES = 600, 160, 6, 50
_INTERVAL = re.compile(r"\[[^\[\]]*\]")
_KEEPS = {"yes": "\u2713", "no": "\u2717", "undecided": "?"}

_RULES = {
    "linearkv": "Unicode forms, case, punctuation and articles are set aside; numbers keep their sign and their point.",
    "squad": "As in SQuAD's script: lower case, without ASCII punctuation and English articles.",
    "hotpotqa": "As in HotpotQA's script: SQuAD's rule, and yes, no and noanswer match only as whole answers.",
}

_COLUMNS = (
    ("EM", "Exact match: share of answers that equal an accepted answer under the scoring rule."),
    ("F1", "Words shared with the accepted answer that fits best, from 0 (none) to 1 (the same words)."),
    (
        "kept",
        "This mode\u2019s F1 divided by full prefill\u2019s on the same questions and orders, with its 95% interval. "
        f"\u2713 the interval lies at or above {WANTED_RETENTION:.0%}, \u2717 below, ? on both sides: too few "
        "questions to say.",
    ),
    ("worst order", "Exact match when every question gets the one of its random orders that suits it least."),
    ("flips", "Share of questions that are right in some orders and wrong in others."),
    (
        "excess flips",
        "Flips minus full prefill\u2019s own, in percentage points, with the 95% interval: what composing adds. Full "
        "prefill depends on the order too.",
    ),
    ("KL", "How far the probabilities of each answer token are from full prefill\u2019s, in nats; 0 is no difference."),
    ("top-1", "Share of answer tokens whose likeliest candidate is full prefill\u2019s."),
    ("reuse", "Share of the prompt\u2019s tokens that were not computed when the question was asked."),
    ("bytes", "Stored chunk states that one answer is made from."),
    (
        "TTFT",
        "Time to the first token with the states in memory, and how many times faster than full prefill: medians over "
        "the timed questions, on the machine named above.",
    ),
)


def page(report: EvalReport) -> str:
    """The whole page. The same report gives the same text to the byte."""
    records = [record for record in report.records if "modes" in record]
    rule = _rule(report)
    known = [MODES[mode.mode] for mode in report.modes if mode.mode in MODES]
    compared = _compared(report)
    return render(
        verdict=_verdict(report),
        title=": ".join(["LinearKV evaluation", *filter(None, [_short(_model(report), 80)])]),
        facts=_facts(report, records),
        columns=_COLUMNS,
        groups=[(title, [_row(mode) for mode in modes]) for title, modes in groups(report) if modes],
        modes=[(mode.name, mode.about) for mode in known if mode.about],
        figures=figures(report, records) if records else [],
        examples=_examples(report, records),
        examples_of="the composed modes" if {*compared} & {*COMPOSED} else ", ".join(compared),
        rule=rule,
        rule_words=_RULES.get(rule, ""),
        resamples=RESAMPLES,
        unscored=_unscored(report),
        notes=[_short(note, _LONGEST_TEXT) for note in report.notes[:_MOST_NOTES]],
        more_notes=max(0, len(report.notes) - _MOST_NOTES),
        options=json.dumps(json_safe(report.about), indent=2, ensure_ascii=False, default=str),
        again=_again(report),
    )


# What was run


def _verdict(report: EvalReport) -> Markup:
    """As a sentence, with intervals that no line break divides."""
    text = report.verdict
    if text.partition(" ")[0] not in {mode.mode for mode in report.modes}:
        text = text[0].upper() + text[1:]
    return Markup(_INTERVAL.sub(r'<span class="whole">\g<0></span>', str(escape(text))))


def _model(report: EvalReport) -> str:
    model = report.about.get("model")
    if isinstance(model, dict):
        model = model.get("name") or ", ".join(f"{key} {value}" for key, value in model.items())
    return str(model or "")


def _rule(report: EvalReport) -> str:
    return str(report.about.get("options", {}).get("rule", "linearkv"))


def _facts(report: EvalReport, records: Sequence[dict[str, Any]]) -> list[tuple[str, str]]:
    """What was run, as pairs of a name and words."""
    options, source = report.about.get("options", {}), report.about.get("source", {})
    machine = report.about.get("machine", {})
    wanted = {
        "corpus": "made from the indexed documents",
        "caller": "passed from a program",
    }
    origin = source.get("questions_from", "")
    asked = f"{len(records):,}"
    if origin:
        form = f" ({source['format']})" if source.get("format") else ""
        asked += f", {wanted.get(origin, f'from {origin}{form}')}"
    if len(report.records) > len(records):
        asked += f"; {len(report.records) - len(records):,} more could not be asked"
    labels = {order["label"] for record in records for order in record["orders"]} - {"shuffle"}
    shuffles = (sum(order["label"] == "shuffle" for order in record["orders"]) for record in records)
    orders = range_text(shuffles) or str(options.get("shuffles", "-"))
    orders += " random a question"
    if labels:
        orders += "; on top, gold chunks first, in the middle and last"
    used = range_text(len(record["chunks"]) for record in records)
    k = str(options.get("k", used or "-"))
    if used and k != used:
        k += f" asked for, {used} used"
    facts = [
        ("Model", _short(_model(report), _LONGEST_TEXT) or "not recorded"),
        ("Questions", asked),
        ("Chunks a question, k", k),
        ("Orders (shuffles)", orders),
        ("Seed", str(options.get("seed", "-"))),
        ("Scoring rule", _rule(report)),
    ]
    if machine.get("device"):
        cores = f", {machine['cores']} cores" if machine.get("cores") else ""
        torch = f", torch {machine['torch']}" if machine.get("torch") else ""
        facts.append(("Machine", f"{machine['device']}{cores}{torch}"))
    return facts


def _unscored(report: EvalReport) -> list[str]:
    """What no mean holds, and which means there are not."""
    counts = full_prefill(report).unscored if report.modes else {}
    said = [f"{count:,} answers of each mode are unscored: {reason}" for reason, count in counts.items() if count]
    return said + report.missing()


def _again(report: EvalReport) -> str:
    """What to type to run the same evaluation again."""
    options, source = report.about.get("options", {}), report.about.get("source", {})
    origin, model = source.get("questions_from", "caller"), _model(report)
    if origin == "caller":
        given = ", ".join(
            f"{name}={tuple(value) if isinstance(value, list) else value!r}" for name, value in options.items()
        )
        return (
            "from linearkv.eval.evaluation import evaluate\n"
            "from linearkv.eval.runner import EvalOptions\n\n"
            f'evaluate(engine, questions, EvalOptions({given})).to_html("report.html")'
        )
    words = ["linearkv", "eval"]
    words += ["--store", "FOLDER"] if origin == "corpus" else [origin]
    words += ["--model", model or "MODEL"]
    for name in ("k", "shuffles", "seed", "max_new_tokens", "rule"):
        if name in options:
            words += [f"--{name.replace('_', '-')}", str(options[name])]
    words += ["--modes", ",".join(mode.mode for mode in report.modes)]
    if source.get("limit"):
        words += ["--limit", str(source["limit"])]
    return shlex.join([*words, "--html", "report.html"])


# The table


def _row(mode: ModeResult) -> dict[str, Any]:
    """A line of the table: the cells as (text, small print)."""
    kept, flips, excess = mode.retention, mode.order["flips"], mode.excess["flips"]
    # Of baselines nobody asks whether they are good enough to use.
    keeps = "" if kept.value is None or kind_of(mode) == "baseline" else keeps_enough(kept)
    cells = [
        (number_text(mode.em.value), ""),
        (number_text(mode.f1.value), ""),
        (f"{percent(kept.value)} {_KEEPS.get(keeps, '')}".strip(), interval_text(kept)),
        (number_text(mode.order["worst"].value), ""),
        (percent(flips.value), ""),
        ("-" if excess.value is None else minus(f"{100 * excess.value:+.1f}"), interval_text(excess, signed=True)),
        (number_text(mode.kl.value, 4), ""),
        (number_text(mode.top1.value), ""),
        (percent(mode.reuse), ""),
        (f"{mode.bytes / 1e6:.1f} MB" if mode.bytes else "none", ""),
        (
            "-" if mode.ttft_s is None else f"{1000 * mode.ttft_s:,.0f} ms",
            "" if mode.speedup is None else f"{mode.speedup:.1f}\u00d7",
        ),
    ]
    return {"mode": mode.mode, "kind": kind_of(mode), "keeps": keeps, "cells": cells}


# Questions that flip


def _compared(report: EvalReport) -> list[str]:
    """Modes whose answers are set beside full prefill's: the composed ones, or what else there is."""
    composed = [mode.mode for mode in report.modes if mode.mode in COMPOSED]
    return composed or [mode.mode for mode in report.modes if mode.mode not in (BASELINE, *BASELINES)]


def _examples(report: EvalReport, records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The questions in which a mode and full prefill disagree most, and what each answered."""
    rule, compared = _rule(report), _compared(report)
    ranked: list[tuple[float, float, int]] = []
    for number, record in enumerate(records):
        full = _given(record, BASELINE, rule)
        apart = [_disagreement(_given(record, mode, rule), full) for mode in compared]
        scores, texts = max(apart, default=(0.0, 0.0))
        if scores or texts:
            ranked.append((-scores, -texts, number))
    others = [mode.mode for mode in report.modes if mode.mode not in (BASELINE, *BASELINES, *compared)]
    return [_example(records[number], compared, others, rule) for *_, number in sorted(ranked)[:EXAMPLES]]


def _given(record: dict[str, Any], mode: str, rule: str) -> list[tuple[float | None, str]]:
    """(exact match, normalised answer) of the random orders; answers that are the same under the rule are equal."""
    return [(em, normalise(answer, rule)) for em, answer in shuffled(record, mode)]


def _disagreement(
    ours: Sequence[tuple[float | None, str]], full: Sequence[tuple[float | None, str]]
) -> tuple[float, float]:
    """How far apart the shares of right orders are, and in what share of the orders the answers differ."""
    scored = [(a[0], b[0]) for a, b in zip(ours, full, strict=True) if a[0] is not None and b[0] is not None]
    right = abs(sum((a == 1) - (b == 1) for a, b in scored)) / len(scored) if scored else 0.0
    return right, sum(a[1] != b[1] for a, b in zip(ours, full, strict=True)) / len(ours)


def _example(record: dict[str, Any], compared: Sequence[str], others: Sequence[str], rule: str) -> dict[str, Any]:
    count = len(record["chunks"])
    gold = [_short(record["chunks"][index]["name"], _LONGEST_ANSWER) for index in record["gold"]]
    return {
        "id": _short(str(record["id"]), 60),
        "question": _short(record["question"].strip(), _LONGEST_TEXT) or "(empty)",
        "answers": [_short(answer, _LONGEST_ANSWER) for answer in record["answers"][:_MOST_ANSWERS]],
        "more_answers": max(0, len(record["answers"]) - _MOST_ANSWERS),
        "hops": record["hops"],
        "chunks": count,
        "gold": gold[:_MOST_ANSWERS],
        "note": record.get("note", ""),
        "blocks": [_answers(record, BASELINE, rule) | {"modes": [BASELINE]}, *_blocks(record, compared, rule)],
        "others": _blocks(record, others, rule),
    }


def _blocks(record: dict[str, Any], modes: Sequence[str], rule: str) -> list[dict[str, Any]]:
    """What each mode answered; those that answered the same share a block."""
    blocks: list[dict[str, Any]] = []
    for mode in modes:
        found = _answers(record, mode, rule)
        same = next((block for block in blocks if block | {"modes": []} == found | {"modes": []}), None)
        if same is not None:
            same["modes"].append(mode)
        else:
            blocks.append(found | {"modes": [mode]})
    return blocks


def _answers(record: dict[str, Any], mode: str, rule: str) -> dict[str, Any]:
    """Distinct answers of a mode over the random orders, most frequent first, and where it was not right."""
    given = _given(record, mode, rule)
    texts = [answer for _, answer in shuffled(record, mode)]
    counts = Counter(given)
    shown = [
        {"text": _short(texts[given.index(one)], _LONGEST_ANSWER), "count": number, "em": one[0]}
        for one, number in counts.most_common(_MOST_ANSWERS)
    ]
    scored = [em for em, _ in given if em is not None]
    wrong = Counter(
        place for (em, _), place in zip(given, _places(record), strict=True) if place and em is not None and em < 1
    )
    right = sum(em == 1 for em in scored)
    same = sum(a[1] == b[1] for a, b in zip(given, _given(record, BASELINE, rule), strict=True))
    return {
        "right": f"{right} of {len(scored)} right" if scored else "unscored",
        "same": "" if mode == BASELINE or scored else f"{same} of {len(given)} as full prefill",
        "answers": shown,
        "more": len(counts) - len(shown),
        # Where all are wrong, that says nothing of the place.
        "wrong": ", ".join(f"{place} {wrong[place]}\u00d7" for place in POSITIONS if wrong[place]) if right else "",
    }


def _places(record: dict[str, Any]) -> list[str | None]:
    """Where the gold chunk stands in each random order, where there is one."""
    return [
        place for place, order in zip(gold_places(record), record["orders"], strict=True) if order["label"] == "shuffle"
    ]


def _short(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[:longest]}\u2026 [{len(text):,} characters]"
