"""Chunk delta in Triton: three launches for all segments, heads and blocks of 64 tokens. The reference has the maths.

`_solve` handles every block on its own: it inverts the block's unit triangular system, which does not depend on the
state, and leaves W = E (I + A)^{-1} b exp(G) k and Y = E (I + A)^{-1} b v, with E = exp(G_C - G). `_walk` takes a tile
of columns of the transition or the update along the blocks of its segment, transposed so that it stays in registers:

    w = Y - W S,    S <- exp(G_C) S + sum_t k_t w_t^T        for both parts; Y is 0 for the transition

Precision: operands are split into two float16 parts each (22 bits) and products summed in float32; keys and values that
come in half precision need one part.
"""

import torch
import triton
import triton.language as tl

from linearkv.kernels.halves import halves, on, padded

BLOCK = 64


@triton.jit
def _rough(x, y):
    """x y from float16 roundings of both: 11 bits."""
    return tl.dot(x.to(tl.float16), y.to(tl.float16))


@triton.jit
def _times(x, y, y_rest, SPLIT: tl.constexpr):
    """x (y + y_rest) for 22 bits of x fp32 and two float16 parts, of which the second counts if SPLIT."""
    high, low, scale = halves(x)
    product = tl.dot(high, y, tl.dot(low, y))
    if SPLIT:
        product = tl.dot(high, y_rest, product)
    return product * scale[:, None]


