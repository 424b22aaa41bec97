"""Relocation in Triton: keys and values of all chunks and layers in one launch, each read once and written once.

Rounding is the model's: its rotary operation multiplies twice and adds, and rounds to the keys' type after each of the
three. Products must therefore not be fused into the addition (`enable_fp_fusion=False`).
"""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl

from linearkv.kernels.halves import distances, on, on_device, readable

TOKENS = 16  # of a program


@triton.jit
def _rounded(x, TYPE: tl.constexpr):
    """x fp32 rounded to TYPE, to nearest and ties to even, as fp32."""
    if tl.bfloat16 == TYPE:
        bits = x.to(tl.uint32, bitcast=True)
        even = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
        x = tl.where(x == x, even.to(tl.float32, bitcast=True), x)
    elif tl.float16 == TYPE:
        x = x.to(tl.float16).to(tl.float32)
    return x


@triton.jit
def _relocate(
    key_base, value_base, parts, cos, sin, slots, out_key, out_value,
    key_l, key_b, key_s, key_h,
    value_l, value_b, value_s, value_h,
    heads, block, capacity,
    D: tl.constexpr, R: tl.constexpr, WIDE: tl.constexpr, TOKENS: tl.constexpr, SLOTS: tl.constexpr,
):  # fmt: skip
    """A few tokens of one chunk and layer, all heads. parts: [n, 4] int64 of each chunk: where its keys and values are
    (elements from the bases), its tokens, and the position where the first of them lands."""
    first = tl.program_id(0) * TOKENS
    part = parts + tl.program_id(1) * 4
    layer = tl.program_id(2).to(tl.int64)
    length = tl.load(part + 2)
    if first >= length:
        return
    aligned: tl.constexpr = 128 // key_base.dtype.element_ty.primitive_bitwidth  # elements of 16 bytes
    keys = key_base + tl.multiple_of(tl.load(part), aligned)
    values = value_base + tl.multiple_of(tl.load(part + 1), aligned)
    t, d = tl.arange(0, TOKENS)[:, None], tl.arange(0, WIDE)[None, :]
    present = (first + t < length) & (d < D)
    position = tl.load(part + 3) + first + t
    slot = tl.load(slots + position, mask=first + t < length, other=0) if SLOTS else position
    present &= (slot >= 0) & (slot < capacity)
    turns = present & (d < R)
    half: tl.constexpr = R // 2
    partner = tl.where(d < half, d + half, d - half)
    c = tl.load(cos + position * R + d, mask=turns, other=0.0).to(tl.float32)
    s = tl.load(sin + position * R + d, mask=turns, other=0.0).to(tl.float32)
    to_key = layer * key_l + (slot // block) * key_b + (slot % block) * key_s + d
    to_value = layer * value_l + (slot // block) * value_b + (slot % block) * value_s + d
    for head in range(heads):
        at = ((layer * length + first + t) * heads + head) * D
        x = tl.load(keys + at + d, mask=present, other=0.0)
        y = tl.load(keys + at + partner, mask=turns, other=0.0).to(tl.float32)
        y = tl.where(d < half, -y, y)
        own = _rounded(x.to(tl.float32) * c, keys.dtype.element_ty)
        turned = _rounded(own + _rounded(y * s, keys.dtype.element_ty), keys.dtype.element_ty)
        tl.store(out_key + to_key + head * key_h, tl.where(d < R, turned.to(x.dtype), x), mask=present)
        tl.store(out_value + to_value + head * value_h, tl.load(values + at + d, mask=present, other=0.0), mask=present)


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
    keys, values = ([readable(part) for part in parts] for parts in (keys, values))
    layers, blocks, block, heads, dim = out_key.shape
    tokens = [key.shape[1] for key in keys]
    if not (sum(tokens) and layers and heads):
        return
    lands = [sum(tokens[:place]) for place in range(len(tokens))]
    parts = on_device(list(zip(distances(keys), distances(values), tokens, lands, strict=True)), out_key.device)
    with on(out_key):
        _relocate[triton.cdiv(max(tokens), TOKENS), len(tokens), layers](
            keys[0], values[0], parts, cos.contiguous(), sin.contiguous(),
            parts if slots is None else slots.contiguous(), out_key, out_value,
            *out_key.stride()[:4], *out_value.stride()[:4],
            heads, block, blocks * block,
            D=dim, R=cos.shape[1], WIDE=triton.next_power_of_2(dim), TOKENS=TOKENS, SLOTS=slots is not None,
            num_warps=4, enable_fp_fusion=False,
        )  # fmt: skip
