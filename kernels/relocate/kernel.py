"""Relocation in Triton: keys and values of all chunks and layers in one launch, each read once and written once.

Rounding is the model's: its rotary operation multiplies twice and adds, and rounds to the keys' type after each of the
three. Products must therefore not be fused into the addition (`enable_fp_fusion=False`).
"""

import itertools
from collections.abc import Sequence

import torch
import triton
import triton.language as tl

from linearkv.kernels.addresses import addresses
from linearkv.kernels.halves import on, on_device, readable

ROWS = 32  # of a program: tokens times heads


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
def _turned(x, across, cos, sin):
    """x cos + across sin in the type of x, which is rounded to after each of the three operations."""
    own = _rounded(x.to(tl.float32) * cos.to(tl.float32), x.dtype)
    crossed = _rounded(across.to(tl.float32) * sin.to(tl.float32), x.dtype)
    return _rounded(own + crossed, x.dtype).to(x.dtype)


@triton.jit
def _relocate(
    key_base, value_base, parts, cos, sin, slots, out_key, out_value,
    key_l, key_b, key_s, key_h,
    value_l, value_b, value_s, value_h,
    capacity,
    H: tl.constexpr, D: tl.constexpr, R: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, SLOTS: tl.constexpr,
    ALIGNED: tl.constexpr,
):  # fmt: skip
    """A few (token, head) rows of one chunk and layer. parts: [La, n, 4] int64 of each layer and chunk: where its keys
    and values are (elements from the bases), its tokens, and the position where the first of them lands."""
    first = tl.program_id(0) * ROWS
    layer = tl.program_id(2).to(tl.int64)
    part = parts + (layer * tl.num_programs(1) + tl.program_id(1)) * 4
    length = tl.load(part + 2).to(tl.int32)
    if first >= length * H:
        return
    start = first.to(tl.int64) * D
    keys = key_base + tl.multiple_of(tl.load(part), ALIGNED) + start
    values = value_base + tl.multiple_of(tl.load(part + 1), ALIGNED) + start

    row = tl.arange(0, ROWS)[:, None]
    head = (first + row) % H
    present = first + row < length * H
    position = tl.load(part + 3).to(tl.int32) + (first + row) // H
    slot = (tl.load(slots + position, mask=present, other=-1) if SLOTS else position).to(tl.int32)
    present &= (slot >= 0) & (slot < capacity)
    slot = tl.maximum(slot, 0)
    to_key = out_key + layer * key_l + head * key_h
    to_value = out_value + layer * value_l + head * value_h
    if BLOCK:
        block, slot = (slot // BLOCK).to(tl.int64), slot % BLOCK
        to_key += block * key_b
        to_value += block * value_b
    to_key += slot.to(tl.int64) * key_s
    to_value += slot.to(tl.int64) * value_s

    d = tl.arange(0, triton.next_power_of_2(D))[None, :]
    value = tl.load(values + row * D + d, mask=present & (d < D), other=0.0)
    rest = tl.load(keys + row * D + d, mask=present & (d >= R) & (d < D), other=0.0)
    if R:
        half: tl.constexpr = R // 2
        e = tl.arange(0, triton.next_power_of_2(half))[None, :]
        turns = present & (e < half)
        x = tl.load(keys + row * D + e, mask=turns, other=0.0)
        y = tl.load(keys + row * D + half + e, mask=turns, other=0.0)
        at = position * R + e
        x_turned = _turned(
            x, -y.to(tl.float32), tl.load(cos + at, mask=turns, other=0.0), tl.load(sin + at, mask=turns, other=0.0)
        )
        at += half
        y_turned = _turned(y, x, tl.load(cos + at, mask=turns, other=0.0), tl.load(sin + at, mask=turns, other=0.0))
        tl.store(to_key + e, x_turned, mask=turns)
        tl.store(to_key + half + e, y_turned, mask=turns)
    tl.store(to_key + d, rest, mask=present & (d >= R) & (d < D))
    tl.store(to_value + d, value, mask=present & (d < D))


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
    keys, values = ([readable(part) for part in parts] for parts in (keys, values))
    to_keys, to_values = (torch.stack([addresses(part) for part in parts], dim=1) for parts in (keys, values))
    _launch(to_keys, to_values, [key.shape[1] for key in keys], cos, sin, out_key, out_value, slots)


def relocate_at(
    keys: torch.Tensor,
    values: torch.Tensor,
    tokens: Sequence[int],
    heads: int,
    dim: int,
    cos: torch.Tensor,
    sin: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See `linearkv.kernels.relocate.relocate_at`."""
    key, value = (cos.new_empty(len(keys), 1, len(cos), heads, dim) for _ in range(2))
    _launch(keys, values, tokens, cos, sin, key, value, None)
    return key[:, 0], value[:, 0]


def _launch(
    keys: torch.Tensor,
    values: torch.Tensor,
    tokens: Sequence[int],
    cos: torch.Tensor,
    sin: torch.Tensor,
    out_key: torch.Tensor,
    out_value: torch.Tensor,
    slots: torch.Tensor | None,
) -> None:
    """keys, values: int64 `[La, n]`, addresses."""
    layers, blocks, block, heads, dim = out_key.shape
    if not (sum(tokens) and layers and heads):
        return
    lands = [0, *itertools.accumulate(tokens)][:-1]
    # Elements from the results, which are of the same type and begin on as many bytes.
    apart = [(places - out.data_ptr()) // out.itemsize for places, out in ((keys, out_key), (values, out_value))]
    whole = 16 // out_key.itemsize
    aligned = all(bool((some % whole == 0).all()) for some in apart)
    parts = torch.stack([*apart, *(torch.tensor(numbers).expand(layers, -1) for numbers in (tokens, lands))], dim=-1)
    parts = on_device(parts, out_key.device)
    with on(out_key):
        _relocate[triton.cdiv(max(tokens) * heads, ROWS), len(tokens), layers](
            out_key, out_value, parts, cos.contiguous(), sin.contiguous(),
            parts if slots is None else slots.contiguous(), out_key, out_value,
            *out_key.stride()[:4], *out_value.stride()[:4],
            blocks * block,
            H=heads, D=dim, R=cos.shape[1], BLOCK=block if blocks > 1 else 0, ROWS=ROWS, SLOTS=slots is not None,
            ALIGNED=whole if aligned else 1,
            num_warps=4, enable_fp_fusion=False,
        )  # fmt: skip
