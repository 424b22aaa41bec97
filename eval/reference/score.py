"""How much of full prefill's accuracy composition keeps, on held-out questions of the reference model's generator.

    python -m linearkv.eval.reference.score --questions 500 --hops 1 --out eval/results/reference_orders_1hop.json

Every mode answers the same questions with the same chunks in the same permutations, greedily. Chunks are prefilled
behind the product's own prefix and stored as the product stores them.
"""

import argparse
import json
import platform
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from linearkv import PromptFormat, compose, pack, unpack
from linearkv.eval.metrics import exact_match, mean_interval, retention_interval
from linearkv.eval.reference.generator import HeldOut, Question
from linearkv.models import GDNModel, load_model
from linearkv.retrieval import render

MODES = ("full", "sequential", "bidirectional", "cyclic", "zero_state")
"""`zero_state` is an ablation: sequential composition with every GDN state then set to zero. What it loses is what the
states carry; where it loses nothing, the orders cannot differ."""


def score(
    model: GDNModel,
    prompt: PromptFormat,
    questions: Sequence[Question],
    *,
    modes: Sequence[str] = MODES,
    permutations: int = 2,
    storage: str = "fp16",
    seed: int = 0,
    progress: bool = False,
) -> dict[str, Any]:
    """Exact match per mode, and of each order relative to full prefill, with intervals.

    Also the mean KL divergence of the first answer token's distribution from full prefill's, and how often the answers
    to a question agree between permutations.
    """
    rng = np.random.default_rng(seed)
    prefix = model.prefill_prefix(prompt.prefix_ids)
    right = {mode: np.zeros((len(questions), permutations)) for mode in modes}
    texts: dict[str, list[list[str]]] = {mode: [] for mode in modes}
    divergence: dict[str, list[float]] = {mode: [] for mode in modes if mode != "full"}
    tokens = []
    started = time.monotonic()
    for row, question in enumerate(questions):
        chunks = [prompt.chunk_ids(render(heading or "", text)) for heading, text in question.chunks]
        tokens += [len(chunk) for chunk in chunks]
        asked = prompt.question_ids(question.question)
        computed = model.prefill_chunks(prefix, chunks)
        states = [unpack(pack(state, model.layer_types, storage)) for state in computed]
        for mode in modes:
            texts[mode].append([])
        for column in range(permutations):
            order = rng.permutation(len(chunks)) if column else np.arange(len(chunks))
            reference = None
            for mode in modes:
                if mode == "full":
                    context = model.prefill([*prompt.prefix_ids, *(token for i in order for token in chunks[i])])
                else:
                    wanted = "sequential" if mode == "zero_state" else mode
                    context = compose(prefix, [states[i] for i in order], order=wanted)
                    if mode == "zero_state":
                        context = replace(context, recurrent=torch.zeros_like(context.recurrent))
                first = model.logits(context, asked)[-1].log_softmax(-1)
                if mode == "full":
                    reference = first
                elif reference is not None:
                    divergence[mode].append(float((reference.exp() * (reference - first)).sum()))
                answer = prompt.decode(model.generate(context, asked, 24, stop=tuple(prompt.stop_ids))).strip()
                right[mode][row, column] = exact_match(answer, question.answers)
                texts[mode][-1].append(answer)
        if progress and (row + 1) % 10 == 0:
            rate = (time.monotonic() - started) / (row + 1)
            means = ", ".join(f"{mode} {right[mode][: row + 1].mean():.3f}" for mode in modes)
            print(
                f"{row + 1}/{len(questions)}, {rate * (len(questions) - row - 1):.0f} s left: {means}", file=sys.stderr
            )

    table = {}
    for mode in modes:
        entry: dict[str, Any] = {"em": float(right[mode].mean()), "em_interval": mean_interval(right[mode])}
        entry["same_answer"] = float(np.mean([len(set(given)) == 1 for given in texts[mode]]))
        if mode != "full" and "full" in modes:
            ratio, low, high = retention_interval(right[mode], right["full"])
            entry |= {"retention": ratio, "retention_interval": (low, high), "kl": float(np.mean(divergence[mode]))}
        table[mode] = entry
    return {
        "questions": len(questions),
        "hops": sorted({question.hops for question in questions}),
        "chunks": sorted({len(question.chunks) for question in questions}),
        "chunk_tokens_mean": float(np.mean(tokens)),
        "permutations": permutations,
        "storage": storage,
        "modes": table,
        "right": {mode: right[mode].astype(int).tolist() for mode in modes},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="reference")
    parser.add_argument("--questions", type=int, default=500)
    parser.add_argument("--hops", type=int, default=1, choices=(0, 1, 2))
    parser.add_argument("--chunks", type=int, default=10)
    parser.add_argument("--chunk-tokens", type=int, default=100)
    parser.add_argument("--permutations", type=int, default=2)
    parser.add_argument(
        "--held-out",
        choices=("all", "names", "wording", "none"),
        default="all",
        help="what training never saw: names and wordings, one of them, or the documents alone",
    )
    parser.add_argument("--storage", default="fp16")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--seed", type=int, default=0, help="of the questions and permutations")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()

    model = load_model(options.model, device=options.device, dtype=options.dtype)
    assert model.folder is not None
    prompt = PromptFormat(model.folder, model.vocab_size)
    held_out = HeldOut(
        options.seed,
        held_out_names=options.held_out in ("all", "names"),
        held_out_wording=options.held_out in ("all", "wording"),
    )
    questions = held_out.questions(
        options.questions, hops=options.hops, chunks=options.chunks, chunk_tokens=options.chunk_tokens
    )
    result = score(
        model,
        prompt,
        questions,
        permutations=options.permutations,
        storage=options.storage,
        seed=options.seed,
        progress=True,
    )
    for mode, entry in result["modes"].items():
        low, high = entry["em_interval"]
        line = f"{mode:14s} em {entry['em']:.3f} [{low:.3f}, {high:.3f}] same answer {entry['same_answer']:.3f}"
        if "retention" in entry:
            low, high = entry["retention_interval"]
            line += f"  of full {entry['retention']:.3f} [{low:.3f}, {high:.3f}]  kl {entry['kl']:.4f}"
        print(line)
    if options.out:
        result["held_out"] = options.held_out
        result["command"] = "python -m linearkv.eval.reference.score " + " ".join(sys.argv[1:])
        result["machine"] = _machine(model)
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(result) + "\n")


def _machine(model: GDNModel) -> dict[str, str]:
    device = torch.cuda.get_device_name() if model.device.type == "cuda" else platform.processor() or platform.machine()
    versions = {name: version(name) for name in ("torch", "transformers")}
    source = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    found = subprocess.run(source, capture_output=True, text=True)
    versions["commit"] = found.stdout.strip() if found.returncode == 0 else "not a checkout"
    return {"device": device, "dtype": str(model.dtype), "python": platform.python_version(), **versions}


if __name__ == "__main__":
    main()
