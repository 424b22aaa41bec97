"""Seam recompute: the first tokens of each chunk run through the model again, layer by layer, from composed states.

HYPIC (arXiv 2607.01299) publishes this recipe for chunks prefilled from nothing; this is our own implementation of it,
for comparison. In a GDN layer a seam starts from the state that the chunks before it lead to, in an attention layer it
sees all keys before it; what follows the seam keeps its cached map, keys and values. With every token a seam token this
is full prefill.
"""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import DynamicCache

from linearkv import ChunkState, Context, PrefixState, compose
from linearkv.kernels.compose import compose_maps, compose_states
from linearkv.kernels.relocate import relocate
from linearkv.models import Capture, TransformersModel

Map = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class CutChunk:
    """A chunk cut behind its seam. `rest` is what its later tokens do, prefilled behind the seam from nothing."""

    seam: list[int]
    rest: ChunkState | None

    @property
    def length(self) -> int:
        return len(self.seam) + (self.rest.length if self.rest is not None else 0)


def cut_chunks(model: TransformersModel, chunks: Sequence[Sequence[int]], length: int) -> list[CutChunk]:
    """Chunks cut behind seams of `length` tokens, what follows prefilled: the part that is done once and kept.

    Args:
        chunks: token ids of each chunk.
    """
    if length < 1:
        raise ValueError(f"a seam is at least one token long, not {length}")
    cut = [(list(ids[:length]), list(ids[length:])) for ids in chunks]
    longer = [(seam, rest) for seam, rest in cut if rest]
    empty = model.empty_prefix()
    starts = [compose(empty, [state]) for state in model.prefill_chunks(empty, [seam for seam, _ in longer])]
    rests = iter(model.prefill_chunks(starts, [rest for _, rest in longer]))
    return [CutChunk(seam, next(rests) if rest else None) for seam, rest in cut]


@torch.inference_mode()
def recompute_seams(
    model: TransformersModel,
    prefix: PrefixState,
    chunks: Sequence[CutChunk],
    orders: Sequence[Sequence[int]],
    kind: str = "sequential",
) -> list[Context]:
    """The context after `prefix` and the chunks in each of `orders`, their seams recomputed.

    Args:
        chunks: of `cut_chunks`.
        kind: which recurrent state the question starts from, as in `linearkv.compose`. The seams themselves always
            start from the chunks before them in the order given.
    """
    # Rows of one batch need seams of one length at every place, which they have unless a chunk is shorter than a seam.
    together = len({len(chunk.seam) for chunk in chunks}) == 1
    batches = [list(orders)] if together else [[order] for order in orders]
    return [context for batch in batches for context in _Seams(model, prefix, chunks, batch, kind).contexts()]


