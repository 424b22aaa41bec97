"""Questions of an evaluation: read from a file, or made from the chunks of a corpus alone.

A file is recognised by the fields of its records, never by its name. Whatever is wrong with one record becomes a note
and the rest is read; only a file without a usable question is an error.
"""

import hashlib
import json
import random
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from semantic_text_splitter import TextSplitter

from linearkv.errors import LinearKVError

_SHOWN = 100  # notes of skipped records; the rest is counted, so that a large broken file stays readable


@dataclass(frozen=True)
class Passage:
    """One context that a question brings along. `title` is "" where it has none; `text` never is."""

    title: str
    text: str


@dataclass(frozen=True)
class EvalQuestion:
    """One question of an evaluation.

    Attributes:
        id: unique in its file; made from the place in the file where the file gives none.
        answers: accepted answers, the canonical one first. Empty: no gold answer is known, it cannot be scored.
        passages: the question's own contexts. Empty: its chunks are retrieved from a store.
        gold: indices of the passages that hold the answer. Empty: unknown, or the question cannot be answered.
        gold_refs: where the answer stands in a store: a document's path, `path#heading`, or a chunk id.
        hops: how many passages the answer needs, where that is known.
        kind: `file`, `cloze` or `quote`.
    """

    id: str
    question: str
    answers: tuple[str, ...]
    passages: tuple[Passage, ...] = ()
    gold: tuple[int, ...] = ()
    gold_refs: tuple[str, ...] = ()
    hops: int | None = None
    kind: str = "file"


@dataclass(frozen=True)
class QuestionFile:
    """What `read_questions` found.

    Attributes:
        name: of the file, without its folders.
        format: its name, one of `FORMATS`.
        notes: what was skipped, with its place in the file, and what was assumed.
        digest: SHA-256 of the file's bytes, in hex.
    """

    name: str
    questions: list[EvalQuestion]
    format: str
    notes: list[str]
    digest: str


def read_questions(path: Path) -> QuestionFile:
    """Questions of a JSON or JSON lines file in one of `FORMATS`, in the order of the file.

    Raises:
        LinearKVError: the file cannot be read, its format is not known, or no question in it is usable.
    """
    notes = _Notes()
    try:
        if path.exists() and not path.is_file():
            raise LinearKVError(f"{path} is not a regular file: pass a JSON or JSON lines file")
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            file.seek(0)
            questions, name = _questions(path, file, notes)
    except OSError as error:
        raise LinearKVError(f"{path} cannot be read: {error.strerror}") from error
    return QuestionFile(path.name, questions, name, notes.lines(), digest)


class _Broken(Exception):
    """Why a record cannot be used, as the end of a sentence about it."""


class _Notes:
    """What a reader of the report should know: every skipped record, and every assumption with its first place."""

    def __init__(self) -> None:
        self._skipped: list[str] = []
        self._more = 0
        self._assumed: dict[str, tuple[str, int]] = {}

    def skip(self, place: str, reason: object) -> None:
        if len(self._skipped) < _SHOWN:
            self._skipped.append(f"{place}: skipped, {reason}")
        else:
            self._more += 1

    def assume(self, place: str, what: str) -> None:
        first, count = self._assumed.get(what, (place, 0))
        self._assumed[what] = first, count + 1

    def lines(self) -> list[str]:
        more = [f"{self._more} more records were skipped"] if self._more else []
        assumed = [
            f"{first}: {what}" if count == 1 else f"{count} records, the first is {first}: {what}"
            for what, (first, count) in self._assumed.items()
        ]
        return [*self._skipped, *more, *assumed]


