"""Loads a Hugging Face checkpoint from a local folder, or says why it is not a model LinearKV can serve."""

import contextlib
import dataclasses
import functools
import importlib.util
import logging
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel
from transformers.utils import logging as transformers_logging

from linearkv.errors import LinearKVError, UnsupportedModelError
from linearkv.models.adapter import TransformersModel
from linearkv.states import TAIL

_log = logging.getLogger(__name__)

REFERENCE = Path(__file__).parent / "reference"

SUPPORTED = {
    "qwen3_5_text": ("qwen3_5", "Qwen3_5ForCausalLM"),
    "qwen3_5_moe_text": ("qwen3_5_moe", "Qwen3_5MoeForCausalLM"),
    "qwen3_next": ("qwen3_next", "Qwen3NextForCausalLM"),
}
"""Model type of the text config -> module of transformers and class. Qwen3.5, 3.6 and 3.8 share one architecture."""

# Frequencies that change with the length of the text would rotate a stored key differently at each length.
LENGTH_DEPENDENT_ROPE = ("dynamic", "longrope")
GPU_PACKAGES = ("fla", "causal_conv1d")
LAYER_TYPES = ("linear_attention", "full_attention")


def load_model(
    source: str | Path | PreTrainedModel, device: str = "auto", dtype: str = "auto", *, self_test: bool = True
) -> TransformersModel:
    """Loads a Gated DeltaNet hybrid.

    Args:
        source: `"reference"` (the small model LinearKV ships), a checkpoint folder, or a transformers model that is
            already loaded (adapters merged, say), which is then used as it is.
        device: `auto` (CUDA where there is a device, else the CPU), or a torch device.
        dtype: `auto` (float32 on a CPU, the checkpoint's own on a GPU), `float32` or `bfloat16`.
        self_test: check that this installation of transformers continues from a filled cache correctly; costs nine
            forward passes of at most 11 tokens.

    Raises:
        UnsupportedModelError: no supported GDN hybrid, incomplete, damaged or quantised weights, no such device, or a
            transformers that fails the self-test.
        FileNotFoundError: no checkpoint in the folder.
    """
    if isinstance(source, torch.nn.Module):
        model = _check_loaded(source).eval()
        folder = None
    else:
        folder = REFERENCE if str(source) == "reference" else Path(source)
        model = _load_folder(folder, _device(device), dtype)
    _avoid_wrong_attention(model)
    adapter = TransformersModel(model, folder)
    if self_test:
        with _quiet():
            _self_test(adapter)
    return adapter


def _avoid_wrong_attention(model: PreTrainedModel) -> None:
    """Plain attention instead of PyTorch's fused one for a model with one key head, on a GPU.

    There all query heads read one key head at no distance from each other, which the fused kernel (torch 2.11) takes
    for a single head's layout: where a block of its queries holds one token alone, it reads another token's mask. With
    the reference model the last of 64 n + 1 tokens behind a context was up to 1.2 off in log-probability.
    """
    heads = model.config.num_key_value_heads
    if model.device.type == "cuda" and heads == 1 and model.config._attn_implementation == "sdpa":
        model.set_attn_implementation("eager")


