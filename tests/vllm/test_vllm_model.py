"""A model that vLLM runs: what goes in and comes out of its blocks, against vLLM's own prefill and transformers'."""

import random

import pytest
import torch

from linearkv import Sampling, compose
from linearkv.errors import LinearKVError
from linearkv.kernels.compose import ORDERS
from linearkv.vllm.model import VLLMModel
from linearkv.vllm.worker import Worker

from .conftest import MACHINE

PREFIX = 37
LENGTHS = (1, 2, 3, 4, 63, 64, 65, 97, 200, 640)


def ids(number, seed):
    chance = random.Random(seed)
    return [chance.randrange(3, 8000) for _ in range(number)]


@pytest.fixture(scope="module", params=[False, True], ids=["uncached", "prefix caching"])
def model(request):
    options = {"max_num_seqs": 8, "max_model_len": 4096, "enable_prefix_caching": request.param}
    opened = VLLMModel("reference", **options, **MACHINE)
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def prefix(model):
    return model.prefill_prefix(ids(PREFIX, 0))


@pytest.fixture(scope="module")
def states(model, prefix):
    chunks = [ids(length, length) for length in LENGTHS]
    # A GPU's products round by how many tokens there are, and so do those of a processor with matrix units (AMX): what
    # is to be the same to the bit is computed alone.
    return [state for chunk in chunks for state in model.prefill_chunks(prefix, [chunk])]


@pytest.fixture(scope="module")
def question():
    return ids(20, 1000)


@pytest.mark.parametrize("place", range(len(LENGTHS)), ids=map(str, LENGTHS))
def test_one_chunk_right_behind_its_prefix_is_what_vllm_computes(model, prefix, states, question, place):
    composed = compose(prefix, [states[place]], "sequential")
    prefilled = model.prefill(states[place].token_ids, after=compose(prefix, []))
    assert torch.equal(composed.key, prefilled.key) and torch.equal(composed.value, prefilled.value)
    assert torch.equal(composed.conv_tail, prefilled.conv_tail)
    assert (composed.recurrent - prefilled.recurrent).norm() <= 1e-6 * prefilled.recurrent.norm()
    expected = model.logits(prefilled, question).log_softmax(-1)
    # The composed state is multiplied out by another kernel, and with a GPU or matrix units a last bit of it may turn
    # one of bfloat16's: with AMX that moves one token of the question behind one of these chunks, by up to 0.074.
    exact = model.device.type == "cpu" and not torch.cpu._is_amx_tile_supported()
    bound = 1e-3 if exact else 0.1 if model.device.type == "cpu" else 0.2
    assert (model.logits(composed, question).log_softmax(-1) - expected).abs().max() <= bound


def test_a_context_goes_into_blocks_and_comes_out_as_it_was(model, prefix, states):
    context = compose(prefix, states, "bidirectional")
    token = model.prefill([5], after=context)
    assert torch.equal(token.key[:, :-1], context.key) and torch.equal(token.value[:, :-1], context.value)
    assert torch.equal(token.conv_tail[..., :-1], context.conv_tail[..., 1:])


def test_one_token_behind_a_context_and_many_agree(model, prefix, states, question):
    """One token is computed as a decode step, and reads the state another way."""
    context = compose(prefix, states[-2:], "sequential")
    at_once = model.logits(context, question)
    one_by_one = []
    for token in question:
        one_by_one.append(model.logits(context, [token])[0])
        context = model.prefill([token], after=context)
    difference = (torch.stack(one_by_one).log_softmax(-1) - at_once.log_softmax(-1)).abs()
    assert difference.mean() < 0.06 and difference.max() < 0.6  # bfloat16, in another order of rounding


