"""Promises of the model adapter: composed states stand where a real prefill would, for every supported model class.

Relative error of the logits of nine tokens that follow one chunk, composed against prefilled behind the same prefix, of
tiny random models (median / worst of 6 seeds, the chunk lengths below, alone and in a ragged batch):

| model class           | fp32          | fp32, T and U in fp16 | bf16          | bf16, T and U in fp16 |
|-----------------------|---------------|-----------------------|---------------|-----------------------|
| Qwen3.5               | 1e-6 / 3e-6   | 2e-4 / 6e-4           | 0 / 0         | 1e-2 / 2e-2           |
| Qwen3.5 MoE           | 7e-7 / 6e-6   | 7e-6 / 2e-4           | 0 / 6e-3      | 0 / 1.4e-2            |
| Qwen3-Next            | 7e-7 / 2e-6   | 4e-6 / 6e-5           | 0 / 1.1e-2    | 0 / 1.1e-2            |
| Qwen3.5, multimodal   | 1e-6 / 3e-6   | 1e-4 / 7e-4           | 0 / 0         | 1e-2 / 2.4e-2         |

Of the recurrent state: 5e-7 / 2e-6 (fp32), 2e-4 / 2.3e-4 with T and U in fp16, and in bf16 the same, but 5e-3 where a
batch of another shape rounds a bf16 product differently. One-shot bf16 prefill differs from split prefill by up to
1.1e-2 on its own.
"""

import dataclasses
import threading

import pytest
import torch

from linearkv import compose
from linearkv.errors import LinearKVError
from linearkv.states import TAIL

KINDS = ("qwen3_5", "qwen3_5_moe", "qwen3_next", "qwen3_5_multimodal")
LENGTHS = (1, 2, 3, 63, 64, 65, 512)
QUERY = 9

every_kind = pytest.mark.parametrize("kind", KINDS)


def random_ids(count, seed=0, vocabulary=512):
    return torch.randint(vocabulary, (count,), generator=torch.Generator().manual_seed(seed))


def half(state, dtype=torch.float16):
    """The state as the default storage keeps it: transition and update in half precision."""
    return dataclasses.replace(state, transition=state.transition.to(dtype), update=state.update.to(dtype))


def relative(reference, actual):
    return float((actual.double() - reference.double()).norm() / reference.double().norm())


@pytest.fixture(scope="module")
def one_chunk(tiny_model):
    """`one_chunk(kind, dtype)`: a model, its prefix, chunks of every length, their states alone and in one batch, and
    the context that a real prefill of each chunk behind the prefix gives."""
    made = {}

    def get(kind, dtype="float32"):
        if (kind, dtype) not in made:
            model = tiny_model(kind, dtype)
            prefix = model.prefill_prefix(random_ids(17))
            chunks = [random_ids(length, seed=length) for length in LENGTHS]
            batch = model.prefill_chunks(prefix, chunks)
            alone = [model.prefill_chunks(prefix, [chunk])[0] for chunk in chunks]
            behind = compose(prefix, [])
            full = [model.prefill(chunk, after=behind) for chunk in chunks]
            made[kind, dtype] = model, prefix, {"alone": alone, "in a ragged batch": batch}, full
        return made[kind, dtype]

    return get


# One chunk behind its prefix.


@pytest.mark.parametrize("together", ["alone", "in a ragged batch"])
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize(
    ("dtype", "stored", "ratio"),
    [
        pytest.param("float32", "float32", 1e-5, id="fp32"),
        pytest.param("float32", "float16", 2e-3, id="fp32 stored as fp16"),
        pytest.param("bfloat16", "float32", 3e-2, id="bf16"),
        pytest.param("bfloat16", "float16", 5e-2, id="bf16 stored as fp16"),
    ],
)
@every_kind
def test_one_chunk_answers_as_full_prefill(kind, dtype, stored, ratio, length, together, one_chunk, assert_close):
    model, prefix, states, full = one_chunk(kind, dtype)
    row = LENGTHS.index(length)
    state = states[together][row]
    composed = compose(prefix, [half(state) if stored == "float16" else state])
    query = random_ids(QUERY, seed=1)
    assert_close("logits", model.logits(full[row], query), model.logits(composed, query), ratio)


