"""Scores, their normalisation rules, intervals around them, order sensitivity, and distances from full prefill."""

import json
import math
import re
from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.special import log_softmax, rel_entr
from scipy.stats import bootstrap

from linearkv.eval.metrics import (
    RULES,
    Scored,
    exact_match,
    kl_divergence,
    normalise,
    relative_error,
    score,
    tabulate,
    top1_agreement,
)
from linearkv.eval.statistics import (
    ORDER_MEASURES,
    POSITIONS,
    Estimate,
    bootstrap_means,
    by_group,
    decides,
    difference,
    excess_order_sensitivity,
    grouped,
    json_safe,
    mean,
    order_sensitivity,
    position_bucket,
    questions_needed,
    retention,
)

FEW = 400
"""Resamples where the number of them is not the point."""

# Everything the rules treat in a way of its own, in close company.
AWKWARD = st.text(st.sampled_from(list("aAthenß İé129０.,'’-−–%$€()\"_*+=½\u00a0\u00ad\u0301 \t")), max_size=12)
WORDS = st.lists(st.sampled_from(["salt", "wool", "the", "1,000", "tin", "a", "-5"]), max_size=6).map(" ".join)
SCORES = arrays(
    np.float64, st.tuples(st.integers(1, 30), st.integers(1, 4)), elements=st.integers(0, 20).map(lambda k: k / 20)
)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Zu\u0308rich", "Z\u00fcrich"),  # decomposed and composed
        ("１２ ｔｏｎｓ", "12 tons"),  # full width
        ("New\u00a0York", "new york"),  # no-break space
        ("Strasse", "STRAẞE"),
        ("soft\u00adware\u200b", "software"),  # what cannot be seen
        ("don’t", "don't"),
        ("O'Brien", "OBrien"),
        ("the U.S.", "US"),
        ("well-known", "well known"),
        ("“The   Bell”", "bell"),
        ("**salt**", "`salt`"),
        ("1,000", "1000"),
        ("$1,234,567.50", "1234567.50 €"),
        ("pp.1,000", "pp 1000"),
        (".5", "0.5"),
        ("\u22125", "-5"),
        ("-$5", "$-5"),
        ("x=-$5", "x=-5"),
        ("1990\u20131995", "1990-1995"),
        ("5%-10%", "5-10 %"),
        ("½", "1/2"),
    ],
)
def test_linearkv_rule_reads_as_one(one, other):
    assert normalise(one) == normalise(other) != ""


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("1,5", "15"),
        ("1,5", "1.5"),
        ("3.14", "314"),
        ("3.10", "3.1"),  # versions and sections; so "2.50" is not "2.5" either
        ("0,123", "0123"),
        ("1,000,00", "1000,00"),
        ("1 000", "1000"),
        (".5", "5"),
        ("-5", "5"),
        ("-$5", "$5"),
        ("x=-5", "x=5"),
        ("(3,-5)", "(3,5)"),
        ("1990-1995", "19901995"),
        ("10:30", "1030"),
        ("C++", "C"),
        ("x > 5", "x < 5"),
        ("seven", "7"),
        ("İzmir", "izmir"),  # case folding knows no Turkish
        ("ılık", "ilik"),
    ],
)
def test_linearkv_rule_keeps_apart(one, other):
    assert normalise(one) != normalise(other)


@given(AWKWARD)
@settings(max_examples=500, deadline=None)
def test_linearkv_rule_changes_nothing_the_second_time(text):
    assert normalise(normalise(text)) == normalise(text)


def squad_words(text: str) -> list[str]:
    """SQuAD v1.1's normalisation from its description, another way: words are read one after the other."""
    kept = "".join(c for c in text.lower() if not (33 <= ord(c) <= 126 and not c.isalnum()))
    pieces = re.findall(r"\w+|\W", kept)
    return "".join(" " if piece in {"a", "an", "the"} else piece for piece in pieces).split()


