"""The engine on vLLM: the same Python API, and answers that agree with those of the model as transformers runs it."""

import json
from pathlib import Path

import pytest

from linearkv import Engine, Settings
from linearkv.errors import LinearKVError

from .conftest import MACHINE

HANDBOOK = Path(__file__).parents[2] / "examples" / "handbook"
SETTINGS = Settings(chunk_tokens=160, restore="always", vllm={"max_model_len": 4096, "max_num_seqs": 8, **MACHINE})


@pytest.fixture(scope="module")
def asked():
    lines = (HANDBOOK / "qa.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["question"] for line in lines[:40]]


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return tmp_path_factory.mktemp("engine") / "store"


@pytest.fixture(scope="module")
def answers(store, asked):
    """Of the first process of a store: it indexes, asks, and evaluates a few questions."""
    with Engine.open(store, backend="vllm", settings=SETTINGS) as engine:
        report = engine.index(HANDBOOK)
        assert report.prefilled == report.chunks and not report.not_stored
        assert engine.stats()["model"].endswith("reference") and engine.stats()["dtype"] == "bfloat16"
        return [engine.query(question, k=4, order="sequential") for question in asked]


def test_answers_are_those_of_the_python_engine(answers, asked, tmp_path):
    with Engine.open(tmp_path / "store", settings=SETTINGS) as engine:
        engine.index(HANDBOOK)
        theirs = [engine.query(question, k=4, order="sequential") for question in asked]
    agree = sum(ours.text == other.text for ours, other in zip(answers, theirs, strict=True))
    assert agree >= 0.9 * len(asked), agree
    for ours, other in zip(answers, theirs, strict=True):
        assert [source.chunk_id for source in ours.sources] == [source.chunk_id for source in other.sources]
        assert ours.cache.reused_tokens == other.cache.reused_tokens and ours.cache.hits == other.cache.hits


def test_a_later_process_finds_every_state_and_answers_the_same(answers, asked, store):
    with Engine.open(store, backend="vllm", settings=SETTINGS) as engine:
        report = engine.index(HANDBOOK)
        assert not report.prefilled and report.reused == report.chunks
        for question, before in list(zip(asked, answers, strict=True))[:10]:
            answer = engine.query(question, k=4, order="sequential")
            assert answer.text == before.text and answer.cache.hits == answer.cache.chunks
            assert "".join(engine.stream(question, k=4, order="sequential")).strip() == before.text
        full = engine.query(asked[0], k=4, mode="full")
        assert full.cache.reused_tokens == 0 and full.text
        pivoted = engine.query(asked[0], k=4, pivot=1)
        assert pivoted.cache.tiers["pivot"] == 1 and pivoted.text
        report = engine.evaluate(limit=3, k=4, shuffles=2)
        assert {mode["mode"] for mode in json.loads(report.to_json())["modes"]} >= {
            "full",
            "sequential",
            "bidirectional",
        }
        with pytest.raises(LinearKVError, match="zero_start_seam8 computes layer by layer"):
            engine.evaluate(limit=3, k=4, shuffles=2, modes=["zero_start_seam8"])


def test_choices_vllm_does_not_have_are_refused(tmp_path):
    with pytest.raises(LinearKVError, match="no choice of device"):
        Engine.open(tmp_path / "store", backend="vllm", dtype="float32")
    with pytest.raises(FileNotFoundError, match="no checkpoint"):
        Engine.open(tmp_path / "store", tmp_path, backend="vllm")
    assert not (tmp_path / "store").exists()
