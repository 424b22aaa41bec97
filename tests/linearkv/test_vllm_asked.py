"""What requests ask of the plugin, what clients send, and which engines are refused: without vLLM."""

import copy
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from linearkv.client import completion, indexing, unknown
from linearkv.errors import LinearKVError, UnsupportedModelError
from linearkv.models.loading import REFERENCE
from linearkv.prompt import PromptFormat
from linearkv.vllm import versions
from linearkv.vllm.asked import Compose, Index, Refused, chunk_id, parse
from linearkv.vllm.checks import check_config

CHUNKS = ("# A\n\nThe mill stands.\n\n", "# B\n\nThe lamp is green, and its keeper lives in the mill.\n\n")


@pytest.fixture(scope="module")
def prompt():
    return PromptFormat(REFERENCE, 8192)


def test_a_completion_is_a_prompt_with_its_boundaries(prompt):
    body = completion(prompt, CHUNKS, "Who lives there?", order="cyclic", pivot=1, model="m", max_tokens=7)
    assert body["model"] == "m" and body["max_tokens"] == 7 and set(body["stop_token_ids"]) == prompt.stop_ids
    asked = parse(body["kv_transfer_params"]["linearkv"], len(body["prompt"]))
    assert asked == Compose(len(prompt.prefix_ids), asked.chunks, "cyclic", 1)
    prefix, chunks = asked.split(body["prompt"])
    assert prefix == prompt.prefix_ids and chunks == [prompt.chunk_ids(chunk) for chunk in CHUNKS]
    rest = body["prompt"][len(prefix) + sum(map(len, chunks)) :]
    assert rest == prompt.question_ids("Who lives there?")
    with pytest.raises(LinearKVError, match="question is empty"):
        completion(prompt, CHUNKS, " ")


def test_indexing_is_the_prefix_and_then_every_chunk_behind_it(prompt):
    first, *others = indexing(prompt, CHUNKS, model="m")
    assert parse(first["kv_transfer_params"]["linearkv"], len(first["prompt"])) == Index("prefix")
    assert first["prompt"] == prompt.prefix_ids and first["max_tokens"] == 1
    for body, chunk in zip(others, CHUNKS, strict=True):
        assert parse(body["kv_transfer_params"]["linearkv"], len(body["prompt"])) == Index(
            "chunk", len(first["prompt"])
        )
        assert body["prompt"] == [*prompt.prefix_ids, *prompt.chunk_ids(chunk)]


def test_indexing_knows_what_chunks_stand_behind(prompt):
    """The tokens and kinds that `StateCache` and the server look states up by."""
    prefix, primer, chunk = prompt.prefix_ids, prompt.primer_ids, prompt.chunk_ids(CHUNKS[0])

    def made(conditioning):
        bodies = list(indexing(prompt, CHUNKS[:1], conditioning=conditioning))
        return [(parse(b["kv_transfer_params"]["linearkv"], len(b["prompt"])), b["prompt"]) for b in bodies]

    assert made("none") == [(Index("prefix"), prefix), (Index("chunk", 0), chunk)]
    assert made("primer") == [
        (Index("prefix"), prefix),
        (Index("prefix"), [*prefix, *primer]),
        (Index("chunk", len(prefix) + len(primer)), [*prefix, *primer, *chunk]),
    ]
    with pytest.raises(ValueError, match="unknown conditioning"):
        made("some")


def test_unknown_chunks_are_those_the_answer_names():
    chunks = ["a", "b", "c"]
    said = {"tokens": 9, "chunks": 1, "unknown": [1, 2], "reason": "chunk 1 is not in the store"}
    assert unknown({"kv_transfer_params": {"linearkv": said}}, chunks) == ["b", "c"]
    assert unknown({"kv_transfer_params": {"linearkv": {"tokens": 0, "chunks": 0, "reason": "refused"}}}, chunks) == []
    assert unknown({"kv_transfer_params": None}, chunks) == unknown({}, chunks) == []  # of a server without LinearKV


def test_a_chunk_is_named_by_its_tokens():
    assert chunk_id([1, 2, 3]) == chunk_id((1, 2, 3)) != chunk_id([1, 2, 4])
    assert len(chunk_id([1])) == 32 and chunk_id([1, 2]) != chunk_id([2, 1])