def _questions(path: Path, file: BinaryIO, notes: _Notes) -> tuple[list[EvalQuestion], str]:
    questions: list[EvalQuestion] = []
    taken: dict[str, int] = {}
    form: _Format | None = None
    unknown = ""  # fields of the first record that no format fits
    for place, record in _records(path, file, notes):
        found = next((each for each in _FORMATS if each.fits(record)), None)
        if found is None:
            fields = ", ".join(repr(key) for key in list(record)[:20]) or "no fields"
            unknown = unknown or fields
            notes.skip(place, f"it has {fields}: not those of {form.name if form else 'a known format'}")
            continue
        form = form or found
        if found != form:
            notes.skip(place, f"it is laid out as {found.name}, the records before it as {form.name}")
            continue
        assumed: list[str] = []
        try:
            question = form.read(record, assumed.append)
            question = replace(question, id=_unique(_name(record) or _made_name(place), taken, assumed.append))
        except _Broken as reason:
            notes.skip(place, reason)
            continue
        for what in assumed:
            notes.assume(place, what)
        if not question.answers:
            notes.assume(place, "no gold answer: it cannot be scored")
        questions.append(question)
    if form is None and unknown:
        known = "; ".join(f"{each.name} ({each.fields})" for each in _FORMATS)
        raise LinearKVError(f"{path} is in no known format: its records have {unknown}. Known are: {known}")
    if form is None or not questions:
        reasons = notes.lines()
        shown = "; ".join(reasons[:5]) or "it holds no record"
        more = f"; and {len(reasons) - 5} more notes" if len(reasons) > 5 else ""
        raise LinearKVError(f"{path} holds no usable question: {shown}{more}")
    return questions, form.name


def _name(record: dict[str, Any]) -> str:
    value = next((record[key] for key in ("id", "_id", "index") if record.get(key) is not None), "")
    value = int(value) if isinstance(value, float) and value.is_integer() else value
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise _Broken(f"its id is {value!r:.60}, neither text nor a whole number")
    return str(value).strip()


def _made_name(place: str) -> str:
    return place.replace(",", "").replace(" ", "-")


def _unique(name: str, taken: dict[str, int], assume: Callable[[str], None]) -> str:
    # Numbered rather than skipped: published sets use one id for an answerable question and its unanswerable twin.
    free = name
    while free in taken:
        taken[name] += 1
        free = f"{name}~{taken[name]}"
    taken[free] = 1
    if free != name:
        assume("its id stands before in the file: ~2, ~3 and so on were added")
    return free


# ---- From bytes to records ------------------------------------------------------------------------------------------


def _records(path: Path, file: BinaryIO, notes: _Notes) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each record with its place. JSON lines are read one at a time: what is not a question is not held."""
    start = 3 if file.read(3) == b"\xef\xbb\xbf" else 0
    file.seek(start)
    if not _is_json_lines(file):
        file.seek(start)
        yield from _document_records(path, file, notes)
        return
    file.seek(start)
    for number, line in enumerate(file, 1):
        if not line.strip():
            continue
        place = f"line {number}"
        try:
            value = _parse(line, partial(notes.assume, place))
        except _Broken as reason:
            notes.skip(place, reason)
            continue
        yield from _expanded(place, value, notes)


def _is_json_lines(file: BinaryIO) -> bool:
    """Whether a line is an object of its own. One broken line, even the first, does not make it another layout; the
    objects inside a document that is written over several lines are indented or followed by a comma."""
    first = next((line for line in file if line.strip()), b"")
    if first.lstrip().startswith(b"["):
        return False
    return _is_object(first) or any(_is_object(line) for line in file)


def _is_object(line: bytes) -> bool:
    return line.startswith(b"{") and line.rstrip().endswith(b"}")


def _document_records(path: Path, file: BinaryIO, notes: _Notes) -> Iterator[tuple[str, dict[str, Any]]]:
    data = file.read()
    if not data.strip():
        raise LinearKVError(f"{path} is empty: it must hold questions as JSON or JSON lines")
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise LinearKVError(f"{path} is UTF-16: save it as UTF-8")
    if b"\0" in data[:65536]:
        raise LinearKVError(f"{path} is binary: unpack it, or export it as JSON lines")
    try:
        value = _parse(data, partial(notes.assume, "the file"))
    except _Broken as reason:
        raise LinearKVError(f"{path} is neither JSON nor JSON lines: {reason}") from reason
    if not isinstance(value, list):
        yield from _expanded("record 1", value, notes)
        return
    for number, each in enumerate(value, 1):
        yield from _expanded(f"record {number}", each, notes)


def _parse(data: bytes, assume: Callable[[str], None]) -> Any:
    constants: list[str] = []
    try:
        # `append` returns None: the value is missing.
        value = _cleaned(json.loads(data.decode("utf-8"), parse_constant=constants.append), assume)
    except UnicodeDecodeError as error:
        raise _Broken(f"its byte {error.start + 1:,} ({data[error.start]:02x}) is not UTF-8") from error
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}" if error.lineno > 1 else f"column {error.colno}"
        raise _Broken(f"it is not valid JSON ({error.msg}, {where})") from error
    except (ValueError, RecursionError) as error:  # a number of thousands of digits; thousands of brackets
        raise _Broken(f"it cannot be read as JSON ({error})") from error
    if constants:
        assume("NaN or Infinity, which JSON does not have, was read as a missing value")
    return value


_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")


def _cleaned(value: Any, assume: Callable[[str], None]) -> Any:
    """Texts as tokenisers can carry them: newlines as ``\\n``; NUL and lone surrogates as U+FFFD."""
    if isinstance(value, str):
        text, replaced = _UNSTORABLE.subn("\ufffd", value)
        if replaced:
            assume("characters that cannot be encoded (NUL or lone surrogates) were replaced by U+FFFD")
        return text.replace("\r\n", "\n").replace("\r", "\n")
    if isinstance(value, list):
        return [_cleaned(each, assume) for each in value]
    if isinstance(value, dict):
        return {_cleaned(key, assume): _cleaned(each, assume) for key, each in value.items()}
    return value


def _expanded(place: str, value: Any, notes: _Notes) -> Iterator[tuple[str, dict[str, Any]]]:
    """The record itself, or the records inside `{"data": [...]}`; a SQuAD file's in the flat layout of Hugging Face."""
    if not isinstance(value, dict):
        notes.skip(place, f"it is a JSON {_KINDS.get(type(value), 'number')}, not an object")
    elif isinstance(value.get("data"), list) and "question" not in value:
        for number, article in enumerate(value["data"], 1):
            if isinstance(article, dict) and "paragraphs" in article and "question" not in article:
                yield from _article(f"article {number}", article, notes)
            else:
                yield from _expanded(f"record {number}", article, notes)
    else:
        yield place, value


