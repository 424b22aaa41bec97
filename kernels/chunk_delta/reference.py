"""Chunk delta in plain torch.

The rule, per head, with a state `S` of shape `[K, V]`:

    S_t = a_t (I - b_t k_t k_t^T) S_{t-1} + b_t k_t v_t^T         a_t = exp(g_t), b_t = beta_t, |k_t| = 1

`recurrent` is that line, token by token. `chunk_delta` is the same map in blocks of 64 tokens: within a block, with
`G_t = g_1 + .. + g_t` and `A_ij = b_i (k_i . k_j) exp(G_i - G_j)` for j < i, the written values are

    w = (I + A)^{-1} (b v - b exp(G) k S_in)      and      S_out = exp(G_C) S_in + sum_t exp(G_C - G_t) k_t w_t^T

which is affine in `S_in`, so both parts of the map come from one pass and one triangular solve.
"""

import torch
import torch.nn.functional as F

from linearkv.kernels.backend import accumulation_dtype

BLOCK = 64


def chunk_delta(
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    lengths: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See `linearkv.kernels.chunk_delta.chunk_delta`."""
    k, v, g, beta = _prepare(k, v, g, beta, lengths)
    batch, heads, tokens, key_dim = k.shape
    value_dim = v.shape[-1]

    pad = -tokens % BLOCK if tokens else BLOCK
    k, v = (F.pad(x, (0, 0, 0, pad)).unflatten(2, (-1, BLOCK)) for x in (k, v))
    g, beta = (F.pad(x, (0, pad)).unflatten(2, (-1, BLOCK)) for x in (g, beta))

    pairwise = _pairwise_decay(g)
    from_start = g.cumsum(-1).exp()
    k_beta = k * beta[..., None]
    system = (k_beta @ k.transpose(-1, -2)) * pairwise
    # The diagonal of `system` is not read: the solve takes it as ones.
    right_hand_side = torch.cat([v * beta[..., None], k_beta * from_start[..., None]], dim=-1)
    solved = torch.linalg.solve_triangular(system, right_hand_side, upper=False, unitriangular=True)
    written, erased = solved[..., :value_dim], solved[..., value_dim:]

    k_out = (k * pairwise[..., -1, :, None]).transpose(-1, -2)
    identity = torch.eye(key_dim, dtype=k.dtype, device=k.device)
    block_transition = from_start[..., -1:, None] * identity - k_out @ erased
    block_update = k_out @ written

    transition = identity.expand(batch, heads, key_dim, key_dim).clone()
    update = torch.zeros(batch, heads, key_dim, value_dim, dtype=k.dtype, device=k.device)
    for block in range(block_transition.shape[2]):
        step = block_transition[:, :, block]
        transition = step @ transition
        update = step @ update + block_update[:, :, block]
    return transition, update


def recurrent(
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    initial: torch.Tensor,
) -> torch.Tensor:
    """The state after running the rule over a segment token by token: the definition everything is tested against.

    Args as for `chunk_delta`; `initial` is `[B, Hv, K, V]`. Returns `[B, Hv, K, V]` in the accumulation dtype.
    """
    k, v, g, beta = _prepare(k, v, g, beta, None)
    state = initial.to(k.dtype)
    for t in range(k.shape[2]):
        key, strength = k[:, :, t, :, None], beta[:, :, t, None, None]
        state = state * g[:, :, t, None, None].exp()
        predicted = key.transpose(-1, -2) @ state
        state = state + strength * (key @ (v[:, :, t, None, :] - predicted))
    return state


def _pairwise_decay(g: torch.Tensor) -> torch.Tensor:
    """exp(G_i - G_j) for j <= i, else 0: `[.., C]` -> `[.., C, C]`.

    Each exponent is summed from its own steps. The difference of two running sums would lose the digits of mild decays
    that come after a strong one (4e-4 relative in float32 after a single g of -1e4).
    """
    block = g.shape[-1]
    below = torch.ones(block, block, dtype=torch.bool, device=g.device).tril(-1)
    spans = g[..., None].expand(*g.shape, block).masked_fill(~below, 0).cumsum(-2)
    return spans.exp().tril()


def _prepare(
    k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor, lengths: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Key heads spread over value heads; head-major `[B, H, T, ..]`; padding made identity steps."""
    tokens, key_heads, value_heads = k.shape[1], k.shape[2], v.shape[2]
    dtype = accumulation_dtype(k, v, g, beta)
    k = k.to(dtype).repeat_interleave(value_heads // key_heads, dim=2)
    v, g, beta = (x.to(dtype) for x in (v, g, beta))
    if lengths is not None:
        # A step with no decay and no write leaves the state as it is, whatever k and v hold there; the values are
        # cleared as well, since 0 times a padding token's NaN would still be NaN.
        real = torch.arange(tokens, device=k.device)[None, :] < lengths.to(k.device)[:, None]
        g, beta = (x.masked_fill(~real[..., None], 0) for x in (g, beta))
        k, v = (x.masked_fill(~real[..., None, None], 0) for x in (k, v))
    return k.transpose(1, 2), v.transpose(1, 2), g.transpose(1, 2), beta.transpose(1, 2)
