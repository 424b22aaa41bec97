"""Trains the reference model: `python -m linearkv.eval.reference.train --out DIR --minutes N --prose DIR`.

One command makes the tokenizer, trains on one GPU (or several, under `torch.distributed.run`; or a far smaller model on
a CPU with `--config`), scores held-out questions by full prefill, and writes a folder that
`Qwen3_5ForCausalLM.from_pretrained` loads. Training is ordinary next-token prediction over whole contexts; composed
states never occur in it.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor, nn

from .batches import CONTEXT, KIND_NAMES, LOSS_WEIGHTS, ROW_LENGTHS_DIVIDE, Batches, loader
from .generator import HeldOut, Question
from .model import BLOCK, ReferenceModel, reference_config
from .muon import Muon
from .prompt import END_OF_TEXT, answer_text, chunk_text, prefix_text, suffix_text
from .prose import Prose
from .tokenizer import save_tokenizer, train_tokenizer
from .wordings import training_wordings

EVALUATION_LENGTH = 1536  # one of the training row lengths, so that scoring compiles nothing new


@dataclass(frozen=True)
class Score:
    """Exact matches among held-out questions."""

    correct: int
    total: int

    @property
    def rate(self) -> float:
        return self.correct / max(1, self.total)

    @property
    def interval(self) -> tuple[float, float]:
        """95% Wilson interval."""
        n, p, z = max(1, self.total), self.rate, 1.96
        centre, spread = p + z * z / (2 * n), z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
        return (centre - spread) / (1 + z * z / n), (centre + spread) / (1 + z * z / n)

    def __str__(self) -> str:
        low, high = self.interval
        return f"{self.rate:.3f} [{low:.3f}, {high:.3f}] of {self.total}"


def question_ids(tokenizer: Tokenizer, question: Question, system: bool = True) -> tuple[list[int], list[int]]:
    """Token ids of the documents, and of the question up to where the answer begins; every piece tokenised alone."""
    pieces = [prefix_text()] if system else []
    pieces += [chunk_text(heading, text) for heading, text in question.chunks]
    *documents, asked = tokenizer.encode_batch_fast([*pieces, suffix_text(question.question)])
    return [token for encoding in documents for token in encoding.ids], asked.ids


def score(
    model: ReferenceModel,
    tokenizer: Tokenizer,
    questions: list[Question],
    rows: int,
    length: int,
    misses: list[str] | None = None,
    forget: bool = False,
) -> Score:
    """Greedy exact match by full prefill.

    Greedy decoding gives an accepted answer if and only if every one of its tokens is the most likely one given those
    before it, so each accepted answer takes one forward pass. With `forget`, the recurrent states are zero where the
    question begins, so that only attention remembers the documents.
    """
    device = model.model.embed_tokens.weight.device
    pad = tokenizer.token_to_id(END_OF_TEXT) or 0
    cases = []
    for index, question in enumerate(questions):
        documents, asked = question_ids(tokenizer, question)
        if forget:
            documents = [pad] * (-len(documents) % BLOCK) + documents
        context = documents + asked
        for answer in question.answers:
            answer_ids = tokenizer.encode(answer_text(answer)).ids
            if len(context) + len(answer_ids) <= length:
                cases.append((index, context, answer_ids, len(documents) // BLOCK - 1))
    matched: set[int] = set()
    given: dict[int, str] = {}
    for first in range(0, len(cases), rows):
        part = cases[first : first + rows]
        ids = torch.full((rows, length), pad, dtype=torch.int64)
        forgotten = torch.zeros(rows, length // BLOCK, dtype=torch.bool)
        for row, (_, context, answer_ids, last) in enumerate(part):
            ids[row, : len(context) + len(answer_ids)] = torch.tensor(context + answer_ids)
            forgotten[row, last] = True
        hidden = model.hidden(ids.to(device), forgotten=forgotten.to(device) if forget else None).detach()
        hidden = hidden.view(rows, length, -1)
        for row, (index, context, answer_ids, _) in enumerate(part):
            places = slice(len(context) - 1, len(context) + len(answer_ids) - 1)
            best = model.logits(hidden[row, places]).argmax(-1).tolist()
            if best == answer_ids:
                matched.add(index)
            else:
                given.setdefault(index, tokenizer.decode(best).replace("\n", "\\n"))
    if misses is not None:
        for index, said in given.items():
            if index not in matched:
                misses.append(f"{questions[index].question} | {questions[index].answers[0]} | {said}")
    return Score(len(matched), len(questions))


def own_device() -> torch.device:
    """This process's device."""
    return torch.device(f"cuda:{os.environ.get('LOCAL_RANK', 0)}" if torch.cuda.is_available() else "cpu")