def _self_test(model: TransformersModel) -> None:
    try:
        check_continuation(model)
    except (LinearKVError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        raise UnsupportedModelError(
            f"{model.architecture} does not run on {model.device} with transformers {version('transformers')}: "
            f"{type(error).__name__}: {error}. On a CPU this happens where {' or '.join(GPU_PACKAGES)} is installed "
            f"and transformers' model code was imported before LinearKV loaded a model: load it through LinearKV first"
        ) from error


def check_continuation(model: TransformersModel) -> None:
    """One and several tokens fed to a filled cache must give what one prefill of everything gives.

    Some releases of transformers drop the stored recurrent state, or pad the convolution with zeros, when more than one
    token follows; every answer from a composed context would be wrong. The control arms repeat the continuation from a
    context with one part emptied: they must differ, and the continuation must be much nearer to the prefill than they.
    Each part has its own arm, since in a random or a shallow model one of them may matter a hundred times more.

    Raises:
        UnsupportedModelError: naming the release.
    """
    ids = torch.arange(11) % model.vocab_size
    rounding = 1e-4 if model.dtype == torch.float32 else 5e-2
    whole = model.logits(model.prefill([]), ids)
    for filled in (6, 10):
        context, expected = model.prefill(ids[:filled]), whole[filled:]
        continued = model.logits(context, ids[filled:])
        error = float((continued - expected).norm() / expected.norm())
        for part in ("recurrent", "conv_tail"):
            zeros: dict[str, Any] = {part: torch.zeros_like(getattr(context, part))}
            emptied = dataclasses.replace(context, **zeros)
            without = model.logits(emptied, ids[filled:])
            control = float((without - expected).norm() / expected.norm())
            if torch.equal(without, continued) or not error <= 0.5 * control + rounding:
                raise UnsupportedModelError(
                    f"transformers {version('transformers')} does not continue a filled cache of this model: logits "
                    f"after {filled} + {11 - filled} tokens are off by {error:.2g} of their norm (by {control:.2g} "
                    f"with an emptied {part}). Install another release: pip install 'transformers>=5.24,<6'"
                )


@functools.cache
def _say_once_what_is_not_used() -> None:
    """Who installed packages for GPUs may expect them to run."""
    installed = [name for name in ("triton", *GPU_PACKAGES) if importlib.util.find_spec(name) is not None]
    if installed:
        _log.warning("no CUDA device: computing with torch on the CPU; %s not used", " and ".join(installed))


def _device(device: str) -> torch.device:
    if device == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        _say_once_what_is_not_used()
        return torch.device("cpu")
    try:
        chosen = torch.device(device)
    except RuntimeError:
        chosen = None
    if chosen is None or chosen.type not in ("cpu", "cuda"):
        raise UnsupportedModelError(f"device {device!r} is not supported: expected auto, cpu, cuda or cuda:<number>")
    if chosen.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if (chosen.index or 0) >= count:
            sees = f"{count} CUDA devices" if count else "no CUDA device"
            raise UnsupportedModelError(f"device {device!r} was asked for, but torch {torch.__version__} sees {sees}")
    return chosen


def _check_loaded(model: torch.nn.Module) -> PreTrainedModel:
    name = type(model).__name__
    if not isinstance(model, PreTrainedModel):
        raise UnsupportedModelError(f"{name} is not a transformers model; merge adapters into their base model first")
    _check_config(model.config, name)
    class_name = SUPPORTED[model.config.model_type][1]
    if class_name not in (base.__name__ for base in type(model).__mro__):
        raise UnsupportedModelError(f"{name} has no language-model head to answer with: load it as {class_name}")
    return model


def _load_folder(folder: Path, device: torch.device, dtype: str) -> PreTrainedModel:
    if not (folder / "config.json").is_file():
        raise FileNotFoundError(
            f"no checkpoint in {folder}: config.json is missing. "
            f"Give the folder of a Hugging Face checkpoint, or 'reference'"
        )
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
    except (ValueError, TypeError, KeyError, OSError, StrictDataclassError) as error:
        raise UnsupportedModelError(f"{folder}/config.json cannot be read as a model: {error}") from error
    name = (getattr(config, "architectures", None) or [type(config).__name__])[0]
    text = config.get_text_config()
    _check_config(text, name)
    if quantization := getattr(config, "quantization_config", None) or getattr(text, "quantization_config", None):
        method = quantization.get("quant_method") if isinstance(quantization, dict) else quantization.quant_method
        raise UnsupportedModelError(
            f"{folder} is a quantised checkpoint ({method}), which is not supported: use the bfloat16 checkpoint"
        )
    automatic = torch.float32 if device.type == "cpu" else "auto"
    torch_dtype = {"auto": automatic, "float32": torch.float32, "bfloat16": torch.bfloat16}
    if dtype not in torch_dtype:
        raise UnsupportedModelError(f"dtype {dtype!r} is not supported: expected auto, float32 or bfloat16")
    module, class_name = SUPPORTED[text.model_type]
    model_class = _transformers_class(module, class_name, device)
    try:
        with _quiet():
            model, info = model_class.from_pretrained(
                folder,
                config=text,
                dtype=torch_dtype[dtype],
                local_files_only=True,
                attn_implementation="sdpa",
                output_loading_info=True,
                ignore_mismatched_sizes=True,
            )
    except (SafetensorError, OSError, ValueError, KeyError) as error:
        raise UnsupportedModelError(
            f"the weights in {folder} cannot be read: {str(error).rstrip('.')}. "
            f"They are missing or damaged: copy the checkpoint again"
        ) from error
    _check_weights(info, folder, class_name)
    return model.to(device).eval()


def _check_weights(info: dict[str, Any], folder: Path, class_name: str) -> None:
    """A parameter that was left random, or a weight that was left out, is a wrong model and not a warning."""
    if missing := sorted(info["missing_keys"]):
        raise UnsupportedModelError(
            f"{folder} holds no weights for {len(missing)} parameters of {class_name}, the first: {missing[0]}"
        )
    if mismatched := sorted(info["mismatched_keys"]):
        name, found, expected = mismatched[0]
        raise UnsupportedModelError(
            f"{folder} holds {len(mismatched)} weights of another shape than its config.json says, the first: {name} "
            f"is {tuple(found)} and should be {tuple(expected)}"
        )
    if left_out := sorted(key for key in info["unexpected_keys"] if key.startswith("model.layers.")):
        raise UnsupportedModelError(
            f"{folder} holds {len(left_out)} weights that {class_name} has no place for, the first: {left_out[0]}. "
            f"Its config.json is of another model, or the checkpoint is quantised in a way that is not supported"
        )


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
    if config.linear_conv_kernel_dim != TAIL + 1:
        raise UnsupportedModelError(
            f"{name} has a short convolution of width {config.linear_conv_kernel_dim}; LinearKV supports {TAIL + 1}"
        )
    rope = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    if rope in LENGTH_DEPENDENT_ROPE:
        raise UnsupportedModelError(
            f"{name} uses rope_type {rope!r}, whose frequencies change with the length of the text: "
            f"a stored key cannot be moved"
        )


def _transformers_class(module: str, name: str, device: torch.device) -> Any:
    with _without_gpu_packages() if device.type == "cpu" else contextlib.nullcontext():
        modeling = importlib.import_module(f"transformers.models.{module}.modeling_{module}")
    return getattr(modeling, name)


@contextlib.contextmanager
def _without_gpu_packages() -> Iterator[None]:
    """Keeps transformers from binding, at import, packages whose kernels crash without a GPU."""
    hidden = {name: sys.modules.get(name) for name in GPU_PACKAGES}
    sys.modules.update(dict.fromkeys(GPU_PACKAGES))  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name, before in hidden.items():
            if before is None:
                del sys.modules[name]
            else:
                sys.modules[name] = before


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
