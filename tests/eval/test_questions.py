"""Question files are read as they are published, whatever is wrong with a record is said, and made questions are fair.

The files are small, and laid out as their publishers lay them out.
"""

import hashlib
import json
import os
import re
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from linearkv.errors import LinearKVError
from linearkv.eval.questions import FORMATS, EvalQuestion, Passage, QuestionFile, corpus_questions, read_questions

HANDBOOK = Path(__file__).resolve().parents[2] / "examples" / "handbook" / "qa.jsonl"


@pytest.fixture
def read(tmp_path):
    """Writes a file and reads it: bytes as they are, a list of records as JSON lines, anything else as one document."""

    def write_and_read(content: Any, name: str = "questions.json", **options: Any) -> QuestionFile:
        path = tmp_path / name
        if isinstance(content, bytes):
            path.write_bytes(content)
        elif isinstance(content, list):
            path.write_text("".join(json.dumps(record) + "\n" for record in content), encoding="utf-8")
        else:
            path.write_text(json.dumps(content, indent=2), encoding="utf-8")
        return read_questions(path, **options)

    return write_and_read


def only(file: QuestionFile) -> EvalQuestion:
    (question,) = file.questions
    return question


def note(file: QuestionFile, part: str) -> str:
    """The one note that says `part`."""
    (found,) = [line for line in file.notes if part in line]
    return found


# ---- Our own format -------------------------------------------------------------------------------------------------


def test_the_demo_questions_are_read() -> None:
    file = read_questions(HANDBOOK)
    records = [json.loads(line) for line in HANDBOOK.read_text(encoding="utf-8").splitlines()]
    assert file.format == "LinearKV"
    assert file.notes == []
    assert [question.id for question in file.questions] == [record["id"] for record in records]
    first = file.questions[0]
    assert first == EvalQuestion(
        id="q001",
        question="In what year was the Tarrowick Ferry Company founded?",
        answers=("1934",),
        passages=(),
        gold=(),
        gold_refs=("about/company.md#How we began",),
        hops=1,
        kind="file",
    )
    assert max(len(question.gold_refs) for question in file.questions) == 2


def test_contexts_come_as_texts_or_with_titles(read) -> None:
    record = {"question": "Who?", "answer": "Ann", "contexts": ["Bob.", {"title": "A", "text": "Ann."}], "gold": [1]}
    question = only(read([record]))
    assert question.passages == (Passage("", "Bob."), Passage("A", "Ann."))
    assert question.gold == (1,)
    assert question.gold_refs == ()


def test_null_fields_are_as_good_as_absent(read) -> None:
    """As tables are exported that have every column in every row."""
    record = {"question": "Who?", "answers": None, "answer": "Ann", "contexts": None, "context": "Ann.", "gold": None}
    assert only(read([record | {"id": None, "hops": None}])) == EvalQuestion(
        "line-1", "Who?", ("Ann",), (Passage("", "Ann."),)
    )


def test_gold_without_contexts_names_documents(read) -> None:
    question = only(read([{"question": "Who?", "answers": ["Ann"], "gold": ["a.md", "b.md#Part"]}]))
    assert question.gold_refs == ("a.md", "b.md#Part")
    assert question.gold == ()


def test_gold_is_counted_among_the_contexts_that_have_text(read) -> None:
    file = read([{"question": "Who?", "answer": "Ann", "contexts": ["", "Bob.", "Ann."], "gold": 2}])
    question = only(file)
    assert question.passages[question.gold[0]].text == "Ann."
    assert note(file, "contexts without text are left out").startswith("line 1")


def test_answers_are_distinct_and_in_their_order(read) -> None:
    assert only(read([{"question": "?", "answers": ["b ", "a", "", "b", 7]}])).answers == ("b", "a", "7")


def test_an_array_is_read_like_lines(read, tmp_path) -> None:
    records = [{"id": 7.0, "question": "One?", "answer": "1"}, {"question": "Two?", "answer": "2"}]
    path = tmp_path / "array"
    path.write_text(json.dumps(records, indent=1), encoding="utf-8")
    assert [question.id for question in read_questions(path).questions] == ["7", "record-2"]
    assert [question.id for question in read(records).questions] == ["7", "line-2"]


def test_a_question_without_answer_is_kept_and_told(read) -> None:
    file = read([{"question": "One?", "answer": "1"}, {"question": "Two?"}, {"question": "Three?", "answers": [""]}])
    assert [question.answers for question in file.questions] == [("1",), (), ()]
    assert note(file, "no gold answer") == "2 records, the first is line 2: no gold answer: it cannot be scored"


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"question": None}, "no 'question'"),
        ({"question": "  "}, "'question' is empty"),
        ({"question": ["Who?"]}, "not a text"),
        ({"answer": {"a": 1}, "answers": [True]}, "answer True is neither"),
        ({"contexts": ["Ann."], "gold": [1]}, "gold index 1 is out of range: it has the contexts 0 to 0"),
        ({"contexts": ["Ann."], "gold": [-1]}, "gold index -1 is out of range"),
        ({"contexts": ["Ann."], "gold": ["a.md"]}, "gold 'a.md' is not an index"),
        ({"contexts": [3]}, "context 0 is 3"),
        ({"contexts": {"a": "b"}}, "not a list"),
        ({"contexts": [""]}, "none of its contexts has text"),
        ({"gold": [3]}, "gold 3 is not a document"),
        ({"gold": ["a.md"], "gold_heading": ["A", "B"]}, "one heading for each"),
        ({"hops": 0}, "'hops' is 0"),
        ({"hops": 1.5}, "'hops' is 1.5"),
        ({"hops": "two"}, "'hops' is 'two'"),
        ({"id": ["x"]}, "id is ['x']"),
    ],
)
def test_a_broken_record_is_told_and_the_rest_is_read(read, fields, reason) -> None:
    good = {"question": "Who?", "answer": "Ann"}
    file = read([good, good | fields, good])
    assert len(file.questions) == 2
    assert note(file, reason).startswith("line 2: skipped, ")


