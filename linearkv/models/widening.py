"""The same model with wider attention heads, for attention kernels that do not know its own width.

A head of dimension D becomes one of fD that computes the same: the query, f times over, keeps its root mean square and
so its norm; the key, padded with zeros, comes out of its norm larger by the square root of f, which is what the scale
1 / sqrt(fD) lacks to 1 / sqrt(D); the zeros meet the query's copies, values and gates are padded with zeros too. With
f = 4 the factor is 2 and nothing is rounded, but for the epsilon inside the key's norm, which counts f times.
"""

import json
import math
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from linearkv.errors import UnsupportedModelError


def widen_heads(folder: Path, out: Path, head_dim: int) -> None:
    """Writes to `out` the checkpoint in `folder` with attention heads of `head_dim`, a multiple of its own.

    Raises:
        UnsupportedModelError: not a multiple, or weights in several files.
    """
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    before = config["head_dim"]
    times, rest = divmod(head_dim, before)
    if rest or not (folder / "model.safetensors").is_file():
        raise UnsupportedModelError(f"{folder} with heads of {before} in one file cannot be widened to {head_dim}")
    weights = load_file(folder / "model.safetensors")
    for name in [name for name in weights if ".self_attn." in name]:
        weights[name] = _widened(name, weights[name], before, times).contiguous()
    config["head_dim"] = head_dim
    config["rope_parameters"]["partial_rotary_factor"] *= before / head_dim
    out.mkdir(parents=True, exist_ok=True)
    for file in folder.iterdir():
        if file.is_file() and file.suffix in (".json", ".jinja"):
            shutil.copyfile(file, out / file.name)
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    save_file(weights, out / "model.safetensors", metadata={"format": "pt"})


def _widened(name: str, weight: torch.Tensor, head_dim: int, times: int) -> torch.Tensor:
    """One attention weight. Rows of projections lie head by head, in `q_proj` a head's query and then its gate."""
    kind = name.split(".self_attn.")[1].removesuffix(".weight")
    if kind == "q_norm":
        return weight.repeat(times)
    if kind == "k_norm":
        return torch.cat([weight, weight.new_zeros((times - 1) * head_dim)])
    if kind == "o_proj":
        heads = weight.unflatten(1, (-1, head_dim))
        return torch.nn.functional.pad(heads, (0, (times - 1) * head_dim)).flatten(1)
    if kind in ("k_proj", "v_proj"):
        heads = weight.unflatten(0, (-1, head_dim))
        return torch.nn.functional.pad(heads, (0, 0, 0, (times - 1) * head_dim)).flatten(0, 1)
    if kind == "q_proj":
        query, gate = weight.unflatten(0, (-1, 2, head_dim)).unbind(1)
        gate = torch.nn.functional.pad(gate, (0, 0, 0, (times - 1) * head_dim))
        return torch.cat([query.repeat(1, times, 1), gate], dim=1).flatten(0, 1)
    raise UnsupportedModelError(f"{name} is not a weight that is known to widen, {math.prod(weight.shape)} numbers")
