"""What it saves to bring states to memory while the question is embedded.

    python -m linearkv.eval.overlap --questions 60 --out overlap.json

A corpus is indexed; then two engines, each with nothing in its memory tier, are asked the same questions in turns. One
of them brings ahead what it does (`StateCache.prefetch`), the other nothing. Every question is of documents of its own,
so its states come from disk. Times are ratios of medians, with beside against without; `pages read` counts those that
were brought in vain too.
"""

import argparse
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any
from unittest.mock import patch

from linearkv import Engine, Settings
from linearkv.eval.bench import describe_machine
from linearkv.eval.reference.generator import HeldOut
from linearkv.eval.restore_suite import written
from linearkv.models import load_model

WARMING = 5
TIMES = ("retrieve_s", "restore_s", "ttft_s")


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="reference", help="'reference', or the folder of a checkpoint")
    parser.add_argument("--questions", type=int, default=60)
    parser.add_argument("--chunks", type=int, default=6, help="of an answer")
    parser.add_argument("--cache", choices=("lmcache", "files"), default="lmcache")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(argv)
    model = load_model(options.model)
    settings = Settings(restore="always", cache=options.cache)
    # The first of them open what opens at first use, and time what prefetching goes by.
    asked = HeldOut(options.seed).questions(options.questions + WARMING, chunks=options.chunks)
    with tempfile.TemporaryDirectory(prefix="linearkv-overlap-") as folder:
        store, docs = Path(folder) / "store", Path(folder) / "docs"
        docs.mkdir()
        for number, question in enumerate(asked):
            for position, text in enumerate(written(question.chunks)):
                (docs / f"{number:03d}-{position:02d}.md").write_text(text, encoding="utf-8")
        with Engine.open(store, model, settings=settings) as engine:
            engine.index(docs)
        with (
            Engine.open(store, model, settings=settings) as ahead,
            Engine.open(store, model, settings=settings) as plain,
        ):
            rows = [ask(n, q.question, ahead, plain, options.chunks) for n, q in enumerate(asked)][WARMING:]
            reads = [next(t["hits"] for t in e.stats()["tiers"] if t["tier"] == "disk") for e in (ahead, plain)]
    result = {name.removesuffix("_s"): ratio(rows, name) for name in TIMES} | {"pages read": reads[0] / reads[1]}
    for name, value in result.items():
        print(f"{name:12s} {value:.3f}")
    if options.out is not None:
        given = {name: str(value) for name, value in vars(options).items()}
        report = {"options": given, "machine": describe_machine(model.device), "result": result, "rows": rows}
        options.out.write_text(json.dumps(report, indent=1) + "\n")


def ask(number: int, question: str, ahead: Engine, plain: Engine, chunks: int) -> dict[str, Any]:
    """Both engines' times for one question, the first in turns."""
    row: dict[str, Any] = {}
    texts = {}
    pair = [("ahead", ahead), ("plain", plain)]
    for name, engine in pair if number % 2 else pair[::-1]:
        with patch.object(type(engine.states), "may_prefetch", engine is ahead):
            answer = engine.query(question, chunks, max_new_tokens=1)
        row[name] = {time: getattr(answer.timings, time) for time in TIMES} | {"tiers": answer.cache.tiers}
        texts[name] = answer.text
    if texts["ahead"] != texts["plain"]:
        raise SystemExit(f"not the same answer to {question!r}: {texts}")
    return row


def ratio(rows: list[dict[str, Any]], time: str) -> float:
    """Of medians, with beside against without."""
    ahead, plain = (statistics.median(row[name][time] for row in rows) for name in ("ahead", "plain"))
    return ahead / plain


if __name__ == "__main__":
    main()
