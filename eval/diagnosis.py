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
from linearkv.kernels.compose import compose_states
from linearkv.models import Capture

PARTS = ("k", "v", "g", "beta")
GAMMAS = (0.5, 0.8, 0.9, 0.95, 1.05)
LAYER_GAMMA = 0.8
"""How much of the transitions of one layer alone is kept, layer by layer."""

Inputs = list[list[tuple[torch.Tensor, ...]]]
"""k, v, g and beta of chunks, [chunk][layer]."""
Maps = tuple[torch.Tensor, torch.Tensor]
"""Transitions `[layers, chunks, H, K, K]` and updates `[layers, chunks, H, K, V]`."""


class Swaps:
    """Compositions of one task in which some parts come from full prefill."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.layers = task.model.layer_types.count("linear_attention")
        self._start = compose(task.prefix, [])
        self._alone = self._inputs(task.model.capture(task.chunks, task.behind or self._start), len(task.chunks))
        self._maps_alone = self._maps_of(self._alone)
        self._in_context: dict[tuple[int, ...], Inputs] = {}
        self._maps: dict[tuple[tuple[int, ...], tuple[str, ...]], Maps] = {}

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
        maps = self.maps(order, ())
        if parts:
            chosen = torch.zeros(self.layers, dtype=torch.bool, device=self._start.recurrent.device)
            chosen[list(range(self.layers) if layers is None else layers)] = True
            swapped = self.maps(order, parts)
            maps = tuple(  # type: ignore[assignment]
                torch.where(chosen[:, None, None, None, None], new, old) for new, old in zip(swapped, maps, strict=True)
            )
        transitions, updates = (part.unbind(1) for part in maps)
        state = compose_states(transitions, updates, self.task.prefix.recurrent)
        context = replace(self.task.composed(order, "sequential"), recurrent=state)
        if keys_and_values:
            context = replace(context, key=full.key, value=full.value)
        return replace(context, conv_tail=full.conv_tail) if seam else context

    def maps(self, order: Sequence[int], parts: Sequence[str]) -> Maps:
        """The maps of the chunks of an order, made of `parts` as full prefill computes them and the others as alone."""
        if not parts:
            return tuple(part[:, list(order)] for part in self._maps_alone)  # type: ignore[return-value]
        key = tuple(order), tuple(parts)
        if key not in self._maps:
            mixed: Inputs = [
                [
                    tuple(ours if name in parts else other for name, ours, other in zip(PARTS, *inputs, strict=True))
                    for inputs in zip(in_context, self._alone[index], strict=True)
                ]
                for in_context, index in zip(self.in_context(order), order, strict=True)
            ]
            self._maps[key] = self._maps_of(mixed)
        return self._maps[key]

    def describe(self, order: Sequence[int]) -> dict[str, list[list[float]]]:
        """What maps are made of and what they are like, in context and alone: per layer and value head.

        `g_*` and `beta_*` are means over the tokens of an order, `k_error` and `v_error` relative errors over them;
        `*_norm` are Frobenius norms in context, `transition_error` and `update_error` relative errors, as means over
        the chunks.
        """
        in_context, alone = self.in_context(order), [self._alone[index] for index in order]
        found: dict[str, list[list[float]]] = {}
        heads = self.task.prefix.recurrent.shape[1]
        for number, name in ((0, "k"), (1, "v")):
            found[f"{name}_error"] = []
            for layer in range(self.layers):
                ours, theirs = (
                    torch.cat([chunk[layer][number].float() for chunk in inputs]).transpose(0, 1).flatten(1)
                    for inputs in (alone, in_context)
                )
                error = (ours - theirs).norm(dim=-1) / theirs.norm(dim=-1).clamp(min=1e-12)
                found[f"{name}_error"].append(error.repeat_interleave(heads // len(error)).tolist())
        for number, name in ((2, "g"), (3, "beta")):
            for inputs, label in ((in_context, "context"), (alone, "alone")):
                found[f"{name}_{label}"] = [
                    torch.cat([chunk[layer][number].float() for chunk in inputs]).mean(0).tolist()
                    for layer in range(self.layers)
                ]
        names = ("transition", "update")
        for name, ours, theirs in zip(names, self.maps(order, ()), self.maps(order, PARTS), strict=True):
            norm = theirs.flatten(3).norm(dim=-1)
            error = (ours - theirs).flatten(3).norm(dim=-1) / norm.clamp(min=1e-12)
            found[f"{name}_norm"], found[f"{name}_error"] = norm.mean(1).tolist(), error.mean(1).tolist()
        return found

    def in_context(self, order: Sequence[int]) -> Inputs:
        """What maps are made of, place by place, as full prefill of this order computes it."""
        key = tuple(order)
        if key not in self._in_context:
            (whole,) = self._inputs(self.task.model.capture([self.task.tokens(order)], self._start), 1)
            lengths = [len(self.task.chunks[index]) for index in order]
            split = [zip(*(part.split(lengths) for part in inputs), strict=True) for inputs in whole]
            self._in_context[key] = [list(layers) for layers in zip(*split, strict=True)]
        return self._in_context[key]

    def _inputs(self, captured: Capture, rows: int) -> Inputs:
        return [[captured.rule_inputs(layer, row) for layer in range(self.layers)] for row in range(rows)]

    def _maps_of(self, inputs: Inputs) -> Maps:
        """All maps in one batch of ragged segments."""
        segments = [chunk[layer] for layer in range(self.layers) for chunk in inputs]
        lengths = torch.tensor([len(segment[0]) for segment in segments], device=self._start.recurrent.device)
        k, v, g, beta = (
            torch.nn.utils.rnn.pad_sequence(list(part), batch_first=True) for part in zip(*segments, strict=True)
        )
        transition, update = chunk_delta(k, v, g, beta, lengths)
        return transition.unflatten(0, (self.layers, -1)), update.unflatten(0, (self.layers, -1))


def _swapped(**what: Any) -> Callable[[Task], Iterable[Prepared]]:
    def prepare(task: Task) -> Iterable[Prepared]:
        swaps = Swaps.of(task)
        for order, full in zip(task.orders, task.full, strict=True):
            yield Prepared(swaps.composed(order, full, **what), full.length, task.chunk_bytes(order))

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
    gammas = {f"gamma_{gamma:g}": (gamma, slice(None), "transitions") for gamma in GAMMAS}
    for layer in range(gdn_layers):
        scaled = f"transitions of GDN layer {layer}"
        gammas[f"gamma_{LAYER_GAMMA:g}_of_{layer}"] = LAYER_GAMMA, slice(layer, layer + 1), scaled
    for name, (gamma, layers, scaled) in gammas.items():
        mode(name, f"sequential, {scaled} times {gamma:g}")(_scaled(gamma, layers))
    return [*swaps, *gammas]


def _scaled(gamma: float, layers: slice) -> Callable[[Task], Iterable[Prepared]]:
    def prepare(task: Task) -> Iterable[Prepared]:
        scaled = []
        for state in (state.dense() for state in task.states):
            transition = state.transition.clone()
            transition[layers] *= gamma
            scaled.append(replace(state, transition=transition))
        for order in task.orders:
            yield Prepared(task.composed(order, "sequential", scaled), 0, task.chunk_bytes(order))

    return prepare
