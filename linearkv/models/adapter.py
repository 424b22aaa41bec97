"""A Gated DeltaNet hybrid as the engine sees it: prefill of prefixes, chunks and text, and answers from a context."""

import inspect
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import DynamicCache, PreTrainedModel

from linearkv.composition import compose
from linearkv.errors import LinearKVError
from linearkv.models.capture import Capture
from linearkv.models.generation import Sampling
from linearkv.states import TAIL, ChunkState, Context, PrefixState

TokenIds = Sequence[int] | torch.Tensor


class GDNModel:
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
        """Compute dtype."""
        return self.hf.dtype

    @property
    def layer_types(self) -> list[str]:
        """`linear_attention` or `full_attention`, layer by layer."""
        return list(self.config.layer_types)

    @property
    def vocab_size(self) -> int:
        return self.config.vocab_size

    def empty_prefix(self) -> PrefixState:
        """The prefix of no tokens: zero state, nothing to attend to."""
        gdn, attention = self.gdn_layers[0], self.attention_layers[0]
        layers, kept = len(self.gdn_layers), len(self.attention_layers)
        heads = self.config.num_key_value_heads
        factory: dict[str, Any] = {"device": self.device, "dtype": self.dtype}
        return PrefixState(
            recurrent=torch.zeros(
                layers, gdn.num_v_heads, gdn.head_k_dim, gdn.head_v_dim, device=self.device, dtype=torch.float32
            ),
            conv_tail=torch.zeros(layers, gdn.conv_dim, TAIL, **factory),
            key=torch.zeros(kept, 0, heads, attention.head_dim, **factory),
            value=torch.zeros(kept, 0, heads, attention.head_dim, **factory),
            token_ids=torch.zeros(0, dtype=torch.int64),
            rotary=self.rotary,
        )

    def empty_context(self) -> Context:
        """The context before the first token."""
        return compose(self.empty_prefix(), [])

    @torch.inference_mode()
    def prefill_prefix(self, token_ids: TokenIds) -> PrefixState:
        """Prefills the text that every chunk of a store stands behind. No tokens give `empty_prefix()`."""
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
            conv_tail=captured.conv_tail[0],
            key=captured.key[0],
            value=captured.value[0],
            token_ids=ids.cpu(),
            rotary=self.rotary,
        )

    @torch.inference_mode()
    def prefill_chunks(
        self,
        prefix: PrefixState,
        chunks: Sequence[TokenIds],
        *,
        batch_tokens: int = 8192,
        on_batch: Callable[[int], None] | None = None,
    ) -> list[ChunkState]:
        """Prefills every chunk once, each as if it alone stood right behind `prefix`.

        Chunks of different lengths share a batch, padded on the right, where no real token can see the padding.

        Args:
            prefix: of `prefill_prefix`, or `empty_prefix()` for states that serve any prompt.
            chunks: token ids of each chunk, at least one token each.
            batch_tokens: padded tokens per forward pass; fewer need less memory.
            on_batch: called after each forward pass with the number of chunks it finished.

        Returns:
            One state per chunk, in the order given, with transition and update in float32.

        Raises:
            LinearKVError: an empty chunk.
        """
        ids = [self._token_ids(chunk) for chunk in chunks]
        for position, chunk in enumerate(ids):
            if not len(chunk):
                raise LinearKVError(f"chunk {position} has no tokens: there is nothing to prefill")
        states: list[ChunkState | None] = [None] * len(ids)
        for batch in _batches([len(chunk) for chunk in ids], batch_tokens):
            for position, state in zip(batch, self._prefill_batch(prefix, [ids[i] for i in batch]), strict=True):
                states[position] = state
            if on_batch is not None:
                on_batch(len(batch))
        return [state for state in states if state is not None]

    @torch.inference_mode()
    def prefill(self, token_ids: TokenIds, after: Context | None = None) -> Context:
        """Prefills `token_ids` for real, from the start or behind `after`, and returns the context that follows."""
        ids = self._token_ids(token_ids)
        start = after if after is not None else self.empty_context()
        if not len(ids):
            return start
        cache = self._cache(start)
        self._run(ids[None], cache)
        return self._context(cache, start.length + len(ids))

    @torch.inference_mode()
    def logits(self, context: Context, token_ids: TokenIds) -> torch.Tensor:
        """Logits after each of `token_ids`, which follow `context`: `[T, vocab]` float32."""
        ids = self._token_ids(token_ids)
        if not len(ids):
            raise LinearKVError("logits need at least one token")
        hidden = self._run(ids[None], self._cache(context))
        return self.hf.lm_head(hidden)[0].float()

    def generate(
        self,
        context: Context,
        token_ids: TokenIds,
        max_new_tokens: int,
        *,
        stop: Sequence[int] = (),
        sampling: Sampling | None = None,
    ) -> list[int]:
        """Tokens that follow `context` and `token_ids`: all that `stream` yields."""
        return list(self.stream(context, token_ids, max_new_tokens, stop=stop, sampling=sampling))

    def stream(
        self,
        context: Context,
        token_ids: TokenIds,
        max_new_tokens: int,
        *,
        stop: Sequence[int] = (),
        sampling: Sampling | None = None,
    ) -> Iterator[int]:
        """Yields tokens one by one until a token of `stop` (not yielded) or `max_new_tokens`."""
        sampling = sampling or Sampling()
        generator = sampling.generator(self.device)
        ids = self._token_ids(token_ids)
        if not len(ids):
            raise LinearKVError("generation needs at least one token behind the context")
        cache = self._cache(context)
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
        """The model's own rotary embedding at `positions [T]`: cos and sin `[T, R]` in the compute dtype."""
        like = torch.empty(0, dtype=self.dtype, device=positions.device)
        shape = (1,) * (1 + self._rotary_axes) + (-1,)
        cos, sin = self.hf.model.rotary_emb(like, positions.view(shape))
        return cos[0], sin[0]

    def _prefill_batch(self, prefix: PrefixState, ids: list[torch.Tensor]) -> Iterator[ChunkState]:
        lengths = torch.tensor([len(chunk) for chunk in ids], device=self.device)
        padded = torch.nn.utils.rnn.pad_sequence(ids, batch_first=True)
        cache = self._cache(compose(prefix, []), batch=len(ids))
        with Capture(self.gdn_layers, self.attention_layers, lengths, prefix.conv_tail) as captured:
            self._run(padded, cache)
        transition, update = captured.transition, captured.update
        conv_tail, key, value = captured.conv_tail, captured.key, captured.value
        for row, chunk in enumerate(ids):
            length = len(chunk)
            # Copies, so that one chunk's state does not keep the whole batch alive.
            yield ChunkState(
                transition=transition[row].clone(),
                update=update[row].clone(),
                conv_tail=conv_tail[row].clone(),
                key=key[row, :, :length].clone(),
                value=value[row, :, :length].clone(),
                token_ids=chunk.cpu(),
            )

    def _run(self, ids: torch.Tensor, cache: DynamicCache) -> torch.Tensor:
        """Hidden states `[B, T, hidden]` of `ids [B, T]` behind `cache`, which goes on to hold them as well."""
        output = self.hf.model(input_ids=ids, use_cache=True, **{self._cache_argument: cache})
        return output.last_hidden_state

    def _cache(self, context: Context, batch: int = 1) -> DynamicCache:
        """A transformers cache that stands right after `context`, the same for every sequence of the batch."""
        cache = DynamicCache(config=self.config)
        if not context.length:
            return cache
        for row, layer in enumerate(self._gdn_index):
            # Through the cache's own methods: a state assigned from outside is silently ignored.
            kernel = self.gdn_layers[row].conv_kernel_size
            tail = context.conv_tail[row].expand(batch, -1, -1)
            cache.update_conv_state(tail, layer, conv_kernel_size=kernel)
            cache.update_recurrent_state(context.recurrent[row].expand(batch, -1, -1, -1), layer)
        for row, layer in enumerate(self._attention_index):
            key, value = (t[row].transpose(0, 1).expand(batch, -1, -1, -1) for t in (context.key, context.value))
            cache.update(key, value, layer)
        return cache

    def _context(self, cache: Any, length: int) -> Context:
        conv = [cache.layers[i].conv_states[0][0, :, -TAIL:] for i in self._gdn_index]
        key = [cache.layers[i].keys[0].transpose(0, 1) for i in self._attention_index]
        value = [cache.layers[i].values[0].transpose(0, 1) for i in self._attention_index]
        return Context(self._recurrent(cache), torch.stack(conv), torch.stack(key), torch.stack(value), length)

    def _recurrent(self, cache: Any) -> torch.Tensor:
        return torch.stack([cache.layers[i].recurrent_states[0][0].float() for i in self._gdn_index])

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


def _batches(lengths: list[int], budget: int) -> Iterator[list[int]]:
    """Groups indices of chunks so that each padded batch holds at most `budget` tokens; similar lengths together."""
    batch: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda i: lengths[i], reverse=True):
        if batch and (len(batch) + 1) * lengths[batch[0]] > budget:
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch
