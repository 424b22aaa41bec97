"""A fast trainable twin of transformers' `Qwen3_5ForCausalLM`, with the same parameter names.

It exists because training needs speed that a general model class does not give: the gated delta rule is written for
batched matrix products over whole sequences, with a single short scan over blocks of 64 tokens. A test compares its
logits with those of the transformers class on the same weights.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import Qwen3_5TextConfig

BLOCK = 64
EPSILON = 1e-6


def reference_config(vocab_size: int, **overrides: Any) -> Qwen3_5TextConfig:
    """The architecture of the reference model, about ten million parameters.

    Attention is narrow on purpose: two heads of 16 a layer. With wide attention a model of this size keeps its facts in
    keys and values alone and answers as well with all recurrent states zeroed; it would say nothing about composing
    states. (`zero_state` in `score.py` measures it.)
    """
    settings: dict[str, Any] = {
        "vocab_size": vocab_size,
        "hidden_size": 256,
        "intermediate_size": 768,
        "num_hidden_layers": 8,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "linear_key_head_dim": 64,
        "linear_value_head_dim": 64,
        "linear_num_key_heads": 4,
        "linear_num_value_heads": 8,
        "linear_conv_kernel_dim": 4,
        "full_attention_interval": 4,
        "max_position_embeddings": 8192,
        "tie_word_embeddings": True,
    } | overrides
    frequencies = settings["head_dim"] // 4
    third = frequencies // 3
    rope = {
        "rope_type": "default",
        "rope_theta": 10000.0,
        "partial_rotary_factor": 0.5,
        "mrope_section": [frequencies - 2 * third, third, third],
        "mrope_interleaved": True,
    }
    return Qwen3_5TextConfig(**({"rope_parameters": rope} | settings))


# Only the scan over blocks, the attention and the short convolution depend on how tokens are cut into rows. Everything
# else works on a flat list of tokens, so that one compilation serves rows of any length: the functions `_before_*` and
# `_after_*` see a fixed number of tokens a step, and what lies between them runs as it is.


class _Scan(torch.autograd.Function):
    """States before each block: S[n + 1] = decay[n] @ S[n] + write[n], S[0] = 0.

    decay [B, N, K, K], write [B, N, K, V] fp32 -> [B, N, K, V] fp32.
    """

    @staticmethod
    def forward(ctx: Any, decay: Tensor, write: Tensor) -> Tensor:
        states = torch.empty_like(write)
        states[:, 0] = 0
        for n in range(write.shape[1] - 1):
            torch.baddbmm(write[:, n], decay[:, n], states[:, n], out=states[:, n + 1])
        ctx.save_for_backward(decay, states)
        return states

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        decay, states = ctx.saved_tensors
        total = torch.empty_like(states)
        total[:, -1] = 0
        for n in range(states.shape[1] - 2, -1, -1):
            torch.baddbmm(grad[:, n + 1], decay[:, n + 1].mT, total[:, n + 1], out=total[:, n])
        return total @ states.mT, total


class _UnitLowerInverse(torch.autograd.Function):
    """(I + M)^-1 for strictly lower triangular M [..., 64, 64]."""

    @staticmethod
    def forward(ctx: Any, matrix: Tensor) -> Tensor:
        # Doubling is exact but its terms grow, so only blocks of 8 use it; larger ones are put together from halves.
        lead, size, base = matrix.shape[:-2], matrix.shape[-1], 8
        blocks = matrix.reshape(*lead, size // base, base, size // base, base)
        diagonal = torch.diagonal(blocks, dim1=-4, dim2=-2).movedim(-1, -3)
        square = diagonal @ diagonal
        inverse = torch.eye(base, dtype=matrix.dtype, device=matrix.device) - diagonal
        inverse = inverse + inverse @ square
        inverse = inverse + inverse @ (square @ square)
        while base < size:
            count = size // (2 * base)
            pairs = matrix.reshape(*lead, count, 2, base, count, 2, base)
            below = torch.diagonal(pairs[..., 1, :, :, 0, :], dim1=-4, dim2=-2).movedim(-1, -3)
            halves = inverse.reshape(*lead, count, 2, base, base)
            upper, lower = halves[..., 0, :, :], halves[..., 1, :, :]
            corner = -(lower @ below @ upper)
            top = torch.cat([upper, torch.zeros_like(upper)], -1)
            inverse = torch.cat([top, torch.cat([corner, lower], -1)], -2)
            base *= 2
        inverse = inverse.reshape(matrix.shape)
        ctx.save_for_backward(inverse)
        return inverse

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (inverse,) = ctx.saved_tensors
        return -(inverse.mT @ grad @ inverse.mT)


def _norm(x: Tensor, weight: Tensor) -> Tensor:
    """Zero-centred RMS norm: x / rms(x) * (1 + weight), computed in fp32."""
    x = x.float()
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPSILON) * (1.0 + weight)


def _linear(x: Tensor, weight: Tensor, compute: torch.dtype) -> Tensor:
    return F.linear(x.to(compute), weight.to(compute))


def _before_scan(
    x: Tensor,
    since_start: Tensor,
    norm: Tensor,
    to_qkv: Tensor,
    to_gate: Tensor,
    to_beta: Tensor,
    to_decay: Tensor,
    taps: Tensor,
    log_rate: Tensor,
    step_bias: Tensor,
    key_heads: int,
    key_dim: int,
    value_dim: int,
    compute: torch.dtype,
) -> tuple[Tensor, ...]:
    """A linear-attention layer up to its scan over blocks of C = 64 tokens.

    Parameters
    ----------
    x : Tensor [M, hidden] fp32
    since_start : Tensor [M] int64
        Tokens between the start of the row and this one.

    Returns
    -------
    tuple of Tensor
        block_decay [H, M / C, K, K], write [H, M / C, K, V], reading [H, M / C, C, K], update [H, M / C, C, V],
        within [H, M / C, C, C], query [H, M / C, C, K] fp32 and gate [M, H * V] in the compute dtype.
    """
    tokens, heads = x.shape[0], log_rate.shape[0]
    group, count = heads // key_heads, tokens // BLOCK
    normed = _norm(x, norm).to(compute)
    mixed = _linear(normed, to_qkv, compute).float()
    taps = taps[:, 0].float()
    total = mixed * taps[:, 3]
    for back in (1, 2, 3):
        earlier = F.pad(mixed, (0, 0, back, 0))[:tokens]
        total = total + torch.where((since_start >= back)[:, None], earlier, 0.0) * taps[:, 3 - back]
    query, key, value = F.silu(total).split([key_heads * key_dim, key_heads * key_dim, heads * value_dim], -1)

    query = _l2norm(query.view(count, BLOCK, key_heads, key_dim)).permute(2, 0, 1, 3) * key_dim**-0.5
    key = _l2norm(key.view(count, BLOCK, key_heads, key_dim)).permute(2, 0, 1, 3)
    value = value.view(count, BLOCK, heads, value_dim).permute(2, 0, 1, 3)
    beta = _linear(normed, to_beta, compute).float().sigmoid().view(count, BLOCK, heads).permute(2, 0, 1)
    rate = F.softplus(_linear(normed, to_decay, compute).float() + step_bias)
    decay = (-log_rate.exp() * rate).view(count, BLOCK, heads).permute(2, 0, 1).cumsum(-1)

    causal = torch.ones(BLOCK, BLOCK, dtype=torch.bool, device=x.device).tril()
    between = (decay[..., :, None] - decay[..., None, :]).masked_fill(~causal, -math.inf).exp()
    similar = (key @ key.mT).repeat_interleave(group, 0)
    within = (query @ key.mT).repeat_interleave(group, 0) * between
    key, query = key.repeat_interleave(group, 0), query.repeat_interleave(group, 0)
    inverse = _UnitLowerInverse.apply((similar * between * beta[..., None]).tril(-1))
    update = (inverse * beta[..., None, :]) @ value
    reading = (inverse * (beta * decay.exp())[..., None, :]) @ key
    last = decay[..., -1:]
    writing = (key * (last - decay).exp()[..., None]).mT
    identity = torch.eye(key_dim, device=x.device)
    block_decay = last.exp()[..., None] * identity - writing @ reading
    write = writing @ update
    query = query * decay.exp()[..., None]
    return block_decay, write, reading, update, within, query, _linear(normed, to_gate, compute)


def _after_scan(
    x: Tensor,
    states: Tensor,
    reading: Tensor,
    update: Tensor,
    within: Tensor,
    query: Tensor,
    gate: Tensor,
    head_norm: Tensor,
    to_out: Tensor,
    mlp: tuple[Tensor, ...],
    compute: torch.dtype,
) -> Tensor:
    """The rest of a linear-attention layer. states [H, M / C, K, V] fp32; the others as `_before_scan` returns them."""
    tokens, heads, value_dim = x.shape[0], states.shape[0], states.shape[-1]
    out = query @ states + within @ (update - reading @ states)
    out = out.permute(1, 2, 0, 3).reshape(tokens, heads, value_dim)
    out = out * torch.rsqrt(out.pow(2).mean(-1, keepdim=True) + EPSILON) * head_norm
    out = out * F.silu(gate.float().view(tokens, heads, value_dim))
    return _mlp(x + _linear(out.flatten(1), to_out, compute), compute, *mlp)


def _mlp(x: Tensor, compute: torch.dtype, norm: Tensor, to_gate: Tensor, to_up: Tensor, to_down: Tensor) -> Tensor:
    normed = _norm(x, norm).to(compute)
    return x + _linear(F.silu(_linear(normed, to_gate, compute)) * _linear(normed, to_up, compute), to_down, compute)


def _l2norm(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(2).sum(-1, keepdim=True) + 1e-6)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of the first dimensions of x [M, H, D] fp32; cos, sin [M, rotary] fp32."""
    size = cos.shape[-1]
    turned, kept = x[..., :size], x[..., size:]
    half = torch.cat([-turned[..., size // 2 :], turned[..., : size // 2]], -1)
    return torch.cat([turned * cos[:, None] + half * sin[:, None], kept], -1)


def _before_attention(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    norm: Tensor,
    to_query: Tensor,
    to_key: Tensor,
    to_value: Tensor,
    query_norm: Tensor,
    key_norm: Tensor,
    heads: int,
    compute: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Query, key and value [M, H, D] (keys repeated for their query heads) and gate [M, H * D], compute dtype."""
    tokens, dim = x.shape[0], query_norm.shape[0]
    normed = _norm(x, norm).to(compute)
    query, gate = _linear(normed, to_query, compute).view(tokens, heads, 2 * dim).chunk(2, -1)
    query = _rotate(_norm(query, query_norm), cos, sin).to(compute)
    key = _linear(normed, to_key, compute).view(tokens, -1, dim)
    key = _rotate(_norm(key, key_norm), cos, sin).to(compute)
    value = _linear(normed, to_value, compute).view(tokens, -1, dim)
    group = heads // key.shape[1]
    return query, key.repeat_interleave(group, 1), value.repeat_interleave(group, 1), gate.reshape(tokens, heads * dim)


def _after_attention(
    x: Tensor, out: Tensor, gate: Tensor, to_out: Tensor, mlp: tuple[Tensor, ...], compute: torch.dtype
) -> Tensor:
    return _mlp(x + _linear(out.reshape(gate.shape) * gate.sigmoid(), to_out, compute), compute, *mlp)


def token_losses(hidden: Tensor, embedding: Tensor, targets: Tensor, compute: torch.dtype) -> Tensor:
    """Cross entropy of each token. hidden [M, hidden] fp32, embedding [vocab, hidden], targets [M] -> [M] fp32."""
    return F.cross_entropy(_linear(hidden, embedding, compute).float(), targets, reduction="none")


class Functions:
    """The parts of the model that work on a flat list of tokens, compiled or not."""

    def __init__(self, compiled: bool):
        def prepare(function: Any) -> Any:
            return torch.compile(function, dynamic=False) if compiled else function

        self.before_scan, self.after_scan = prepare(_before_scan), prepare(_after_scan)
        self.before_attention, self.after_attention = prepare(_before_attention), prepare(_after_attention)
        self.token_losses, self.norm = prepare(token_losses), prepare(_norm)


class Weight(nn.Module):
    """A weight under the name that transformers gives it."""

    def __init__(self, *shape: int, value: float = 0.0):
        super().__init__()
        self.weight = nn.Parameter(torch.full(shape, value))


class GatedDeltaNet(nn.Module):
    """Parameters of a linear-attention layer, named as in transformers' `Qwen3_5GatedDeltaNet`."""

    def __init__(self, config: Qwen3_5TextConfig):
        super().__init__()
        self.key_heads, heads = config.linear_num_key_heads, config.linear_num_value_heads
        self.key_dim, self.value_dim = config.linear_key_head_dim, config.linear_value_head_dim
        values = heads * self.value_dim
        mixed = 2 * self.key_heads * self.key_dim + values
        self.conv1d = Weight(mixed, 1, 4)
        # Slow decay at the start, so that facts survive for hundreds of tokens from the first step on.
        step = torch.exp(torch.rand(heads) * (math.log(0.1) - math.log(0.001)) + math.log(0.001))
        self.dt_bias = nn.Parameter(step + torch.log(-torch.expm1(-step)))
        self.A_log = nn.Parameter(torch.log(torch.empty(heads).uniform_(0.05, 16)))
        self.norm = Weight(self.value_dim, value=1.0)
        self.in_proj_qkv = Weight(mixed, config.hidden_size)
        self.in_proj_z = Weight(values, config.hidden_size)
        self.in_proj_b = Weight(heads, config.hidden_size)
        self.in_proj_a = Weight(heads, config.hidden_size)
        self.out_proj = Weight(config.hidden_size, values)


class Attention(nn.Module):
    """Parameters of a full-attention layer, named as in transformers' `Qwen3_5Attention`."""

    def __init__(self, config: Qwen3_5TextConfig):
        super().__init__()
        self.heads, self.dim = config.num_attention_heads, config.head_dim
        self.q_proj = Weight(self.heads * self.dim * 2, config.hidden_size)
        self.k_proj = Weight(config.num_key_value_heads * self.dim, config.hidden_size)
        self.v_proj = Weight(config.num_key_value_heads * self.dim, config.hidden_size)
        self.o_proj = Weight(config.hidden_size, self.heads * self.dim)
        self.q_norm = Weight(self.dim)
        self.k_norm = Weight(self.dim)


class MLP(nn.Module):
    def __init__(self, config: Qwen3_5TextConfig):
        super().__init__()
        self.gate_proj = Weight(config.intermediate_size, config.hidden_size)
        self.up_proj = Weight(config.intermediate_size, config.hidden_size)
        self.down_proj = Weight(config.hidden_size, config.intermediate_size)


class Layer(nn.Module):
    def __init__(self, config: Qwen3_5TextConfig, kind: str, compute: torch.dtype):
        super().__init__()
        self.compute = compute
        self.linear = kind == "linear_attention"
        if self.linear:
            self.linear_attn = GatedDeltaNet(config)
        else:
            self.self_attn = Attention(config)
        self.mlp = MLP(config)
        self.input_layernorm = Weight(config.hidden_size)
        self.post_attention_layernorm = Weight(config.hidden_size)

    def forward(
        self,
        x: Tensor,
        rows: int,
        since_start: Tensor,
        cos: Tensor,
        sin: Tensor,
        run: Functions,
        forgotten: Tensor | None = None,
    ) -> Tensor:
        """x [M, hidden] fp32, M = rows * length -> the same. `forgotten` as in `ReferenceModel.hidden`."""
        rest = self.mlp
        mlp = (
            self.post_attention_layernorm.weight,
            rest.gate_proj.weight,
            rest.up_proj.weight,
            rest.down_proj.weight,
        )
        norm = self.input_layernorm.weight
        if not self.linear:
            a = self.self_attn
            weights = (a.q_proj.weight, a.k_proj.weight, a.v_proj.weight, a.q_norm.weight, a.k_norm.weight)
            *qkv, gate = run.before_attention(x, cos, sin, norm, *weights, a.heads, self.compute)
            query, key, value = (part.view(rows, -1, a.heads, a.dim).transpose(1, 2) for part in qkv)
            out = F.scaled_dot_product_attention(query, key, value, is_causal=True).transpose(1, 2)
            return run.after_attention(x, out.reshape(-1, a.heads, a.dim), gate, a.o_proj.weight, mlp, self.compute)
        g = self.linear_attn
        inputs = (g.in_proj_qkv.weight, g.in_proj_z.weight, g.in_proj_b.weight, g.in_proj_a.weight, g.conv1d.weight)
        block_decay, write, *kept = run.before_scan(
            x, since_start, norm, *inputs, g.A_log, g.dt_bias, g.key_heads, g.key_dim, g.value_dim, self.compute
        )
        heads, blocks = write.shape[:2]
        cut = (heads * rows, blocks // rows)
        if forgotten is not None:
            kept_blocks = ~forgotten.reshape(1, blocks, 1, 1)
            block_decay, write = block_decay * kept_blocks, write * kept_blocks
        states = _Scan.apply(block_decay.view(*cut, g.key_dim, g.key_dim), write.view(*cut, g.key_dim, g.value_dim))
        return run.after_scan(x, states.view_as(write), *kept, g.norm.weight, g.out_proj.weight, mlp, self.compute)


class Body(nn.Module):
    def __init__(self, config: Qwen3_5TextConfig, compute: torch.dtype):
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config, kind, compute) for kind in config.layer_types or ())
        self.norm = Weight(config.hidden_size)


class ReferenceModel(nn.Module):
    """Trainable twin of `Qwen3_5ForCausalLM` with tied embeddings.

    Parameters
    ----------
    config : Qwen3_5TextConfig
    compute : torch.dtype
        Dtype of the projections; the residual stream and the delta rule stay in fp32.
    """

    frequencies: Tensor

    def __init__(self, config: Qwen3_5TextConfig, compute: torch.dtype = torch.float32, compiled: bool = False):
        super().__init__()
        if config.rms_norm_eps != EPSILON:
            raise ValueError(f"rms_norm_eps must be {EPSILON}, not {config.rms_norm_eps}")
        self.config, self.compute, self.run = config, compute, Functions(compiled)
        self.model = Body(config, compute)
        depth = 2 * config.num_hidden_layers
        for name, parameter in self.named_parameters():
            if name.endswith(("o_proj.weight", "out_proj.weight", "down_proj.weight")):
                nn.init.normal_(parameter, std=0.5 * parameter.shape[1] ** -0.5 / depth**0.5)
            elif name.endswith("embed_tokens.weight"):
                nn.init.normal_(parameter, std=0.05)
            elif name.endswith("conv1d.weight"):
                nn.init.normal_(parameter, std=0.3)
            elif parameter.ndim == 2:
                nn.init.normal_(parameter, std=0.5 * parameter.shape[1] ** -0.5)
        rope: dict[str, Any] = dict(config.rope_parameters or {})
        rotary = int(config.head_dim * rope["partial_rotary_factor"])
        powers = torch.arange(0, rotary, 2, dtype=torch.float) / rotary
        self.register_buffer("frequencies", rope["rope_theta"] ** -powers, persistent=False)

    def hidden(self, ids: Tensor, start: Tensor | None = None, forgotten: Tensor | None = None) -> Tensor:
        """Final normalised hidden states.

        Parameters
        ----------
        ids : Tensor [B, T] int64
            T is a multiple of 64 (pad on the right).
        start : Tensor [B] int64, optional
            Position of the first token of each row.
        forgotten : Tensor [B, T / 64] bool, optional
            Blocks of 64 tokens after which every recurrent state is zero: an ablation, to see what the states carry.

        Returns
        -------
        Tensor [B * T, hidden] fp32
        """
        rows, length = ids.shape
        if length % BLOCK:
            raise ValueError(f"rows must be a multiple of {BLOCK} tokens long, not {length}")
        since_start = torch.arange(length, device=ids.device).repeat(rows)
        position = since_start if start is None else since_start + start.repeat_interleave(length)
        angle = position[:, None].float() * self.frequencies
        cos, sin = torch.cat([angle.cos()] * 2, -1), torch.cat([angle.sin()] * 2, -1)
        x = self.model.embed_tokens(ids.reshape(-1))
        for layer in self.model.layers:
            x = layer(x, rows, since_start, cos, sin, self.run, forgotten)
        return self.run.norm(x, self.model.norm.weight)

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden [..., hidden] fp32 -> logits [..., vocab] in the compute dtype."""
        return _linear(hidden, self.model.embed_tokens.weight, self.compute)

    def forward(self, ids: Tensor, start: Tensor | None = None) -> Tensor:
        """Logits [B, T, vocab] of ids [B, T]."""
        return self.logits(self.hidden(ids, start)).view(*ids.shape, -1)
