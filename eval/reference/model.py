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


def reference_config(vocab_size: int, **overrides: Any) -> Qwen3_5TextConfig:
    """The architecture of the reference model, about ten million parameters."""
    settings: dict[str, Any] = {
        "vocab_size": vocab_size,
        "hidden_size": 256,
        "intermediate_size": 768,
        "num_hidden_layers": 8,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "linear_key_head_dim": 64,
        "linear_value_head_dim": 64,
        "linear_num_key_heads": 4,
        "linear_num_value_heads": 8,
        "linear_conv_kernel_dim": 4,
        "full_attention_interval": 4,
        "max_position_embeddings": 8192,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.5,
            "mrope_section": [6, 5, 5],
            "mrope_interleaved": True,
        },
        "tie_word_embeddings": True,
    }
    return Qwen3_5TextConfig(**(settings | overrides))


# Scan over blocks: S[n + 1] = decay[n] @ S[n] + write[n]. An operator of its own, so that compilation need not unroll it.


@torch.library.custom_op("linearkv_reference::scan", mutates_args=())
def scan(decay: Tensor, write: Tensor) -> Tensor:
    """States before each block. decay [N, B, K, K], write [N, B, K, V] fp32 -> [N, B, K, V] fp32, the first one zero."""
    states = torch.empty_like(write)
    states[0] = 0
    for n in range(write.shape[0] - 1):
        torch.baddbmm(write[n], decay[n], states[n], out=states[n + 1])
    return states


@scan.register_fake
def _(decay: Tensor, write: Tensor) -> Tensor:
    return torch.empty_like(write)


@torch.library.custom_op("linearkv_reference::scan_backward", mutates_args=())
def scan_backward(grad: Tensor, decay: Tensor) -> Tensor:
    """Gradient of `write`: the total gradient of the state after each block. grad [N, B, K, V] -> [N, B, K, V]."""
    total = torch.empty_like(grad)
    total[-1] = 0
    for n in range(grad.shape[0] - 2, -1, -1):
        torch.baddbmm(grad[n + 1], decay[n + 1].mT, total[n + 1], out=total[n])
    return total


@scan_backward.register_fake
def _(grad: Tensor, decay: Tensor) -> Tensor:
    return torch.empty_like(grad)


