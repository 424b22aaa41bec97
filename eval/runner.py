"""Runs an evaluation: every mode answers the same questions from the same chunks in the same orders.

Work is done question by question; each finished question is one line of the run's file, so that a run that was killed
goes on where it was, and gives what an uninterrupted one gives. Several processes can share the questions, each with a
part of them in a file of its own. Everything in a record but its timings follows from the options, the questions and
the model alone.
"""

import fcntl
import glob
import hashlib
import json
import math
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from linearkv import Context, Engine, LinearKVError
from linearkv.eval.cases import CaseMaker
from linearkv.eval.diagnosis import Swaps, register
from linearkv.eval.metrics import kl_divergence, relative_error, score, top1_agreement
from linearkv.eval.modes import Mode, Prepared, Task, find_modes
from linearkv.eval.questions import EvalQuestion

DEFAULT_MODES = ("full", "sequential", "bidirectional", "cyclic", "bidirectional_pivot1", "prefix_cache", "prefix_only")
FORMAT = 2
_BEGINNING = b'{"run_format"'

Progress = Callable[[int, int], None]
"""Called with (questions done, questions in all)."""


@dataclass(frozen=True)
class EvalOptions:
    """What is evaluated, and how.

    Attributes:
        modes: names of `linearkv.eval.modes.MODES`; `full` is always among them.
        k: chunks of each question.
        shuffles: random orders of each question's chunks.
        gold_places: also ask with the gold chunks first, in the middle and last.
        seed: of the orders and distractors.
        diagnose: also the modes of `linearkv.eval.diagnosis`, and what maps are like in context and alone.
        max_new_tokens: longest answer.
        rule: how answers are normalised before they are compared, see docs/scoring.md.
        timed: how many of the questions, the first ones, are also timed, one order at a time, with states already in
            memory. 0 where several processes share the machine.
    """

    modes: tuple[str, ...] = DEFAULT_MODES
    k: int = 10
    shuffles: int = 8
    gold_places: bool = True
    seed: int = 0
    diagnose: bool = False
    max_new_tokens: int = 32
    rule: str = "linearkv"
    timed: int = 5

    def __post_init__(self) -> None:
        for name in ("k", "shuffles", "max_new_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")


def run(
    engine: Engine,
    questions: Sequence[EvalQuestion],
    options: EvalOptions,
    *,
    pool: Sequence[EvalQuestion],
    head: dict[str, Any],
    file: Path | None = None,
    part: tuple[int, int] | None = None,
    progress: Progress | None = None,
) -> list[dict[str, Any]]:
    """Records of all questions, or of a part of them, in the order given.

    Args:
        pool: questions whose passages serve as distractors, the asked ones among them: a run that asks more questions
            of the same pool goes on with the same file.
        head: what makes another run the same as this one, see `fingerprint`.
        file: where finished questions are kept, and looked for; None keeps them in memory only.
        part: (i, n), counted from 1: every n-th question from the i-th on, kept in `file` with `.iofn` behind its name.
            A run of the same file without a part takes what parts have finished from there.

    Raises:
        LinearKVError: unknown modes; two questions of one id; `file` is no run's file, or another process's, or belongs
            to a run with other options, questions, documents or model.
        ValueError: a part that is none.
    """
    diagnostic = register(engine.model.layer_types.count("linear_attention")) if options.diagnose else []
    modes = find_modes([*options.modes, *diagnostic], engine.model)
    twice = [name for name, count in Counter(question.id for question in questions).items() if count > 1]
    if twice:
        raise LinearKVError(f"{len(twice)} ids are those of several questions, {twice[0]!r} for one: make them unique")
    maker = CaseMaker(
        engine,
        pool,
        k=options.k,
        shuffles=options.shuffles,
        gold_places=options.gold_places,
        seed=options.seed,
    )
    asker = _Asker(engine, maker, modes, options)
    asked = list(enumerate(questions))
    whole = file
    if part is not None:
        if not 1 <= part[0] <= part[1]:
            raise ValueError(f"part is {part}: (i, n) with i from 1 to n")
        asked = asked[part[0] - 1 :: part[1]]
        file = None if file is None else file.with_name(f"{file.name}.{part[0]}of{part[1]}")
    with ExitStack() as opened:
        journal = opened.enter_context(_Journal(file, head))
        if whole is not None and part is None:
            for path in sorted(whole.parent.glob(f"{glob.escape(whole.name)}.*of*")):
                for key, record in _finished(path, head).items():
                    journal.records.setdefault(key, record)
        missing = [(number, question) for number, question in asked if question.id not in journal.records]
        for done, (number, question) in enumerate(missing):
            if progress is not None:
                progress(len(asked) - len(missing) + done, len(asked))
            journal.add(question.id, asker.record(question, number < options.timed))
        if progress is not None:
            progress(len(asked), len(asked))
    return [journal.records[question.id] for _, question in asked]


