"""The demo corpus keeps its promises: every question can be answered from the active pages that it names."""

import json
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

HANDBOOK = Path(__file__).resolve().parents[2] / "examples" / "handbook"
DOCS = HANDBOOK / "docs"
WITHDRAWN = {"superseded", "deprecated"}
QUESTIONS = [json.loads(line) for line in (HANDBOOK / "qa.jsonl").read_text(encoding="utf-8").splitlines()]
ANSWERABLE = [question for question in QUESTIONS if question["kind"] != "not_in_documents"]
ONE_HOP = [question for question in ANSWERABLE if question["hops"] == 1]
TWO_HOP = [question for question in ANSWERABLE if question["hops"] == 2]


class Page(NamedTuple):
    meta: dict[str, object]
    sections: dict[str, str]
    """Text by heading, each without the text of its subsections; "" for a file that has no headings."""

    @property
    def active(self) -> bool:
        return self.meta.get("status", "active") not in WITHDRAWN


def split_front_matter(text: str) -> tuple[dict[str, object], str]:
    match = re.match(r"---\n(.*?\n)---\n", text, re.DOTALL)
    if not match:
        return {}, text
    meta = yaml.safe_load(match[1])
    assert isinstance(meta, dict), f"front matter must be a mapping, got {type(meta).__name__}"
    return meta, text[match.end() :]


def split_at_headings(text: str, heading: str) -> dict[str, str]:
    """`heading` is a pattern whose first group is the heading's text."""
    pieces = re.split(heading, text, flags=re.MULTILINE)
    sections = dict(zip(pieces[1::2], pieces[2::2], strict=True))
    assert len(sections) == len(pieces) // 2, "two sections of one page share a heading"
    return sections


def read_page(path: Path) -> Page:
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        meta, body = split_front_matter(text)
        return Page(meta, split_at_headings(body, r"^#{1,6} (.+)\n"))
    if path.suffix == ".rst":
        meta = dict(re.findall(r"^:(\w+): (.+)$", text, re.MULTILINE))
        return Page(meta, split_at_headings(text, r"^(?:=+\n)?(\S.*)\n(?:={3,}|-{3,})\n"))
    if path.suffix == ".jsonl":
        records = [json.loads(line) for line in text.splitlines()]
        return Page({}, {record["title"]: record["text"] for record in records})
    return Page({}, {"": text})


@cache
def pages() -> dict[str, Page]:
    return {path.relative_to(DOCS).as_posix(): read_page(path) for path in sorted(DOCS.rglob("*")) if path.is_file()}


def holds(text: str, phrase: str) -> bool:
    """Whether `phrase` stands in `text` verbatim and as whole words."""
    return re.search(rf"(?<!\w){re.escape(phrase)}(?!\w)", text) is not None


def gold_sections(question: dict) -> list[str]:
    pairs = zip(question["gold"], question["gold_heading"], strict=True)
    return [pages()[path].sections[heading] for path, heading in pairs]


def key_words(question: dict) -> list[str]:
    """The names and longer words that the question shares with its gold section."""
    (section,) = gold_sections(question)
    words = re.findall(r"[\w-]+", question["question"])[1:]
    return [word for word in words if (word[0].isupper() or len(word) > 4) and holds(section.lower(), word.lower())]


def by_id(question: dict) -> str:
    return question["id"]


def test_corpus_is_large_enough() -> None:
    assert len(pages()) >= 30
    assert len(QUESTIONS) >= 60
    assert len(TWO_HOP) >= 15
    assert len(QUESTIONS) - len(ANSWERABLE) >= 5


def test_loaders_meet_every_plain_format() -> None:
    assert {Path(path).suffix for path in pages()} == {".md", ".rst", ".txt", ".jsonl"}


def test_questions_are_unique() -> None:
    for field in ("id", "question"):
        values = [question[field] for question in QUESTIONS]
        assert len(set(values)) == len(values), f"a {field} occurs twice"


@pytest.mark.parametrize("question", QUESTIONS, ids=by_id)
def test_question_has_every_field(question: dict) -> None:
    assert list(question) == ["id", "question", "answers", "gold", "gold_heading", "hops", "kind"]
    assert question["kind"] in {"fact", "list", "number", "not_in_documents"}
    assert question["question"].endswith("?")
    assert question["answers"] and all(question["answers"])
    expected_pages = 0 if question["kind"] == "not_in_documents" else question["hops"]
    assert len(question["gold"]) == len(question["gold_heading"]) == len(set(question["gold"])) == expected_pages


@pytest.mark.parametrize("question", ANSWERABLE, ids=by_id)
def test_gold_pages_exist_and_are_active(question: dict) -> None:
    for path, heading in zip(question["gold"], question["gold_heading"], strict=True):
        assert pages()[path].active, f"{path} is withdrawn and must not be gold"
        assert heading in pages()[path].sections


@pytest.mark.parametrize("question", ONE_HOP, ids=by_id)
def test_answer_stands_in_its_gold_section(question: dict) -> None:
    (section,) = gold_sections(question)
    assert holds(section, question["answers"][0])


@pytest.mark.parametrize("question", TWO_HOP, ids=by_id)
def test_two_hop_answer_needs_the_second_page(question: dict) -> None:
    first, second = gold_sections(question)
    assert holds(second, question["answers"][0])
    assert not holds(first, question["answers"][0])


@pytest.mark.parametrize("question", ONE_HOP, ids=by_id)
def test_no_other_active_section_states_the_answer(question: dict) -> None:
    keys = [word.lower() for word in [*key_words(question), question["answers"][0]]]
    home = (question["gold"][0], question["gold_heading"][0])
    rivals = [
        (path, heading)
        for path, page in pages().items()
        for heading, section in page.sections.items()
        if page.active and (path, heading) != home and all(holds(section.lower(), key) for key in keys)
    ]
    assert not rivals, f"{rivals} hold {keys} too"


def test_every_page_with_a_header_says_what_it_is() -> None:
    headed = {path: page.meta for path, page in pages().items() if page.meta}
    assert len(headed) >= len(pages()) // 3
    for path, meta in headed.items():
        assert {"id", "type", "status", "owner"} <= meta.keys(), path
        assert meta["status"] in {"active", *WITHDRAWN}, path
    ids = [meta["id"] for meta in headed.values()]
    assert len(set(ids)) == len(ids)
    for path, meta in headed.items():
        assert set(meta.get("depends_on", [])) <= set(ids), path


def test_withdrawn_pages_are_replaced_by_active_ones() -> None:
    replaced = {page.meta.get("replaces") for page in pages().values() if page.active}
    withdrawn = {page.meta["id"] for page in pages().values() if not page.active}
    assert len(withdrawn) == 2
    assert withdrawn <= replaced


def test_withdrawn_pages_contradict_what_replaces_them() -> None:
    """Otherwise nobody could see from the answers whether they stayed out of the index."""
    withdrawn = {page.meta["id"]: page for page in pages().values() if not page.active}
    contradicted = [
        question["id"]
        for question in ANSWERABLE
        for path, heading in zip(question["gold"], question["gold_heading"], strict=True)
        if (old := withdrawn.get(pages()[path].meta.get("replaces")))
        and not holds(old.sections[heading], question["answers"][0])
    ]
    assert len(contradicted) >= 5
