"""What a model in vLLM is, for the identity of its states."""

from importlib.metadata import version
from pathlib import Path
from typing import Any

import linearkv
from linearkv.errors import LinearKVError
from linearkv.identity import WEIGHT_FILES, ModelIdentity, digest_folder, digest_parameters
from linearkv.models.base import digest_config, kernels_used
from linearkv.vllm import versions
from linearkv.vllm.worker import Worker


def identify(worker: Worker, config: Any, weights: str | None = None) -> ModelIdentity:
    """Everything about the model of an engine that shapes its states. Reads its weights once.

    Args:
        config: vLLM's `VllmConfig`.
        weights: digest of the checkpoint's files, if they are not there any more.

    Raises:
        LinearKVError: the checkpoint's files cannot be found.
    """
    gdn = worker.gdn[0].module
    if config.load_config.load_format == "dummy":
        weights = "dummy"
    return ModelIdentity(
        weights=weights or digest_folder(checkpoint_folder(config), WEIGHT_FILES),
        config=digest_config(config.model_config.hf_text_config),
        # On a CPU vLLM packs most weights into a form that has no parameters: the files' digest has them.
        # What sees is there or not, as the engine is started, and has no part in the states of text.
        parameters=digest_parameters(
            (name, parameter) for name, parameter in worker.model.named_parameters() if not name.startswith("visual.")
        ),
        compute_dtype=str(worker.dtype).removeprefix("torch."),
        attention_backend=type(worker.attention[0].cache.impl).__name__,
        gdn_backend=str(getattr(gdn, "gdn_prefill_backend", "cpu")),
        versions={"torch": version("torch"), "vllm": versions.installed()},
        producer=f"linearkv {linearkv.__version__} in vLLM on {worker.device.type}{kernels_used(worker.device)}",
    )


def checkpoint_folder(config: Any) -> Path:
    """Where the checkpoint of an engine lies on this machine."""
    name = config.model_config.model
    if Path(name).is_dir():
        return Path(name)
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, revision=config.model_config.revision, local_files_only=True))
    except (LocalEntryNotFoundError, ValueError) as error:
        raise LinearKVError(f"the files of {name} cannot be found, and without them states have no identity") from error
