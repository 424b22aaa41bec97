"""A Gated DeltaNet hybrid as the engine sees it, whoever runs it: prefill of prefixes, chunks and text, and answers."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from linearkv.composition import compose
from linearkv.errors import LinearKVError
from linearkv.identity import ModelIdentity, digest_value
from linearkv.kernels.backend import runs_triton
from linearkv.models.generation import Sampling
from linearkv.states import TAIL, ChunkState, Context, PrefixState

if TYPE_CHECKING:
    from linearkv.models.capture import Capture

TokenIds = Sequence[int] | torch.Tensor

BATCH_STATE_BYTES = 1 << 30
"""Bytes of transitions and updates that one forward pass over several chunks may always make: their size does not
depend on how short the chunks are."""

# What a configuration says of where it came from, not of what is computed.
_NOT_COMPUTED = ("_name_or_path", "transformers_version", "architectures", "dtype", "torch_dtype")


def digest_config(config: Any) -> str:
    """Digest of what a configuration of transformers says of the computation."""
    return digest_value({name: value for name, value in config.to_dict().items() if name not in _NOT_COMPUTED})


def kernels_used(device: torch.device) -> str:
    """Which of our kernels make states there, where not the reference: equal to its up to rounding, and no further."""
    return f", triton {version('triton')}" if runs_triton(device) else ""


class GDNModel(ABC):
    """A loaded checkpoint; keeps no state between calls.

    Attributes:
        folder: where the checkpoint lies; None for a model that was made in memory.
        config: the text model's configuration, of transformers.
    """

    folder: Path | None
    config: Any
    has_servers: bool = False
    """Whether others serve from states of this model without computing any, and so need the prefix's as well."""

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """Where it computes."""

    @property
    @abstractmethod
    def dtype(self) -> torch.dtype:
        """Compute dtype."""

    @property
    @abstractmethod
    def architecture(self) -> str:
        """Name of the model's class."""

    @property
    def layer_types(self) -> list[str]:
        """`linear_attention` or `full_attention`, layer by layer."""
        return list(self.config.layer_types)

    @property
    def vocab_size(self) -> int:
        return self.config.vocab_size

    @property
    def max_length(self) -> int:
        """Tokens of a prompt and its answer, at most."""
        return self.config.max_position_embeddings

    @property
    @abstractmethod
    def stop_ids(self) -> tuple[int, ...]:
        """Tokens that end an answer, by the checkpoint's generation config."""

    @property
    def state_bytes(self) -> int:
        """Bytes of a chunk's transition and update in float32, whatever its length."""
        config = self.config
        key_dim, value_dim = config.linear_key_head_dim, config.linear_value_head_dim
        layers = self.layer_types.count("linear_attention")
        return layers * config.linear_num_value_heads * key_dim * (key_dim + value_dim) * 4

    @property
    def room_for_states(self) -> int:
        """Bytes of transitions and updates, in float32, that one forward pass over several chunks makes at most: a
        quarter of what is free on a GPU, where a pass over few chunks leaves most of it idle."""
        free = torch.cuda.mem_get_info(self.device)[0] if self.device.type == "cuda" else 0
        return max(BATCH_STATE_BYTES, free // 4)

    def synchronize(self) -> None:
        """Waits until the device has done what it was given; for who measures time."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    @abstractmethod
    def identify(self) -> ModelIdentity:
        """Everything about this model that shapes its states. Reads its weights once."""

    @abstractmethod
    def rotary(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The model's own rotary embedding at `positions [T]`: cos and sin `[T, R]` in the compute dtype."""

    def empty_prefix(self) -> PrefixState:
        """The prefix of no tokens: zero state, nothing to attend to."""
        config = self.config
        layers, kept = (self.layer_types.count(kind) for kind in ("linear_attention", "full_attention"))
        key_dim, value_dim = config.linear_key_head_dim, config.linear_value_head_dim
        channels = 2 * config.linear_num_key_heads * key_dim + config.linear_num_value_heads * value_dim
        factory: dict[str, Any] = {"device": self.device, "dtype": self.dtype}
        keys = torch.zeros(kept, 0, config.num_key_value_heads, config.head_dim, **factory)
        return PrefixState(
            recurrent=torch.zeros(
                layers, config.linear_num_value_heads, key_dim, value_dim, device=self.device, dtype=torch.float32
            ),
            conv_tail=torch.zeros(layers, channels, TAIL, **factory),
            key=keys,
            value=keys.clone(),
            token_ids=torch.zeros(0, dtype=torch.int64),
            rotary=self.rotary,
        )

    def empty_context(self) -> Context:
        """The context before the first token."""
        return compose(self.empty_prefix(), [])

    @abstractmethod
    def prefill_prefix(self, token_ids: TokenIds) -> PrefixState:
        """Prefills the text that every chunk of a store stands behind. No tokens give `empty_prefix()`."""

    @abstractmethod
    def prefill_chunks(
        self,
        prefix: PrefixState | Context | Sequence[Context],
        chunks: Sequence[TokenIds],
        *,
        batch_tokens: int = 8192,
    ) -> list[ChunkState]:
        """Prefills every chunk once, each as if it alone stood right behind `prefix`.

        Args:
            prefix: of `prefill_prefix`, or `empty_prefix()` for states that serve any prompt; or a context, or one for
                each chunk, all equally long.
            chunks: token ids of each chunk, at least one token each.
            batch_tokens: padded tokens per forward pass; fewer need less memory. Chunks whose states would take more
                than `room_for_states` do not share one, however short they are.

        Returns:
            One state per chunk, in the order given, with transition and update in float32.

        Raises:
            LinearKVError: an empty chunk.
        """

    def _starts(
        self, prefix: PrefixState | Context | Sequence[Context], chunks: Sequence[Sequence[int] | torch.Tensor]
    ) -> Sequence[Context]:
        """What each chunk is prefilled behind; LinearKVError for a chunk of no tokens."""
        for position, chunk in enumerate(chunks):
            if not len(chunk):
                raise LinearKVError(f"chunk {position} has no tokens: there is nothing to prefill")
        if isinstance(prefix, PrefixState):
            prefix = compose(prefix, [])
        return [prefix] * len(chunks) if isinstance(prefix, Context) else prefix

    def prefill(self, token_ids: TokenIds, after: Context | None = None) -> Context:
        """Prefills `token_ids` for real, from the start or behind `after`, and returns the context that follows."""
        return self.prefill_many([token_ids], [after])[0]

    @abstractmethod
    def prefill_many(
        self, sequences: Sequence[TokenIds], after: Sequence[Context | None] | None = None
    ) -> list[Context]:
        """`prefill` of each sequence behind its own context."""

    def logits(self, context: Context, token_ids: TokenIds) -> torch.Tensor:
        """Logits after each of `token_ids`, which follow `context`: `[T, vocab]` float32."""
        return self.logits_many([context], [token_ids])[0]

    @abstractmethod
    def logits_many(self, contexts: Sequence[Context], sequences: Sequence[TokenIds]) -> list[torch.Tensor]:
        """`logits` of each sequence behind its own context."""

    @abstractmethod
    def generate_many(
        self,
        contexts: Sequence[Context],
        sequences: Sequence[TokenIds],
        max_new_tokens: int,
        *,
        stop: Sequence[int] | None = None,
    ) -> list[list[int]]:
        """Greedy `generate` behind each context, together."""

    def generate(
        self,
        context: Context,
        token_ids: TokenIds,
        max_new_tokens: int,
        *,
        stop: Sequence[int] | None = None,
        sampling: Sampling | None = None,
    ) -> list[int]:
        """Tokens that follow `context` and `token_ids`: all that `stream` yields."""
        return list(self.stream(context, token_ids, max_new_tokens, stop=stop, sampling=sampling))

    @abstractmethod
    def stream(
        self,
        context: Context,
        token_ids: TokenIds,
        max_new_tokens: int,
        *,
        stop: Sequence[int] | None = None,
        sampling: Sampling | None = None,
    ) -> Iterator[int]:
        """Yields tokens one by one until a token of `stop` (not yielded) or `max_new_tokens`.

        `stop` is by default the end tokens of the checkpoint's generation config; `()` stops at none.
        """

    def capture(self, sequences: Sequence[TokenIds], after: Context) -> "Capture":
        """What a prefill of each of `sequences` behind one context computes inside: see `Capture`, with `inputs` kept.

        Raises:
            LinearKVError: whoever runs this model does not let one look inside.
        """
        raise LinearKVError(f"what happens inside {self.architecture} cannot be looked at where it runs")

    def close(self) -> None:  # noqa: B027 - most have nothing to free
        """Frees what the model holds beside its weights; it is not used afterwards."""
