"""Where composition loses quality: parts of a composed context taken from full prefill instead, one at a time.

What a chunk prefilled alone gets wrong is either its attention keys and values, or the map of one of its GDN layers;
and a map is made of keys k, values v, gates g and write strengths beta. Each mode here composes the chunks in the order
given and takes one of these from full prefill of the same order. If that brings the quality back, the loss was there.
They are oracles: they run full prefill first, and are for understanding, not for use.

Also here: `gamma_*`, how much of each transition to keep, and what the maps are like in context and alone.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch

from linearkv import Context, compose
from linearkv.eval.modes import Prepared, Task, mode
from linearkv.kernels.chunk_delta import chunk_delta

PARTS = ("k", "v", "g", "beta")
GAMMAS = (0.5, 0.8, 0.9, 0.95, 1.05)

Inputs = tuple[torch.Tensor, ...]
"""k, v, g, beta of one chunk in one layer."""


class Swaps:
    """Compositions of one task in which some parts come from full prefill."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.layers = len(task.model.gdn_layers)
        self._start = compose(task.prefix, [])
        self._alone = [self._inputs(ids, [len(ids)]) for ids in task.chunks]
        self._orders: dict[tuple[int, ...], list[list[Inputs]]] = {}

    @classmethod
    def of(cls, task: Task) -> "Swaps":
        """The one of this task."""
        if "swaps" not in task.kept:
            task.kept["swaps"] = cls(task)
        return task.kept["swaps"]

    def composed(
        self,
        order: Sequence[int],
        full: Context,
        parts: Sequence[str] = (),
        *,
        layers: Sequence[int] | None = None,
        keys_and_values: bool = False,
        seam: bool = False,
    ) -> Context:
        """Sequential composition with `parts` of the maps of `layers` (all by default), attention's keys and values, or
        the convolution's tail from full prefill of this order."""
        in_context = self._in_context(order)
        chosen = range(self.layers) if layers is None else layers
        states = []
        for layer in range(self.layers):
            chunks = [
                tuple(
                    (in_context[place] if name in parts and layer in chosen else self._alone[index][0])[layer][number]
                    for number, name in enumerate(PARTS)
                )
                for place, index in enumerate(order)
            ]
            states.append(_chain(chunks, self.task.prefix.recurrent[layer]))
        context = replace(self.task.composed(order, "sequential"), recurrent=torch.stack(states))
        if keys_and_values:
            context = replace(context, key=full.key, value=full.value)
        return replace(context, conv_tail=full.conv_tail) if seam else context

    def describe(self, order: Sequence[int]) -> dict[str, list[list[float]]]:
        """Means over the tokens of an order, per layer and head, in context and alone; and how far maps are apart."""
        in_context = self._in_context(order)
        found: dict[str, list[list[float]]] = {}
        for layer in range(self.layers):
            pairs = [(in_context[place][layer], self._alone[index][0][layer]) for place, index in enumerate(order)]
            for number, name in ((2, "g"), (3, "beta")):
                for side, label in ((0, "context"), (1, "alone")):
                    values = torch.cat([pair[side][number].float() for pair in pairs])
                    found.setdefault(f"{name}_{label}", []).append(values.mean(0).tolist())
            maps = [[chunk_delta(*(part[None] for part in inputs)) for inputs in pair] for pair in pairs]
            for number, name in ((0, "transition"), (1, "update")):
                ours = torch.cat([alone[number] for _, alone in maps])
                theirs = torch.cat([context[number] for context, _ in maps])
                norm = theirs.flatten(2).norm(dim=-1)
                error = (ours - theirs).flatten(2).norm(dim=-1) / norm.clamp(min=1e-12)
                found.setdefault(f"{name}_norm", []).append(norm.mean(0).tolist())
                found.setdefault(f"{name}_error", []).append(error.mean(0).tolist())
        return found

    def _in_context(self, order: Sequence[int]) -> list[list[Inputs]]:
        """Inputs of each chunk, place by place, as full prefill of this order computes them."""
        key = tuple(order)
        if key not in self._orders:
            self._orders[key] = self._inputs(self.task.tokens(order), [len(self.task.chunks[index]) for index in order])
        return self._orders[key]

    def _inputs(self, ids: Sequence[int], lengths: Sequence[int]) -> list[list[Inputs]]:
        """[chunk][layer] of one prefill behind the prefix, cut into chunks."""
        captured = self.task.model.capture(ids, self._start)
        whole = [captured.rule_inputs(layer, 0) for layer in range(self.layers)]
        ends = torch.tensor(lengths).cumsum(0).tolist()
        return [
            [tuple(part[end - length : end] for part in inputs) for inputs in whole]
            for end, length in zip(ends, lengths, strict=True)
        ]


def _chain(chunks: Sequence[Inputs], state: torch.Tensor) -> torch.Tensor:
    """The state `[H, K, V]` behind chunks, in one batch of ragged segments."""
    lengths = torch.tensor([len(inputs[0]) for inputs in chunks], device=state.device)
    padded = [torch.nn.utils.rnn.pad_sequence([inputs[n] for inputs in chunks], batch_first=True) for n in range(4)]
    k, v, g, beta = padded
    transition, update = chunk_delta(k, v, g, beta, lengths)
    for row in range(len(chunks)):
        state = transition[row] @ state + update[row]
    return state


def _swapped(**what: Any) -> Callable[[Task], Iterable[Prepared]]:
    def prepare(task: Task) -> Iterable[Prepared]:
        swaps = Swaps.of(task)
        for order, full in zip(task.orders, task.full, strict=True):
            yield Prepared(swaps.composed(order, full, **what), 0, task.chunk_bytes(order))

    return prepare


def register(gdn_layers: int) -> list[str]:
    """Registers the diagnostic modes for a model of so many GDN layers; returns their names."""
    swaps: dict[str, dict[str, Any]] = {
        "swap_nothing": {},
        "swap_keys_and_values": {"keys_and_values": True},
        "swap_maps": {"parts": PARTS},
        **{f"swap_{name}": {"parts": (name,)} for name in PARTS},
        **{f"swap_maps_of_{layer}": {"parts": PARTS, "layers": (layer,)} for layer in range(gdn_layers)},
        "swap_tail": {"seam": True},
        "swap_all": {"parts": PARTS, "keys_and_values": True, "seam": True},
    }
    for name, what in swaps.items():
        mode(name, f"sequential, with {name.removeprefix('swap_').replace('_', ' ')} of full prefill")(_swapped(**what))
    for gamma in GAMMAS:
        mode(f"gamma_{gamma:g}", f"sequential, transitions times {gamma:g}")(_scaled(gamma))
    return [*swaps, *(f"gamma_{gamma:g}" for gamma in GAMMAS)]


def _scaled(gamma: float) -> Callable[[Task], Iterable[Prepared]]:
    def prepare(task: Task) -> Iterable[Prepared]:
        scaled = [replace(state, transition=gamma * state.transition) for state in task.states]
        for order in task.orders:
            yield Prepared(task.composed(order, "sequential", scaled), 0, task.chunk_bytes(order))

    return prepare