# ---- SQuAD ----------------------------------------------------------------------------------------------------------

PARAGRAPH = {
    "context": "Marra lies in the bay. Its harbour was built in 1921.",
    "qas": [
        {
            "question": "When was the harbour of Marra built?",
            "id": "56be4db0acb8001400a502ec",
            "answers": [
                {"text": "1921", "answer_start": 48},
                {"text": "in 1921", "answer_start": 45},
                {"text": "1921", "answer_start": 48},
            ],
        },
        {
            "question": "Who built the lighthouse of Marra?",
            "id": "5ad39d53604f3c001a3fe8d1",
            "answers": [],
            "plausible_answers": [{"text": "Marra", "answer_start": 0}],
            "is_impossible": True,
        },
    ],
}
SQUAD = {"version": "v2.0", "data": [{"title": "Marra", "paragraphs": [PARAGRAPH]}]}


def test_squad_questions_bring_their_paragraph(read) -> None:
    file = read(SQUAD)
    assert file.format == "SQuAD"
    question = file.questions[0]
    assert question.id == "56be4db0acb8001400a502ec"
    assert question.answers == ("1921", "in 1921")
    assert question.passages == (Passage("Marra", PARAGRAPH["context"]),)
    assert question.gold == (0,)


def test_an_unanswerable_squad_question_has_no_gold(read) -> None:
    file = read(SQUAD)
    assert file.questions[1].answers == file.questions[1].gold == ()
    assert note(file, "unanswerable").startswith("article 1, paragraph 1, question 2: ")


def test_squad_on_one_line_is_not_taken_for_json_lines(read) -> None:
    assert read(json.dumps(SQUAD).encode()).questions == read(SQUAD).questions


def test_squad_in_the_flat_layout(read) -> None:
    flat = {"id": "a", "title": "Marra", "context": PARAGRAPH["context"], "question": "When?"}
    file = read([flat | {"answers": {"text": ["1921"], "answer_start": [48]}}])
    assert file.format == "SQuAD"
    assert only(file) == EvalQuestion("a", "When?", ("1921",), (Passage("Marra", PARAGRAPH["context"]),), (0,))


def test_broken_parts_of_squad_are_told_with_their_place(read) -> None:
    paragraphs = [{"context": "x"}, {"qas": PARAGRAPH["qas"][:1]}, "x", PARAGRAPH]
    file = read({"data": [{"title": "Marra", "paragraphs": paragraphs}, 3]})
    assert len(file.questions) == 2
    assert note(file, "no list 'qas'").startswith("article 1, paragraph 1: ")
    assert note(file, "no 'context'").startswith("article 1, paragraph 2, question 1: ")
    assert note(file, "number 3 of its 'paragraphs'").startswith("article 1: ")
    assert note(file, "it is a JSON number").startswith("record 2: ")


# ---- MuSiQue --------------------------------------------------------------------------------------------------------


def musique(**fields: Any) -> dict[str, Any]:
    texts = [("Marra", "Marra lies in the bay."), ("Bay", "The bay is ruled by Ostrey."), ("Eel", "Eels swim.")]
    return {
        "id": "2hop__460946_294723",
        "paragraphs": [
            {"idx": number, "title": title, "paragraph_text": text, "is_supporting": number < 2}
            for number, (title, text) in enumerate(texts)
        ],
        "question": "Who rules the place where Marra lies?",
        "question_decomposition": [
            {"id": 460946, "question": "Marra >> lies in", "answer": "the bay", "paragraph_support_idx": 0},
            {"id": 294723, "question": "#1 >> ruler", "answer": "Ostrey", "paragraph_support_idx": 1},
        ],
        "answer": "Ostrey",
        "answer_aliases": ["Duke of Ostrey", "Ostrey"],
        "answerable": True,
    } | fields


def test_musique(read) -> None:
    file = read([musique()])
    assert file.format == "MuSiQue"
    question = only(file)
    assert question.answers == ("Ostrey", "Duke of Ostrey")
    assert question.passages[1] == Passage("Bay", "The bay is ruled by Ostrey.")
    assert len(question.passages) == 3
    assert question.gold == (0, 1)
    assert question.hops == 2


@pytest.mark.parametrize(("name", "hops"), [("3hop1__9_1_2", 3), ("4hop2__9_1_2_5", 4), ("x", None)])
def test_the_hops_of_musique_stand_in_its_ids(read, name, hops) -> None:
    assert only(read([musique(id=name)])).hops == hops


def test_musique_pairs_of_an_answerable_and_an_unanswerable_question_keep_apart(read) -> None:
    file = read([musique(), musique(answerable=False)])
    assert [question.id for question in file.questions] == ["2hop__460946_294723", "2hop__460946_294723~2"]
    assert [question.answers for question in file.questions] == [("Ostrey", "Duke of Ostrey"), ()]
    assert file.questions[1].gold == ()
    assert note(file, "unanswerable").startswith("line 2: ")
    assert note(file, "its id stands before").startswith("line 2: ")


