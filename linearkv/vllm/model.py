"""A model that vLLM runs, in this process, as the engine sees it."""

import gc
import json
import os
import threading
import uuid
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from transformers import GenerationConfig

from linearkv.errors import LinearKVError, UnsupportedModelError
from linearkv.identity import WEIGHT_FILES, ModelIdentity, digest_folder
from linearkv.kernels.relocate import relocate
from linearkv.models import GDNModel, Sampling
from linearkv.models.base import TokenIds
from linearkv.models.loading import REFERENCE
from linearkv.models.widening import widen_heads
from linearkv.states import ChunkState, Context, PrefixState
from linearkv.vllm import CONNECTOR, register, versions
from linearkv.vllm.composed import Composed
from linearkv.vllm.identify import identify
from linearkv.vllm.jobs import JOBS, Captured, Job, Wanted
from linearkv.vllm.worker import Worker

REFERENCE_HEAD_DIM = 64
"""Of the reference model in vLLM, whose CPU attention has no kernel for its own 16."""
PLACEHOLDER = 0
"""Token id in the place of a context's tokens: vLLM is given what they computed, and never computes them."""


class VLLMModel(GDNModel):
    """A checkpoint in a vLLM engine of this process.

    Contexts go into vLLM's blocks, and what is computed behind them is vLLM's: its kernels, its scheduler, its batches.

    Args:
        source: `"reference"`, or a checkpoint folder.
        options: of `vllm.LLM`, beside those LinearKV needs.

    Attributes:
        llm: vLLM's own engine, which takes other requests as well, from the same thread.

    Raises:
        LinearKVError: vLLM is not installed, or in a release LinearKV was not run with.
        UnsupportedModelError: an engine that LinearKV does not serve, or a config.json that is none; the message names
            what.
        FileNotFoundError: no checkpoint in the folder.
    """

    has_servers = True

    def __init__(self, source: str | Path, **options: Any) -> None:
        versions.installed()
        # The engine's scheduler and model must be in this process: contexts are handed to them as they are.
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        register()
        import vllm
        from vllm.distributed.kv_transfer import has_kv_transfer_group

        if has_kv_transfer_group():
            raise LinearKVError("this process has an engine of vLLM already: close that first")
        self.folder = REFERENCE if str(source) == "reference" else Path(source)
        if not (self.folder / "config.json").is_file():
            raise FileNotFoundError(
                f"no checkpoint in {self.folder}: config.json is missing. "
                f"Give the folder of a Hugging Face checkpoint, or 'reference'"
            )
        # Published checkpoints are of the model that sees, whose processor vLLM makes, with its tokenizer, in any case.
        try:
            sees = "vision_config" in json.loads((self.folder / "config.json").read_text(encoding="utf-8"))
        except ValueError as error:
            raise UnsupportedModelError(f"{self.folder}/config.json cannot be read as a model: {error}") from error
        given: dict[str, Any] = {
            "dtype": "bfloat16",
            **({"language_model_only": True} if sees else {"skip_tokenizer_init": True}),
            "enforce_eager": True,
            "enable_prefix_caching": False,
            "mamba_ssm_cache_dtype": "float32",
            "kv_transfer_config": {"kv_connector": CONNECTOR, "kv_role": "kv_both"},
            **options,
        }
        with TemporaryDirectory(prefix="linearkv-") as folder:
            served = self.folder
            if self.folder == REFERENCE:
                served = Path(folder)
                widen_heads(REFERENCE, served, REFERENCE_HEAD_DIM)
            dummy = given.get("load_format") == "dummy"
            self._weights = None if dummy else digest_folder(served, WEIGHT_FILES)
            self.llm = vllm.LLM(str(served), **given)
        self._engine: Any = self.llm.llm_engine
        self._config = self._engine.vllm_config
        self.config = self._config.model_config.hf_text_config
        self._worker = _worker()
        self._one_at_a_time = threading.RLock()
        self._outputs: dict[str, list[Any]] = {}

    @property
    def device(self) -> torch.device:
        return self._worker.device

    @property
    def dtype(self) -> torch.dtype:
        return self._worker.dtype

    @property
    def architecture(self) -> str:
        return f"{type(self._worker.model).__name__} in vLLM"

    @property
    def max_length(self) -> int:
        return int(self._config.model_config.max_model_len)

    @property
    def stop_ids(self) -> tuple[int, ...]:
        assert self.folder is not None
        if not (self.folder / "generation_config.json").is_file():
            listed = self.config.eos_token_id
        else:
            listed = GenerationConfig.from_pretrained(self.folder, local_files_only=True).eos_token_id
        return () if listed is None else tuple(listed) if isinstance(listed, list) else (listed,)

    def identify(self) -> ModelIdentity:
        return identify(self._worker, self._config, self._weights)

    def rotary(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self._worker.rotary(positions)

    def prefill_prefix(self, token_ids: TokenIds) -> PrefixState:
        ids = _ids(token_ids)
        if not ids:
            return self.empty_prefix()
        (captured,) = self._capture([(None, ids)], Wanted(0, maps=False))
        return PrefixState(
            **_parts(captured, "recurrent", "conv_tail", "key", "value"),
            token_ids=torch.tensor(ids),
            rotary=self.rotary,
        )

    def prefill_chunks(
        self,
        prefix: PrefixState | Context | Sequence[Context],
        chunks: Sequence[TokenIds],
        *,
        batch_tokens: int = 8192,
    ) -> list[ChunkState]:
        """A request for each chunk; vLLM makes its own batches of them, so `batch_tokens` does nothing."""
        ids = [_ids(chunk) for chunk in chunks]
        captured = self._capture(list(zip(self._starts(prefix, ids), ids, strict=True)), Wanted(0))
        names = ("transition", "update", "conv_tail", "key", "value")
        return [
            ChunkState(**_parts(one, *names), token_ids=torch.tensor(chunk))
            for one, chunk in zip(captured, ids, strict=True)
        ]

    def prefill_many(
        self, sequences: Sequence[TokenIds], after: Sequence[Context | None] | None = None
    ) -> list[Context]:
        starts = [start if start is not None else self.empty_context() for start in after or [None] * len(sequences)]
        contexts = list(starts)
        work = [(place, ids) for place, sequence in enumerate(sequences) if (ids := _ids(sequence))]
        captured = self._capture([(starts[place], ids) for place, ids in work], Wanted(0, maps=False))
        for (place, ids), one in zip(work, captured, strict=True):
            contexts[place] = self._behind(starts[place], one, len(ids))
        return contexts

    def _behind(self, start: Context, captured: Captured, tokens: int) -> Context:
        parts = _parts(captured, "recurrent", "conv_tail", "key", "value")
        positions = torch.arange(start.length, start.length + tokens, device=self.device)
        key, value = relocate([parts["key"]], [parts["value"]], *self.rotary(positions))
        return Context(
            recurrent=parts["recurrent"],
            conv_tail=parts["conv_tail"],
            key=torch.cat([start.key, key], dim=1),
            value=torch.cat([start.value, value], dim=1),
            length=start.length + tokens,
        )

    def logits_many(self, contexts: Sequence[Context], sequences: Sequence[TokenIds]) -> list[torch.Tensor]:
        work = [(context, _ids(sequence)) for context, sequence in zip(contexts, sequences, strict=True)]
        return [_parts(one, "logits")["logits"] for one in self._capture(work, Wanted(0, maps=False, logits=True))]

    def generate_many(
        self,
        contexts: Sequence[Context],
        sequences: Sequence[TokenIds],
        max_new_tokens: int,
        *,
        stop: Sequence[int] | None = None,
    ) -> list[list[int]]:
        stop = self.stop_ids if stop is None else stop
        params = self._params(max_new_tokens, stop, Sampling())
        answers = self._run(
            [
                (context, _ids(sequence), params, Job(composed=_composed(context)))
                for context, sequence in zip(contexts, sequences, strict=True)
            ]
        )
        return [[token for token in answer if token not in stop] for answer in answers]

    def stream(
        self,
        context: Context,
        token_ids: TokenIds,
        max_new_tokens: int,
        *,
        stop: Sequence[int] | None = None,
        sampling: Sampling | None = None,
    ) -> Iterator[int]:
        stop = self.stop_ids if stop is None else stop
        ids = _ids(token_ids)
        params = self._params(max_new_tokens, stop, sampling or Sampling())
        tokens = self._tokens(*self._start(context, ids, params, Job(composed=_composed(context))))
        next(tokens)
        try:
            for token in tokens:
                if token in stop:
                    return
                yield token
        finally:
            tokens.close()

    def close(self) -> None:
        """Ends the engine and lets go of its memory; a second time does nothing."""
        from vllm.distributed.kv_transfer import ensure_kv_transfer_shutdown

        with self._one_at_a_time:
            if not hasattr(self, "llm"):
                return
            on_gpu = self.device.type == "cuda"
            self._engine.engine_core.shutdown()
            ensure_kv_transfer_shutdown()
            del self.llm, self._engine, self._worker, self._config
            gc.collect()  # an engine's parts refer to each other
            if on_gpu:
                torch.cuda.empty_cache()

    def _capture(self, work: Sequence[tuple[Context | None, list[int]]], wanted: Wanted) -> list[Captured]:
        """Prefills token ids, each behind its context, and returns what was to be kept of them."""
        params = self._params(1, (), Sampling())
        jobs = []
        for context, _ in work:
            start = context.length if context is not None else 0
            jobs.append(Job(composed=_composed(context), wanted=Wanted(start, wanted.maps, wanted.logits)))
        self._run([(context, ids, params, job) for (context, ids), job in zip(work, jobs, strict=True)])
        return [_done(job) for job in jobs]

    def _run(self, work: Sequence[tuple[Context | None, list[int], Any, Job]]) -> list[list[int]]:
        """The tokens of several requests, together; of none if one is refused or interrupted."""
        streams: list[Generator[int, None, None]] = []
        with ExitStack() as started:
            for one in work:
                stream = self._tokens(*self._start(*one))
                next(stream)
                started.callback(stream.close)
                streams.append(stream)
            return [list(stream) for stream in streams]

    def _params(self, max_new_tokens: int, stop: Sequence[int], sampling: Sampling) -> Any:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        return SamplingParams(
            temperature=sampling.temperature,
            top_k=sampling.top_k,
            top_p=sampling.top_p,
            seed=sampling.seed,
            max_tokens=max_new_tokens,
            stop_token_ids=list(stop),
            ignore_eos=True,  # what ends an answer is said by `stop` alone
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )

    def _start(self, context: Context | None, ids: list[int], params: Any, job: Job) -> tuple[str, int]:
        """Gives the engine a request; its id, and the number of its job."""
        if not ids:
            raise LinearKVError("at least one token must follow the context")
        before = context.length if context is not None else 0
        limit = self.max_length
        if before + len(ids) + params.max_tokens > limit:
            raise LinearKVError(
                f"{before + len(ids)} tokens and an answer of {params.max_tokens} do not fit the {limit} positions "
                f"that vLLM was started with (max_model_len)"
            )
        if before + len(ids) == 1 and self.device.type == "cpu":
            raise LinearKVError("vLLM's CPU backend cannot compute a prompt of one token")
        number = JOBS.add(job)
        params = params.clone()
        params.extra_args = {"kv_transfer_params": {"linearkv": {"job": number}}}
        name = uuid.uuid4().hex
        with self._one_at_a_time:
            self._outputs[name] = []
            try:
                self._engine.add_request(name, {"prompt_token_ids": [PLACEHOLDER] * before + ids}, params)
            except BaseException:
                del self._outputs[name]
                JOBS.remove(number)
                raise
        return name, number

    def _tokens(self, name: str, number: int) -> Generator[int, None, None]:
        """The tokens of a request as they come; runs the engine, for all requests, whenever there are none yet.

        The first is no token: with it the request is in this generator's care, and closing it ends the request.
        """
        ended = False
        try:
            yield -1
            while not ended:
                with self._one_at_a_time:
                    while not (outputs := self._outputs[name]):
                        for output in self._engine.step():
                            if output.request_id in self._outputs:
                                self._outputs[output.request_id].append(output)
                    self._outputs[name] = []
                for output in outputs:
                    ended = ended or output.finished
                    yield from output.outputs[0].token_ids
        finally:
            with self._one_at_a_time:
                if not ended and hasattr(self, "llm"):  # a closed engine has no requests
                    self._engine.abort_request([name])
                del self._outputs[name]
                JOBS.remove(number)


def _worker() -> Worker:
    """The half of the connector that sits beside the model of the engine that was just made."""
    from vllm.distributed.kv_transfer import get_kv_transfer_group

    worker: Worker = get_kv_transfer_group().worker
    return worker


def _ids(token_ids: TokenIds) -> list[int]:
    ids: list[int] = token_ids.tolist() if isinstance(token_ids, torch.Tensor) else list(token_ids)
    return ids


def _composed(context: Context | None) -> Composed | None:
    return Composed.of(context) if context is not None and context.length else None


def _parts(captured: Captured, *names: str) -> dict[str, torch.Tensor]:
    return {name: getattr(captured, name) for name in names}


def _done(job: Job) -> Captured:
    if job.captured is None:
        raise LinearKVError(job.problem or "vLLM ended a request before its prompt was prefilled")
    return job.captured
