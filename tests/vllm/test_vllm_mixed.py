"""Many requests of every kind at once, in an engine with so few blocks that it has to preempt."""

import random
import statistics

import pytest
import torch

from linearkv.client import Compose, chunk_id, completion, indexing
from linearkv.vllm.worker import Worker

from .conftest import ON_GPU, open_engine, sampling

BLOCKS = (14, 12, 10)
"""Few: a request takes one of each of three groups of GDN layers, and one for every so many tokens of attention. The
first number with which the engine preempts is taken."""
STEP = 600 if ON_GPU else 256
"""Tokens of a step; with prefix caching vLLM wants a block of a GPU to fit in."""
REQUESTS = 200
ANSWER = 40
NOISE = 2.0
"""How far log-probabilities of the same may be apart, computed in other pieces or beside others; most are far nearer.
Those of ordinary requests that were not preempted were the furthest here, by 0.7 to 1.0."""
LIKELY = -3.0
"""Log-probability from which a token's counts: one with so much is among the 20 likeliest that are told."""


def requests(prompt, chunks, questions, block):
    """Composed, ordinary and to be aborted; half of them come into another block as they answer."""
    chance = random.Random(5)
    more = [token for chunk in chunks for token in prompt.chunk_ids(chunk)]
    made = []
    for number in range(REQUESTS):
        places = chance.sample(range(20), chance.choice([1, 3, 9, 10]))
        question = questions[number % len(questions)].question
        body = completion(
            prompt,
            [chunks[place] for place in places],
            question,
            order=chance.choice(["sequential", "bidirectional"]),
            max_tokens=chance.choice([4, ANSWER]),
            ignore_eos=True,
            stop_token_ids=[],
            logprobs=20,
        )
        if chance.random() < 0.5:
            behind = len(body["prompt"]) - len(prompt.question_ids(question))
            tokens = (block - chance.randrange(1, 12) - len(body["prompt"])) % block
            begin = chance.randrange(len(more) - block)
            body["prompt"][behind:behind] = more[begin : begin + tokens]
        kind = chance.choice(["composed", "composed", "ordinary", "aborted"])
        if kind == "ordinary" or (kind == "aborted" and chance.random() < 0.3):
            del body["kv_transfer_params"]
        made.append((kind, body))
    return made


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return tmp_path_factory.mktemp("mixed") / "store"


@pytest.fixture(scope="module")
def alone(checkpoint, store, prompt, chunks, questions):
    """The requests, and what each is answered alone, in an engine with blocks for all."""
    with open_engine(checkpoint, store) as engine:
        for body in indexing(prompt, chunks):
            engine.run([body])
        made = requests(prompt, chunks, questions, engine.engine.vllm_config.cache_config.block_size)
        return made, [engine.run([body])[0] for _, body in made]


@pytest.mark.parametrize("caching", [False, True], ids=["uncached", "prefix caching"])
def test_nothing_leaks_and_no_answer_is_wrong(checkpoint, store, alone, caching, monkeypatch):
    made, expected = alone
    longest = max(len(body["prompt"]) for _, body in made) + ANSWER
    written = []

    def write(self, layer, row, context, place, write=Worker._write_state):
        """Every time a state is written, it is in a row that the step will read."""
        write(self, layer, row, context, place)
        assert row in get_forward_context().attn_metadata[layer.name].non_spec_state_indices_tensor.tolist()
        assert torch.equal(self.states(layer)[1][row], context.recurrent[place])
        if layer is self.gdn[0]:
            written.append(context.length)

    from vllm.forward_context import get_forward_context

    monkeypatch.setattr(Worker, "_write_state", write)
    for blocks in BLOCKS:
        written.clear()
        options = {"num_gpu_blocks_override": blocks, "max_num_batched_tokens": STEP, "max_model_len": longest}
        options["enable_prefix_caching"] = caching
        with open_engine(checkpoint, store, **options) as engine:
            free = engine.free_blocks
            outputs = run_mixed(engine, made)
            counts = engine.counts
            assert engine.free_blocks == free
            assert not engine.scheduler.connector._tracked
        preempted = sum(output.preempted for output in outputs.values())
        if counts["recomposed"]:
            break
    wanted = [number for number, (kind, _) in enumerate(made) if kind != "aborted"]
    moved = [apart(outputs[number], expected[number]) for number in wanted]
    assert max(moved) < NOISE, sorted(zip(moved, wanted, strict=True), reverse=True)[:8]
    assert statistics.quantiles(moved, n=20)[17] < NOISE / 4
    same = sum(tuple(outputs[number].tokens) == expected[number].tokens for number in wanted)
    assert same >= 0.85 * len(wanted)
    others = [apart(outputs[a], expected[b]) for a, b in zip(wanted, wanted[1:], strict=False)]
    assert sum(some >= NOISE for some in others) > 0.9 * len(others), others  # as if they were mixed up
    assert len(written) >= counts["recomposed"] + sum(kind == "composed" for kind, _ in made) and not counts["changed"]
    assert preempted and counts["recomposed"], counts
    assert not any(counts[name] for name in ("refused", "failed", "prefilled", "damaged"))
    recomposed = counts["recomposed"]
    print(f"{blocks} blocks: {len(wanted)} answered, {same} the same, log-probabilities up to {max(moved):.2f} apart")
    print(f"{preempted} preemptions, {recomposed} composed again")