def _article(place: str, article: dict[str, Any], notes: _Notes) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, paragraph in _inside(article, "paragraphs", place, notes):
        here = f"{place}, paragraph {number}"
        for count, entry in _inside(paragraph, "qas", here, notes):
            answers = entry.get("answers")
            if isinstance(answers, list):
                answers = [each.get("text") if isinstance(each, dict) else each for each in answers]
            context = {"context": paragraph.get("context"), "title": article.get("title")}
            yield f"{here}, question {count}", {**entry, **context, "answers": {"text": answers}}


def _inside(value: dict[str, Any], key: str, place: str, notes: _Notes) -> Iterator[tuple[int, dict[str, Any]]]:
    if not isinstance(value.get(key), list):
        notes.skip(place, f"it has no list {key!r}")
        return
    for number, each in enumerate(value[key], 1):
        if isinstance(each, dict):
            yield number, each
        else:
            notes.skip(place, f"number {number} of its {key!r} is not an object")


_KINDS = {str: "string", list: "list", bool: "true or false", type(None): "null"}


# ---- Formats --------------------------------------------------------------------------------------------------------


def _own(record: dict[str, Any], assume: Callable[[str], None]) -> EvalQuestion:
    """Ours: `question`; `answers` or `answer`; `contexts`, each a text or `{"title", "text"}`; `gold`, indices of them
    or, without contexts, documents of a store, with a heading for each in `gold_heading` where wanted; `hops`; `id`."""
    contexts = record.get("context") if record.get("contexts") is None else record["contexts"]
    contexts = [] if contexts is None else [contexts] if isinstance(contexts, str) else contexts
    if not isinstance(contexts, list):
        raise _Broken(f"its 'contexts' are {contexts!r:.60}, not a list")
    gold = record.get("gold")
    gold = [] if gold is None else gold if isinstance(gold, list) else [gold]
    passages: tuple[Passage, ...] = ()
    indices: tuple[int, ...] = ()
    references: tuple[str, ...] = ()
    if contexts:
        _check_indices(gold, len(contexts))
        passages, indices = _kept(((_passage(each, n), n in gold) for n, each in enumerate(contexts)), assume)
        passages = _some(passages)
    else:
        references = _references(gold, record.get("gold_heading"))
    answers = _answers(record.get("answer") if record.get("answers") is None else record["answers"])
    question, hops = _string(record, "question"), _hops(record.get("hops"))
    return EvalQuestion("", question, answers, passages, indices, references, hops)