def fingerprint(
    engine: Engine, options: EvalOptions, pool: Sequence[EvalQuestion], about: dict[str, Any]
) -> dict[str, Any]:
    """What two runs must share to be one run; with the questions' file, everything needed to run it again."""
    head = {
        "run_format": FORMAT,
        "options": json.loads(json.dumps(asdict(options))),
        "model": asdict(engine.states.identity),
        "system_tokens": engine.prefix.token_ids.tolist(),
        "chunks_behind_tokens": engine.states.behind.length,
        "storage": engine.settings.storage,
        "chunk_tokens": engine.settings.chunk_tokens,
        "embedder": engine.embedder.identity,
        "questions": _digest(repr(question) for question in pool),
        **about,
    }
    if not all(question.passages for question in pool):
        head["documents"] = _digest(sorted(chunk.content_hash for chunk in engine.chunks()))
    return head


def _digest(texts: Iterable[str]) -> str:
    whole = hashlib.sha256()
    for text in texts:
        whole.update(text.encode() + b"\0")
    return whole.hexdigest()


class _Journal:
    """Finished records, by question id, and the file they are kept in: a head line and one line a question."""

    def __init__(self, path: Path | None, head: dict[str, Any]) -> None:
        self.records: dict[str, dict[str, Any]] = {}
        self._file = None
        if path is None:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a+b")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.records = _finished(path, head)
            length = sum(map(len, _whole_lines(path)))
            self._file.truncate(length)
            if not length:
                self._write(head)
        except BaseException as error:
            self._file.close()
            if isinstance(error, BlockingIOError):
                raise LinearKVError(f"another process is at work on {path}") from None
            raise

    def __enter__(self) -> "_Journal":
        return self

    def __exit__(self, *exception: object) -> None:
        if self._file is not None:
            self._file.close()

    def add(self, key: str, record: dict[str, Any]) -> None:
        # As it would be read back, so that a resumed run cannot differ from an uninterrupted one.
        self.records[key] = json.loads(json.dumps(record, allow_nan=False))
        self._write(record)

    def _write(self, value: dict[str, Any]) -> None:
        if self._file is not None:
            self._file.write(json.dumps(value, allow_nan=False).encode() + b"\n")
            self._file.flush()


def _whole_lines(path: Path) -> list[bytes]:
    """Lines of a run's file without the half one that a killed run may have left."""
    lines = path.read_bytes().splitlines(keepends=True)
    return [line for line in lines if line.endswith(b"\n")]


