"""LinearKV inside vLLM: a connector that serves composed contexts and indexes chunks, and no fork.

`register` is the entry point that vLLM calls in each of its processes; importing this package imports no vLLM.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from linearkv.vllm.model import VLLMModel as VLLMModel

__all__ = ["CONNECTOR", "VLLMModel", "register"]

CONNECTOR = "LinearKVConnector"


def register() -> None:
    """Makes the connector known to vLLM by name. An engine that asks for it in a release of vLLM that LinearKV was
    never run with is refused; others are left alone."""
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    from linearkv.vllm import loaded, versions

    if CONNECTOR in KVConnectorFactory._registry:
        return
    if versions.installed() in versions.TESTED:
        versions.register_text_models()
        versions.mend_start()
        loaded.watch()
    KVConnectorFactory.register_connector(CONNECTOR, "linearkv.vllm.connector", CONNECTOR)


def __getattr__(name: str) -> Any:
    """`VLLMModel`, which nobody needs who is only served."""
    if name != "VLLMModel":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("linearkv.vllm.model"), name)