def _passage(value: Any, number: int) -> Passage:
    title, text = (value.get("title"), value.get("text")) if isinstance(value, dict) else (None, value)
    if not isinstance(text, str):
        raise _Broken(f"its context {number} is {value!r:.60}, neither a text nor an object with 'text'")
    return Passage(_title(title), text.strip())


def _check_indices(gold: list[Any], count: int) -> None:
    for index in gold:
        if isinstance(index, bool) or not isinstance(index, int):
            raise _Broken(f"its gold {index!r:.60} is not an index into its contexts")
        if not 0 <= index < count:
            raise _Broken(f"its gold index {index} is out of range: it has the contexts 0 to {count - 1}")


def _references(gold: list[Any], headings: Any) -> tuple[str, ...]:
    for reference in gold:
        if not isinstance(reference, str) or not reference.strip():
            raise _Broken(f"its gold {reference!r:.60} is not a document, and it has no contexts to count in")
    if headings is None:
        return tuple(gold)
    if not isinstance(headings, list) or len(headings) != len(gold):
        raise _Broken(f"its 'gold_heading' {headings!r:.60} does not give one heading for each of {len(gold)} 'gold'")
    return tuple(f"{path}#{heading}" if heading else path for path, heading in zip(gold, headings, strict=True))


def _hops(value: Any) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 1 or value != value // 1:
        raise _Broken(f"its 'hops' is {value!r:.60}, not a whole number from 1")
    return int(value)


def _squad(record: dict[str, Any], assume: Callable[[str], None]) -> EvalQuestion:
    answers = _answers(record["answers"].get("text"))
    if record.get("is_impossible"):
        answers = ()
        assume("it is marked as unanswerable: read without a gold answer")
    passage = Passage(_title(record.get("title")), _string(record, "context"))
    return EvalQuestion("", _string(record, "question"), answers, (passage,), (0,) if answers else ())


def _musique(record: dict[str, Any], assume: Callable[[str], None]) -> EvalQuestion:
    aliases = record.get("answer_aliases") or []
    answers = _answers([record.get("answer"), *(aliases if isinstance(aliases, list) else [aliases])])
    answerable = record.get("answerable") is not False
    if not answerable:
        answers = ()
        assume("it is marked as unanswerable: read without a gold answer")
    marked = []
    for number, paragraph in enumerate(record["paragraphs"]):
        if not isinstance(paragraph, dict) or not isinstance(paragraph.get("paragraph_text"), str):
            raise _Broken(f"its paragraph {number} has no 'paragraph_text'")
        passage = Passage(_title(paragraph.get("title")), paragraph["paragraph_text"].strip())
        marked.append((passage, answerable and bool(paragraph.get("is_supporting"))))
    passages, gold = _kept(marked, assume)
    hops = re.match(r"(\d)hop", str(record.get("id")))
    question = _string(record, "question")
    return EvalQuestion("", question, answers, _some(passages), gold, hops=int(hops[1]) if hops else None)


def _hotpot(record: dict[str, Any], assume: Callable[[str], None]) -> EvalQuestion:
    """HotpotQA and 2WikiMultihopQA, which share their layout."""
    facts = _pairs(record.get("supporting_facts") or [], "supporting_facts", "sent_id")
    supporting = {_title(title) for title, _ in facts}
    marked = []
    for number, (title, sentences) in enumerate(_pairs(record.get("context") or [], "context", "sentences")):
        if not isinstance(sentences, list) or not all(isinstance(each, str) for each in sentences):
            raise _Broken(f"its context {number} is not a title and a list of sentences")
        # The one set puts the space between sentences in front of each, the other nowhere.
        text = " ".join(each.strip() for each in sentences if each.strip())
        marked.append((Passage(_title(title), text), _title(title) in supporting))
    if supporting - {passage.title for passage, _ in marked}:
        assume("not every supporting paragraph is among its contexts: gold are those that are")
    passages, gold = _kept(marked, assume)
    question, answers = _string(record, "question"), _answers(record.get("answer"))
    return EvalQuestion("", question, answers, _some(passages), gold, hops=len(supporting) or None)


