"""Requests from outside: contexts composed from a store, in the batches of a real engine."""

import random

import pytest

from linearkv import compose
from linearkv.client import completion, indexing, unknown
from linearkv.kernels.compose import ORDERS
from linearkv.vllm.composed import Composed

from .conftest import ON_GPU, open_engine


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return tmp_path_factory.mktemp("served") / "store"


@pytest.fixture(scope="module")
def served(checkpoint, store, prompt, chunks):
    with open_engine(checkpoint, store, enable_prefix_caching=True, disable_log_stats=False) as engine:
        first, *others = indexing(prompt, chunks)
        (prefix,) = engine.run([first])
        assert prefix.params == {"linearkv": {"indexed": True}}
        assert all(done.params == {"linearkv": {"indexed": True}} for done in engine.run(others))
        yield engine


@pytest.fixture(scope="module")
def asked(prompt, chunks, questions):
    """50 requests: some of the chunks in random order, in every order of composition, some with pivots."""
    chance = random.Random(1)
    made = []
    for number in range(50):
        places = chance.sample(range(20), chance.choice([1, 2, 5, 10, 20]))
        order, pivot = chance.choice(ORDERS), chance.choice([0, 0, 0, 1, 2])
        question = questions[number % len(questions)].question
        body = completion(prompt, [chunks[place] for place in places], question, order=order, pivot=pivot)
        made.append((body, places, question, order, min(pivot, len(places))))
    return made


@pytest.fixture(scope="module")
def outputs(served, asked):
    return served.run([body for body, *_ in asked])


def ordinary(body):
    return {name: value for name, value in body.items() if name != "kv_transfer_params"}


def test_everything_but_pivots_and_question_is_reused(served, asked, outputs, prompt, chunks):
    for (_, places, _, _, pivot), output in zip(asked, outputs, strict=True):
        reused = places[: len(places) - pivot]
        assert output.cached == len(prompt.prefix_ids) + sum(len(prompt.chunk_ids(chunks[place])) for place in reused)
        assert output.params == {"linearkv": {"tokens": output.cached, "chunks": len(reused), "unknown": []}}
    counts = served.counts
    assert counts["stored"] == 21 and counts["composed"] == 50
    assert not any(counts[name] for name in ("refused", "failed", "prefilled", "partly", "damaged", "not_stored"))


def test_served_logits_are_those_of_the_python_engine(asked, outputs, prompt, chunks, transformers_model):
    """To bfloat16's rounding: transformers computes in float32 here, and composes by the same kernels' reference."""
    model = transformers_model
    prefix = model.prefill_prefix(prompt.prefix_ids)
    states = model.prefill_chunks(prefix, [prompt.chunk_ids(chunk) for chunk in chunks])
    apart, same = [], 0
    for (_, places, question, order, pivot), output in zip(asked, outputs, strict=True):
        cut = len(places) - pivot
        context = compose(prefix, [states[place] for place in places[:cut]], order)
        tail = [token for place in places[cut:] for token in prompt.chunk_ids(chunks[place])]
        expected = model.logits(context, [*tail, *prompt.question_ids(question)])[-1].log_softmax(-1)
        likeliest = {token: logprob for token, logprob in output.logprobs[0].items() if logprob > -10}
        apart += [abs(float(expected[token]) - logprob) for token, logprob in likeliest.items()]
        same += int(expected.argmax()) == output.tokens[0]
        assert sum(apart[-len(likeliest) :]) / len(likeliest) < 0.4  # of each: a wrong state is further off
    assert same >= 48 and sum(apart) / len(apart) < 0.08, (same, sum(apart) / len(apart), max(apart))


def test_alone_or_in_a_batch_the_answer_is_the_same(served, asked, outputs):
    different = 0
    for (body, *_), together in list(zip(asked, outputs, strict=True))[:12]:
        (alone,) = served.run([body])
        assert alone.cached == together.cached
        different += alone.tokens != together.tokens
    assert different <= 1  # bfloat16 rounds a batch's products in another order


