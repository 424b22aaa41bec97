"""What a request asks of LinearKV, as it travels in `kv_transfer_params`; also for clients, so without vLLM.

    {"linearkv": {"prefix": 41, "chunks": [[128, "3f…"], [97, "a0…"]], "order": "bidirectional", "pivot": 0}}
    {"linearkv": {"index": "chunk", "behind": 41, "text": "…"}}

The first composes: the prompt is a prefix of 41 tokens, chunks of 128 and 97, and what the client likes. The second
indexes: what the prompt holds behind its first 41 tokens is a chunk, which belongs to a text with this hash; or, with
`"index": "prefix"`, the whole prompt is a prefix. Boundaries and ids are checked against the prompt's own token ids.
"""

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from blake3 import blake3

from linearkv.kernels.compose import ORDERS

NAME = "linearkv"
"""Of our part of `kv_transfer_params`."""


class Refused(ValueError):
    """A request that does not say what LinearKV understands, or not what its prompt says."""


def chunk_id(token_ids: Sequence[int]) -> str:
    """32 hex digits that name a chunk by its token ids."""
    return blake3(array("q", token_ids).tobytes()).hexdigest()[:32]


@dataclass(frozen=True)
class Compose:
    """A prompt of a prefix and chunks whose states are to be composed, as far as they are known.

    Attributes:
        prefix: tokens of the prefix.
        chunks: tokens and id of each chunk, in the order of the prompt.
        order: see `linearkv.compose`.
        pivot: chunks at the end that are prefilled for real.
    """

    prefix: int
    chunks: tuple[tuple[int, str], ...]
    order: str = "bidirectional"
    pivot: int = 0

    def params(self) -> dict[str, Any]:
        """For `kv_transfer_params`."""
        chunks = [list(chunk) for chunk in self.chunks]
        return {NAME: {"prefix": self.prefix, "chunks": chunks, "order": self.order, "pivot": self.pivot}}

    def split(self, prompt: Sequence[int]) -> tuple[list[int], list[list[int]]]:
        """Token ids of the prefix and of every chunk.

        Raises:
            Refused: the prompt is shorter, or a chunk's tokens are not those of its id.
        """
        at = self.prefix
        chunks = []
        for place, (tokens, named) in enumerate(self.chunks):
            ids = list(prompt[at : at + tokens])
            if len(ids) < tokens:
                raise Refused(f"the prompt of {len(prompt)} tokens ends within chunk {place}")
            if chunk_id(ids) != named:
                raise Refused(f"the prompt's tokens {at} to {at + tokens} are not those of chunk {place}, {named!r}")
            chunks.append(ids)
            at += tokens
        return list(prompt[: self.prefix]), chunks


@dataclass(frozen=True)
class Index:
    """A prompt whose state is to be kept.

    Attributes:
        kind: `prefix`, the whole prompt; or `chunk`, what stands behind its first `behind` tokens.
        behind: 0 for a prefix, and for chunks of a store without conditioning.
        text: hash of the text a chunk belongs to, as in the catalogue; empty where there is none.
    """

    kind: str
    behind: int = 0
    text: str = ""

    def params(self) -> dict[str, Any]:
        """For `kv_transfer_params`."""
        return {NAME: {"index": self.kind, "behind": self.behind, "text": self.text}}


def parse(params: Mapping[str, Any], prompt_tokens: int) -> Compose | Index:
    """What our part of a request's parameters asks.

    Raises:
        Refused: says what is wrong with it.
    """
    if not isinstance(params, Mapping):
        raise Refused(f"expected an object, not {type(params).__name__}")
    if "index" in params:
        known, kind = {"index", "behind", "text"}, params["index"]
        if kind not in ("prefix", "chunk"):
            raise Refused(f"index is {kind!r}: expected prefix or chunk")
        behind, text = _count(params.get("behind", 0), "behind"), params.get("text", "")
        if not isinstance(text, str) or len(text) > 256:
            raise Refused("text is no hash")
        if behind >= prompt_tokens or (kind == "prefix" and behind):
            raise Refused(f"behind is {behind} in a prompt of {prompt_tokens} tokens: nothing is left to index")
        _only(params, known)
        return Index(kind, behind, text)
    _only(params, {"prefix", "chunks", "order", "pivot"})
    order = params.get("order", "bidirectional")
    if order not in ORDERS:
        raise Refused(f"order is {order!r}: expected one of {', '.join(ORDERS)}")
    chunks = params.get("chunks", [])
    if not isinstance(chunks, Sequence) or isinstance(chunks, str):
        raise Refused("chunks is no list")
    pairs = []
    for chunk in chunks:
        if not (isinstance(chunk, Sequence) and len(chunk) == 2 and isinstance(chunk[1], str)):
            raise Refused(f"a chunk is [tokens, id], not {chunk!r}")
        pairs.append((_count(chunk[0], "tokens of a chunk", least=1), chunk[1]))
    asked = Compose(
        _count(params.get("prefix", 0), "prefix"), tuple(pairs), order, _count(params.get("pivot", 0), "pivot")
    )
    if asked.prefix + sum(tokens for tokens, _ in pairs) > prompt_tokens:
        raise Refused(f"prefix and chunks are longer than the prompt of {prompt_tokens} tokens")
    return asked


def _count(value: Any, name: str, least: int = 0) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise Refused(f"{name} is {value!r}: expected a whole number from {least}")
    return value


def _only(params: Mapping[str, Any], known: set[str]) -> None:
    if unknown := sorted(set(params) - known):
        raise Refused(f"unknown: {', '.join(map(str, unknown))}; expected {', '.join(sorted(known))}")
