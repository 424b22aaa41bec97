"""What a report concludes from records, which are made by hand here: means, comparisons, the verdict, the legend."""

import json
import re
from dataclasses import replace

import pytest

from linearkv.eval.report import EvalReport, gold_distances, gold_places
from linearkv.eval.statistics import Estimate, distance_bucket

SHUFFLES, FORCED = 3, ("gold first", "gold middle", "gold last")


def record(number=0, scores=(("full", 1.0), ("sequential", 1.0)), *, gold=(0,), hops=1, note="", chunks=4, **entries):
    """A question as a run leaves it.

    `scores` has a mode's score in every order, or one per order: three random ones, and gold first, in the middle and
    last. `entries` are the other values of an order, `kl` for one, in the same two ways and for every mode.
    """
    orders = [
        {"label": "shuffle", "indices": [(i + shift) % chunks for i in range(chunks)]} for shift in range(SHUFFLES)
    ]
    others = [i for i in range(chunks) if i not in gold]
    for label, at in zip(FORCED, (0, len(others) // 2, len(others)), strict=True):
        orders.append({"label": label, "indices": [*others[:at], *gold, *others[at:]]})

    def per_order(value):
        return list(value) if isinstance(value, (list, tuple)) else [value] * len(orders)

    modes = {}
    for mode, score in dict(scores).items():
        modes[mode] = {
            "answers": ["Odo Larch" if one else "Ulla Brand" for one in per_order(score)],
            "em": per_order(score),
            "f1": per_order(score),
            "unscored": "",
            **{
                name: per_order(entries.get(name, usual))
                for name, usual in {"kl": 0.1, "top1": 1.0, "computed": 20, "prompt": 400, "bytes": 1000}.items()
            },
        }
    return {
        "id": f"q{number}",
        "question": "Who keeps the bell?",
        "answers": ["Odo Larch"],
        "hops": hops,
        "kind": "file",
        "note": note,
        "chunks": [{"name": f"Bells [{i}]", "tokens": 90} for i in range(chunks)],
        "gold": list(gold),
        "orders": orders,
        "modes": modes,
    }


def failed(number, error):
    return {"id": f"q{number}", "question": "?", "answers": [], "hops": None, "kind": "file", "error": error}


def report(*records, about=None, notes=()):
    return EvalReport.of(records, {} if about is None else about, notes)


def row(report, name):
    return next(mode for mode in report.modes if mode.mode == name)


def flat(report, name):
    """A mode as the JSON has it."""
    return next(mode for mode in json.loads(report.to_json())["modes"] if mode["mode"] == name)


def legend(report):
    return report.summary().partition(f"\n{report.modes[-1].mode} " if report.modes else "\n")[2]


# Means


@pytest.mark.parametrize("name", ["kl", "top1"])
def test_a_distance_from_full_prefill_is_a_mean_over_questions_with_an_interval(name):
    made = report(record(0, **{name: 0.2}), record(1, **{name: 0.6}))
    estimate = getattr(row(made, "sequential"), name)
    assert (estimate.value, estimate.low, estimate.high) == pytest.approx((0.4, 0.2, 0.6))
    given = flat(made, "sequential")
    assert given[name] == pytest.approx(0.4) and given[f"{name}_interval"] == pytest.approx([0.2, 0.6])
    assert f"{name}_reason" not in given


@pytest.mark.parametrize("name, column", [("kl", "KL"), ("top1", "top-1")])
def test_a_mean_over_something_infinite_is_null_with_the_number_of_such_questions(name, column):
    made = report(record(0, **{name: [None, 0.1, 0.1, 0.1, 0.1, 0.1]}), *(record(i) for i in (1, 2, 3)))
    given = flat(made, "sequential")
    assert given[name] is None and given[f"{name}_interval"] is None
    assert given[f"{name}_reason"] == "1 of 4 questions have an infinite value"
    assert f"sequential has no mean {column}: 1 of 4 questions have an infinite value." in legend(made)


@pytest.mark.parametrize(
    "entry, name, expected",
    [("kl", "kl", 0.1), ("top1", "top1", 0.1), ("bytes", "bytes", 0.1), ("computed", "reuse", 1 - 0.1 / 400)],
)
def test_means_are_of_the_random_orders(entry, name, expected):
    found = getattr(row(report(record(**{entry: [0.1] * 3 + [0.9] * 3})), "sequential"), name)
    assert getattr(found, "value", found) == pytest.approx(expected)


def test_a_mode_that_was_not_timed_has_no_time_and_the_others_have():
    made = report(record() | {"ttft_s": {"full": 2.0}})
    assert row(made, "full").ttft_s == 2.0 and row(made, "sequential").ttft_s is None


def test_modes_are_compared_with_sequential_question_by_question():
    made = report(*(record(i, {"full": 1.0, "sequential": i / 4, "cyclic": i / 4 + 0.25}) for i in range(4)))
    # Scores differ widely between questions, the difference does not.
    assert row(made, "cyclic").vs_sequential == Estimate(0.25, 0.25, 0.25, 4, 12)
    assert flat(made, "cyclic")["vs_sequential"] == 0.25
    assert flat(made, "cyclic")["vs_sequential_interval"] == [0.25, 0.25]


def test_without_sequential_the_comparison_is_null_with_the_reason():
    made = report(record(0, {"full": 1.0, "cyclic": 1.0}))
    assert row(made, "cyclic").vs_sequential is None
    given = flat(made, "cyclic")
    assert given["vs_sequential"] is None and given["vs_sequential_reason"] == "sequential was not evaluated"
    assert "vs seq" not in made.summary()


@pytest.mark.parametrize("name, fits", [("cyclic", True), ("a" * 60, False)])
def test_the_table_compares_with_sequential_where_140_columns_are_enough(name, fits):
    made = report(*(record(i, {"full": 1.0, "sequential": 0.5, name: 1.0}) for i in range(3)))
    assert ("+0.500 [+0.500, +0.500]" in made.summary()) == ("vs seq: F1 minus" in made.summary()) == fits
    assert max(map(len, made.summary().splitlines()[2:6])) <= 140


# The gold chunk's position


def test_orders_that_put_gold_somewhere_say_where():
    assert gold_places(record(gold=(0, 2)))[SHUFFLES:] == ["first", "middle", "last"]
    assert gold_places(record(gold=(0,)))[SHUFFLES:] == ["first", "middle", "last"]


def test_in_random_orders_one_gold_chunk_has_a_position_and_several_have_none():
    assert gold_places(record(gold=(0,)))[:SHUFFLES] == ["first", "last", "late"]
    assert gold_places(record(gold=(0, 2)))[:SHUFFLES] == [None, None, None]


@pytest.mark.parametrize("gold, chunks", [((), 4), ((0,), 1), ((0, 1, 2), 3)])
def test_without_gold_or_anything_beside_it_there_is_no_position(gold, chunks):
    assert gold_places(record(gold=gold, chunks=chunks)) == [None] * (SHUFFLES + len(FORCED))


def test_harder_questions_do_not_look_like_a_loss_at_the_positions_that_they_fill():
    easy = [record(i, {"full": 1.0, "cyclic": 1.0}) for i in range(3)]
    hard = [record(3 + i, {"full": 0.0, "cyclic": 0.0}, gold=(0, 1)) for i in range(3)]
    found = row(report(*easy, *hard), "cyclic")
    assert found.by_position["late"].value > found.by_position["middle"].value
    assert {place: lost.value for place, lost in found.lost_by_position.items() if lost.questions} == dict.fromkeys(
        ("first", "middle", "late", "last"), 0
    )


def test_what_is_lost_at_a_position_is_in_the_json():
    lost = [1.0, 1.0, 1.0, 0.0, 1.0, 1.0]  # wrong where gold is put first
    made = report(*(record(i, {"full": 1.0, "cyclic": lost}, gold=(0, 1)) for i in range(3)))
    given = flat(made, "cyclic")["lost_by_position"]
    assert (given["first"]["value"], given["first"]["high"], given["last"]["value"]) == (-1, -1, 0)
    assert given["early"]["value"] is None and given["early"]["reason"] == "nothing is scored"


def test_what_is_lost_by_the_distance_between_two_gold_chunks():
    """Chunks 0 and 3 of six stand 3 places apart in every rotation of the order; 0 and 1 stand 1 apart, or 5."""
    near = [record(i, {"full": 1.0, "cyclic": 1.0}, gold=(0, 1), chunks=6, hops=2) for i in range(3)]
    far = [record(3 + i, {"full": 1.0, "cyclic": 0.0}, gold=(0, 3), chunks=6, hops=2) for i in range(3)]
    one = [record(6 + i, {"full": 1.0, "cyclic": 0.0}, chunks=6) for i in range(3)]
    made = report(*near, *far, *one)
    lost = row(made, "cyclic").lost_by_distance
    assert (lost["1"].value, lost["1"].questions) == (0, 3) and (lost["2-3"].value, lost["2-3"].questions) == (-1, 3)
    assert (lost["4+"].value, lost["4+"].questions) == (0, 3)
    assert flat(made, "cyclic")["lost_by_distance"]["2-3"]["value"] == -1
    assert gold_distances(one[0]) == [None] * 6 and gold_distances(near[0])[SHUFFLES:] == [None] * len(FORCED)


@pytest.mark.parametrize(("places", "bucket"), [(1, "1"), (2, "2-3"), (3, "2-3"), (4, "4+"), (19, "4+")])
def test_distances_are_bucketed(places, bucket):
    assert distance_bucket(places) == bucket


# The verdict


def verdict(hops=None, **retentions):
    """The verdict where modes have these retentions, as (value, low, high, questions), and by hops."""
    modes = dict.fromkeys(("full", *retentions), 1.0)
    made = report(record(0, modes))
    for index, mode in enumerate(made.modes):
        if mode.mode in retentions:
            of_hops = {group: Estimate(*each, each[-1]) for group, each in (hops or {}).get(mode.mode, {}).items()}
            given = retentions[mode.mode]
            made.modes[index] = replace(mode, retention=Estimate(*given, given[-1]), retention_by_hops=of_hops)
    return made.verdict


@pytest.mark.parametrize(
    "kept, expected",
    [
        ((0.985, 0.97, 0.995, 400), 2500),  # more than were asked, though the interval is narrower than +-2%
        ((0.94, 0.85, 0.99, 400), 1225),
        ((1.0, 1.0, 1.0, 20), 150),
        ((1.0, 1.0, 1.0, 1), 150),
    ],
)
def test_so_many_questions_are_said_to_tell_as_bring_the_interval_to_one_side(kept, expected):
    said = verdict(cyclic=kept)
    (number,) = re.findall(r"too few questions to say whether that is 98%; about ([\d,]+) questions would tell", said)
    assert int(number.replace(",", "")) == pytest.approx(expected, abs=1)


@pytest.mark.parametrize(
    "kept",
    [
        (0.9801, 0.95, 1.01, 100),  # 90,000 times as many
        (0.98, 0.95, 1.01, 100),
        (0.985, 0.979, 0.988, 100),  # fewer than were asked
    ],
)
def test_what_no_reasonable_number_of_questions_tells_is_too_close(kept):
    assert verdict(cyclic=kept).endswith(" on these questions: too close to 98% to tell")


def test_without_an_interval_no_number_is_named():
    assert verdict(cyclic=(1.0, None, None, 2)).endswith(": too few questions to say whether that is 98%")


def test_a_best_mode_that_is_decided_is_not_said_to_need_questions():
    said = verdict(sequential=(0.95, 0.94, 0.96, 400), cyclic=(0.9, 0.8, 1.0, 400))
    assert said.startswith("sequential keeps 95.0%")
    assert said.endswith(": no composed mode is sure to keep 98% (1 undecided); prefer full prefill where that matters")
    said = verdict(sequential=(0.95, 0.94, 0.96, 400), cyclic=(0.9, 0.8, 0.95, 400))
    assert said.endswith(": no composed mode keeps 98%; prefer full prefill where that matters")


GOOD = (0.99, 0.985, 0.995, 400)
LOSES = {"1": (1.0, 0.99, 1.01, 200), "2": (0.9, 0.86, 0.94, 200)}


def test_a_verdict_names_the_hops_on_which_the_mode_loses():
    said = verdict({"cyclic": LOSES}, cyclic=GOOD)
    assert said.endswith("on these questions, but 90.0% [86.0, 94.0] on 2-hop questions")


@pytest.mark.parametrize("there, advised", [((0.97, 0.94, 1.0, 200), True), ((0.93, 0.9, 0.96, 200), False)])
def test_it_names_a_pivot_for_them_that_may_keep_enough(there, advised):
    hops = {"cyclic": LOSES, "cyclic_pivot1": LOSES | {"2": there}}
    said = verdict(hops, cyclic=GOOD, cyclic_pivot1=(0.97, 0.95, 0.99, 400))
    assert said.startswith("cyclic keeps")
    assert said.endswith("on 2-hop questions" + " (use cyclic_pivot1 there)" * advised)


def test_hops_that_all_questions_have_are_no_group():
    assert "hop" not in verdict({"cyclic": {"2": LOSES["2"]}}, cyclic=LOSES["2"])


def test_retention_by_hops_is_in_the_json_with_its_interval():
    made = report(*(record(i, {"full": 1.0, "cyclic": float(i < 3)}, hops=1 + i // 2) for i in range(4)))
    given = flat(made, "cyclic")["retention_by_hops"]
    assert {hops: (each["value"], each["low"], each["high"]) for hops, each in given.items()} == {
        "1": (1, 1, 1),
        "2": (0.5, 0, 1),
    }


# The legend


def test_questions_left_out_are_counted_by_reason():
    left = [failed(i, f"question q{i}: there are no chunks to answer it from") for i in range(10, 13)]
    left += [failed(20, "too long"), failed(21, "too long"), *(failed(30 + i, f"error {i}") for i in range(3))]
    made = report(record(0), record(1), *left)
    said = (
        "2 questions asked, 8 left out: there are no chunks to answer it from (3); too long (2); error 0 (1); "
        "and 2 others.\n"
    )
    assert said in legend(made) and "was left out" not in legend(made)
    assert any("question q10 was left out: there are no chunks" in note for note in made.notes)
    given = json.loads(made.to_json())
    assert (given["questions"], given["left_out"]) == (2, 8)


def test_the_questions_of_the_json_are_those_that_were_scored():
    unscored = record(1)
    for entry in unscored["modes"].values():
        entry |= {"em": [None] * 6, "f1": [None] * 6, "unscored": "no gold answer"}
    made = report(record(0), unscored)
    assert json.loads(made.to_json())["questions"] == 1
    assert "2 questions asked, none left out.\n" in legend(made) and "\n1 questions scored;" in legend(made)


def test_the_legend_says_k_the_chunks_used_and_the_rule():
    records = [record(0, chunks=4), record(1, chunks=3)]
    about = {"options": {"k": 4, "rule": "squad"}}
    assert "\nk 4 asked for, 3.5 chunks used on average; 3 random orders each; scoring rule squad.\n" in legend(
        report(*records, about=about)
    )
    assert "\n3.5 chunks used on average; 3 random orders each; scoring rule linearkv.\n" in legend(report(*records))


def test_notes_of_cases_are_counted():
    notes = ["retrieval had missed 1 of 1 gold chunks"] * 2 + ["3 of its chunks are other questions' passages", ""]
    said = "3 cases have a note: retrieval had missed 1 of 1 gold chunks (2); 3 of its chunks are"
    assert said in legend(report(*(record(i, note=note) for i, note in enumerate(notes))))


def test_notes_that_are_cut_are_counted():
    made = report(record(), notes=[f"line {i}: skipped" for i in range(11)])
    assert legend(made).endswith("\nnote: line 7: skipped\n\u2026 and 3 more notes")


@pytest.mark.parametrize("right, warned", [(6, False), (7, True)])
def test_questions_that_need_no_documents_are_warned_of(right, warned):
    modes = [{"full": 1.0, "cyclic": 1.0, "prefix_only": float(i < right)} for i in range(24)]
    made = report(*(record(i, each) for i, each in enumerate(modes)))
    assert ("\nnote: prefix_only scores 29% of full prefill's F1: questions can be" in legend(made)) == warned


def test_a_reports_notes_given_to_it_again_are_the_same():
    made = report(record(0, {"full": 1.0, "prefix_only": 1.0}), failed(1, "too long"), notes=["line 3: skipped"])
    assert len(made.notes) == 3
    assert EvalReport.of(made.records, made.about, made.notes).notes == made.notes
