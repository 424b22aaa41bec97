"""The plugin as vLLM knows it: a KV connector, whose two halves sit beside the scheduler and beside the model."""

import logging
import uuid
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from vllm.distributed.kv_transfer import get_kv_transfer_group
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    SupportsHMA,
)

from linearkv.prompt import PromptFormat
from linearkv.settings import Settings
from linearkv.vllm import versions
from linearkv.vllm.asked import NAME, Compose, Index, Refused, parse
from linearkv.vllm.checks import check_config
from linearkv.vllm.counts import Counts
from linearkv.vllm.identify import checkpoint_folder, identify
from linearkv.vllm.jobs import JOBS, Job, Wanted
from linearkv.vllm.loaded import model_with
from linearkv.vllm.metrics import PromMetrics, Stats
from linearkv.vllm.serving import Loading, Options, Serving
from linearkv.vllm.worker import Blocks, Load, Step, StepTimer, Worker

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.request import Request

_log = logging.getLogger(__name__)

LOADING_AT_A_TIME = 2
"""Contexts that are made or wait for their step; each takes memory beside vLLM's."""
TIMED_TOKENS = 512
"""Tokens of prompts from which on a step tells how fast prompts are prefilled."""
INDEXED_AT_A_TIME = 4
"""Requests whose states are being made, or wait to be written."""
WAIT_S, IDLE_WAIT_S = 0.0005, 0.01
"""How long a step waits for a context that is on its way: no longer than other requests would notice; and in an engine
that has nothing else to do, whose turning would only take time from the thread that makes the context."""


@dataclass
class StepPlan(KVConnectorMetadata):
    """What the half beside the scheduler tells the half beside the model of one step."""

    loads: list[Load] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    ended: list[Job] = field(default_factory=list)
    """Of requests that ended, whatever was kept of them."""
    loaded: list[Loading] = field(default_factory=list)
    """Contexts that are not needed once the step is computed."""
    timed: int = 0
    """Tokens of prompts in a step that tells how fast prompts are prefilled; 0 for any other."""


@dataclass
class _Tracked:
    """A request of ours in the scheduler.

    Attributes:
        asked: what a request from outside asks; None for one of this process.
        loading: its context on the way; None before that begins, and once it is written.
        load: its context is to be written before its next step.
        loads: how often one was written.
    """

    job: Job
    prompt: list[int]
    asked: Compose | Index | None = None
    loading: Loading | None = None
    blocks: Blocks = ()
    load: bool = False
    loads: int = 0
    preemptions: int = 0
    length: int | None = None
    """Of its first context, 0 for none; None before there was one."""
    indexing: bool = False
    """It was admitted to be indexed, and holds states until it ends."""
    became: dict[str, Any] = field(default_factory=lambda: {"tokens": 0, "chunks": 0, "unknown": []})
    """What the answer says of a request that asked for a context."""


