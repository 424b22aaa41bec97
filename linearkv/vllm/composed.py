"""Contexts on their way into vLLM, a few layers at a time: the first can be used while the last is still arriving."""

import itertools
import math
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from linearkv.cache import Page
from linearkv.composition import compose, last_inputs
from linearkv.kernels.addresses import addresses, apart
from linearkv.kernels.compose import compose_at, composes_at
from linearkv.kernels.relocate import relocate_at
from linearkv.states import ChunkState, Context, PrefixState
from linearkv.storage import unpack

ROOM, ALIGNED = 256, 16
"""Bytes on which a page's part begins on a device, and on which kernels want every tensor."""
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
    groups = _groups(layer_types, LAYERS_AT_A_TIME if arriving else len(layer_types))
    with torch.inference_mode(), torch.cuda.stream(stream):
        placed = _Placed.of(prefix, states, groups) if composes_at(prefix.recurrent, order) else None
        parts = []
        for number, group in enumerate(groups):
            if placed is not None:
                context = placed.compose(number, order)
            else:
                some = [_layers(state, group, device) for state in states]
                context = compose(prefix.layers(group.gdn, group.attention), some, order)
            ready = None
            if stream is not None:
                ready = torch.cuda.Event()
                ready.record(stream)
            parts.append(Part(group.gdn, group.attention, context, ready))
    return Composed(parts[0].context.length, parts)


def _layers(state: ChunkState | Page, group: "_Group", device: torch.device) -> ChunkState:
    """The layers of one group, on the device."""
    if isinstance(state, ChunkState):
        return state.layers(group.gdn, group.attention)
    names = [name for name in state.tensors if name[0].isdigit() and group.first <= _layer(name) < group.last]
    return unpack({**state.tensors_on(device, names), "token_ids": state.tensors["token_ids"]})


class _Group(NamedTuple):
    """Layers that arrive together."""

    first: int
    last: int
    gdn: slice
    attention: slice


def _groups(layer_types: Sequence[str], size: int) -> list[_Group]:
    """The layers in groups of about `size`, each with layers of both kinds."""
    kinds = set(layer_types)
    cuts = [0]
    for last in range(size, len(layer_types)):
        if last - cuts[-1] >= size and set(layer_types[cuts[-1] : last]) == set(layer_types[last:]) == kinds:
            cuts.append(last)
    groups = []
    gdn = attention = 0
    for first, last in itertools.pairwise([*cuts, len(layer_types)]):
        some = layer_types[first:last]
        more, others = some.count("linear_attention"), some.count("full_attention")
        groups.append(_Group(first, last, slice(gdn, gdn + more), slice(attention, attention + others)))
        gdn, attention = gdn + more, attention + others
    return groups


class _Source(NamedTuple):
    """Where the tensors of one chunk lie, by kind (`transition`, `update`, `conv_tail`, `key`, `value`).

    Attributes:
        places: int64 `[layers of the kind]`, in bytes: addresses on the device, or in a page from its beginning.
        types: dtype and shape of every layer's tensor.
        tokens: of the chunk.
        first: int64 `[groups]`, where each group's tensors begin in a page; 0 on the device.
        pieces: what a group needs of a page; None on the device.
        tail: the convolution inputs of a group `[layers, C, TAIL]`, given its part of the page on the device.
    """

    places: dict[str, torch.Tensor]
    types: dict[str, tuple[torch.dtype, tuple[int, ...]]]
    tokens: int
    first: torch.Tensor
    pieces: list[torch.Tensor] | None
    tail: Callable[[_Group, torch.Tensor], torch.Tensor]