def _finished(path: Path, head: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Records of a run's file by question id, but those of questions that failed: they are asked again.

    Raises:
        LinearKVError: it is the file of a run with another head, or of no run.
    """
    if not path.stat().st_size:
        return {}
    with path.open("rb") as file:
        if not file.read(len(_BEGINNING)).startswith(_BEGINNING):
            raise LinearKVError(f"{path} is not the file of a run, and is left as it is: give another")
    values = []
    for number, line in enumerate(_whole_lines(path), 1):
        try:
            values.append(json.loads(line))
        except ValueError as error:
            raise LinearKVError(f"line {number} of {path} is damaged ({error}): remove that line") from error
    if not values:
        return {}
    found, *records = values
    if found != head:
        different = sorted(key for key in {*found, *head} if found.get(key) != head.get(key))
        raise LinearKVError(
            f"{path} belongs to another run ({', '.join(different)} differ): give another file, or remove it"
        )
    return {record["id"]: record for record in records if "error" not in record}


@dataclass(frozen=True)
class _Asker:
    """Asks questions of every mode."""

    engine: Engine
    maker: CaseMaker
    modes: Sequence[Mode]
    options: EvalOptions

    def record(self, question: EvalQuestion, timed: bool) -> dict[str, Any]:
        """Everything about one question."""
        record: dict[str, Any] = {
            "id": question.id,
            "question": question.question,
            "answers": list(question.answers),
            "hops": question.hops,
            "kind": question.kind,
        }
        try:
            return record | self._answered(question, timed)
        except (LinearKVError, ValueError, torch.OutOfMemoryError) as error:
            return record | {"error": f"question {question.id}: {str(error).removeprefix(f'question {question.id}: ')}"}

    def _answered(self, question: EvalQuestion, timed: bool) -> dict[str, Any]:
        """The question's case, and what every mode answers."""
        engine, options = self.engine, self.options
        case = self.maker.case(question)
        chunks = [engine.prompt.chunk_ids(chunk.rendered) for chunk in case.chunks]
        task = Task(
            engine.model,
            engine.prefix,
            chunks,
            [order.indices for order in case.orders],
            best=0,
            behind=engine.states.behind,
            primer=engine.prompt.primer_ids,
            storage=engine.settings.storage,
        )
        answers = _Answers(engine, question, options)
        answers.check_length(task.prefix.length + sum(map(len, chunks)))
        record: dict[str, Any] = {
            "note": case.note,
            "chunks": [
                {"name": chunk.name, "tokens": len(ids)} for chunk, ids in zip(case.chunks, chunks, strict=True)
            ],
            "gold": list(case.gold),
            "orders": [{"label": order.label, "indices": list(order.indices)} for order in case.orders],
            "modes": {},
        }
        for mode in self.modes:
            shared = record["modes"].get(mode.same_answers_as)
            prepared = list(mode.prepare(task))
            entry = answers.of(prepared, shared)
            if shared is None and all(one.in_order for one in prepared):
                # Of the random orders alone, as scores are.
                entry |= _context_errors(
                    task.full[: options.shuffles], [one.context for one in prepared[: options.shuffles]]
                )
            entry["computed"] = [one.computed + answers.question_tokens for one in prepared]
            entry["prompt"] = [one.context.length + answers.question_tokens for one in prepared]
            entry["bytes"] = [one.chunk_bytes for one in prepared]
            record["modes"][mode.name] = entry
        if options.diagnose:
            described = Swaps.of(task).describe(task.orders[0])
            record["maps"] = {
                name: [[_rounded(head) for head in layer] for layer in values] for name, values in described.items()
            }
        if timed:
            record["ttft_s"] = _timed(task, self.modes, answers.question_ids)
        return record


class _Answers:
    """Answers of one question from contexts, and how they differ from full prefill's."""

    def __init__(self, engine: Engine, question: EvalQuestion, options: EvalOptions) -> None:
        self.engine, self.question, self.options = engine, question, options
        self.question_ids = engine.prompt.question_ids(question.question)
        self.question_tokens = len(self.question_ids)
        self._stop = sorted(engine.prompt.stop_ids)
        self._full: list[list[int]] = []
        self._full_logits: list[torch.Tensor] = []

    def check_length(self, context: int) -> None:
        """Refuses prompts that do not fit the model."""
        limit = self.engine.model.max_length
        length = context + self.question_tokens + self.options.max_new_tokens
        if length > limit:
            raise LinearKVError(
                f"its prompt and answer of {length} tokens do not fit the model's {limit} positions: ask for fewer "
                f"chunks (k is {self.options.k}) or smaller ones (chunk_tokens is {self.engine.settings.chunk_tokens})"
            )

    def of(self, prepared: Sequence[Prepared], shared: dict[str, Any] | None) -> dict[str, Any]:
        """Per order: answer, scores, and fidelity to full prefill of the same order. The first call must be full's."""
        if shared is not None:
            kept = ("answers", "em", "f1", "unscored", "kl", "top1", "state_error", "key_error", "value_error")
            return {name: shared[name] for name in kept if name in shared}
        contexts = [one.context for one in prepared]
        if not self._full:
            self._full = self._generate(contexts)
        logits = self._answer_logits(contexts)
        if not self._full_logits:
            self._full_logits = logits
        tokens = self._greedy(contexts, logits)
        texts = [self.engine.prompt.decode(ids).strip() for ids in tokens]
        scored = [score(text, self.question.answers, rule=self.options.rule) for text in texts]
        return {
            "answers": texts,
            "em": [one.em for one in scored],
            "f1": [one.f1 for one in scored],
            "unscored": scored[0].unscored,
            "kl": [_rounded(kl_divergence(a, b).mean()) for a, b in zip(self._full_logits, logits, strict=True)],
            "top1": [_rounded(top1_agreement(a, b)) for a, b in zip(self._full_logits, logits, strict=True)],
        }

    def _generate(self, contexts: Sequence[Context]) -> list[list[int]]:
        asked = [self.question_ids] * len(contexts)
        return self.engine.model.generate_many(contexts, asked, self.options.max_new_tokens, stop=self._stop)

    def _answer_logits(self, contexts: Sequence[Context]) -> list[torch.Tensor]:
        """Logits `[T, vocab]` where each token of full prefill's answer is chosen, and where it stops."""
        asked = [[*self.question_ids, *answer] for answer in self._full]
        last = self.question_tokens - 1
        return [logits[last:] for logits in self.engine.model.logits_many(contexts, asked)]

    def _greedy(self, contexts: Sequence[Context], logits: Sequence[torch.Tensor]) -> list[list[int]]:
        """Greedy answers. Where every choice along full prefill's answer is the same, so is the answer."""
        tokens: list[list[int]] = [list(answer) for answer in self._full]
        differing = []
        for row, (answer, given) in enumerate(zip(self._full, logits, strict=True)):
            chosen = given.argmax(-1).tolist()
            ended = len(answer) == self.options.max_new_tokens or chosen[-1] in self._stop
            if chosen[: len(answer)] != answer or not ended:
                differing.append(row)
        if differing:
            for row, answer in zip(differing, self._generate([contexts[row] for row in differing]), strict=True):
                tokens[row] = answer
        return tokens


def _context_errors(full: Sequence[Context], made: Sequence[Context]) -> dict[str, Any]:
    """Relative errors against full prefill, as means over the orders: states per GDN layer and head, keys and values
    per attention layer. Nothing where the contexts are not as long."""
    if any(one.length != other.length for one, other in zip(made, full, strict=True)):
        return {}
    states = torch.stack([relative_error(a.recurrent, b.recurrent) for a, b in zip(full, made, strict=True)])
    entry: dict[str, Any] = {"state_error": [[_rounded(head) for head in layer] for layer in states.mean(0).tolist()]}
    for name in ("key", "value"):
        errors = torch.stack(
            [
                relative_error(getattr(a, name).float()[:, None], getattr(b, name).float()[:, None])[:, 0]
                for a, b in zip(full, made, strict=True)
            ]
        )
        entry[f"{name}_error"] = [_rounded(layer) for layer in errors.mean(0).tolist()]
    return entry


def _timed(task: Task, modes: Sequence[Mode], question_ids: Sequence[int]) -> dict[str, float]:
    """Seconds from states in memory to the first token, one order alone, per mode: the middle one of three."""
    seconds = {}
    for mode in modes:
        if mode.same_answers_as:  # what it would save is not computed here
            continue
        one = replace(task, orders=task.orders[:1], kept={})
        list(mode.prepare(one))  # so that states are in memory
        runs = []
        for _ in range(3):
            one.__dict__.pop("full", None)  # which modes that prefill must compute again
            started = time.perf_counter()
            context = next(iter(mode.prepare(one))).context
            int(task.model.logits(context, question_ids)[-1].argmax())
            runs.append(time.perf_counter() - started)
        seconds[mode.name] = statistics.median(runs)
    return seconds


def _rounded(value: float | torch.Tensor) -> float | None:
    """Six digits, which is more than a second run on another machine repeats; None for what is not finite."""
    return float(f"{float(value):.6g}") if math.isfinite(float(value)) else None
