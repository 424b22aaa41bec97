"""Loads a Hugging Face checkpoint from a local folder, or says why it is not a model LinearKV can serve."""

import contextlib
import importlib.util
import json
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel
from transformers.utils import logging as transformers_logging

from linearkv.errors import UnsupportedModelError
from linearkv.models.adapter import GDNModel

REFERENCE = Path(__file__).parent / "reference"

SUPPORTED = {
    "qwen3_5_text": ("qwen3_5", "Qwen3_5ForCausalLM"),
    "qwen3_5_moe_text": ("qwen3_5_moe", "Qwen3_5MoeForCausalLM"),
    "qwen3_next": ("qwen3_next", "Qwen3NextForCausalLM"),
}
"""Model type of the text config -> module of transformers and class. Qwen3.5, 3.6 and 3.8 share one architecture."""

# Frequencies that change with the length of the text would rotate a stored key differently at each length.
LENGTH_DEPENDENT_ROPE = ("dynamic", "longrope")
LAYER_TYPES = ("linear_attention", "full_attention")


def load_model(
    source: str | Path | PreTrainedModel, device: str = "auto", dtype: str = "auto", *, self_test: bool = True
) -> GDNModel:
    """Loads a Gated DeltaNet hybrid.

    Args:
        source: `"reference"` (the small model LinearKV ships), a checkpoint folder, or a transformers model that is
            already loaded (adapters merged, say), which is then used as it is.
        device: `auto` (CUDA where there is a device, else the CPU), or a torch device.
        dtype: `auto` (float32 on a CPU, the checkpoint's own on a GPU), `float32` or `bfloat16`.
        self_test: check that this installation of transformers continues from a filled cache correctly; costs two short
            forward passes.

    Raises:
        UnsupportedModelError: no supported GDN hybrid, incomplete weights, no such device, or a transformers that fails
            the self-test.
        FileNotFoundError: no checkpoint in the folder.
    """
    if isinstance(source, PreTrainedModel):
        _check_config(source.config, type(source).__name__)
        model = source.eval()
        folder = None
    else:
        folder = REFERENCE if str(source) == "reference" else Path(source)
        model = _load_folder(folder, _device(device), dtype)
    adapter = GDNModel(model, folder)
    if self_test:
        check_continuation(adapter)
    return adapter


def check_continuation(model: GDNModel) -> None:
    """Several tokens fed to a filled cache must give what one prefill of everything gives.

    Some releases of transformers drop the stored recurrent state, or pad the convolution with zeros, when more than one
    token follows; every answer from a composed context would be wrong. The control arm, the same continuation from an
    emptied state, shows that the check can see such a fault on this model.

    Raises:
        UnsupportedModelError: naming the release.
    """
    ids = torch.arange(11) % model.vocab_size
    whole = model.logits(model.prefill([]), ids)[-1]
    split = model.prefill(ids[:6])
    continued = model.logits(split, ids[6:])[-1]
    emptied = type(split)(
        torch.zeros_like(split.recurrent), torch.zeros_like(split.conv_tail), split.key, split.value, split.length
    )
    control = (model.logits(emptied, ids[6:])[-1] - whole).norm()
    error = (continued - whole).norm()
    if not torch.isfinite(error) or error > 0.25 * control + 1e-4 * whole.norm():
        raise UnsupportedModelError(
            f"transformers {version('transformers')} does not continue a filled cache of this model: logits after "
            f"6 + 5 tokens are off by {float(error):.3g} (an emptied state gives {float(control):.3g}). "
            f"Install another release: pip install 'transformers>=5.24,<6'"
        )


def gdn_backend() -> str:
    """Which implementation of the gated delta rule transformers runs, with its version: part of a state's identity."""
    if torch.cuda.is_available() and importlib.util.find_spec("fla") is not None:
        return f"fla {version('flash-linear-attention')}"
    return "torch"


def _device(device: str) -> torch.device:
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    chosen = torch.device(device)
    if chosen.type == "cuda" and not torch.cuda.is_available():
        raise UnsupportedModelError(
            f"device {device!r} was asked for, but torch {torch.__version__} sees no CUDA device"
        )
    return chosen


def _load_folder(folder: Path, device: torch.device, dtype: str) -> PreTrainedModel:
    if not (folder / "config.json").is_file():
        raise FileNotFoundError(
            f"no checkpoint in {folder}: config.json is missing. "
            f"Give the folder of a Hugging Face checkpoint, or 'reference'"
        )
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
    except (ValueError, KeyError, json.JSONDecodeError, OSError) as error:
        raise UnsupportedModelError(f"{folder}/config.json cannot be read as a model: {error}") from error
    name = (getattr(config, "architectures", None) or [type(config).__name__])[0]
    text = config.get_text_config()
    _check_config(text, name)
    automatic = torch.float32 if device.type == "cpu" else "auto"
    torch_dtype = {"auto": automatic, "float32": torch.float32, "bfloat16": torch.bfloat16}
    if dtype not in torch_dtype:
        raise UnsupportedModelError(f"dtype {dtype!r} is not supported: expected auto, float32 or bfloat16")
    module, class_name = SUPPORTED[text.model_type]
    model_class = _transformers_class(module, class_name, device)
    with _quiet():
        model, info = model_class.from_pretrained(
            folder,
            config=text,
            dtype=torch_dtype[dtype],
            local_files_only=True,
            attn_implementation="sdpa",
            output_loading_info=True,
        )
    missing = sorted(info["missing_keys"])
    if missing:
        raise UnsupportedModelError(
            f"{folder} holds no weights for {len(missing)} parameters of {class_name}, the first: {missing[0]}"
        )
    return model.to(device).eval()


def _check_config(config: PreTrainedConfig, name: str) -> None:
    supported = (
        "Supported: Qwen3_5ForCausalLM and Qwen3_5MoeForCausalLM, also as the text part of a multimodal checkpoint, "
        "and Qwen3NextForCausalLM"
    )
    layer_types = getattr(config, "layer_types", None)
    found = f"layer types: {', '.join(sorted(set(layer_types)))}" if layer_types else "no layer types in its config"
    if config.model_type not in SUPPORTED:
        raise UnsupportedModelError(
            f"{name} (model type {config.model_type!r}, {found}) is not a supported Gated DeltaNet hybrid. {supported}"
        )
    if not layer_types or set(layer_types) != set(LAYER_TYPES):
        raise UnsupportedModelError(f"{name} has {found}; LinearKV needs both {' and '.join(LAYER_TYPES)}. {supported}")
    rope = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    if rope in LENGTH_DEPENDENT_ROPE:
        raise UnsupportedModelError(
            f"{name} uses rope_type {rope!r}, whose frequencies change with the length of the text: "
            f"a stored key cannot be moved"
        )


def _transformers_class(module: str, name: str, device: torch.device) -> Any:
    with _without_fla() if device.type == "cpu" else contextlib.nullcontext():
        modeling = importlib.import_module(f"transformers.models.{module}.modeling_{module}")
    return getattr(modeling, name)


@contextlib.contextmanager
def _without_fla() -> Iterator[None]:
    """Keeps transformers from binding flash-linear-attention, whose kernels crash without a GPU, at import."""
    hidden = sys.modules.get("fla")
    already = hidden is not None
    sys.modules["fla"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        if already:
            sys.modules["fla"] = hidden  # type: ignore[assignment]
        else:
            del sys.modules["fla"]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Our own progress and messages only: transformers prints loading bars and reference-kernel warnings."""
    before = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(before)
        transformers_logging.enable_progress_bar()