def _keep_for_scan(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(inputs[0], output)


def _scan_gradient(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
    decay, states = ctx.saved_tensors
    total = scan_backward(grad.contiguous(), decay)
    return total @ states.mT, total


scan.register_autograd(_scan_gradient, setup_context=_keep_for_scan)


class _UnitLowerInverse(torch.autograd.Function):
    """(I + M)^-1 for strictly lower triangular M [..., 64, 64]."""

    @staticmethod
    def forward(ctx: Any, matrix: Tensor) -> Tensor:
        # Doubling is exact but its terms grow, so it is used on blocks of 8 only; larger ones are put together from halves.
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


def gated_delta_rule(query: Tensor, key: Tensor, value: Tensor, log_decay: Tensor, beta: Tensor) -> Tensor:
    """The gated delta rule from a zero state, in fp32.

    Parameters
    ----------
    query, key : Tensor [B, T, Hk, K]
        Already normalised; T is a multiple of 64.
    value : Tensor [B, T, Hv, V]
    log_decay, beta : Tensor [B, T, Hv]

    Returns
    -------
    Tensor [B, T, Hv, V]
    """
    batch, length, key_heads, key_dim = key.shape
    heads, value_dim = value.shape[-2:]
    group, count = heads // key_heads, length // BLOCK
    # Blocks first, so that the scan walks over contiguous memory: [N, B, Hk, (group,) C, dim].
    query = query.view(batch, count, BLOCK, key_heads, key_dim).permute(1, 0, 3, 2, 4) * key_dim**-0.5
    key = key.view(batch, count, BLOCK, key_heads, key_dim).permute(1, 0, 3, 2, 4)
    value = value.view(batch, count, BLOCK, key_heads, group, value_dim).permute(1, 0, 3, 4, 2, 5)
    beta = beta.view(batch, count, BLOCK, key_heads, group).permute(1, 0, 3, 4, 2)
    decay = log_decay.view(batch, count, BLOCK, key_heads, group).permute(1, 0, 3, 4, 2).cumsum(-1)

    causal = torch.ones(BLOCK, BLOCK, dtype=torch.bool, device=key.device).tril()
    between = (decay[..., :, None] - decay[..., None, :]).masked_fill(~causal, -math.inf).exp()
    similar = (key @ key.mT)[:, :, :, None]
    inverse = _UnitLowerInverse.apply((similar * between * beta[..., None]).tril(-1))
    update = (inverse * beta[..., None, :]) @ value
    reading = (inverse * (beta * decay.exp())[..., None, :]).reshape(count, batch, key_heads, group * BLOCK, BLOCK) @ key
    reading = reading.view(count, batch, key_heads, group, BLOCK, key_dim)
    last = decay[..., -1:]
    writing = (key[:, :, :, None] * (last - decay).exp()[..., None]).mT
    identity = torch.eye(key_dim, device=key.device, dtype=key.dtype)
    block_decay = last.exp()[..., None] * identity - writing @ reading
    flat = (count, batch * heads)
    states = scan(
        block_decay.reshape(*flat, key_dim, key_dim), (writing @ update).reshape(*flat, key_dim, value_dim)
    ).view(count, batch, key_heads, group, key_dim, value_dim)
    fresh = update - reading @ states
    within = (query @ key.mT)[:, :, :, None] * between
    out = (query[:, :, :, None] * decay.exp()[..., None]) @ states + within @ fresh
    return out.permute(1, 0, 4, 2, 3, 5).reshape(batch, length, heads, value_dim)


class RMSNorm(nn.Module):
    """Zero-centred RMS norm: x / rms(x) * (1 + weight), computed in fp32."""

    def __init__(self, size: int, eps: float):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.zeros(size))

    def forward(self, x: Tensor) -> Tensor:
        x = x.float()
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * (1.0 + self.weight)


class GatedNorm(nn.Module):
    """RMS norm over a head, times SiLU of the gate."""

    def __init__(self, size: int, eps: float):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:
        x = x.float()
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * F.silu(gate.float())


class GatedDeltaNet(nn.Module):
    """The linear-attention layer; parameters as in transformers' `Qwen3_5GatedDeltaNet`."""

    def __init__(self, config: Qwen3_5TextConfig):
        super().__init__()
        self.key_heads, self.heads = config.linear_num_key_heads, config.linear_num_value_heads
        self.key_dim, self.value_dim = config.linear_key_head_dim, config.linear_value_head_dim
        keys, values = self.key_heads * self.key_dim, self.heads * self.value_dim
        self.split = (keys, keys, values)
        self.conv1d = nn.Conv1d(sum(self.split), sum(self.split), 4, groups=sum(self.split), bias=False)
        # Slow decay at the start, so that facts survive for hundreds of tokens from the first step on.
        step = torch.exp(torch.rand(self.heads) * (math.log(0.1) - math.log(0.001)) + math.log(0.001))
        self.dt_bias = nn.Parameter(step + torch.log(-torch.expm1(-step)))
        self.A_log = nn.Parameter(torch.log(torch.empty(self.heads).uniform_(0.05, 16)))
        self.norm = GatedNorm(self.value_dim, config.rms_norm_eps)
        self.in_proj_qkv = nn.Linear(config.hidden_size, sum(self.split), bias=False)
        self.in_proj_z = nn.Linear(config.hidden_size, values, bias=False)
        self.in_proj_b = nn.Linear(config.hidden_size, self.heads, bias=False)
        self.in_proj_a = nn.Linear(config.hidden_size, self.heads, bias=False)
        self.out_proj = nn.Linear(values, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """x [B, T, hidden] in the compute dtype -> the same shape."""
        batch, length, _ = x.shape
        mixed = F.pad(self.in_proj_qkv(x), (0, 0, 3, 0))
        taps = self.conv1d.weight[:, 0].to(mixed.dtype)
        mixed = F.silu(sum(mixed[:, i : i + length] * taps[:, i] for i in range(4)))
        query, key, value = (part.float() for part in mixed.split(self.split, -1))
        query = _l2norm(query.view(batch, length, self.key_heads, self.key_dim))
        key = _l2norm(key.view(batch, length, self.key_heads, self.key_dim))
        value = value.view(batch, length, self.heads, self.value_dim)
        beta = self.in_proj_b(x).float().sigmoid()
        log_decay = -self.A_log.exp() * F.softplus(self.in_proj_a(x).float() + self.dt_bias)
        with torch.autocast(x.device.type, enabled=False):
            out = gated_delta_rule(query, key, value, log_decay, beta)
        gate = self.in_proj_z(x).view(batch, length, self.heads, self.value_dim)
        return self.out_proj(self.norm(out, gate).flatten(2).to(x.dtype))


def _l2norm(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(2).sum(-1, keepdim=True) + 1e-6)


class Attention(nn.Module):
    """The full-attention layer; parameters as in transformers' `Qwen3_5Attention`."""

    def __init__(self, config: Qwen3_5TextConfig):
        super().__init__()
        self.heads, self.key_heads, self.dim = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        self.q_proj = nn.Linear(config.hidden_size, self.heads * self.dim * 2, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, self.key_heads * self.dim, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, self.key_heads * self.dim, bias=False)
        self.o_proj = nn.Linear(self.heads * self.dim, config.hidden_size, bias=False)
        self.q_norm = RMSNorm(self.dim, config.rms_norm_eps)
        self.k_norm = RMSNorm(self.dim, config.rms_norm_eps)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """x [B, T, hidden] in the compute dtype; cos, sin [B, T, rotary] fp32 -> the shape of x."""
        batch, length, _ = x.shape
        query, gate = self.q_proj(x).view(batch, length, self.heads, 2 * self.dim).chunk(2, -1)
        query = _rotate(self.q_norm(query), cos, sin).to(x.dtype).transpose(1, 2)
        key = self.k_proj(x).view(batch, length, self.key_heads, self.dim)
        key = _rotate(self.k_norm(key), cos, sin).to(x.dtype).transpose(1, 2)
        value = self.v_proj(x).view(batch, length, self.key_heads, self.dim).transpose(1, 2)
        repeat = self.heads // self.key_heads
        key, value = key.repeat_interleave(repeat, 1), value.repeat_interleave(repeat, 1)
        out = F.scaled_dot_product_attention(query, key, value, is_causal=True).transpose(1, 2)
        return self.o_proj((out * gate.sigmoid()).flatten(2))


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of the first dimensions of x [B, T, H, D] fp32."""
    size = cos.shape[-1]
    turned, kept = x[..., :size], x[..., size:]
    half = torch.cat([-turned[..., size // 2 :], turned[..., : size // 2]], -1)
    return torch.cat([turned * cos[:, :, None] + half * sin[:, :, None], kept], -1)


class MLP(nn.Module):
    def __init__(self, config: Qwen3_5TextConfig):
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


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
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """x [B, T, hidden] fp32 -> the same."""
        with torch.autocast(x.device.type, self.compute, enabled=self.compute != torch.float32):
            normed = self.input_layernorm(x).to(self.compute)
            mixed = self.linear_attn(normed) if self.linear else self.self_attn(normed, cos, sin)
            x = x + mixed
            return x + self.mlp(self.post_attention_layernorm(x).to(self.compute))


class Body(nn.Module):
    def __init__(self, config: Qwen3_5TextConfig, compute: torch.dtype):
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config, kind, compute) for kind in config.layer_types)
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)


class ReferenceModel(nn.Module):
    """Trainable twin of `Qwen3_5ForCausalLM` with tied embeddings.

    Parameters
    ----------
    config : Qwen3_5TextConfig
    compute : torch.dtype
        Dtype of the projections; the residual stream and the delta rule stay in fp32.
    """

    def __init__(self, config: Qwen3_5TextConfig, compute: torch.dtype = torch.float32):
        super().__init__()
        self.config, self.compute = config, compute
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
        rotary = int(config.head_dim * config.rope_parameters["partial_rotary_factor"])
        powers = torch.arange(0, rotary, 2, dtype=torch.float) / rotary
        self.register_buffer("frequencies", config.rope_parameters["rope_theta"] ** -powers, persistent=False)

    def hidden(self, ids: Tensor, start: Tensor | None = None) -> Tensor:
        """Final normalised hidden states.

        Parameters
        ----------
        ids : Tensor [B, T] int64
            T is a multiple of 64 (pad on the right).
        start : Tensor [B] int64, optional
            Position of the first token of each row.

        Returns
        -------
        Tensor [B, T, hidden] fp32
        """
        position = torch.arange(ids.shape[1], device=ids.device)[None].expand_as(ids)
        if start is not None:
            position = position + start[:, None]
        angle = position[..., None].float() * self.frequencies
        cos, sin = torch.cat([angle.cos()] * 2, -1), torch.cat([angle.sin()] * 2, -1)
        x = self.model.embed_tokens(ids)
        for layer in self.model.layers:
            x = layer(x, cos, sin)
        return self.model.norm(x)

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden [..., hidden] fp32 -> logits [..., vocab] in the compute dtype."""
        return F.linear(hidden.to(self.compute), self.model.embed_tokens.weight.to(self.compute))

    def forward(self, ids: Tensor, start: Tensor | None = None) -> Tensor:
        return self.logits(self.hidden(ids, start))
