"""What a loaded model is, for the identity of its states."""

from importlib.metadata import version
from typing import Any

import linearkv
from linearkv.identity import WEIGHT_FILES, ModelIdentity, digest_folder, digest_parameters, digest_value
from linearkv.kernels.backend import runs_triton
from linearkv.models.adapter import GDNModel
from linearkv.models.loading import gdn_backend

# What a configuration says of where it came from, not of what is computed.
_NOT_COMPUTED = ("_name_or_path", "transformers_version", "architectures", "dtype", "torch_dtype")


def identify(model: GDNModel) -> ModelIdentity:
    """Everything about `model` that shapes its states. Reads its weights once (files by a cache of digests)."""
    return ModelIdentity(
        weights=digest_folder(model.folder, WEIGHT_FILES) if model.folder is not None else "in memory",
        config=digest_value(_computed(model.config.to_dict())),
        parameters=digest_parameters(model.hf.state_dict()),
        compute_dtype=str(model.dtype).removeprefix("torch."),
        attention_backend=str(model.config._attn_implementation),
        gdn_backend=gdn_backend(model.device),
        versions={"torch": version("torch"), "transformers": version("transformers")},
        producer=f"linearkv {linearkv.__version__} on {model.device.type}{_kernels(model)}",
    )


def _kernels(model: GDNModel) -> str:
    """Which kernels make the states, where not the reference: equal to its up to rounding, and no further."""
    return f", triton {version('triton')}" if runs_triton(model.device) else ""


def _computed(config: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in config.items() if name not in _NOT_COMPUTED}
