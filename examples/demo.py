"""The demo: index a handbook, answer questions from cached chunk states in several orders, and say what that saved.

    python examples/demo.py [--model reference] [--store demo-store] [--questions 8]

Uses nothing but the public API. Run it twice: the second time everything is there already.
"""

import argparse
import json
import statistics
import string
import sys
import time
from pathlib import Path
from typing import Any

from linearkv import Answer, Engine, IndexReport, LinearKVError, Settings

HANDBOOK = Path(__file__).parent / "handbook"
ORDERS = ("bidirectional", "cyclic", "sequential")
CHUNKS = 6
LONGEST_ANSWER = 24
WIDTH = 88


def main() -> None:
    options = arguments()
    # The reference model learned from short chunks; a real checkpoint takes the default of 512 tokens.
    settings = Settings(chunk_tokens=200)
    started = time.monotonic()
    with Engine.open(options.store, options.model, settings=settings) as engine:
        stats = engine.stats()
        title("1. Index: every chunk is prefilled once")
        print(f"model   {options.model} on {stats['device']} in {stats['dtype']}")
        print(f"store   {options.store}\n")
        report = index(engine)
        title("2. Ask: chunks are composed, only the question is prefilled")
        questions = chosen_questions(options.questions)
        engine.query(questions[0]["question"], k=CHUNKS, max_new_tokens=1)  # loads the embedding model
        pairs = [ask(engine, question, all_orders=number < 3) for number, question in enumerate(questions)]
    title("3. Restart: open the store again and ask the same questions")
    with Engine.open(options.store, options.model, settings=settings) as engine:
        again = engine.index(HANDBOOK / "docs")
        answers = [answer_to(engine, question) for question in questions]
        same = sum(new.text == old.text for new, (old, _) in zip(answers, pairs, strict=True))
        from_disk = sum(answer.cache.tiers.get("disk", 0) for answer in answers)
        missing = again.prefilled + sum(answer.cache.tiers.get("prefilled", 0) for answer in answers)
        print(f"{same} of {len(answers)} answers are the same to the last character")
        print(f"{from_disk} chunk states were read from disk, {missing} were prefilled again")
        title("4. Is that good enough? The handbook's questions from shuffled chunks, mode by mode")
        print(evaluate(engine))
    title("Summary")
    summary(pairs, questions, report.chunks, report.prefilled)
    print(f"\ntook {time.monotonic() - started:.0f} s")
    if same < len(answers) or missing:
        sys.exit("the restart changed something: that is a bug")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Index the example handbook and answer questions about it.")
    parser.add_argument("--model", default="reference", help="'reference', or the folder of a checkpoint")
    parser.add_argument("--store", default="demo-store", help="folder of the store")
    parser.add_argument("--questions", type=int, default=8, help="how many questions to ask")
    options = parser.parse_args()
    if options.questions < 1:
        parser.error(f"--questions is {options.questions}; ask at least one")
    return options


def index(engine: Engine) -> IndexReport:
    """Indexes the handbook and prints the report."""
    report = engine.index(HANDBOOK / "docs", progress=Lines())
    disk = engine.stats()["tiers"][-1]["bytes"]
    if not report.prefilled:
        print("the store is from an earlier run: nothing has changed, so nothing is prefilled")
    print(f"{report.documents} documents in {report.chunks} chunks ({report.seconds:.1f} s)")
    print(f"  documents  {report.added} added, {report.updated} updated, {report.unchanged} unchanged")
    print(f"  chunks     {report.prefilled} prefilled now, {report.reused} already there")
    print(f"  on disk    {disk / 1e6:.0f} MB of chunk states")
    for item in report.skipped:
        print(f"  left out   {item.path}: {item.reason}")
    return report


def evaluate(engine: Engine) -> str:
    """A small evaluation; a real one takes all questions and more orders."""
    modes = ("sequential", "bidirectional", "prefix_cache", "last_state", "prefix_only")
    report = engine.evaluate(
        HANDBOOK / "qa.jsonl", limit=24, k=CHUNKS, shuffles=2, timed=2, modes=modes, progress=Lines()
    )
    return report.summary()


