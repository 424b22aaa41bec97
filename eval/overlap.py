"""What it saves to bring states to memory while the question is embedded.

    python -m linearkv.eval.overlap --questions 40 --out overlap.json

A corpus is indexed; then two engines, each with nothing in its memory tier, are asked the same questions in turns. In
one of them the states of what the question's words find are brought ahead (`PageStore.prefetch`), in the other they are
not. Every question is of documents of its own, so its states come from disk. Times are ratios of medians, with beside
against without; `guessed` is the share of the chunks of a result that were among those brought ahead.
"""

import argparse
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

from linearkv import Engine, Settings
from linearkv.eval.bench import describe_machine
from linearkv.eval.reference.generator import HeldOut
from linearkv.eval.restore_suite import written
from linearkv.models import load_model
from linearkv.retrieval import Hit


class Ahead(Engine):
    """An engine that notes what it brings ahead."""

    likely: frozenset[str] = frozenset()

    def _prefetch(self, likely: list[Hit]) -> None:
        self.likely = frozenset(hit.chunk_id for hit in likely)
        super()._prefetch(likely)


class Plain(Engine):
    """An engine that brings nothing ahead."""

    def _prefetch(self, likely: list[Hit]) -> None:
        pass


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="reference", help="'reference', or the folder of a checkpoint")
    parser.add_argument("--questions", type=int, default=40)
    parser.add_argument("--chunks", type=int, default=6, help="of an answer")
    parser.add_argument("--cache", choices=("lmcache", "files"), default="lmcache")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(argv)
    model = load_model(options.model)
    settings = Settings(restore="always", cache=options.cache)
    asked = HeldOut(options.seed).questions(options.questions + 1, chunks=options.chunks)
    with tempfile.TemporaryDirectory(prefix="linearkv-overlap-") as folder:
        docs = Path(folder) / "docs"
        docs.mkdir()
        for number, question in enumerate(asked):
            for position, text in enumerate(written(question.chunks)):
                (docs / f"{number:03d}-{position:02d}.md").write_text(text, encoding="utf-8")
        with Engine.open(Path(folder) / "store", model, settings=settings) as engine:
            engine.index(docs)
        with (
            Ahead.open(Path(folder) / "store", model, settings=settings) as ahead,
            Plain.open(Path(folder) / "store", model, settings=settings) as plain,
        ):
            for engine in (ahead, plain):
                engine.query(asked[-1].question, options.chunks, max_new_tokens=1)  # opens what opens at first use
            rows = [ask(number, q.question, ahead, plain, options.chunks) for number, q in enumerate(asked[:-1])]
    result = summary(rows)
    for name, value in result.items():
        print(f"{name:12s} {value:.3f}")
    if options.out is not None:
        given = {name: str(value) for name, value in vars(options).items()}
        report = {"options": given, "machine": describe_machine(model.device), "result": result, "rows": rows}
        options.out.write_text(json.dumps(report, indent=1) + "\n")


def ask(number: int, question: str, ahead: Any, plain: Any, chunks: int) -> dict[str, Any]:
    """Both engines' times for one question, the first in turns."""
    row: dict[str, Any] = {}
    pair = [("ahead", ahead), ("plain", plain)]
    answers = {}
    for name, engine in pair if number % 2 else pair[::-1]:
        answer = engine.query(question, chunks, max_new_tokens=1)
        times = answer.timings
        row[name] = {"retrieve_s": times.retrieve_s, "restore_s": times.restore_s, "ttft_s": times.ttft_s}
        row[name]["tiers"] = answer.cache.tiers
        answers[name] = answer.text
    if answers["ahead"] != answers["plain"]:
        raise SystemExit(f"not the same answer to {question!r}: {answers}")
    found = {hit.chunk_id for hit in plain.search(question, chunks)}
    row["guessed"] = len(found & ahead.likely) / len(found)
    return row


def summary(rows: list[dict[str, Any]]) -> dict[str, float]:
    def median(name: str, *times: str) -> float:
        return statistics.median(sum(row[name][time] for time in times) for row in rows)

    return {
        "guessed": statistics.mean(row["guessed"] for row in rows),
        "retrieve": median("ahead", "retrieve_s") / median("plain", "retrieve_s"),
        "restore": median("ahead", "restore_s") / median("plain", "restore_s"),
        "both": median("ahead", "retrieve_s", "restore_s") / median("plain", "retrieve_s", "restore_s"),
        "ttft": median("ahead", "ttft_s") / median("plain", "ttft_s"),
    }


if __name__ == "__main__":
    main()
