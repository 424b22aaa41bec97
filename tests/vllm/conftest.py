"""Real engines of vLLM, in an environment of their own: `make test` makes one for CPUs. On a machine with a GPU these
tests run there: `pytest tests/vllm`.

Where vLLM is not installed these tests are not collected; where they are asked for and vLLM is missing, pytest finds
none, which is a failure.
"""

import gc
import os
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

collect_ignore_glob = [] if find_spec("vllm") else ["test_*.py"]

os.environ.update(
    VLLM_ENABLE_V1_MULTIPROCESSING="0",
    VLLM_CPU_KVCACHE_SPACE="1",
    VLLM_CPU_OMP_THREADS_BIND="nobind",
    VLLM_LOGGING_LEVEL="WARNING",
    VLLM_NO_USAGE_STATS="1",
    OMP_NUM_THREADS="1",
)
if find_spec("vllm"):
    os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "0"  # the other needs Triton, and Triton a GPU

HEAD_DIM = 64
ON_GPU = torch.cuda.is_available()
MACHINE: dict[str, Any] = {}
"""Options of every engine of these tests."""
if ON_GPU:  # FlashInfer's kernels would be compiled first; with its cache's size said, vLLM need not have a GPU alone
    MACHINE |= {"gpu_memory_utilization": 0.05, "kv_cache_memory_bytes": 1 << 30, "gdn_prefill_backend": "triton"}
OPTIONS: dict[str, Any] = {
    **MACHINE,
    "dtype": "bfloat16",
    "skip_tokenizer_init": True,
    "enforce_eager": True,
    "mamba_ssm_cache_dtype": "float32",
    "max_model_len": 4096,
    "max_num_seqs": 8,
    "max_logprobs": 32,
}


class Output(NamedTuple):
    """What became of one request."""

    tokens: tuple[int, ...]
    logprobs: list[dict[int, float]]
    """Of the likeliest tokens at every place, by token."""
    cached: int
    """Prompt tokens that were not computed."""
    params: dict[str, Any] | None


class Served:
    """An engine that takes the bodies of `linearkv.client`."""

    def __init__(self, llm: Any) -> None:
        self.llm = llm
        self.engine = llm.llm_engine
        self.scheduler = self.engine.engine_core.engine_core.scheduler

    def run(self, bodies: list[dict[str, Any]]) -> list[Output]:
        prompts = [{"prompt_token_ids": body["prompt"], **salted(body)} for body in bodies]
        outputs = self.llm.generate(prompts, [sampling(body) for body in bodies], use_tqdm=False)
        return [as_output(output) for output in outputs]

    @property
    def counts(self) -> dict[str, float]:
        """Of both halves of the connector."""
        from vllm.distributed.kv_transfer import get_kv_transfer_group

        beside_model, beside_scheduler = get_kv_transfer_group().counts.all(), self.scheduler.connector.counts.all()
        return {name: beside_model[name] + beside_scheduler[name] for name in beside_model}

    @property
    def free_blocks(self) -> int:
        return self.scheduler.kv_cache_manager.block_pool.get_num_free_blocks()


def salted(body: dict[str, Any]) -> dict[str, str]:
    return {"cache_salt": body["cache_salt"]} if "cache_salt" in body else {}


def sampling(body: dict[str, Any]) -> Any:
    from vllm import SamplingParams

    asked = {"kv_transfer_params": body["kv_transfer_params"]} if "kv_transfer_params" in body else None
    return SamplingParams(
        max_tokens=body.get("max_tokens", 8),
        temperature=body.get("temperature", 0),
        seed=body.get("seed"),
        stop_token_ids=body.get("stop_token_ids", []),
        ignore_eos=body.get("ignore_eos", False),
        logprobs=body.get("logprobs", 20),
        detokenize=False,
        extra_args=asked,
    )


def as_output(output: Any) -> Output:
    (only,) = output.outputs
    logprobs = [{token: found.logprob for token, found in place.items()} for place in only.logprobs or ()]
    return Output(tuple(only.token_ids), logprobs, output.num_cached_tokens or 0, output.kv_transfer_params)


@contextmanager
def open_engine(checkpoint: Path, store: Path | None = None, *, plugin: bool = True, **options: Any):
    """An engine of this process; with the plugin unless it is said otherwise."""
    import vllm
    from vllm.distributed.kv_transfer import ensure_kv_transfer_shutdown

    given = {**OPTIONS, **options}
    if plugin:
        extra = {"store": str(store)} if store is not None else {}
        given["kv_transfer_config"] = {
            "kv_connector": "LinearKVConnector",
            "kv_role": "kv_both",
            "kv_connector_extra_config": extra | given.pop("extra", {}),
        }
    served = Served(vllm.LLM(str(checkpoint), **given))
    try:
        yield served
    finally:
        served.engine.engine_core.shutdown()
        ensure_kv_transfer_shutdown()
        del served.llm, served.engine, served.scheduler  # who was given it may still hold it
        gc.collect()
        if ON_GPU:
            torch.cuda.empty_cache()


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory):
    """The reference model with heads as wide as vLLM's CPU attention wants them."""
    from linearkv.models.loading import REFERENCE
    from linearkv.models.widening import widen_heads

    folder = tmp_path_factory.mktemp("reference")
    widen_heads(REFERENCE, folder, HEAD_DIM)
    return folder


@pytest.fixture(scope="session")
def prompt(checkpoint):
    from linearkv import PromptFormat

    return PromptFormat(checkpoint, 8192)


@pytest.fixture(scope="session")
def questions():
    """Questions with 20 documents each, those of the first question being the corpus of these tests."""
    from linearkv.eval.reference.generator import HeldOut

    return HeldOut(7).questions(12, chunks=20)


@pytest.fixture(scope="session")
def chunks(questions):
    """20 chunks of text."""
    return [f"# {heading or 'Note'}\n\n{text}\n\n" for heading, text in questions[0].chunks]


@pytest.fixture(scope="session")
def transformers_model(checkpoint):
    """The same checkpoint as transformers runs it, in float32."""
    from linearkv.models import load_model

    return load_model(checkpoint, dtype="float32")
