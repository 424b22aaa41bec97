"""Contexts on their way into vLLM, a few layers at a time: the first can be used while the last is still arriving."""

import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import torch

from linearkv.cache import Page
from linearkv.composition import compose
from linearkv.states import ChunkState, Context, PrefixState
from linearkv.storage import unpack

LAYERS_AT_A_TIME = 4
"""Layers of a part: few enough that the first is soon there, many enough that each copy is large."""


class Part(NamedTuple):
    """Some layers of a context."""

    gdn: slice
    """Which, among the GDN layers."""
    attention: slice
    """Which, among the attention layers."""
    context: Context
    """Of these layers alone."""
    ready: torch.cuda.Event | None
    """When a GPU has it; None where nothing is to be waited for."""


@dataclass(frozen=True)
class Composed:
    """A context in parts, in the order of the layers."""

    length: int
    parts: Sequence[Part]

    @classmethod
    def of(cls, context: Context) -> "Composed":
        """A whole context."""
        gdn, attention = slice(0, len(context.recurrent)), slice(0, len(context.key))
        return cls(context.length, [Part(gdn, attention, context, None)])

    @property
    def recurrent(self) -> torch.Tensor:
        """`[Lg, H, K, V]` of all layers."""
        return torch.cat([part.context.recurrent for part in self.parts])


def compose_in_parts(
    prefix: PrefixState,
    states: Sequence[ChunkState | Page],
    order: str,
    layer_types: Sequence[str],
    stream: "torch.cuda.Stream | None" = None,
) -> Composed:
    """`linearkv.compose` of states that are on the prefix's device, or in pages still in host memory.

    Args:
        layer_types: of the model.
        stream: where a GPU is to do it, in the order of the layers; this returns before it is done. None on a CPU.
    """
    device = prefix.recurrent.device
    arriving = device.type != "cpu" and any(isinstance(state, Page) for state in states)
    groups = list(_groups(layer_types, LAYERS_AT_A_TIME if arriving else len(layer_types)))
    sources = [state if isinstance(state, ChunkState) else _Arriving(state, groups, device) for state in states]
    parts = []
    with torch.inference_mode(), torch.cuda.stream(stream):
        for number, group in enumerate(groups):
            some = [
                source.layers(group.gdn, group.attention) if isinstance(source, ChunkState) else source.layers(number)
                for source in sources
            ]
            context = compose(prefix.layers(group.gdn, group.attention), some, order)
            ready = None
            if stream is not None:
                ready = torch.cuda.Event()
                ready.record(stream)
            parts.append(Part(group.gdn, group.attention, context, ready))
    return Composed(parts[0].context.length, parts)


class _Group(NamedTuple):
    """Layers that arrive together."""

    first: int
    last: int
    gdn: slice
    attention: slice


def _groups(layer_types: Sequence[str], size: int) -> Iterator[_Group]:
    """The layers in groups of about `size`, each with layers of both kinds."""
    kinds = set(layer_types)
    cuts = [0]
    for last in range(size, len(layer_types)):
        if last - cuts[-1] >= size and set(layer_types[cuts[-1] : last]) == set(layer_types[last:]) == kinds:
            cuts.append(last)
    gdn = attention = 0
    for first, last in pairwise([*cuts, len(layer_types)]):
        some = layer_types[first:last]
        more, others = some.count("linear_attention"), some.count("full_attention")
        yield _Group(first, last, slice(gdn, gdn + more), slice(attention, attention + others))
        gdn, attention = gdn + more, attention + others


class _Arriving:
    """A page in host memory as the state it holds, brought to a device group by group.

    A hundred chunks of sixty layers are many tensors. This looks at each of them once in the life of a page, moves a
    group in one copy, and takes what lies evenly apart as one tensor.
    """

    def __init__(self, page: Page, groups: Sequence[_Group], device: torch.device) -> None:
        self._page = page
        self._device = device
        known = _spans.get(page)
        if known is None or known[0] != groups:
            known = _spans[page] = (groups, [_span(page, kinds) for kinds in _by_kind(page, groups)])
        self._groups = known[1]

    def layers(self, group: int) -> ChunkState:
        """The state's layers of one group, on the device."""
        span = self._groups[group]
        if span is None:
            return unpack(self._named(group))
        moved = self._page.buffer[span.first : span.last].to(self._device, non_blocking=True)
        typed = {dtype: moved[: moved.numel() // dtype.itemsize * dtype.itemsize].view(dtype) for dtype in span.dtypes}
        begin = moved.storage_offset()
        parts = {
            kind: typed[dtype].as_strided(shape, strides, begin // dtype.itemsize + place)
            for kind, dtype, shape, strides, place in span.tensors
        }
        return ChunkState(**parts, token_ids=self._page.tensors["token_ids"])

    def _named(self, group: int) -> dict[str, torch.Tensor]:
        first, last, *_ = _spans[self._page][0][group]
        names = [name for name in self._page.tensors if name[0].isdigit() and first <= _layer(name) < last]
        return {**self._page.tensors_on(self._device, names), "token_ids": self._page.tensors["token_ids"]}


class _Span(NamedTuple):
    """Where in a page the layers of a group lie, each kind of tensor evenly apart."""

    first: int
    last: int
    """Bytes."""
    dtypes: set[torch.dtype]
    tensors: list[tuple[str, torch.dtype, tuple[int, ...], tuple[int, ...], int]]
    """Kind, dtype, shape, strides and place of the first element, in elements from `first`."""


_spans: "weakref.WeakKeyDictionary[Page, tuple[Sequence[_Group], list[_Span | None]]]" = weakref.WeakKeyDictionary()


def _by_kind(page: Page, groups: Sequence[_Group]) -> list[dict[str, list[torch.Tensor]]]:
    """A page's tensors of every group, by kind, in the order of the layers."""
    of_layer = [number for number, group in enumerate(groups) for _ in range(group.first, group.last)]
    found: list[dict[str, list[torch.Tensor]]] = [{} for _ in groups]
    for name, tensor in page.tensors.items():
        if name[0].isdigit():
            found[of_layer[_layer(name)]].setdefault(name.partition(".")[2], []).append(tensor)
    return found


def _span(page: Page, kinds: dict[str, list[torch.Tensor]]) -> _Span | None:
    """None where tensors of a kind differ in dtype, or do not lie evenly apart."""
    if "kept" in kinds:  # packed transitions, of as many heads as each layer has
        return None
    begin = page.buffer.data_ptr()
    places = {kind: [tensor.data_ptr() - begin for tensor in tensors] for kind, tensors in kinds.items()}
    # From the first tensor on, which begins the buffer it is moved to: there it, and what follows it, is on 16 bytes.
    first = min(map(min, places.values())) // 8 * 8
    last = max(place + t.nbytes for kind, some in kinds.items() for place, t in zip(places[kind], some, strict=True))
    tensors = []
    for kind, some in kinds.items():
        dtype, shape, at = some[0].dtype, some[0].shape, places[kind]
        apart = at[1] - at[0] if len(at) > 1 else 0
        even = all(b - a == apart for a, b in pairwise(at)) and apart % dtype.itemsize == 0
        if not even or any(tensor.dtype != dtype for tensor in some):
            return None
        strides = (apart // dtype.itemsize, *some[0].stride())
        tensors.append((kind, dtype, (len(some), *shape), strides, (at[0] - first) // dtype.itemsize))
    return _Span(first, last, {dtype for _, dtype, *_ in tensors}, tensors)


def _layer(name: str) -> int:
    return int(name.partition(".")[0])
