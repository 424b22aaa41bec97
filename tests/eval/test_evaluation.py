"""The evaluation says what is true: sanity checks that a hostile reader would ask for."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from linearkv import Engine, LinearKVError, Settings
from linearkv.eval.cases import CaseMaker
from linearkv.eval.evaluation import evaluate
from linearkv.eval.modes import MODES, Prepared, mode
from linearkv.eval.questions import EvalQuestion, Passage
from linearkv.eval.reference.generator import HeldOut
from linearkv.eval.runner import EvalOptions

OPTIONS = EvalOptions(modes=("full", "sequential", "bidirectional", "prefix_cache"), k=4, shuffles=3, timed=1)


def questions(count, chunks=4):
    """Questions in names and wordings of training, which the reference model nearly always gets right."""
    made = HeldOut(5, held_out_names=False, held_out_wording=False).questions(count, chunks=chunks, chunk_tokens=60)
    return [
        EvalQuestion(
            id=f"q{number}",
            question=question.question,
            answers=question.answers,
            passages=tuple(Passage(heading or "", text) for heading, text in question.chunks),
            gold=question.gold,
            hops=question.hops,
        )
        for number, question in enumerate(made)
    ]


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    with Engine.open(tmp_path_factory.mktemp("evaluation") / "store", settings=Settings(chunk_tokens=128)) as opened:
        yield opened


@pytest.fixture(scope="module")
def report(engine):
    return evaluate(engine, questions(8), OPTIONS)


def row(report, name):
    return next(found for found in report.modes if found.mode == name)


def comparable(records):
    """Records without what no two runs share."""
    return [{key: value for key, value in record.items() if key != "ttft_s"} for record in records]


def test_full_prefill_retains_all_of_itself_and_is_no_more_sensitive_than_itself(report):
    full = row(report, "full")
    assert (full.retention.value, full.retention.low, full.retention.high) == (1, 1, 1)
    assert {name: (e.value, e.low, e.high) for name, e in full.excess.items()} == dict.fromkeys(full.excess, (0, 0, 0))
    assert (full.kl.value, full.top1.value, full.reuse) == (0, 1, 0)


def test_the_model_answers_so_that_scores_can_tell_modes_apart(report):
    assert row(report, "full").em.value > 0.7
    assert row(report, "sequential").retention.value > 0.7


def test_composition_reuses_and_a_prefix_cache_hardly_does(report):
    assert row(report, "bidirectional").reuse > 0.85 > 0.2 > row(report, "prefix_cache").reuse > 0
    assert row(report, "prefix_cache").f1 == row(report, "full").f1
    assert row(report, "bidirectional").bytes > 0 == row(report, "full").bytes


def test_composition_is_near_full_prefill_in_every_layer_and_not_equal(report):
    errors = torch.tensor(row(report, "sequential").state_error)
    assert errors.shape == (6, 8) and 0 < errors.max() < 1
    assert torch.tensor(row(report, "full").state_error).max() == 0


def test_times_are_of_the_questions_asked_for(report):
    assert [record["id"] for record in report.records if "ttft_s" in record] == ["q0"]
    assert row(report, "sequential").speedup > 1


def test_the_same_run_gives_the_same_report_to_the_bit(engine, report):
    again = evaluate(engine, questions(8), OPTIONS)
    assert comparable(again.records) == comparable(report.records)


def test_results_do_not_depend_on_how_much_is_computed_at_once(engine, report, monkeypatch):
    monkeypatch.setattr("linearkv.models.adapter.BATCH_TOKENS", 1)
    alone = evaluate(engine, questions(8)[:3], OPTIONS)
    for one, other in zip(alone.records, report.records, strict=False):
        for name, entry in one["modes"].items():
            assert entry["answers"] == other["modes"][name]["answers"]
            assert entry["kl"] == pytest.approx(other["modes"][name]["kl"], abs=1e-4)


def test_a_mode_that_returns_noise_scores_the_floor(engine):
    @mode("noise", "random states, keys and values")
    def noise(task):
        for order in task.orders:
            context = task.composed(order, "sequential")
            generator = torch.Generator().manual_seed(0)
            parts = {
                name: torch.randn(getattr(context, name).shape, generator=generator)
                for name in ("recurrent", "key", "value")
            }
            yield Prepared(replace(context, **parts), computed=0)

    try:
        made = evaluate(engine, questions(8), replace(OPTIONS, modes=("noise", "sequential")))
    finally:
        del MODES["noise"]
    assert row(made, "noise").em.value == 0
    assert row(made, "noise").kl.value > 10 * row(made, "sequential").kl.value


def test_permuted_labels_break_accuracy(engine):
    asked = questions(8)
    wrong = [replace(one, answers=other.answers) for one, other in zip(asked, asked[1:] + asked[:1], strict=True)]
    made = evaluate(engine, wrong, replace(OPTIONS, modes=("full",), shuffles=1))
    assert row(made, "full").em.value == 0


def test_one_chunk_has_one_order_and_nothing_to_shuffle(engine):
    made = evaluate(engine, questions(3, chunks=1), replace(OPTIONS, k=1, shuffles=5))
    assert all(len(record["orders"]) == 1 for record in made.records)
    composed = row(made, "sequential")
    assert composed.retention.value == 1 and composed.kl.value < 1e-4
    assert composed.order["spread"].value is None and composed.order["spread"].reason


def test_a_run_that_was_killed_goes_on_and_equals_an_uninterrupted_one(engine, report, tmp_path):
    file = tmp_path / "run.jsonl"

    def killed(done, total):
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        evaluate(engine, questions(8), OPTIONS, file=file, progress=killed)
    with file.open("a") as half:
        half.write('{"id": "q3", "half of a li')
    before = file.read_bytes().splitlines()[1]
    resumed = evaluate(engine, questions(8), OPTIONS, file=file)
    assert file.read_bytes().splitlines()[1] == before  # nothing is done twice
    assert comparable(resumed.records) == comparable(report.records)
    assert comparable(evaluate(engine, questions(8), OPTIONS, file=file).records) == comparable(report.records)


def test_parts_in_files_of_their_own_together_equal_one_run(engine, report, tmp_path):
    file = tmp_path / "run.jsonl"
    for part in (1, 2):  # the third of three is missing, and done by the run that puts them together
        made = evaluate(engine, questions(8), replace(OPTIONS, timed=0), file=file, part=(part, 3))
        assert [record["id"] for record in made.records] == [f"q{i}" for i in range(part - 1, 8, 3)]
    before = file.with_name("run.jsonl.1of3").read_bytes()
    together = evaluate(engine, questions(8), replace(OPTIONS, timed=0), file=file)
    assert comparable(together.records) == comparable(report.records)
    assert file.with_name("run.jsonl.1of3").read_bytes() == before
    assert len(file.read_bytes().splitlines()) == 1 + 2  # its head and q2, q5
    with pytest.raises(LinearKVError, match=r"2of3 belongs to another run|run.jsonl belongs to another run"):
        evaluate(engine, questions(8), replace(OPTIONS, timed=0, k=3), file=file)


def test_orders_with_gold_in_a_certain_place_can_be_left_out(engine):
    asked = questions(2)
    alone, more = (CaseMaker(engine, asked, k=5, shuffles=3, seed=0, gold_places=on) for on in (False, True))
    assert alone.case(asked[0]).orders == more.case(asked[0]).orders[:3]
    assert [order.label for order in more.case(asked[0]).orders[3:]] == ["gold first", "gold middle", "gold last"]


@pytest.mark.parametrize("change", [{"k": 3}, {"shuffles": 2}, {"seed": 1}, {"modes": ("full",)}])
def test_a_file_of_another_run_is_refused(change, engine, tmp_path):
    file = tmp_path / "run.jsonl"
    evaluate(engine, questions(1), OPTIONS, file=file)
    with pytest.raises(LinearKVError, match=r"belongs to another run \(options differ\)"):
        evaluate(engine, questions(1), replace(OPTIONS, **change), file=file)


def test_questions_without_a_gold_answer_are_counted_apart(engine):
    asked = questions(3)
    made = evaluate(engine, [*asked[:2], replace(asked[2], answers=())], replace(OPTIONS, modes=("full",)))
    full = row(made, "full")
    orders = len(made.records[2]["orders"])
    assert full.unscored["no gold answer"] == orders and full.em.questions == 2
    assert "NaN" not in made.to_json()


def test_a_question_that_cannot_be_asked_is_named_and_the_rest_goes_on(engine):
    made = evaluate(engine, [EvalQuestion("lost", "Who?", ("x",), gold_refs=("nowhere.md",)), *questions(1)], OPTIONS)
    assert row(made, "full").em.questions == 1
    assert any("'nowhere.md'" in note for note in made.notes)


def test_the_json_holds_what_is_needed_to_redo_it(report):
    given = json.loads(report.to_json())
    assert [entry["mode"] for entry in given["modes"]] == list(OPTIONS.modes)
    assert {"em", "f1", "retention", "reuse", "em_interval", "kl"} <= set(given["modes"][1])
    assert given["options"]["seed"] == 0 and given["machine"]["torch"] == torch.__version__
    record = given["records"][0]
    assert sorted(record["orders"][0]["indices"]) == [0, 1, 2, 3]
    assert len(record["modes"]["sequential"]["answers"]) == len(record["orders"]) == 6  # 3 random, gold in 3 places


def test_the_summary_begins_with_a_verdict_and_has_a_line_a_mode(report):
    text = report.summary()
    assert text.startswith(f"{report.verdict}.\n")
    assert "of full prefill's F1" in report.verdict
    for name in OPTIONS.modes:
        assert f"\n{name} " in text


def test_a_verdict_without_a_score_says_so(engine):
    asked = [replace(question, answers=("never said",)) for question in questions(2)]
    assert "cannot tell modes apart" in evaluate(engine, asked, replace(OPTIONS, shuffles=1)).verdict


def test_a_file_that_is_no_runs_file_is_left_as_it_is(engine, tmp_path):
    file = tmp_path / "squad.json"
    for content in (b'{"data": [{"title": "no newline at the end"}]}', b"plain text\n"):
        file.write_bytes(content)
        with pytest.raises(LinearKVError, match=r"squad.json is not the file of a run, and is left as it is"):
            evaluate(engine, questions(1), OPTIONS, file=file)
        assert file.read_bytes() == content


def test_a_damaged_line_is_named(engine, tmp_path):
    file = tmp_path / "run.jsonl"
    evaluate(engine, questions(1), replace(OPTIONS, modes=("full",), shuffles=1), file=file)
    with file.open("a") as more:
        more.write("not JSON\n")
    with pytest.raises(LinearKVError, match=r"line 3 of .*run.jsonl is damaged"):
        evaluate(engine, questions(1), replace(OPTIONS, modes=("full",), shuffles=1), file=file)


def test_two_processes_do_not_write_one_file(engine, tmp_path):
    file = tmp_path / "run.jsonl"
    said = []

    def meanwhile(done, total):
        if not said:
            with pytest.raises(LinearKVError, match=r"another process is at work on .*run.jsonl") as error:
                evaluate(engine, questions(2), replace(OPTIONS, modes=("full",), shuffles=1), file=file)
            said.append(error)

    evaluate(engine, questions(2), replace(OPTIONS, modes=("full",), shuffles=1), file=file, progress=meanwhile)
    assert said


def test_two_questions_of_one_id_are_refused(engine):
    with pytest.raises(LinearKVError, match="'q0' for one: make them unique"):
        evaluate(engine, [*questions(2), *questions(1)], OPTIONS)


def test_what_failed_is_asked_again_and_other_documents_are_another_run(tmp_path):
    file, docs = tmp_path / "run.jsonl", tmp_path / "docs"
    docs.mkdir()
    (docs / "a.md").write_text("# The bell\n\nThe bell was cast by Odo Larch in 1911.\n")
    options = replace(OPTIONS, modes=("full",), k=1, shuffles=1, timed=0)
    asked = [
        EvalQuestion("a", "Who cast the bell?", ("Odo Larch",), gold_refs=("a.md",)),
        EvalQuestion("b", " ? " * 9000, ("x",), gold_refs=("a.md",)),
    ]
    with Engine.open(tmp_path / "store") as engine:
        engine.index(docs)
        made = evaluate(engine, asked, options, file=file)
        assert "do not fit the model's 8192 positions" in made.records[1]["error"] and "modes" in made.records[0]
        lines = len(file.read_bytes().splitlines())
        evaluate(engine, asked, options, file=file)
        assert len(file.read_bytes().splitlines()) == lines + 1  # the one that failed, once more
        (docs / "c.md").write_text("# The mill\n\nThe mill grinds rye.\n")
        engine.index(docs)
        with pytest.raises(LinearKVError, match=r"belongs to another run \(documents differ\)"):
            evaluate(engine, asked, options, file=file)


def test_a_larger_limit_goes_on_with_the_same_file_and_the_same_questions(engine, tmp_path):
    file, asked = tmp_path / "run.jsonl", questions(8)
    options = replace(OPTIONS, modes=("full",), shuffles=1, timed=0)
    few = evaluate(engine, asked, options, limit=2, file=file)
    before = file.read_bytes()
    more = evaluate(engine, asked, options, limit=4, file=file)
    assert file.read_bytes().startswith(before) and len(more.records) == 4
    assert {record["id"] for record in few.records} < {record["id"] for record in more.records}
    assert [record["id"] for record in more.records] != ["q0", "q1", "q2", "q3"]  # drawn, not the head of the file


def test_fewer_questions_are_asked_among_as_many_distractors(engine):
    asked = questions(8, chunks=1)
    made = evaluate(engine, asked, replace(OPTIONS, modes=("full",), k=6, shuffles=1), limit=1)
    assert len(made.records[0]["chunks"]) == 6


def test_a_part_that_is_none_is_refused(engine, tmp_path):
    with pytest.raises(ValueError, match=r"part is \(0, 4\)"):
        evaluate(engine, questions(1), OPTIONS, file=tmp_path / "run.jsonl", part=(0, 4))


def test_keys_are_compared_only_where_tokens_stand_in_the_same_places(engine):
    made = evaluate(
        engine,
        questions(2),
        replace(OPTIONS, modes=("sequential", "sequential_pivot1", "full_canonical", "prefix_cache")),
    )
    assert row(made, "sequential").key_error is not None
    assert row(made, "sequential_pivot1").key_error is row(made, "full_canonical").key_error is None
    assert row(made, "prefix_cache").value_error == row(made, "full").value_error


def test_a_pivot_equals_full_prefill_where_nothing_else_was_composed(engine):
    """With one chunk the pivot is all there is; the control modes move the best chunk and do nothing else."""
    made = evaluate(
        engine, questions(2), replace(OPTIONS, modes=("full_best_last", "sequential_best_last", "sequential"), k=4)
    )
    for record in made.records:
        last = [order["indices"][-1] for order in record["orders"]]
        for number, index in enumerate(last):
            if index == 0:  # the best chunk is last already
                for moved, plain in (("full_best_last", "full"), ("sequential_best_last", "sequential")):
                    assert record["modes"][moved]["answers"][number] == record["modes"][plain]["answers"][number]


# Cases


def maker_of(engine, asked, k=4, shuffles=2, seed=0):
    return CaseMaker(engine, asked, k=k, shuffles=shuffles, seed=seed)


def test_a_case_depends_on_its_question_and_the_seed_alone(engine):
    asked = questions(5)
    case = maker_of(engine, asked).case(asked[2])
    assert maker_of(engine, asked).case(asked[2]) == case
    assert maker_of(engine, asked, seed=1).case(asked[2]).orders != case.orders


def test_gold_is_kept_among_fewer_chunks_and_put_first_middle_and_last(engine):
    asked = questions(4, chunks=6)
    for question in asked:
        case = maker_of(engine, asked, k=3).case(question)
        assert len(case.chunks) == 3 and len(case.gold) == 1
        places = {order.label: order.indices.index(case.gold[0]) for order in case.orders if order.label != "shuffle"}
        assert places == {"gold first": 0, "gold middle": 1, "gold last": 2}
        assert all(sorted(order.indices) == [0, 1, 2] for order in case.orders)


def test_too_few_passages_are_filled_up_with_other_questions_and_it_is_said(engine):
    asked = questions(4, chunks=2)
    case = maker_of(engine, asked, k=5).case(asked[0])
    assert len(case.chunks) == 5 and case.note == "3 of its chunks are other questions' passages"
    texts = [chunk.rendered for chunk in case.chunks]
    assert len(set(texts)) == 5
    strangers = [text for text, chunk in zip(texts, case.chunks, strict=True) if " of q" in chunk.name]
    assert not any(asked[0].answers[0].lower() in text.lower() for text in strangers)


def test_borrowed_passages_are_the_similar_ones(engine):
    texts = [
        "The ferry to Ostrey leaves at noon.",
        "Bake the bread for an hour.",
        "The ferry to Pellan leaves at nine.",
    ]
    asked = [
        EvalQuestion(f"q{n}", "When does the ferry to Brenhollow leave?", ("six",), (Passage("", text),), gold=(0,))
        for n, text in enumerate(["The ferry to Brenhollow leaves at six.", *texts])
    ]
    case = maker_of(engine, asked, k=3).case(asked[0])
    assert {chunk.rendered.strip() for chunk in case.chunks[1:]} == {texts[0], texts[2]}


def test_fewer_chunks_than_asked_for_are_said(engine):
    case = maker_of(engine, questions(2, chunks=1), k=5).case(questions(1, chunks=1)[0])
    assert case.note.endswith("there are 2 chunks, not 5")


def test_long_passages_are_cut_and_the_part_with_the_answer_is_gold(engine):
    filler = " ".join(f"The {word} pump was painted grey in the yard." for word in ("old", "new", "small", "far") * 12)
    passage = Passage("Pumps", f"{filler} The harbour clock was made by Ulla Brand. {filler}")
    question = EvalQuestion("long", "Who made the harbour clock?", ("Ulla Brand",), (passage,), gold=(0,))
    case = maker_of(engine, [question], k=20).case(question)
    assert len(case.chunks) > 3
    assert all("Ulla Brand" in case.chunks[index].rendered for index in case.gold) and case.gold


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    folder = tmp_path_factory.mktemp("filled")
    for name, text in {
        "bell.md": "# The bell\n\nThe bell was recast in 1911.\n\n# Its keeper\n\nOdo Larch keeps the bell.\n",
        "ferry.md": "# The ferry\n\nThe ferry leaves at noon from the old pier.\n",
        "mill.md": "# The mill\n\nThe mill grinds barley on Tuesdays and rye on Fridays.\n",
    }.items():
        (folder / name).write_text(text)
    with Engine.open(folder / "store", settings=Settings(chunk_tokens=32)) as opened:
        opened.index([folder / name for name in ("bell.md", "ferry.md", "mill.md")])
        yield opened


@pytest.mark.parametrize("reference", ["bell.md", "bell.md#Its keeper"])
def test_a_gold_document_of_the_store_is_among_the_chunks(reference, filled):
    question = EvalQuestion("k", "Who keeps the bell?", ("Odo Larch",), gold_refs=(reference,))
    case = maker_of(filled, [question], k=2).case(question)
    assert len(case.chunks) == 2
    assert ["Odo Larch" in case.chunks[index].rendered for index in case.gold] == [True]


def test_gold_that_retrieval_missed_is_put_in_and_it_is_said(filled):
    question = EvalQuestion("k", "When does the ferry leave?", ("barley",), gold_refs=("mill.md",))
    case = maker_of(filled, [question], k=1).case(question)
    assert [chunk.name.partition("#")[0] for chunk in case.chunks] == ["mill.md"]
    assert case.note == "retrieval had missed 1 of 1 gold chunks"


def test_gold_that_was_missed_takes_the_place_of_what_ranks_last(filled):
    question = EvalQuestion("k", "When does the ferry leave the old pier?", (), gold_refs=("mill.md", "bell.md"))
    found = [hit.chunk_id for hit in filled.search(question.question, 4)]
    case = maker_of(filled, [question], k=3).case(question)
    assert case.chunks[0].name == found[0]  # the best match stays the best, gold or not
    assert {case.chunks[index].name.partition("#")[0] for index in case.gold} == {"mill.md", "bell.md"}


def test_questions_are_made_from_the_corpus_where_no_file_is_given(filled):
    made = evaluate(filled, None, replace(OPTIONS, k=2, shuffles=1), limit=2)
    assert {record["kind"] for record in made.records} <= {"cloze", "quote"} and len(made.records) == 2
    assert all(len(record["gold"]) == 1 for record in made.records)
    assert "made from the corpus" in made.notes[0]


def test_a_store_without_documents_gives_no_questions(engine):
    with pytest.raises(LinearKVError, match="nothing is indexed to make questions from"):
        evaluate(engine, None, OPTIONS)


# Calibration


def test_a_calibrated_store_answers_in_the_order_that_was_chosen(filled):
    asked = questions(4)
    assert filled.query("Who keeps the bell?", k=2).mode == "bidirectional"
    filled.calibrate(asked, k=3, shuffles=1, timed=0, modes=("cyclic_pivot1",))
    assert filled.query("Who keeps the bell?", k=2).mode == "cyclic_pivot1"
    assert filled.query("Who keeps the bell?", k=2, order="sequential").mode == "sequential"
    assert filled.query("Who keeps the bell?", k=2, pivot=0).mode == "cyclic"
    with Engine.open(filled.store, settings=Settings(chunk_tokens=32)) as again:
        assert again.query("Who keeps the bell?", k=2).mode == "cyclic_pivot1"
    with Engine.open(filled.store, settings=Settings(chunk_tokens=32, system_prompt="Be brief.")) as other:
        assert other.query("Who keeps the bell?", k=2).mode == "bidirectional"  # it was chosen for another prompt


def test_a_calibration_that_cannot_tell_changes_nothing(filled):
    before = filled.query("Who keeps the bell?", k=2).mode
    with pytest.raises(LinearKVError, match="nothing was calibrated: full prefill answers nothing right"):
        filled.calibrate([replace(question, answers=("never said",)) for question in questions(2)], k=3, shuffles=1)
    assert filled.query("Who keeps the bell?", k=2).mode == before


# The command


def command(*arguments, cwd):
    done = subprocess.run(
        [sys.executable, "-m", "linearkv.cli", "eval", *map(str, arguments)], capture_output=True, text=True, cwd=cwd
    )
    return done.returncode, done.stdout, done.stderr


def test_the_command_prints_json_and_leaves_no_store_behind(tmp_path):
    file = tmp_path / "qa.jsonl"
    lines = [
        {"question": q.question, "answers": q.answers, "contexts": [p.text for p in q.passages], "gold": list(q.gold)}
        for q in questions(2)
    ]
    file.write_text("\n".join(map(json.dumps, lines)) + "\n")
    status, out, err = command(
        file, "--k", 3, "--shuffles", 2, "--modes", "full,sequential", "--out", "r.json", "--json", cwd=tmp_path
    )
    assert status == 0, err
    given = json.loads(out)
    assert [entry["mode"] for entry in given["modes"]] == ["full", "sequential"] and given["questions"] == 2
    assert json.loads((tmp_path / "r.json").read_text()) == given
    assert sorted(path.name for path in tmp_path.iterdir()) == ["qa.jsonl", "r.json"]


@pytest.mark.parametrize("store", [[], ["--store", "nosuch"]])
def test_the_command_needs_a_store_for_questions_without_passages(store, tmp_path):
    (tmp_path / "qa.jsonl").write_text('{"question": "Who?", "answers": ["x"], "gold": ["a.md"]}\n')
    status, _, err = command("qa.jsonl", *store, cwd=tmp_path)
    assert status == 1 and "no store at" in err
    assert [path.name for path in tmp_path.iterdir()] == ["qa.jsonl"]


def test_the_command_names_an_unknown_mode(tmp_path):
    (tmp_path / "qa.jsonl").write_text('{"question": "Who?", "answers": ["x"], "contexts": ["x is it"]}\n')
    status, _, err = command("qa.jsonl", "--modes", "full,nonsense", cwd=tmp_path)
    assert status == 1 and "unknown modes nonsense" in err and "Traceback" not in err