def test_a_chunk_whose_request_is_preempted_is_indexed_whole(checkpoint, prompt, chunks, tmp_path):
    """Its steps before the preemption are forgotten: it is prefilled again from its first token on."""
    first, index = indexing(prompt, ["".join(chunks)])

    def indexed(store, block=0, **few):
        """What is said of a chunk longer than a block, whether its request was preempted, an answer behind it, and the
        size of a block; beside another request where that is known."""
        with open_engine(checkpoint, store, **few) as engine:
            beside = block > 0
            block = engine.engine.vllm_config.cache_config.block_size
            body = index | {"prompt": index["prompt"][: block + 400]}
            assert len(body["prompt"]) == block + 400
            engine.run([first])
            if beside:
                ordinary = {"prompt": body["prompt"][: block - 10], "max_tokens": 150, "ignore_eos": True}
                engine.engine.add_request("ordinary", {"prompt_token_ids": ordinary["prompt"]}, sampling(ordinary))
            engine.engine.add_request("index", {"prompt_token_ids": body["prompt"]}, sampling(body))
            said, preempted = None, False
            while engine.engine.has_unfinished_requests():
                for output in engine.engine.step():
                    if output.request_id == "index" and output.finished:
                        said = output.kv_transfer_params
                for request in engine.scheduler.requests.values():
                    preempted |= request.request_id.startswith("index") and request.num_preemptions > 0
            chunk = body["prompt"][len(prompt.prefix_ids) :]
            asked = Compose(len(prompt.prefix_ids), ((len(chunk), chunk_id(chunk)),)).params()
            tokens = [*body["prompt"], *prompt.question_ids("What is given as the supplier?")]
            (answer,) = engine.run([{"prompt": tokens, "kv_transfer_params": asked, "max_tokens": 6}])
            return said, preempted, answer, block

    said, preempted, one, block = indexed(tmp_path / "alone")
    assert said == {"linearkv": {"indexed": True}} and not preempted
    for blocks in (10, 9, 8):  # with the first an engine on a CPU preempts
        few = {"num_gpu_blocks_override": blocks, "max_num_batched_tokens": 64, "max_model_len": 3 * block}
        said, preempted, other, _ = indexed(tmp_path / f"few {blocks}", block, **few)
        if preempted:
            break
    assert said == {"linearkv": {"indexed": True}} and preempted
    assert one.cached == other.cached == block + 400 and one.tokens == other.tokens
    likely = {token: logprob for token, logprob in other.logprobs[0].items() if logprob > -5}
    assert all(abs(one.logprobs[0][token] - logprob) < 0.5 for token, logprob in likely.items())


class Answered:
    def __init__(self):
        self.tokens, self.logprobs, self.preempted = [], [], 0


def run_mixed(engine, made):
    """Requests arrive as the engine goes on; those to be aborted are, some while they wait, some while they answer."""
    chance = random.Random(9)
    llm = engine.engine
    outputs = {number: Answered() for number in range(len(made))}
    waiting = list(range(len(made)))
    doomed = {}
    preempted = {}
    while waiting or llm.has_unfinished_requests():
        for _ in range(chance.choice([0, 1, 3])):
            if waiting:
                number = waiting.pop(0)
                kind, body = made[number]
                llm.add_request(str(number), {"prompt_token_ids": body["prompt"]}, sampling(body))
                if kind == "aborted":
                    doomed[number] = chance.choice([0, 1, 4, 12])
        for output in llm.step():
            number = int(output.request_id)
            outputs[number].tokens = list(output.outputs[0].token_ids)
            outputs[number].logprobs = output.outputs[0].logprobs
        for request in engine.scheduler.requests.values():
            preempted[request.request_id] = max(preempted.get(request.request_id, 0), request.num_preemptions)
        for number in [number for number, steps in doomed.items() if not steps]:
            llm.abort_request([str(number)])
            del doomed[number]
        doomed = {number: steps - 1 for number, steps in doomed.items()}
    llm.step()
    outputs[0].preempted = sum(preempted.values())
    return outputs


def apart(answered, expected):
    """Largest difference between log-probabilities of likely tokens, up to the first place where the tokens differ:
    behind the same tokens they are of the same, computed in other pieces and by other kernels. Of answers that are not
    as long as each other it is infinite."""
    if len(answered.tokens) != len(expected.tokens):
        return float("inf")
    furthest = 0.0
    for token, other, found, known in zip(
        answered.tokens, expected.tokens, answered.logprobs, expected.logprobs, strict=True
    ):
        found = {token: entry.logprob for token, entry in found.items()}
        most = [min(told.values()) for told in (found, known)]  # that one can have which is not told
        both = {token: (found.get(token, most[0]), known.get(token, most[1])) for token in {*found, *known}}
        furthest = max([furthest, *(abs(one - two) for one, two in both.values() if max(one, two) > LIKELY)])
        if token != other:
            break
    return furthest
