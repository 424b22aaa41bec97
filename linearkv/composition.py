"""Composition: a prefix and any chunk states in any order -> the context a question starts from."""

from collections.abc import Callable, Sequence

import torch

from linearkv.errors import LinearKVError
from linearkv.kernels.compose import ORDERS, compose_states
from linearkv.kernels.relocate import relocate
from linearkv.states import TAIL, ChunkState, Context, PrefixState

__all__ = ["ORDERS", "compose"]


def compose(prefix: PrefixState, states: Sequence[ChunkState], order: str = "bidirectional") -> Context:
    """The context after `prefix` and the chunks of `states`, without running the model.

    The order decides which recurrent state the question starts from: `sequential`, `bidirectional` (the mean of the
    given order and its reverse) or `cyclic` (the mean of all rotations). Keys and values always stand in the order
    given, and the question's convolution sees the tail of the last chunk. With no chunks this is the prefix's context.

    One chunk behind the prefix it was prefilled with is exact to rounding. Several are an approximation, since a chunk
    prefilled alone has not seen its neighbours.

    Raises:
        LinearKVError: a state is of another model shape than the prefix.
        ValueError: unknown order.
    """
    if order not in ORDERS:
        raise ValueError(f"unknown order {order!r}: expected one of {', '.join(ORDERS)}")
    device = prefix.recurrent.device
    states = [state.to(device) for state in states]
    for position, state in enumerate(states):
        _check_fits(prefix, state, position)

    recurrent = compose_states(
        [state.transition for state in states],
        [state.update for state in states],
        prefix.recurrent,
        order,
        rows=[state.rows for state in states],
    )
    parts: list[PrefixState | ChunkState] = [prefix, *states]
    length = sum(part.length for part in parts)
    key, value = prefix.key, prefix.value
    if length:
        cos, sin = prefix.rotary(torch.arange(length, device=device))
        key, value = relocate([part.key for part in parts], [part.value for part in parts], cos, sin)
    tail = last_inputs(prefix.conv_tail, [state.length for state in states], lambda place: states[place].conv_tail)
    return Context(recurrent, tail, key, value, length)


def last_inputs(before: torch.Tensor, lengths: Sequence[int], tail: Callable[[int], torch.Tensor]) -> torch.Tensor:
    """The last `TAIL` convolution inputs: of the last chunk, and where it is shorter, of what precedes it.

    Args:
        before: `[Lg, C, TAIL]`, the inputs before the first chunk.
        lengths: tokens of each chunk.
        tail: a chunk's own, as in `ChunkState`, by its place; not asked for more than are needed.
    """
    found, missing = before[..., :0], TAIL
    for place in reversed(range(len(lengths))):
        own = min(lengths[place], missing)
        found = torch.cat([tail(place)[..., TAIL - own :], found], dim=-1)
        missing -= own
        if not missing:
            return found
    return torch.cat([before[..., TAIL - missing :], found], dim=-1)


def _check_fits(prefix: PrefixState, state: ChunkState, position: int) -> None:
    for name, mine, theirs in (
        ("update", state.update.shape, prefix.recurrent.shape),
        ("conv_tail", state.conv_tail.shape, prefix.conv_tail.shape),
        ("key", state.key.shape[:1] + state.key.shape[2:], prefix.key.shape[:1] + prefix.key.shape[2:]),
    ):
        if mine != theirs:
            raise LinearKVError(
                f"chunk state {position} has {name} {tuple(mine)}, the prefix {tuple(theirs)}: made by another model"
            )
    for name in ("conv_tail", "key", "value"):
        found, expected = getattr(state, name).dtype, getattr(prefix, name).dtype
        if found != expected:
            raise LinearKVError(
                f"chunk state {position} has {name} in {found}, the prefix in {expected}: "
                f"made with another compute dtype"
            )