def test_a_chunk_nobody_knows_ends_what_is_reused(served, prompt, chunks, questions):
    new = [f"# Never indexed\n\nThe lamp in room {number} is green.\n\n" for number in range(2)]
    retrieved = [chunks[3], chunks[1], new[0], chunks[2], new[1]]
    body = completion(prompt, retrieved, questions[0].question)
    before = served.counts["partly"]
    (output,) = served.run([body])
    assert output.cached == sum(map(len, (prompt.prefix_ids, prompt.chunk_ids(chunks[3]), prompt.chunk_ids(chunks[1]))))
    assert served.counts["partly"] == before + 1
    assert output.params == {
        "linearkv": {
            "tokens": output.cached,
            "chunks": 2,
            "unknown": [2, 4],
            "reason": "chunk 2 is not in the store",
        }
    }
    missing = unknown({"kv_transfer_params": output.params}, retrieved)
    assert missing == new
    served.run(list(indexing(prompt, missing))[1:])
    (again,) = served.run([body])
    assert again.params == {"linearkv": {"tokens": again.cached, "chunks": 5, "unknown": []}}
    assert again.cached == len(prompt.prefix_ids) + sum(len(prompt.chunk_ids(chunk)) for chunk in retrieved)


def test_a_prompt_that_ends_with_a_chunk_computes_that_chunk(served, prompt, chunks):
    body = completion(prompt, [chunks[3], chunks[1]], "Unused?")
    body["prompt"] = [*prompt.prefix_ids, *prompt.chunk_ids(chunks[3]), *prompt.chunk_ids(chunks[1])]
    (output,) = served.run([body])
    assert output.cached == len(prompt.prefix_ids) + len(prompt.chunk_ids(chunks[3]))
    assert output.tokens


def test_one_token_may_stand_behind_a_context(served, prompt, chunks, transformers_model):
    model = transformers_model
    body = completion(prompt, [chunks[3], chunks[1]], "Unused?", order="sequential")
    pieces = [prompt.prefix_ids, prompt.chunk_ids(chunks[3]), prompt.chunk_ids(chunks[1])]
    body["prompt"] = [*pieces[0], *pieces[1], *pieces[2], 17]
    (output,) = served.run([body])
    assert output.cached == sum(map(len, pieces))
    prefix = model.prefill_prefix(pieces[0])
    context = compose(prefix, model.prefill_chunks(prefix, pieces[1:]), "sequential")
    expected = model.logits(context, [17])[-1].log_softmax(-1)
    assert all(abs(float(expected[token]) - logprob) < 0.5 for token, logprob in output.logprobs[0].items())


@pytest.mark.parametrize(
    "spoil",
    [
        lambda params: params["chunks"][0].__setitem__(0, params["chunks"][0][0] + 1),
        lambda params: params["chunks"][0].__setitem__(1, "0" * 32),
        lambda params: params.update(prefix=params["prefix"] - 1),
        lambda params: params.update(order="random"),
        lambda params: params.update(pivot=-1),
        lambda params: params.update(chunks=[[1 << 40, "0" * 32]]),
        lambda params: params.update(chunks="all"),
        lambda params: params.update(index="chunk"),
        lambda params: params.update(unheard=1),
    ],
)
def test_boundaries_that_are_not_the_prompts_are_refused_and_the_prompt_answered(
    served, prompt, chunks, questions, spoil
):
    body = completion(prompt, [chunks[5], chunks[6]], questions[1].question, max_tokens=4)
    (expected,) = served.run([ordinary(body)])
    spoil(body["kv_transfer_params"]["linearkv"])
    before = served.counts["refused"]
    (output,) = served.run([body])
    assert served.counts["refused"] == before + 1
    assert output.cached == expected.cached and output.logprobs == expected.logprobs
    assert output.params is not None and output.params["linearkv"]["reason"] and expected.params is None
    assert not served.scheduler.connector._refused


def test_an_unknown_prefix_is_prefilled(served, prompt, chunks, questions):
    body = completion(prompt, [chunks[5]], questions[1].question, max_tokens=2)
    body["kv_transfer_params"]["linearkv"]["prefix"] = 0
    body["prompt"] = body["prompt"][len(prompt.prefix_ids) :]
    before = served.counts["prefilled"]
    (output,) = served.run([body])
    assert not output.cached and served.counts["prefilled"] == before + 1
    said = {"tokens": 0, "chunks": 0, "unknown": [0], "reason": "chunk 0 is not in the store"}  # behind no prefix
    assert output.params == {"linearkv": said}
    body["kv_transfer_params"]["linearkv"]["prefix"] = 3
    body["prompt"] = [17, 18, 19, *body["prompt"]]
    (output,) = served.run([body])
    assert output.params == {"linearkv": said | {"reason": "the prefix is not in the store"}}