@pytest.mark.parametrize("together", ["alone", "in a ragged batch"])
@pytest.mark.parametrize(
    ("dtype", "stored", "ratio"),
    [
        pytest.param("float32", "float32", 1e-5, id="fp32"),
        pytest.param("float32", "float16", 5e-4, id="fp32 stored as fp16"),
        pytest.param("bfloat16", "float32", 2e-2, id="bf16"),
        pytest.param("bfloat16", "float16", 2e-2, id="bf16 stored as fp16"),
    ],
)
@every_kind
def test_one_chunk_leaves_the_context_of_full_prefill(kind, dtype, stored, ratio, together, one_chunk, assert_close):
    """Every part of the context, also where it hardly moves the logits of a random model."""
    _, prefix, states, full = one_chunk(kind, dtype)
    for length, state, reference in zip(LENGTHS, states[together], full, strict=True):
        composed = compose(prefix, [half(state) if stored == "float16" else state])
        assert composed.length == reference.length == 17 + length
        for part in ("recurrent", "conv_tail", "key", "value"):
            expected, actual = getattr(reference, part), getattr(composed, part)
            assert actual.dtype == expected.dtype
            assert_close(f"{part} after {length} tokens", expected, actual, ratio)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@every_kind
def test_keys_of_a_composed_prefix_have_the_bits_of_a_real_prefill(kind, dtype, tiny_model):
    model = tiny_model(kind, dtype)
    ids = random_ids(65)
    composed, real = compose(model.prefill_prefix(ids), []), model.prefill(ids)
    for part in ("recurrent", "conv_tail", "key", "value"):
        assert torch.equal(getattr(composed, part), getattr(real, part)), part


@every_kind
def test_padding_changes_no_state(kind, one_chunk, assert_close):
    _, _, states, _ = one_chunk(kind)
    for length, alone, batched in zip(LENGTHS, states["alone"], states["in a ragged batch"], strict=True):
        assert torch.equal(batched.token_ids, alone.token_ids)
        for part in ("transition", "update", "conv_tail", "key", "value"):
            assert_close(f"{part} of {length} tokens", getattr(alone, part), getattr(batched, part), 1e-5)


@pytest.mark.parametrize("batch_tokens", [1, 70, 100_000])
def test_batches_of_any_size_give_the_same_states_in_the_order_given(batch_tokens, tiny_model, assert_close):
    model = tiny_model("qwen3_5")
    prefix, chunks = model.prefill_prefix(random_ids(5)), [random_ids(n, seed=n) for n in (3, 64, 1, 30, 65, 3, 2)]
    states = model.prefill_chunks(prefix, chunks, batch_tokens=batch_tokens)
    assert len(states) == len(chunks)
    for chunk, state in zip(chunks, states, strict=True):
        assert torch.equal(state.token_ids, chunk)
        assert_close("transition", model.prefill_chunks(prefix, [chunk])[0].transition, state.transition, 1e-5)


def test_short_chunks_share_a_pass_only_as_far_as_their_states_fit(tiny_model, monkeypatch):
    """A state has the same size for 2 tokens as for 2,000, so tokens alone bound no memory."""
    model = tiny_model("qwen3_5")
    state = model.prefill_chunks(model.empty_prefix(), [[5, 6]])[0]
    assert model.state_bytes == state.transition.nbytes + state.update.nbytes
    rows = []
    model.hf.model.embed_tokens.register_forward_hook(lambda module, args, output: rows.append(len(output)))
    monkeypatch.setattr("linearkv.models.base.BATCH_STATE_BYTES", 3 * model.state_bytes)
    model.prefill_chunks(model.empty_prefix(), [[5, 6]] * 7)
    assert rows == [3, 3, 1]