def squad_f1(prediction: str, answer: str) -> float:
    left, shared = squad_words(answer), 0
    for word in squad_words(prediction):
        if word in left:
            left.remove(word)
            shared += 1
    if not shared:
        return 0.0
    precision, recall = shared / len(squad_words(prediction)), shared / len(squad_words(answer))
    return 2 * precision * recall / (precision + recall)


@given(AWKWARD | WORDS, st.lists(AWKWARD | WORDS, min_size=1, max_size=3))
@settings(max_examples=500, deadline=None)
def test_squad_rule_scores_as_the_official_script(prediction, answers):
    assume(all(squad_words(answer) for answer in answers))
    scored = score(prediction, answers, rule="squad")
    assert normalise(prediction, "squad").split() == squad_words(prediction)
    assert scored.em == max(squad_words(prediction) == squad_words(answer) for answer in answers)
    assert scored.f1 == pytest.approx(max(squad_f1(prediction, answer) for answer in answers))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The U.S.A.", "usa"),
        ("1,5", "15"),
        ("€5 a day", "€5 day"),
        ("Ａ", "ａ"),
        ("re-enter _the_ room", "reenter room"),
    ],
)
def test_squad_rule_on_known_texts(text, expected):
    assert normalise(text, "squad") == expected


def test_hotpotqa_rule_gives_yes_and_no_no_part_marks():
    assert score("yes it is", ["yes"], rule="hotpotqa") == Scored(0.0, 0.0)
    assert score("no", ["no chance"], rule="hotpotqa") == Scored(0.0, 0.0)
    assert score("Yes.", ["yes"], rule="hotpotqa") == Scored(1.0, 1.0)
    assert score("no chance", ["a chance"], rule="hotpotqa").f1 == score("no chance", ["a chance"], rule="squad").f1 > 0


def test_an_unknown_rule_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match="'bleu'.*linearkv, squad, hotpotqa"):
        score("salt", ["salt"], rule="bleu")


def test_several_answers_the_best_one_counts():
    scored = score("red salt", ["wool", "salt", "red salt of the north"])
    assert scored == Scored(0.0, pytest.approx(2 / 3))
    assert score("salt", ["wool", "Salt."]) == Scored(1.0, 1.0)


@given(WORDS, WORDS, st.randoms())
@settings(deadline=None)
def test_f1_is_of_bags_of_words(one, other, random):
    assume(normalise(one) and normalise(other))
    shuffled = one.split()
    random.shuffle(shuffled)
    f1 = score(one, [other]).f1
    assert score(" ".join(shuffled), [other]).f1 == f1
    assert score(other, [one]).f1 == f1


def test_f1_counts_a_repeated_word_as_often_as_both_have_it():
    assert score("tin tin tin salt", ["tin tin wool"]).f1 == pytest.approx(4 / 7)


@given(AWKWARD, st.sampled_from(sorted(RULES)), st.sampled_from(["{}", " {}\t", "“{}”", "{}!", "the {}"]))
@settings(deadline=None)
def test_exact_match_implies_f1_of_one(answer, rule, frame):
    assume(answer.strip())
    scored = score(frame.format(answer), [answer], rule=rule)
    assert scored.f1 == 1 or scored.em == 0
    assert 0 <= scored.f1 <= 1
    assert score(answer, [answer], rule=rule) == Scored(1.0, 1.0)


@pytest.mark.parametrize("rule", sorted(RULES))
@pytest.mark.parametrize("prediction", ["", "  ", "the", "!!!"])
def test_a_prediction_of_nothing_scores_zero(prediction, rule):
    assert score(prediction, ["salt"], rule=rule) == Scored(0.0, 0.0)


