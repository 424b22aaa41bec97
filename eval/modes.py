"""Ways to make the context that a question is answered from, side by side: the modes of the evaluation.

A mode is a function from a `Task` (one question, its chunks, several orders of them) to one `Prepared` context per
order. To add one, write the function and register it; it then stands in the same table as the others:

    from linearkv.eval.modes import Prepared, Task, mode

    @mode("halves", "the mean of sequential composition and of the prefix's state alone")
    def halves(task):
        for order in task.orders:
            context = task.composed(order, "sequential")
            mixed = (context.recurrent + task.prefix.recurrent) / 2
            yield Prepared(replace(context, recurrent=mixed), computed=0)
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch

from linearkv import ChunkState, Context, LinearKVError, PrefixState, compose, pack, unpack
from linearkv.eval.seam import cut_chunks, recompute_seams
from linearkv.models import GDNModel, TransformersModel

PREFIX_CACHE_BLOCK = 16
"""Tokens of a block in an exact prefix cache; vLLM's default."""


@dataclass(frozen=True)
class Prepared:
    """A context ready for the question.

    Attributes:
        context: what the question is answered from.
        computed: tokens of it that the mode had to run through the model at query time.
        chunk_bytes: bytes of stored chunk states that went into it.
        in_order: whether its tokens stand in the order given, so that they can be compared with full prefill's.
    """

    context: Context
    computed: int
    chunk_bytes: int = 0
    in_order: bool = True


