"""Key relocation in plain torch: the rotate-half convention of Qwen3-Next and Qwen3.5, operation by operation."""

import torch


def relocate(key: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """See `linearkv.kernels.relocate.relocate`."""
    tokens, rotary_dim = cos.shape
    if sin.shape != cos.shape or key.shape[-3] != tokens or key.shape[-1] < rotary_dim:
        raise ValueError(f"shapes do not agree: key {tuple(key.shape)}, cos {tuple(cos.shape)}, sin {tuple(sin.shape)}")
    if cos.dtype != key.dtype or sin.dtype != key.dtype:
        # Another dtype would round elsewhere than the model does, and the keys would differ from a real prefill's.
        raise ValueError(f"cos and sin must have the keys' dtype {key.dtype}, not {cos.dtype} and {sin.dtype}")
    cos, sin = cos[:, None, :], sin[:, None, :]
    rotated, kept = key[..., :rotary_dim], key[..., rotary_dim:]
    first, second = rotated.chunk(2, dim=-1)
    turned = torch.cat((-second, first), dim=-1)
    return torch.cat((rotated * cos + turned * sin, kept), dim=-1)
