"""Means, ratios and differences of scores with bootstrap intervals, and how far they depend on the order of chunks.

Scores come as arrays `[questions, permutations]`, NaN where an answer is unscored. The question is the unit: it is what
is drawn again, with all its permutations, and each counts once however many of its answers are scored. What compares
two modes uses only the answers that both have scored. Results are a function of seed and scores alone, bit for bit: the
order of the questions and the size of the blocks in which draws are made do not enter.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Literal

import numpy as np

RESAMPLES = 10_000

ORDER_MEASURES = ("spread", "deviation", "worst", "flips", "agreement")
"""Per question, over its permutations: largest minus smallest score; standard deviation; smallest score; whether some
score 1 and others less; share of pairs with the same answer. The first, second and fourth grow with order sensitivity,
the others fall."""

POSITIONS = ("first", "early", "middle", "late", "last")
DISTANCES = ("1", "2-3", "4+")
"""Places from one gold chunk to the other."""

# Zero events in n trials leave rates up to 3/n possible at 95%.
_RULE_OF_THREE = 3.0
# Numbers drawn at a time: larger blocks fall out of the processor's cache and are several times slower.
_BLOCK = 1 << 18


@dataclass(frozen=True)
class Estimate:
    """A value with its 95% interval.

    Attributes:
        value, low, high: None where there is none; `reason` then says why. The interval alone can be missing.
        questions, answers: how many it rests on.
    """

    value: float | None
    low: float | None
    high: float | None
    questions: int
    answers: int
    reason: str = ""


def mean(values: np.ndarray, *, seed: int = 0, resamples: int = RESAMPLES) -> Estimate:
    """Mean over questions of `values [questions]` or `[questions, permutations]`."""
    return _mean_of_questions(*_per_question(_matrix(values)), seed, resamples)


def difference(values: np.ndarray, baseline: np.ndarray, *, seed: int = 0, resamples: int = RESAMPLES) -> Estimate:
    """mean(values) - mean(baseline), paired; shapes as in `retention`."""
    (ours, answers), (theirs, _) = map(_per_question, _shared(values, baseline))
    return _mean_of_questions(ours - theirs, answers, seed, resamples)


def retention(values: np.ndarray, baseline: np.ndarray, *, seed: int = 0, resamples: int = RESAMPLES) -> Estimate:
    """mean(values) / mean(baseline), paired.

    Draws in which both are 0 say nothing and are left out. Those in which the baseline alone is 0 have no bound; where
    they are too many for an upper end there is no interval.

    Args:
        values, baseline: scores of at least 0, `[questions]` or `[questions, permutations]`, the same in the same
            place.
    """
    (ours, answers), (theirs, _) = map(_per_question, _shared(values, baseline))
    questions, total = len(ours), int(answers.sum())
    columns = np.stack([ours, theirs], axis=1)
    reason = _why_not(columns)
    if not reason and not theirs.any():
        reason = "the baseline scores 0: there is nothing to keep"
    if reason:
        return Estimate(None, None, None, questions, total, reason)
    (our_mean, their_mean), drawn = bootstrap_means(columns, seed, resamples)
    ratio = float(our_mean / their_mean)
    with np.errstate(divide="ignore", invalid="ignore"):
        low, high = np.nanpercentile(drawn[:, 0] / drawn[:, 1], [2.5, 97.5])
    if not (math.isfinite(low) and math.isfinite(high)):
        reason = "the baseline is 0 in too many resamples for an interval: more questions are needed"
        return Estimate(ratio, None, None, questions, total, reason)
    return Estimate(ratio, float(low), float(high), questions, total)


def order_sensitivity(
    values: np.ndarray,
    texts: Sequence[Sequence[str | None]],
    *,
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> dict[str, Estimate]:
    """Means over questions of `ORDER_MEASURES`.

    Permutations are random for every question, so a column of `values` is no order: the worst permutation is each
    question's own. All but `worst` need two scored answers to a question and leave out questions with fewer; spread
    grows with the number of permutations, so compare it only where that is equal.

    Args:
        values: `[questions, permutations]`, at most 1; exact match for `flips`, exact match or F1 for the others.
        texts: the normalised answers in the same places, None where there is none.
    """
    matrix = _matrix(values)
    measures = _order_measures(matrix, texts)
    return {name: _mean_of_measure(name, *measures[name], seed, resamples) for name in ORDER_MEASURES}


def excess_order_sensitivity(
    values: np.ndarray,
    texts: Sequence[Sequence[str | None]],
    baseline: np.ndarray,
    baseline_texts: Sequence[Sequence[str | None]],
    *,
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> dict[str, Estimate]:
    """`ORDER_MEASURES` of a mode minus the baseline's own, paired; arguments as in `order_sensitivity`.

    More sensitive than the baseline is a positive excess of spread, deviation and flips, a negative one of agreement.
    That of `worst` also holds what the mode loses in every order.
    """
    ours, theirs = _shared(values, baseline)
    mode = _order_measures(ours, _only_shared(texts, baseline_texts))
    full = _order_measures(theirs, _only_shared(baseline_texts, texts))
    result = {}
    for name in ORDER_MEASURES:
        (our_measure, answers), (their_measure, _) = mode[name], full[name]
        result[name] = _mean_of_measure(name, our_measure - their_measure, answers, seed, resamples)
    return result


def by_group(
    values: np.ndarray,
    groups: Sequence[Any] | np.ndarray,
    labels: Sequence[Any] | None = None,
    *,
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> dict[Any, Estimate]:
    """The mean of each group's answers; arguments as in `grouped`."""
    found = grouped(values, groups, labels)
    return {label: mean(matrix, seed=seed, resamples=resamples) for label, matrix in found.items()}