@triton.jit
def _inverse(system, BLOCK: tl.constexpr):
    """(I + A)^{-1} of a strictly lower triangular A [BLOCK, BLOCK] with small entries, by matrix products alone.

    A rough inverse first: diagonal blocks of 4 by (I - D)(I + D^2), where D^4 = 0; then pairs of neighbouring blocks
    joined by the formula for two, [[P, 0], [N, Q]]^{-1} = [[P', 0], [-Q' N P', Q']]. Then a step of Newton's iteration,
    X <- X + X (I - (I + A) X), which squares the error; its residual is computed in float32.
    """
    row, column = tl.arange(0, BLOCK)[:, None], tl.arange(0, BLOCK)[None, :]
    identity = tl.where(row == column, 1.0, 0.0)
    diagonal = tl.where(row // 4 == column // 4, system, 0.0)
    inverse = _rough(identity - diagonal, identity + _rough(diagonal, diagonal))
    for level in tl.static_range(4):
        beside = (row // (8 << level) == column // (8 << level)) & (row // (4 << level) != column // (4 << level))
        inverse -= _rough(_rough(inverse, tl.where(beside, system, 0.0)), inverse)
    rounded = inverse.to(tl.float16)
    inverse = rounded.to(tl.float32)
    residual = identity - inverse - _times(system, rounded, rounded, False)
    return inverse + tl.dot(rounded, residual.to(tl.float16))


@triton.jit
def _solve(
    k, v, g, beta, lengths, w_high, w_low, w_scale, y, total,
    k_b, k_t, k_h, v_b, v_t, v_h, g_b, g_t, g_h, beta_b, beta_t, beta_h,
    blocks, heads, group,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, BLOCK: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    """One block of one segment and value head. k, v, g, beta: [B, T, H, ..]; results: [B, Hv, blocks, ..]."""
    row = tl.program_id(0).to(tl.int64)
    segment, head = row // heads, row % heads
    first = tl.program_id(1) * BLOCK
    length = tl.load(lengths + segment).to(tl.int32)
    if first >= length:
        return
    at = row * blocks + tl.program_id(1)
    t, kd, vd = tl.arange(0, BLOCK), tl.arange(0, BK), tl.arange(0, BV)
    real = first + t < length
    token = (first + t).to(tl.int64)
    in_k, in_v = real[:, None] & (kd < K)[None, :], real[:, None] & (vd < V)[None, :]
    keys = tl.load(k + segment * k_b + token[:, None] * k_t + (head // group) * k_h + kd[None, :], mask=in_k, other=0.0)
    values = tl.load(v + segment * v_b + token[:, None] * v_t + head * v_h + vd[None, :], mask=in_v, other=0.0)
    decay = tl.load(g + segment * g_b + token * g_t + head * g_h, mask=real, other=0.0).to(tl.float32)
    write = tl.load(beta + segment * beta_b + token * beta_t + head * beta_h, mask=real, other=0.0).to(tl.float32)
    # Float16 holds half precision's digits of unit keys, and of values scaled by a power of two for each token.
    keys = keys.to(tl.float32)
    k_high = keys.to(tl.float16)
    k_low = (keys - k_high.to(tl.float32)).to(tl.float16)
    v_high, v_low, v_scale = halves(values.to(tl.float32))

    # exp(G_i - G_j), each exponent summed from its own steps: see the reference.
    below = t[:, None] > t[None, :]
    spans = tl.cumsum(tl.where(below, decay[:, None], 0.0), axis=0)
    pairwise = tl.where(t[:, None] >= t[None, :], tl.exp(spans), 0.0)
    from_start = tl.exp(tl.cumsum(decay, axis=0))
    alike = tl.dot(k_high, tl.trans(k_high))
    if not HALF:
        alike += tl.dot(k_high, tl.trans(k_low), tl.dot(k_low, tl.trans(k_high)))
    inverse = _inverse(tl.where(below, write[:, None] * alike * pairwise, 0.0), BLOCK)
    w = _times(inverse * (write * from_start)[None, :], k_high, k_low, not HALF)
    high, low, scale = halves(w)
    of_k, whole_k = at * BLOCK * K + t[:, None] * K + kd[None, :], (kd < K)[None, :] & (t >= 0)[:, None]
    tl.store(w_high + of_k, high, mask=whole_k)
    tl.store(w_low + of_k, low, mask=whole_k)
    to_end = tl.sum(tl.where((t == BLOCK - 1)[:, None], pairwise, 0.0), axis=0)
    tl.store(w_scale + at * BLOCK + t, scale * to_end)
    written = _times(inverse * (write * v_scale)[None, :], v_high, v_low, not HALF)
    of_y = at * BLOCK * V + vd[:, None] * BLOCK + t[None, :]
    tl.store(y + of_y, tl.trans(written * to_end[:, None]), mask=(vd < V)[:, None] & (t >= 0)[None, :])
    tl.store(total + at, tl.exp(tl.sum(decay, axis=0)))


@triton.jit
def _walk(
    k, lengths, w_high, w_low, w_scale, y, total, out,
    k_b, k_t, k_h,
    blocks, heads, group,
    K: tl.constexpr, COLUMNS: tl.constexpr, BK: tl.constexpr, BN: tl.constexpr, BLOCK: tl.constexpr,
    UPDATE: tl.constexpr, HALF: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """A tile of the columns of the update, or of the transition, which starts from the identity and has no Y."""
    row = tl.program_id(0).to(tl.int64)
    segment, head = row // heads, row % heads
    column = tl.program_id(1) * BN + tl.arange(0, BN)
    t, kd = tl.arange(0, BLOCK), tl.arange(0, BK)
    length = tl.load(lengths + segment).to(tl.int32)
    in_k = (kd < K)[None, :] & (t >= 0)[:, None]
    in_y = (column < COLUMNS)[:, None] & (t >= 0)[None, :]
    state = tl.zeros((BN, BK), tl.float32) if UPDATE else tl.where(column[:, None] == kd[None, :], 1.0, 0.0)
    k += segment * k_b + (head // group) * k_h
    for block in tl.range(tl.cdiv(length, BLOCK), num_stages=STAGES):
        at = row * blocks + block
        of_k = at * BLOCK * K + t[:, None] * K + kd[None, :]
        token = block * BLOCK + t
        wh = tl.load(w_high + of_k, mask=in_k, other=0.0)
        wl = tl.load(w_low + of_k, mask=in_k, other=0.0)
        ws = tl.load(w_scale + at * BLOCK + t)
        real = (token < length)[:, None] & in_k
        keys = tl.load(k + token.to(tl.int64)[:, None] * k_t + kd[None, :], mask=real, other=0.0)

        high, low, scale = halves(state)
        written = tl.dot(high, tl.trans(wl), tl.dot(low, tl.trans(wh)))
        written = -tl.dot(high, tl.trans(wh), written) * scale[:, None] * ws[None, :]
        if UPDATE:
            of_y = at * BLOCK * COLUMNS + column[:, None] * BLOCK + t[None, :]
            written += tl.load(y + of_y, mask=in_y, other=0.0)
        high, low, scale = halves(written)
        keys = keys.to(tl.float32)
        k_high = keys.to(tl.float16)
        # Summed onto the state in the scale of what is added: a power of two, and no second accumulator.
        state = state * (tl.load(total + at) / scale)[:, None]
        state = tl.dot(high, k_high, tl.dot(low, k_high, state))
        if not HALF:
            k_low = (keys - k_high.to(tl.float32)).to(tl.float16)
            state = tl.dot(high, k_low, state)
        state = state * scale[:, None]
    of_out = row * K * COLUMNS + kd[None, :] * COLUMNS + column[:, None]
    tl.store(out + of_out, state, mask=(column < COLUMNS)[:, None] & (kd < K)[None, :])


def chunk_delta(
    k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor, lengths: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """See `linearkv.kernels.chunk_delta.chunk_delta`."""
    (batch, tokens, key_heads, key_dim), (heads, value_dim) = k.shape, v.shape[2:]
    device, blocks = k.device, triton.cdiv(tokens, BLOCK)
    k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (k, v))
    if lengths is None:
        lengths = torch.full((batch,), tokens)
    lengths = lengths.to(device, torch.int64).clamp(0, tokens).contiguous()

    def empty(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.empty(batch, heads, *shape, dtype=dtype, device=device)

    transition, update = empty(key_dim, key_dim), empty(key_dim, value_dim)
    w_high, w_low = (empty(blocks, BLOCK, key_dim, dtype=torch.float16) for _ in range(2))
    w_scale, total = empty(blocks, BLOCK), empty(blocks)
    y = empty(blocks, BLOCK, value_dim)
    rows = batch * heads
    if not rows:
        return transition, update
    shapes = {"K": key_dim, "BK": padded(key_dim), "BLOCK": BLOCK}
    shapes["HALF"] = k.dtype != torch.float32 and v.dtype != torch.float32
    columns = min(128, padded(max(key_dim, value_dim)))
    with on(k):
        if blocks:
            _solve[rows, blocks](
                k, v, g, beta, lengths, w_high, w_low, w_scale, y, total,
                *k.stride()[:3], *v.stride()[:3], *g.stride(), *beta.stride(),
                blocks, heads, heads // key_heads,
                **shapes, V=value_dim, BV=padded(value_dim), num_warps=4, num_stages=1,
            )  # fmt: skip
        stages, warps = (3 if shapes["HALF"] else 2), (8 if columns > 64 else 4)
        for out, width in ((transition, key_dim), (update, value_dim)):
            _walk[rows, triton.cdiv(width, columns)](
                k, lengths, w_high, w_low, w_scale, y, total, out,
                *k.stride()[:3],
                blocks, heads, heads // key_heads,
                **shapes, COLUMNS=width, BN=columns, UPDATE=out is update, STAGES=stages, num_warps=warps,
            )  # fmt: skip
    return transition, update
