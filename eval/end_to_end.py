"""Time to first token on a GPU at the sizes of published models, with random weights: composed states against prefill.

    python -m linearkv.eval.end_to_end --shape 27B --contexts 10x512 26x512 52x512 13x2048 --out 27b.json

Random weights cost what trained ones cost. For each context (chunks x tokens) this is `linearkv bench`: one store, the
path of a query (restore, compose, prefill the question), full prefill by the same model and by transformers' own
forward pass beside it, and the question alone, which is the ceiling; a result that disagrees with full prefill has no
time. Results are written as they come.
"""

import argparse
import json
import re
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

from linearkv.eval.bench import TIERS, BenchOptions, run_benches
from linearkv.kernels.compose import ORDERS
from linearkv.models import TransformersModel, load_model

PUBLISHED: dict[str, dict[str, Any]] = {
    "tiny": {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4, "num_attention_heads": 4}
    | {"num_key_value_heads": 2, "linear_num_key_heads": 2, "linear_num_value_heads": 4},
    "4B": {"hidden_size": 2560, "intermediate_size": 9216, "num_hidden_layers": 32, "num_attention_heads": 16}
    | {"num_key_value_heads": 4, "linear_num_key_heads": 16, "linear_num_value_heads": 32},
    "27B": {"hidden_size": 5120, "intermediate_size": 17408, "num_hidden_layers": 64, "num_attention_heads": 24}
    | {"num_key_value_heads": 4, "linear_num_key_heads": 16, "linear_num_value_heads": 48},
}
"""Of Qwen3.5; head dims are 128 in GDN layers and 256 in attention. `tiny` is for trying this program."""


def random_model(name: str, device: str) -> TransformersModel:
    """A bfloat16 model of a published shape with weights as they are initialised."""
    config = Qwen3_5TextConfig(
        vocab_size=248_320, head_dim=256, linear_key_head_dim=128, linear_value_head_dim=128, **PUBLISHED[name]
    )
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device(device):
            model = Qwen3_5ForCausalLM(config)
    finally:
        torch.set_default_dtype(before)
    return load_model(model.eval(), self_test=False)  # what the self-test compares needs trained weights


def described(report: dict[str, Any]) -> str:
    """A table for people."""
    options, full = report["options"], report["full"]["median_s"]
    lines = [
        f"{options['chunks']} chunks x {options['chunk_tokens']} tokens, {report['tokens']['prompt']} in all; "
        f"{report['bytes_per_chunk'] / 1e6:.0f} MB a chunk; error {report['check_error']:.1e}; indexing (tokens/s) "
        + ", ".join(f"{name} {rate:,.0f}" for name, rate in report["indexing"].items()),
        f"  full prefill {full * 1e3:9.1f} ms; transformers {report['transformers']['median_s'] * 1e3:.1f}; "
        f"question alone {report['question_alone']['median_s'] * 1e3:.1f} ({report['ceiling']:.1f}x)",
    ]
    for arm in report["composed"]:
        parts = ", ".join(f"{part} {arm[f'{part}_s'] * 1e3:.1f}" for part in ("restore", "compose", "prefill"))
        lines.append(f"  {arm['name'][10:]:28s} {arm['median_s'] * 1e3:9.1f} ms ({parts}): {arm['ratio']:.2f}x")
    return "\n".join(lines)


def context(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d+)x(\d+)", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not chunks x tokens, like 10x512")
    return int(match[1]), int(match[2])


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=PUBLISHED, default="4B")
    parser.add_argument("--contexts", nargs="+", type=context, default=[(10, 512)])
    parser.add_argument("--tiers", nargs="+", choices=TIERS, default=["device", "memory", "disk"])
    parser.add_argument("--orders", nargs="+", choices=ORDERS, default=["bidirectional"])
    parser.add_argument("--question-tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--storage", default="fp16")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args(argv)
    plain = BenchOptions(
        question_tokens=given.question_tokens,
        orders=tuple(given.orders),
        tiers=tuple(given.tiers),
        repeats=given.repeats,
        storage=given.storage,
    )
    several = [
        replace(plain, chunks=chunks, chunk_tokens=tokens, seed=seed)
        for seed, (chunks, tokens) in enumerate(given.contexts)
    ]
    model = random_model(given.shape, given.device)
    tokenizer = load_model("reference", device=given.device).folder
    reports = []
    began = time.monotonic()

    def say(done: int, rounds: int) -> None:
        print(f"round {done} of {rounds}, {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)

    for report in run_benches(model, several, tokenizer=tokenizer, progress=say):
        reports.append(report.to_dict())
        print(described(reports[-1]), flush=True)
        if given.out is not None:
            made = {"command": argv or sys.argv[1:], "shape": given.shape, "reports": reports}
            given.out.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
