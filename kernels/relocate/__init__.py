"""Key relocation: keys kept before rotary embedding are rotated at the positions where they land."""

from collections.abc import Sequence

import torch

from linearkv.kernels.backend import implementation, versions


def relocate(
    keys: Sequence[torch.Tensor],
    values: Sequence[torch.Tensor],
    cos: torch.Tensor,
    sin: torch.Tensor,
    *,
    out: tuple[torch.Tensor, torch.Tensor] | None = None,
    slots: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """One key and value cache from the chunks', each key rotated where it lands, as the model would rotate it there.

    Rounds exactly where the model's own rotary operation rounds, so that keys have the very bits of a real prefill.

    Args:
        keys: n tensors `[La, T_i, H, D]` of unrotated keys (after the key norm), T = sum of T_i.
        values: n tensors of the same shapes.
        cos, sin: `[T, R]` of the model's rotary embedding at the new positions, in the dtype of the keys; R is even and
            at most D, and the dimensions past R stay as they are (partial rotary embedding).
        out: key and value cache to write into, each `[La, B, S, H, D]` of any strides with D contiguous: B blocks of S
            tokens (paged attention). None: new tensors.
        slots: `[T]` int64, with `out`: where each token goes, `block * S + offset`, all different and within the cache;
            a token of a negative slot goes nowhere. None: one after another.

    Returns:
        `out`, or key and value `[La, T, H, D]` in the dtype of the keys.

    Raises:
        ValueError: operands that do not fit each other.
    """
    _check(keys, values, cos, sin, out, slots)
    if out is None:
        layers, _, heads, dim = keys[0].shape
        key, value = (keys[0].new_empty(layers, 1, len(cos), heads, dim) for _ in range(2))
    else:
        key, value = out
    run = implementation("relocate", versions(__name__, "relocate", cos.dtype), cos.device)
    run(keys, values, cos, sin, key, value, slots)
    return out if out is not None else (key[:, 0], value[:, 0])


def relocate_at(
    keys: torch.Tensor,
    values: torch.Tensor,
    tokens: Sequence[int],
    heads: int,
    dim: int,
    cos: torch.Tensor,
    sin: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`relocate` of keys and values by their addresses; see `linearkv.kernels.compose.compose_at`.

    Args:
        keys, values: int64 `[La, n]` on the CPU: where each layer's `[T_i, H, D]` of each of n chunks lie, contiguous
            and in the dtype of `cos`, on its device.
        tokens: T_i of each chunk.
        heads, dim: H and D.
        cos, sin: as for `relocate`.

    Returns:
        Key and value `[La, T, H, D]`.
    """
    run = implementation("relocate_at", versions(__name__, "relocate_at", cos.dtype), cos.device)
    key, value = run(keys, values, tokens, heads, dim, cos, sin)
    return key, value


def _check(
    keys: Sequence[torch.Tensor],
    values: Sequence[torch.Tensor],
    cos: torch.Tensor,
    sin: torch.Tensor,
    out: tuple[torch.Tensor, torch.Tensor] | None,
    slots: torch.Tensor | None,
) -> None:
    if not keys and out is None:
        raise ValueError("no keys, and no cache to put them into")
    shapes = [tuple(key.shape) for key in keys]
    like = [(layers, heads, dim) for layers, _, heads, dim in shapes]
    tokens, rotary_dim = cos.shape
    if [tuple(value.shape) for value in values] != shapes or len(set(like)) > 1 or sin.shape != cos.shape:
        raise ValueError(
            f"shapes do not agree: keys {shapes}, values {[tuple(value.shape) for value in values]}, "
            f"cos {tuple(cos.shape)}, sin {tuple(sin.shape)}"
        )
    if sum(shape[1] for shape in shapes) != tokens or rotary_dim % 2 or any(dim < rotary_dim for *_, dim in like):
        raise ValueError(f"shapes do not agree: keys {shapes}, cos and sin {tuple(cos.shape)}")
    for tensor in (*keys, *values, sin):
        if tensor.dtype != cos.dtype:
            # Another dtype would round elsewhere than the model does, and the keys would differ from a real prefill's.
            raise ValueError(f"cos must have the dtype of the keys, values and sin: {tensor.dtype}, not {cos.dtype}")
    if slots is not None and (out is None or slots.shape != (tokens,) or slots.dtype != torch.int64):
        raise ValueError(f"slots must be int64 [{tokens}], with out, not {slots.dtype} {tuple(slots.shape)}")
    if out is not None and out[0].shape != out[1].shape:
        raise ValueError(f"key and value cache differ: {tuple(out[0].shape)} and {tuple(out[1].shape)}")
    devices = {
        tensor.device for tensor in (*keys, *values, cos, sin, *(out or ()), *([] if slots is None else [slots]))
    }
    if len(devices) > 1:
        raise ValueError(
            f"keys, values, cos, sin, cache and slots lie on {', '.join(map(str, devices))}, not on one device"
        )
    for cache in out or ():
        if cache.dtype != cos.dtype or cache.stride(-1) != 1 or cache.dim() != 5:
            raise ValueError(f"cache must be {cos.dtype} [La, B, S, H, D] with D contiguous, not {cache.shape}")
        if like and (cache.shape[0], *cache.shape[3:]) != like[0]:
            raise ValueError(f"cache {tuple(cache.shape)} does not fit keys {shapes[0]}")
        if slots is None and cache.shape[1] * cache.shape[2] < tokens:
            raise ValueError(f"cache {tuple(cache.shape)} has no room for {tokens} tokens")