@pytest.mark.parametrize("rule", sorted(RULES))
def test_an_answer_that_the_rule_empties_is_compared_without_the_step_that_emptied_it(rule):
    assert score("the", ["The"], rule=rule).em == 1
    assert score("the.", ["The"], rule=rule).em == 1  # punctuation still does not count
    assert score("an", ["The"], rule=rule) == Scored(0.0, 0.0)
    assert score("", ["The"], rule=rule) == Scored(0.0, 0.0)
    assert score("The answer", ["the"], rule=rule) == Scored(0.0, pytest.approx(2 / 3))
    assert score("!!!", ["!!!"], rule=rule).em == 1
    assert score("???", ["!!!"], rule=rule) == Scored(0.0, 0.0)


def test_exact_match_takes_the_rule():
    assert exact_match("15", ["1,5"], "squad") and not exact_match("15", ["1,5"])
    assert not exact_match("", ["salt"])


def test_one_text_for_the_list_of_answers_is_refused():
    with pytest.raises(ValueError, match="list of accepted answers"):
        score("s", "salt")


PREDICTIONS = """
{"id": 1, "gold": ["salt"], "pred": "salt"}
{"id": 2, "gold": ["wool"], "pred": ""}
{"id": 3, "gold": ["tin"], "pred": null, "error": "timeout"}
{"id": 4, "gold": [], "pred": "rope"}
{"id": 5, "gold": ["ink"], "pred": "ink", "confidence": "NaN"}
"""


def test_what_could_not_be_scored_is_counted_apart_and_does_not_pull_the_mean():
    """Case LK-32."""
    rows = [json.loads(line) for line in PREDICTIONS.split("\n") if line]
    scored = {row["id"]: score(row["pred"], row["gold"], error=row.get("error")) for row in rows}
    assert {name: one.unscored for name, one in scored.items() if one.unscored} == {
        3: "generation error",
        4: "no gold answer",
    }
    assert scored[2] == Scored(0.0, 0.0)
    table = tabulate([[one] for one in scored.values()])
    assert table.unscored == {"generation error": 1, "no gold answer": 1}
    estimate = mean(table.em, resamples=FEW)
    assert round(estimate.value, 4) == 0.6667
    assert (estimate.questions, estimate.answers) == (3, 3)
    text = json.dumps(json_safe({"table": table, "em": estimate}), allow_nan=False)
    assert json.loads(text)["table"]["em"] == [[1.0], [0.0], [None], [None], [1.0]]


@pytest.mark.parametrize(
    ("prediction", "answers", "error", "unscored"),
    [
        (None, ["tin"], None, "generation error"),
        ("ti", ["tin"], "timeout", "generation error"),
        ("tin", ["tin"], "", ""),
        ("tin", ["", "  "], None, "no gold answer"),
        (None, [], "timeout", "no gold answer"),
    ],
)
def test_why_an_answer_is_unscored(prediction, answers, error, unscored):
    scored = score(prediction, answers, error=error)
    assert scored.unscored == unscored
    assert (scored.em is None) == (scored.f1 is None) == bool(unscored)


def test_tabulate_refuses_questions_of_different_permutations():
    with pytest.raises(ValueError, match=r"\[1, 2\]"):
        tabulate([[Scored(1.0, 1.0)], [Scored(1.0, 1.0)] * 2])


@given(SCORES)
@settings(max_examples=50, deadline=None)
def test_the_interval_holds_the_mean(values):
    estimate = mean(values, resamples=FEW)
    assert estimate.value == pytest.approx(values.mean())
    in_order = [values.min(), estimate.low, estimate.value, estimate.high, values.max()]
    assert all(np.diff(in_order) >= -1e-12)


@given(SCORES, st.randoms())
@settings(max_examples=50, deadline=None)
def test_the_order_of_the_questions_changes_no_bit(values, random):
    baseline = np.minimum(1, values[::-1] + 0.05)
    rows = list(range(len(values)))
    random.shuffle(rows)
    for statistic in (retention, difference):
        assert statistic(values, baseline, resamples=FEW) == statistic(values[rows], baseline[rows], resamples=FEW)


