"""The plugin as vLLM knows it: a KV connector, whose two halves sit beside the scheduler and beside the model."""

import logging
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    SupportsHMA,
)

from linearkv.vllm import versions
from linearkv.vllm.checks import check_config
from linearkv.vllm.jobs import JOBS, Job
from linearkv.vllm.loaded import model_with
from linearkv.vllm.worker import Blocks, Load, Step, Worker

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.request import Request

_log = logging.getLogger(__name__)

NAME = "linearkv"
"""Of our part of a request's `kv_transfer_params`."""
LEFT_TO_COMPUTE = 1
"""Tokens at the end of a prompt that are always computed: the answer's first token follows from the last."""


@dataclass
class StepPlan(KVConnectorMetadata):
    """What the half beside the scheduler tells the half beside the model of one step."""

    loads: list[Load] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    ended: list[Job] = field(default_factory=list)
    """Of requests that ended, whatever was kept of them."""


@dataclass
class _Tracked:
    """A request of ours in the scheduler."""

    job: Job
    prompt: int
    blocks: Blocks = ()
    load: bool = False
    """Its context is to be written before its next step."""


class LinearKVConnector(KVConnectorBase_V1, SupportsHMA):
    """Serves requests from composed contexts, and keeps chunk states while their prompts are prefilled.

    vLLM makes one for the scheduler and one for the model. Name it with
    `--kv-transfer-config '{"kv_connector": "LinearKVConnector", "kv_role": "kv_both"}'`.
    """

    def __init__(self, vllm_config: "VllmConfig", role: KVConnectorRole, kv_cache_config: "KVCacheConfig") -> None:
        versions.check_version()
        super().__init__(vllm_config, role, kv_cache_config)
        check_config(vllm_config)
        self._cache_config = kv_cache_config
        self._tracked: dict[str, _Tracked] = {}
        self._ended: list[Job] = []
        self._worker: Worker | None = None

    # Beside the scheduler

    def on_new_request(self, request: "Request") -> None:
        params = (request.kv_transfer_params or {}).get(NAME)
        if params is None:
            return
        job = JOBS.get(params.get("job"))
        if job is None:
            return
        # Blocks of a composed request hold what its tokens alone do not give: nobody else may find them.
        versions.salt(request, f"linearkv {uuid.uuid4()}")
        self._tracked[request.request_id] = _Tracked(job, request.num_prompt_tokens)

    def get_num_new_matched_tokens(self, request: "Request", num_computed_tokens: int) -> tuple[int | None, bool]:
        tracked = self._tracked.get(request.request_id)
        if tracked is None or tracked.job.context is None:
            return 0, False
        return tracked.job.context.length - num_computed_tokens, False

    def update_state_after_alloc(self, request: "Request", blocks: "KVCacheBlocks", num_external_tokens: int) -> None:
        tracked = self._tracked.get(request.request_id)
        if tracked is not None:
            tracked.blocks = blocks.get_block_ids()
            tracked.load = num_external_tokens > 0

    def build_connector_meta(self, scheduler_output: "SchedulerOutput") -> StepPlan:
        plan = StepPlan(ended=self._ended)
        self._ended = []
        if not self._tracked:
            return plan
        starts = {new.req_id: new.num_computed_tokens for new in scheduler_output.scheduled_new_reqs}
        cached = scheduler_output.scheduled_cached_reqs
        resumed = versions.resumed(cached)
        for place, request_id in enumerate(cached.req_ids):
            starts[request_id] = cached.num_computed_tokens[place]
            tracked = self._tracked.get(request_id)
            new = cached.new_block_ids[place]
            if tracked is not None and new is not None and request_id not in resumed:
                tracked.blocks = tuple([*old, *more] for old, more in zip(tracked.blocks, new, strict=True))
        for request_id, tokens in scheduler_output.num_scheduled_tokens.items():
            tracked = self._tracked.get(request_id)
            if tracked is None:
                continue
            if tracked.load:
                plan.loads.append(Load(tracked.job, tracked.blocks))
                tracked.load = False
            start = starts[request_id]
            if tracked.job.wanted is not None and start < tracked.prompt:
                computed = min(tokens, tracked.prompt - start)
                plan.steps.append(Step(tracked.job, tracked.blocks, start, computed, tracked.prompt))
        return plan

    def request_finished(self, request: "Request", block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        return self.request_finished_all_groups(request, (block_ids,))

    def request_finished_all_groups(
        self, request: "Request", block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        tracked = self._tracked.pop(request.request_id, None)
        if tracked is not None:
            self._ended.append(tracked.job)
        return False, None

    # Beside the model

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        layers = self._vllm_config.compilation_config.static_forward_context
        cached = {name: layers[name] for group in self._cache_config.kv_cache_groups for name in group.layer_names}
        vocab_size = self._vllm_config.model_config.hf_text_config.vocab_size
        self._worker = Worker(model_with(cached), cached, self._cache_config, vocab_size)

    @property
    def worker(self) -> Worker:
        assert self._worker is not None
        return self._worker

    def bind_connector_metadata(self, connector_metadata: KVConnectorMetadata) -> None:
        super().bind_connector_metadata(connector_metadata)
        assert isinstance(connector_metadata, StepPlan)
        for job in connector_metadata.ended:
            self.worker.forget(job)
        if connector_metadata.steps:
            self.worker.begin(connector_metadata.steps)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        plan = self._get_connector_metadata()
        assert isinstance(plan, StepPlan)
        if plan.loads:
            self.worker.load(plan.loads, kwargs.get("attn_metadata") or forward_context.attn_metadata)

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Nothing is left to wait for: contexts are written before the step."""

    def save_kv_layer(self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: Any, **kwargs: Any) -> None:
        """Pages are not saved; states are kept as the model computes them."""

    def wait_for_save(self) -> None:
        self.worker.end()

    def reset_cache(self) -> bool | None:
        return True
