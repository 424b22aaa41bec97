"""Where tensors lie, for operations that are told so and not given the tensors. Imports no Triton."""

import torch


def apart(layers: torch.Tensor) -> int:
    """Bytes from one layer's tensor to the next one's, in one tensor of all layers."""
    return layers.stride(0) * layers.itemsize


def addresses(layers: torch.Tensor) -> torch.Tensor:
    """Of each layer's tensor, in one tensor of all layers: int64 `[layers]` on the CPU."""
    return layers.data_ptr() + torch.arange(layers.shape[0]) * apart(layers)
