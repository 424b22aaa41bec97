"""Contexts on their way into vLLM, a few layers at a time: the first can be used while the last is still arriving."""

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

    A hundred chunks of sixty layers are many tensors: this looks at each of them once, moves a group in one copy, and
    takes what lies evenly apart as one tensor.
    """

    def __init__(self, page: Page, groups: Sequence[_Group], device: torch.device) -> None:
        self._page = page
        self._device = device
        of_layer = [number for number, group in enumerate(groups) for _ in range(group.first, group.last)]
        self._tensors: list[dict[str, list[torch.Tensor]]] = [{} for _ in groups]
        for name, tensor in page.tensors.items():
            layer, _, kind = name.partition(".")
            if layer.isdigit():
                self._tensors[of_layer[int(layer)]].setdefault(kind, []).append(tensor)

    def layers(self, group: int) -> ChunkState:
        """The state's layers of one group, on the device."""
        tensors = self._tensors[group]
        if "kept" in tensors:  # packed transitions, of as many heads as each layer has
            return unpack(self._named(group))
        begin = self._page.buffer.data_ptr()
        places = [(tensor.data_ptr() - begin, tensor.nbytes) for some in tensors.values() for tensor in some]
        first, last = min(place for place, _ in places), max(place + size for place, size in places)
        first -= first % 256  # what is aligned in the page stays aligned
        moved = self._page.buffer[first:last].to(self._device, non_blocking=True)
        parts = {kind: _as_one(some, moved, begin + first) for kind, some in tensors.items()}
        return ChunkState(**parts, token_ids=self._page.tensors["token_ids"])

    def _named(self, group: int) -> dict[str, torch.Tensor]:
        wanted = {id(tensor) for some in self._tensors[group].values() for tensor in some}
        names = [name for name, tensor in self._page.tensors.items() if id(tensor) in wanted]
        return {**self._page.tensors_on(self._device, names), "token_ids": self._page.tensors["token_ids"]}


def _as_one(tensors: Sequence[torch.Tensor], moved: torch.Tensor, begin: int) -> torch.Tensor:
    """Host tensors of one shape, one after another, in the buffer that their bytes from address `begin` were moved to.

    A view of it where they lie evenly apart, a copy where not; in the widest dtype of any.
    """
    dtype, shape = tensors[0].dtype, tensors[0].shape
    places = [tensor.data_ptr() - begin for tensor in tensors]
    apart = places[1] - places[0] if len(places) > 1 else 0
    size = dtype.itemsize
    even = apart % size == 0 and all(b - a == apart for a, b in pairwise(places))
    if even and all(tensor.dtype == dtype for tensor in tensors):
        typed = moved[: moved.numel() // size * size].view(dtype)
        strides = (apart // size, *tensors[0].stride())
        return typed.as_strided((len(tensors), *shape), strides, typed.storage_offset() + places[0] // size)
    widest = max((tensor.dtype for tensor in tensors), key=lambda dtype: dtype.itemsize)
    return torch.stack(
        [
            moved[place : place + tensor.nbytes].view(tensor.dtype).view(shape).to(widest)
            for place, tensor in zip(places, tensors, strict=True)
        ]
    )
