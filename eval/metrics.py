"""Scores of answers under named normalisation rules, and how far logits and states are from full prefill's.

`docs/scoring.md` says the rules in words. `statistics.py` makes means and intervals of the scores.
"""

import math
import re
import string
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

NO_GOLD_ANSWER = "no gold answer"
GENERATION_ERROR = "generation error"

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_ASCII_PUNCTUATION = str.maketrans("", "", string.punctuation)

_APOSTROPHES = "'\u2018\u2019\u201b\u02bb\u02bc"
_MINUS, _FRACTION_SLASH = "\u2212", "\u2044"
# 1,234,567 with or without decimals, and no other use of commas between digits.
_THOUSANDS = re.compile(r"(?<!\d)(?<!\d[.,])[1-9]\d{0,2}(?:,\d{3})+(?!,?\d)")
# A minus behind a word, a number or what ends one joins two things: 5-10, 5%-10%.
_SIGN = re.compile(r"(?<![\w$-])\$?-\$?(?=\.?\d)")
_BARE_POINT = re.compile(r"(?<![\w.,])\.(?=\d)")
_INSIDE_WORD = re.compile(r"(?<=[^\W\d_])['.](?=[^\W\d_])")
_NOT_OF_A_NUMBER = re.compile(r"(?<!\d)[.,]|[.,](?!\d)|(?<=[\w$-])-|-(?!\d)|['$_]")


@dataclass(frozen=True)
class Rule:
    """A named normalisation: `steps` one after the other, then every run of whitespace one space.

    Attributes:
        whole: normalised answers that score only where prediction and answer are equal.
    """

    name: str
    steps: tuple[Callable[[str], str], ...]
    whole: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Scored:
    """Exact match and token F1 of one answer, both None where it could not be scored; `unscored` then says why."""

    em: float | None
    f1: float | None
    unscored: str = ""


@dataclass(frozen=True)
class ScoreTable:
    """Scores of one mode.

    Attributes:
        em, f1: `[questions, permutations]` float64, NaN where unscored.
        unscored: how many answers, by reason; every reason is there.
    """

    em: np.ndarray
    f1: np.ndarray
    unscored: dict[str, int]


def normalise(text: str, rule: str = "linearkv") -> str:
    """`text` under the rule of that name, one of `RULES`."""
    return _apply(_rule(rule).steps, text)


def exact_match(prediction: str, answers: Sequence[str], rule: str = "linearkv") -> bool:
    """Whether the prediction is one of the accepted answers, both normalised. An empty prediction matches nothing."""
    return score(prediction, answers, rule=rule).em == 1


def score(
    prediction: str | None, answers: Sequence[str], *, rule: str = "linearkv", error: str | None = None
) -> Scored:
    """Scores one prediction by the accepted answer that suits it best.

    Args:
        prediction: None where the model gave none.
        answers: the accepted ones; blank ones are none.
        rule: name of the normalisation, one of `RULES`.
        error: what went wrong while generating, if something did.
    """
    if isinstance(answers, str):
        raise ValueError(f"answers is the text {answers!r}: give a list of accepted answers")
    wanted = _rule(rule)
    accepted = [answer for answer in answers if answer.strip()]
    # First, so that every mode counts the same questions as having no answer.
    if not accepted:
        return Scored(None, None, NO_GOLD_ANSWER)
    if error or prediction is None:
        return Scored(None, None, GENERATION_ERROR)
    pairs = [_compare(prediction, answer, wanted) for answer in accepted]
    return Scored(max(em for em, _ in pairs), max(f1 for _, f1 in pairs))


def tabulate(scored: Sequence[Sequence[Scored]]) -> ScoreTable:
    """The scores of one mode as arrays, from rows of questions and columns of permutations."""
    lengths = {len(row) for row in scored}
    if len(lengths) > 1:
        raise ValueError(f"questions have {sorted(lengths)} answers each: every one needs the same permutations")
    shape = (len(scored), *lengths) if lengths else (0, 0)
    em = np.array([[math.nan if one.em is None else one.em for one in row] for row in scored], dtype=np.float64)
    f1 = np.array([[math.nan if one.f1 is None else one.f1 for one in row] for row in scored], dtype=np.float64)
    reasons = Counter(one.unscored for row in scored for one in row)
    return ScoreTable(
        em.reshape(shape), f1.reshape(shape), {reason: reasons[reason] for reason in (GENERATION_ERROR, NO_GOLD_ANSWER)}
    )


