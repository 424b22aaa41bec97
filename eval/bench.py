"""Time to first token: composed from stored states against full prefill, side by side in one run.

Both answer the same prompt (the prefix that a store has, random chunks, a random question), through the path a query
takes: restore from a page store, compose, prefill the question. transformers' own forward pass over the same prompt
runs beside them, so that the baseline is no slower than what a person would have without this engine. Every round
measures every arm once, in alternating direction, and ratios are taken within a round, so that what the machine does
meanwhile falls on all of them alike.

Before anything is timed, one chunk behind its prefix is composed and compared with the same text prefilled for real:
a wrong result has no speed.
"""

import os
import platform
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer

from linearkv import ChunkTokens, Context, Engine, PrefixState, Settings, __version__, compose
from linearkv.errors import LinearKVError
from linearkv.kernels.compose import ORDERS
from linearkv.models import GDNModel

TIERS = ("memory", "disk", "prefill")
"""Where chunk states are when a question comes: in memory; in files of a store that was just opened again (the
operating system may still have the files in its page cache); nowhere, so that they are prefilled and stored first."""

FULL, PEER, QUESTION = "full", "transformers", "question alone"

_NO_BUDGET = 1 << 50
# Logits of one composed chunk against the same text prefilled, relative in 2-norm: what storage and dtype may cost.
_ALLOWED_ERROR = {("fp32", torch.float32): 1e-4, ("fp16", torch.float32): 2e-2, ("compact", torch.float32): 2e-2}
_ALLOWED_ERROR_BF16 = 1e-1


