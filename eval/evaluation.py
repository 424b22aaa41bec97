"""`evaluate`: from questions to a report. The engine's `evaluate` and the command line come here."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from linearkv import Engine, LinearKVError
from linearkv.eval.bench import describe_machine
from linearkv.eval.questions import EvalQuestion, corpus_questions, read_questions
from linearkv.eval.report import EvalReport
from linearkv.eval.runner import EvalOptions, run

DEFAULT_COUNT = 100
"""Questions made from a corpus when no number is given."""


def evaluate(
    engine: Engine,
    questions: str | Path | Sequence[EvalQuestion] | None = None,
    options: EvalOptions | None = None,
    *,
    limit: int | None = None,
    file: str | Path | None = None,
    part: tuple[int, int] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> EvalReport:
    """Runs an evaluation.

    Args:
        questions: a question file, questions, or None to make cloze and quotation questions from the store's chunks.
        limit: only so many questions.
        file: where finished questions are kept, so that an interrupted run goes on there.
        part: (i, n) asks the i-th of n parts of the questions alone, so that processes can share them; see `run`.
        progress: called with (questions done, questions in all).

    Raises:
        LinearKVError: no usable questions; a file of another run.
    """
    options = options or EvalOptions()
    notes: list[str] = []
    source: dict[str, Any] = {"limit": limit}
    if questions is None:
        chunks = [(chunk.content_hash, chunk.heading, chunk.text) for chunk in engine.chunks()]
        if not chunks:
            raise LinearKVError("nothing is indexed to make questions from: index documents, or give a question file")
        asked = corpus_questions(chunks, limit or DEFAULT_COUNT, options.seed)
        source |= {"questions_from": "corpus"}
        notes.append("the questions were made from the corpus: gaps and continuations of its own sentences")
        if len(asked) < (limit or DEFAULT_COUNT):
            notes.append(f"the corpus gives {len(asked)} such questions, not {limit or DEFAULT_COUNT}")
    elif isinstance(questions, (str, Path)):
        read = read_questions(Path(questions), limit=limit)
        asked, notes = read.questions, list(read.notes)
        source |= {"questions_from": Path(questions).name, "format": read.format, "digest": read.digest}
    else:
        asked = list(questions)[:limit]
        source |= {"questions_from": "caller"}
    records = run(
        engine,
        asked,
        options,
        file=Path(file) if file is not None else None,
        part=part,
        about=source,
        progress=progress,
    )
    about = {
        "options": asdict(options),
        "model": engine.model.folder.name if engine.model.folder is not None else type(engine.model.hf).__name__,
        "source": source,
        "machine": describe_machine(engine.model.device),
    }
    return EvalReport.of(records, about, notes)
