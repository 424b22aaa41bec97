"""Speed of the kernels on one GPU, each checked first, against float64 or, bit for bit, the reference; a wrong result
has no speed.

    python -m linearkv.eval.kernels --out kernels.json [--only compose compact delta relocate] [--shape "Qwen3.5 27B"]

Inputs are random and fresh in every run. Beside each time stand the bytes that had to move, the share of the device's
own copy bandwidth (measured in the same run), and the same work by what one would use otherwise: a matrix product for
each layer and chunk, one batched product for each chunk, and flash-linear-attention's forward pass where it is
installed. Times are medians of device events.
"""

import argparse
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from linearkv.eval.sizes import SHAPES, Shape
from linearkv.kernels.backend import use_backend
from linearkv.kernels.chunk_delta import chunk_delta
from linearkv.kernels.compose import ORDERS, compose_states
from linearkv.kernels.relocate import relocate

ALLOWED = {"compose": 2e-6, "delta": 5e-6}
"""Relative error to float64 that a kernel may have, median over heads; ten times that in the worst head."""
FORGOTTEN = 1e-5
"""Norm of a transition up to which storage `compact` leaves it out."""


@dataclass
class Row:
    """One kernel on one shape.

    Attributes:
        error, worst_error: relative error to float64 in 2-norm, median over heads and of the worst head.
        passed: whether they are within `ALLOWED`; without, nothing is timed.
        ms: median time on the device. launch_ms: median time until it was launched.
        gigabytes: that had to be read and written.
        peers: median time of the same work by other means.
    """

    name: str
    error: float
    worst_error: float
    passed: bool
    ms: float | None = None
    launch_ms: float | None = None
    gigabytes: float = 0.0
    peers: dict[str, float] = field(default_factory=dict)


def milliseconds(work: Callable[[], Any], repeats: int = 20) -> float:
    """Median time of `work` between device events, after two that do not count.

    The device is kept busy for as long as `work` takes to be launched, so that this is not counted, of a kernel or of
    its peer: in an engine it falls in the time of what runs before. `launch_milliseconds` says what it takes.
    """
    work()
    cycles = int(3e6 * (1 + launch_milliseconds(work, 2)))  # a processor does about two million a millisecond
    times = []
    for number in range(repeats + 2):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(cycles)
        start.record()
        work()
        end.record()
        torch.cuda.synchronize()
        if number > 1:
            times.append(start.elapsed_time(end))
    return statistics.median(times)


def launch_milliseconds(work: Callable[[], Any], repeats: int = 20) -> float:
    """Median time until `work` has been handed to the device."""
    times = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        work()
        times.append((time.perf_counter() - begin) * 1e3)
    return statistics.median(times)