@pytest.mark.parametrize("order", ORDERS)
def test_composed_logits_are_those_of_transformers_to_rounding(
    model, prefix, states, question, transformers_model, order
):
    """Rounding is what full prefill of the same tokens differs by, in bfloat16 there and float32 here."""
    theirs_prefix = transformers_model.prefill_prefix(prefix.token_ids)
    theirs = transformers_model.prefill_chunks(theirs_prefix, [state.token_ids for state in states])
    full = torch.cat([prefix.token_ids, *[state.token_ids for state in states]]).tolist()

    def apart(ours, other):
        return (ours.log_softmax(-1) - other.log_softmax(-1)).abs()

    rounding = apart(
        model.logits(model.prefill(full), question),
        transformers_model.logits(transformers_model.prefill(full), question),
    )
    composed = apart(
        model.logits(compose(prefix, states, order), question),
        transformers_model.logits(compose(theirs_prefix, theirs, order), question),
    )
    assert composed.mean() <= 1.5 * rounding.mean() and composed.mean() < 0.05


def test_batches_streams_and_single_answers_are_the_same(model, prefix, states, question):
    contexts = [compose(prefix, states[at : at + 3], "sequential") for at in (0, 3, 6)]
    together = model.generate_many(contexts, [question] * 3, 12, stop=())
    assert together == [list(model.stream(context, question, 12, stop=())) for context in contexts]
    assert all(len(tokens) == 12 for tokens in together)


def test_a_stop_token_ends_an_answer_and_is_not_part_of_it(model, prefix, states, question):
    context = compose(prefix, states[:3], "sequential")
    tokens = model.generate(context, question, 8, stop=())
    stop = tokens[4]
    assert model.generate(context, question, 8, stop=[stop]) == tokens[: tokens.index(stop)]
    assert model.generate_many([context], [question], 8, stop=[stop])[0] == tokens[: tokens.index(stop)]


def test_sampling_with_a_seed_repeats(model, prefix, states, question):
    context = compose(prefix, states[:2], "sequential")
    hot = [model.generate(context, question, 12, stop=(), sampling=Sampling(1.5, seed=seed)) for seed in (1, 1, 2)]
    assert hot[0] == hot[1] != hot[2]


def test_a_stream_that_is_dropped_leaves_no_blocks(model, prefix, states, question):
    scheduler = model._engine.engine_core.engine_core.scheduler
    pool = scheduler.kv_cache_manager.block_pool
    free = pool.get_num_free_blocks()
    stream = model.stream(compose(prefix, states[:2]), question, 50, stop=())
    next(stream)
    assert pool.get_num_free_blocks() < free
    stream.close()
    model.generate(model.empty_context(), question, 1)
    assert pool.get_num_free_blocks() == free


def test_streams_may_be_taken_in_turns(model, prefix, states, question):
    contexts = [compose(prefix, states[at : at + 1], "sequential") for at in (7, 8)]
    expected = [model.generate(context, question, 6, stop=()) for context in contexts]
    streams = [model.stream(context, question, 6, stop=()) for context in contexts]
    assert [
        list(tokens) for tokens in zip(*[list(turn) for turn in zip(*streams, strict=True)], strict=True)
    ] == expected


def test_what_does_not_fit_is_refused_and_the_engine_goes_on(model, question):
    with pytest.raises(LinearKVError, match="do not fit the 4096 positions"):
        model.logits(model.empty_context(), [5] * 4096)
    if model.device.type == "cpu":
        with pytest.raises(LinearKVError, match="one token"):
            model.logits(model.empty_context(), [5])
    with pytest.raises(LinearKVError, match="has no tokens"):
        model.prefill_chunks(model.empty_prefix(), [[5], []])
    with pytest.raises(LinearKVError, match="at least one token must follow the context"):
        model.logits(model.prefill([5, 6, 7]), [])
    assert model.generate(model.empty_context(), question, 2, stop=())


def test_what_was_not_seen_whole_is_not_kept(model, prefix, monkeypatch):
    """Where a layer does not come by, as in a compiled engine, there is no state, and an error that says why."""
    listen = Worker._keep_keys

    def deaf(self, layer):
        return listen(self, layer) if layer is not self.attention[-1] else lambda *given: None

    monkeypatch.setattr(Worker, "_keep_keys", deaf)
    with pytest.raises(LinearKVError, match="keys of 0 of 20 tokens were seen .*enforce_eager"):
        model.prefill_chunks(prefix, [ids(20, 3)])


def test_one_engine_at_a_time(model):
    with pytest.raises(LinearKVError, match="an engine of vLLM already"):
        VLLMModel("reference")
