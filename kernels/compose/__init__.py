"""Composition of affine state maps: one state from an initial state and the maps of chunks, in a chosen order."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from linearkv.kernels.backend import accumulation_dtype, asked_backend, implementation, runs_triton, versions
from linearkv.kernels.compose.reference import ORDERS, compose_maps, unpacked

__all__ = ["ORDERS", "compose_at", "compose_maps", "compose_states", "composes_at", "entry_states", "unpacked"]

_ROTATED = {64, 128}
"""Key and value dims of heads whose `cyclic` average a GPU's kernel is known to make. A test of ragged batches of other
heads ended in an illegal access on an H200; the interpreter is right, and why is not known. Others are left to the
reference, unless Triton is asked for by name."""


def compose_states(
    transitions: Sequence[torch.Tensor],
    updates: Sequence[torch.Tensor],
    initial: torch.Tensor,
    order: str = "sequential",
    *,
    requests: Sequence[Sequence[int]] | None = None,
    rows: Sequence[torch.Tensor | None] | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """The state that a query starts from after the maps of its chunks; of many queries at once with `requests`.

    Args:
        transitions: m tensors `[..., K, K]` of any float dtype (leading dimensions: layers, heads). They are read where
            they lie: chunk states need not be gathered into a batch. Products of them, which `cyclic` forms, must stay
            small, as those of the gated delta rule's contractions do: a GPU holds them to 64 and gives NaN beyond.
        updates: m tensors `[..., K, V]`.
        initial: `[..., K, V]`, the state before the first chunk; it enters every chain of an averaged order. With
            `requests`, `[R, ..., K, V]`.
        order: `sequential`, the maps applied as given; `bidirectional`, the mean of that and of the reverse; `cyclic`,
            the mean over all n rotations, in O(n) matrix products.
        requests: for each of R requests, which maps it composes, in its order, by their index; any number of them, any
            of them in several requests. None: one request of all maps, and no dimension for it.
        rows: for each map, None, or int32 `[...]` if its transition is packed: `[n, K, K]` of the heads that are kept,
            with a head's place among them in `rows`, and -1 for a head whose transition is zero, which is not read.
        out: where the result goes, of its shape and any strides (of a state pool that is laid out `[.., V, K]`, give
            the transposed view). None: a new tensor.

    Returns:
        `[..., K, V]`, or `[R, ..., K, V]` with `requests`; in float32 (float64 if an operand is float64) unless `out`
        has another dtype. A request of no maps leaves its initial state.

    Raises:
        ValueError: unknown order, or operands that do not fit each other.
    """
    if order not in ORDERS:
        raise ValueError(f"unknown order {order!r}: expected one of {', '.join(ORDERS)}")
    batch = initial if requests is not None else initial[None]
    lists = [list(range(len(transitions)))] if requests is None else [list(request) for request in requests]
    packing = list(rows) if rows is not None else [None] * len(transitions)
    _check(transitions, updates, batch, lists, packing)
    dtype = accumulation_dtype(initial, *transitions, *updates)
    if out is not None and out.shape != initial.shape:
        raise ValueError(f"out has shape {tuple(out.shape)}, the states {tuple(initial.shape)}")
    # A narrower result would round an average's parts: it is made in full and rounded once.
    states = out if out is not None and out.dtype == dtype else torch.empty_like(initial, dtype=dtype)
    run = implementation("compose_states", _versions("compose_states", dtype, initial, order), initial.device)
    run(transitions, updates, batch, order, lists, packing, states if requests is not None else states[None])
    return states if out is None or out is states else out.copy_(states)


def compose_at(
    transitions: torch.Tensor,
    updates: torch.Tensor,
    dtypes: tuple[torch.dtype, torch.dtype],
    initial: torch.Tensor,
    order: str = "sequential",
) -> torch.Tensor:
    """`compose_states` of maps by their addresses, for who has placed very many and knows where each lies.

    As tensors, the maps of 50 chunks in 48 layers would cost a program in Python more time than their composition
    takes. Nothing is checked here, and only a kernel does it: see `composes_at`.

    Args:
        transitions, updates: int64 `[R, m]` on the CPU, for each of R requests (or layers) where its m maps `[H, K, K]`
            and `[H, K, V]` lie: contiguous, on 16 bytes, on the device of `initial`, and there until the launch has
            run.
        dtypes: of all transitions and of all updates.
        initial: `[R, H, K, V]` float32.

    Returns:
        `[R, H, K, V]` float32.
    """
    run = implementation("compose_at", _versions("compose_at", torch.float32, initial, order), initial.device)
    states: torch.Tensor = run(transitions, updates, dtypes, initial, order)
    return states


def composes_at(initial: torch.Tensor, order: str) -> bool:
    """Whether `compose_at` runs for states like `initial` `[..., K, V]`, where it lies."""
    return runs_triton(initial.device) and "triton" in _versions("compose_at", torch.float32, initial, order)


def entry_states(
    transitions: Sequence[torch.Tensor], updates: Sequence[torch.Tensor], initial: torch.Tensor
) -> torch.Tensor:
    """The state before every map when they are applied as given: `[m, ..., K, V]`, the first of them `initial`.

    Args and dtype as for `compose_states`.
    """
    _check(transitions, updates, initial[None], [list(range(len(transitions)))], [None] * len(transitions))
    dtype = accumulation_dtype(initial, *transitions, *updates)
    run = implementation("entry_states", versions(__name__, "entry_states", dtype, *initial.shape[-2:]), initial.device)
    states: torch.Tensor = run(transitions, updates, initial)
    return states


def _versions(operation: str, dtype: torch.dtype, initial: torch.Tensor, order: str) -> dict[str, Callable[..., Any]]:
    dims = initial.shape[-2:]
    found = versions(__name__, operation, dtype, *dims)
    if order == "cyclic" and initial.is_cuda and asked_backend() == "auto" and not _ROTATED.issuperset(dims):
        found.pop("triton", None)
    return found


def _check(
    transitions: Sequence[torch.Tensor],
    updates: Sequence[torch.Tensor],
    initial: torch.Tensor,
    requests: Sequence[Sequence[int]],
    rows: Sequence[torch.Tensor | None],
) -> None:
    """Refuses operands that do not fit each other; `initial` is `[R, ..., K, V]`."""
    if len(transitions) != len(updates):
        raise ValueError(f"{len(transitions)} transitions but {len(updates)} updates")
    if len(rows) != len(transitions):
        raise ValueError(f"{len(transitions)} transitions but rows of {len(rows)}")
    if len(requests) != len(initial):
        raise ValueError(f"{len(requests)} requests but {len(initial)} initial states")
    *lead, key_dim, _ = state = initial.shape[1:]
    devices = {part.device for part in (*transitions, *updates, initial, *(row for row in rows if row is not None))}
    if len(devices) > 1:
        raise ValueError(f"maps and states lie on {', '.join(sorted(map(str, devices)))}, not on one device")
    for position, (transition, update, row) in enumerate(zip(transitions, updates, rows, strict=True)):
        heads = lead if row is None else transition.shape[:1]
        if transition.shape != (*heads, key_dim, key_dim) or update.shape != state:
            raise ValueError(
                f"map {position} has transition {tuple(transition.shape)} and update {tuple(update.shape)}, "
                f"the state {tuple(state)}"
            )
        if row is not None and (row.shape != tuple(lead) or row.dtype != torch.int32):
            raise ValueError(f"map {position} has rows {row.dtype} {tuple(row.shape)}, not int32 {tuple(lead)}")
    for request in requests:
        if any(not 0 <= index < len(transitions) for index in request):
            raise ValueError(f"request {list(request)} names maps that are not among the {len(transitions)}")