def copy_bandwidth() -> float:
    """Bytes a second, read and written, of a device-to-device copy of 4 GB."""
    source = torch.randint(-128, 127, (4 << 30,), dtype=torch.int8, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.nbytes / (milliseconds(lambda: target.copy_(source)) / 1e3)


def timed(row: Row, work: Callable[[], Any], tensors: Sequence[torch.Tensor]) -> Row:
    """The row with its times, where it passed; `tensors` are what had to be read or written."""
    if row.passed:
        row.ms, row.launch_ms = milliseconds(work), launch_milliseconds(work)
        row.gigabytes = sum(tensor.nbytes for tensor in tensors) / 1e9
    return row


def checked(name: str, operation: str, pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> Row:
    """A row with the errors of (actual, float64 reference) pairs of `[heads.., K, V]`."""
    errors = []
    for actual, expected in pairs:
        difference = torch.linalg.vector_norm(actual.double() - expected, dim=(-2, -1))
        # A transition that has decayed to nothing has no digits to compare: it counts beside an identity.
        errors.append((difference / torch.linalg.vector_norm(expected, dim=(-2, -1)).clamp(min=1e-3)).flatten())
    every = torch.cat(errors)
    allowed = ALLOWED[operation]
    median, worst = float(every.median()), float(every.max())
    return Row(name, median, worst, bool(every.isfinite().all()) and median <= allowed and worst <= 10 * allowed)


def random_segments(
    batch: int, tokens: int, key_heads: int, value_heads: int, dim: int, dtype: torch.dtype = torch.bfloat16
) -> tuple[torch.Tensor, ...]:
    """k, v, g, beta as GDN layers make them: unit keys, and heads that forget in four tokens to four thousand."""
    k = F.normalize(torch.randn(batch, tokens, key_heads, dim, device="cuda"), dim=-1).to(dtype)
    v = torch.randn(batch, tokens, value_heads, dim, device="cuda", dtype=dtype)
    rate = 10 ** torch.empty(value_heads, device="cuda").uniform_(-3.6, -0.6)
    g = -rate * torch.empty(batch, tokens, value_heads, device="cuda").uniform_(0.2, 1.8)
    beta = torch.empty(batch, tokens, value_heads, device="cuda").uniform_(0.05, 0.95)
    return k, v, g, beta


def compose_rows(shape: Shape, chunks: int, tokens: int, dtype: torch.dtype, packed: bool = False) -> Iterator[Row]:
    """Composition of `chunks` maps in every order; `packed` without the transitions that have decayed to nothing."""
    heads, dim = shape.value_heads, shape.head_dim
    maps = [chunk_delta(*random_segments(shape.gdn_layers, tokens, heads, heads, dim)) for _ in range(chunks)]
    transitions, updates = ([part.to(dtype) for part in parts] for parts in zip(*maps, strict=True))
    rows = [None] * chunks
    stored = transitions
    if packed:
        kept = [torch.linalg.vector_norm(transition, dim=(-2, -1)) > FORGOTTEN for transition, _ in maps]
        rows = [(k.flatten().cumsum(0) - 1).where(k.flatten(), -1).to(torch.int32).view(k.shape) for k in kept]
        stored = [transition[k] for transition, k in zip(transitions, kept, strict=True)]
        transitions = [transition * k[..., None, None] for transition, k in zip(transitions, kept, strict=True)]
    del maps
    initial = torch.randn(shape.gdn_layers, heads, dim, dim, device="cuda")
    out = torch.empty_like(initial)
    for order in ORDERS:
        work = partial(compose_states, stored, updates, initial, order, rows=rows, out=out)
        out.fill_(float("nan"))
        work()
        pairs = []
        with use_backend("torch"):
            for layer in range(shape.gdn_layers):
                t, u = ([part[layer].double() for part in parts] for parts in (transitions, updates))
                pairs.append((out[layer], compose_states(t, u, initial[layer].double(), order)))
        storage = "compact" if packed else str(dtype)[6:]
        row = checked(f"compose {order}, {shape.name}, {chunks} x {tokens} tokens, {storage}", "compose", pairs)
        timed(row, work, [*stored, *updates, initial, out])
        if order == "sequential" and not packed:
            row.peers = compose_peers(transitions, updates, initial)
        yield row


def compose_peers(
    transitions: list[torch.Tensor], updates: list[torch.Tensor], initial: torch.Tensor
) -> dict[str, float]:
    """Sequential order by products of the storage dtype, which round the state to it at every chunk."""

    def by_layer() -> None:
        for layer in range(len(initial)):
            state = initial[layer].to(updates[0].dtype)
            for transition, update in zip(transitions, updates, strict=True):
                state = torch.bmm(transition[layer], state) + update[layer]

    flat = [[part.flatten(0, 1) for part in parts] for parts in (transitions, updates)]

    def by_chunk() -> None:
        state = initial.flatten(0, 1).to(updates[0].dtype)
        for transition, update in zip(*flat, strict=True):
            state = torch.baddbmm(update, transition, state)

    return {"bmm for each layer": milliseconds(by_layer, 5), "baddbmm for each chunk": milliseconds(by_chunk, 5)}


def delta_rows(shape: Shape, segments: int, tokens: int) -> Iterator[Row]:
    """Chunk delta of `segments` segments, beside flash-linear-attention's forward pass over the same tokens."""
    key_heads, dim = 16, shape.head_dim
    inputs = random_segments(segments, tokens, key_heads, shape.value_heads, dim)
    transition, update = chunk_delta(*inputs)
    some = slice(0, 4)
    with use_backend("torch"):
        expected = chunk_delta(*(part[some].double() for part in inputs))
    name = f"chunk delta, {key_heads}/{shape.value_heads} heads, {segments} x {tokens} tokens, bfloat16"
    row = checked(name, "delta", [(transition[some], expected[0]), (update[some], expected[1])])
    timed(row, partial(chunk_delta, *inputs), [*inputs, transition, update])
    row.peers = delta_peers(inputs)
    yield row


def delta_peers(inputs: tuple[torch.Tensor, ...]) -> dict[str, float]:
    """flash-linear-attention's forward pass, which gives outputs and an end state, and no transition."""
    try:
        from fla.ops.gated_delta_rule import chunk_gated_delta_rule
    except ImportError:
        return {}
    k, v, g, beta = inputs
    repeated = k.repeat_interleave(v.shape[2] // k.shape[2], dim=2)
    query = torch.randn_like(repeated)

    def forward() -> None:
        with torch.no_grad():
            chunk_gated_delta_rule(query, repeated, v, g, beta.to(v.dtype), output_final_state=True)

    return {"fla forward": milliseconds(forward)}


def relocate_rows(shape: Shape, chunks: int, tokens: int) -> Iterator[Row]:
    """Keys and values of `chunks` chunks into a contiguous cache and into paged blocks."""
    size, total = (shape.attention_layers, tokens, shape.kv_heads, shape.attention_head_dim), chunks * tokens
    keys, values = ([torch.randn(size, device="cuda").bfloat16() for _ in range(chunks)] for _ in range(2))
    rotary = size[-1] // 4
    angle = torch.arange(total, device="cuda")[:, None] * 1e7 ** -(torch.arange(0, rotary, 2, device="cuda") / rotary)
    angle = torch.cat([angle, angle], dim=-1)
    cos, sin = angle.cos().bfloat16(), angle.sin().bfloat16()
    block = 16
    pages = torch.empty(size[0], total // block + 8, size[2], block, 2 * size[3], device="cuda").bfloat16()
    paged_key, paged_value = (part.transpose(2, 3) for part in pages.chunk(2, dim=-1))
    slots = torch.randperm(pages.shape[1], device="cuda")[: total // block, None] * block
    slots = (slots + torch.arange(block, device="cuda")).flatten()
    key, value = (torch.empty(size[0], 1, total, *size[2:], device="cuda").bfloat16() for _ in range(2))
    for name, out, where in (("contiguous", (key, value), None), ("paged", (paged_key, paged_value), slots)):
        results = []
        for backend in ("triton", "torch"):
            for part in out:
                part.fill_(float("nan"))
            with use_backend(backend):
                relocate(keys, values, cos, sin, out=out, slots=where)
            results.append([part.clone() for part in out])
        same = [torch.equal(a.nan_to_num(7e4), b.nan_to_num(7e4)) for a, b in zip(*results, strict=True)]
        error = 0.0 if all(same) else float("nan")
        row = Row(f"relocate, {name}, {shape.name}, {chunks} x {tokens} tokens", error, error, all(same))
        del results
        work = partial(relocate, keys, values, cos, sin, out=out, slots=where)
        yield timed(row, work, 2 * [*keys, *values])


def measure(shape: Shape, only: Sequence[str], chunks: int) -> dict[str, Any]:
    """Everything that `main` writes; prints rows as they come."""
    bandwidth = copy_bandwidth()
    print(f"{torch.cuda.get_device_name()}: a device copy moves {bandwidth / 1e9:,.0f} GB/s (read and written)")
    rows: list[Row] = []
    parts = {
        "compose": lambda: compose_rows(shape, chunks, 128, torch.float16),
        "compact": lambda: compose_rows(shape, chunks, 512, torch.float16, packed=True),
        "delta": lambda: delta_rows(shape, 64, 512),
        "relocate": lambda: relocate_rows(shape, chunks, 512),
    }
    for part in only:
        for row in parts[part]():
            print(described(row, bandwidth), flush=True)
            rows.append(row)
        torch.cuda.empty_cache()
    return {
        "device": torch.cuda.get_device_name(),
        "copy_gb_s": bandwidth / 1e9,
        "rows": [asdict(row) for row in rows],
        "versions": {"python": platform.python_version()} | {name: _version(name) for name in PACKAGES},
        "allowed": ALLOWED,
    }


PARTS = ("compose", "compact", "delta", "relocate")
PACKAGES = ("torch", "triton", "linearkv", "fla-core")


def described(row: Row, bandwidth: float) -> str:
    """One line for people."""
    text = f"{row.name:62s} error {row.error:.1e}, worst head {row.worst_error:.1e}"
    if row.ms is None or row.launch_ms is None:
        return f"{text}  FAILED: not timed"
    share = row.gigabytes * 1e9 / (row.ms / 1e3) / bandwidth
    text += f"  {row.ms:7.3f} ms (launched in {row.launch_ms:.2f})  {row.gigabytes:6.2f} GB  {share:4.0%} of copy"
    return text + "".join(f"; {name} {ms:.3f} ms, {ms / row.ms:.1f}x" for name, ms in row.peers.items())


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=[shape.name for shape in SHAPES], default="Qwen3.5 27B")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--chunks", type=int, default=20)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(argv)
    if not torch.cuda.is_available():
        sys.exit("this benchmark needs a CUDA device")
    shape = next(shape for shape in SHAPES if shape.name == options.shape)
    with use_backend("triton"):
        result = measure(shape, options.only, options.chunks)
    if options.out is not None:
        options.out.write_text(json.dumps(result | {"command": sys.argv[1:]}, indent=1) + "\n", encoding="utf-8")
    if not all(row["passed"] for row in result["rows"]):
        sys.exit("a kernel is wrong")


if __name__ == "__main__":
    main()
