"""Time to first token of shuffled contexts served by vLLM from stored states, at the sizes of published models.

    python -m linearkv.eval.vllm_serving --shape 27B --contexts 10 26 52 --out vllm_serving_27b.json

Random weights of a published shape, random tokens, one engine. Chunks are indexed through requests, then each context
(chunks of 512 tokens, in a new random order every time) is asked for

- `device`: states on the GPU; `memory`: in host memory; `disk`: on disk, and not in the system's page cache, beside
  plain reads of as many files; `disk, planned`: the same, where the planner may prefill instead, as it does by default;
- `cold`: the same tokens as an ordinary request, prefilled; `question alone`: what stands behind the chunks, behind the
  prefix alone, which is the ceiling; `short prompt`: as many tokens as prefix and question, as an ordinary request,
  which is what the engine takes for anything.

Beside the times: whether a context is what plain torch composes of the same pages in float64; whether one chunk behind
its prefix gives the log-probabilities that vLLM gives after prefilling it there; several requests at once; and how long
another request's tokens take while a context is loaded, and while the same tokens are prefilled. The engine is eager;
with `--graphs` another, with CUDA graphs and compiled code, serves from the same store afterwards, and is measured too.
Needs vLLM and a GPU; `--shape tiny` tries the program on a CPU.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from linearkv import Settings, compose, unpack
from linearkv.client import Compose, Index, chunk_id
from linearkv.eval.bench import describe_machine, forget
from linearkv.eval.end_to_end import PUBLISHED
from linearkv.eval.throughput import plain_read
from linearkv.eval.vllm_prefill import write_config
from linearkv.kernels.compose import compose_states
from linearkv.vllm import VLLMModel

ENGINES = ("eager", "graphs")
TIERS = ("device", "memory", "disk", "disk, planned")
CHUNK, PREFIX, QUESTION = 512, 64, 64
EVERYTHING = 40 << 30
READERS = 8
TOGETHER = 4
TOLD = 20
"""Likeliest tokens whose log-probabilities are compared."""


class Server:
    """An engine with the connector, and a corpus in its store."""

    def __init__(self, shape: str, store: Path, chunks: int, options: dict[str, Any]) -> None:
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
        length = PREFIX + CHUNK * chunks + QUESTION + 64
        with tempfile.TemporaryDirectory() as folder:
            write_config(Path(folder), shape)
            self.model = VLLMModel(
                folder,
                load_format="dummy",
                max_model_len=length,
                max_num_batched_tokens=length,
                max_num_seqs=8,
                kv_transfer_config={
                    "kv_connector": "LinearKVConnector",
                    "kv_role": "kv_both",
                    "kv_connector_extra_config": {"store": str(store), "loading_bytes": 8 << 30},
                },
                **options,
            )
        import vllm
        from vllm.distributed.kv_transfer import get_kv_transfer_group

        self.vllm = vllm
        self.llm = self.model.llm
        self.connector = get_kv_transfer_group()
        self.beside = self.llm.llm_engine.engine_core.engine_core.scheduler.connector
        self.device = self.connector.worker.device
        spread_weights(self.connector.worker)
        chance = random.Random(0)
        self.prefix = draw(chance, PREFIX)
        self.chunks = [draw(chance, CHUNK) for _ in range(chunks)]
        self.chance = chance
        self.store = store

    def send(self, prompt: Sequence[int], params: dict[str, Any] | None = None, tokens: int = 1, **more: Any) -> Any:
        sampling = self.sampling(params, tokens, **more)
        (output,) = self.llm.generate([{"prompt_token_ids": list(prompt)}], [sampling], use_tqdm=False)
        return output

    def sampling(self, params: dict[str, Any] | None = None, tokens: int = 1, **more: Any) -> Any:
        """Greedy, so many tokens."""
        return self.vllm.SamplingParams(
            max_tokens=tokens,
            temperature=0,
            detokenize=False,
            ignore_eos=True,
            extra_args={"kv_transfer_params": params} if params else None,
            **more,
        )

    def index(self) -> float:
        """Indexes every chunk; seconds until all are on disk."""
        assert self.send(self.prefix, Index("prefix").params()).kv_transfer_params["linearkv"]["indexed"]
        began = time.perf_counter()
        bodies = [{"prompt_token_ids": [*self.prefix, *chunk]} for chunk in self.chunks]
        params = self.vllm.SamplingParams(
            max_tokens=1, detokenize=False, extra_args={"kv_transfer_params": Index("chunk", PREFIX).params()}
        )
        outputs = self.llm.generate(bodies, params, use_tqdm=False)
        assert all(output.kv_transfer_params["linearkv"]["indexed"] for output in outputs)
        while self.connector.counts.all()["stored"] < len(self.chunks) + 1:
            time.sleep(0.05)
        return time.perf_counter() - began

    def asked(self, chunks: Sequence[Sequence[int]]) -> tuple[list[int], dict[str, Any]]:
        """A prompt of these chunks and a new question, and what it asks of LinearKV."""
        question = draw(self.chance, QUESTION)
        named = tuple((len(chunk), chunk_id(chunk)) for chunk in chunks)
        prompt = [*self.prefix, *(token for chunk in chunks for token in chunk), *question]
        return prompt, Compose(PREFIX, named, "bidirectional").params()

    @property
    def files(self) -> list[Path]:
        """Of the store, the largest first: those of chunks, which are as long as each other."""
        return sorted(self.store.rglob("*.safetensors"), key=lambda file: -file.stat().st_size)

    def counts(self) -> dict[str, float]:
        """Of both halves of the connector."""
        own = self.connector.counts.all()
        return {name: count + own[name] for name, count in self.beside.counts.all().items()}

    def open_tiers(self) -> None:
        """The same store, opened once for every tier that states are to come from."""
        old = self.connector.opened
        old.close()

        def opened(device_budget: int, memory_budget: int) -> Any:
            settings = Settings(
                cache="files", restore="always", device_budget=device_budget, memory_budget=memory_budget
            )
            config = self.llm.llm_engine.vllm_config.model_config.hf_text_config
            return type(old)(
                replace(old.options), settings, self.connector.worker, old.identity, config.layer_types, [], old._counts
            )

        disk = opened(0, 0)
        self.tiers = {
            "device": opened(EVERYTHING, EVERYTHING),
            "memory": opened(0, EVERYTHING),
            "disk": disk,
            "disk, planned": disk,
        }
        for own in self.tiers.values():
            own.planner.prefill = disk.planner.prefill  # what the engine takes for it, whatever tier is in use
        for tier in ("device", "memory"):
            self.use(tier)
            self.send(*self.asked(self.chunks))
            self.connector.opened.settle()
        self.use("disk")

    def use(self, tier: str) -> Any:
        """States come from there, until it is said otherwise."""
        self.connector.opened = self.tiers[tier]
        self.connector.opened._restore = "auto" if tier == "disk, planned" else "always"
        return self.connector.opened

    def close(self) -> None:
        for opened in set(self.tiers.values()) - {self.connector.opened}:
            opened.close()
        self.model.close()


def spread_weights(worker: Any) -> None:
    """Makes of vLLM's dummy weights some whose states carry over from chunk to chunk, as those of trained models do."""
    chance = torch.Generator(device=worker.device).manual_seed(0)
    with torch.no_grad():
        for name, weight in worker.model.named_parameters():
            if weight.dim() >= 2 and weight.numel():
                weight.copy_(torch.randn(weight.shape, generator=chance, device=weight.device).mul_(0.02))
            elif name.endswith("dt_bias"):
                weight.fill_(-6.0)
            elif name.endswith("A_log"):
                weight.copy_(torch.rand(weight.shape, generator=chance, device=weight.device))


