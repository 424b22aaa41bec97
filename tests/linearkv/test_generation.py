"""Promises of generation: greedy is the most likely token, sampling follows the distribution asked for, stops hold."""

import collections

import pytest
import torch

from linearkv import Sampling, compose
from linearkv.errors import LinearKVError

CPU = torch.device("cpu")


def random_ids(count, seed=0):
    return torch.randint(512, (count,), generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def setting(tiny_model):
    """A model, a composed context of two chunks, and a question."""
    model = tiny_model("qwen3_5")
    prefix = model.prefill_prefix(random_ids(8))
    context = compose(prefix, model.prefill_chunks(prefix, [random_ids(20, seed=1), random_ids(5, seed=2)]))
    return model, context, random_ids(6, seed=3)


@pytest.mark.parametrize("kind", ["qwen3_5", "qwen3_5_moe", "qwen3_next", "qwen3_5_multimodal"])
def test_greedy_takes_the_most_likely_token_each_time(kind, tiny_model):
    """Token by token from the cache, as if each step had prefilled everything so far at once."""
    model = tiny_model(kind)
    context, ids = model.prefill(random_ids(20)), random_ids(6, seed=1).tolist()
    expected = []
    for _ in range(12):
        expected.append(int(model.logits(context, ids + expected)[-1].argmax()))
    assert model.generate(context, ids, 12) == expected


def test_stream_yields_what_generate_returns(setting):
    model, context, question = setting
    assert list(model.stream(context, question, 8)) == model.generate(context, question, 8)


def test_a_stop_token_ends_the_answer_and_is_not_part_of_it(setting):
    model, context, question = setting
    free = model.generate(context, question, 12)
    stop = free[5]
    assert model.generate(context, question, 12, stop=[511, stop]) == free[: free.index(stop)]


@pytest.mark.parametrize("most", [0, 1, 3])
def test_no_more_tokens_than_asked_for(most, setting):
    model, context, question = setting
    assert len(model.generate(context, question, most)) == most


def test_an_empty_question_is_refused(setting):
    model, context, _ = setting
    with pytest.raises(LinearKVError, match="at least one token"):
        model.generate(context, [], 3)


def test_streaming_leaves_the_callers_torch_modes_alone(setting):
    model, context, question = setting
    for _ in model.stream(context, question, 2):
        assert not torch.is_inference_mode_enabled()
        assert torch.is_grad_enabled()


def test_a_seed_repeats_an_answer_and_another_changes_it(setting):
    model, context, question = setting

    def answer(seed):
        return model.generate(context, question, 12, sampling=Sampling(temperature=2.0, seed=seed))

    assert answer(5) == answer(5)
    assert len({tuple(answer(seed)) for seed in range(4)}) > 1


def test_without_a_seed_answers_vary_and_the_global_generator_stays(setting):
    model, context, question = setting
    before = torch.get_rng_state()
    answers = {tuple(model.generate(context, question, 12, sampling=Sampling(temperature=3.0))) for _ in range(4)}
    assert len(answers) > 1
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=1.0, top_k=1, seed=0),
        Sampling(temperature=1.0, top_p=1e-6, seed=0),
        Sampling(temperature=1e-30, seed=0),
    ],
    ids=["top_k=1", "tiny top_p", "tiny temperature"],
)
def test_the_narrowest_sampling_is_greedy(sampling, setting):
    model, context, question = setting
    assert model.generate(context, question, 12, sampling=sampling) == model.generate(context, question, 12)


@pytest.mark.parametrize("sampling", [Sampling(temperature=1.0, top_k=1), Sampling(temperature=1.0, top_p=1e-6)])
def test_of_equal_logits_the_narrowest_sampling_takes_what_greedy_takes(sampling):
    """Equal largest logits are common in bfloat16."""
    logits = torch.zeros(1000)
    logits[[70, 300, 999]] = 5.0
    generator = sampling.generator(CPU)
    assert {sampling.choose(logits, generator) for _ in range(20)} == {Sampling().choose(logits, None)} == {70}


def frequencies(sampling, logits, draws=4000):
    generator = sampling.generator(CPU)
    counts = collections.Counter(sampling.choose(logits, generator) for _ in range(draws))
    return torch.tensor([counts[token] / draws for token in range(len(logits))])


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        (Sampling(temperature=1.0, seed=1), [0.1, 0.4, 0.2, 0.3]),
        (Sampling(temperature=0.5, seed=1), [1 / 30, 16 / 30, 4 / 30, 9 / 30]),
        (Sampling(temperature=1.0, top_k=2, seed=1), [0, 4 / 7, 0, 3 / 7]),
        (Sampling(temperature=1.0, top_k=9, seed=1), [0.1, 0.4, 0.2, 0.3]),
        (Sampling(temperature=1.0, top_p=0.65, seed=1), [0, 4 / 7, 0, 3 / 7]),
        (Sampling(temperature=1.0, top_p=0.75, seed=1), [0, 4 / 9, 2 / 9, 3 / 9]),
        (Sampling(temperature=1.0, top_k=3, top_p=0.7, seed=1), [0, 4 / 7, 0, 3 / 7]),
    ],
    ids=str,
)
def test_tokens_come_as_often_as_their_probability_says(sampling, expected):
    """4,000 draws: four standard deviations are 0.03. Tokens that are cut never come."""
    found = frequencies(sampling, torch.tensor([0.1, 0.4, 0.2, 0.3]).log())
    expected = torch.tensor(expected)
    assert (found - expected).abs().max() < 0.032
    assert not found[expected == 0].any()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"temperature": -1.0}, "temperature must be a number of at least 0, not -1.0"),
        ({"temperature": float("nan")}, "temperature must be a number of at least 0, not nan"),
        ({"top_k": -1}, "top_k must be at least 0, not -1"),
        ({"top_p": 0.0}, r"top_p must be in \(0, 1\], not 0.0"),
        ({"top_p": 1.5}, r"top_p must be in \(0, 1\], not 1.5"),
    ],
)
def test_settings_that_mean_nothing_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        Sampling(**arguments)