def chosen_questions(count: int) -> list[dict[str, Any]]:
    """Some of the handbook's questions: most need one chunk, one needs two, one has no answer there."""
    with (HANDBOOK / "qa.jsonl").open(encoding="utf-8") as file:
        questions = [json.loads(line) for line in file]
    one_hop = [q for q in questions if q["hops"] == 1 and q["kind"] != "not_in_documents"]
    two_hop = next(q for q in questions if q["hops"] == 2)
    unanswerable = next(q for q in questions if q["kind"] == "not_in_documents")
    others = [two_hop, unanswerable][: max(0, count - 3)]
    wanted = count - len(others)
    return [one_hop[position * len(one_hop) // wanted] for position in range(wanted)] + others


def ask(engine: Engine, question: dict[str, Any], all_orders: bool) -> tuple[Answer, Answer]:
    """Asks one question composed and, side by side, with the same prompt prefilled for real; returns both answers."""
    print(f"Q  {question['question']}")
    composed = answer_to(engine, question)
    full = answer_to(engine, question, mode="full")
    show(composed, question)
    if all_orders:
        for order in ORDERS[1:]:
            show(answer_to(engine, question, order=order), question)
    show(full, question)
    cache = composed.cache
    where = ", ".join(f"{count} from {tier}" for tier, count in cache.tiers.items())
    ratio = first_token(full) / first_token(composed)
    print(f"   expected       {question['answers'][0]}")
    print(f"   best source    {composed.sources[0].document}, {composed.sources[0].heading or 'no heading'}"[:WIDTH])
    print(f"   reused         {cache.reused_tokens:,} of {cache.prompt_tokens:,} prompt tokens; chunks: {where}")
    print(f"   full prefill   {ratio:.1f} times as long to the first token\n")
    return composed, full


def answer_to(engine: Engine, question: dict[str, Any], **options: Any) -> Answer:
    return engine.query(question["question"], k=CHUNKS, max_new_tokens=LONGEST_ANSWER, restore="always", **options)


def show(answer: Answer, question: dict[str, Any]) -> None:
    text = " ".join(answer.text.split()) or "(empty)"
    if len(text) > 40:
        text = text[:39] + "…"
    mark = "right" if is_right(answer, question) else "wrong"
    print(f"   {answer.mode:<13}  {text:<40}  {mark}  {first_token(answer) * 1000:6.0f} ms")


def first_token(answer: Answer) -> float:
    """Seconds from the retrieved chunks to the first token; retrieval is the same for every mode."""
    return answer.timings.ttft_s - answer.timings.retrieve_s


def is_right(answer: Answer, question: dict[str, Any]) -> bool:
    return normal(answer.text) in {normal(text) for text in question["answers"]}


def normal(text: str) -> str:
    """Text as it is compared: no case, punctuation or articles."""
    words = text.lower().translate(str.maketrans("", "", string.punctuation)).split()
    return " ".join(word for word in words if word not in ("a", "an", "the"))


def summary(pairs: list[tuple[Answer, Answer]], questions: list[dict[str, Any]], chunks: int, prefilled: int) -> None:
    composed, full = ([first_token(pair[side]) for pair in pairs] for side in (0, 1))
    ratio = statistics.median(slow / fast for fast, slow in zip(composed, full, strict=True))
    reused = sum(answer.cache.reused_tokens for answer, _ in pairs)
    tokens = sum(answer.cache.prompt_tokens for answer, _ in pairs)
    right = [sum(is_right(pair[side], q) for pair, q in zip(pairs, questions, strict=True)) for side in (0, 1)]
    agree = sum(normal(answer.text) == normal(other.text) for answer, other in pairs)
    retrieve = statistics.median(answer.timings.retrieve_s for answer, _ in pairs)
    print(f"chunks prefilled       {prefilled} in this run, {chunks - prefilled} in an earlier one; each once")
    print(f"answers                {len(pairs)} composed, {len(pairs)} by full prefill")
    print(f"prompt tokens reused   {reused:,} of {tokens:,} ({reused / tokens:.0%})")
    print(
        f"first token, median    {statistics.median(composed) * 1000:.0f} ms composed, "
        f"{statistics.median(full) * 1000:.0f} ms full prefill: {ratio:.1f} times faster"
    )
    print(f"                       (and {retrieve * 1000:.0f} ms of retrieval in both)")
    print(f"right answers          {right[0]} of {len(pairs)} composed, {right[1]} of {len(pairs)} full prefill")
    print(f"same answer            {agree} of {len(pairs)}, composed and full prefill")
    print(
        "\nThe reference model has ten million parameters and is here so that everything runs for real;\n"
        "what it gets right says little about a real checkpoint. Where to go from here:\n"
        "  linearkv index your-documents/ --store your-store\n"
        '  linearkv query "your question" --store your-store [--mode full]\n'
        "  ... --model path/to/checkpoint    a Qwen3.5, Qwen3.6 or Qwen3-Next folder\n"
        "  linearkv eval your-questions.jsonl --store your-store    is it good enough for your documents?\n"
        "  linearkv bench                    time to first token, composed against full prefill\n"
        "  linearkv doctor                   what is installed, used, and wrong"
    )


class Lines:
    """Progress as one line that is written over on a terminal, and as a line now and then elsewhere."""

    def __init__(self) -> None:
        self._written = time.monotonic()
        self._terminal = sys.stdout.isatty()

    def __call__(self, stage: str, done: int, total: int | None) -> None:
        now = time.monotonic()
        if self._terminal:
            print(f"\r{stage} {done}/{total}".ljust(40) + "\r", end="", flush=True)
        elif now - self._written > 5:
            self._written = now
            print(f"{stage} {done}/{total}", flush=True)


def title(text: str) -> None:
    print(f"\n{text}\n{'-' * len(text)}")


if __name__ == "__main__":
    try:
        main()
    except (LinearKVError, FileNotFoundError) as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit("\ninterrupted; run it again to go on")