def test_the_test_set_of_musique_has_neither_answers_nor_gold(read) -> None:
    record = musique()
    for field in ("answer", "answer_aliases", "answerable", "question_decomposition"):
        del record[field]
    for paragraph in record["paragraphs"]:
        del paragraph["is_supporting"]
    question = only(read([record]))
    assert question.answers == question.gold == ()
    assert len(question.passages) == 3


def test_a_musique_paragraph_without_text_is_told(read) -> None:
    file = read([musique(), musique(paragraphs=[{"title": "Marra"}])])
    assert note(file, "paragraph 0 has no 'paragraph_text'").startswith("line 2: ")


# ---- HotpotQA and 2WikiMultihopQA -----------------------------------------------------------------------------------

HOTPOT = {
    "_id": "5a8b57f25542995d1e6f1371",
    "answer": "yes",
    "question": "Were Ann Ray and Bea Low of the same nationality?",
    "supporting_facts": [["Ann Ray", 0], ["Bea Low", 0], ["Bea Low", 7]],
    "context": [
        ["Eels", ["Eels swim.", " They are long."]],
        ["Ann Ray", ["Ann Ray is a director.", " She is from Marra."]],
        ["Bea Low", ["Bea Low (born 1950) is from Marra."]],
    ],
    "type": "comparison",
    "level": "hard",
}


def as_document(records: list[Any]) -> bytes:
    return json.dumps(records).encode()


def test_hotpotqa(read) -> None:
    file = read(as_document([HOTPOT]))
    assert file.format == "HotpotQA"
    question = only(file)
    assert question.id == HOTPOT["_id"]
    assert question.answers == ("yes",)
    assert question.passages[1] == Passage("Ann Ray", "Ann Ray is a director. She is from Marra.")
    assert question.gold == (1, 2)
    assert question.hops == 2
    assert file.notes == []


def test_hotpotqa_in_the_layout_of_hugging_face(read) -> None:
    context, facts = HOTPOT["context"], HOTPOT["supporting_facts"]
    record = {key: value for key, value in HOTPOT.items() if key != "_id"} | {
        "id": HOTPOT["_id"],
        "supporting_facts": {"title": [title for title, _ in facts], "sent_id": [number for _, number in facts]},
        "context": {"title": [title for title, _ in context], "sentences": [sentences for _, sentences in context]},
    }
    file = read([record])
    assert file.format == "HotpotQA"
    assert file.questions == read(as_document([HOTPOT])).questions


def test_supporting_paragraphs_that_were_not_retrieved_are_told(read) -> None:
    """As in the dev set of the fullwiki setting."""
    file = read(as_document([HOTPOT | {"context": HOTPOT["context"][:2]}]))
    assert only(file).gold == (1,)
    assert only(file).hops == 2
    assert note(file, "not every supporting paragraph").startswith("record 1: ")


def test_the_test_set_of_hotpotqa_has_neither_answers_nor_gold(read) -> None:
    file = read(as_document([{key: HOTPOT[key] for key in ("_id", "question", "context")}]))
    assert file.format == "HotpotQA"
    assert only(file).answers == only(file).gold == ()
    assert only(file).hops is None


def test_2wikimultihopqa(read) -> None:
    record = HOTPOT | {
        "type": "compositional",
        "answer": "Marra",
        "evidences": [["Ann Ray", "country", "Marra"]],
        "context": [["Ann Ray", ["Ann Ray is a director.", "She is from Marra."]], ["Bea Low", ["Bea Low sings."]]],
    }
    file = read(as_document([record]))
    assert file.format == "2WikiMultihopQA"
    assert only(file).passages[0].text == "Ann Ray is a director. She is from Marra."
    assert only(file).gold == (0, 1)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"context": [["Ann Ray"]]}, "'context' is not a list of pairs"),
        ({"context": [["Ann Ray", "Ann Ray is a director."]]}, "context 0 is not a title and a list of sentences"),
        ({"context": {"title": ["Ann Ray"], "sentences": []}}, "'title' and 'sentences' of one length"),
        ({"context": []}, "none of its contexts has text"),
        ({"supporting_facts": ["Ann Ray"]}, "'supporting_facts' is not a list of pairs"),
    ],
)
def test_a_broken_hotpotqa_record_is_told(read, fields, reason) -> None:
    file = read(as_document([HOTPOT, HOTPOT | fields]))
    assert len(file.questions) == 1
    assert note(file, reason).startswith("record 2: ")


# ---- LongBench ------------------------------------------------------------------------------------------------------


def long_bench(context: str, **fields: Any) -> dict[str, Any]:
    return {
        "input": "Where was Ann Ray born?",
        "context": context,
        "answers": ["Marra"],
        "length": 42,
        "dataset": "hotpotqa",
        "language": "en",
        "all_classes": None,
        "_id": "b2950b4e",
    } | fields


def test_longbench_is_split_at_its_passages(read) -> None:
    context = "Passage 1:\nEels\nEels swim.\nSee Passage 7: no.\n\nPassage 2:\nAnn Ray\nAnn Ray was born in MARRA."
    file = read([long_bench(context)])
    assert file.format == "LongBench"
    question = only(file)
    assert question.id == "b2950b4e"
    assert question.passages == (
        Passage("Eels", "Eels swim.\nSee Passage 7: no."),
        Passage("Ann Ray", "Ann Ray was born in MARRA."),
    )
    assert question.gold == (1,)
    assert "gold are those that hold an answer verbatim" in note(file, "Passage N:")


