"""Captures what a chunk's state is made of while the model prefills it, through forward hooks and no patching.

GDN layers: the raw inputs of the short convolution, and a and b, from which keys, values, gates and write strengths
follow by the layer's own formulas; transition and update are computed as soon as the layer ends, so that only one
layer's inputs are held at a time. Attention layers: keys after the key norm and before rotary embedding, and values.
"""

import threading
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from transformers.activations import ACT2FN

from linearkv.kernels.chunk_delta import chunk_delta
from linearkv.states import TAIL, ChunkState

GDN_PROJECTIONS = ("in_proj_qkv", "in_proj_b", "in_proj_a")
FUSED_GDN_PROJECTIONS = ("in_proj_qkvz", "in_proj_ba")
L2_NORM_EPS = 1e-6


class Capture:
    """Hooks on every token mixer of a model for the length of a `with` block that runs one batched prefill.

    Forward passes that other threads run through the same model meanwhile are not captured.

    After the block the methods give what was captured of each sequence of the batch, layer by layer: transition and
    update in float32, the rest in the model's dtype.

    Args:
        gdn_layers, attention_layers: the token mixers, in layer order.
        lengths: `[B]` real tokens of each sequence, the rest being padding on the right.
        conv_tail: `[Lg, C, TAIL]` raw convolution inputs before the first token; `[Lg, B, C, TAIL]` where the
            sequences have different ones.
        deltas: whether to compute transition and update (a prefix needs none).
        inputs: whether to keep what they are made of, for `rule_inputs`: as large as the layers' activations.
    """

    def __init__(
        self,
        gdn_layers: list[Any],
        attention_layers: list[Any],
        lengths: torch.Tensor,
        conv_tail: torch.Tensor,
        deltas: bool = True,
        inputs: bool = False,
    ) -> None:
        self._gdn_layers = gdn_layers
        self._attention_layers = attention_layers
        self._lengths = lengths
        self._before = conv_tail
        self._deltas = deltas
        self._keep_inputs = inputs
        self._inputs: list[tuple[torch.Tensor, ...]] = []
        self._thread = threading.get_ident()
        self._handles: list[torch.utils.hooks.RemovableHandle] = []
        self._projected: dict[str, torch.Tensor] = {}
        self._transitions: list[torch.Tensor] = []
        self._updates: list[torch.Tensor] = []
        self._tails: list[torch.Tensor] = []
        self._keys: list[torch.Tensor] = []
        self._values: list[torch.Tensor] = []

    def __enter__(self) -> "Capture":
        for index, layer in enumerate(self._gdn_layers):
            names = GDN_PROJECTIONS if hasattr(layer, "in_proj_qkv") else FUSED_GDN_PROJECTIONS
            for name in names:
                self._hook(getattr(layer, name), self._keep_projection(name))
            self._hook(layer, self._finish_gdn_layer(index))
        for layer in self._attention_layers:
            self._hook(layer.k_norm, lambda module, args, output: self._keys.append(output))
            self._hook(layer.v_proj, self._keep_value(layer))
        return self

    def __exit__(self, *exception: object) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._projected.clear()

    def transition(self, row: int) -> torch.Tensor:
        """`[Lg, H, K, K]` of one sequence."""
        return torch.stack([layer[row] for layer in self._transitions])

    def update(self, row: int) -> torch.Tensor:
        """`[Lg, H, K, V]` of one sequence."""
        return torch.stack([layer[row] for layer in self._updates])

    def layer_maps(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Transitions `[B, H, K, K]` and updates `[B, H, K, V]` of all sequences in one GDN layer."""
        return self._transitions[layer], self._updates[layer]

    def layer_tail(self, layer: int) -> torch.Tensor:
        """`[B, C, TAIL]` of all sequences in one GDN layer."""
        return self._tails[layer]

    def conv_tail(self, row: int) -> torch.Tensor:
        """`[Lg, C, TAIL]` of one sequence."""
        return torch.stack([layer[row] for layer in self._tails])

    def key(self, row: int) -> torch.Tensor:
        """`[La, T, Hkv, D]` of one sequence, without its padding."""
        return torch.stack([layer[row, : int(self._lengths[row])] for layer in self._keys])

    def value(self, row: int) -> torch.Tensor:
        """`[La, T, Hkv, D]` of one sequence, without its padding."""
        return torch.stack([layer[row, : int(self._lengths[row])] for layer in self._values])

    def rule_inputs(self, layer: int, row: int) -> tuple[torch.Tensor, ...]:
        """k `[T, Hk, K]`, v `[T, Hv, V]`, g and beta `[T, Hv]` of one sequence in one GDN layer, if `inputs` were kept;
        see `linearkv.kernels.chunk_delta`."""
        return tuple(part[row, : int(self._lengths[row])] for part in self._inputs[layer])

    def chunk_state(self, row: int, token_ids: torch.Tensor) -> ChunkState:
        """The state of one sequence: copies, so that it does not keep the whole batch alive."""
        return ChunkState(
            self.transition(row), self.update(row), self.conv_tail(row), self.key(row), self.value(row), token_ids
        )

    def _hook(self, module: nn.Module, function: Callable[..., None]) -> None:
        def of_this_thread(*args: Any) -> None:
            # Hooks belong to the model, which other threads may be running meanwhile: theirs is not ours to capture.
            if threading.get_ident() == self._thread:
                function(*args)

        self._handles.append(module.register_forward_hook(of_this_thread))

    def _keep_projection(self, name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, output: torch.Tensor) -> None:
            self._projected[name] = output

        return hook

    def _keep_value(self, layer: Any) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, output: torch.Tensor) -> None:
            self._values.append(output.unflatten(-1, (-1, layer.head_dim)))

        return hook

    def _finish_gdn_layer(self, index: int) -> Callable[..., None]:
        def hook(layer: Any, args: Any, output: torch.Tensor) -> None:
            raw, b, a = _raw_inputs(layer, self._projected)
            self._projected.clear()
            before = self._before[index].expand(raw.shape[0], -1, -1)
            padded = torch.cat([before, raw.transpose(1, 2)], dim=-1)
            last = self._lengths[:, None] + torch.arange(TAIL, device=raw.device)
            self._tails.append(padded.gather(2, last[:, None, :].expand(-1, padded.shape[1], -1)))
            if self._deltas or self._keep_inputs:
                inputs = _rule_inputs(layer, padded, b, a)
            if self._deltas:
                transition, update = chunk_delta(*inputs, self._lengths)
                self._transitions.append(transition)
                self._updates.append(update)
            if self._keep_inputs:
                self._inputs.append(inputs)

        return hook


def _raw_inputs(layer: Any, projected: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Raw convolution inputs `[B, T, C]`, b and a `[B, T, H]`, from separate or fused projections."""
    if "in_proj_qkv" in projected:
        return tuple(projected[name] for name in GDN_PROJECTIONS)  # type: ignore[return-value]
    query, key, value, _, b, a = layer.fix_query_key_value_ordering(*(projected[n] for n in FUSED_GDN_PROJECTIONS))
    return torch.cat([x.flatten(2) for x in (query, key, value)], dim=-1), b, a


def _rule_inputs(
    layer: Any, padded: torch.Tensor, b: torch.Tensor, a: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """k `[B, T, Hk, K]`, v `[B, T, Hv, V]`, g and beta `[B, T, Hv]`, as the layer itself computes them.

    `padded` is `[B, C, TAIL + T]`: the raw inputs behind those that precede them.
    """
    weight = layer.conv1d.weight
    mixed = F.conv1d(padded.to(weight.dtype), weight, layer.conv1d.bias, groups=padded.shape[1])
    mixed = ACT2FN[layer.activation](mixed).to(padded.dtype).transpose(1, 2)
    _, key, value = mixed.split([layer.key_dim, layer.key_dim, layer.value_dim], dim=-1)
    key = key.unflatten(-1, (-1, layer.head_k_dim)).float()
    key = key * torch.rsqrt((key * key).sum(-1, keepdim=True) + L2_NORM_EPS)
    value = value.unflatten(-1, (-1, layer.head_v_dim))
    beta = b.sigmoid()
    g = -layer.A_log.float().exp() * F.softplus(a.float() + layer.dt_bias)
    return key, value, g, beta