def test_the_size_of_the_blocks_drawn_changes_no_bit():
    columns = np.random.default_rng(0).random((37, 2))
    expected = bootstrap_means(columns, 3, 101)
    for block in (1, 37 * 7, 37 * 100):
        for part, whole in zip(bootstrap_means(columns, 3, 101, block), expected, strict=True):
            np.testing.assert_array_equal(part, whole)


def test_the_seed_decides_the_draws():
    values = np.random.default_rng(0).random(50)
    assert mean(values, seed=1) == mean(values, seed=1)
    assert mean(values, seed=1).low != mean(values, seed=2).low


def test_intervals_agree_with_scipy():
    generator = np.random.default_rng(0)
    baseline = generator.random(80) < 0.7
    values = np.where(generator.random(80) < 0.9, baseline, generator.random(80) < 0.5)
    ours, theirs = values.astype(float), baseline.astype(float)
    cases = [
        (mean(ours), (ours,), np.mean),
        (difference(ours, theirs), (ours, theirs), lambda a, b, axis: a.mean(axis) - b.mean(axis)),
        (retention(ours, theirs), (ours, theirs), lambda a, b, axis: a.mean(axis) / b.mean(axis)),
    ]
    for estimate, data, statistic in cases:
        reference = bootstrap(data, statistic, paired=True, method="percentile", random_state=1, n_resamples=10_000)
        expected = reference.confidence_interval
        assert (estimate.low, estimate.high) == pytest.approx((expected.low, expected.high), abs=0.015)


@pytest.mark.parametrize(
    ("changed", "least"),
    [
        (0.20, 0.91),  # 24 questions differ between the modes
        (0.05, 0.86),  # six: the interval is somewhat too narrow
    ],
)
def test_intervals_of_95_percent_cover_the_truth_nearly_as_often(changed, least):
    """Answers to one question are right or wrong together: drawing answers instead of questions, or modes apart from
    one another, misses by far."""
    generator = np.random.default_rng(0)
    questions, experiments = 120, 400
    truth = {"mean": 0.7, "retention": 1 + changed * (0.5 / 0.7 - 1), "difference": changed * (0.5 - 0.7)}
    covered = dict.fromkeys(truth, 0)
    for experiment in range(experiments):
        full = np.repeat(generator.random((questions, 1)) < 0.7, 4, axis=1).astype(float)
        answered_anew = generator.random((questions, 1)) < changed
        mode = np.where(answered_anew, generator.random((questions, 4)) < 0.5, full)
        for name, estimate in {
            "mean": mean(full, seed=experiment, resamples=FEW),
            "retention": retention(mode, full, seed=experiment, resamples=FEW),
            "difference": difference(mode, full, seed=experiment, resamples=FEW),
        }.items():
            covered[name] += estimate.low <= truth[name] <= estimate.high
    for name, count in covered.items():
        assert least <= count / experiments <= 0.98, f"{name}: {count} of {experiments}"


@given(SCORES)
@settings(max_examples=50, deadline=None)
def test_a_mode_against_itself_keeps_exactly_everything(values):
    assume(values.any())
    kept, apart = retention(values, values.copy(), resamples=FEW), difference(values, values.copy(), resamples=FEW)
    assert (kept.value, kept.low, kept.high) == (1.0, 1.0, 1.0)
    assert (apart.value, apart.low, apart.high) == (0.0, 0.0, 0.0)


def test_draws_without_a_right_answer_on_either_side_say_nothing():
    values = np.array([1.0, 0.0, 0.0])
    assert retention(values, values) == Estimate(1.0, 1.0, 1.0, 3, 3)


def test_a_baseline_of_zero_has_no_retention_and_says_so():
    estimate = retention(np.ones((5, 2)), np.zeros((5, 2)))
    assert (estimate.value, estimate.low, estimate.high) == (None, None, None)
    assert "baseline scores 0" in estimate.reason