def test_what_was_assumed_of_skipped_records_is_not_counted(read) -> None:
    file = read([long_bench("Marra."), long_bench("Marra.", input=3), long_bench("Marra.", _id=[])])
    assert note(file, "Passage N:").startswith("line 1: ")


def test_a_passage_marker_out_of_order_belongs_to_the_text(read) -> None:
    context = "Passage 1:\nEels\nEels swim.\nPassage 7:\nis a road.\nPassage 2:\nAnn Ray\nBorn in Marra."
    assert [passage.title for passage in only(read([long_bench(context)])).passages] == ["Eels", "Ann Ray"]


def test_longbench_without_passages_is_cut_at_paragraphs(read) -> None:
    paragraphs = [f"Paragraph number {number}. " + "Eels swim. " * 60 for number in range(4)]
    question = only(read([long_bench("\n\n".join(paragraphs) + "\n\nAnn Ray was born in Marra.")]))
    assert all(len(passage.text) <= 1500 for passage in question.passages)
    assert len(question.passages) == 2, "two paragraphs and a short one go into a piece"
    assert question.passages[0].text.startswith("Paragraph number 0.")
    assert question.passages[1].text.startswith("Paragraph number 2.")
    assert question.gold == (1,)


def test_text_in_front_of_the_first_passage_is_kept(read) -> None:
    question = only(read([long_bench("Marra is a town.\nPassage 1:\nEels\nEels swim.")]))
    assert question.passages == (Passage("", "Marra is a town."), Passage("Eels", "Eels swim."))


def test_a_long_first_line_is_no_title(read) -> None:
    line = "Eels swim far away. " * 15
    assert only(read([long_bench(f"Passage 1:\n{line}\nMarra.")])).passages == (Passage("", f"{line}\nMarra."),)


@pytest.mark.parametrize("word", ["chart", "artful", "ÖART", "art2"])
def test_an_answer_inside_a_longer_word_does_not_make_gold(read, word) -> None:
    context = f"Passage 1:\nA\nThis is {word}.\nPassage 2:\nB\nShe studied Art."
    assert only(read([long_bench(context, answers=["art"])])).gold == (1,)


def test_an_answer_is_found_where_words_are_not_spaced(read) -> None:
    context = "Passage 1:\nA\n鳗鱼在游泳。\nPassage 2:\nB\n她出生在北京的医院。"
    assert only(read([long_bench(context, answers=["北京"], language="zh")])).gold == (1,)


def test_yes_and_no_do_not_make_gold(read) -> None:
    context = "Passage 1:\nA\nThere is no eel.\nPassage 2:\nB\nShe said yes."
    file = read([long_bench(context, answers=["no"])])
    assert only(file).gold == ()
    assert note(file, "gold passages are unknown").startswith("line 1: ")


def test_a_longbench_task_without_question_is_told(read) -> None:
    file = read([long_bench("Eels."), long_bench("Eels.", input=""), long_bench(" ")])
    assert len(file.questions) == 1
    assert note(file, "a task without a question").startswith("line 2: ")
    assert note(file, "'context' is empty").startswith("line 3: ")


# ---- RULER ----------------------------------------------------------------------------------------------------------

NOISE = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."
NIAH = (
    "Some special magic numbers are hidden within the following text. Make sure to memorize it. I will quiz you about "
    "the numbers afterwards.\n{context}\nWhat are all the special magic numbers for {query} mentioned in the provided "
    "text?"
)
NIAH_ANSWER = " The special magic numbers for {query} mentioned in the provided text are"
TRACKING = (
    "Memorize and track the chain(s) of variable assignment hidden in the following text.\n\n{context}\n"
    "Question: Find all variables that are assigned the value {query} in the text above."
)
TRACKING_ANSWER = (
    " Answer: According to the chain(s) of variable assignment in the text above, 2 variables are assigned the value "
    "{query}, they are: "
)
COMMON = (
    "Below is a numbered list of words. In these words, some appear more often than others. Memorize the ones that "
    "appear most often.\n{context}\nQuestion: What are the 10 most common words in the above list?"
)
FREQUENT = (
    "Read the following coded text and track the frequency of each coded word. Find the three most frequently appeared "
    "coded words. {context}\nQuestion: Do not provide any explanation. Please ignore the dots '....'. What are the "
    "three most frequently appeared words in the above coded text?"
)
DOCUMENTS = (
    "Answer the question based on the given documents. Only give me the answer and do not output any other words.\n\n"
    "The following are given documents.\n\n{context}\n\nAnswer the question based on the given documents. Only give me "
    "the answer and do not output any other words.\n\nQuestion: {query}"
)


def ruler(text: str, outputs: list[str]) -> dict[str, Any]:
    return {
        "index": 0,
        "input": text,
        "outputs": outputs,
        "length": 3978,
        "length_w_model_temp": 4000,
        "answer_prefix": "",
        "token_position_answer": 12,
    }


def needle(key: str, value: str) -> str:
    return f"One of the special magic numbers for {key} is: {value}."


def text_of(question: EvalQuestion) -> str:
    return " ".join(" ".join(f"{passage.title} {passage.text}".split()) for passage in question.passages).strip()


def test_a_needle_question_is_parted_from_its_haystack(read) -> None:
    essay = " ".join(["Eels swim far away from the shore."] * 100 + [needle("dim-hat", "8090293")] + ["Why? Ask."] * 99)
    file = read([ruler(NIAH.format(context=essay, query="dim-hat"), ["8090293"])])
    assert file.format == "RULER"
    question = only(file)
    assert question.id == "0"
    assert question.question == ("What are all the special magic numbers for dim-hat mentioned in the provided text?")
    assert text_of(question) == essay
    assert all(len(passage.text) <= 1500 for passage in question.passages)
    assert len(question.passages) > 2
    (gold,) = question.gold
    assert needle("dim-hat", "8090293") in question.passages[gold].text, "cut between sentences only"
    assert "the instruction is left out" in note(file, "RULER gives one text")


