"""The models that vLLM has loaded in this process, for the plugin that finds itself beside one of them."""

import weakref
from collections.abc import Mapping
from typing import Any

from torch import nn

from linearkv.errors import LinearKVError

_models: "weakref.WeakSet[nn.Module]" = weakref.WeakSet()
_watching = False


def watch() -> None:
    """From now on remembers the models that vLLM loads: it gives a connector their caches, and not them."""
    global _watching
    if _watching:
        return
    from vllm.model_executor.model_loader.base_loader import BaseModelLoader

    load = BaseModelLoader.load_model

    def load_and_remember(self: Any, *args: Any, **named: Any) -> nn.Module:
        model = load(self, *args, **named)
        _models.add(model)
        return model

    BaseModelLoader.load_model = load_and_remember
    _watching = True


def model_with(layers: Mapping[str, Any]) -> nn.Module:
    """The loaded model that these layers are of.

    Raises:
        LinearKVError: none; it was loaded before `watch`, or in a way of its own.
    """
    wanted = {id(layer) for layer in layers.values()}
    for model in list(_models):
        if wanted <= {id(module) for module in model.modules()}:
            return model
    raise LinearKVError(
        "vLLM loaded its model in a way that LinearKV does not see: leave load_format at its default, and "
        "VLLM_PLUGINS unset or with linearkv in it"
    )