def test_a_baseline_that_is_nearly_never_right_has_a_ratio_without_an_interval():
    baseline = np.zeros(50)
    baseline[0] = 1
    estimate = retention(np.full(50, 0.01), baseline)
    assert estimate.value == pytest.approx(0.5)
    assert (estimate.low, estimate.high) == (None, None)
    assert "more questions" in estimate.reason


def test_draws_in_which_the_baseline_alone_is_zero_push_the_upper_end():
    """With three questions of 60 right, 5% of the draws have none of them; with six, 0.2%."""
    baseline, mode = np.zeros(60), np.full(60, 0.01)
    baseline[:3] = mode[:3] = 1
    assert retention(mode, baseline).high is None
    baseline[3:6] = mode[3:6] = 1
    assert retention(mode, baseline).high > retention(mode, baseline).value > 1


def test_pairs_use_only_answers_that_both_modes_have():
    """The mode failed where full prefill was wrong: counted for full prefill alone, it would seem to gain."""
    full = np.array([[1.0, 1.0], [0.0, 1.0], [0.0, 0.0]])
    mode = np.array([[1.0, 1.0], [np.nan, 1.0], [np.nan, np.nan]])
    estimate = retention(mode, full, resamples=FEW)
    assert (estimate.value, estimate.questions, estimate.answers) == (1.0, 2, 3)
    assert difference(mode, full, resamples=FEW).value == 0.0


def test_a_question_counts_once_however_many_of_its_answers_are_scored():
    estimate = mean(np.array([[1.0, 1.0, 1.0, 1.0], [0.0, np.nan, np.nan, np.nan]]), resamples=FEW)
    assert (estimate.value, estimate.questions, estimate.answers) == (0.5, 2, 5)


@pytest.mark.parametrize("values", [np.full((3, 2), np.nan), np.zeros((0, 2))])
def test_nothing_scored_is_no_zero(values):
    assert mean(values) == Estimate(None, None, None, 0, 0, "nothing is scored")
    assert retention(values, values).reason == difference(values, values).reason == "nothing is scored"


def test_an_infinite_value_is_reported_and_not_averaged_away():
    estimate = mean(np.array([0.1, math.inf, 0.2]))
    assert estimate.value is None
    assert estimate.reason == "1 of 3 questions have an infinite value"


def test_scores_of_different_questions_are_refused():
    with pytest.raises(ValueError, match=r"\(3, 2\) and \(2, 2\)"):
        retention(np.ones((3, 2)), np.ones((2, 2)))


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (0.982, 0.998, "yes"),
        (0.98, 1.0, "yes"),
        (0.9, 0.9799, "no"),
        (0.9, 0.98, "undecided"),
        (0.97, 1.01, "undecided"),
        (None, None, "undecided"),
    ],
)
def test_an_interval_decides_only_from_one_side(low, high, verdict):
    assert decides(low, high) == verdict


def test_no_difference_in_a_few_questions_decides_nothing():
    assert decides(1.0, 1.0, questions=10) == "undecided"
    assert decides(1.0, 1.0, questions=150) == "yes"
    assert decides(1.0, 1.0) == "yes"


def test_questions_needed_finds_the_width_that_so_many_questions_give():
    generator = np.random.default_rng(0)
    few = mean(generator.random((100, 2)) < 0.5)
    wanted = (few.high - few.low) / 6
    needed = questions_needed(few, wanted)
    assert 800 <= needed <= 1000
    many = mean(generator.random((needed, 2)) < 0.5)
    assert (many.high - many.low) / 2 == pytest.approx(wanted, rel=0.2)


def test_questions_needed_without_spread_or_interval():
    assert questions_needed(Estimate(1.0, 1.0, 1.0, 10, 10), 0.02) == 150
    assert questions_needed(Estimate(None, None, None, 0, 0, "nothing is scored"), 0.02) is None
    with pytest.raises(ValueError, match="above 0"):
        questions_needed(Estimate(1.0, 0.9, 1.0, 10, 10), 0)


