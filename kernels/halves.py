"""What the Triton kernels share: float32 operands as two float16 parts, and the tile for a dimension."""

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


def padded(dim: int) -> int:
    """The tile for a dimension: a power of two, and what a tensor core takes at least."""
    return max(16, triton.next_power_of_2(dim))
