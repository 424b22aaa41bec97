"""`evaluate`: from questions to a report. The engine's `evaluate` and the command line come here."""

import random
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from linearkv import Engine, LinearKVError
from linearkv.eval.bench import describe_machine
from linearkv.eval.modes import find_modes
from linearkv.eval.questions import EvalQuestion, QuestionFile, corpus_questions, read_questions
from linearkv.eval.report import EvalReport
from linearkv.eval.runner import EvalOptions, fingerprint, run

DEFAULT_COUNT = 100
"""Questions made from a corpus when no number is given."""


def evaluate(
    engine: Engine,
    questions: str | Path | QuestionFile | Sequence[EvalQuestion] | None = None,
    options: EvalOptions | None = None,
    *,
    limit: int | None = None,
    file: str | Path | None = None,
    part: tuple[int, int] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> EvalReport:
    """Runs an evaluation.

    Args:
        questions: a question file, also as `read_questions` gives it, questions, or None to make cloze and quotation
            questions from the store's chunks.
        limit: only so many questions, drawn at random. The others of the file still serve as distractors.
        file: where finished questions are kept, so that an interrupted run goes on there.
        part: (i, n) asks the i-th of n parts of the questions alone, so that processes can share them; see `run`.
        progress: called with (questions done, questions in all).

    Raises:
        LinearKVError: no usable questions; a file of another run.
    """
    options = options or EvalOptions()
    find_modes(options.modes)  # what is misspelt is said before work begins
    if limit is not None and limit < 1:
        raise LinearKVError(f"limit is {limit}: it must be at least 1")
    notes: list[str] = []
    source: dict[str, Any] = {}
    if isinstance(questions, (str, Path)):
        questions = read_questions(Path(questions))
    if questions is None:
        chunks = [(chunk.content_hash, chunk.heading, chunk.text) for chunk in engine.chunks()]
        if not chunks:
            raise LinearKVError("nothing is indexed to make questions from: index documents, or give a question file")
        pool = asked = corpus_questions(chunks, limit or DEFAULT_COUNT, options.seed)
        source |= {"questions_from": "corpus"}
        notes.append("the questions were made from the corpus: gaps and continuations of its own sentences")
        if len(asked) < (limit or DEFAULT_COUNT):
            notes.append(f"the corpus gives {len(asked)} such questions, not {limit or DEFAULT_COUNT}")
    else:
        if isinstance(questions, QuestionFile):
            pool, notes = questions.questions, list(questions.notes)
            source |= {"questions_from": questions.name, "format": questions.format, "digest": questions.digest}
        else:
            pool = list(questions)
            source |= {"questions_from": "caller"}
        asked = _sample(pool, limit, options.seed)
        if len(asked) < len(pool):
            notes.append(f"{len(asked)} of {len(pool)} questions, drawn at random")
    head = fingerprint(engine, options, pool, source)
    records = run(
        engine,
        asked,
        options,
        pool=pool,
        head=head,
        file=Path(file) if file is not None else None,
        part=part,
        progress=progress,
    )
    about = {
        "options": asdict(options),
        "model": engine.model.folder.name if engine.model.folder is not None else engine.model.architecture,
        "source": source | {"limit": limit},
        "run": head,
        "machine": describe_machine(engine.model.device),
    }
    return EvalReport.of(records, about, notes)


def _sample(questions: Sequence[EvalQuestion], limit: int | None, seed: int) -> list[EvalQuestion]:
    """`limit` of the questions in their order, drawn at random; a larger limit draws the same and others."""
    if limit is None or limit >= len(questions):
        return list(questions)
    drawn = random.Random(f"{seed} questions").sample(range(len(questions)), len(questions))[:limit]
    return [questions[index] for index in sorted(drawn)]
