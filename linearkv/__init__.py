"""LinearKV: a retrieval engine for RAG on hybrid Gated DeltaNet models.

from linearkv import Engine

with Engine.open("store/") as engine:
    engine.index("docs/")
    print(engine.query("When does the ferry leave?").text)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# Names are loaded when first used: `linearkv --help` need not wait for torch.
_HOMES = {
    "Answer": "linearkv.answers",
    "ChunkState": "linearkv.states",
    "ChunkTokens": "linearkv.state_cache",
    "Context": "linearkv.states",
    "Engine": "linearkv.engine",
    "IndexReport": "linearkv.answers",
    "LinearKVError": "linearkv.errors",
    "PrefixState": "linearkv.states",
    "PromptFormat": "linearkv.prompt",
    "RepairReport": "linearkv.answers",
    "Sampling": "linearkv.models",
    "Settings": "linearkv.settings",
    "StoreReport": "linearkv.answers",
    "compose": "linearkv.composition",
    "pack": "linearkv.storage",
    "unpack": "linearkv.storage",
}
__all__ = [*_HOMES, "__version__"]

if TYPE_CHECKING:
    from linearkv.answers import Answer as Answer
    from linearkv.answers import IndexReport as IndexReport
    from linearkv.answers import RepairReport as RepairReport
    from linearkv.answers import StoreReport as StoreReport
    from linearkv.composition import compose as compose
    from linearkv.engine import Engine as Engine
    from linearkv.errors import LinearKVError as LinearKVError
    from linearkv.models import Sampling as Sampling
    from linearkv.prompt import PromptFormat as PromptFormat
    from linearkv.settings import Settings as Settings
    from linearkv.state_cache import ChunkTokens as ChunkTokens
    from linearkv.states import ChunkState as ChunkState
    from linearkv.states import Context as Context
    from linearkv.states import PrefixState as PrefixState
    from linearkv.storage import pack as pack
    from linearkv.storage import unpack as unpack


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
