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
    parts = []
    with torch.inference_mode(), torch.cuda.stream(stream):
        for first, last, gdn, attention in _groups(layer_types):
            some = [
                state.layers(gdn, attention)
                if isinstance(state, ChunkState)
                else unpack(_of_layers(state, first, last, device))
                for state in states
            ]
            context = compose(prefix.layers(gdn, attention), some, order)
            ready = None
            if stream is not None:
                ready = torch.cuda.Event()
                ready.record(stream)
            parts.append(Part(gdn, attention, context, ready))
    return Composed(parts[0].context.length, parts)


def _groups(layer_types: Sequence[str]) -> Iterator[tuple[int, int, slice, slice]]:
    """First and last layer of every part, each with layers of both kinds, and which among its kind these are."""
    kinds = set(layer_types)
    cuts = [0]
    for last in range(LAYERS_AT_A_TIME, len(layer_types)):
        if (
            last - cuts[-1] >= LAYERS_AT_A_TIME
            and set(layer_types[cuts[-1] : last]) == set(layer_types[last:]) == kinds
        ):
            cuts.append(last)
    gdn = attention = 0
    for first, last in pairwise([*cuts, len(layer_types)]):
        some = layer_types[first:last]
        more, others = some.count("linear_attention"), some.count("full_attention")
        yield first, last, slice(gdn, gdn + more), slice(attention, attention + others)
        gdn, attention = gdn + more, attention + others


def _of_layers(page: Page, first: int, last: int, device: torch.device) -> dict[str, torch.Tensor]:
    """A page's tensors of layers `first` to `last`, on `device`; the token ids stay where they are."""
    names = [name for name in page.tensors if name[0].isdigit() and first <= int(name.partition(".")[0]) < last]
    return {**page.tensors_on(device, names), "token_ids": page.tensors["token_ids"]}
