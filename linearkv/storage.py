"""Storage policies: how a chunk state becomes the tensors of a page, and what precision that keeps.

`fp32` is exact. `fp16` (the default) halves the bytes at a relative error of about 2e-4 in the composed state; a
layer's tensor that would overflow stays float32. `compact` is `fp16` without the transitions that have decayed to
nothing: a head that has forgotten what came before the chunk needs its update alone. Keys, values and convolution tails
keep the model's own dtype under all three.
"""

from collections.abc import Mapping, Sequence

import torch

from linearkv.states import ChunkState, PrefixState, Rotary

POLICIES = ("fp32", "fp16", "compact")
FORGOTTEN = 1e-5
"""Frobenius norm of a transition at or below which `compact` leaves it out: its share in a composed state is then a
hundredth of what float16 rounds away."""
_GDN, _ATTENTION = ("transition", "update", "conv_tail"), ("key", "value")


def pack(state: ChunkState, layer_types: Sequence[str], policy: str) -> dict[str, torch.Tensor]:
    """The tensors of a page in layer order, so that a layer can be used while the next is still arriving.

    Args:
        state: with a dense transition.
        layer_types: of the model, `linear_attention` or `full_attention` per layer.
        policy: one of `POLICIES`.

    Returns:
        `token_ids [T]`, then per layer `003.transition [H, K, K]`, `003.update [H, K, V]`, `003.conv_tail [C, 3]`, or
        `003.key` and `003.value [T, Hkv, D]`. With `compact`, also `003.kept` bool `[H]` before `003.transition`, which
        is then `[n, K, K]` of the n heads kept.
    """
    if policy not in POLICIES:
        raise ValueError(f"unknown storage policy {policy!r}: expected one of {', '.join(POLICIES)}")
    if state.rows is not None:
        raise ValueError("the state is packed already: its transition is not dense")
    tensors = {"token_ids": state.token_ids}
    rows = {"linear_attention": 0, "full_attention": 0}
    for layer, kind in enumerate(layer_types):
        row = rows[kind]
        rows[kind] += 1
        for name in _GDN if kind == "linear_attention" else _ATTENTION:
            tensor = getattr(state, name)[row]
            if policy == "compact" and name == "transition":
                kept = ~(torch.linalg.vector_norm(tensor, dim=(-2, -1)) <= FORGOTTEN)  # a NaN stays, and shows
                tensors[f"{layer:03d}.kept"] = kept
                tensor = tensor[kept]
            if policy != "fp32" and name in ("transition", "update"):
                tensor = _half_if_it_fits(tensor)
            tensors[f"{layer:03d}.{name}"] = tensor
    return tensors


def unpack(tensors: Mapping[str, torch.Tensor]) -> ChunkState:
    """The chunk state of a page's tensors. Transition and update come back as stored, float32 if any layer is."""

    def layers(name: str) -> list[torch.Tensor]:
        found = [tensor for key, tensor in tensors.items() if key.endswith(f".{name}")]
        widest = max((tensor.dtype for tensor in found), key=lambda dtype: dtype.itemsize)
        return [tensor.to(widest) for tensor in found]

    parts = {name: torch.stack(layers(name)) for name in (*_GDN[1:], *_ATTENTION)}
    if not any(key.endswith(".kept") for key in tensors):
        return ChunkState(torch.stack(layers("transition")), **parts, token_ids=tensors["token_ids"])
    kept = torch.stack(layers("kept"))
    rows = (kept.flatten().cumsum(0) - 1).where(kept.flatten(), -1).to(torch.int32).view(kept.shape)
    return ChunkState(torch.cat(layers("transition")), **parts, token_ids=tensors["token_ids"], rows=rows)


def pack_prefix(prefix: PrefixState, layer_types: Sequence[str]) -> dict[str, torch.Tensor]:
    """The tensors of a prefix's page, in layer order and exact: `token_ids [T]`, then per layer `003.recurrent
    [H, K, V]` and `003.conv_tail [C, 3]`, or `003.key` and `003.value [T, Hkv, D]`."""
    tensors = {"token_ids": prefix.token_ids}
    rows = {"linear_attention": 0, "full_attention": 0}
    for layer, kind in enumerate(layer_types):
        for name in ("recurrent", "conv_tail") if kind == "linear_attention" else _ATTENTION:
            tensors[f"{layer:03d}.{name}"] = getattr(prefix, name)[rows[kind]]
        rows[kind] += 1
    return tensors


def unpack_prefix(tensors: Mapping[str, torch.Tensor], rotary: Rotary) -> PrefixState:
    """The prefix of a page's tensors, for the model with this rotary embedding."""

    def layers(name: str) -> torch.Tensor:
        return torch.stack([tensor for key, tensor in tensors.items() if key.endswith(f".{name}")])

    names = ("recurrent", "conv_tail", *_ATTENTION)
    return PrefixState(**{name: layers(name) for name in names}, token_ids=tensors["token_ids"].cpu(), rotary=rotary)


def _half_if_it_fits(tensor: torch.Tensor) -> torch.Tensor:
    half = tensor.half()
    return half if bool(torch.isfinite(half).all()) else tensor