def test_what_stands_behind_an_unknown_prefix_is_not_indexed(served, prompt, chunks):
    _, body = indexing(prompt, [chunks[0]])
    body["prompt"] = [17, 18, 19, *body["prompt"]]
    body["kv_transfer_params"]["linearkv"]["behind"] = 3
    (output,) = served.run([body])
    assert output.params == {"linearkv": {"indexed": False, "reason": "the prefix is not in the store"}}
    body["kv_transfer_params"]["linearkv"]["behind"] = 0
    (output,) = served.run([body])
    said = output.params["linearkv"]
    assert said["indexed"] is False and said["reason"].startswith("refused: behind is 0")


def test_prompts_whose_every_token_is_asked_for_are_prefilled(served, prompt, chunks, questions):
    from vllm import SamplingParams

    body = completion(prompt, chunks[:2], questions[0].question)
    params = SamplingParams(
        max_tokens=2,
        temperature=0,
        prompt_logprobs=1,
        detokenize=False,
        extra_args={"kv_transfer_params": body["kv_transfer_params"]},
    )
    before = served.counts["refused"]
    (output,) = served.llm.generate([{"prompt_token_ids": body["prompt"]}], [params], use_tqdm=False)
    assert served.counts["refused"] == before + 1
    assert len(output.prompt_logprobs) == len(body["prompt"]) and all(output.prompt_logprobs[1:])


class Request:
    """What the connector sees of a request of vLLM."""

    lora_request = None
    skip_reading_prefix_cache = False
    prompt_embeds = None

    def __init__(self, body, **more):
        self.request_id = "1"
        self.prompt_token_ids = body["prompt"]
        self.kv_transfer_params = body["kv_transfer_params"]
        self.num_preemptions = 0
        self.mm_features = []
        self.block_hashes = []
        self.cache_salt = "theirs"
        vars(self).update(more)

    def update_block_hashes(self):
        self.block_hashes.append(self.cache_salt)


def matched(connector, request):
    for _ in range(1000):
        tokens, later = connector.get_num_new_matched_tokens(request, 0)
        assert not later
        if tokens is not None:
            return tokens
    raise AssertionError("never made")


def test_a_preempted_request_is_composed_again_whatever_the_planner_thinks(
    served, prompt, chunks, questions, monkeypatch
):
    """Under another name in the prefix cache, so that its former blocks are not found."""
    connector = served.scheduler.connector
    body = completion(prompt, chunks[:3], questions[0].question)
    request = Request(body)
    connector.on_new_request(request)
    first = request.cache_salt
    assert first != "theirs" and request.block_hashes == [first]
    length = matched(connector, request)
    assert length == len(prompt.prefix_ids) + sum(len(prompt.chunk_ids(chunk)) for chunk in chunks[:3])
    connector._tracked["1"].loading = None  # it was written
    monkeypatch.setattr(connector.serving, "_restore", "never")
    request.num_preemptions = 1
    assert connector.get_num_new_matched_tokens(request, 640) == (None, False)
    assert request.cache_salt not in ("theirs", first) and request.block_hashes == [request.cache_salt]
    before = served.counts["changed"]
    assert matched(connector, request) == length and served.counts["changed"] == before
    connector._tracked["1"].loading = None
    monkeypatch.setattr(connector.serving, "_states", lambda *given: ([], {}))
    request.num_preemptions = 2
    assert connector.get_num_new_matched_tokens(request, 0) == (None, False)
    assert matched(connector, request) == len(prompt.prefix_ids) and served.counts["changed"] == before + 1
    _, said = connector.request_finished_all_groups(request, ())
    assert said["linearkv"]["tokens"] == len(prompt.prefix_ids) and said["linearkv"]["chunks"] == 0
    assert not connector._tracked