def _pairs(value: Any, field: str, second: str) -> list[tuple[Any, Any]]:
    """`[[title, x], ...]`, or as Hugging Face has it, `{"title": [...], second: [...]}`."""
    if isinstance(value, dict):
        titles, others = value.get("title"), value.get(second)
        if not isinstance(titles, list) or not isinstance(others, list) or len(titles) != len(others):
            raise _Broken(f"its {field!r} has no 'title' and {second!r} of one length")
        return list(zip(titles, others, strict=True))
    if not isinstance(value, list) or not all(isinstance(each, list) and len(each) == 2 for each in value):
        raise _Broken(f"its {field!r} is not a list of pairs")
    return [(title, other) for title, other in value]


def _long_bench(record: dict[str, Any], assume: Callable[[str], None]) -> EvalQuestion:
    if record["input"] == "":
        raise _Broken("its 'input' is empty: a task without a question, such as a summary, is not evaluated")
    answers = _answers(record["answers"])
    assume(
        "passages are the context's 'Passage N:' parts with their first line as title, or else pieces of up to "
        f"{_PIECE:,} characters; gold are those that hold an answer verbatim"
    )
    passages = _split(_string(record, "context"), "Passage")
    question = _string(record, "input")
    return EvalQuestion("", question, answers, _some(passages), _holding(passages, answers, assume))


# How RULER's instructions end. Behind it stands what the question is about, in front of it at most a worked example.
_INSTRUCTION = re.compile(
    r"(?:I will quiz you about the [\w -]{1,40} afterwards"
    r"|hidden in the following text"
    r"|Memorize the ones that appear most often"
    r"|Find the three most frequently appeared coded words"
    r"|The following are given documents)\.\s*"
)
_DOCUMENTS = "The following are given documents."
_INSTRUCTION_AGAIN = "Answer the question based on the given documents."
_MAX_QUESTION = 2000  # characters; what is longer behind "Question:" belongs to the text
_CHAT = re.compile(r"\[/INST\]|<\|\w+\|>|<\w+_of_turn>")


def _ruler(record: dict[str, Any], assume: Callable[[str], None]) -> EvalQuestion:
    text = _string(record, "input")
    if _CHAT.search(text):
        raise _Broken("its 'input' is wrapped in a chat template: prepare the file with --model_template_type base")
    outputs = _answers(record["outputs"])
    text, question = _trailing_question(text)
    instructions = list(_INSTRUCTION.finditer(text))
    if not instructions:
        assume("its instruction is not one of RULER's: left in the first passage")
    elif len(instructions) > 1:
        assume("the worked example in front of its text is left out")
    about_documents = bool(instructions) and instructions[-1][0].startswith(_DOCUMENTS)
    haystack = text[instructions[-1].end() :] if instructions else text
    haystack = haystack.partition(_INSTRUCTION_AGAIN)[0] if about_documents else haystack
    passages = _split(haystack, "Document")
    assume(
        "RULER gives one text: the question is its end, the instruction is left out, passages are its 'Document N:' "
        f"parts or else pieces of up to {_PIECE:,} characters; gold are those that hold an output verbatim"
    )
    answers = outputs
    if len(outputs) > 1 and not about_documents:
        answers = (", ".join(outputs),)
        assume("every one of its outputs is asked for: they are one answer, in the order of the file")
    return EvalQuestion("", question, answers, _some(passages), _holding(passages, outputs, assume))


def _trailing_question(text: str) -> tuple[str, str]:
    """What stands in front of the question, and the question, without the beginning of an answer behind it."""
    text = re.sub(r"\s*\bAnswer:\s*\Z", "", text.rstrip())
    before, _, last = text.rpartition("\n")
    head, marker, question = last.rpartition("Question:")
    if marker and len(question) <= _MAX_QUESTION:
        return f"{before}\n{head}", _not_empty(question.partition(" Answer: ")[0])
    asks = last[: last.rfind("?") + 1]
    if not before:  # a file without newlines: the last sentence is all that can be told from the text
        start = max((end.end() for end in re.finditer(r"[.!?]\s+", asks)), default=0)
        before, asks = asks[:start], asks[start:]
    return before, _not_empty(asks)


def _not_empty(question: str) -> str:
    if not question.strip():
        raise _Broken("no question was found at the end of its 'input'")
    return question.strip()


