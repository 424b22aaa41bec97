"""From retrieved chunks to an answer: identify and restore, compose, prefill the question, decode.

Restoring is `linearkv.state_cache`, composing `linearkv.composition`, prefilling and decoding `linearkv.models`; this
module is the path through them, and what is said of it afterwards.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain

from linearkv.answers import Answer, CacheUse, Source, Timings
from linearkv.composition import compose
from linearkv.errors import LinearKVError
from linearkv.models import GDNModel, Sampling
from linearkv.planner import RESTORE_ALL, Choice
from linearkv.prompt import PromptFormat
from linearkv.retrieval import Hit
from linearkv.state_cache import ChunkTokens, Restored, StateCache
from linearkv.states import Context, PrefixState


@dataclass(frozen=True)
class Plan:
    """Which chunks stand where in the prompt, and how the state before the question comes about."""

    found: list[Hit]
    pivot: int
    order: str
    mode: str
    restore: str = "auto"

    @property
    def in_prompt_order(self) -> list[Hit]:
        """Best first; pivot chunks last, the best of them at the very end."""
        return [*self.found[self.pivot :], *reversed(self.found[: self.pivot])]

    @property
    def name(self) -> str:
        if self.mode == "full":
            return "full"
        return f"{self.order}_pivot{self.pivot}" if self.pivot else self.order


class AnswerStream(Iterator[str]):
    """The pieces of an answer as they are generated. `answer` is there once they are used up."""

    def __init__(
        self,
        model: GDNModel,
        prompt: PromptFormat,
        states: StateCache,
        prefix: PrefixState,
        plan: Plan,
        question_ids: list[int],
        retrieve_s: float,
        max_new_tokens: int,
        sampling: Sampling,
    ) -> None:
        self._model = model
        self._prompt = prompt
        self._states = states
        self._prefix = prefix
        self._plan = plan
        self._question_ids = question_ids
        self._retrieve_s = retrieve_s
        self._max_new_tokens = max_new_tokens
        self._sampling = sampling
        self._answer: Answer | None = None
        self._chunks = [ChunkTokens.of(hit, prompt) for hit in plan.in_prompt_order]
        self._check_length()
        self._pieces = self._run()

    def __next__(self) -> str:
        return next(self._pieces)

    @property
    def answer(self) -> Answer:
        """The whole answer; LinearKVError before the last piece was taken."""
        if self._answer is None:
            raise LinearKVError("the answer is not complete: take all pieces of the stream first")
        return self._answer

    def _run(self) -> Iterator[str]:
        plan, prompt = self._plan, self._prompt
        if not plan.found:
            self._finish([], "no documents", CacheUse(0, 0, 0, 0, 0), (0.0, 0.0, 0.0, 0.0))
            return
        started = time.perf_counter()
        chunks = self._chunks
        planner = self._states.planner
        composed = chunks[: len(chunks) - plan.pivot] if plan.mode == "composed" else []
        choice = self._choose(composed)
        if choice.full:
            composed = []
            plan = self._plan = replace(plan, mode="full")
        tail = [*chain.from_iterable(c.token_ids for c in chunks[len(composed) :]), *self._question_ids]
        if plan.mode == "full":
            restored_at = started
            context = self._model.empty_context()
            tail = [*prompt.prefix_ids, *tail]
            cache = CacheUse(len(chunks), 0, 0, len(tail), 0, {"full": len(chunks)}, plan=choice.why)
            composed_at = time.perf_counter()
        else:
            restored = self._states.restore(composed, choice.recompute)
            restored_at = time.perf_counter()
            context = compose(self._prefix, restored.states, plan.order)
            self._model.synchronize()
            composed_at = time.perf_counter()
            planner.saw_compose(len(composed), composed_at - restored_at)
            cache = _cache_use(context, composed, restored, plan.pivot, len(tail), choice.why)

        ids: list[int] = []
        sent = 0
        first_at = composed_at
        decode_s = 0.0
        tokens = self._model.stream(
            context, tail, self._max_new_tokens, stop=tuple(prompt.stop_ids), sampling=self._sampling
        )
        while True:
            # Only the model's own time counts: whoever takes the pieces may take long over each.
            asked_at = time.perf_counter()
            token = next(tokens, None)
            if ids:
                decode_s += time.perf_counter() - asked_at
            else:
                first_at = time.perf_counter()
                if plan.mode == "full":
                    planner.prefill.saw(len(tail), first_at - composed_at)
            if token is None:
                break
            ids.append(token)
            text = prompt.decode(ids)
            # A character of several tokens decodes to a replacement mark until its last token is there.
            if len(text) > sent and not text.endswith("\ufffd"):
                yield text[sent:]
                sent = len(text)
        finish = "length" if len(ids) == self._max_new_tokens else "stop"
        self._finish(
            ids, finish, cache, (restored_at - started, composed_at - restored_at, first_at - composed_at, decode_s)
        )
        if rest := prompt.decode(ids)[sent:]:
            yield rest

    def _finish(self, ids: list[int], finish: str, cache: CacheUse, seconds: tuple[float, float, float, float]) -> None:
        restore_s, compose_s, prefill_s, decode_s = seconds
        self._answer = Answer(
            text=self._prompt.decode(ids).strip(),
            sources=[_source(hit, position) for position, hit in enumerate(self._plan.in_prompt_order)],
            cache=cache,
            timings=Timings(
                retrieve_s=self._retrieve_s,
                restore_s=restore_s,
                compose_s=compose_s,
                prefill_s=prefill_s,
                ttft_s=self._retrieve_s + restore_s + compose_s + prefill_s,
                decode_s=decode_s,
            ),
            mode=self._plan.name,
            finish=finish,
            tokens=len(ids),
        )

    def _choose(self, composed: list[ChunkTokens]) -> Choice:
        """What to restore, what to prefill again, and whether to compose at all, as `Plan.restore` says."""
        if not composed or self._plan.restore == "always":
            return RESTORE_ALL
        if self._plan.restore == "never":
            return Choice(frozenset(range(len(composed))), False, "restore is never: every chunk was prefilled")
        return self._states.choose(composed, len(self._prompt.prefix_ids))

    def _check_length(self) -> None:
        """Refuses a prompt that does not fit the model, before anything is computed."""
        question, chunks = len(self._question_ids), sum(len(chunk.token_ids) for chunk in self._chunks)
        length = len(self._prompt.prefix_ids) + chunks + question
        limit = self._model.max_length
        if length + self._max_new_tokens > limit:
            advice = (
                "shorten the question"
                if question > chunks
                else f"ask for fewer chunks (k={len(self._chunks)}) or index with smaller ones"
            )
            raise LinearKVError(
                f"a prompt of {length} tokens ({question} of them the question's) and an answer of "
                f"{self._max_new_tokens} do not fit the model's {limit} positions: {advice}"
            )


def _cache_use(
    context: Context, stored: list[ChunkTokens], restored: Restored, pivot: int, tail: int, why: str
) -> CacheUse:
    tiers = {tier: restored.tiers.count(tier) for tier in dict.fromkeys(restored.tiers)}
    if pivot:
        tiers["pivot"] = pivot
    computed = [tier in ("prefilled", "recomputed") for tier in restored.tiers]
    recomputed = sum(len(chunk.token_ids) for chunk, here in zip(stored, computed, strict=True) if here)
    return CacheUse(
        chunks=len(stored) + pivot,
        hits=len(stored) - sum(computed),
        reused_tokens=context.length - recomputed,
        computed_tokens=recomputed + tail,
        bytes_loaded=restored.bytes_loaded,
        tiers=tiers,
        damaged=restored.damaged,
        not_stored=restored.not_stored,
        plan=why,
    )


def _source(hit: Hit, position: int) -> Source:
    return Source(
        document=hit.path,
        heading=hit.heading,
        score=hit.score,
        position=position,
        text=hit.text,
        chunk_id=hit.chunk_id,
        line_start=hit.line_start,
        line_end=hit.line_end,
        also_in=tuple(hit.also_in),
    )