def test_the_beginning_of_an_answer_does_not_belong_to_the_question(read) -> None:
    text = (NIAH + NIAH_ANSWER).format(context=needle("dim-hat", "8090293"), query="dim-hat")
    assert only(read([ruler(text, ["8090293"])])).question.endswith("mentioned in the provided text?")


def test_outputs_that_are_all_asked_for_are_one_answer(read) -> None:
    context = "\n".join([NOISE] * 30 + [needle("dim-hat", "11")] + [NOISE] * 30 + [needle("dim-hat", "22")])
    file = read([ruler(NIAH.format(context=context, query="dim-hat"), ["11", "22"])])
    question = only(file)
    assert question.answers == ("11, 22",)
    assert len(question.gold) == 2
    assert note(file, "every one of its outputs").startswith("line 1: ")


def test_a_worked_example_is_left_out(read) -> None:
    example = (TRACKING + TRACKING_ANSWER).format(context=f"{NOISE}\n VAR AAA = 111", query="111") + "AAA BBB"
    context = f"{NOISE}\n VAR VEJIV = 57281 {NOISE}\n VAR CPKAN = VAR VEJIV  {NOISE}"
    text = f"{example}\n\n\n{(TRACKING + TRACKING_ANSWER).format(context=context, query='57281')}"
    file = read([ruler(text, ["VEJIV", "CPKAN"])])
    question = only(file)
    assert question.question == "Find all variables that are assigned the value 57281 in the text above."
    assert text_of(question) == " ".join(context.split())
    assert note(file, "worked example").startswith("line 1: ")


@pytest.mark.parametrize("template", [COMMON, FREQUENT])
def test_aggregation_tasks_are_split(read, template) -> None:
    context = " ".join(f"{number}. word{number % 7}" for number in range(600))
    question = only(read([ruler(template.format(context=context), ["word1", "word2", "word3"])]))
    assert question.question.startswith(("What are the 10 most", "Do not provide any explanation."))
    assert question.question.endswith("?")
    assert text_of(question) == context
    assert question.gold == tuple(range(len(question.passages)))


def test_ruler_documents_become_passages(read) -> None:
    documents = ["Ann Ray\nAnn Ray was born in Marra.", "Eels swim.", "Eels\nAsk: Question: why?"]
    context = "\n\n".join(f"Document {number}:\n{text}" for number, text in enumerate(documents, 1))
    text = DOCUMENTS.format(context=context, query="Where was Ann Ray born?")
    file = read([ruler(text, ["Marra", "Old Marra"]), ruler(text + " Answer:", ["Marra", "Old Marra"])])
    for question in file.questions:
        assert question.question == "Where was Ann Ray born?"
        assert question.passages == (
            Passage("Ann Ray", "Ann Ray was born in Marra."),
            Passage("", "Eels swim."),
            Passage("Eels", "Ask: Question: why?"),
        )
        assert question.gold == (0,)
        assert question.answers == ("Marra", "Old Marra")


def test_ruler_without_newlines_is_split_at_the_last_sentence(read) -> None:
    haystack = " ".join([NOISE, needle("dim-hat", "8090293"), "Question: he had none.", *[NOISE] * 40])
    text = NIAH.format(context=haystack, query="dim-hat").replace("\n", " ")
    question = only(read([ruler(text, ["8090293"])]))
    assert question.question == "What are all the special magic numbers for dim-hat mentioned in the provided text?"
    assert text_of(question) == haystack


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (f"{NOISE}\nGive the number.", "no question was found"),
        ("What is it?", "none of its contexts has text"),
        (f"[INST] {NOISE}\nWhat is it? [/INST]", "chat template"),
        (f"<|im_start|>user\n{NOISE}\nWhat is it?<|im_end|>\n", "chat template"),
    ],
)
def test_a_ruler_record_that_cannot_be_split_is_told(read, text, reason) -> None:
    file = read([ruler(NIAH.format(context=NOISE, query="x"), ["1"]), ruler(text, ["1"])])
    assert len(file.questions) == 1
    assert note(file, reason).startswith("line 2: ")


def test_an_instruction_that_is_not_known_stays_and_is_told(read) -> None:
    file = read([ruler(f"Read this.\n{NOISE}\nWhat is green?", ["grass"])])
    assert only(file).passages[0].text.startswith("Read this.")
    assert note(file, "instruction is not one of RULER's").startswith("line 1: ")


# ---- Files ----------------------------------------------------------------------------------------------------------

GOOD = b'{"question": "Who?", "answer": "Ann"}'


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"question": "Who?", ', "not valid JSON"),
        (b'{"question": "\xff?"}', "is not UTF-8"),
        (b'{"question": ' + b"[" * 100_000, "cannot be read as JSON"),
        (b'{"question": "Who?", "n": ' + b"9" * 5000 + b"}", "cannot be read as JSON"),
        (b'"Who?"', "it is a JSON string"),
        (b"null", "it is a JSON null"),
        (b"{}", "it has no fields"),
        (b'{"answer": "Ann"}', "it has 'answer': not those of"),
    ],
)
@pytest.mark.parametrize("place", [0, 1])
def test_a_broken_line_is_told_wherever_it_stands(read, line, reason, place) -> None:
    lines = [GOOD, GOOD]
    lines.insert(place, line)
    file = read(b"\n".join(lines))
    assert len(file.questions) == 2
    assert note(file, reason).startswith(f"line {place + 1}: skipped, ")