def test_a_state_does_not_keep_its_batch_alive(tiny_model):
    model = tiny_model("qwen3_5")
    for state in model.prefill_chunks(model.empty_prefix(), [random_ids(n, n) for n in (4, 40)]):
        for part in (state.transition, state.update, state.conv_tail, state.key, state.value):
            assert part.untyped_storage().nbytes() == part.nbytes


def test_no_chunks_give_no_states(tiny_model):
    model = tiny_model("qwen3_5")
    assert model.prefill_chunks(model.empty_prefix(), []) == []


# Continuing from a filled cache.


@every_kind
def test_a_filled_cache_is_continued_at_every_length(kind, tiny_model):
    """Prefill of any length and one forward pass of any length behind it: the logits of one prefill of everything."""
    model = tiny_model(kind)
    prefills, continuations = (1, 2, 3, 4, 5, 63, 64, 65, 128, 200), (1, 2, 3, 4, 5, 17, 63, 64, 65)
    ids = random_ids(max(prefills) + max(continuations))
    whole = model.logits(model.empty_context(), ids)
    failed, unchanged = [], []
    for first in prefills:
        context = model.prefill(ids[:first])
        emptied = dataclasses.replace(context, recurrent=torch.zeros_like(context.recurrent))
        for more in continuations:
            after = ids[first : first + more]
            reference = whole[first : first + more]
            actual = model.logits(context, after)
            if not max(relative(reference, actual), relative(reference[-1], actual[-1])) <= 5e-5:
                failed.append((first, more))
            if not relative(reference, model.logits(emptied, after)) > 5e-4:
                unchanged.append((first, more))
    assert not failed, f"(prefill, continuation) that differ from one prefill: {failed}"
    assert not unchanged, f"(prefill, continuation) where the control, a zeroed state, does not differ: {unchanged}"


@every_kind
def test_composed_and_cold_agree_at_every_chunk_and_tail_length(kind, tiny_model):
    """Chunks and tails on both sides of every block boundary of the rule, tails of one token included.

    Cold is one prefill of everything, which differs from a split one by up to 2e-5 on its own.
    """
    model = tiny_model(kind)
    prefix_ids = random_ids(11)
    prefix = model.prefill_prefix(prefix_ids)
    chunks = [random_ids(n, seed=n) for n in (1, 2, 3, 4, 63, 64, 65, 127, 128, 129, 192, 193)]
    tail = random_ids(65, seed=7)
    failed = []
    for chunk, state in zip(chunks, model.prefill_chunks(prefix, chunks), strict=True):
        composed = compose(prefix, [state])
        cold = model.logits(model.empty_context(), torch.cat([prefix_ids, chunk, tail]))[11 + len(chunk) :]
        for length in (1, 2, 3, 4, 63, 64, 65):
            reference, actual = cold[length - 1], model.logits(composed, tail[:length])[-1]
            if not relative(reference, actual) <= 1e-4 or reference.argmax() != actual.argmax():
                failed.append((len(chunk), length))
    assert not failed, f"(chunk, tail) lengths whose first token or logits differ from a cold prefill: {failed}"