def grouped(
    values: np.ndarray, groups: Sequence[Any] | np.ndarray, labels: Sequence[Any] | None = None
) -> dict[Any, np.ndarray]:
    """`values [questions, permutations]` once for each group, with NaN for what is not in it: `difference` and
    `retention` then compare the group alone.

    Args:
        values: `[questions]` or `[questions, permutations]`.
        groups: a label per question (hops), or per question and permutation (position of the gold chunk); None belongs
            to no group.
        labels: the groups wanted, in this order; by default all that occur, sorted.
    """
    matrix = _matrix(values)
    of = np.array(groups, dtype=object)
    if of.ndim == 1:
        of = np.repeat(of[:, None], matrix.shape[1], axis=1)
    if of.shape != matrix.shape:
        raise ValueError(
            f"groups have shape {of.shape}, the scores {matrix.shape}: give one label per score or per row"
        )
    if labels is None:
        labels = sorted({label for label in of.flat if label is not None})
    return {label: np.where(of == label, matrix, np.nan) for label in labels}


def position_bucket(position: int, chunks: int) -> str:
    """Which of `POSITIONS` a chunk has, counted from 0: the two ends, and thirds of what lies between them."""
    if not 0 <= position < chunks:
        raise ValueError(f"position {position} is not one of {chunks} chunks, which count from 0")
    if position == 0:
        return "first"
    if position == chunks - 1:
        return "last"
    # By the middle of its place: one chunk between the ends is in the middle, two are early and late.
    return ("early", "middle", "late")[3 * (2 * position - 1) // (2 * (chunks - 2))]


def distance_bucket(places: int) -> str:
    """Which of `DISTANCES` two chunks have that stand so many places apart."""
    return DISTANCES[0] if places <= 1 else DISTANCES[1] if places <= 3 else DISTANCES[2]


def decides(
    low: float | None, high: float | None, threshold: float = 0.98, *, questions: int | None = None
) -> Literal["yes", "no", "undecided"]:
    """Whether an interval lies on one side of `threshold`: at or above it, below it, or neither.

    Args:
        questions: how many the interval rests on. With it, an interval without width is taken to be 3/questions wider
            on both sides: that nothing differed in a few questions does not show that nothing ever does.
    """
    if low is None or high is None:
        return "undecided"
    if questions is not None and low == high:
        margin = _RULE_OF_THREE / questions
        low, high = low - margin, high + margin
    if low >= threshold:
        return "yes"
    return "no" if high < threshold else "undecided"


def questions_needed(estimate: Estimate, half_width: float) -> int | None:
    """About how many questions shrink the interval to `half_width` on either side, if more are like those asked.

    The width falls with the square root of the number of questions. None where there is no interval to go by.
    """
    if not half_width > 0:
        raise ValueError(f"a half width of {half_width} cannot be reached: give one above 0")
    if estimate.low is None or estimate.high is None:
        return None
    present = (estimate.high - estimate.low) / 2
    if present == 0:
        return math.ceil(_RULE_OF_THREE / half_width)
    return max(1, math.ceil(estimate.questions * (present / half_width) ** 2))


def json_safe(value: Any) -> Any:
    """`value` as JSON can hold it: numpy and dataclasses become plain, what is not finite becomes None."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: json_safe(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {key: json_safe(entry) for key, entry in value.items()}
    if isinstance(value, (np.ndarray, np.generic)):
        return json_safe(value.tolist())
    if isinstance(value, (list, tuple)):
        return [json_safe(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def bootstrap_means(
    columns: np.ndarray, seed: int, resamples: int, block: int = _BLOCK
) -> tuple[np.ndarray, np.ndarray]:
    """Means of finite `columns [questions, m]`, and of `resamples` draws of its rows with replacement.

    Args:
        block: numbers drawn at a time; for speed alone.

    Returns:
        `[m]` and `[resamples, m]`, float64.
    """
    # Sorted, so that the order in which questions come changes nothing.
    by_column = np.ascontiguousarray(columns[np.lexsort(columns.T)].T)
    questions = by_column.shape[1]
    generator = np.random.default_rng(seed)
    drawn = np.empty((resamples, len(by_column)))
    step = max(1, block // questions)
    for start in range(0, resamples, step):
        rows = generator.integers(0, questions, size=(min(step, resamples - start), questions))
        for number, column in enumerate(by_column):
            drawn[start : start + step, number] = column.take(rows).mean(axis=1)
    return by_column.mean(axis=1), drawn


def _per_question(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and number of the scored answers of every question that has one."""
    scored = ~np.isnan(matrix)
    answers = scored.sum(axis=1)
    kept = answers > 0
    return np.where(scored, matrix, 0.0).sum(axis=1)[kept] / answers[kept], answers[kept]


def _mean_of_questions(per_question: np.ndarray, answers: np.ndarray, seed: int, resamples: int) -> Estimate:
    questions, total = len(per_question), int(answers.sum())
    if reason := _why_not(per_question):
        return Estimate(None, None, None, questions, total, reason)
    (value,), drawn = bootstrap_means(per_question[:, None], seed, resamples)
    low, high = np.percentile(drawn, [2.5, 97.5])
    return Estimate(float(value), float(low), float(high), questions, total)


def _mean_of_measure(name: str, measure: np.ndarray, answers: np.ndarray, seed: int, resamples: int) -> Estimate:
    kept = ~np.isnan(measure)
    if name != "worst" and not kept.any():
        return Estimate(None, None, None, 0, 0, "no question has two answers to compare")
    return _mean_of_questions(measure[kept], answers[kept], seed, resamples)


def _why_not(per_question: np.ndarray) -> str:
    if not len(per_question):
        return "nothing is scored"
    infinite = len(per_question) - int(np.isfinite(per_question.reshape(len(per_question), -1)).all(axis=1).sum())
    return f"{infinite} of {len(per_question)} questions have an infinite value" if infinite else ""


def _order_measures(
    matrix: np.ndarray, texts: Sequence[Sequence[str | None]]
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Each of `ORDER_MEASURES` per question, NaN where it has none, and the number of answers behind it."""
    if [len(row) for row in texts] != [matrix.shape[1]] * len(matrix):
        raise ValueError(f"scores have shape {matrix.shape}: give as many texts, None where there is none")
    if np.isinf(matrix).any() or (matrix > 1).any():
        raise ValueError(f"order sensitivity is of scores of at most 1; the largest given is {np.nanmax(matrix)}")
    scored = ~np.isnan(matrix)
    answers = scored.sum(axis=1)
    smallest = np.where(scored, matrix, np.inf).min(axis=1)
    largest = np.where(scored, matrix, -np.inf).max(axis=1)
    count = np.maximum(answers, 1)
    centre = np.where(scored, matrix, 0.0).sum(axis=1) / count
    deviation = np.sqrt(np.where(scored, (matrix - centre[:, None]) ** 2, 0.0).sum(axis=1) / count)
    # The mean of equal numbers is not always that number: equal scores deviate by nothing, not by a rounding error.
    deviation[smallest == largest] = 0.0
    known = [[text for text in row if text is not None] for row in texts]
    agreement = np.array([_agreement(row) for row in known], dtype=np.float64)
    several = answers >= 2
    return {
        "spread": (np.where(several, largest - smallest, np.nan), answers),
        "deviation": (np.where(several, deviation, np.nan), answers),
        "worst": (np.where(answers > 0, smallest, np.nan), answers),
        "flips": (np.where(several, (largest == 1) & (smallest < 1), np.nan), answers),
        "agreement": (agreement, np.array([len(row) for row in known], dtype=np.int64)),
    }


def _agreement(texts: list[str]) -> float:
    """Share of pairs that are equal; NaN without a pair."""
    if len(texts) < 2:
        return math.nan
    equal = sum(count * (count - 1) for count in (texts.count(text) for text in set(texts)))
    return equal / (len(texts) * (len(texts) - 1))


def _matrix(values: np.ndarray) -> np.ndarray:
    """`[questions, permutations]` in float64."""
    array = np.asarray(values, dtype=np.float64)
    if array.ndim not in (1, 2):
        raise ValueError(f"scores have shape {array.shape}: expected [questions] or [questions, permutations]")
    return array[:, None] if array.ndim == 1 else array


def _shared(values: np.ndarray, baseline: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Both as matrices, with NaN in both where either is unscored."""
    ours, theirs = _matrix(values), _matrix(baseline)
    if ours.shape != theirs.shape:
        raise ValueError(f"shapes {ours.shape} and {theirs.shape} differ: both must answer the same questions")
    unscored = np.isnan(ours) | np.isnan(theirs)
    return np.where(unscored, np.nan, ours), np.where(unscored, np.nan, theirs)


def _only_shared(
    texts: Sequence[Sequence[str | None]], others: Sequence[Sequence[str | None]]
) -> list[list[str | None]]:
    """`texts`, with None also where `others` have none."""
    return [
        [None if other is None else text for text, other in zip(row, other_row, strict=True)]
        for row, other_row in zip(texts, others, strict=True)
    ]
