"""Key relocation: keys kept before rotary embedding are rotated at the positions where they land."""

import torch

from linearkv.kernels.backend import implementation
from linearkv.kernels.relocate import reference

_VERSIONS = {"torch": reference.relocate}


def relocate(key: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotates keys at their new positions, rounding exactly where the model's own rotary operation rounds.

    Args:
        key: `[..., T, H, D]` unrotated keys (after the key norm).
        cos, sin: `[T, R]` of the model's rotary embedding at the new positions, in the dtype of `key`; R <= D, and the
            dimensions past R stay as they are (partial rotary embedding).

    Returns:
        `[..., T, H, D]` in the dtype of `key`.
    """
    return implementation("relocate", _VERSIONS, key.device)(key, cos, sin)