class _Placed:
    """Chunks that are composed by where they lie.

    The states of fifty chunks in sixty layers are many tensors, and Python is slower at naming each of them than a GPU
    at reading it. Of a page this looks at each tensor once in the page's life. For a request it computes with all their
    addresses at a time, copies what a group of layers needs of all pages in one call, and composes it in one launch.
    """

    def __init__(self, prefix: PrefixState, sources: Sequence[_Source], groups: Sequence[_Group]) -> None:
        self._prefix, self._sources, self._groups = prefix, sources, groups
        self._places = {kind: torch.stack([source.places[kind] for source in sources]) for kind in _READ}
        self._first = torch.stack([source.first for source in sources])
        self._arriving = [number for number, source in enumerate(sources) if source.pieces is not None]
        self._dtypes = sources[0].types["transition"][0], sources[0].types["update"][0]
        self._tokens = [prefix.length, *(source.tokens for source in sources)]
        self._length = sum(self._tokens)
        self._cos, self._sin = prefix.rotary(torch.arange(self._length, device=prefix.recurrent.device))

    @classmethod
    def of(cls, prefix: PrefixState, states: Sequence[ChunkState | Page], groups: Sequence[_Group]) -> "_Placed | None":
        """None where kernels cannot read prefix or chunks as they lie, or these do not fit each other."""
        _, heads, key_dim, value_dim = prefix.recurrent.shape
        if not states:
            return None
        sources = []
        for state in states:
            source = _in_page(state, groups) if isinstance(state, Page) else _on_device(state, len(groups))
            if source is None:
                return None
            sources.append(source)
        dtypes = [sources[0].types[kind][0] for kind in ("transition", "update")]
        layers = {"transition": len(prefix.recurrent), "update": len(prefix.recurrent)}
        layers |= {"key": len(prefix.key), "value": len(prefix.key)}
        for source in sources:
            kept = prefix.key.dtype, (source.tokens, *prefix.key.shape[2:])
            fitting = {
                "transition": (dtypes[0], (heads, key_dim, key_dim)),
                "update": (dtypes[1], (heads, key_dim, value_dim)),
                "conv_tail": (prefix.conv_tail.dtype, tuple(prefix.conv_tail.shape[1:])),
                "key": kept,
                "value": kept,
            }
            if source.types != fitting or any(len(source.places[kind]) != layers[kind] for kind in _READ):
                return None
        placed = cls(prefix, sources, groups)
        own = (prefix.key, prefix.value)  # read by address as well, in the type of what they are rotated by
        fits = all(part.is_contiguous() and part.dtype == placed._cos.dtype for part in own)
        return placed if fits else None

    def compose(self, number: int, order: str) -> Context:
        """The context of one group of layers."""
        group = self._groups[number]
        prefix = self._prefix.layers(group.gdn, group.attention)
        pieces, moved = self._bring(number)
        places = {kind: (places + moved[:, None]).T for kind, places in self._places.items()}
        recurrent = compose_at(
            places["transition"][group.gdn], places["update"][group.gdn], self._dtypes, prefix.recurrent, order
        )
        keys, values = (
            torch.cat([addresses(own)[:, None], places[kind][group.attention]], dim=1)
            for kind, own in (("key", prefix.key), ("value", prefix.value))
        )
        heads, dim = prefix.key.shape[2:]
        key, value = relocate_at(keys, values, self._tokens, heads, dim, self._cos, self._sin)
        tail = last_inputs(
            prefix.conv_tail,
            self._tokens[1:],
            lambda place: self._sources[place].tail(group, pieces[place]),
        )
        return Context(recurrent, tail, key, value, self._length)

    def _bring(self, number: int) -> tuple[list[torch.Tensor], torch.Tensor]:
        """What a group needs of each page, on the device (empty of what lies there already); and what makes of places
        in pages addresses there, int64 `[n]`."""
        pieces = [source.pieces[number] for source in self._sources if source.pieces is not None]
        buffer = self._cos.new_empty(0, dtype=torch.uint8)
        here = [buffer] * len(self._sources)
        moved = torch.zeros(len(self._sources), dtype=torch.int64)
        if not pieces:
            return here, moved
        sizes = [piece.numel() for piece in pieces]
        room = [-(-size // ROOM) * ROOM for size in sizes]
        buffer = buffer.new_empty(sum(room))
        cuts = [part for size, whole in zip(sizes, room, strict=True) for part in (size, whole - size)]
        targets = buffer.split(cuts)[::2]
        torch._foreach_copy_(targets, pieces, non_blocking=True)
        starts = torch.tensor([0, *itertools.accumulate(room)][:-1])
        moved[self._arriving] = buffer.data_ptr() + starts - self._first[self._arriving, number]
        for place, target in zip(self._arriving, targets, strict=True):
            here[place] = target
        return here, moved


_READ = ("transition", "update", "key", "value")
"""Kinds of tensors that kernels read."""

_pages: "weakref.WeakKeyDictionary[Page, tuple[Sequence[_Group], _Source | None]]" = weakref.WeakKeyDictionary()


def _in_page(page: Page, groups: Sequence[_Group]) -> _Source | None:
    """None where its transitions are packed, tensors of a kind differ by layer, or kernels could not read them."""
    known = _pages.get(page)
    if known is None or known[0] != groups:
        known = _pages[page] = groups, _read_page(page, groups)
    return known[1]


def _read_page(page: Page, groups: Sequence[_Group]) -> _Source | None:
    begin = page.buffer.data_ptr()
    group_of = [number for number, group in enumerate(groups) for _ in range(group.first, group.last)]
    found: dict[str, list[torch.Tensor]] = {}
    spans = [[page.nbytes, 0] for _ in groups]
    owners: dict[str, list[int]] = {}
    for name, tensor in page.tensors.items():
        if not name[0].isdigit():
            continue
        kind, number = name.partition(".")[2], group_of[_layer(name)]
        found.setdefault(kind, []).append(tensor)
        owners.setdefault(kind, []).append(number)
        place = tensor.data_ptr() - begin
        spans[number] = [min(spans[number][0], place), max(spans[number][1], place + tensor.nbytes)]
    types = {kind: {(tensor.dtype, tuple(tensor.shape)) for tensor in tensors} for kind, tensors in found.items()}
    if types.keys() != {*_READ, "conv_tail"} or any(len(some) > 1 for some in types.values()):
        return None
    places = {kind: torch.tensor([tensor.data_ptr() - begin for tensor in some]) for kind, some in found.items()}
    first = torch.tensor([span[0] for span in spans])
    if any(((places[kind] - first[owners[kind]]) % ALIGNED).any() for kind in _READ):
        return None
    ((dtype, shape),) = types["conv_tail"]
    size = math.prod(shape) * dtype.itemsize

    def tail(group: _Group, piece: torch.Tensor) -> torch.Tensor:
        number = group_of[group.first]
        begins = (places["conv_tail"][group.gdn] - first[number]).tolist()
        return torch.stack([piece[at : at + size].view(dtype).view(shape) for at in begins])

    pieces = [page.buffer[low:high] for low, high in spans]
    return _Source(
        places, {kind: some.pop() for kind, some in types.items()}, len(page.tensors["token_ids"]), first, pieces, tail
    )


def _on_device(state: ChunkState, groups: int) -> _Source | None:
    """None where its transitions are packed, or kernels could not read it."""
    kinds = {name: getattr(state, name) for name in (*_READ, "conv_tail")}
    if state.rows is not None or not all(kinds[kind].is_contiguous() for kind in _READ):
        return None
    if any((kinds[kind].data_ptr() | apart(kinds[kind])) % ALIGNED for kind in _READ):
        return None
    places = {kind: addresses(kinds[kind]) for kind in _READ}
    types = {kind: (tensor.dtype, tuple(tensor.shape[1:])) for kind, tensor in kinds.items()}
    first = torch.zeros(groups, dtype=torch.int64)
    return _Source(places, types, state.length, first, None, lambda group, piece: state.conv_tail[group.gdn])


def _layer(name: str) -> int:
    return int(name.partition(".")[0])