class LinearKVConnector(KVConnectorBase_V1, SupportsHMA):
    """Serves requests from composed contexts, and keeps chunk states while their prompts are prefilled.

    vLLM makes one for the scheduler and one for the model. Name it with
    `--kv-transfer-config '{"kv_connector": "LinearKVConnector", "kv_role": "kv_both", "kv_connector_extra_config":
    {"store": "store/"}}'`; see `linearkv.vllm.serving.Options`.
    """

    def __init__(self, vllm_config: "VllmConfig", role: KVConnectorRole, kv_cache_config: "KVCacheConfig") -> None:
        versions.check_version(vllm_config.device_config.device_type)
        if role is KVConnectorRole.SCHEDULER:
            versions.mend_cache_hits()
        super().__init__(vllm_config, role, kv_cache_config)
        check_config(vllm_config)
        self._options = Options.read(vllm_config.kv_transfer_config.kv_connector_extra_config)
        self._cache_config = kv_cache_config
        self._tracked: dict[str, _Tracked] = {}
        self._ended: list[Job] = []
        self._worker: Worker | None = None
        self.opened: Serving | None = None
        self._idle = False  # the last step had nothing to do
        self._timers: deque[StepTimer] = deque()  # of steps that may still be computed
        self._timed = False  # a step was; the first is not counted, since kernels may have been compiled in it
        self._refused: dict[str, dict[str, Any]] = {}  # what the answers of refused requests say, by their ids
        self.counts = Counts()

    # Beside the scheduler

    def on_new_request(self, request: "Request") -> None:
        given = request.kv_transfer_params  # whatever a client sent
        params = given.get(NAME) if isinstance(given, Mapping) else None
        if params is None:
            return
        tracked = self._tracked_for(request, params)
        if tracked is None:
            return
        # Blocks of a composed request hold what its tokens alone do not give: nobody else may find them.
        versions.salt(request, f"linearkv {uuid.uuid4()}")
        self._tracked[request.request_id] = tracked

    def _tracked_for(self, request: "Request", params: Any) -> _Tracked | None:
        prompt = list(request.prompt_token_ids or ())
        if isinstance(params, dict) and (job := JOBS.get(params.get("job"))) is not None:
            return _Tracked(job, prompt)
        try:
            asked = parse(params, len(prompt))
            if self._options.store is None:
                raise Refused("this server was started without a store")
            conditioning = self._options.conditioning
            if isinstance(asked, Index) and asked.kind == "chunk" and bool(asked.behind) == (conditioning == "none"):
                raise Refused(f"behind is {asked.behind}, and the store's chunks are indexed with {conditioning!r}")
            if request.lora_request is not None:
                raise Refused("states are of the model without adapters")
            if request.mm_features or getattr(request, "prompt_embeds", None) is not None:
                raise Refused("token ids do not say what images or embeddings stand in the prompt")
            if request.skip_reading_prefix_cache:
                raise Refused("every token of the prompt is to be computed, for its log-probability")
        except Refused as error:
            _log.warning("Request %s is served as any other: %s", request.request_id, error)
            self.counts.add(refused=1)
            indexing = isinstance(params, dict) and "index" in params
            said = {"indexed": False} if indexing else {"tokens": 0, "chunks": 0, "unknown": []}
            self._refused[request.request_id] = {**said, "reason": f"refused: {error}"}
            return None
        job = Job(wanted=Wanted(asked.behind, maps=asked.kind == "chunk") if isinstance(asked, Index) else None)
        return _Tracked(job, prompt, asked)

    def get_num_new_matched_tokens(self, request: "Request", num_computed_tokens: int) -> tuple[int | None, bool]:
        tracked = self._tracked.get(request.request_id)
        if tracked is None:
            return 0, False
        if tracked.preemptions != request.num_preemptions or num_computed_tokens:
            # Blocks of its former life must not be found again: they may end anywhere, and where they end is no state
            # of ours. Under another name there are none, from the next look on.
            tracked.preemptions = request.num_preemptions
            versions.salt(request, f"linearkv {uuid.uuid4()}")
            return None, False
        if tracked.asked is not None and not self._made(tracked):
            return None, False
        composed = tracked.job.composed
        return (0 if composed is None else composed.length), False

    def _made(self, tracked: _Tracked) -> bool:
        """Whether the context of a request is made, or cannot be; begins to make it otherwise."""
        asked = tracked.asked
        if isinstance(asked, Index) and not tracked.indexing:
            # States of requests that are indexed, or wait to be written, are as large whatever a chunk's length is.
            if sum(other.indexing for other in self._tracked.values()) + self.serving.writes >= INDEXED_AT_A_TIME:
                return False
            tracked.indexing = True
        if isinstance(asked, Index) and not asked.behind:
            return True
        if isinstance(asked, Compose) and tracked.length == 0:
            return True  # it was prefilled before it was preempted, and is again
        if tracked.loading is None:
            busy = sum(other.loading is not None for other in self._tracked.values())
            if busy >= LOADING_AT_A_TIME:
                return False
            wanted = asked if isinstance(asked, Compose) else Compose(asked.behind, ())  # type: ignore[union-attr]
            before = None if tracked.length is None else tracked.became["chunks"]
            tracked.loading = self.serving.begin(wanted, tracked.prompt, again=before)
        if not tracked.loading.ready(IDLE_WAIT_S if self._idle else WAIT_S):
            return False
        if not self._idle and not tracked.loading.arrived():
            return False  # in a step of its own it waits for its layers one by one; others would wait with it
        self._count(tracked, tracked.loading)
        tracked.job.composed = tracked.loading.composed
        if isinstance(asked, Index) and tracked.job.composed is None:
            tracked.job.wanted = None
            tracked.job.problem = tracked.loading.reason
        return True

    def _count(self, tracked: _Tracked, loading: Loading) -> None:
        if loading.counted:
            return
        loading.counted = True
        self.counts.add(bytes=loading.bytes, seconds=loading.seconds)
        length = loading.composed.length if loading.composed is not None else 0
        if tracked.length == length:
            return  # it goes on as it began, and what was said of it stays
        tracked.became = {"tokens": length, "chunks": loading.hits, "unknown": loading.unknown}
        if loading.reason:
            tracked.became["reason"] = loading.told
        if tracked.length is not None:
            _log.warning("A preempted request goes on from another context than before: %s", loading.reason)
            self.counts.add(changed=1)
            return
        tracked.length = length
        kind = loading.reason.partition(":")[0]
        if kind in ("refused", "failed", "planned"):
            _log.log(
                logging.DEBUG if kind == "planned" else logging.WARNING, "A request is prefilled: %s", loading.reason
            )
            self.counts.add(**{kind: 1})
        if isinstance(tracked.asked, Index):
            return
        if loading.composed is None:
            self.counts.add(prefilled=1)
        else:
            self.counts.add(
                composed=1, chunks=loading.hits, tokens=loading.composed.length, partly=bool(loading.reason)
            )

    def update_state_after_alloc(self, request: "Request", blocks: "KVCacheBlocks", num_external_tokens: int) -> None:
        tracked = self._tracked.get(request.request_id)
        if tracked is not None:
            tracked.blocks = blocks.get_block_ids()
            tracked.load = num_external_tokens > 0

    def build_connector_meta(self, scheduler_output: "SchedulerOutput") -> StepPlan:
        self._idle = not scheduler_output.total_num_scheduled_tokens
        plan = self._plan(scheduler_output)
        if self._options.store is not None and not plan.loads and not plan.steps:
            tokens = sum(count for count in scheduler_output.num_scheduled_tokens.values() if count > 1)
            plan.timed = tokens if tokens >= TIMED_TOKENS else 0
        return plan

    def _plan(self, scheduler_output: "SchedulerOutput") -> StepPlan:
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
                assert tracked.job.composed is not None  # its length was what vLLM was told
                plan.loads.append(Load(tracked.blocks, tracked.job.composed))
                tracked.load = False
                if isinstance(tracked.asked, Compose):
                    tracked.job.composed = None  # should it be needed again, it is made again
                tracked.loads += 1
                if tracked.loads > 1:
                    self.counts.add(recomposed=1)
            if tracked.loading is not None:
                plan.loaded.append(tracked.loading)
                tracked.loading = None
            start, prompt = starts[request_id], len(tracked.prompt)
            if tracked.job.wanted is not None and start < prompt:
                computed = min(tokens, prompt - start)
                plan.steps.append(Step(tracked.job, tracked.blocks, start, computed, prompt))
        return plan

    def request_finished(self, request: "Request", block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        return self.request_finished_all_groups(request, (block_ids,))

    def request_finished_all_groups(
        self, request: "Request", block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        tracked = self._tracked.pop(request.request_id, None)
        if tracked is None:
            said = self._refused.pop(request.request_id, None)
            return False, None if said is None else {NAME: said}
        self._ended.append(tracked.job)
        if tracked.loading is not None:
            self.serving.end(tracked.loading)
        if isinstance(tracked.asked, Compose):
            return False, {NAME: tracked.became}
        if tracked.asked is None:
            return False, None
        captured = tracked.job.captured
        if captured is None:
            return False, {NAME: {"indexed": False, "reason": tracked.job.problem or "the request ended early"}}
        self.serving.keep(tracked.asked, tracked.prompt, captured)
        return False, {NAME: {"indexed": True}}

    @property
    def serving(self) -> Serving:
        """The store, which the half beside the model has opened."""
        beside = self if self._worker is not None else get_kv_transfer_group()
        serving: Serving | None = beside.opened
        assert serving is not None
        return serving

    # Beside the model

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        layers = self._vllm_config.compilation_config.static_forward_context
        cached = {name: layers[name] for group in self._cache_config.kv_cache_groups for name in group.layer_names}
        vocab_size = self._vllm_config.model_config.hf_text_config.vocab_size
        self._worker = Worker(model_with(cached), cached, self._cache_config, vocab_size)
        if self._options.store is not None:
            self.opened = self._open_store(self._worker)

    def _open_store(self, worker: Worker) -> Serving:
        config = self._vllm_config
        text = config.model_config.hf_text_config
        primer_ids: list[int] = []
        if self._options.conditioning == "primer":
            primer_ids = PromptFormat(checkpoint_folder(config), text.vocab_size).primer_ids
        identity = identify(worker, config)
        return Serving(self._options, Settings(), worker, identity, text.layer_types, primer_ids, self.counts)

    @property
    def worker(self) -> Worker:
        assert self._worker is not None
        return self._worker

    @property
    def plan(self) -> StepPlan:
        plan = self._get_connector_metadata()
        assert isinstance(plan, StepPlan)
        return plan

    def bind_connector_metadata(self, connector_metadata: KVConnectorMetadata) -> None:
        super().bind_connector_metadata(connector_metadata)
        while self._timers and (seconds := self._timers[0].seconds()) is not None:
            timer = self._timers.popleft()
            if self._timed:
                self.serving.planner.prefill.saw(timer.tokens, seconds)
            self._timed = True
        for job in self.plan.ended:
            self.worker.forget(job)
        if self.plan.steps:
            self.worker.begin(self.plan.steps)
        if self.plan.timed:
            self._timers.append(StepTimer(self.plan.timed, self.worker.device))

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        if self.plan.loads:
            self.worker.load(self.plan.loads, kwargs.get("attn_metadata") or forward_context.attn_metadata)

    def wait_for_layer_load(self, layer_name: str) -> None:
        self.worker.arrive(layer_name)

    def save_kv_layer(self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: Any, **kwargs: Any) -> None:
        """Pages are not saved; states are kept as the model computes them."""

    def wait_for_save(self) -> None:
        self.worker.end()
        if self.plan.timed:
            self._timers[-1].stop()
        for loading in self.plan.loaded:
            self.serving.end(loading)

    def shutdown(self) -> None:
        if self.opened is not None:
            self.opened.close()
            self.opened = None

    def reset_cache(self) -> bool | None:
        """False: states are of the weights that the engine was started with, and stay; after others, start it again."""
        return False

    # Metrics

    def get_kv_connector_stats(self) -> Stats | None:
        new = self.counts.new()
        return Stats(new) if new else None

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> Stats:
        return Stats(data or {})

    @classmethod
    def build_prom_metrics(cls, *args: Any, **kwargs: Any) -> PromMetrics:
        return PromMetrics(*args, **kwargs)
