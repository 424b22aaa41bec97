"""Composition of affine state maps: one state from an initial state and the maps of chunks, in a chosen order."""

from collections.abc import Sequence

import torch

from linearkv.kernels.backend import implementation
from linearkv.kernels.compose import reference
from linearkv.kernels.compose.reference import ORDERS, compose_maps

__all__ = ["ORDERS", "compose_maps", "compose_states"]

_VERSIONS = {"torch": reference.compose_states}


def compose_states(
    transitions: Sequence[torch.Tensor],
    updates: Sequence[torch.Tensor],
    initial: torch.Tensor,
    order: str = "sequential",
) -> torch.Tensor:
    """The state that a query starts from, after `n` chunks.

    Args:
        transitions: n tensors `[..., K, K]` of any float dtype (leading dimensions: layers, heads).
        updates: n tensors `[..., K, V]`.
        initial: `[..., K, V]`, the state before the first chunk; it enters every chain of an averaged order.
        order: `sequential`, the maps applied as given; `bidirectional`, the mean of that and of the reverse; `cyclic`,
            the mean over all n rotations, in O(n) matrix products.

    Returns:
        `[..., K, V]` in float32 (float64 if an operand is float64), accumulated in that dtype. With n = 0, `initial`.
    """
    return implementation("compose_states", _VERSIONS, initial.device)(transitions, updates, initial, order)
