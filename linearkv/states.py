"""The objects that travel from prefill to answer: PrefixState, ChunkState and Context.

Letters: Lg GDN layers, La attention layers, H value heads, K and V key and value head dims of the GDN layers,
C channels of the short convolution (queries, keys and values before it), Hkv and D key/value heads and head dim of
attention, T tokens, and `TAIL` = 3, the inputs the convolution of width 4 still sees of what came before.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from linearkv.kernels.compose import unpacked

TAIL = 3

Rotary = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
"""The model's own rotary embedding: positions `[T]` -> cos and sin, each `[T, R]`, in the keys' dtype and device."""


@dataclass(frozen=True)
class PrefixState:
    """A prefix (system prompt and the text up to the first chunk) prefilled once; or the empty prefix, length 0.

    Attributes:
        recurrent: `[Lg, H, K, V]` float32, the GDN state after the prefix.
        conv_tail: `[Lg, C, TAIL]` model dtype, the last raw convolution inputs; zeros where the prefix is shorter.
        key, value: `[La, T, Hkv, D]` model dtype, keys before rotary embedding.
        token_ids: `[T]` int64 on the CPU.
        rotary: the model's rotary embedding, which rotates the keys of a context where they land.
    """

    recurrent: torch.Tensor
    conv_tail: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    token_ids: torch.Tensor
    rotary: Rotary

    def __post_init__(self) -> None:
        _check_shapes(self.recurrent, self.conv_tail, self.key, self.value, len(self.token_ids))

    @property
    def length(self) -> int:
        return len(self.token_ids)

    def layers(self, gdn: slice, attention: slice) -> "PrefixState":
        """Some of its layers, as views: GDN layers counted among GDN layers, attention layers among theirs."""
        return replace(
            self,
            recurrent=self.recurrent[gdn],
            conv_tail=self.conv_tail[gdn],
            key=self.key[attention],
            value=self.value[attention],
        )


@dataclass(frozen=True)
class ChunkState:
    """What is kept of one chunk: how it maps GDN states, and its keys and values.

    Attributes:
        transition: `[Lg, H, K, K]` and update: `[Lg, H, K, V]`, in the storage dtype; a state S before the chunk is
            `transition @ S + update` after it.
        conv_tail: `[Lg, C, TAIL]` model dtype, the last raw convolution inputs of the chunk, newest last. Of a chunk of
            T < TAIL tokens only the last T columns are its own; a composition borrows the rest from what precedes it.
        key, value: `[La, T, Hkv, D]` model dtype, keys before rotary embedding.
        token_ids: `[T]` int64 on the CPU, T >= 1.
        rows: None, or int32 `[Lg, H]` where the transition is packed: `[n, K, K]` of the heads that need one, with a
            head's place among them in `rows`, and -1 for a head that has forgotten what came before the chunk.
    """

    transition: torch.Tensor
    update: torch.Tensor
    conv_tail: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    token_ids: torch.Tensor
    rows: torch.Tensor | None = None

    def __post_init__(self) -> None:
        *heads, key_dim, columns = self.transition.shape
        lead = tuple(heads) if self.rows is None else tuple(self.rows.shape)
        fits = tuple(self.update.shape[:3]) == (*lead, key_dim)
        if columns != key_dim or len(heads) != (2 if self.rows is None else 1) or not fits:
            raise ValueError(
                f"transition {tuple(self.transition.shape)} and update {tuple(self.update.shape)} do not agree"
            )
        if self.rows is not None and self.rows.device.type == "cpu" and int(self.rows.max()) >= heads[0]:
            raise ValueError(f"rows name transition {int(self.rows.max())}, of which there are {heads[0]}")
        if len(self.token_ids) == 0:
            raise ValueError("a chunk of no tokens has no state")
        _check_shapes(self.update, self.conv_tail, self.key, self.value, len(self.token_ids))

    @property
    def length(self) -> int:
        return len(self.token_ids)

    @property
    def nbytes(self) -> int:
        """Bytes of all its tensors."""
        tensors = (self.transition, self.update, self.conv_tail, self.key, self.value, self.token_ids, self.rows)
        return sum(tensor.nbytes for tensor in tensors if tensor is not None)

    def layers(self, gdn: slice, attention: slice) -> "ChunkState":
        """Some of its layers, as views: GDN layers counted among GDN layers, attention layers among theirs."""
        packed = self.rows is not None
        return replace(
            self,
            transition=self.transition if packed else self.transition[gdn],
            update=self.update[gdn],
            conv_tail=self.conv_tail[gdn],
            key=self.key[attention],
            value=self.value[attention],
            rows=self.rows[gdn] if self.rows is not None else None,
        )

    def dense(self) -> "ChunkState":
        """The same state with a transition `[Lg, H, K, K]`, zero where a packed one leaves a head out."""
        if self.rows is None:
            return self
        return replace(self, transition=unpacked(self.transition, self.rows), rows=None)

    def to(self, device: torch.device) -> "ChunkState":
        """The same state with its tensors on `device` (token ids stay on the CPU)."""
        if self.update.device == device:
            return self
        names = ("transition", "update", "conv_tail", "key", "value", "rows")
        parts = {name: part for name in names if (part := getattr(self, name)) is not None}
        return replace(self, **{name: part.to(device) for name, part in parts.items()})


@dataclass(frozen=True)
class Context:
    """Everything the model needs to go on after `length` tokens, whether they were prefilled or composed.

    Attributes:
        recurrent: `[Lg, H, K, V]` float32.
        conv_tail: `[Lg, C, TAIL]` model dtype.
        key: `[La, length, Hkv, D]` model dtype, keys *after* rotary embedding at positions 0 .. length - 1.
        value: `[La, length, Hkv, D]` model dtype.
        length: number of tokens, and the position of the next one.
    """

    recurrent: torch.Tensor
    conv_tail: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    length: int

    def __post_init__(self) -> None:
        _check_shapes(self.recurrent, self.conv_tail, self.key, self.value, self.length)


def _check_shapes(
    recurrent: torch.Tensor, conv_tail: torch.Tensor, key: torch.Tensor, value: torch.Tensor, length: int
) -> None:
    if conv_tail.shape[0] != recurrent.shape[0] or conv_tail.shape[2] != TAIL:
        raise ValueError(
            f"conv_tail {tuple(conv_tail.shape)} does not fit {recurrent.shape[0]} layers of {TAIL} inputs"
        )
    if key.shape != value.shape or key.dim() != 4 or key.shape[1] != length:
        raise ValueError(f"key {tuple(key.shape)} and value {tuple(value.shape)} do not hold {length} tokens")
