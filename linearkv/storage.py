"""Storage policies: how a chunk state becomes the tensors of a page, and what precision that keeps.

`fp32` is exact. `fp16` (the default) halves the bytes at a relative error of about 2e-4 in the composed state; a
layer's tensor that would overflow stays float32. Keys, values and convolution tails keep the model's own dtype under
both.
"""

from collections.abc import Mapping, Sequence

import torch

from linearkv.states import ChunkState

POLICIES = ("fp32", "fp16")
_GDN, _ATTENTION = ("transition", "update", "conv_tail"), ("key", "value")


def pack(state: ChunkState, layer_types: Sequence[str], policy: str) -> dict[str, torch.Tensor]:
    """The tensors of a page in layer order, so that a layer can be used while the next is still arriving.

    Args:
        layer_types: of the model, `linear_attention` or `full_attention` per layer.
        policy: `fp32` or `fp16`.

    Returns:
        `token_ids [T]`, then per layer `003.transition [H, K, K]`, `003.update [H, K, V]`, `003.conv_tail [C, 3]`, or
        `003.key` and `003.value [T, Hkv, D]`.
    """
    if policy not in POLICIES:
        raise ValueError(f"unknown storage policy {policy!r}: expected one of {', '.join(POLICIES)}")
    tensors = {"token_ids": state.token_ids}
    rows = {"linear_attention": 0, "full_attention": 0}
    for layer, kind in enumerate(layer_types):
        row = rows[kind]
        rows[kind] += 1
        for name in _GDN if kind == "linear_attention" else _ATTENTION:
            tensor = getattr(state, name)[row]
            if policy == "fp16" and name in ("transition", "update"):
                tensor = _half_if_it_fits(tensor)
            tensors[f"{layer:03d}.{name}"] = tensor
    return tensors


def unpack(tensors: Mapping[str, torch.Tensor]) -> ChunkState:
    """The chunk state of a page's tensors. Transition and update come back as stored, float32 if any layer is."""

    def layers(name: str) -> torch.Tensor:
        found = [tensor for key, tensor in tensors.items() if key.endswith(f".{name}")]
        widest = max((tensor.dtype for tensor in found), key=lambda dtype: dtype.itemsize)
        return torch.stack([tensor.to(widest) for tensor in found])

    return ChunkState(**{name: layers(name) for name in (*_GDN, *_ATTENTION)}, token_ids=tensors["token_ids"])


def _half_if_it_fits(tensor: torch.Tensor) -> torch.Tensor:
    half = tensor.half()
    return half if bool(torch.isfinite(half).all()) else tensor
