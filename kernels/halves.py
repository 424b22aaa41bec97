"""What the Triton kernels share: float32 operands as two float16 parts, tiles, and tensors fit for a launch."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
import triton
import triton.language as tl


@triton.jit
def halves(x):
    """(high, low, scale): x [M, N] fp32 = (high + low) * scale[:, None], two float16 parts and a power of two a row.

    Rows are scaled until their largest magnitude is in [2^13, 2^14): nothing overflows, and the second part is far from
    float16's smallest numbers. Together they hold 22 bits, and a tensor core multiplies them twice as fast as tf32.
    """
    top = tl.max(tl.abs(x), axis=1)
    exponent = (top.to(tl.int32, bitcast=True) >> 23) & 255
    exponent = tl.minimum(tl.maximum(exponent, 27), 253)
    x = x * ((267 - exponent) << 23).to(tl.float32, bitcast=True)[:, None]
    high = x.to(tl.float16)
    low = (x - high.to(tl.float32)).to(tl.float16)
    return high, low, ((exponent - 13) << 23).to(tl.float32, bitcast=True)


def on(tensor: torch.Tensor) -> AbstractContextManager[object]:
    """Launches inside the block go to the device of `tensor`, and its current stream: Triton asks for neither."""
    return torch.cuda.device(tensor.device) if tensor.is_cuda else nullcontext()


def readable(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor contiguous and on 16 bytes, itself where it is so."""
    tensor = tensor.contiguous()
    return tensor if tensor.data_ptr() % 16 == 0 else tensor.clone()


def distances(tensors: Sequence[torch.Tensor]) -> list[int]:
    """How far each lies from the first of them, in elements; all are of one type and `readable`."""
    return [(tensor.data_ptr() - tensors[0].data_ptr()) // tensor.itemsize for tensor in tensors]


def on_device(table: torch.Tensor, device: torch.device) -> torch.Tensor:
    """The table of a launch on its device, copied without waiting for it."""
    return table.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else table


def padded(dim: int) -> int:
    """The tile for a dimension: a power of two, and what a tensor core takes at least."""
    return max(16, triton.next_power_of_2(dim))