class _Format(NamedTuple):
    name: str
    fields: str
    fits: Callable[[dict[str, Any]], bool]
    read: Callable[[dict[str, Any], Callable[[str], None]], EvalQuestion]


def _has_titled_sentences(record: dict[str, Any]) -> bool:
    context = record.get("context")
    nested = isinstance(context, dict) or (isinstance(context, list) and bool(context) and isinstance(context[0], list))
    return "question" in record and (nested or "supporting_facts" in record)


# In this order: what fits an earlier one may look like a later one.
_FORMATS = [
    _Format(
        "SQuAD",
        "data/paragraphs/qas; or question, context, answers with text",
        lambda record: "question" in record and isinstance(record.get("answers"), dict),
        _squad,
    ),
    _Format(
        "MuSiQue",
        "question, paragraphs, answer",
        lambda record: "question" in record and isinstance(record.get("paragraphs"), list),
        _musique,
    ),
    _Format(
        "2WikiMultihopQA",
        "question, context, supporting_facts, evidences, answer",
        lambda record: _has_titled_sentences(record) and "evidences" in record,
        _hotpot,
    ),
    _Format("HotpotQA", "question, context, supporting_facts, answer", _has_titled_sentences, _hotpot),
    _Format(
        "LongBench",
        "input, context, answers",
        lambda record: {"input", "context", "answers"} <= set(record),
        _long_bench,
    ),
    _Format("RULER", "input, outputs", lambda record: {"input", "outputs"} <= set(record), _ruler),
    _Format("LinearKV", "question, answers, contexts, gold", lambda record: "question" in record, _own),
]
FORMATS = tuple(form.name for form in _FORMATS)


# ---- Parts of records -----------------------------------------------------------------------------------------------


def _string(record: dict[str, Any], field: str) -> str:
    value = record.get(field)
    if value is None:
        raise _Broken(f"it has no {field!r}")
    if not isinstance(value, str):
        raise _Broken(f"its {field!r} is {value!r:.60}, not a text")
    if not value.strip():
        raise _Broken(f"its {field!r} is empty")
    return value.strip()


def _title(value: Any) -> str:
    return value.strip() if isinstance(value, str) else ""


def _answers(value: Any) -> tuple[str, ...]:
    """Distinct answers in their order; a missing or empty one is none."""
    found = []
    for each in value if isinstance(value, list) else [value]:
        if isinstance(each, bool) or not isinstance(each, str | int | float | None):
            raise _Broken(f"its answer {each!r:.60} is neither a text nor a number")
        found.append("" if each is None else str(each).strip())
    return tuple(dict.fromkeys(filter(None, found)))


def _kept(
    marked: Iterable[tuple[Passage, bool]], assume: Callable[[str], None]
) -> tuple[tuple[Passage, ...], tuple[int, ...]]:
    """Passages that have text, and the indices among them of those marked as gold."""
    everything = list(marked)
    kept = [(passage, gold) for passage, gold in everything if passage.text]
    if len(kept) < len(everything):
        assume("contexts without text are left out")
    return tuple(passage for passage, _ in kept), tuple(n for n, (_, gold) in enumerate(kept) if gold)


def _some(passages: tuple[Passage, ...]) -> tuple[Passage, ...]:
    """Formats whose questions bring their contexts along must not fall back to a store."""
    if not passages:
        raise _Broken("none of its contexts has text")
    return passages


_PIECE = 1500
_MAX_TITLE = 200


def _split(text: str, marker: str) -> tuple[Passage, ...]:
    """At lines that begin with `marker 1:`, `marker 2:` and so on, which the text may mention in another order; without
    them, into pieces that end where paragraphs or else sentences do."""
    starts: list[re.Match[str]] = []
    for match in re.finditer(rf"^{marker} (\d{{1,6}}):[ \t]*", text, re.MULTILINE):
        if int(match[1]) == len(starts) + 1:
            starts.append(match)
    if not starts:
        return tuple(Passage("", piece) for piece in TextSplitter(_PIECE).chunks(text))
    ends = [match.start() for match in starts[1:]] + [len(text)]
    parts = [Passage("", text[: starts[0].start()].strip())]
    for match, end in zip(starts, ends, strict=True):
        body = text[match.end() : end].strip()
        head, _, rest = body.partition("\n")
        titled = rest.strip() and len(head) <= _MAX_TITLE
        parts.append(Passage(head.strip(), rest.strip()) if titled else Passage("", body))
    return tuple(part for part in parts if part.text)


