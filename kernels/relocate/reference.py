"""Key relocation in plain torch: the rotate-half convention of Qwen3-Next and Qwen3.5, operation by operation."""

from collections.abc import Sequence

import torch


def relocate(
    keys: Sequence[torch.Tensor],
    values: Sequence[torch.Tensor],
    cos: torch.Tensor,
    sin: torch.Tensor,
    out_key: torch.Tensor,
    out_value: torch.Tensor,
    slots: torch.Tensor | None,
) -> None:
    """See `linearkv.kernels.relocate.relocate`; `out_key` and `out_value` are `[La, B, S, H, D]`."""
    if not keys:
        return
    key, value = rotated(torch.cat(list(keys), dim=1), cos, sin), torch.cat(list(values), dim=1)
    slot = torch.arange(key.shape[1], device=key.device) if slots is None else slots
    kept = slot >= 0
    block, offset = slot[kept] // out_key.shape[2], slot[kept] % out_key.shape[2]
    out_key[:, block, offset] = key[:, kept]
    out_value[:, block, offset] = value[:, kept]


def rotated(key: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """`[.., T, H, D]` keys turned by the angles of their tokens; `cos` and `sin` are `[T, R]`."""
    cos, sin = cos[:, None, :], sin[:, None, :]
    turning, kept = key[..., : cos.shape[-1]], key[..., cos.shape[-1] :]
    first, second = turning.chunk(2, dim=-1)
    turned = torch.cat((-second, first), dim=-1)
    return torch.cat((turning * cos + turned * sin, kept), dim=-1)