def test_a_preempted_request_goes_on_as_it_began(served, prompt, chunks, questions, monkeypatch):
    """One that was prefilled is prefilled again, one that some chunks were known of is composed of no more."""
    connector = served.scheduler.connector
    before = served.counts["changed"]
    request = Request(completion(prompt, chunks[:3], questions[0].question))
    connector.on_new_request(request)
    with monkeypatch.context() as never:
        never.setattr(connector.serving, "_restore", "never")
        assert matched(connector, request) == 0
    connector._tracked["1"].loading = None
    request.num_preemptions = 1
    assert connector.get_num_new_matched_tokens(request, 0) == (None, False)
    assert matched(connector, request) == 0 and connector._tracked["1"].loading is None
    connector.request_finished_all_groups(request, ())

    request = Request(completion(prompt, chunks[:3], questions[0].question))
    connector.on_new_request(request)
    states = connector.serving._states
    with monkeypatch.context() as few:
        few.setattr(connector.serving, "_states", lambda loading, keys: states(loading, keys[:2]))
        length = matched(connector, request)
    assert length == len(prompt.prefix_ids) + sum(len(prompt.chunk_ids(chunk)) for chunk in chunks[:2])
    connector._tracked["1"].loading = None
    request.num_preemptions = 1
    assert connector.get_num_new_matched_tokens(request, 0) == (None, False)
    assert matched(connector, request) == length and served.counts["changed"] == before
    _, said = connector.request_finished_all_groups(request, ())
    assert said["linearkv"]["chunks"] == 2 and said["linearkv"]["reason"] == "chunk 2 is not in the store"
    assert not connector._tracked


@pytest.mark.parametrize("sent", ["x", 3, ["linearkv"], {"another": {}}, None])
def test_what_others_send_is_not_ours(served, prompt, chunks, questions, sent):
    connector = served.scheduler.connector
    request = Request(completion(prompt, chunks[:3], questions[0].question), kv_transfer_params=sent)
    connector.on_new_request(request)
    assert not connector._tracked and request.cache_salt == "theirs"
    assert connector.get_num_new_matched_tokens(request, 0) == (0, False)
    assert connector.request_finished_all_groups(request, ()) == (False, None)


class Arriving:
    """An event of a GPU."""

    here = False

    def query(self):
        return self.here


def test_with_others_in_the_engine_a_context_waits_until_it_has_arrived(served, prompt, chunks, questions):
    connector = served.scheduler.connector
    request = Request(completion(prompt, chunks[:2], questions[0].question))
    connector.on_new_request(request)
    connector.get_num_new_matched_tokens(request, 0)
    tracked = connector._tracked["1"]
    assert tracked.loading.ready(60)
    *others, last = tracked.loading.composed.parts
    event = Arriving()
    tracked.loading.composed = Composed(tracked.loading.composed.length, [*others, last._replace(ready=event)])
    connector._idle = False
    assert connector.get_num_new_matched_tokens(request, 0) == (None, False)
    connector._idle = True  # nobody else would wait
    assert connector.get_num_new_matched_tokens(request, 0)[0]
    connector._idle, event.here = False, True
    assert connector.get_num_new_matched_tokens(request, 0)[0]
    connector.request_finished_all_groups(request, ())


@pytest.mark.parametrize("more", [{"mm_features": ["an image"]}, {"prompt_embeds": 1}, {"lora_request": "an adapter"}])
def test_what_token_ids_do_not_say_is_refused(served, prompt, chunks, questions, more):
    connector = served.scheduler.connector
    before = served.counts["refused"]
    connector.on_new_request(Request(completion(prompt, chunks[:3], questions[0].question), **more))
    assert served.counts["refused"] == before + 1 and not connector._tracked


def test_counters_are_in_vllms_own_registry(served, asked, outputs):
    served.run([asked[0][0]])  # what was counted before reaches the registry with the next step
    values = {metric.name: metric.value for metric in served.llm.get_metrics() if "linearkv" in metric.name}
    counts = served.counts
    assert counts["composed"] >= 50 and counts["seconds"] > 0
    for name in ("composed", "tokens"):
        if ON_GPU:  # vLLM's offline engine drops what is told with a step without an answer; a server does not
            assert 0 < values[f"vllm:linearkv_{name}"] <= counts[name]
        else:
            assert values[f"vllm:linearkv_{name}"] == counts[name]
    whole = int(counts["seconds"])  # as vLLM tells it there
    assert values["vllm:linearkv_seconds"] <= whole if ON_GPU else values["vllm:linearkv_seconds"] == whole
