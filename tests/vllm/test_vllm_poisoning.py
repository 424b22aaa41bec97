"""Composed requests leave no trace in what ordinary requests are answered from."""

import random

import pytest

from linearkv.client import completion, indexing

from .conftest import open_engine

BLOCK = 640
"""Tokens of an attention block of this model in vLLM: only whole ones are found again."""


@pytest.fixture(scope="module")
def composed(prompt, chunks, questions):
    """Requests longer than a block, of all chunks in random orders, some with a salt of their own."""
    chance = random.Random(3)
    made = []
    for number in range(6):
        some = chance.sample(chunks, len(chunks))
        salt = {} if number % 2 else {"cache_salt": "a"}
        made.append(completion(prompt, some, questions[number].question, max_tokens=6, **salt))
    assert all(len(body["prompt"]) > BLOCK for body in made)
    return made


@pytest.fixture(scope="module")
def ordinary(composed):
    """The same tokens without our parameters: salted as theirs, otherwise, and not at all; each twice."""
    plain = [{k: v for k, v in body.items() if k not in ("kv_transfer_params", "cache_salt")} for body in composed]
    return [body | salt for salt in ({"cache_salt": "a"}, {"cache_salt": "b"}, {}) for body in plain] * 2


def answers(engine, bodies):
    """One at a time: a batch would round otherwise."""
    return [engine.run([body])[0]._replace(params=None) for body in bodies]


@pytest.mark.parametrize("caching", [False, True], ids=["uncached", "prefix caching"])
def test_ordinary_requests_are_answered_to_the_bit_as_without_the_plugin(
    checkpoint, prompt, chunks, composed, ordinary, caching, tmp_path
):
    with open_engine(checkpoint, plugin=False, enable_prefix_caching=caching) as engine:
        clean = answers(engine, ordinary)
        clean_free = engine.free_blocks
    assert any(output.cached >= BLOCK for output in clean) == caching
    with open_engine(checkpoint, tmp_path / "store", enable_prefix_caching=caching) as engine:
        for body in indexing(prompt, chunks):
            engine.run([body])
        for output in answers(engine, composed):  # alone, and then together
            assert output.cached > BLOCK
        engine.run(composed)
        assert engine.counts["composed"] == 12
        assert answers(engine, ordinary) == clean
        again = answers(engine, composed)  # and back: what is now cached of ordinary requests is not theirs
        assert all(output.cached > BLOCK and output.cached % BLOCK for output in again)
        assert answers(engine, ordinary[:6]) == answers(engine, ordinary[:6])
        assert engine.free_blocks == clean_free


def test_attention_pages_without_their_state_are_no_hit(checkpoint, prompt, chunks, tmp_path):
    """vLLM keeps a recurrent state where a step ended: of a long prompt's beginning there are attention pages alone."""
    text = [token for chunk in chunks for token in prompt.chunk_ids(chunk)] * 2
    long = text[: 3 * BLOCK + 200]
    bodies = [{"prompt": tokens, "max_tokens": 6} for tokens in (long, [*long[: 2 * BLOCK + 50], *text[7:90]], long)]
    with open_engine(checkpoint, plugin=False, enable_prefix_caching=True) as engine:
        clean = answers(engine, bodies)
    assert clean[2].cached >= BLOCK
    with open_engine(checkpoint, tmp_path / "store", enable_prefix_caching=True) as engine:
        assert answers(engine, bodies) == clean