def kl_divergence(reference: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    """KL(reference || logits) of the next token in nats, per position.

    Logits that hold NaN are no distribution: infinitely far. Tokens that the reference excludes (logit -inf) add
    nothing.

    Args:
        reference, logits: `[T, vocab]`.

    Returns:
        `[T]` float64, at least 0.
    """
    _check_logits(reference, logits)
    expected, given = reference.double().log_softmax(-1), logits.double().log_softmax(-1)
    terms = torch.where(expected == -math.inf, 0.0, expected.exp() * (expected - given))
    # Of equal distributions the sum is 0 up to rounding, on either side.
    divergence = terms.sum(-1).clamp(min=0.0)
    return torch.where(given.isnan().any(-1), math.inf, divergence)


def top1_agreement(reference: torch.Tensor, logits: torch.Tensor) -> float:
    """Share of positions whose likeliest token is the same; NaN logits agree with nothing. Shapes as in
    `kl_divergence`."""
    _check_logits(reference, logits)
    same = (reference.argmax(-1) == logits.argmax(-1)) & ~logits.isnan().any(-1)
    return float(same.double().mean())


def relative_error(reference: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
    """|given - reference| / |reference|, 2-norms over all dimensions but the first two.

    States `[L, H, K, V]` give the relative Frobenius error of each layer and head, `[L, H]`. Against a reference of
    zeros the error is 0 for zeros and infinite for anything else; what is not finite is infinitely wrong.

    Returns:
        float64.
    """
    if reference.shape != given.shape or reference.ndim < 3:
        raise ValueError(
            f"shapes {tuple(reference.shape)} and {tuple(given.shape)}: expected the same, of at least three dimensions"
        )
    expected = reference.double().flatten(2)
    if not expected.isfinite().all():
        raise ValueError("the reference holds NaN or infinity: there is nothing to compare with")
    error = torch.linalg.vector_norm(given.double().flatten(2) - expected, dim=-1)
    ratio = torch.where(error == 0, 0.0, error / torch.linalg.vector_norm(expected, dim=-1))
    return torch.where(ratio.isnan(), math.inf, ratio)


def _check_logits(reference: torch.Tensor, logits: torch.Tensor) -> None:
    if reference.ndim != 2 or reference.shape != logits.shape or not len(reference):
        raise ValueError(
            f"logits have shapes {tuple(reference.shape)} and {tuple(logits.shape)}: expected [T, vocab] with T >= 1"
        )
    if reference.isnan().any():
        raise ValueError("the reference logits hold NaN: there is nothing to compare with")


def _compare(prediction: str, answer: str, rule: Rule) -> tuple[float, float]:
    """Exact match and F1 against one answer that is not blank."""
    # An answer such as "The" or "!!!" is compared without the steps that would leave nothing of it.
    steps: list[Callable[[str], str]] = []
    wanted = answer
    for step in rule.steps:
        if reduced := step(wanted).strip():
            wanted = reduced
            steps.append(step)
    wanted, given = _apply(steps, answer), _apply(steps, prediction)
    if given == wanted:
        return 1.0, 1.0
    if rule.whole & {given, wanted}:
        return 0.0, 0.0
    return 0.0, _token_f1(given.split(), wanted.split())


def _token_f1(given: list[str], wanted: list[str]) -> float:
    shared = (Counter(given) & Counter(wanted)).total()
    # The harmonic mean of shared / given and shared / wanted.
    return 2 * shared / (len(given) + len(wanted))


def _apply(steps: Sequence[Callable[[str], str]], text: str) -> str:
    for step in steps:
        text = step(text)
    return " ".join(text.split())


def _rule(name: str) -> Rule:
    if name not in RULES:
        raise ValueError(f"there is no normalisation rule {name!r}: choose from {', '.join(RULES)}")
    return RULES[name]


def _without_ascii_punctuation(text: str) -> str:
    return text.translate(_ASCII_PUNCTUATION)


def _without_english_articles(text: str) -> str:
    return _ARTICLES.sub(" ", text)


def _one_form(text: str) -> str:
    """One form of what Unicode writes in several; nothing that cannot be seen."""
    seen = "".join(character for character in text if unicodedata.category(character) != "Cf")
    # Case folding can undo the composition.
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", seen).casefold())


class _Marks(dict[int, str | int]):
    """Table for `str.translate`: kinds of marks as one ASCII character each, other punctuation as a space.

    What ends a term, such as a bracket or a percent sign, is an underscore: `\\w` to the patterns, and removed by the
    last of them.
    """

    def __missing__(self, code: int) -> str | int:
        character, category = chr(code), unicodedata.category(chr(code))
        result: str | int = code
        if character in _APOSTROPHES:
            result = "'"
        elif category == "Sc":
            result = "$"
        elif category == "Pd" or character == _MINUS:
            result = "-"
        elif category == "Pe" or character in "%\u2030":
            result = "_"
        elif character not in ".," and (category[0] == "P" or category == "Sk" or character == _FRACTION_SLASH):
            result = " "
        self[code] = result
        return result


_MARKS = _Marks()


def _numbers_and_words(text: str) -> str:
    """Without punctuation and currency signs, except for what makes a number: its sign, its point, a decimal comma."""
    text = text.translate(_MARKS)
    text = _THOUSANDS.sub(lambda number: number[0].replace(",", ""), text)
    text = _SIGN.sub("-", text)
    text = _BARE_POINT.sub("0.", text)
    text = _INSIDE_WORD.sub("", text)
    return _NOT_OF_A_NUMBER.sub(" ", text)


def _without_articles(text: str) -> str:
    return " ".join(word for word in text.split() if word not in ("a", "an", "the"))


_SQUAD = (str.lower, _without_ascii_punctuation, _without_english_articles)

RULES = {
    rule.name: rule
    for rule in (
        Rule("linearkv", (_one_form, _numbers_and_words, _without_articles)),
        Rule("squad", _SQUAD),
        Rule("hotpotqa", _SQUAD, whole=frozenset({"yes", "no", "noanswer"})),
    )
}
"""By name: this project's own, that of SQuAD's script, and HotpotQA's, which 2WikiMultihopQA uses too."""
