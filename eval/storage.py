"""What a storage policy keeps and costs: bytes of transitions and updates, and the error of composed states.

    python -m linearkv.eval.storage [--heads 16] [--chunks 10] [--out storage.json]

On states of three kinds, each composed in every order and compared with states that are not rounded: of random keys and
values under gates as GDN models are initialised (A uniform up to 16, step sizes log-uniform from .001 to .1, as in
Mamba-2), under gates that forget slowly, and the reference model's own states of held-out documents. Errors are
relative, in 2-norm, by layer and head. Prefix states are of the size of the updates.
"""

import argparse
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from transformers import AutoTokenizer

from linearkv import ChunkState, PrefixState, compose, pack, unpack
from linearkv.eval.reference.generator import HeldOut
from linearkv.kernels.chunk_delta import chunk_delta
from linearkv.kernels.compose import ORDERS
from linearkv.models import load_model

POLICIES = ("fp16", "compact")
DIM, TOKENS = 128, 512

Gates = Callable[[], tuple[torch.Tensor, torch.Tensor]]
"""Log decay and write strength of a chunk, each `[1, TOKENS, heads]`."""


def initial_gates(heads: int) -> Gates:
    """As models begin: the decay of every head, and how a token moves it."""
    rate = torch.empty(heads).uniform_(0.01, 16)
    step = torch.empty(heads).uniform_(math.log(1e-3), math.log(0.1)).exp()
    bias = step + torch.log(-torch.expm1(-step))

    def draw() -> tuple[torch.Tensor, torch.Tensor]:
        decay = -rate * F.softplus(torch.randn(1, TOKENS, heads) + bias)
        return decay, torch.sigmoid(torch.randn(1, TOKENS, heads))

    return draw


def slow_gates(heads: int) -> Gates:
    """Heads that forget within ten to thirty thousand tokens, and write much or little."""
    rate = 10 ** torch.empty(heads).uniform_(-4.5, -1)
    strength = 10 ** torch.empty(heads).uniform_(-3, 0)

    def draw() -> tuple[torch.Tensor, torch.Tensor]:
        return -rate * torch.rand(1, TOKENS, heads) * 2, strength * torch.rand(1, TOKENS, heads)

    return draw


def random_states(gates: Gates, heads: int, count: int) -> tuple[PrefixState, list[ChunkState]]:
    """One layer's states of chunks whose keys share a direction, as keys of a text do."""
    common = torch.randn(1, 1, heads, DIM) / 2
    states = []
    for _ in range(count):
        k = F.normalize(torch.randn(1, TOKENS, heads, DIM) + common, dim=-1)
        transition, update = chunk_delta(k, torch.randn(1, TOKENS, heads, DIM), *gates())
        nothing = torch.zeros(1, 1, 1, 1)
        states.append(ChunkState(transition, update, torch.zeros(1, 1, 3), nothing, nothing, torch.ones(1).long()))
    start = torch.randn_like(states[0].update) * states[0].update.norm() / states[0].update.numel() ** 0.5
    none = torch.zeros(1, 0, 1, 1)
    prefix = PrefixState(start, torch.zeros(1, 1, 3), none, none, torch.zeros(0).long(), _no_rotary)
    return prefix, states


def _no_rotary(positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return positions[:, None].float()[:, :0], positions[:, None].float()[:, :0]


def reference_states(count: int) -> tuple[PrefixState, list[ChunkState], list[str]]:
    """Of one held-out question's documents, about a hundred tokens each."""
    model = load_model("reference", device="cpu", dtype="float32")
    tokenizer = AutoTokenizer.from_pretrained(model.folder)
    texts = [f"{heading}\n{text}" for heading, text in HeldOut(0).questions(1, chunks=count)[0].chunks]
    prefix = model.prefill_prefix(tokenizer("Documents:").input_ids)
    return prefix, model.prefill_chunks(prefix, [tokenizer(text).input_ids for text in texts]), model.layer_types


def measure(prefix: PrefixState, states: list[ChunkState], layer_types: list[str]) -> dict[str, Any]:
    """Bytes and errors of every policy, and how many transitions have decayed."""
    row: dict[str, Any] = {}
    for policy in POLICIES:
        stored = [unpack(pack(state, layer_types, policy)) for state in states]
        errors = {}
        for order in ORDERS:
            exact = compose(prefix, states, order).recurrent.double()
            error = (compose(prefix, stored, order).recurrent - exact).norm(dim=(-2, -1)) / exact.norm(dim=(-2, -1))
            errors[order] = {"median": float(error.median()), "worst": float(error.max())}
        row[policy] = {
            "bytes": sum(state.transition.nbytes + state.update.nbytes for state in stored),
            "kept": sum(len(state.transition) if state.rows is not None else 1 for state in stored),
            "error": errors,
        }
    heads = states[0].update.shape[0] * states[0].update.shape[1]
    row["share_of_fp16"] = row["compact"]["bytes"] / row["fp16"]["bytes"]
    row["transitions_left_out"] = 1 - row["compact"]["kept"] / (heads * len(states))
    return row


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--heads", type=int, default=16, help="of each random layer")
    parser.add_argument("--chunks", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(argv)
    torch.manual_seed(options.seed)
    rows = {}
    for name, gates in (("gates as initialised", initial_gates), ("slow gates", slow_gates)):
        states = random_states(gates(options.heads), options.heads, options.chunks)
        rows[name] = measure(*states, ["linear_attention", "full_attention"])
    rows["reference model"] = measure(*reference_states(options.chunks))
    print(f"{'states':22s} {'left out':>8s} {'of fp16':>8s}  error by head, median and worst, of bidirectional")
    for name, row in rows.items():
        parts = [
            "{} {:.1e} {:.1e}".format(policy, *row[policy]["error"]["bidirectional"].values()) for policy in POLICIES
        ]
        print(f"{name:22s} {row['transitions_left_out']:8.0%} {row['share_of_fp16']:8.0%}  {';  '.join(parts)}")
    if options.out is not None:
        options.out.write_text(json.dumps(vars(options) | {"rows": rows}, default=str, indent=1) + "\n")


if __name__ == "__main__":
    main()