def draw(chance: random.Random, tokens: int) -> list[int]:
    return [chance.randrange(1000, 200_000) for _ in range(tokens)]


def synchronize(server: Server) -> None:
    if server.device.type == "cuda":
        torch.cuda.synchronize(server.device)


def read_plainly(files: Sequence[Path]) -> tuple[int, float]:
    """Bytes of files that the system does not have in its page cache, and the seconds that reading them takes, in as
    many threads as a store reads with."""
    forget(files)
    with ThreadPoolExecutor(READERS) as readers:
        began = time.perf_counter()
        list(readers.map(lambda file: plain_read([file]), files))
        seconds = time.perf_counter() - began
    return sum(file.stat().st_size for file in files), seconds


def measure_context(server: Server, number: int, tiers: Sequence[str], repeats: int) -> dict[str, Any]:
    """Times to first token of contexts of so many chunks. All are measured once a round, in another order each time, so
    that what a machine does from moment to moment is the same for all; a first round is not counted."""

    def cold() -> None:
        server.send(draw(server.chance, PREFIX + number * CHUNK + QUESTION))

    def least() -> None:
        server.send(draw(server.chance, PREFIX + QUESTION))

    def alone() -> None:
        prompt, params = server.asked([])
        assert server.send(prompt, params).num_cached_tokens == PREFIX

    def composed() -> None:
        prompt, params = server.asked(server.chance.sample(server.chunks, number))
        output = server.send(prompt, params)
        assert output.num_cached_tokens == len(prompt) - QUESTION, (output.num_cached_tokens, len(prompt))

    def planned() -> None:
        server.send(*server.asked(server.chance.sample(server.chunks, number)))

    # Those without states run beside the store that is to learn what prefilling takes.
    arms: dict[str, tuple[Callable[[], None], str]] = {
        "cold": (cold, "disk"),
        "short prompt": (least, "disk"),
        "question alone": (alone, "memory"),
        **{tier: (planned if tier == "disk, planned" else composed, tier) for tier in tiers},
    }
    seconds: dict[str, list[float]] = {name: [] for name in arms}
    loading: dict[str, list[float]] = {name: [] for name in arms}
    size, plainly = read_plainly(server.files[:number])
    for turn in range(repeats + 1):
        for name in sorted(arms, key=lambda name: random.Random(f"{turn} {name}").random()):
            work, tier = arms[name]
            if name.startswith("disk"):
                forget(server.files)
            before = server.counts()
            server.use(tier)
            synchronize(server)
            began = time.perf_counter()
            work()
            if not turn:
                continue
            seconds[name].append(time.perf_counter() - began)
            after = server.counts()
            if after["composed"] > before["composed"]:
                loading[name].append(after["seconds"] - before["seconds"])
    middle = {name: statistics.median(some) for name, some in seconds.items()}
    made: dict[str, Any] = {
        "chunks": number,
        "tokens": PREFIX + number * CHUNK + QUESTION,
        "plain_reads": {"bytes": size, "seconds": plainly},
        "seconds": seconds,
        "median_s": middle,
        "times cold": {name: middle["cold"] / some for name, some in middle.items()},
        "mean_loading_s": {name: statistics.mean(some) for name, some in loading.items() if some},
        "found": {tier: dict(server.tiers[tier].found) for tier in tiers},
        "counts": server.counts(),
    }
    print(
        f"{number} chunks, {made['tokens']} tokens: "
        + ", ".join(f"{n} {s * 1e3:.1f} ms ({made['times cold'][n]:.2f}x)" for n, s in middle.items()),
        flush=True,
    )
    return made