@dataclass
class Task:
    """One question over its chunks, in several orders.

    Attributes:
        model, prefix: what answers, and the prefix that every prompt begins with.
        chunks: token ids of each chunk.
        orders: permutations of the chunks' indices.
        best: index of the chunk that retrieval ranks first; `pivot1` modes prefill it for real.
        behind: what chunks are prefilled behind; None is the prefix.
        primer: token ids of neutral chunks, for the `primer` modes.
        storage: storage policy of the states.
        kept: what strategies compute once for all modes of this task, under names of their own.
    """

    model: GDNModel
    prefix: PrefixState
    chunks: Sequence[Sequence[int]]
    orders: Sequence[Sequence[int]]
    best: int = 0
    behind: Context | None = None
    primer: Sequence[int] = ()
    storage: str = "fp16"
    kept: dict[str, Any] = field(default_factory=dict, repr=False)

    @cached_property
    def states(self) -> list[ChunkState]:
        """Of each chunk behind what the store's chunks stand behind, as the store would give them back."""
        return self._stored(self.model.prefill_chunks(self.behind or compose(self.prefix, []), self.chunks))

    def primed_states(self, times: int = 1) -> list[ChunkState]:
        """Of each chunk behind the prefix and so many copies of the primer, one after another; at most as many as leave
        the chunks room among the model's positions."""
        room = self.model.max_length - self.prefix.length - max(map(len, self.chunks), default=0)
        times = min(times, room // max(1, len(self.primer)))
        name = f"states behind {times} primers"
        if name not in self.kept:
            behind = compose(self.prefix, [])
            if times:
                behind = self.model.prefill(list(self.primer) * times, after=behind)
            self.kept[name] = self._stored(self.model.prefill_chunks(behind, self.chunks))
        states: list[ChunkState] = self.kept[name]
        return states

    @cached_property
    def zero_start_states(self) -> list[ChunkState]:
        """Of each chunk behind nothing."""
        return self._stored(self.model.prefill_chunks(self.model.empty_prefix(), self.chunks))

    @cached_property
    def full(self) -> list[Context]:
        """Full prefill of every order."""
        return self.prefilled(self.orders)

    def tokens(self, order: Sequence[int]) -> list[int]:
        """Token ids of the chunks in an order."""
        return [token for index in order for token in self.chunks[index]]

    def prefilled(self, orders: Sequence[Sequence[int]]) -> list[Context]:
        """Full prefill of prefix and chunks, split behind the prefix as the engine splits it."""
        start = compose(self.prefix, [])
        return self.model.prefill_many([self.tokens(order) for order in orders], [start] * len(orders))

    def composed(self, order: Sequence[int], kind: str, states: Sequence[ChunkState] | None = None) -> Context:
        """Composition in an order; `kind` as in `linearkv.compose`."""
        states = self.states if states is None else states
        return compose(self.prefix, [states[index] for index in order], order=kind)

    def chunk_bytes(self, order: Sequence[int]) -> int:
        return sum(self.states[index].nbytes for index in order)

    def _stored(self, states: Sequence[ChunkState]) -> list[ChunkState]:
        return [unpack(pack(state, self.model.layer_types, self.storage)) for state in states]


Strategy = Callable[[Task], Iterable[Prepared]]


@dataclass(frozen=True)
class Mode:
    """A registered mode. `same_answers_as` names a mode whose contexts it shares, so that nothing is answered twice."""

    name: str
    about: str
    prepare: Strategy
    same_answers_as: str = ""
    inside: bool = False
    """It computes with the model's layers one by one, which only a model that transformers runs allows."""


MODES: dict[str, Mode] = {}
"""Every known mode by name, in the order of the table."""


def mode(name: str, about: str, same_answers_as: str = "", inside: bool = False) -> Callable[[Strategy], Strategy]:
    """Registers a mode under a name."""

    def register(strategy: Strategy) -> Strategy:
        MODES[name] = Mode(name, about, strategy, same_answers_as, inside)
        return strategy

    return register


def find_modes(names: Sequence[str], model: GDNModel | None = None) -> list[Mode]:
    """The modes of these names; `full`, the baseline of every comparison, comes first whether named or not.

    Raises:
        LinearKVError: an unknown name, or one that `model` cannot do.
    """
    unknown = [name for name in names if name not in MODES]
    if unknown:
        raise LinearKVError(f"unknown modes {', '.join(unknown)}: expected some of {', '.join(MODES)}")
    found = [MODES[name] for name in dict.fromkeys(["full", *names])]
    within = [mode.name for mode in found if mode.inside]
    if within and model is not None and not isinstance(model, TransformersModel):
        raise LinearKVError(
            f"{', '.join(within)} computes layer by layer, which {model.architecture} does not allow where it runs: "
            f"leave it out, or evaluate with the model as transformers runs it"
        )
    return found


@mode("full", "full prefill of the same prompt: the ceiling")
def _full(task: Task) -> Iterable[Prepared]:
    return [Prepared(context, context.length) for context in task.full]


def _composed_in(kind: str) -> Strategy:
    def prepare(task: Task) -> Iterable[Prepared]:
        return [Prepared(task.composed(order, kind), 0, task.chunk_bytes(order)) for order in task.orders]

    return prepare


mode("sequential", "states composed in the order given")(_composed_in("sequential"))
mode("bidirectional", "the mean of that order and its reverse")(_composed_in("bidirectional"))
mode("cyclic", "the mean of all rotations")(_composed_in("cyclic"))


def _pivot_in(kind: str) -> Strategy:
    def prepare(task: Task) -> Iterable[Prepared]:
        rests = [[index for index in order if index != task.best] for order in task.orders]
        pivot = task.chunks[task.best]
        contexts = task.model.prefill_many([pivot] * len(rests), [task.composed(rest, kind) for rest in rests])
        return [
            Prepared(context, len(pivot), task.chunk_bytes(rest), in_order=False)
            for context, rest in zip(contexts, rests, strict=True)
        ]

    return prepare


for _kind in ("sequential", "bidirectional", "cyclic"):
    mode(f"{_kind}_pivot1", f"{_kind}, the best chunk put last and prefilled for real")(_pivot_in(_kind))


def _best_last(task: Task) -> list[list[int]]:
    """The orders with the best chunk moved to the end, as the pivot modes have them."""
    return [[index for index in order if index != task.best] + [task.best] for order in task.orders]


@mode("full_best_last", "full prefill, the best chunk put last: what moving it does, for comparison with a pivot")
def _full_best_last(task: Task) -> Iterable[Prepared]:
    return [Prepared(context, context.length, in_order=False) for context in task.prefilled(_best_last(task))]


@mode("sequential_best_last", "sequential, the best chunk put last and not prefilled again")
def _sequential_best_last(task: Task) -> Iterable[Prepared]:
    for order in _best_last(task):
        yield Prepared(task.composed(order, "sequential"), 0, task.chunk_bytes(order), in_order=False)


def _primed_in(kind: str) -> Strategy:
    def prepare(task: Task) -> Iterable[Prepared]:
        for order in task.orders:
            yield Prepared(task.composed(order, kind, task.primed_states()), 0, task.chunk_bytes(order))

    return prepare


mode("primer", "chunks prefilled behind the prefix and a few neutral chunks, composed in the order given")(
    _primed_in("sequential")
)
mode("primer_bidirectional", "the same, and the mean of that order and its reverse")(_primed_in("bidirectional"))


def _primed_by_depth(most: int, maps_too: bool = True) -> Strategy:
    """Each chunk from behind the number of primers, at most `most`, that is nearest to the depth at which it lands."""

    def prepare(task: Task) -> Iterable[Prepared]:
        for order in task.orders:
            states, depth = [], 0
            for index in order:
                times = min(most, round(depth / max(1, len(task.primer))))
                primed = task.primed_states(times)[index]
                if not maps_too:
                    primed = replace(task.primed_states(0)[index], key=primed.key, value=primed.value)
                states.append(primed)
                depth += len(task.chunks[index])
            yield Prepared(compose(task.prefix, states, order="sequential"), 0, task.chunk_bytes(order))

    return prepare


mode("primer_late", "primed chunks where they land further back, the others where they land behind the prefix")(
    _primed_by_depth(1)
)
mode("primer_late_kv", "the same for keys and values alone: states from behind the prefix")(_primed_by_depth(1, False))
mode("primer_by_depth", "chunks from behind as many primers as are nearest to the depth at which they land")(
    _primed_by_depth(99)
)
mode("primer_by_depth_kv", "the same for keys and values alone: states from behind the prefix")(
    _primed_by_depth(99, False)
)


@mode("zero_start", "chunks prefilled from nothing, composed in the order given behind the prefix's state")
def _zero_start(task: Task) -> Iterable[Prepared]:
    for order in task.orders:
        yield Prepared(task.composed(order, "sequential", task.zero_start_states), 0, task.chunk_bytes(order))


def _seamed(length: int, kind: str) -> Strategy:
    def prepare(task: Task) -> Iterable[Prepared]:
        assert isinstance(task.model, TransformersModel)  # find_modes has seen to it
        name = f"chunks cut behind {length} tokens"
        if name not in task.kept:
            task.kept[name] = cut_chunks(task.model, task.chunks, length)
        made = recompute_seams(task.model, task.prefix, task.kept[name], task.orders, kind)
        for order, context in zip(task.orders, made, strict=True):
            computed = sum(min(length, len(task.chunks[index])) for index in order)
            yield Prepared(context, computed, task.chunk_bytes(order))

    return prepare


mode(
    "zero_start_seam8",
    "zero-start, the first 8 tokens of each chunk recomputed from composed states (HYPIC's recipe)",
    inside=True,
)(_seamed(8, "sequential"))
mode("zero_start_seam8_cyclic", "the same seams, and the mean of all rotations", inside=True)(_seamed(8, "cyclic"))


@mode("additive", "updates added up, no transitions")
def _additive(task: Task) -> Iterable[Prepared]:
    for order in task.orders:
        context = task.composed(order, "sequential")
        total = task.prefix.recurrent + sum(task.states[index].update.float() for index in order)
        yield Prepared(replace(context, recurrent=total), 0, task.chunk_bytes(order))


@mode("last_state", "the state of the last chunk alone, all keys and values")
def _last_state(task: Task) -> Iterable[Prepared]:
    for order in task.orders:
        last = compose(task.prefix, [task.states[order[-1]]]).recurrent
        yield Prepared(replace(task.composed(order, "sequential"), recurrent=last), 0, task.chunk_bytes(order))


@mode("zero_state", "an ablation: all keys and values, recurrent states of zero")
def _zero_state(task: Task) -> Iterable[Prepared]:
    for order in task.orders:
        context = task.composed(order, "sequential")
        yield Prepared(replace(context, recurrent=torch.zeros_like(context.recurrent)), 0, task.chunk_bytes(order))


def _canonical(task: Task) -> list[int]:
    """The order of the chunks that does not depend on the order given: by their token ids."""
    return sorted(range(len(task.chunks)), key=lambda index: list(task.chunks[index]))


@mode("full_canonical", "full prefill with the chunks sorted, the same for every order given")
def _full_canonical(task: Task) -> Iterable[Prepared]:
    context = task.prefilled([_canonical(task)])[0]
    return [Prepared(context, context.length, in_order=False)] * len(task.orders)


@mode("sequential_canonical", "sequential composition with the chunks sorted, the same for every order given")
def _sequential_canonical(task: Task) -> Iterable[Prepared]:
    order = _canonical(task)
    prepared = Prepared(task.composed(order, "sequential"), 0, task.chunk_bytes(order), in_order=False)
    return [prepared] * len(task.orders)


@mode("prefix_cache", "full prefill, less what an exact prefix cache has of other questions", same_answers_as="full")
def _prefix_cache(task: Task) -> Iterable[Prepared]:
    """Of other questions' prompts a cache has the prefix, in whole blocks; their chunks stand in other places."""
    reused = task.prefix.length // PREFIX_CACHE_BLOCK * PREFIX_CACHE_BLOCK
    return [Prepared(context, context.length - reused) for context in task.full]


@mode("prefix_only", "the prefix and no documents")
def _prefix_only(task: Task) -> Iterable[Prepared]:
    return [Prepared(compose(task.prefix, []), 0)] * len(task.orders)


@mode("no_context", "the question alone, not even the prefix")
def _no_context(task: Task) -> Iterable[Prepared]:
    return [Prepared(task.model.empty_context(), 0)] * len(task.orders)
