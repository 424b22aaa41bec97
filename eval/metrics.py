"""Scores of answers and intervals around them."""

import re
import string
from collections.abc import Sequence

import numpy as np

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalise(text: str) -> str:
    """Lower case, without punctuation, articles and surplus spaces: the normalisation of SQuAD's official script."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(prediction: str, answers: Sequence[str]) -> bool:
    """Whether the prediction is one of the accepted answers, both normalised. An empty prediction matches nothing."""
    given = normalise(prediction)
    return bool(given) and any(given == normalise(answer) for answer in answers)


def mean_interval(values: np.ndarray, seed: int = 0, resamples: int = 10_000) -> tuple[float, float]:
    """95% bootstrap interval of the mean of `values [questions]` (or `[questions, permutations]`, by question)."""
    means = _resampled_means(values, seed, resamples)
    low, high = np.percentile(means, [2.5, 97.5])
    return float(low), float(high)


def retention_interval(
    values: np.ndarray, baseline: np.ndarray, seed: int = 0, resamples: int = 10_000
) -> tuple[float, float, float]:
    """mean(values) / mean(baseline) with its 95% paired bootstrap interval, resampling questions.

    Args:
        values, baseline: `[questions]` or `[questions, permutations]`, the same questions in the same rows.

    Returns:
        ratio, low, high; NaN where the baseline is 0 throughout.
    """
    if not baseline.mean():
        return float("nan"), float("nan"), float("nan")
    ours = _resampled_means(values, seed, resamples)
    theirs = _resampled_means(baseline, seed, resamples)
    low, high = np.nanpercentile(ours / np.where(theirs > 0, theirs, np.nan), [2.5, 97.5])
    return float(values.mean() / baseline.mean()), float(low), float(high)


def _resampled_means(values: np.ndarray, seed: int, resamples: int) -> np.ndarray:
    """Means of `resamples` draws of rows with replacement; one seed draws the same rows for arrays of one length."""
    rows = np.asarray(values, dtype=np.float64).reshape(len(values), -1).mean(axis=1)
    drawn = np.random.default_rng(seed).integers(0, len(rows), size=(resamples, len(rows)))
    return rows[drawn].mean(axis=1)