def shared_tokenizer(prose: Prose, out: Path) -> Tokenizer:
    """A tokenizer trained by the first process and read by the others from `out`/tokenizer.json."""
    file = out / "tokenizer.json"
    if int(os.environ.get("RANK", 0)) == 0:
        train_tokenizer(prose).save(str(file))
    if dist.is_initialized():
        dist.barrier()
    return Tokenizer.from_file(str(file))


class Trainer:
    """One training run; `fraction` of its time decides curriculum and learning rate."""

    def __init__(self, args: argparse.Namespace, tokenizer: Tokenizer):
        self.args, self.tokenizer = args, tokenizer
        self.rank, self.world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
        self.device = own_device()
        cuda = self.device.type == "cuda"
        torch.manual_seed(args.seed)
        torch.set_float32_matmul_precision("high")
        config = reference_config(tokenizer.get_vocab_size(), **args.config)
        compute = torch.bfloat16 if cuda else torch.float32
        self.model = ReferenceModel(config, compute, compiled=cuda and not args.eager)
        if args.init:
            self.model.load_state_dict({name: t.float() for name, t in load_parts(args.init).items()})
        self.model.to(self.device)
        self.weights = torch.tensor(LOSS_WEIGHTS, device=self.device)
        self.optimizers = self._optimizers()
        self.log_file = (args.out / "train.log").open("a") if self.rank == 0 else None

    def log(self, text: str) -> None:
        if self.log_file:
            print(text, flush=True)
            print(text, file=self.log_file, flush=True)

    def _optimizers(self) -> list[torch.optim.Optimizer]:
        matrices, others, vectors = [], [], []
        for name, parameter in self.model.named_parameters():
            if parameter.ndim < 2:
                vectors.append(parameter)
            elif parameter.ndim == 2 and "embed" not in name and min(parameter.shape) >= 64:
                matrices.append(parameter)
            else:
                others.append(parameter)
        fused = self.device.type == "cuda"
        muon = self.args.optimizer == "muon"
        groups = [
            {"params": others + ([] if muon else matrices), "weight_decay": 0.02},
            {"params": vectors, "weight_decay": 0.0},
        ]
        made: list[torch.optim.Optimizer] = [
            torch.optim.AdamW(groups, lr=self.args.lr, betas=(0.9, 0.95), eps=1e-10, fused=fused)
        ]
        if muon:
            made.append(Muon(matrices, lr=self.args.muon_lr, weight_decay=0.02))
        for optimizer in made:
            for group in optimizer.param_groups:
                group["peak"] = group["lr"]
        return made

    def _set_rate(self, step: int, fraction: float) -> None:
        factor = min(1.0, (step + 1) / self.args.warm_up)
        if fraction > self.args.decay_from:
            factor *= max(0.01, (1 - fraction) / (1 - self.args.decay_from))
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["peak"] * factor

    def forward_losses(self, ids: Tensor, kinds: Tensor) -> tuple[Tensor, Tensor]:
        """(loss to minimise, loss by kind [kinds] for the log). ids int32 [B, T], kinds uint8 [B, T]."""
        ids = ids.long()
        start = torch.randint(0, 2048, (ids.shape[0],), device=ids.device) * torch.randint_like(ids[:, 0], 0, 2)
        hidden = self.model.hidden(ids, start)
        targets = ids.roll(-1, 1).reshape(-1)
        kinds = F.pad(kinds[:, 1:], (0, 1)).reshape(-1).long()
        losses = self.model.run.token_losses(hidden, self.model.model.embed_tokens.weight, targets, self.model.compute)
        weights = self.weights[kinds]
        sums = torch.zeros(len(KIND_NAMES), device=ids.device).index_add_(0, kinds, losses.detach())
        counts = torch.zeros(len(KIND_NAMES), device=ids.device).index_add_(0, kinds, torch.ones_like(losses))
        return (losses * weights).sum() / weights.sum(), torch.stack([sums, counts])

    def warm_up(self) -> None:
        """Compile before the clock starts."""
        begin = time.time()
        shape = (self.args.tokens // EVALUATION_LENGTH, EVALUATION_LENGTH)
        ids = torch.randint(0, 1000, shape, dtype=torch.int32, device=self.device)
        for _ in range(2):
            self.forward_losses(ids, torch.full_like(ids, CONTEXT, dtype=torch.uint8))[0].backward()
        self.model.zero_grad(set_to_none=True)
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        self.log(f"compiled and warmed up in {time.time() - begin:.0f}s")

    def run(self, prose: Prose) -> None:
        """Train for the given minutes, scoring and saving on the way."""
        args = self.args
        progress = multiprocessing.Value("d", 0.0)
        progress.value = args.curriculum_from
        batches = Batches(self.tokenizer, prose, args.tokens, progress, args.seed, self.rank)
        stream = loader(batches, args.workers, pin=self.device.type == "cuda")
        parameters = [p for p in self.model.parameters() if p.requires_grad]
        flat = torch.zeros(sum(p.numel() for p in parameters) + 1, device=self.device)
        views, offset = [], 0
        for parameter in parameters:
            views.append(flat[offset : offset + parameter.numel()].view_as(parameter))
            offset += parameter.numel()
        self.warm_up()
        begin = mark = time.time()
        step, fraction, tokens, marked, next_score = 0, 0.0, 0, 0, args.score_every
        seen = torch.zeros(2, len(KIND_NAMES), device=self.device)
        while fraction < 1:
            ids, kinds = (part.to(self.device, non_blocking=True) for part in next(stream))
            self._set_rate(step, fraction)
            loss, by_kind = self.forward_losses(ids, kinds)
            loss.backward()
            seen += by_kind
            fraction = (time.time() - begin) / (60 * args.minutes)
            if self.world > 1:
                torch._foreach_copy_(views, [p.grad for p in parameters if p.grad is not None])
                flat[-1] = fraction
                dist.all_reduce(flat)
                flat /= self.world
                torch._foreach_copy_([p.grad for p in parameters if p.grad is not None], views)
                fraction = flat[-1].item()
            progress.value = min(0.999, args.curriculum_from + fraction * (1 - args.curriculum_from))
            nn.utils.clip_grad_norm_(parameters, 1.0)
            for optimizer in self.optimizers:
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
            step += 1
            tokens += ids.numel() * self.world
            if step % args.log_every == 0:
                now = time.time()
                mean = (seen[0] / seen[1].clamp(min=1)).tolist()
                parts = " ".join(f"{name} {mean[i]:.3f}" for i, name in enumerate(KIND_NAMES) if i >= CONTEXT)
                self.log(
                    f"step {step} t {now - begin:.0f}s share {fraction:.3f} tokens {tokens / 1e6:.1f}M "
                    f"{(tokens - marked) / (now - mark) / 1e3:.0f}k/s rows {tuple(ids.shape)} {parts}"
                )
                seen.zero_()
                mark, marked = now, tokens
            if time.time() - begin > next_score and fraction > 0.15 and self.rank == 0:
                next_score += args.score_every
                self.report(args.score_questions)
                self.save()
        self.log(f"trained {step} steps, {tokens / 1e6:.1f}M tokens in {time.time() - begin:.0f}s")
        if self.rank == 0:
            self.save()
            self.report(args.final_questions, final=True)
        if self.world > 1:
            dist.barrier()
            dist.destroy_process_group()

    def report(self, count: int, final: bool = False) -> dict[str, str]:
        """Score held-out questions by full prefill and log the result."""
        rows = max(1, self.args.tokens // EVALUATION_LENGTH)
        results: dict[str, str] = {}
        for name, hops in (("one_hop", 1), ("two_hop", 2), ("unanswerable", 0)):
            questions = HeldOut(seed=2026).questions(count, hops=hops)
            results[name] = str(score(self.model, self.tokenizer, questions, rows, EVALUATION_LENGTH))
        for names, wording in ((False, False), (False, True), (True, False), (True, True)):
            questions = HeldOut(7, names, wording).questions(min(count, 200) if final else max(1, count // 2))
            misses: list[str] = []
            result = score(self.model, self.tokenizer, questions, rows, EVALUATION_LENGTH, misses)
            self.log(
                f"names {'held out' if names else 'known'}, wording {'held out' if wording else 'known'}: {result}"
            )
            for miss in misses[: 40 if final else 4]:
                self.log(f"  missed: {miss}")
            forgetful = score(self.model, self.tokenizer, questions, rows, EVALUATION_LENGTH, forget=True)
            self.log(f"  with the recurrent states zeroed before the question: {forgetful}")
        self.log(f"held out ({'final' if final else 'interim'}, full prefill, exact match): {json.dumps(results)}")
        return results

    def save(self) -> None:
        """Write the weights in bf16, in two parts so that each stays small; `export` joins them."""
        tensors = {name: t.detach().bfloat16().cpu().contiguous() for name, t in self.model.state_dict().items()}
        names = sorted(tensors, key=lambda name: tensors[name].numel())
        for number, part in enumerate((names[::2], names[1::2])):
            aside = self.args.out / f"part{number}.tmp"
            save_file({name: tensors[name] for name in part}, aside, metadata={"format": "pt"})
            aside.replace(self.args.out / f"weights-{number}.safetensors")


def load_parts(folder: Path) -> dict[str, Tensor]:
    """The tensors of all safetensors files of a folder."""
    tensors: dict[str, Tensor] = {}
    for part in sorted(folder.glob("*.safetensors")):
        tensors |= load_file(part)
    return tensors


def export(parts: list[Path], tokenizer: Tokenizer, folder: Path, **overrides: Any) -> None:
    """Join the parts of a checkpoint into a folder for `Qwen3_5ForCausalLM.from_pretrained` and `AutoTokenizer`."""
    config = reference_config(tokenizer.get_vocab_size(), **overrides)
    config.architectures = ["Qwen3_5ForCausalLM"]
    config.dtype = "bfloat16"
    config.eos_token_id = tokenizer.token_to_id("<|im_end|>")
    config.pad_token_id = tokenizer.token_to_id(END_OF_TEXT)
    config.bos_token_id = None
    folder.mkdir(parents=True, exist_ok=True)
    tensors: dict[str, Tensor] = {}
    for part in parts:
        tensors |= load_file(part)
    save_file(dict(sorted(tensors.items())), folder / "model.safetensors", metadata={"format": "pt"})
    config.save_pretrained(folder)
    generation = {"do_sample": False, "eos_token_id": config.eos_token_id, "pad_token_id": config.pad_token_id}
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")
    save_tokenizer(tokenizer, folder, config.max_position_embeddings)


def load_reference(folder: Path, compute: torch.dtype = torch.float32) -> ReferenceModel:
    """The trained weights of an exported folder in the trainable twin."""
    from transformers import Qwen3_5TextConfig

    model = ReferenceModel(Qwen3_5TextConfig.from_pretrained(folder), compute)
    model.load_state_dict({name: t.float() for name, t in load_file(folder / "model.safetensors").items()})
    return model


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for checkpoints, log and the exported model")
    parser.add_argument("--minutes", type=float, default=18.0, help="training time; curriculum and rates follow it")
    parser.add_argument("--prose", type=Path, help="folder of Markdown, reStructuredText or tar files to train on")
    parser.add_argument("--tokenizer", type=Path, help="tokenizer.json to use instead of training one")
    parser.add_argument(
        "--tokens", type=int, default=61440, help="tokens a step on each GPU; a multiple of every row length"
    )
    parser.add_argument("--optimizer", choices=("muon", "adamw"), default="muon")
    parser.add_argument("--lr", type=float, default=2e-3, help="AdamW's rate")
    parser.add_argument("--muon-lr", type=float, default=0.02)
    parser.add_argument("--decay-from", type=float, default=0.45, help="share of the run after which rates fall")
    parser.add_argument("--warm-up", type=int, default=150, help="steps over which rates rise")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 2) - 2))
    parser.add_argument("--log-every", type=int, default=100)
    parser.add_argument("--score-every", type=float, default=180.0, help="seconds between interim scores")
    parser.add_argument("--score-questions", type=int, default=200)
    parser.add_argument("--final-questions", type=int, default=500)
    parser.add_argument("--init", type=Path, help="folder of a checkpoint to go on from")
    parser.add_argument("--curriculum-from", type=float, default=0.0, help="share of the curriculum to begin at")
    parser.add_argument("--eager", action="store_true", help="do not compile")
    parser.add_argument("--config", type=json.loads, default={}, help="settings to change, as a JSON object")
    args = parser.parse_args(argv)
    args.out.mkdir(parents=True, exist_ok=True)
    if args.tokens % ROW_LENGTHS_DIVIDE:
        parser.error(f"--tokens must be a multiple of {ROW_LENGTHS_DIVIDE}, so that every batch has as many tokens")
    prose = Prose(args.prose)
    training_wordings()  # before the workers are forked, so that they share them
    if torch.cuda.is_available():
        torch.cuda.set_device(own_device())
    if int(os.environ.get("WORLD_SIZE", 1)) > 1:
        dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    tokenizer = Tokenizer.from_file(str(args.tokenizer)) if args.tokenizer else shared_tokenizer(prose, args.out)
    trainer = Trainer(args, tokenizer)
    trainer.log(json.dumps({key: str(value) for key, value in vars(args).items()}))
    trainer.log(
        f"{sum(p.numel() for p in trainer.model.parameters()) / 1e6:.2f}M parameters, torch {torch.__version__}, "
        f"{trainer.world} x {torch.cuda.get_device_name() if trainer.device.type == 'cuda' else 'CPU'}"
    )
    trainer.run(prose)
    if trainer.rank == 0:
        parts = [args.out / f"weights-{number}.safetensors" for number in (0, 1)]
        export(parts, tokenizer, args.out / "reference", **args.config)


if __name__ == "__main__":
    main()