@pytest.mark.parametrize("depth", [300, 450, 600, 900, 5000])
def test_deeply_nested_records_are_told(read, depth) -> None:
    file = read(GOOD + b'\n{"question": ' + b"[" * depth + b"]" * depth + b"}")
    assert len(file.questions) == 1
    assert note(file, "skipped").startswith("line 2: ")


def test_nan_is_a_missing_value_and_told(read) -> None:
    """As pandas writes what is missing."""
    file = read(b'{"question": "Who?", "answer": NaN, "hops": NaN}\n{"question": NaN}\n' + GOOD)
    assert [question.answers for question in file.questions] == [(), ("Ann",)]
    assert file.questions[0].hops is None
    assert note(file, "NaN").startswith("2 records, the first is line 1: ")
    assert note(file, "no 'question'").startswith("line 2: ")


def test_windows_files_are_read(read) -> None:
    """With a byte-order mark, carriage returns and blank lines."""
    file = read(b"\xef\xbb\xbf\r\n" + GOOD + b"\r\n\r\n" + GOOD.replace(b"Who?", rb"Who\r\nis?") + b"\r\n  \r\n")
    assert [question.question for question in file.questions] == ["Who?", "Who\nis?"]
    assert [question.id for question in file.questions] == ["line-2", "line-4"]
    assert file.notes == []
    assert read(b"\xef\xbb\xbf" + json.dumps(SQUAD, indent=1).encode()).format == "SQuAD"


def test_characters_that_no_tokeniser_takes_are_replaced_and_told(read) -> None:
    file = read(rb'{"question": "Who\ud800 is\u0000?", "answer": "\ud83d\udea2"}')
    assert only(file).question == "Who\ufffd is\ufffd?"
    assert only(file).answers == ("🚢",)
    assert note(file, "replaced by U+FFFD").startswith("line 1: ")


def test_equal_ids_become_distinct(read) -> None:
    records = [{"id": name, "question": "Who?", "answer": "Ann"} for name in ("a", "a~2", "a", "line-5")]
    file = read([*records, {"question": "Who?", "answer": "Ann"}])
    assert [question.id for question in file.questions] == ["a", "a~2", "a~3", "line-5", "line-5~2"]
    assert note(file, "its id stands before").startswith("2 records, the first is line 3: ")


def test_a_record_that_lacks_the_fields_of_its_file_is_told(read) -> None:
    context = "Passage 1:\nA\nMarra."
    for records in (
        [musique(), {"id": "x", "question_decomposition": []}],
        [HOTPOT, {"_id": "x"}],
        [long_bench(context), {"input": "Who?", "context": context}],
        [ruler(f"{NOISE}\nWhat is green?", ["grass"]), {"input": "Who?"}],
        [{"question": "Who?", "answer": "Ann"}, {"answer": "Ann"}],
    ):
        file = read(records)
        assert len(file.questions) == 1
        assert note(file, f"not those of {file.format}").startswith("line 2: ")


def test_a_record_of_another_format_is_not_read_as_the_file_is(read) -> None:
    file = read([{"question": "Who?", "answer": "Ann"}, musique()])
    assert len(file.questions) == 1
    assert note(file, "laid out as MuSiQue, the records before it as LinearKV").startswith("line 2: ")


@pytest.mark.parametrize(
    "document",
    [
        b'[\n{"question": "One?", "answer": "1"},\n{"question": "Two?", "answer": "2"}\n]',
        b'{\n"data":\n[\n {"question": "One?", "answer": "1"},\n {"question": "Two?", "answer": "2"}\n]}',
    ],
)
def test_a_document_with_an_object_a_line_is_not_taken_for_json_lines(read, document) -> None:
    file = read(document)
    assert [question.id for question in file.questions] == ["record-1", "record-2"]
    assert file.notes == []


def test_the_digest_is_that_of_the_whole_file(read) -> None:
    content = GOOD + b"\n" + GOOD + b"\n"
    assert read(content).digest == hashlib.sha256(content).hexdigest()


def test_the_name_of_the_file_says_nothing(read) -> None:
    assert read([musique()], name="hotpot_dev.csv").format == "MuSiQue"


def test_many_broken_lines_are_counted(read) -> None:
    file = read(b'{"question": ""}\n' * 250 + GOOD)
    assert len(file.notes) == 101
    assert file.notes[-1] == "150 more records were skipped"


def test_json_lines_that_are_not_kept_are_not_held(tmp_path) -> None:
    path = tmp_path / "large.jsonl"
    with path.open("wb") as file:
        for _ in range(300):
            file.write(b'{"question": "", "padding": "' + b"x" * 100_000 + b'"}\n')
        file.write(GOOD)
    tracemalloc.start()
    try:
        assert len(read_questions(path).questions) == 1
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 5_000_000, "of 30 MB"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"\xef\xbb\xbf \n\n", "is empty"),
        (b"PAR1\x15\x04\x00\x00{}", "is binary"),
        ('{"question": "Who?"}'.encode("utf-16"), "is UTF-16: save it as UTF-8"),
        (b"id,question\n1,Who?\n", "neither JSON nor JSON lines: it is not valid JSON"),
        (b'[{"question": "Who?"},\n {"question"', "neither JSON nor JSON lines: .*line 2, column"),
        (b"[{\xff}]", r"its byte 3 \(ff\) is not UTF-8"),
        (b"[]", "no usable question: it holds no record"),
        (b'{"question": ""}\n{"question": 3}', "no usable question: line 1: skipped, .*; line 2: skipped, "),
        (b'["Who?", 3]', "no usable question: record 1: skipped, it is a JSON string"),
    ],
)
def test_a_file_that_gives_nothing_is_an_error_that_says_why(read, content, message) -> None:
    with pytest.raises(LinearKVError, match=message):
        read(content)