EM = np.array([[1, 1, 1, 1], [1, 0, 0, 1], [0, 0, 0, 0]], dtype=float)
TEXTS = [["salt"] * 4, ["wool", "tin", "rope", "wool"], ["x", "x", "y", "y"]]


def test_order_measures_by_hand():
    found = order_sensitivity(EM, TEXTS, resamples=FEW)
    assert set(found) == set(ORDER_MEASURES)
    assert {name: pytest.approx(one.value) for name, one in found.items()} == {
        "spread": 1 / 3,
        "deviation": 0.5 / 3,
        "worst": 1 / 3,
        "flips": 1 / 3,
        "agreement": (1 + 1 / 6 + 2 / 6) / 3,
    }
    assert all((one.questions, one.answers) == (3, 12) for one in found.values())


@given(st.lists(st.sampled_from("abc"), min_size=2, max_size=8))
@settings(deadline=None)
def test_agreement_is_the_share_of_equal_pairs(texts):
    pairs = list(combinations(texts, 2))
    found = order_sensitivity(np.zeros((1, len(texts))), [texts], resamples=FEW)["agreement"]
    assert found.value == pytest.approx(sum(a == b for a, b in pairs) / len(pairs))


@given(SCORES)
@settings(max_examples=30, deadline=None)
def test_full_prefill_has_no_excess_over_itself(values):
    texts = [[str(x) for x in row] for row in values]
    for name, one in excess_order_sensitivity(values, texts, values.copy(), texts, resamples=FEW).items():
        if values.shape[1] == 1 and name != "worst":
            assert one.value is None and one.reason
        else:
            assert (one.value, one.low, one.high) == (0.0, 0.0, 0.0)


def test_excess_is_the_mode_minus_full_prefill():
    steady = np.ones((3, 4))
    excess = excess_order_sensitivity(EM, TEXTS, steady, [["salt"] * 4] * 3, resamples=FEW)
    assert excess["spread"].value == pytest.approx(1 / 3)
    assert excess["flips"].value == pytest.approx(1 / 3)
    assert excess["agreement"].value == pytest.approx(0.5 - 1)
    assert excess["worst"].value == pytest.approx(1 / 3 - 1)


def test_excess_of_two_modes_that_flip_alike_is_zero_whatever_the_columns():
    """Permutations have no place in common between questions: only each question's own spread counts."""
    other = EM[:, [3, 1, 0, 2]]
    texts = [[row[i] for i in (3, 1, 0, 2)] for row in TEXTS]
    assert {one.value for one in excess_order_sensitivity(EM, TEXTS, other, texts, resamples=FEW).values()} == {0.0}


def test_equal_f1_scores_do_not_deviate_by_a_rounding_error():
    assert order_sensitivity(np.full((2, 3), 0.1), [["a"] * 3] * 2, resamples=FEW)["deviation"].value == 0.0


def test_a_flip_is_between_right_and_not_right():
    values = np.array([[0.2, 0.5], [0.5, 1.0]])
    assert order_sensitivity(values, [["a", "b"]] * 2, resamples=FEW)["flips"].value == 0.5


def test_one_permutation_has_no_order_to_depend_on():
    found = order_sensitivity(np.array([[1.0], [0.0]]), [["a"], ["b"]], resamples=FEW)
    assert found.pop("worst").value == 0.5
    assert all(one.value is None and "two answers" in one.reason for one in found.values())


def test_a_question_with_one_scored_answer_is_not_counted_as_steady():
    found = order_sensitivity(np.array([[1.0, 0.0], [1.0, np.nan]]), [["salt", "tin"], ["salt", None]], resamples=FEW)
    assert found["spread"].value == found["flips"].value == 1.0
    assert found["agreement"].value == 0.0
    assert {found[name].questions for name in ("spread", "deviation", "flips", "agreement")} == {1}