@every_kind
def test_prefill_in_pieces_is_prefill_in_one(kind, tiny_model, assert_close):
    model = tiny_model(kind)
    ids, context, at = random_ids(135), None, 0
    for piece in (1, 2, 63, 64, 5):
        context = model.prefill(ids[at : at + piece], after=context)
        at += piece
    whole = model.prefill(ids)
    assert context.length == whole.length
    for part in ("recurrent", "conv_tail", "key", "value"):
        assert_close(part, getattr(whole, part), getattr(context, part), 1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_many_at_once_give_what_each_gives_alone(kind, tiny_model, assert_close, monkeypatch):
    model = tiny_model(kind)
    texts = [random_ids(length, seed) for seed, length in enumerate((70, 70, 5, 70, 131))]
    asked = [random_ids(length, 9 + length) for length in (8, 8, 8, 3, 8)]
    alone = [model.prefill(text) for text in texts]
    for most in (1, 200, 16384):  # one row a batch, two, all
        monkeypatch.setattr("linearkv.models.adapter.BATCH_TOKENS", most)
        together = model.prefill_many(texts)
        for one, other in zip(alone, together, strict=True):
            for name in ("recurrent", "conv_tail", "key", "value"):
                assert_close(name, getattr(one, name), getattr(other, name), 1e-5)
        further = model.prefill_many(asked, together)
        logits = model.logits_many(together, asked)
        answers = model.generate_many(together, asked, 6, stop=(7,))
        for row, (context, ids) in enumerate(zip(alone, asked, strict=True)):
            assert_close("logits", model.logits(context, ids), logits[row], 1e-5)
            assert_close("further", model.prefill(ids, context).recurrent, further[row].recurrent, 1e-5)
            assert answers[row] == model.generate(context, ids, 6, stop=(7,))


def test_a_row_that_stops_early_leaves_the_others_running(tiny_model):
    model = tiny_model("qwen3_5")
    contexts = model.prefill_many([random_ids(20, seed) for seed in range(3)])
    asked = [random_ids(4, 5)] * 3
    free = [model.generate(context, ids, 8) for context, ids in zip(contexts, asked, strict=True)]
    stop = free[1][2]
    expected = [answer[: answer.index(stop)] if stop in answer else answer for answer in free]
    assert model.generate_many(contexts, asked, 8, stop=(stop,)) == expected
    assert len({len(answer) for answer in expected}) > 1


def test_contexts_and_sequences_must_be_as_many(tiny_model):
    model = tiny_model("qwen3_5")
    with pytest.raises(ValueError, match="1 contexts for 2 sequences"):
        model.logits_many([model.empty_context()], [[1], [2]])


def test_prefill_of_nothing_changes_nothing(tiny_model):
    model = tiny_model("qwen3_5")
    context = model.prefill(random_ids(5))
    assert model.prefill([], after=context) is context


def test_a_context_can_be_continued_again_and_again(tiny_model):
    """The model's cache is updated in place: never the context it was made from."""
    model = tiny_model("qwen3_5")
    prefix = model.prefill_prefix(random_ids(9))
    context = compose(prefix, model.prefill_chunks(prefix, [random_ids(20, seed=1)]))
    query = random_ids(QUERY, seed=2)
    first = model.logits(context, query)
    model.generate(context, query, 5)
    model.prefill(query, after=context)
    assert torch.equal(model.logits(context, query), first)


# Several chunks.


@every_kind
def test_short_chunks_borrow_the_conv_tail_of_what_precedes_them(kind, tiny_model, assert_close):
    """The first layer's convolution inputs depend on their own token alone, so a composed tail can be exact there."""
    model = tiny_model(kind)
    for lengths in ([1], [1, 1], [1, 1, 1], [1, 1, 1, 1], [2, 1], [1, 2], [5, 1, 1], [4], [3]):
        for prefix_length in (0, 1, 2, 3, 7):
            prefix = model.prefill_prefix(random_ids(prefix_length, seed=3))
            chunks = [random_ids(n, seed=10 + i) for i, n in enumerate(lengths)]
            composed = compose(prefix, model.prefill_chunks(prefix, chunks))
            real = model.prefill(torch.cat([prefix.token_ids, *chunks]))
            name = f"tail of chunks of {lengths} tokens behind {prefix_length}"
            assert_close(name, real.conv_tail[0], composed.conv_tail[0], 1e-6)


@every_kind
def test_keys_and_values_stand_in_the_order_given_in_every_order(kind, tiny_model):
    model = tiny_model(kind)
    prefix = model.prefill_prefix(random_ids(7))
    first, second, third = model.prefill_chunks(prefix, [random_ids(n, seed=n) for n in (10, 3, 1)])
    values = torch.cat([prefix.value, first.value, second.value, third.value], dim=1)
    keys = torch.cat([compose(prefix, [first]).key, compose(prefix, [first, second, third]).key[:, 17:]], dim=1)
    for order in ("sequential", "bidirectional", "cyclic"):
        context = compose(prefix, [first, second, third], order=order)
        assert context.length == 21
        assert torch.equal(context.value, values)
        assert torch.equal(context.key, keys)


@every_kind
def test_states_made_behind_nothing_are_applied_to_the_prefix_they_meet(kind, tiny_model, assert_close):
    model = tiny_model(kind)
    state = model.prefill_chunks(model.empty_prefix(), [random_ids(40, seed=4)])[0]
    prefix = model.prefill_prefix(random_ids(12))
    context = compose(prefix, [state])
    assert_close("recurrent", state.transition @ prefix.recurrent + state.update, context.recurrent, 1e-6)
    cos, sin = model.rotary(torch.arange(12, 52))
    width = cos.shape[-1]
    turned = torch.cat([-state.key[..., width // 2 : width], state.key[..., : width // 2]], dim=-1)
    expected = state.key[..., :width] * cos[:, None] + turned * sin[:, None]
    assert_close("keys where they land", expected, context.key[:, 12:, :, :width], 1e-6)


@every_kind
def test_a_chunk_behind_nothing_is_a_prefill_from_the_start(kind, tiny_model, assert_close):
    model = tiny_model(kind)
    ids, query = random_ids(70, seed=4), random_ids(QUERY)
    empty = model.empty_prefix()
    composed = compose(empty, model.prefill_chunks(empty, [ids]))
    assert_close("logits", model.logits(model.prefill(ids), query), model.logits(composed, query), 1e-5)


@pytest.mark.parametrize("order", ["sequential", "bidirectional", "cyclic"])
def test_composition_of_nothing_is_the_prefix(order, tiny_model):
    model = tiny_model("qwen3_5")
    prefix = model.prefill_prefix(random_ids(6))
    context = compose(prefix, [], order=order)
    assert torch.equal(context.recurrent, prefix.recurrent)
    assert torch.equal(context.conv_tail, prefix.conv_tail)
    assert context.length == 6


# What is refused.


def test_states_of_another_model_shape_are_refused(tiny_checkpoint, tiny_model, tmp_path):
    model = tiny_model("qwen3_5")
    prefix = model.prefill_prefix(random_ids(4))
    state = model.prefill_chunks(prefix, [random_ids(4)])[0]
    other = dataclasses.replace(
        state, transition=state.transition[:2], update=state.update[:2], conv_tail=state.conv_tail[:2]
    )
    with pytest.raises(LinearKVError, match="chunk state 1 has update .* made by another model"):
        compose(prefix, [state, other])


@pytest.mark.parametrize("part", ["conv_tail", "key", "value"])
def test_states_of_another_compute_dtype_are_refused(part, tiny_model):
    model = tiny_model("qwen3_5")
    prefix = model.prefill_prefix(random_ids(4))
    state = model.prefill_chunks(prefix, [random_ids(4)])[0]
    with pytest.raises(LinearKVError, match=f"chunk state 0 has {part} in torch.bfloat16, the prefix in torch.float32"):
        compose(prefix, [dataclasses.replace(state, **{part: getattr(state, part).bfloat16()})])


def test_an_unknown_order_is_refused_by_name(tiny_model):
    with pytest.raises(ValueError, match="unknown order 'random'"):
        compose(tiny_model("qwen3_5").empty_prefix(), [], order="random")


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([5, 512], "token ids reach from 5 to 512, the model knows 0 to 511: .*another model's tokenizer"),
        ([-1], "token ids reach from -1 to -1"),
        ([[1, 2]], r"one sequence, not of shape \(1, 2\)"),
        ([1.5], "token ids must be integers, not torch.float32"),
        ([True], "token ids must be integers, not torch.bool"),
        ("What is it?", "token ids must be a sequence of integers, not 'What is it"),
        (None, "token ids must be a sequence of integers, not None"),
    ],
)
def test_what_is_no_sequence_of_token_ids_is_refused(ids, message, tiny_model):
    with pytest.raises(LinearKVError, match=message):
        tiny_model("qwen3_5").prefill(ids)


def test_an_empty_chunk_is_refused_with_its_position(tiny_model):
    model = tiny_model("qwen3_5")
    with pytest.raises(LinearKVError, match="chunk 1 has no tokens"):
        model.prefill_chunks(model.empty_prefix(), [[1], [], [2]])


# Hooks.


def hooks(model):
    return sum(len(module._forward_hooks) for module in model.hf.modules())


@every_kind
def test_capture_leaves_no_hooks(kind, tiny_model):
    model = tiny_model(kind)
    before = hooks(model)
    prefix = model.prefill_prefix(random_ids(3))
    model.prefill_chunks(prefix, [random_ids(3)])
    assert hooks(model) == before


def test_capture_leaves_no_hooks_when_the_forward_pass_fails(tiny_model):
    model = tiny_model("qwen3_5")
    before = hooks(model)

    def fail(*args):
        raise RuntimeError("out of memory")

    broken = model.hf.model.layers[2].register_forward_pre_hook(fail)
    try:
        with pytest.raises(RuntimeError, match="out of memory"):
            model.prefill_chunks(model.empty_prefix(), [random_ids(3)])
    finally:
        broken.remove()
    assert hooks(model) == before


def test_threads_that_share_a_model_do_not_capture_each_others_tokens(tiny_model):
    model = tiny_model("qwen3_5")
    prefix = model.prefill_prefix(random_ids(6))
    chunks = [random_ids(30, seed=seed) for seed in range(12)]
    alone = [model.prefill_chunks(prefix, [chunk])[0] for chunk in chunks]
    together = [None] * len(chunks)
    start = threading.Barrier(len(chunks))

    def prefill(i):
        start.wait()
        together[i] = model.prefill_chunks(prefix, [chunks[i]])[0]

    threads = [threading.Thread(target=prefill, args=(i,)) for i in range(len(chunks))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for one, other in zip(alone, together, strict=True):
        assert other is not None
        assert torch.equal(one.update, other.update)
        assert torch.equal(one.key, other.key)


# The state objects.


def test_a_state_of_no_tokens_cannot_be_made(tiny_model):
    model = tiny_model("qwen3_5")
    state = model.prefill_chunks(model.empty_prefix(), [[1]])[0]
    with pytest.raises(ValueError, match="a chunk of no tokens has no state"):
        dataclasses.replace(state, token_ids=state.token_ids[:0], key=state.key[:, :0], value=state.value[:, :0])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: {"update": s.update[:, :1]}, "transition .* and update .* do not agree"),
        (lambda s: {"transition": s.transition[..., :-1]}, "transition .* and update .* do not agree"),
        (lambda s: {"conv_tail": s.conv_tail[..., :-1]}, f"does not fit 3 layers of {TAIL} inputs"),
        (lambda s: {"key": s.key[:, :-1]}, "do not hold 4 tokens"),
        (lambda s: {"value": s.value[:, :-1], "key": s.key[:, :-1]}, "do not hold 4 tokens"),
    ],
)
def test_a_state_whose_parts_do_not_fit_cannot_be_made(change, message, tiny_model):
    model = tiny_model("qwen3_5")
    state = model.prefill_chunks(model.empty_prefix(), [[1, 2, 3, 4]])[0]
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(state, **change(state))


def test_bytes_of_a_state_are_those_of_its_tensors(tiny_model):
    model = tiny_model("qwen3_5")
    state = model.prefill_chunks(model.empty_prefix(), [random_ids(10)])[0]
    gdn = 3 * 4 * (16 * 16 + 16 * 24) * 4 + 3 * (2 * 2 * 16 + 4 * 24) * TAIL * 4
    assert state.nbytes == gdn + 2 * (1 * 10 * 2 * 32) * 4 + 10 * 8