def check_composition(server: Server, number: int) -> float:
    """Relative error of a served context's states against float64 in torch, of the same pages."""
    serving = server.use("memory")
    chunks = server.chance.sample(server.chunks, number)
    prompt, params = server.asked(chunks)
    named = tuple((tokens, name) for tokens, name in params["linearkv"]["chunks"])
    loading = serving.begin(Compose(PREFIX, named, "bidirectional"), prompt)
    loading.ready(120)
    assert loading.composed is not None, loading.reason
    synchronize(server)
    served = loading.composed.recurrent.cpu()
    keys = [serving._chunk_key(server.prefix, chunk) for chunk in chunks]
    found = serving.pages.get(keys)
    states = [unpack(found[key].page.tensors).dense() for key in keys]
    prefix = serving._prefix(server.prefix)
    worst = 0.0
    for layer in range(0, len(served), max(1, len(served) // 6)):
        maps = [(state.transition[layer].double(), state.update[layer].double()) for state in states]
        initial = prefix.recurrent[layer].double().cpu()
        expected = compose_states([t for t, _ in maps], [u for _, u in maps], initial, "bidirectional")
        worst = max(worst, float((served[layer] - expected).norm() / expected.norm()))
    serving.end(loading)
    return worst


def check_one_chunk(server: Server) -> dict[str, Any]:
    """Largest differences in log-probability, over all tokens behind a question behind one chunk, from what follows
    when vLLM prefills the chunk there: composed of the chunk's state; of its stored state, which was computed in a
    batch with others, and so rounded otherwise; and, to see that it would show, of another chunk's.

    And for the likeliest tokens from what follows when vLLM prefills chunk and question in one.
    """
    serving = server.connector.opened
    chunk, other = server.chunks[:2]
    question = draw(server.chance, QUESTION)
    prefix = serving._prefix(server.prefix)

    def stored(ids: list[int]) -> Any:
        key = serving._chunk_key(server.prefix, ids)
        return compose(prefix, [unpack(serving.pages.get([key])[key].page.tensors_on(server.device))], "sequential")

    prefilled = server.model.prefill(chunk, after=compose(prefix, []))
    expected = server.model.logits(prefilled, question).log_softmax(-1)
    contexts = {
        "alone": compose(prefix, server.model.prefill_chunks(prefix, [chunk]), "sequential"),
        "stored": stored(chunk),
        "another chunk": stored(other),
    }
    made: dict[str, Any] = {}
    for name, context in contexts.items():
        logits = server.model.logits(context, question).log_softmax(-1)
        made[name] = {
            "log-probability": float((logits - expected).abs().max()),
            "state, relative": float((context.recurrent - prefilled.recurrent).norm() / prefilled.recurrent.norm()),
            "keys equal": bool(torch.equal(context.key, prefilled.key)),
        }
    at_once = likeliest(server.send([*server.prefix, *chunk, *question], logprobs=TOLD))
    made["in one, likeliest"] = differ(at_once, {token: float(expected[-1][token]) for token in at_once})
    return made


def check_served(server: Server) -> dict[str, float]:
    """Largest differences in log-probability, over the likeliest tokens, from a prompt of one chunk that this engine
    prefills in one: of a request served from the chunk's stored state, and, to see that it would show, from another
    chunk's."""
    question = draw(server.chance, QUESTION)
    expected, *served = (
        likeliest(server.send([*server.prefix, *chunk, *question], params, logprobs=TOLD))
        for chunk, params in (
            (server.chunks[0], None),
            *(
                (chunk, Compose(PREFIX, ((CHUNK, chunk_id(chunk)),), "sequential").params())
                for chunk in server.chunks[:2]
            ),
        )
    )
    return {"stored": differ(expected, served[0]), "another chunk": differ(expected, served[1])}


def likeliest(output: Any) -> dict[int, float]:
    return {token: entry.logprob for token, entry in output.outputs[0].logprobs[0].items()}


def differ(one: dict[int, float], other: dict[int, float]) -> float:
    """Largest difference over the tokens that both have."""
    return max((abs(one[token] - other[token]) for token in one.keys() & other.keys()), default=float("inf"))


def check_together(server: Server, number: int) -> dict[str, Any]:
    """Several requests that come at once: seconds until each has its first token, composed of states in host memory and
    ordinary; and how far log-probabilities are from those of the same requests one by one."""
    server.use("memory")
    asked = [server.asked(server.chance.sample(server.chunks, number)) for _ in range(TOGETHER)]
    made: dict[str, Any] = {"chunks": number, "requests": TOGETHER}
    for arm in ("composed", "cold"):
        requests = [(prompt, params if arm == "composed" else None) for prompt, params in asked]
        alone = [likeliest(server.send(*request, logprobs=TOLD)) for request in requests]
        before = server.counts()["composed"]
        synchronize(server)
        arrived, outputs = run_together(server, requests)
        assert server.counts()["composed"] - before == (TOGETHER if arm == "composed" else 0)
        made[arm] = {
            "first_token_s": sorted(arrived),
            "apart": [differ(one, likeliest(output)) for one, output in zip(alone, outputs, strict=True)],
        }
    return made


def run_together(server: Server, requests: Sequence[tuple[list[int], Any]]) -> tuple[list[float], list[Any]]:
    """Seconds until every request had its token, and what was answered."""
    engine = server.llm.llm_engine
    began = time.perf_counter()
    for place, (prompt, params) in enumerate(requests):
        engine.add_request(str(place), {"prompt_token_ids": prompt}, server.sampling(params, logprobs=TOLD))
    ended: dict[str, tuple[float, Any]] = {}
    while engine.has_unfinished_requests():
        for output in engine.step():
            if output.finished:
                ended[output.request_id] = (time.perf_counter() - began, output)
    pairs = [ended[str(place)] for place in range(len(requests))]
    return [seconds for seconds, _ in pairs], [output for _, output in pairs]


def check_stalls(server: Server, number: int) -> dict[str, dict[str, float]]:
    """Seconds between the tokens of a request: alone, beside contexts that are loaded, and beside a prompt of as many
    tokens that is prefilled; and seconds until that other request had its first token."""
    engine = server.llm.llm_engine
    sampling = server.sampling(tokens=100)

    def context() -> tuple[list[int], Any]:
        return server.asked(server.chance.sample(server.chunks, number))

    def run(name: str, other: Callable[[], tuple[list[int], Any]] | None) -> dict[str, float]:
        beside = f"{name}, other"
        engine.add_request(name, {"prompt_token_ids": draw(server.chance, 64)}, sampling)
        gaps: list[float] = []
        last = sent = answered = 0.0
        while engine.has_unfinished_requests():
            outputs = {output.request_id for output in engine.step()}
            now = time.perf_counter()
            if beside in outputs:
                answered = now - sent
            if name not in outputs:
                continue
            if last:
                gaps.append(now - last)
            last = now
            if other is not None and not sent and len(gaps) == 10:
                prompt, params = other()
                sent = time.perf_counter()
                engine.add_request(beside, {"prompt_token_ids": prompt}, server.sampling(params))
        longest = sorted(gaps)
        return {
            "median": statistics.median(gaps),
            "longest": longest[-1],
            "second longest": longest[-2],
            "first token of the other": answered,
        }

    run("warm-up", None)
    made = {"alone": run("alone", None), "beside prefill": run("beside prefill", lambda: (context()[0], None))}
    server.use("disk")
    for _ in range(2):  # the first time the system may still be writing what was indexed
        forget(server.files)
        made["beside disk"] = run("beside disk", context)
    server.use("memory")
    made["beside memory"] = run("beside memory", context)
    return made


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=PUBLISHED, default="4B")
    parser.add_argument("--contexts", type=int, nargs="+", default=[10, 26, 52], help="chunks of 512 tokens")
    parser.add_argument("--tiers", nargs="+", default=TIERS)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--graphs", action="store_true", help="also an engine with CUDA graphs and compilation")
    parser.add_argument("--options", type=json.loads, default={}, help="of vllm.LLM, as JSON")
    parser.add_argument("--store", type=Path, help="folder to make the store in")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--engine", choices=ENGINES, help=argparse.SUPPRESS)  # in a process of its own
    given = parser.parse_args(argv)
    if given.engine:
        measure(given)
        return
    made: dict[str, Any] = {"command": argv or sys.argv[1:], "shape": given.shape}
    with tempfile.TemporaryDirectory(dir=given.store) as folder:
        for engine in ENGINES if given.graphs else ENGINES[:1]:
            out = Path(folder) / f"{engine}.json"
            own = ["--engine", engine, "--store", str(Path(folder) / "store"), "--out", str(out)]
            command = [sys.executable, "-m", "linearkv.eval.vllm_serving", *(argv or sys.argv[1:]), *own]
            try:
                subprocess.run(command, check=True)
            finally:  # what was measured is kept, also where this is stopped early
                made[engine] = json.loads(out.read_text()) if out.exists() else None
                if given.out is not None:
                    given.out.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")


def measure(given: argparse.Namespace) -> None:
    """Everything about one engine; written as far as it has come."""
    os.environ["LINEARKV_CACHE"] = "files"
    largest, eager = max(given.contexts), given.engine == "eager"
    server = Server(given.shape, given.store, largest, given.options | {"enforce_eager": eager})
    result: dict[str, Any] = {"vllm": server.vllm.__version__, "machine": describe_machine(server.device)}

    def add(name: str, value: Any) -> None:
        result[name] = value
        if name != "contexts":
            print(f"{given.engine}: {name}: {value}", flush=True)
        given.out.write_text(json.dumps(result) + "\n", encoding="utf-8")

    if eager:
        add("indexing_s", server.index())
    server.open_tiers()
    if eager:
        add("one_chunk", check_one_chunk(server))
    add("served_chunk", check_served(server))
    add("composition_error", check_composition(server, min(given.contexts)))
    contexts: list[dict[str, Any]] = []
    for number in given.contexts:
        contexts.append(measure_context(server, number, given.tiers, given.repeats))
        add("contexts", contexts)
    add("together", check_together(server, sorted(given.contexts)[len(given.contexts) // 2]))
    add("stalls", check_stalls(server, largest))
    server.close()


if __name__ == "__main__":
    main()