def test_excess_compares_the_permutations_that_both_have():
    full, mode = np.array([[1.0, 1.0, 0.0]]), np.array([[1.0, 1.0, np.nan]])
    excess = excess_order_sensitivity(mode, [["a", "a", None]], full, [["a", "a", "b"]], resamples=FEW)
    assert {one.value for one in excess.values()} == {0.0}


@pytest.mark.parametrize("texts", [[["a", "b"]], [["a"], ["b"]]])
def test_texts_that_do_not_match_the_scores_are_refused(texts):
    with pytest.raises(ValueError, match="give as many texts"):
        order_sensitivity(np.ones((2, 2)), texts)


def test_order_sensitivity_refuses_what_is_no_score():
    with pytest.raises(ValueError, match="at most 1"):
        order_sensitivity(np.array([[0.0, 2.0]]), [["a", "b"]])


def test_a_group_alone_is_compared_with_the_baseline():
    ours, full = np.array([[1, 0], [0, 0], [1, 1]], dtype=float), np.ones((3, 2))
    of = grouped(ours, ["1", "2", None])
    assert {label: difference(values, full, resamples=FEW).value for label, values in of.items()} == {
        "1": -0.5,
        "2": -1.0,
    }


def test_groups_by_position_of_each_permutation():
    values = np.array([[1.0, 0.0], [1.0, np.nan], [0.0, 0.0]])
    positions = [["first", "last"], ["first", "last"], ["last", None]]
    found = by_group(values, positions, POSITIONS, resamples=FEW)
    assert list(found) == list(POSITIONS)
    assert (found["first"].value, found["first"].questions, found["first"].answers) == (1.0, 2, 2)
    assert (found["last"].value, found["last"].questions, found["last"].answers) == (0.0, 2, 2)
    assert found["middle"] == Estimate(None, None, None, 0, 0, "nothing is scored")


def test_groups_of_whole_questions_come_sorted():
    found = by_group(np.array([[1.0, 1.0], [0.0, 1.0], [0.0, 0.0], [1.0, 1.0]]), [8, 1, 1, None], resamples=FEW)
    assert [(hops, one.value, one.answers) for hops, one in found.items()] == [(1, 0.25, 4), (8, 1.0, 2)]


def test_groups_of_another_shape_are_refused():
    with pytest.raises(ValueError, match="one label per"):
        by_group(np.ones((3, 2)), [1, 2])


@pytest.mark.parametrize(
    ("chunks", "buckets"),
    [
        (1, "first"),
        (2, "first last"),
        (3, "first middle last"),
        (4, "first early late last"),
        (5, "first early middle late last"),
        (10, "first early early early middle middle late late late last"),
    ],
)
def test_position_buckets(chunks, buckets):
    assert [position_bucket(position, chunks) for position in range(chunks)] == buckets.split()


@pytest.mark.parametrize("position", [-1, 3])
def test_a_position_outside_is_refused(position):
    with pytest.raises(ValueError, match="3 chunks"):
        position_bucket(position, 3)


def test_json_never_holds_nan():
    value = {"a": [math.nan, -math.inf, np.float32("nan")], "b": (np.arange(2), np.array([[1.0, np.nan]])), "c": 1.5}
    safe = json_safe({**value, "d": Estimate(math.nan, 0.0, 1.0, 1, 1), "e": np.int64(3), "f": None, "g": "NaN"})
    assert json.loads(json.dumps(safe, allow_nan=False)) == {
        "a": [None, None, None],
        "b": [[0, 1], [[1.0, None]]],
        "c": 1.5,
        "d": {"value": None, "low": 0.0, "high": 1.0, "questions": 1, "answers": 1, "reason": ""},
        "e": 3,
        "f": None,
        "g": "NaN",
    }


LOGITS = arrays(np.float32, (3, 5), elements=st.floats(-60, 60, width=32))


