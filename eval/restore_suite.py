"""Does a store give back exactly what was put into it: after a restart, from memory, and nothing that it never had.

    python -m linearkv.eval.restore_suite --out restore.json

Contexts of 2, 5, 10 and 20 chunks by 3 questions, each question in another order of composition. For every case a new
store is indexed in one process and asked in another, which has nothing in memory. There

- every chunk comes from disk, none is prefilled, and answer and composed state are those of the first process, the
  state to the bit;
- asking again, now from memory, changes nothing;
- a context of text that was never stored has no hit, and state and answer of a prefill without any store; and once it
  was kept, it comes from disk after another restart, still the same to the bit.

All of it runs several times over, each time with new stores. Exits with 1 unless every case passes every time.
"""

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from linearkv import ChunkState, ChunkTokens, Context, Engine, Settings, compose, pack, unpack
from linearkv.eval.reference.generator import HeldOut
from linearkv.kernels.compose import ORDERS
from linearkv.models import load_model

LONGEST_ANSWER = 24
# A document of the corpus is one chunk.
SETTINGS = Settings(chunk_tokens=512, restore="always")


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="reference", help="'reference', or the folder of a checkpoint")
    parser.add_argument("--lengths", type=int, nargs="+", default=[2, 5, 10, 20], help="chunks of a context")
    parser.add_argument("--questions", type=int, default=3, help="of each length")
    parser.add_argument("--repetitions", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--step", choices=STEPS, help=argparse.SUPPRESS)  # in a process of its own: one step of a case
    parser.add_argument("--case", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.step:
        STEPS[options.step](options.case)
        return

    repetitions: list[dict[str, Any]] = []
    for number in range(1, options.repetitions + 1):
        cases = []
        for length in options.lengths:
            for question in range(options.questions):
                with tempfile.TemporaryDirectory(prefix="linearkv-restore-") as folder:
                    cases.append(run_case(Path(folder), options.model, length, question, options.seed))
                failed = [name for name, passed in cases[-1]["checks"].items() if not passed]
                print(f"  {length:3d} chunks, question {question + 1}: {'; '.join(failed) or 'passed'}", flush=True)
        passed = sum(all(case["checks"].values()) for case in cases)
        print(f"repetition {number}: {passed} of {len(cases)}", flush=True)
        repetitions.append({"passed": passed, "cases": cases})
    if options.out is not None:
        given = {name: value for name, value in vars(options).items() if name not in ("step", "case")}
        options.out.write_text(json.dumps({**given, "results": repetitions}, default=str, indent=1) + "\n")
    if any(repetition["passed"] < len(repetition["cases"]) for repetition in repetitions):
        sys.exit(1)


def run_case(folder: Path, model: str, length: int, question: int, seed: int) -> dict[str, Any]:
    """Writes a corpus of `length` chunks, and what is asked of it; indexes and asks in two processes."""
    asked, other = HeldOut(seed).questions(2 * (question + 1), chunks=length)[-2:]
    docs = folder / "docs"
    docs.mkdir()
    for position, text in enumerate(written(asked.chunks)):
        (docs / f"{position:02d}.md").write_text(text, encoding="utf-8")
    case = {
        "model": model,
        "length": length,
        "question": asked.question,
        "accepted": asked.answers,
        "order": ORDERS[question % len(ORDERS)],
        "other": written(other.chunks),
        "other_question": other.question,
    }
    (folder / "case.json").write_text(json.dumps(case))
    for step in STEPS:
        command = [sys.executable, "-m", "linearkv.eval.restore_suite", "--step", step, "--case", str(folder)]
        done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        if done.returncode:
            print(done.stderr, file=sys.stderr)
            return {**case, "checks": {f"the process that does “{step}” ends well": False}}
    results = {step: json.loads((folder / f"{step}.json").read_text()) for step in STEPS}
    return {**case, "checks": checks(length, **results), **results}


def written(documents: Sequence[tuple[str | None, str]]) -> list[str]:
    """Documents as Markdown."""
    return [f"# {heading or 'Note'}\n\n{text}\n" for heading, text in documents]


def checks(length: int, index: dict[str, Any], ask: dict[str, Any]) -> dict[str, bool]:
    """What has to hold of a case, by name."""
    first, cold, warm = index["state"], ask["cold"], ask["warm"]
    unknown, clean, kept = ask["unknown"], ask["clean"], ask["kept"]
    return {
        "the corpus has as many chunks as it should": index["chunks"] == index["prefilled"] == length,
        "restart: every chunk came from disk": cold["tiers"] == ask["cold_answer"]["tiers"] == {"disk": length},
        "restart: nothing was damaged or left out": not cold["trouble"] and not ask["cold_answer"]["trouble"],
        "restart: the answer is the same": ask["cold_answer"]["text"] == index["answer"]["text"],
        "restart: the composed state is the same": cold["digest"] == first["digest"],
        "warm: every chunk came from memory": warm["tiers"] == ask["warm_answer"]["tiers"] == {"memory": length},
        "warm: the answer is the same": ask["warm_answer"]["text"] == index["answer"]["text"],
        "warm: the composed state is the same": warm["digest"] == first["digest"],
        "never stored: no hit": not ask["unknown_present"] and unknown["tiers"] == {"prefilled": length},
        "never stored: the state is that of a clean prefill": unknown["digest"] == clean["digest"] != first["digest"],
        "never stored: the answer is that of a clean prefill": unknown["text"] == clean["text"],
        "kept since: every chunk came from disk": kept["tiers"] == {"disk": length},
        "kept since: state and answer are the same": (kept["digest"], kept["text"]) == (clean["digest"], clean["text"]),
    }


def index_step(folder: Path) -> None:
    """Indexes, asks, and notes what came of it."""
    case = json.loads((folder / "case.json").read_text())
    with Engine.open(folder / "store", case["model"], settings=SETTINGS) as engine:
        report = engine.index(folder / "docs")
        noted = {
            "chunks": report.chunks,
            "prefilled": report.prefilled,
            "answer": query(engine, case),
            "state": restore(engine, found_chunks(engine, case), case["order"]),
        }
    (folder / "index.json").write_text(json.dumps(noted))


def ask_step(folder: Path) -> None:
    """Asks what `index_step` asked, and more; every engine opened here begins with nothing in memory."""
    case = json.loads((folder / "case.json").read_text())
    model = load_model(case["model"])
    with Engine.open(folder / "store", model, settings=SETTINGS) as engine:
        noted: dict[str, Any] = {"cold": restore(engine, found_chunks(engine, case), case["order"])}
    with Engine.open(folder / "store", model, settings=SETTINGS) as engine:
        noted["cold_answer"] = query(engine, case)
        noted["warm_answer"] = query(engine, case)
        noted["warm"] = restore(engine, found_chunks(engine, case), case["order"])
    with Engine.open(folder / "store", model, settings=SETTINGS) as engine:
        others = [
            ChunkTokens(hashlib.sha256(text.encode()).hexdigest(), engine.prompt.chunk_ids(text))
            for text in case["other"]
        ]
        keys = [engine.states.key(chunk.token_ids) for chunk in others]
        noted["unknown_present"] = sorted(engine.states.pages.contains(keys))
        noted["unknown"] = restore(engine, others, case["order"], case["other_question"])
        noted["clean"] = outcome(engine, prefilled(engine, others), case["order"], case["other_question"])
    with Engine.open(folder / "store", model, settings=SETTINGS) as engine:
        noted["kept"] = restore(engine, others, case["order"], case["other_question"])
    (folder / "ask.json").write_text(json.dumps(noted))


STEPS = {"index": index_step, "ask": ask_step}


def query(engine: Engine, case: dict[str, Any]) -> dict[str, Any]:
    """An answer as users get it, and where its states came from."""
    answer = engine.query(case["question"], case["length"], order=case["order"], max_new_tokens=LONGEST_ANSWER)
    trouble = answer.cache.damaged + answer.cache.not_stored
    return {"text": answer.text, "tiers": answer.cache.tiers, "trouble": trouble}


def found_chunks(engine: Engine, case: dict[str, Any]) -> list[ChunkTokens]:
    """The chunks that `query` answers from."""
    return [ChunkTokens.of(hit, engine.prompt) for hit in engine.search(case["question"], case["length"])]


def restore(engine: Engine, chunks: list[ChunkTokens], order: str, question: str = "") -> dict[str, Any]:
    """The composed state of `chunks`, as the store gives them."""
    restored = engine.states.restore(chunks)
    tiers = {tier: restored.tiers.count(tier) for tier in dict.fromkeys(restored.tiers)}
    trouble = restored.damaged + restored.not_stored
    return outcome(engine, restored.states, order, question) | {"tiers": tiers, "trouble": trouble}


def prefilled(engine: Engine, chunks: list[ChunkTokens]) -> list[ChunkState]:
    """What the states of `chunks` are without any store: prefilled, and rounded as stored states are."""
    model = engine.model
    states = model.prefill_chunks(
        engine.states.behind, [chunk.token_ids for chunk in chunks], batch_tokens=engine.settings.batch_tokens
    )
    return [unpack(pack(state, model.layer_types, engine.settings.storage)).to(model.device) for state in states]


def outcome(engine: Engine, states: list[ChunkState], order: str, question: str) -> dict[str, Any]:
    """A digest of the composed state, and what the model answers from it, if it is asked."""
    context = compose(engine.prefix, states, order)
    made = {"digest": digest(context)}
    if question:
        prompt = engine.prompt
        ids = engine.model.generate(context, prompt.question_ids(question), LONGEST_ANSWER, stop=tuple(prompt.stop_ids))
        made["text"] = prompt.decode(ids).strip()
    return made


def digest(context: Context) -> str:
    """Hex digits that are the same only for a context that is the same to the bit."""
    hasher = hashlib.sha256()
    for tensor in (context.recurrent, context.conv_tail, context.key, context.value):
        hasher.update(f"{tensor.dtype} {tuple(tensor.shape)} ".encode())
        hasher.update(tensor.cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return hasher.hexdigest()


if __name__ == "__main__":
    main()