@pytest.mark.parametrize(
    "content", [b'{"prompt": "Who?", "target": "Ann"}\n{"x": 1}', b'{"data": [{"prompt": "", "target": 1}]}']
)
def test_an_unknown_format_lists_its_fields_and_the_known_formats(read, content) -> None:
    with pytest.raises(LinearKVError) as error:
        read(content)
    assert "its records have 'prompt', 'target'" in str(error.value)
    for name in FORMATS:
        assert f"{name} (" in str(error.value)


def test_what_is_no_file_is_an_error(tmp_path) -> None:
    with pytest.raises(LinearKVError, match="absent.jsonl cannot be read: No such file"):
        read_questions(tmp_path / "absent.jsonl")
    with pytest.raises(LinearKVError, match="not a regular file"):
        read_questions(tmp_path)


# ---- Questions from a corpus ----------------------------------------------------------------------------------------

FERRY = (
    "# Timetable\n\nThe morning ferry leaves the harbour of Tarrowick\nat half past seven on weekdays. Passengers with "
    "bicycles must wait behind the yellow line until called."
)
TARIFF = "A single ticket for an adult costs four crowns and a return costs seven.\n\nChildren under six travel free."


def flat(text: str) -> str:
    return " ".join(text.split())


def filled(question: EvalQuestion) -> str:
    """The sentence that a question was made from, but for its last mark."""
    (answer,) = question.answers
    if question.kind == "quote":
        return f"{quoted(question)} {answer}"
    return question.question.removeprefix('Fill in the blank: "').removesuffix('"').replace("____", answer)


def quoted(question: EvalQuestion) -> str:
    """The part that has to be unique: the beginning of the sentence, or the longer part beside the blank."""
    if question.kind == "quote":
        return question.question.removeprefix('Continue: "').removesuffix('"')
    left, right = question.question.removeprefix('Fill in the blank: "').removesuffix('"').split("____")
    return max(left.strip(), re.sub(r"^[.,;:!?)]+", "", right).strip(), key=len)


def test_questions_are_made_from_sentences() -> None:
    made = corpus_questions([("a.md#1", "Timetable", FERRY), ("b.md#2", "", TARIFF)], 10)
    sentences = {
        "The morning ferry leaves the harbour of Tarrowick at half past seven on weekdays": "a.md#1",
        "Passengers with bicycles must wait behind the yellow line until called": "a.md#1",
        "A single ticket for an adult costs four crowns and a return costs seven": "b.md#2",
    }
    assert {filled(question).rstrip("."): question.gold_refs for question in made} == {
        sentence: (chunk_id,) for sentence, chunk_id in sentences.items()
    }
    for question in made:
        shape = r'Continue: "[^"_]+"' if question.kind == "quote" else r'Fill in the blank: "[^"_]+____[^"_]+"'
        assert re.fullmatch(shape, question.question)
        assert question.passages == question.gold == ()
        assert question.hops == 1


VOCABULARY = [
    "ferry",
    "of",
    "at",
    "the",
    "Marra",
    "leaves,",
    "seven",
    "passengers",
    "(never)",
    "it's",
    "14,50",
    "under",
]
SENTENCE = st.lists(st.sampled_from(VOCABULARY), min_size=6, max_size=16).map(lambda words: " ".join(words) + ".")
PROSE = st.lists(SENTENCE, min_size=0, max_size=5).flatmap(
    lambda sentences: st.sampled_from([" ", "\n", "  ", "\n\n"]).map(lambda gap: gap.join(sentences))
)


@given(texts=st.lists(PROSE, min_size=1, max_size=8), count=st.integers(1, 12), seed=st.integers(), data=st.data())
def test_made_questions_are_fair_whatever_the_corpus(texts, count, seed, data) -> None:
    chunks = [(f"doc-{number}.md#{number}", "Heading", text) for number, text in enumerate(texts)]
    try:
        made = corpus_questions(chunks, count, seed)
    except LinearKVError:
        assume(False)
    assert corpus_questions(data.draw(st.permutations(chunks)), count, seed) == made, "in another order"
    by_id = {chunk_id: flat(text) for chunk_id, _, text in chunks}
    assert 1 <= len(made) <= count
    for question in made:
        (answer,), (chunk_id,) = question.answers, question.gold_refs
        assert answer in by_id[chunk_id], "the answer stands in the chunk"
        assert filled(question) in by_id[chunk_id], "and in that sentence"
        low, high = (1, 3) if question.kind == "cloze" else (3, 8)
        assert low <= len(answer.split()) <= high
        assert len(filled(question).split()) >= 9
        places = [text for text in by_id.values() if quoted(question).casefold() in text.casefold()]
        assert places == [by_id[chunk_id]], "what is quoted stands in one chunk"
        assert places[0].casefold().count(quoted(question).casefold()) == 1
        assert answer[-1] not in ".!?"
        if question.kind == "cloze":
            assert not question.question.startswith('Fill in the blank: "____'), "there is something to go by"
            assert answer.casefold() not in question.question.casefold(), "the question does not give it away"
    assert len({filled(question) for question in made}) == len(made), "no sentence twice"
    assert len({question.id for question in made}) == len(made)