@given(LOGITS, LOGITS)
@settings(deadline=None)
def test_kl_is_that_of_the_definition(reference, logits):
    expected = rel_entr(*(np.exp(log_softmax(x.astype(np.float64), axis=-1)) for x in (reference, logits))).sum(-1)
    found = kl_divergence(torch.from_numpy(reference), torch.from_numpy(logits))
    assert found.dtype == torch.float64
    assert (found >= 0).all()
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


@given(LOGITS, st.floats(-1e4, 1e4))
@settings(deadline=None)
def test_kl_of_one_distribution_is_zero(logits, shift):
    reference = torch.from_numpy(logits)
    assert (kl_divergence(reference, reference) == 0).all()
    assert (kl_divergence(reference.double(), reference.double() + shift) < 1e-9).all()


def test_kl_is_from_full_prefill_to_the_mode_in_nats():
    full, mode = torch.tensor([[0.5, 0.5]]).log(), torch.tensor([[0.9, 0.1]]).log()
    assert float(kl_divergence(full, mode)) == pytest.approx(0.5 * math.log(0.5 / 0.9) + 0.5 * math.log(0.5 / 0.1))


def test_kl_of_logits_far_out_and_excluded_tokens():
    reference = torch.tensor([[5e4, 0.0, -math.inf], [0.0, 0.0, 0.0]])
    logits = torch.tensor([[5e4, 0.0, 3.0], [0.0, 0.0, -math.inf]])
    assert kl_divergence(reference, logits).tolist() == [0.0, math.inf]


def test_logits_that_are_nan_are_infinitely_far_and_agree_with_nothing():
    reference, logits = torch.zeros(2, 3), torch.tensor([[math.nan, 0.0, 0.0], [0.0, 0.0, 0.0]])
    assert kl_divergence(reference, logits).tolist() == [math.inf, 0.0]
    assert top1_agreement(reference, logits) == 0.5
    with pytest.raises(ValueError, match="hold NaN"):
        kl_divergence(logits, reference)


def test_top1_agreement_is_the_share_of_positions():
    reference = torch.tensor([[1.0, 0.0], [0.0, 1.0], [3.0, 0.0]])
    assert top1_agreement(reference, reference * 2) == 1.0
    assert top1_agreement(reference, reference.flip(-1)) == 0.0
    assert top1_agreement(reference, torch.tensor([[0.1, 0.0], [0.1, 0.0], [0.1, 0.0]])) == pytest.approx(2 / 3)


@pytest.mark.parametrize("shapes", [((2, 3), (2, 4)), ((3,), (3,)), ((0, 3), (0, 3))])
def test_logits_of_other_shapes_are_refused(shapes):
    with pytest.raises(ValueError, match="expected"):
        kl_divergence(torch.zeros(shapes[0]), torch.zeros(shapes[1]))


def test_relative_error_is_per_layer_and_head():
    reference = torch.ones(2, 3, 4, 5)
    given = reference.clone()
    given[1, 2] *= 1.25
    expected = torch.zeros(2, 3, dtype=torch.float64)
    expected[1, 2] = 0.25
    torch.testing.assert_close(relative_error(reference, given), expected)
    assert relative_error(reference.half(), given.half()).dtype == torch.float64


def test_relative_error_against_zeros():
    reference, given = torch.zeros(1, 2, 3, 3), torch.zeros(1, 2, 3, 3)
    given[0, 1, 0, 0] = 1e-30
    assert relative_error(reference, given).tolist() == [[0.0, math.inf]]


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_relative_error_of_what_is_not_finite_is_infinite(value):
    reference, given = torch.ones(1, 1, 2, 2), torch.ones(1, 1, 2, 2)
    given[0, 0, 0, 0] = value
    assert relative_error(reference, given).tolist() == [[math.inf]]
    with pytest.raises(ValueError, match="reference"):
        relative_error(given, reference)


def test_relative_error_of_other_shapes_is_refused():
    with pytest.raises(ValueError, match="shapes"):
        relative_error(torch.ones(1, 2, 3, 3), torch.ones(1, 2, 3, 4))