# Letters of scripts that put spaces between words: "art" does not stand in "party", but 北京 does in 在北京的.
_LETTER = "[0-9A-Za-z\u00c0-\u024f]"


def holds(text: str, answers: Iterable[str]) -> bool:
    """Whether an answer stands in a text, in any case. "yes" and "no" stand everywhere and show nothing."""
    shown = [re.escape(answer) for answer in answers if answer.strip() and answer.lower() not in ("yes", "no")]
    if not shown:
        return False
    return re.search(f"(?<!{_LETTER})(?:{'|'.join(shown)})(?!{_LETTER})", text, re.IGNORECASE) is not None


def _holding(passages: tuple[Passage, ...], answers: tuple[str, ...], assume: Callable[[str], None]) -> tuple[int, ...]:
    """Indices of the passages where an answer stands."""
    texts = [f"{passage.title}\n{passage.text}" for passage in passages]
    gold = tuple(number for number, text in enumerate(texts) if holds(text, answers))
    if answers and not gold:
        assume("no passage shows an answer verbatim: its gold passages are unknown")
    return gold


# ---- Questions from a corpus ----------------------------------------------------------------------------------------

_BLANK = "____"


def corpus_questions(chunks: Iterable[tuple[str, str, str]], count: int, seed: int = 0) -> list[EvalQuestion]:
    """Questions made from a corpus alone: by turns a sentence with a blank, and the beginning of one to be continued.

    What a question quotes stands in one place of the corpus, so its answer is the only one: of a sentence with a blank,
    that is the longer part beside it. No chunk is used twice before every chunk that allows a question was used once.
    The same chunks and seed give the same questions, in whatever order the chunks come.

    Args:
        chunks: (chunk id, heading, text) of the whole corpus.
        count: fewer are returned where the corpus does not allow as many.

    Raises:
        LinearKVError: not a single question can be made.
    """
    if count < 1:
        raise LinearKVError(f"count is {count}: ask for at least 1 question")
    texts = {chunk_id: (heading, text) for chunk_id, heading, text in sorted(chunks)}
    # One line for each chunk: nothing that is searched for can reach from one into the next.
    corpus = "\n".join(_flat(text) for _, text in texts.values())
    made: list[EvalQuestion] = []

    def is_unique(quoted: str) -> bool:
        part = _flat(quoted)
        first = corpus.find(part)
        return first >= 0 and corpus.find(part, first + 1) < 0

    makers = {"cloze": _cloze, "quote": _quote}
    counts = dict.fromkeys(makers, 0)

    def from_chunk(chunk_id: str, heading: str, text: str) -> Iterator[EvalQuestion]:
        """One question from each sentence that allows one, of the kind that there are fewer of when it is asked for."""
        draw = random.Random(f"{seed} {chunk_id}")
        sentences = list(_sentences(heading, text))
        draw.shuffle(sentences)
        for sentence in filter(is_unique, sentences):  # no part of any other is: saves trying each
            for kind in sorted(makers, key=counts.__getitem__):
                found = makers[kind](sentence.split(), draw, is_unique)
                if found is not None:
                    question, answer = found
                    counts[kind] += 1
                    name = f"{kind}-{counts[kind]}"
                    yield EvalQuestion(name, question, (answer,), gold_refs=(chunk_id,), hops=1, kind=kind)
                    break

    sources = [from_chunk(chunk_id, heading, text) for chunk_id, (heading, text) in texts.items()]
    random.Random(f"{seed}").shuffle(sources)
    while sources and len(made) < count:
        fruitful = []
        for source in sources:
            if len(made) < count and (question := next(source, None)) is not None:
                made.append(question)
                fruitful.append(source)
        sources = fruitful
    if not made:
        raise LinearKVError(
            f"no question can be made from the corpus: in its {len(texts)} chunks no sentence of running text has "
            f"{_MIN_WORDS} words or more and stands in one place only. Write a question file instead"
        )
    return made