@dataclass(frozen=True)
class BenchOptions:
    """What is measured.

    Attributes:
        chunks, chunk_tokens, question_tokens: shape of the prompt behind the store's prefix.
        orders: each order given is an arm of its own.
        tiers: each tier given is an arm of its own, see `TIERS`.
        repeats: rounds, after one that is not counted.
        storage: storage policy of the states, see `linearkv.storage`.
        seed: of the random token ids.
    """

    chunks: int = 10
    chunk_tokens: int = 128
    question_tokens: int = 16
    orders: tuple[str, ...] = ("bidirectional",)
    tiers: tuple[str, ...] = ("memory",)
    repeats: int = 7
    storage: str = "fp16"
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("chunks", "chunk_tokens", "question_tokens", "repeats"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")
        for name, known in (("orders", ORDERS), ("tiers", TIERS)):
            given = getattr(self, name)
            if not given or not set(given) <= set(known):
                raise ValueError(f"unknown {name} {', '.join(given) or '(none)'}: expected some of {', '.join(known)}")


@dataclass
class Arm:
    """One way to the first token: seconds of every round, and for composed arms where they went."""

    name: str
    tier: str | None = None
    order: str | None = None
    seconds: list[float] = field(default_factory=list)
    restore: list[float] = field(default_factory=list)
    compose: list[float] = field(default_factory=list)
    prefill: list[float] = field(default_factory=list)

    def summary(self, full: "Arm | None" = None) -> dict[str, Any]:
        """JSON-ready; ratios of `full` to this arm are taken round by round."""
        result: dict[str, Any] = {
            "name": self.name,
            "median_s": statistics.median(self.seconds),
            "min_s": min(self.seconds),
            "max_s": max(self.seconds),
            "seconds": self.seconds,
        }
        if self.order is not None:
            result |= {"tier": self.tier, "order": self.order}
            for part in ("restore", "compose", "prefill"):
                result[f"{part}_s"] = statistics.median(getattr(self, part))
        if full is not None:
            ratios = [slow / fast for slow, fast in zip(full.seconds, self.seconds, strict=True)]
            result |= {"ratio": statistics.median(ratios), "ratio_min": min(ratios), "ratio_max": max(ratios)}
        return result


@dataclass
class BenchReport:
    """What one run measured."""

    options: BenchOptions
    model: dict[str, Any]
    machine: dict[str, Any]
    tokens: dict[str, int]
    """Of the prompt: `prefix`, `chunks` (together), `question` and `prompt` (all)."""
    bytes_per_chunk: int
    """Of one stored state."""
    check_error: float
    """Relative error of the logits of one composed chunk against the same text prefilled."""
    arms: dict[str, Arm]

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON-ready values. `ceiling` is full prefill over the question alone: no composition is faster
        than having nothing to restore and nothing to compose."""
        full = self.arms[FULL]
        composed = [arm.summary(full) for arm in self.arms.values() if arm.order is not None]
        question = self.arms[QUESTION].summary(full)
        return {
            "options": asdict(self.options),
            "model": self.model,
            "machine": self.machine,
            "tokens": self.tokens,
            "bytes_per_chunk": self.bytes_per_chunk,
            "check_error": self.check_error,
            "full": full.summary(),
            "transformers": self.arms[PEER].summary(full),
            "question_alone": question,
            "ceiling": question["ratio"],
            "composed": composed,
        }


def run_bench(
    model: GDNModel,
    options: BenchOptions | None = None,
    *,
    tokenizer: Path | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> BenchReport:
    """Measures `model` on this machine.

    Args:
        tokenizer: folder of the tokenizer; the model's own by default.
        progress: called with (rounds done, rounds in all).

    Raises:
        LinearKVError: the prompt does not fit the model, or a composed chunk does not agree with full prefill.
    """
    options = options or BenchOptions()
    folder = tokenizer or model.folder
    if folder is None:
        raise LinearKVError("a model that was loaded elsewhere brings no tokenizer: pass tokenizer=<folder>")
    draw = _random_text(folder, options.seed)
    chunks = [draw(options.chunk_tokens) for _ in range(options.chunks)]
    question = draw(options.question_tokens)
    with tempfile.TemporaryDirectory(prefix="linearkv-bench-") as root, _Bench(model, folder, options, root) as bench:
        prefix_ids, prefix = bench.prefix_ids, bench.prefix
        prompt = [*prefix_ids, *chain.from_iterable(chunks), *question]
        limit = model.config.max_position_embeddings
        if len(prompt) >= limit:
            raise LinearKVError(
                f"a prompt of {len(prompt)} tokens does not fit the model's {limit} positions: use fewer or shorter "
                f"chunks"
            )
        bench.fill([ChunkTokens(f"chunk {number}", ids) for number, ids in enumerate(chunks)])
        error = bench.check(question)
        whole = torch.tensor([prompt], device=model.device)
        empty, behind_prefix = model.empty_context(), compose(prefix, [])
        arms: list[tuple[Arm, Callable[[Arm], None]]] = [
            (Arm(FULL), lambda arm: _timed(model, arm, lambda: _first_token(model, empty, prompt))),
            (Arm(PEER), lambda arm: _timed(model, arm, lambda: _plain_forward(model, whole))),
            (Arm(QUESTION), lambda arm: _timed(model, arm, lambda: _first_token(model, behind_prefix, question))),
        ]
        for tier in options.tiers:
            for order in options.orders:
                name = f"composed, {tier}, {order}"
                arms.append((Arm(name, tier, order), lambda arm: bench.composed(arm, question)))
        for done in range(options.repeats + 1):
            for arm, measure in arms if done % 2 else reversed(arms):
                measure(arm)
            if not done:  # the first round warms up caches, threads and kernels
                for arm, _ in arms:
                    for seconds in (arm.seconds, arm.restore, arm.compose, arm.prefill):
                        seconds.clear()
            if progress is not None:
                progress(done + 1, options.repeats + 1)
    return BenchReport(
        options=options,
        model=_described(model),
        machine=describe_machine(model.device),
        tokens={
            "prefix": len(prefix_ids),
            "chunks": options.chunks * options.chunk_tokens,
            "question": options.question_tokens,
            "prompt": len(prompt),
        },
        bytes_per_chunk=bench.bytes_per_chunk,
        check_error=error,
        arms={arm.name: arm for arm, _ in arms},
    )


class _Bench:
    """An engine over a store of its own, and the composed way to the first token."""

    def __init__(self, model: GDNModel, tokenizer: Path, options: BenchOptions, root: str) -> None:
        self.model = model
        self.options = options
        self.chunks: list[ChunkTokens] = []
        self.bytes_per_chunk = 0
        self._tokenizer = tokenizer
        self._root = Path(root)
        self._settings = Settings(storage=options.storage, memory_budget=_NO_BUDGET, disk_budget=None)  # type: ignore[arg-type]
        self._warm = self._open("warm")
        self.prefix_ids = self._warm.prompt.prefix_ids
        self.prefix: PrefixState = model.prefill_prefix(self.prefix_ids)

    def __enter__(self) -> "_Bench":
        return self

    def __exit__(self, *exception: object) -> None:
        self._warm.close()

    def fill(self, chunks: list[ChunkTokens]) -> None:
        """Prefills and stores the chunks that everything is measured with."""
        self.chunks = chunks
        before = self._on_disk()
        filled = self._warm.states.fill(chunks)
        if filled.not_stored:
            raise LinearKVError(f"chunk states could not be stored in {self._root}: {filled.not_stored[0]}")
        self._warm.states.restore(chunks)  # filling leaves them on disk alone
        self.bytes_per_chunk = (self._on_disk() - before) // len(chunks)

    def check(self, question: list[int]) -> float:
        """The error of one composed chunk; LinearKVError where it is more than storage and dtype explain."""
        chunk = self.chunks[0]
        composed = compose(self.prefix, self._warm.states.restore([chunk]).states)
        # Split where the chunk begins, as it was stored: a prefill in one go rounds differently.
        split = self.model.prefill(chunk.token_ids, self.model.prefill(self.prefix_ids))
        expected = self.model.logits(split, question)
        error = float((self.model.logits(composed, question) - expected).norm() / expected.norm())
        allowed = _ALLOWED_ERROR.get((self.options.storage, self.model.dtype), _ALLOWED_ERROR_BF16)
        if not error <= allowed:
            raise LinearKVError(
                f"one composed chunk is off by {error:.2g} of the logits of full prefill ({allowed:g} is allowed): "
                f"nothing was timed. Run linearkv doctor"
            )
        return error

    def composed(self, arm: Arm, question: list[int]) -> None:
        assert arm.tier is not None and arm.order is not None
        with self._engine_with_states_in(arm.tier) as engine:
            started = _now(self.model)
            restored = engine.states.restore(self.chunks)
            restored_at = _now(self.model)
            context = compose(self.prefix, restored.states, arm.order)
            composed_at = _now(self.model)
            _first_token(self.model, context, question)
            ended = _now(self.model)
        wanted = {"prefill": "prefilled"}.get(arm.tier, arm.tier)
        if set(restored.tiers) != {wanted}:
            raise LinearKVError(f"states were to come from {arm.tier} and came from {', '.join(set(restored.tiers))}")
        arm.seconds.append(ended - started)
        arm.restore.append(restored_at - started)
        arm.compose.append(composed_at - restored_at)
        arm.prefill.append(ended - composed_at)

    @contextmanager
    def _engine_with_states_in(self, tier: str) -> Iterator[Engine]:
        """An engine that finds the chunks' states in `tier`."""
        if tier == "memory":
            yield self._warm
        elif tier == "disk":
            with self._open("warm") as engine:
                yield engine
        else:
            with tempfile.TemporaryDirectory(dir=self._root) as folder, self._open(folder) as engine:
                yield engine

    def _open(self, store: str) -> Engine:
        return Engine.open(self._root / store, model=self.model, tokenizer=self._tokenizer, settings=self._settings)

    def _on_disk(self) -> int:
        return self._warm.stats()["tiers"][-1]["bytes"]


def describe_machine(device: torch.device) -> dict[str, Any]:
    """What absolute times depend on: processor, threads, load, system and versions."""
    machine: dict[str, Any] = {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "load": round(os.getloadavg()[0], 2),
        "system": platform.platform(),
        "python": platform.python_version(),
        "linearkv": __version__,
    }
    for package in ("torch", "transformers", "triton"):
        try:
            machine[package] = version(package)
        except PackageNotFoundError:
            machine[package] = None
    return machine


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _described(model: GDNModel) -> dict[str, Any]:
    types = model.layer_types
    return {
        "name": model.folder.name if model.folder is not None else "in memory",
        "class": type(model.hf).__name__,
        "parameters": sum(parameter.numel() for parameter in model.hf.parameters()),
        "gdn_layers": types.count("linear_attention"),
        "attention_layers": types.count("full_attention"),
        "device": str(model.device),
        "dtype": str(model.dtype).removeprefix("torch."),
    }


def _random_text(folder: Path, seed: int) -> Callable[[int], list[int]]:
    """Draws token ids of the tokenizer's vocabulary, control tokens left out."""
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    ids = sorted(set(tokenizer.get_vocab().values()) - set(tokenizer.added_tokens_decoder))
    generator = random.Random(seed)
    return lambda count: generator.choices(ids, k=count)


def _now(model: GDNModel) -> float:
    """The time once the device has done what it was asked to."""
    if model.device.type == "cuda":
        torch.cuda.synchronize(model.device)
    return time.perf_counter()


def _timed(model: GDNModel, arm: Arm, work: Callable[[], object]) -> None:
    started = _now(model)
    work()
    arm.seconds.append(_now(model) - started)


def _first_token(model: GDNModel, context: Context, token_ids: list[int]) -> int:
    return next(model.stream(context, token_ids, 1))


@torch.inference_mode()
def _plain_forward(model: GDNModel, token_ids: torch.Tensor) -> int:
    """What `generate` of transformers does for its first token."""
    return int(model.hf(token_ids, use_cache=True, logits_to_keep=1).logits[0, -1].argmax())
