"""A Gated DeltaNet hybrid that transformers runs."""

import contextlib
import importlib.util
import inspect
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from transformers import DynamicCache, PreTrainedModel

import linearkv
from linearkv.errors import LinearKVError
from linearkv.identity import WEIGHT_FILES, ModelIdentity, digest_folder, digest_parameters
from linearkv.models.base import GDNModel, TokenIds, digest_config, kernels_used
from linearkv.models.capture import Capture
from linearkv.models.generation import Sampling
from linearkv.states import TAIL, ChunkState, Context, PrefixState

BATCH_TOKENS = 16384
"""Tokens, those of the contexts included, that one forward pass over several sequences holds at most."""


class TransformersModel(GDNModel):
    """A loaded checkpoint. Made by `linearkv.models.load_model`; keeps no state between calls.

    Args:
        model: a causal language model of a supported class (see `linearkv.models.loading.SUPPORTED`), in eval mode.
        folder: where its checkpoint lies; None for a model that was made in memory.
    """

    def __init__(self, model: PreTrainedModel, folder: Path | None = None) -> None:
        self.hf: Any = model
        self.folder = folder
        self.config = model.config
        layers = model.model.layers
        self.gdn_layers = [layer.linear_attn for layer in layers if hasattr(layer, "linear_attn")]
        self.attention_layers = [layer.self_attn for layer in layers if hasattr(layer, "self_attn")]
        self._gdn_index = [i for i, layer in enumerate(layers) if hasattr(layer, "linear_attn")]
        self._attention_index = [i for i, layer in enumerate(layers) if hasattr(layer, "self_attn")]
        parameters = inspect.signature(type(model.model).forward).parameters
        self._cache_argument = "cache" if "cache" in parameters else "past_key_values"
        # Qwen3.5 rotates three position axes, which are equal for text.
        self._rotary_axes = 1 if hasattr(model.model.rotary_emb, "mrope_section") else 0

    @property
    def device(self) -> torch.device:
        return self.hf.device

    @property
    def dtype(self) -> torch.dtype:
        return self.hf.dtype

    @property
    def architecture(self) -> str:
        return type(self.hf).__name__

    @property
    def stop_ids(self) -> tuple[int, ...]:
        listed = self.hf.generation_config.eos_token_id
        return () if listed is None else tuple(listed) if isinstance(listed, list) else (listed,)

    def identify(self) -> ModelIdentity:
        """Files are read by a cache of their digests."""
        return ModelIdentity(
            weights=digest_folder(self.folder, WEIGHT_FILES) if self.folder is not None else "in memory",
            config=digest_config(self.config),
            parameters=digest_parameters(self.hf.state_dict()),
            compute_dtype=str(self.dtype).removeprefix("torch."),
            attention_backend=str(self.config._attn_implementation),
            gdn_backend=gdn_backend(self.device),
            versions={"torch": version("torch"), "transformers": version("transformers")},
            producer=f"linearkv {linearkv.__version__} on {self.device.type}{kernels_used(self.device)}",
        )

    @torch.inference_mode()
    def prefill_prefix(self, token_ids: TokenIds) -> PrefixState:
        ids = self._token_ids(token_ids)
        empty = self.empty_prefix()
        if not len(ids):
            return empty
        cache = DynamicCache(config=self.config)
        lengths = torch.tensor([len(ids)], device=self.device)
        with Capture(self.gdn_layers, self.attention_layers, lengths, empty.conv_tail, deltas=False) as captured:
            self._run(ids[None], cache)
        return PrefixState(
            recurrent=self._recurrent(cache),
            conv_tail=captured.conv_tail(0),
            key=captured.key(0),
            value=captured.value(0),
            token_ids=ids.cpu(),
            rotary=self.rotary,
        )

    @torch.inference_mode()
    def prefill_chunks(
        self,
        prefix: PrefixState | Context | Sequence[Context],
        chunks: Sequence[TokenIds],
        *,
        batch_tokens: int = 8192,
    ) -> list[ChunkState]:
        """Chunks of different lengths share a batch, padded on the right, where no real token can see the padding."""
        ids = [self._token_ids(chunk) for chunk in chunks]
        starts = self._starts(prefix, ids)
        states: list[ChunkState | None] = [None] * len(ids)
        most = max(1, self.room_for_states // self.state_bytes)
        for batch in _batches([len(chunk) for chunk in ids], batch_tokens, most):
            made = self._prefill_batch([starts[i] for i in batch], [ids[i] for i in batch])
            for position, state in zip(batch, made, strict=True):
                states[position] = state
        return [state for state in states if state is not None]

    @torch.inference_mode()
    def prefill_many(
        self, sequences: Sequence[TokenIds], after: Sequence[Context | None] | None = None
    ) -> list[Context]:
        """`prefill` of each sequence behind its own context; those of equal lengths share a forward pass."""
        starts = [start if start is not None else self.empty_context() for start in after or [None] * len(sequences)]
        contexts = list(starts)
        for rows, ids in self._batches_of_equals(starts, sequences, allow_empty=True):
            if ids.shape[1]:
                cache = self._cache([starts[row] for row in rows])
                self._run(ids, cache)
                for place, row in enumerate(rows):
                    contexts[row] = self._context(cache, place, starts[row].length + ids.shape[1])
        return contexts

    @torch.inference_mode()
    def capture(self, sequences: Sequence[TokenIds], after: Context) -> Capture:
        """What a prefill of each of `sequences` behind one context computes inside: see `Capture`, with `inputs` kept.

        They share one forward pass, padded on the right.
        """
        ids = [self._token_ids(sequence) for sequence in sequences]
        lengths = torch.tensor([len(sequence) for sequence in ids], device=self.device)
        with Capture(
            self.gdn_layers, self.attention_layers, lengths, after.conv_tail, deltas=False, inputs=True
        ) as captured:
            self._run(torch.nn.utils.rnn.pad_sequence(ids, batch_first=True), self._cache([after] * len(ids)))
        return captured

    @torch.inference_mode()
    def logits_many(self, contexts: Sequence[Context], sequences: Sequence[TokenIds]) -> list[torch.Tensor]:
        """`logits` of each sequence behind its own context; those of equal lengths share a forward pass."""
        logits: list[torch.Tensor] = [torch.empty(0)] * len(sequences)
        for rows, ids in self._batches_of_equals(contexts, sequences):
            hidden = self._run(ids, self._cache([contexts[row] for row in rows]))
            for place, row in enumerate(rows):
                logits[row] = self.hf.lm_head(hidden[place]).float()
        return logits

    @torch.inference_mode()
    def generate_many(
        self,
        contexts: Sequence[Context],
        sequences: Sequence[TokenIds],
        max_new_tokens: int,
        *,
        stop: Sequence[int] | None = None,
    ) -> list[list[int]]:
        """Greedy `generate` behind each context; those of equal lengths are decoded together."""
        stop = self.stop_ids if stop is None else stop
        answers: list[list[int]] = [[] for _ in sequences]
        for rows, ids in self._batches_of_equals(contexts, sequences):
            cache = self._cache([contexts[row] for row in rows])
            running = set(rows)
            for _ in range(max_new_tokens):
                ids = self.hf.lm_head(self._run(ids, cache)[:, -1]).float().argmax(-1, keepdim=True)
                for row, token in zip(rows, ids[:, 0].tolist(), strict=True):
                    if token in stop:
                        running.discard(row)
                    if row in running:
                        answers[row].append(token)
                if not running:
                    break
        return answers

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
        sampling = sampling or Sampling()
        generator = sampling.generator(self.device)
        ids = self._token_ids(token_ids)
        if not len(ids):
            raise LinearKVError("generation needs at least one token behind the context")
        cache = self._cache([context])
        for _ in range(max_new_tokens):
            # The block ends before the yield: inference mode must not leak into the caller's code.
            with torch.inference_mode():
                hidden = self._run(ids[None], cache)
                token = sampling.choose(self.hf.lm_head(hidden[0, -1]).float(), generator)
            if token in stop:
                return
            yield token
            ids = torch.tensor([token], device=self.device)

    def rotary(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        like = torch.empty(0, dtype=self.dtype, device=positions.device)
        shape = (1,) * (1 + self._rotary_axes) + (-1,)
        cos, sin = self.hf.model.rotary_emb(like, positions.view(shape))
        return cos[0], sin[0]

    def _prefill_batch(self, starts: list[Context], ids: list[torch.Tensor]) -> Iterator[ChunkState]:
        lengths = torch.tensor([len(chunk) for chunk in ids], device=self.device)
        padded = torch.nn.utils.rnn.pad_sequence(ids, batch_first=True)
        cache = self._cache(starts)
        tails = torch.stack([start.conv_tail for start in starts], dim=1)
        with Capture(self.gdn_layers, self.attention_layers, lengths, tails) as captured:
            self._run(padded, cache)
        for row, chunk in enumerate(ids):
            yield captured.chunk_state(row, chunk.cpu())

    def _run(self, ids: torch.Tensor, cache: DynamicCache) -> torch.Tensor:
        """Hidden states `[B, T, hidden]` of `ids [B, T]` behind `cache`, which goes on to hold them as well."""
        output = self.hf.model(input_ids=ids, use_cache=True, **{self._cache_argument: cache})
        return output.last_hidden_state

    def _cache(self, contexts: Sequence[Context]) -> DynamicCache:
        """A transformers cache that stands right after `contexts`, one per sequence of the batch, all of one length."""
        cache = DynamicCache(config=self.config)
        if not contexts[0].length:
            return cache
        for row, layer in enumerate(self._gdn_index):
            # Through the cache's own methods: a state assigned from outside is silently ignored.
            kernel = self.gdn_layers[row].conv_kernel_size
            tail = torch.stack([context.conv_tail[row] for context in contexts])
            cache.update_conv_state(tail, layer, conv_kernel_size=kernel)
            cache.update_recurrent_state(torch.stack([context.recurrent[row] for context in contexts]), layer)
        for row, layer in enumerate(self._attention_index):
            key = torch.stack([context.key[row].transpose(0, 1) for context in contexts])
            value = torch.stack([context.value[row].transpose(0, 1) for context in contexts])
            cache.update(key, value, layer)
        return cache

    def _context(self, cache: Any, row: int, length: int) -> Context:
        conv = [cache.layers[i].conv_states[0][row, :, -TAIL:] for i in self._gdn_index]
        key = [cache.layers[i].keys[row].transpose(0, 1) for i in self._attention_index]
        value = [cache.layers[i].values[row].transpose(0, 1) for i in self._attention_index]
        return Context(self._recurrent(cache, row), torch.stack(conv), torch.stack(key), torch.stack(value), length)

    def _recurrent(self, cache: Any, row: int = 0) -> torch.Tensor:
        return torch.stack([cache.layers[i].recurrent_states[0][row].float() for i in self._gdn_index])

    def _batches_of_equals(
        self, contexts: Sequence[Context], sequences: Sequence[TokenIds], allow_empty: bool = False
    ) -> Iterator[tuple[list[int], torch.Tensor]]:
        """(rows, ids `[B, T]`) for sequences that are as long as each other, behind contexts that are; few enough that
        the tokens and their contexts stay within `BATCH_TOKENS`."""
        if len(contexts) != len(sequences):
            raise ValueError(f"{len(contexts)} contexts for {len(sequences)} sequences")
        groups: dict[tuple[int, int], list[tuple[int, torch.Tensor]]] = {}
        for row, (context, sequence) in enumerate(zip(contexts, sequences, strict=True)):
            ids = self._token_ids(sequence)
            if not len(ids) and not allow_empty:
                raise LinearKVError("at least one token must follow the context")
            groups.setdefault((context.length, len(ids)), []).append((row, ids))
        for (before, length), members in groups.items():
            most = max(1, BATCH_TOKENS // max(1, before + length))
            for first in range(0, len(members), most):
                batch = members[first : first + most]
                yield [row for row, _ in batch], torch.stack([ids for _, ids in batch])

    def _token_ids(self, token_ids: TokenIds) -> torch.Tensor:
        try:
            ids = torch.as_tensor(token_ids)
        except (TypeError, ValueError, RuntimeError) as error:
            raise LinearKVError(f"token ids must be a sequence of integers, not {token_ids!r:.60}") from error
        if ids.numel() and (ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool):
            raise LinearKVError(f"token ids must be integers, not {ids.dtype}")
        ids = ids.to(torch.int64)
        if ids.dim() != 1:
            raise LinearKVError(f"token ids must be one sequence, not of shape {tuple(ids.shape)}")
        if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < self.vocab_size:
            raise LinearKVError(
                f"token ids reach from {int(ids.min())} to {int(ids.max())}, the model knows 0 to "
                f"{self.vocab_size - 1}: "
                f"was the text tokenised with another model's tokenizer?"
            )
        return ids.to(self.device)


def _batches(lengths: list[int], budget: int, most: int) -> Iterator[list[int]]:
    """Groups indices of chunks so that each padded batch holds at most `budget` tokens and `most` chunks; similar
    lengths together."""
    batch: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda i: lengths[i], reverse=True):
        if batch and (len(batch) == most or (len(batch) + 1) * lengths[batch[0]] > budget):
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch


def gdn_backend(device: torch.device) -> str:
    """Which implementation of the gated delta rule transformers runs there, with its version: part of an identity."""
    if device.type != "cuda" or importlib.util.find_spec("fla") is None:
        return "torch"
    for distribution in ("flash-linear-attention", "fla-core"):
        with contextlib.suppress(PackageNotFoundError):
            return f"fla {version(distribution)}"
    return "fla, version unknown"
