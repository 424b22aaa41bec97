"""Composition of affine maps `S -> T S + U` in plain torch.

    (T2, U2) o (T1, U1) = (T2 T1, T2 U1 + U2)

An averaged order is a mean of whole chains, each from the initial state; a transition is never inverted, since many are
singular to working precision.
"""

from collections.abc import Sequence

import torch

from linearkv.kernels.backend import accumulation_dtype

ORDERS = ("sequential", "bidirectional", "cyclic")


def compose_maps(
    later: tuple[torch.Tensor, torch.Tensor], earlier: tuple[torch.Tensor, torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    """The map that applies `earlier` and then `later`; each is (transition `[..., K, K]`, update `[..., K, V]`).

    Computed in float32, or float64 if an operand is float64.
    """
    dtype = accumulation_dtype(*later, *earlier)
    later_transition, later_update, earlier_transition, earlier_update = (x.to(dtype) for x in (*later, *earlier))
    return later_transition @ earlier_transition, later_transition @ earlier_update + later_update


def compose_states(
    transitions: Sequence[torch.Tensor],
    updates: Sequence[torch.Tensor],
    initial: torch.Tensor,
    order: str,
    requests: Sequence[Sequence[int]],
    rows: Sequence[torch.Tensor | None],
    out: torch.Tensor,
) -> None:
    """See `linearkv.kernels.compose.compose_states`; `initial` and `out` are `[R, ..., K, V]`."""
    dense = [t if row is None else unpacked(t, row) for t, row in zip(transitions, rows, strict=True)]
    dtype = accumulation_dtype(initial, *transitions, *updates)
    for request, start, into in zip(requests, initial.to(dtype), out, strict=True):
        into.copy_(_compose([dense[index] for index in request], [updates[index] for index in request], start, order))


def unpacked(transition: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """`[n, K, K]` of the heads that are kept -> `[..., K, K]`, zero for the others; `rows` is `[...]`, -1 for those."""
    zero = transition.new_zeros(1, *transition.shape[1:])
    return torch.cat([transition, zero])[rows]


def entry_states(
    transitions: Sequence[torch.Tensor], updates: Sequence[torch.Tensor], initial: torch.Tensor
) -> torch.Tensor:
    """See `linearkv.kernels.compose.entry_states`."""
    dtype = accumulation_dtype(initial, *transitions, *updates)
    states = initial.new_empty(len(transitions), *initial.shape, dtype=dtype)
    state = initial.to(dtype)
    for into, transition, update in zip(states, transitions, updates, strict=True):
        into.copy_(state)
        state = _chain([transition], [update], state)
    return states


def _compose(
    transitions: Sequence[torch.Tensor], updates: Sequence[torch.Tensor], initial: torch.Tensor, order: str
) -> torch.Tensor:
    """One request: the mean of the whole chains of its order."""
    if len(transitions) < 2 or order == "sequential":
        return _chain(transitions, updates, initial)
    if order == "bidirectional":
        return (_chain(transitions, updates, initial) + _chain(transitions[::-1], updates[::-1], initial)) / 2
    return _mean_over_rotations(transitions, updates, initial)


def _chain(transitions: Sequence[torch.Tensor], updates: Sequence[torch.Tensor], state: torch.Tensor) -> torch.Tensor:
    for transition, update in zip(transitions, updates, strict=True):
        state = transition.to(state.dtype) @ state + update.to(state.dtype)
    return state


def _mean_over_rotations(
    transitions: Sequence[torch.Tensor], updates: Sequence[torch.Tensor], initial: torch.Tensor
) -> torch.Tensor:
    """Rotation r runs the maps r .. n-1 and then 0 .. r-1: prefix product r after suffix product r.

    One pass from the back builds the suffix products and keeps only the states they lead to; one pass from the front
    builds the prefix products and applies them.
    """
    n = len(transitions)
    suffix = (transitions[-1].to(initial.dtype), updates[-1].to(initial.dtype))
    after_suffix = [suffix[0] @ initial + suffix[1]]
    for r in range(n - 2, 0, -1):
        suffix = compose_maps(suffix, (transitions[r], updates[r]))
        after_suffix.append(suffix[0] @ initial + suffix[1])
    after_suffix.reverse()  # after_suffix[r - 1] is the state after the maps r .. n-1

    total = _chain(transitions, updates, initial)  # rotation 0
    prefix = (transitions[0].to(initial.dtype), updates[0].to(initial.dtype))
    for r in range(1, n):
        total = total + prefix[0] @ after_suffix[r - 1] + prefix[1]
        if r < n - 1:
            prefix = compose_maps((transitions[r], updates[r]), prefix)
    return total / n