def distinct_chunks(count: int, sentences: int) -> list[tuple[str, str, str]]:
    """Chunks whose every sentence allows both kinds."""
    return [
        (
            f"page-{chunk}.md#0",
            "",
            " ".join(
                f"Vessel {chunk}x{number} of the northern company carries barrel {number}y{chunk} to distant islands."
                for number in range(sentences)
            ),
        )
        for chunk in range(count)
    ]


def test_half_are_cloze_and_half_are_quotes() -> None:
    kinds = [question.kind for question in corpus_questions(distinct_chunks(20, 3), 41)]
    assert (kinds.count("cloze"), kinds.count("quote")) == (21, 20)


def test_no_chunk_is_used_twice_before_each_was_used_once() -> None:
    made = corpus_questions(distinct_chunks(12, 3), 30)
    used = [question.gold_refs[0] for question in made]
    assert len(set(used[:12])) == len(set(used[12:24])) == 12
    assert len(set(used[24:])) == 6


def test_fewer_questions_are_returned_than_the_corpus_allows() -> None:
    assert len(corpus_questions(distinct_chunks(3, 2), 50)) == 6


def test_questions_do_not_depend_on_the_hash_seed() -> None:
    program = (
        "from linearkv.eval.questions import corpus_questions\n"
        f"for question in corpus_questions({distinct_chunks(6, 2)!r}, 9, seed=3): print(question)"
    )
    printed = {
        subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ | {"PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("0", "1", "77")
    }
    assert len(printed) == 1
    assert printed.pop().count("EvalQuestion") == 9


SAID = "The northern company carries eleven barrels to the distant islands"


@pytest.mark.parametrize(
    "text",
    [
        f"```\n{SAID}.\n```",
        f"~~~ text\n{SAID}.\n~~~",
        f"{SAID}.\n```",
        f"    {SAID}.",
        f"# {SAID}.",
        f"# Short. {SAID}.",
        f":field: Short. {SAID}.",
        f"-- {SAID}.",
        f"- Short\n- {SAID.removeprefix('The northern ').capitalize()}\n- And the northern harbour.",
        f"{SAID}.\n=======",
        f"| Name | {SAID}. |",
        f"| Name | One. {SAID}. Two. |",
        f"Barrels    eleven. {SAID}.",
        f".. note:: {SAID}.",
        f"> {SAID}.",
        f"{SAID}:",
        SAID,
        "The company carries eleven barrels to the islands.",
        "the northern company carries eleven barrels to the distant islands.",
        f'{SAID} and "back".',
        f"{SAID} and `back`.",
        f"{SAID} {SAID} {SAID} {SAID} {SAID}.",
        "北方公司把十一只桶运到遥远的岛屿。",
        "",
    ],
    ids=lambda text: text[:30] or "empty",
)
def test_what_is_no_plain_sentence_makes_no_question(text) -> None:
    assert corpus_questions([("a", "", f"{SAID}.")], 1), "the sentence itself does"
    with pytest.raises(LinearKVError, match="no question can be made from the corpus: in its 1 chunks"):
        corpus_questions([("a", "", text)], 1)


def test_a_heading_that_is_a_sentence_makes_no_question() -> None:
    with pytest.raises(LinearKVError, match="no question can be made"):
        corpus_questions([("a", f"Guide > {SAID}.", f"{SAID}.")], 1)


def test_items_of_lists_are_sentences() -> None:
    made = corpus_questions([("a", "", f"- Short\n- {SAID}.\n2. {SAID.replace('eleven', 'twelve')}!")], 5)
    assert {filled(question).rstrip(".!") for question in made} == {SAID, SAID.replace("eleven", "twelve")}


def test_sentences_that_stand_twice_make_no_question() -> None:
    other = "Somebody else has counted all of the barrels at the southern harbour."
    twice = [("a", "", f"{SAID}. {other}"), ("b", "", f"{SAID.replace('carries', 'CARRIES')}.")]
    assert {filled(question).rstrip(".") for question in corpus_questions(twice, 5)} == {other.rstrip(".")}


def test_a_beginning_that_goes_on_in_two_ways_is_not_to_be_continued() -> None:
    chunks = [(end, "", f"{SAID} with {end} on board.") for end in ("cloth", "grain")]
    assert [question.kind for question in corpus_questions(chunks, 4)] == ["cloze", "cloze"]


def test_a_blank_that_two_words_fit_is_not_asked_for() -> None:
    """Ten words in front of the one that differs: no blank but there, and there the words in front stand twice."""
    begin, end = "We see the old grey seal that sat at the", "and go."
    chunks = [(name, "", f"{begin} {name} {end}") for name in ("harbour", "lighthouse")]
    assert [question.kind for question in corpus_questions([chunks[0]], 1)] == ["cloze"]
    with pytest.raises(LinearKVError):
        corpus_questions(chunks, 4)


def test_another_seed_asks_of_other_chunks() -> None:
    chunks = distinct_chunks(20, 1)
    first, second = ({q.gold_refs for q in corpus_questions(chunks, 10, seed=seed)} for seed in (1, 2))
    assert first != second


def test_asking_for_no_question_is_an_error() -> None:
    with pytest.raises(LinearKVError, match="count is 0"):
        corpus_questions(distinct_chunks(1, 1), 0)
    with pytest.raises(LinearKVError, match="in its 0 chunks"):
        corpus_questions([], 1)
