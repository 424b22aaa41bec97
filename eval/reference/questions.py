"""Writes held-out questions of the reference model's generator as a question file for `linearkv eval`.

    python -m linearkv.eval.reference.questions --count 500 --hops 1 --chunks 10 --out one-hop.jsonl
    linearkv eval one-hop.jsonl --k 10 --shuffles 8

Each line brings its own documents, so that no store is needed.
"""

import argparse
import json
from pathlib import Path

from linearkv.eval.reference.generator import HeldOut, Question


def record(question: Question, name: str) -> dict[str, object]:
    """One line of the file."""
    return {
        "id": name,
        "question": question.question,
        "answers": list(question.answers),
        "contexts": [{"title": heading or "", "text": text} for heading, text in question.chunks],
        "gold": list(question.gold),
        "hops": question.hops or None,
    }


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--hops", type=int, default=1, choices=(0, 1, 2), help="0: nothing in the documents answers")
    parser.add_argument("--chunks", type=int, default=10)
    parser.add_argument("--chunk-tokens", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--held-out",
        choices=("all", "names", "wording", "none"),
        default="all",
        help="what training never saw: names and wordings, one of them, or the documents alone",
    )
    options = parser.parse_args(argv)
    source = HeldOut(
        options.seed,
        held_out_names=options.held_out in ("all", "names"),
        held_out_wording=options.held_out in ("all", "wording"),
    )
    questions = source.questions(
        options.count, hops=options.hops, chunks=options.chunks, chunk_tokens=options.chunk_tokens
    )
    lines = (json.dumps(record(question, f"q{number}")) for number, question in enumerate(questions))
    options.out.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
