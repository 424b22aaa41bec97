"""The affine map of a segment: its keys, values, gates and write strengths -> transition and update."""

import torch

from linearkv.kernels.backend import accumulation_dtype, implementation, versions


def chunk_delta(
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    lengths: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Transition and update of each segment of a batch under the gated delta rule.

    Running the rule over a segment from state `S` ends in `transition @ S + update`.

    Args:
        k: `[B, T, Hk, K]` keys after convolution and activation, L2-normalised over `K`. `Hv` must be a multiple of
            `Hk`; key head `h` serves the value heads `h * Hv // Hk` onwards (as in Qwen3-Next and Qwen3.5).
        v: `[B, T, Hv, V]` values after convolution and activation.
        g: `[B, T, Hv]` log decay, at most 0.
        beta: `[B, T, Hv]` write strength, in (0, 1).
        lengths: `[B]` integer number of real tokens of each segment, padded on the right up to `T`; all of `T` if None.
            What lies beyond 0 and `T` counts as these.

    Returns:
        transition `[B, Hv, K, K]` and update `[B, Hv, K, V]` in float32, or in float64 if an input is float64. A
        segment of length 0 gives the identity and zero.

    Raises:
        ValueError: operands that do not fit each other.

    Source: the WY form of Yang et al., Gated Delta Networks (arXiv 2412.06464), section 3.
    """
    _check(k, v, g, beta, lengths)
    dtype = accumulation_dtype(k, v, g, beta)
    known = versions(__name__, "chunk_delta", dtype, k.shape[-1], v.shape[-1])
    run = implementation("chunk_delta", known, k.device)
    maps: tuple[torch.Tensor, torch.Tensor] = run(k, v, g, beta, lengths)
    return maps


def _check(k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor, lengths: torch.Tensor | None) -> None:
    batch, tokens, key_heads, _ = k.shape
    value_heads = v.shape[2]
    if v.shape[:2] != (batch, tokens) or g.shape != (batch, tokens, value_heads) or beta.shape != g.shape:
        shapes = ", ".join(f"{n} {tuple(x.shape)}" for n, x in (("k", k), ("v", v), ("g", g), ("beta", beta)))
        raise ValueError(f"shapes do not agree: {shapes}")
    if value_heads % key_heads:
        raise ValueError(f"{value_heads} value heads cannot be served by {key_heads} key heads")
    if lengths is not None and (lengths.shape != (batch,) or lengths.is_floating_point()):
        raise ValueError(f"lengths must be integers [{batch}], not {lengths.dtype} {tuple(lengths.shape)}")
    devices = {str(x.device) for x in (k, v, g, beta)}
    if len(devices) > 1:
        raise ValueError(f"k, v, g and beta lie on {', '.join(sorted(devices))}, not on one device")