class _Seams:
    """One batch: P orders of n chunks, whose seams at one place are equally long."""

    def __init__(
        self,
        model: TransformersModel,
        prefix: PrefixState,
        chunks: Sequence[CutChunk],
        orders: Sequence[Sequence[int]],
        kind: str,
    ) -> None:
        self.model, self.prefix, self.kind = model, prefix, kind
        self.rows = len(orders)
        self.chunks = chunks
        self.places = [list(column) for column in zip(*orders, strict=True)]  # indices of chunks, [n][P]
        layers = model.hf.model.layers
        self.layers = list(layers)
        parameters = inspect.signature(type(layers[0]).forward).parameters
        self.cache_argument = "cache" if "cache" in parameters else "past_key_values"
        self.length = prefix.length + sum(chunks[column[0]].length for column in self.places)
        self.seam_positions, self.kept_positions = self._positions()

    def contexts(self) -> list[Context]:
        """One context per order."""
        device, chunks = self.model.device, self.chunks
        seams = [
            self.model.hf.model.embed_tokens(torch.tensor([chunks[index].seam for index in column], device=device))
            for column in self.places
        ]
        recurrent: list[torch.Tensor] = []
        tails: list[torch.Tensor] = []
        keys: list[torch.Tensor] = []
        values: list[torch.Tensor] = []
        for index, layer in enumerate(self.layers):
            if hasattr(layer, "linear_attn"):
                seams, state, tail = self._gdn_layer(layer, len(recurrent), index, seams)
                recurrent.append(state)
                tails.append(tail)
            else:
                seams, key, value = self._attention_layer(layer, len(keys), index, seams)
                keys.append(key)
                values.append(value)
        state, tail, key, value = (torch.stack(part, dim=1) for part in (recurrent, tails, keys, values))
        return [Context(state[row], tail[row], key[row], value[row], self.length) for row in range(self.rows)]

    def _positions(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Positions of the seam tokens `[P, n * s]` and of the prefix and all kept tokens `[P, kept]`."""
        seam, kept = [], []
        for row in range(self.rows):
            at, rest = self.prefix.length, list(range(self.prefix.length))
            recomputed: list[int] = []
            for column in self.places:
                chunk = self.chunks[column[row]]
                recomputed += range(at, at + len(chunk.seam))
                rest += range(at + len(chunk.seam), at + chunk.length)
                at += chunk.length
            seam.append(recomputed)
            kept.append(rest)
        return torch.tensor(seam, device=self.model.device), torch.tensor(kept, device=self.model.device)

    def _gdn_layer(
        self, layer: Any, row_of_layer: int, index: int, seams: list[torch.Tensor]
    ) -> tuple[list[torch.Tensor], torch.Tensor, torch.Tensor]:
        """The seams after the layer, the state `[P, H, K, V]` and the convolution's tail `[P, C, TAIL]` at the end."""
        start = self.prefix.recurrent[row_of_layer].expand(self.rows, -1, -1, -1)
        tail = self.prefix.conv_tail[row_of_layer].expand(self.rows, -1, -1)
        state, maps, after = start, [], []
        rest_transitions, rest_updates = self._rests(row_of_layer)
        for column, hidden in zip(self.places, seams, strict=True):
            cache: Any = DynamicCache(config=self.model.config)
            cache.update_conv_state(tail.clone(), index, conv_kernel_size=layer.linear_attn.conv_kernel_size)
            cache.update_recurrent_state(state, index)
            lengths = torch.full((self.rows,), hidden.shape[1], device=hidden.device)
            with Capture([layer.linear_attn], [], lengths, tail[None]) as captured:
                after.append(self._run(layer, hidden, cache))
            whole = compose_maps((rest_transitions[column], rest_updates[column]), captured.layer_maps(0))
            tail = self._tails(column, row_of_layer, captured.layer_tail(0))
            maps.append(whole)
            state = whole[0] @ state.to(whole[0].dtype) + whole[1]
        if self.kind != "sequential":
            state = compose_states([t for t, _ in maps], [u for _, u in maps], start, self.kind)
        return after, state, tail

    def _rests(self, row_of_layer: int) -> Map:
        """The maps of what follows each chunk's seam, `[n, H, K, K]` and `[n, H, K, V]`; of nothing, the identity."""
        like = self.prefix.recurrent[row_of_layer]
        identity = torch.eye(like.shape[-2], device=like.device).expand(like.shape[0], -1, -1)
        maps = [
            (identity, torch.zeros_like(like))
            if chunk.rest is None
            else (chunk.rest.transition[row_of_layer], chunk.rest.update[row_of_layer])
            for chunk in self.chunks
        ]
        return torch.stack([t for t, _ in maps]), torch.stack([u for _, u in maps])

    def _tails(self, column: list[int], row_of_layer: int, before: torch.Tensor) -> torch.Tensor:
        """The last convolution inputs `[P, C, TAIL]` at the end of the chunks of one place, behind seams that end in
        `before`: borrowed from the seam's where the rest is shorter."""
        rests = [self.chunks[index].rest for index in column]
        tails = []
        for rest, seam_tail in zip(rests, before, strict=True):
            if rest is None:
                tails.append(seam_tail)
                continue
            own = rest.conv_tail[row_of_layer]
            borrowed = max(0, own.shape[-1] - rest.length)
            tails.append(torch.cat([seam_tail[:, seam_tail.shape[-1] - borrowed :], own[:, borrowed:]], dim=-1))
        return torch.stack(tails)

    def _attention_layer(
        self, layer: Any, row_of_layer: int, index: int, seams: list[torch.Tensor]
    ) -> tuple[list[torch.Tensor], torch.Tensor, torch.Tensor]:
        """The seams after the layer, and the keys (rotated) and values `[P, length, Hkv, D]` of all tokens."""
        kept_key, kept_value = self._kept(row_of_layer)
        cache: Any = DynamicCache(config=self.model.config)
        cache.update(kept_key.transpose(1, 2), kept_value.transpose(1, 2), index)
        positions = torch.cat([self.kept_positions, self.seam_positions], dim=1)
        hidden = torch.cat(seams, dim=1)
        hidden_from = positions[:, None, None, :] > self.seam_positions[:, None, :, None]
        mask = torch.zeros(hidden_from.shape, dtype=hidden.dtype, device=hidden.device)
        mask = mask.masked_fill(hidden_from, torch.finfo(hidden.dtype).min)
        rotary = tuple(torch.stack(part) for part in zip(*map(self.model.rotary, self.seam_positions), strict=True))
        after = self._run(layer, hidden, cache, rotary, mask)
        order = positions.argsort(dim=1)[:, :, None, None]
        key, value = (part.transpose(1, 2) for part in (cache.layers[index].keys, cache.layers[index].values))
        key, value = (part.take_along_dim(order, dim=1) for part in (key, value))
        return list(after.split([part.shape[1] for part in seams], dim=1)), key, value

    def _kept(self, row_of_layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys, rotated where they land, and values of prefix and kept tokens, `[P, kept, Hkv, D]`."""
        keys, values = [], []
        for row in range(self.rows):
            rests = [self.chunks[column[row]].rest for column in self.places]
            present = [rest for rest in rests if rest is not None]
            parts = [self.prefix, *present]
            layer = slice(row_of_layer, row_of_layer + 1)
            cos, sin = self.model.rotary(self.kept_positions[row])
            key, value = relocate([part.key[layer] for part in parts], [part.value[layer] for part in parts], cos, sin)
            keys.append(key[0])
            values.append(value[0])
        return torch.stack(keys), torch.stack(values)

    def _run(
        self,
        layer: Any,
        hidden: torch.Tensor,
        cache: DynamicCache,
        rotary: tuple[torch.Tensor, ...] | None = None,
        mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        arguments = {"position_embeddings": rotary, "attention_mask": mask, self.cache_argument: cache}
        return layer(hidden, **arguments)
