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
from collections.abc import Callable, Iterable, Iterator, Sequence
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
from linearkv.models import TransformersModel

TIERS = ("device", "memory", "disk", "cold", "prefill")
"""Where chunk states are when a question comes: on the GPU; in memory; in files that the operating system may still
have in its page cache; in files that it was asked to forget; nowhere, so that they are prefilled and stored first."""

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
    indexing: dict[str, float]
    """Tokens a second of the chunks: prefilled alone (`prefill`), with their states made (`states`), and with these
    written to disk (`index`)."""
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
            "indexing": self.indexing,
            "full": full.summary(),
            "transformers": self.arms[PEER].summary(full),
            "question_alone": question,
            "ceiling": question["ratio"],
            "composed": composed,
        }


def run_bench(
    model: TransformersModel,
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
    return next(run_benches(model, [options or BenchOptions()], tokenizer=tokenizer, progress=progress))


def run_benches(
    model: TransformersModel,
    several: Sequence[BenchOptions],
    *,
    tokenizer: Path | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Iterator[BenchReport]:
    """`run_bench` of several shapes in one store, so that a large model is identified once.

    All are of one storage policy, and each has a seed of its own.

    Raises:
        LinearKVError: as `run_bench`; the device tier without a GPU; two shapes of one seed.
        ValueError: several storage policies.
    """
    folder = tokenizer or model.folder
    if folder is None:
        raise LinearKVError("a model that was loaded elsewhere brings no tokenizer: pass tokenizer=<folder>")
    storage = several[0].storage
    if any(options.storage != storage for options in several):
        raise ValueError("several storage policies in one store")
    with (
        tempfile.TemporaryDirectory(prefix="linearkv-bench-") as root,
        _Bench(model, folder, storage, root, _room(model, several)) as bench,
    ):
        for options in several:
            yield _measured(model, folder, options, bench, progress)


def _room(model: TransformersModel, several: Sequence[BenchOptions]) -> int:
    """Bytes of memory that the states of all these chunks fit into, of any storage policy."""
    empty = model.empty_prefix()
    layers, _, heads, dim = empty.key.shape
    token = 2 * layers * heads * dim * empty.key.dtype.itemsize + 8
    return (64 << 20) + sum(
        options.chunks * (model.state_bytes + empty.conv_tail.nbytes + options.chunk_tokens * token + (64 << 10))
        for options in several
    )


def _measured(
    model: TransformersModel,
    folder: Path,
    options: BenchOptions,
    bench: "_Bench",
    progress: Callable[[int, int], None] | None,
) -> BenchReport:
    if model.device.type == "cpu" and "device" in options.tiers:
        raise LinearKVError("states can only be kept on a GPU, and the model is on the CPU: leave out the device tier")
    draw = _random_text(folder, options.seed)
    chunks = [draw(options.chunk_tokens) for _ in range(options.chunks)]
    question = draw(options.question_tokens)
    prefix_ids, prefix = bench.prefix_ids, bench.prefix
    prompt = [*prefix_ids, *chain.from_iterable(chunks), *question]
    limit = model.max_length
    if len(prompt) >= limit:
        raise LinearKVError(
            f"a prompt of {len(prompt)} tokens does not fit the model's {limit} positions: use fewer or shorter chunks"
        )
    indexing = bench.fill([ChunkTokens(f"chunk {number}", ids) for number, ids in enumerate(chunks)])
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
        indexing=indexing,
        arms={arm.name: arm for arm, _ in arms},
    )


class _Bench:
    """Engines over a store of their own, one for each tier, and the composed way to the first token."""

    def __init__(self, model: TransformersModel, tokenizer: Path, storage: str, root: str, memory_bytes: int) -> None:
        self.model = model
        self.storage = storage
        self.chunks: list[ChunkTokens] = []
        self.bytes_per_chunk = 0
        self._tokenizer = tokenizer
        self._memory_bytes = memory_bytes
        self._root = Path(root)
        self._engines: dict[str, Engine] = {}
        memory = self._engine("memory")
        self.prefix_ids = memory.prompt.prefix_ids
        self.prefix: PrefixState = model.prefill_prefix(self.prefix_ids)

    def __enter__(self) -> "_Bench":
        return self

    def __exit__(self, *exception: object) -> None:
        for engine in self._engines.values():
            engine.close()

    def fill(self, chunks: list[ChunkTokens]) -> dict[str, float]:
        """Prefills and stores the chunks that everything is measured with; tokens a second, see `BenchReport`."""
        self.chunks = chunks
        engine, model = self._engine("memory"), self.model
        ids = [chunk.token_ids for chunk in chunks]
        behind = [compose(self.prefix, [])] * len(ids)
        seconds = {}
        for name, work in (
            ("prefill", lambda: model.prefill_many(ids, behind)),
            ("states", lambda: model.prefill_chunks(self.prefix, ids)),
        ):
            for _ in range(2):  # the first time, kernels may be compiled
                started = _now(model)
                work()
                seconds[name] = _now(model) - started
        before = self._on_disk()
        started = _now(model)
        filled = engine.states.fill(chunks)
        seconds["index"] = _now(model) - started
        if filled.not_stored:
            raise LinearKVError(f"chunk states could not be stored in {self._root}: {filled.not_stored[0]}")
        if filled.present:
            raise LinearKVError("some of these chunks were measured before: give each shape a seed of its own")
        engine.states.restore(chunks)  # filling leaves them on disk alone
        self.bytes_per_chunk = (self._on_disk() - before) // len(chunks)
        return {name: sum(map(len, ids)) / taken for name, taken in seconds.items()}

    def check(self, question: list[int]) -> float:
        """The error of one composed chunk; LinearKVError where it is more than storage and dtype explain."""
        chunk = self.chunks[0]
        composed = compose(self.prefix, self._engine("memory").states.restore([chunk]).states)
        # Split where the chunk begins, as it was stored: a prefill in one go rounds differently.
        split = self.model.prefill(chunk.token_ids, self.model.prefill(self.prefix_ids))
        expected = self.model.logits(split, question)
        error = float((self.model.logits(composed, question) - expected).norm() / expected.norm())
        allowed = _ALLOWED_ERROR.get((self.storage, self.model.dtype), _ALLOWED_ERROR_BF16)
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
        wanted = {"prefill": "prefilled", "cold": "disk"}.get(arm.tier, arm.tier)
        if set(restored.tiers) != {wanted}:
            raise LinearKVError(f"states were to come from {arm.tier} and came from {', '.join(set(restored.tiers))}")
        arm.seconds.append(ended - started)
        arm.restore.append(restored_at - started)
        arm.compose.append(composed_at - restored_at)
        arm.prefill.append(ended - composed_at)

    @contextmanager
    def _engine_with_states_in(self, tier: str) -> Iterator[Engine]:
        """An engine that finds the chunks' states in `tier`."""
        if tier == "prefill":
            with (
                tempfile.TemporaryDirectory(dir=self._root) as folder,
                self._open(folder, self._memory_bytes) as engine,
            ):
                yield engine
            return
        engine = self._engine("disk" if tier == "cold" else tier)
        if tier == "device":
            engine.states.restore(self.chunks)
        if tier == "cold":
            forget(file for file in self._root.rglob("*") if file.is_file())
        yield engine

    def _engine(self, tier: str) -> Engine:
        """The engine that keeps states in `tier`; with nothing in memory they are read from disk every time."""
        if tier not in self._engines:
            memory, device = (self._memory_bytes if tier == "memory" else 0), (_NO_BUDGET if tier == "device" else 0)
            self._engines[tier] = self._open("store", memory_budget=memory, device_budget=device)
        return self._engines[tier]

    def _open(self, store: str, memory_budget: int, device_budget: int = 0) -> Engine:
        settings = Settings(
            storage=self.storage,  # type: ignore[arg-type]
            memory_budget=memory_budget,
            device_budget=device_budget,
            disk_budget=None,
        )
        return Engine.open(self._root / store, model=self.model, tokenizer=self._tokenizer, settings=settings)

    def _on_disk(self) -> int:
        return self._engine("memory").stats()["tiers"][-1]["bytes"]


def forget(files: Iterable[Path]) -> None:
    """Asks the operating system to drop files from its page cache."""
    for file in files:
        descriptor = os.open(file, os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


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


def _described(model: TransformersModel) -> dict[str, Any]:
    types = model.layer_types
    return {
        "name": model.folder.name if model.folder is not None else "in memory",
        "class": model.architecture,
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


def _now(model: TransformersModel) -> float:
    """The time once the device has done what it was asked to."""
    if model.device.type == "cuda":
        torch.cuda.synchronize(model.device)
    return time.perf_counter()


def _timed(model: TransformersModel, arm: Arm, work: Callable[[], object]) -> None:
    started = _now(model)
    work()
    arm.seconds.append(_now(model) - started)


def _first_token(model: TransformersModel, context: Context, token_ids: list[int]) -> int:
    return next(model.stream(context, token_ids, 1))


@torch.inference_mode()
def _plain_forward(model: TransformersModel, token_ids: torch.Tensor) -> int:
    """What `generate` of transformers does for its first token."""
    return int(model.hf(token_ids, use_cache=True, logits_to_keep=1).logits[0, -1].argmax())
