"""Which engines the plugin serves, and the refusal of all others by name."""

from typing import Any

from linearkv.errors import UnsupportedModelError

ARCHITECTURES = (
    "Qwen3_5ForCausalLM",
    "Qwen3_5MoeForCausalLM",
    "Qwen3_5ForConditionalGeneration",
    "Qwen3_5MoeForConditionalGeneration",
    "Qwen3NextForCausalLM",
)


def check_config(config: Any) -> None:
    """Raises UnsupportedModelError for an engine whose states LinearKV would not read or write correctly.

    Args:
        config: vLLM's `VllmConfig`.
    """
    found = list(config.model_config.architectures)
    if not set(found) & set(ARCHITECTURES):
        _refuse(f"the architecture {', '.join(found)}", f"serve one of {', '.join(ARCHITECTURES)}")
    parallel = config.parallel_config
    for name, size in (
        ("tensor parallelism", parallel.tensor_parallel_size),
        ("pipeline parallelism", parallel.pipeline_parallel_size),
        ("data parallelism", parallel.data_parallel_size),
        ("context parallelism", getattr(parallel, "decode_context_parallel_size", 1)),
    ):
        if size > 1:
            _refuse(f"{name} of {size}", "leave it at 1")
    if parallel.distributed_executor_backend not in (None, "uni"):
        _refuse(
            f"the executor {parallel.distributed_executor_backend}, which has the model in another process than the "
            f"scheduler",
            "leave it; on a CPU set VLLM_ENABLE_V1_MULTIPROCESSING=0 for the server",
        )
    if config.speculative_config is not None:
        method = getattr(config.speculative_config, "method", None)
        _refuse(f"speculative decoding ({method}), multi-token prediction included", "leave it out")
    cache = config.cache_config
    if cache.cache_dtype not in ("auto", str(config.model_config.dtype).removeprefix("torch.")):
        _refuse(f"attention pages in {cache.cache_dtype}", "leave kv_cache_dtype at auto")
    if cache.mamba_ssm_cache_dtype != "float32":
        _refuse(
            f"recurrent states in {cache.mamba_ssm_cache_dtype}",
            "set mamba_ssm_cache_dtype to float32, in which they are composed",
        )


def _refuse(what: str, instead: str) -> None:
    raise UnsupportedModelError(f"LinearKV does not support {what} in vLLM: {instead}")
