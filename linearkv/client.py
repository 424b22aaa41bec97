"""Requests to a vLLM server that serves from LinearKV's states: prompts of chunks, with their boundaries attached.

    from linearkv import PromptFormat
    from linearkv.client import completion

    prompt = PromptFormat("Qwen3.5-27B/", vocab_size=248320)
    body = completion(prompt, chunks, "When does the ferry leave?", model="Qwen3.5-27B", max_tokens=64)
    httpx.post("http://localhost:8000/v1/completions", json=body)

What is sent is an ordinary completion of token ids: a server without LinearKV answers it as well. vLLM is not needed
here.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from linearkv.prompt import CONDITIONING, PromptFormat
from linearkv.vllm.asked import NAME, Compose, Index, chunk_id

__all__ = ["Compose", "Index", "chunk_id", "completion", "indexing", "unknown"]


def completion(
    prompt: PromptFormat,
    chunks: Sequence[str],
    question: str,
    *,
    order: str = "bidirectional",
    pivot: int = 0,
    **options: Any,
) -> dict[str, Any]:
    """The body of a request to `/v1/completions`: a question behind chunks, in the order given.

    The answer says in `kv_transfer_params` what became of it: `{"linearkv": {"tokens": ..., "chunks": ..., "unknown":
    [...], "reason": ...}}`, the prompt tokens and the chunks that were not computed, the places of chunks the server
    does not know, and why not all was composed, if it was not.

    Args:
        prompt: of the model and system prompt that the store was indexed with.
        chunks: as they were indexed: `hit.rendered` of what `Engine.search` found.
        order: which recurrent state the question starts from, see `linearkv.compose`.
        pivot: chunks at the end that the server prefills for real.
        options: of the completion: model, max_tokens, temperature, stream, ...

    Raises:
        LinearKVError: the question is empty.
    """
    ids = [prompt.chunk_ids(chunk) for chunk in chunks]
    named = tuple((len(chunk), chunk_id(chunk)) for chunk in ids)
    asked = Compose(len(prompt.prefix_ids), named, order, pivot)
    tokens = [*prompt.prefix_ids, *(token for chunk in ids for token in chunk), *prompt.question_ids(question)]
    return {
        "stop_token_ids": sorted(prompt.stop_ids),
        **options,
        "prompt": tokens,
        "kv_transfer_params": asked.params(),
    }


def indexing(
    prompt: PromptFormat, chunks: Sequence[str], *, conditioning: str = "prefix", **options: Any
) -> Iterator[dict[str, Any]]:
    """Bodies of requests to `/v1/completions` that have the server index chunks: the prefix (and with a primer, prefix
    and primer), then one for each chunk.

    Send them in this order, each prefix to its end before what follows. Every answer carries
    `{"linearkv": {"indexed": ...}}` in its `kv_transfer_params`, with a reason where it is false.

    Args:
        prompt: as for `completion`.
        chunks: texts, which will be found again by the same texts.
        conditioning: the server's: what chunks are prefilled behind, see `Engine.open`.
        options: of the completion: model.

    Raises:
        ValueError: an unknown conditioning.
    """
    prefix = prompt.prefix_ids
    behind = {"prefix": prefix, "primer": [*prefix, *prompt.primer_ids], "none": []}.get(conditioning)
    if behind is None:
        raise ValueError(f"unknown conditioning {conditioning!r}: expected one of {', '.join(CONDITIONING)}")
    common = {**options, "max_tokens": 1, "temperature": 0}
    for whole in (prefix, behind)[: 2 if conditioning == "primer" else 1]:
        yield {**common, "prompt": list(whole), "kv_transfer_params": Index("prefix").params()}
    for chunk in chunks:
        asked = Index("chunk", len(behind))
        yield {**common, "prompt": [*behind, *prompt.chunk_ids(chunk)], "kv_transfer_params": asked.params()}


def unknown(answer: Mapping[str, Any], chunks: Sequence[str]) -> list[str]:
    """Of the chunks of a request, those the server has no states of, for `indexing`; then they are reused next time.

    Chunks that the server was to prefill (`pivot`) are not among them, nor one that ends its prompt.

    Args:
        answer: what the server answered to a body of `completion`; a stream does not carry what this reads.
        chunks: that the body was made of.
    """
    said = (answer.get("kv_transfer_params") or {}).get(NAME, {})
    return list(dict.fromkeys(chunks[place] for place in said.get("unknown", ())))