def _flat(text: str) -> str:
    return " ".join(text.split()).casefold()


_WORD = r"[^\W_][\w'’-]*(?:[.,]\d+)*"
_BLANKED = re.compile(rf"({_WORD}(?: {_WORD}){{0,2}})([.,;:!?)]*)")


def _cloze(words: list[str], draw: random.Random, is_unique: Callable[[str], bool]) -> tuple[str, str] | None:
    spans = [(start, start + size) for size in (1, 2, 3) for start in range(1, len(words) - size + 1)]
    draw.shuffle(spans)
    for start, end in spans:
        match = _BLANKED.fullmatch(" ".join(words[start:end]))
        if match is None or not (_tells(match[1].split()[0]) and _tells(match[1].split()[-1])):
            continue
        left, right = " ".join(words[:start]), " ".join(words[end:])
        if match[1].casefold() not in f"{left} {right}".casefold() and is_unique(max(left, right, key=len)):
            return f'Fill in the blank: "{" ".join([*words[:start], _BLANK + match[2], *words[end:]])}"', match[1]
    return None


def _tells(word: str) -> bool:
    """Whether a word says something: a name, a number or a long word, which few function words are."""
    return (word[0].isupper() and len(word) > 1) or any(char.isdigit() for char in word) or len(word) >= 6


def _quote(words: list[str], draw: random.Random, is_unique: Callable[[str], bool]) -> tuple[str, str] | None:
    sizes = list(range(3, min(8, len(words) - 6) + 1))
    draw.shuffle(sizes)
    for size in sizes:
        beginning = " ".join(words[:-size])
        if is_unique(beginning):
            return f'Continue: "{beginning}"', " ".join(words[-size:]).rstrip(".!?")
    return None


_MIN_WORDS, _MAX_WORDS = 9, 40
_SENTENCE_GAP = re.compile(r"(?<=[.!?])\s+(?=[^\Wa-z_])")
# Quotation marks would close the quotation, markup does not read as words.
_NOT_PLAIN = re.compile(r'["“”„«»`|<>{}\[\]\\*_=#~^]|://|\.\.|::')


def _sentences(heading: str, text: str) -> Iterator[str]:
    """Whole sentences of running text, each on one line."""
    for paragraph in _paragraphs(heading, text):
        for sentence in _SENTENCE_GAP.split(paragraph):
            words = sentence.split()
            whole = sentence.endswith((".", "!", "?")) and sentence[0].isalnum() and not sentence[0].islower()
            if whole and _MIN_WORDS <= len(words) <= _MAX_WORDS and not _NOT_PLAIN.search(sentence):
                yield sentence


_FENCE = re.compile(r" {0,3}(?:```|~~~)")
_CODE = re.compile(r" {4}| {0,3}\t")
_RULE = re.compile(r"([^\w\s])\1{2,}")
_ITEM = re.compile(r"(?:[-*+•]|\d{1,3}[.)])\s+")
_COLUMNS = re.compile(r"[^\s.!?:] {2,}\S")
_MARKUP = re.compile(r"[#>+=<!:.@^~]")


def _paragraphs(heading: str, text: str) -> Iterator[str]:
    """Running text of a chunk: without code, tables, headings and directives, in Markdown or reStructuredText."""
    lines = text.splitlines()
    if sum(bool(_FENCE.match(line)) for line in lines) % 2:
        return  # a chunk that begins or ends inside code: which side of the fence is code cannot be told
    titles = {heading, *heading.split(" > ")}
    fenced = False
    paragraph: list[str] = []
    for line in [*lines, ""]:
        bare = line.strip()
        if _FENCE.match(line):
            fenced = not fenced
        elif _RULE.fullmatch(bare) and paragraph:
            paragraph.pop()  # what a line of punctuation underlines is a heading
        item = _ITEM.match(bare)
        is_prose = bare and not (
            fenced
            or _FENCE.match(line)
            or _CODE.match(line)
            or _RULE.fullmatch(bare)
            or "|" in bare
            or _COLUMNS.search(bare)
            or (_MARKUP.match(bare) and not item)
            or bare in titles
        )
        if paragraph and (item or not is_prose):
            yield " ".join(paragraph)
            paragraph = []
        if is_prose:
            paragraph.append(bare[item.end() :] if item else bare)