def test_a_prompt_that_is_not_what_was_named_is_refused():
    ids = list(range(10, 40))
    asked = Compose(5, ((10, chunk_id(ids[5:15])), (4, chunk_id(ids[15:19]))))
    assert asked.split(ids) == (ids[:5], [ids[5:15], ids[15:19]])
    for place in (5, 14, 15, 18):
        other = [*ids[:place], 7, *ids[place + 1 :]]
        with pytest.raises(Refused, match="are not those of chunk"):
            asked.split(other)
    with pytest.raises(Refused, match="ends within chunk 1"):
        asked.split(ids[:17])


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=8,
)
NAMES = st.sampled_from(["prefix", "chunks", "order", "pivot", "index", "behind", "text", "other"])


@given(st.dictionaries(NAMES, VALUES, max_size=5) | VALUES)
def test_whatever_arrives_is_understood_or_refused(params):
    """A request is from outside: nothing in it may be an error of another kind."""
    try:
        asked = parse(params, 100)
    except Refused as refusal:
        assert str(refusal)
        return
    if isinstance(asked, Compose):
        assert asked.prefix + sum(tokens for tokens, _ in asked.chunks) <= 100
        try:
            asked.split(list(range(100)))
        except Refused as refusal:
            assert str(refusal)
    else:
        assert 0 <= asked.behind < 100


def config():
    """A `VllmConfig` as far as it is looked at."""
    return SimpleNamespace(
        model_config=SimpleNamespace(architectures=["Qwen3_5ForCausalLM"], dtype=torch.bfloat16),
        parallel_config=SimpleNamespace(
            tensor_parallel_size=1,
            pipeline_parallel_size=1,
            data_parallel_size=1,
            decode_context_parallel_size=1,
            distributed_executor_backend="uni",
        ),
        speculative_config=None,
        cache_config=SimpleNamespace(cache_dtype="auto", mamba_ssm_cache_dtype="float32"),
    )


@pytest.mark.parametrize(
    "where, value, words",
    [
        ("model_config.architectures", ["MambaForCausalLM"], "architecture MambaForCausalLM"),
        ("model_config.architectures", ["KimiLinearForCausalLM"], "architecture KimiLinear"),
        ("parallel_config.tensor_parallel_size", 2, "tensor parallelism of 2"),
        ("parallel_config.pipeline_parallel_size", 2, "pipeline parallelism of 2"),
        ("parallel_config.data_parallel_size", 4, "data parallelism of 4"),
        ("parallel_config.decode_context_parallel_size", 2, "context parallelism of 2"),
        ("parallel_config.distributed_executor_backend", "mp", "the executor mp"),
        ("speculative_config", SimpleNamespace(method="mtp"), r"\(mtp\), multi-token prediction included"),
        ("cache_config.cache_dtype", "fp8", "attention pages in fp8"),
        ("cache_config.cache_dtype", "float16", "attention pages in float16"),
        ("cache_config.cache_dtype", "fp8_e5m2", "attention pages in fp8_e5m2"),
        ("cache_config.mamba_ssm_cache_dtype", "auto", "recurrent states in auto.*mamba_ssm_cache_dtype to float32"),
    ],
)
def test_engines_that_are_not_served_are_refused_by_name(where, value, words):
    check_config(config())
    given_config = copy.deepcopy(config())
    *path, name = where.split(".")
    target = given_config
    for part in path:
        target = getattr(target, part)
    setattr(target, name, value)
    with pytest.raises(UnsupportedModelError, match=f"LinearKV does not support .*{words}"):
        check_config(given_config)


def test_a_release_that_was_never_run_with_is_refused(monkeypatch):
    for release, device in (("0.31.7", "cpu"), ("0.32.0", "cuda"), ("0.26.0", "cpu")):
        monkeypatch.setattr(versions, "installed", lambda release=release: release)
        words = rf"vLLM {release} on {device} was never run with LinearKV.*0\.26\.0 on a GPU, 0\.32\.0 on a CPU"
        with pytest.raises(LinearKVError, match=words):
            versions.check_version(device)
