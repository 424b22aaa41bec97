"""Time to first token of shuffled contexts served by vLLM from stored states, at the sizes of published models.

    python -m linearkv.eval.vllm_serving --shape 27B --contexts 10 26 52 --out vllm_serving_27b.json

Random weights of a published shape, random tokens, one engine. Chunks are indexed through requests, then each context
(chunks of 512 tokens, in a new random order every time) is asked for

- `device`: states on the GPU; `memory`: in host memory; `disk`: on disk, and not in the system's page cache; `disk,
  planned`: the same, where the planner may prefill instead, as it does by default;
- `cold`: the same tokens as an ordinary request, prefilled; `question alone`: what stands behind the chunks, behind the
  prefix alone, which is the ceiling.

Beside the times: whether a context is what plain torch composes of the same pages in float64, whether one chunk behind
its prefix gives the log-probabilities of an ordinary request, and how long another request's tokens take while a
context is loaded. Needs vLLM and a GPU; `--shape tiny` tries the program on a CPU.
"""

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from linearkv import Settings, unpack
from linearkv.client import Compose, Index, chunk_id
from linearkv.eval.bench import describe_machine
from linearkv.eval.end_to_end import PUBLISHED
from linearkv.eval.vllm_prefill import write_config
from linearkv.kernels.compose import compose_states
from linearkv.vllm import register

TIERS = ("device", "memory", "disk", "disk, planned")
CHUNK, PREFIX, QUESTION = 512, 64, 64


class Server:
    """An engine with the connector, and a corpus in its store."""

    def __init__(self, shape: str, store: Path, chunks: int, options: dict[str, Any]) -> None:
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
        register()
        import vllm
        from vllm.distributed.kv_transfer import get_kv_transfer_group

        self.vllm = vllm
        length = PREFIX + CHUNK * chunks + QUESTION + 64
        with tempfile.TemporaryDirectory() as folder:
            write_config(Path(folder), shape)
            self.llm = vllm.LLM(
                folder,
                load_format="dummy",
                dtype="bfloat16",
                skip_tokenizer_init=True,
                enable_prefix_caching=False,
                mamba_ssm_cache_dtype="float32",
                max_model_len=length,
                max_num_batched_tokens=length,
                max_num_seqs=8,
                kv_transfer_config={
                    "kv_connector": "LinearKVConnector",
                    "kv_role": "kv_both",
                    "kv_connector_extra_config": {"store": str(store), "loading_bytes": 8 << 30},
                },
                **{"enforce_eager": True, **options},
            )
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
        sampling = self.vllm.SamplingParams(
            max_tokens=tokens,
            temperature=0,
            detokenize=False,
            ignore_eos=True,
            extra_args={"kv_transfer_params": params} if params else None,
            **more,
        )
        (output,) = self.llm.generate([{"prompt_token_ids": list(prompt)}], [sampling], use_tqdm=False)
        return output

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

    def counts(self) -> dict[str, float]:
        """Of both halves of the connector."""
        own = self.connector.counts.all()
        return {name: count + own[name] for name, count in self.beside.counts.all().items()}

    def reopen(self, **settings: Any) -> None:
        """The same store with nothing loaded, and other settings."""
        old = self.connector.opened
        again = type(old)
        old.close()
        self.connector.opened = again(
            replace(old.options),
            Settings(cache="files", **settings),
            self.connector.worker,
            old.identity,
            self.llm.llm_engine.vllm_config.model_config.hf_text_config.layer_types,
            [],
            self.connector.counts,
        )


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


def timed(server: Server, work: Callable[[], Any], repeats: int, before: Callable[[], None]) -> list[float]:
    """Seconds of each repetition, a first one not counted."""
    seconds = []
    for _ in range(repeats + 1):
        before()
        synchronize(server)
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return seconds[1:]


def synchronize(server: Server) -> None:
    if server.device.type == "cuda":
        torch.cuda.synchronize(server.device)


def forget_files(store: Path) -> None:
    """Asks the system to drop the store's files from its page cache."""
    for file in store.rglob("*.safetensors"):
        descriptor = os.open(file, os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def measure_context(server: Server, number: int, tiers: Sequence[str], repeats: int) -> dict[str, Any]:
    """Times to first token of contexts of so many chunks."""

    def composed() -> None:
        chunks = server.chance.sample(server.chunks, number)
        prompt, params = server.asked(chunks)
        output = server.send(prompt, params)
        assert output.num_cached_tokens == len(prompt) - QUESTION, (output.num_cached_tokens, len(prompt))

    def planned() -> None:
        server.send(*server.asked(server.chance.sample(server.chunks, number)))

    def bring_all() -> None:
        server.send(*server.asked(server.chunks))
        server.connector.opened.settle()

    def cold() -> None:
        server.send(draw(server.chance, PREFIX + number * CHUNK + QUESTION))

    def alone() -> None:
        prompt, params = server.asked([])
        assert server.send(prompt, params).num_cached_tokens == PREFIX

    nothing = lambda: None  # noqa: E731
    made: dict[str, Any] = {"chunks": number, "tokens": PREFIX + number * CHUNK + QUESTION}
    arms = {"cold": timed(server, cold, repeats, nothing), "question alone": timed(server, alone, repeats, nothing)}
    everything = 40 << 30
    for tier in tiers:
        before = nothing
        if tier == "device":
            server.reopen(restore="always", device_budget=everything, memory_budget=everything)
            bring_all()
        elif tier == "memory":
            server.reopen(restore="always", device_budget=0, memory_budget=everything)
            bring_all()
        else:
            restore = "auto" if tier == "disk, planned" else "always"
            server.reopen(restore=restore, device_budget=0, memory_budget=0)
            before = lambda: forget_files(server.store)  # noqa: E731
        before_counts = server.counts()
        arms[tier] = timed(server, planned if tier == "disk, planned" else composed, repeats, before)
        spent = {name: count - before_counts[name] for name, count in server.counts().items()}
        if spent["composed"]:
            made.setdefault("mean_loading_s", {})[tier] = spent["seconds"] / spent["composed"]
        made[f"found {tier}"] = dict(server.connector.opened.found)
    made["seconds"] = arms
    made["median_s"] = {name: statistics.median(seconds) for name, seconds in arms.items()}
    made["times cold"] = {name: made["median_s"]["cold"] / seconds for name, seconds in made["median_s"].items()}
    made["counts"] = server.counts()
    print(
        f"{number} chunks, {made['tokens']} tokens: "
        + ", ".join(f"{n} {s * 1e3:.1f} ms ({made['times cold'][n]:.2f}x)" for n, s in made["median_s"].items()),
        flush=True,
    )
    return made


def check_composition(server: Server, number: int) -> float:
    """Relative error of a served context's states against float64 in torch, of the same pages."""
    serving = server.connector.opened
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


def check_one_chunk(server: Server) -> dict[str, float]:
    """Log-probabilities of the likeliest tokens behind one chunk: composed, against an ordinary request's; and, to see
    that it would show, against those behind another chunk."""

    def likeliest(prompt: Sequence[int], params: dict[str, Any] | None = None) -> dict[int, float]:
        found = server.send(prompt, params, logprobs=20).outputs[0].logprobs[0]
        return {token: entry.logprob for token, entry in found.items()}

    question = draw(server.chance, QUESTION)

    def prompt_of(chunk: list[int]) -> tuple[list[int], dict[str, Any]]:
        named = ((len(chunk), chunk_id(chunk)),)
        return [*server.prefix, *chunk, *question], Compose(PREFIX, named, "sequential").params()

    def apart(one: dict[int, float], other: dict[int, float]) -> float:
        shared = one.keys() & other.keys()
        return max((abs(one[token] - other[token]) for token in shared), default=float("inf"))

    prompt, params = prompt_of(server.chunks[0])
    ordinary, composed = likeliest(prompt), likeliest(prompt, params)
    other = likeliest(*prompt_of(server.chunks[1]))
    return {
        "composed": apart(ordinary, composed),
        "shared of 20": len(ordinary.keys() & composed.keys()),
        "another chunk": apart(ordinary, other),
        "another chunk shares": len(ordinary.keys() & other.keys()),
    }


def check_stalls(server: Server, number: int) -> dict[str, float]:
    """Seconds between the tokens of a request, alone, and while another's context is loaded from disk."""
    engine = server.llm.llm_engine
    sampling = server.vllm.SamplingParams(max_tokens=60, temperature=0, detokenize=False, ignore_eos=True)

    def run(load: bool, name: str) -> list[float]:
        engine.add_request(name, {"prompt_token_ids": draw(server.chance, 64)}, sampling)
        gaps, last, sent = [], 0.0, False
        while engine.has_unfinished_requests():
            outputs = {output.request_id: output for output in engine.step()}
            now = time.perf_counter()
            if name in outputs:
                if last:
                    gaps.append(now - last)
                last = now
                if load and not sent and len(gaps) == 10:
                    prompt, params = server.asked(server.chance.sample(server.chunks, number))
                    one = server.vllm.SamplingParams(
                        max_tokens=1, detokenize=False, extra_args={"kv_transfer_params": params}
                    )
                    engine.add_request(f"{name} composed", {"prompt_token_ids": prompt}, one)
                    sent = True
        return gaps

    run(False, "warm-up")
    alone = run(False, "alone")
    server.reopen(restore="always", device_budget=0, memory_budget=0)
    forget_files(server.store)
    beside = run(True, "beside")
    return {
        "alone median": statistics.median(alone),
        "alone longest": max(alone),
        "beside median": statistics.median(beside),
        "beside longest": max(beside),
        "beside second longest": sorted(beside)[-2],
    }


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=PUBLISHED, default="4B")
    parser.add_argument("--contexts", type=int, nargs="+", default=[10, 26, 52], help="chunks of 512 tokens")
    parser.add_argument("--tiers", nargs="+", default=TIERS)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--options", type=json.loads, default={}, help="of vllm.LLM, as JSON")
    parser.add_argument("--store", type=Path, help="folder to make the store in")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args(argv)
    os.environ["LINEARKV_CACHE"] = "files"
    with tempfile.TemporaryDirectory(dir=given.store) as folder:
        server = Server(given.shape, Path(folder) / "store", max(given.contexts), given.options)
        indexing = server.index()
        tokens = CHUNK * max(given.contexts)
        print(f"indexed {tokens} tokens in {indexing:.1f} s, {tokens / indexing:.0f} a second", flush=True)
        server.reopen(restore="always")
        result: dict[str, Any] = {
            "command": argv or sys.argv[1:],
            "vllm": server.vllm.__version__,
            "machine": describe_machine(server.device),
            "shape": given.shape,
            "indexing_s": indexing,
            "one_chunk": check_one_chunk(server),
            "composition_error": check_composition(server, min(given.contexts)),
            "contexts": [],
        }
        print({name: result[name] for name in ("one_chunk", "composition_error")}, flush=True)
        for number in given.contexts:
            result["contexts"].append(measure_context(server, number, given.tiers, given.repeats))
            keep(given.out, result)
        result["stalls"] = check_stalls(server, max(given.contexts))
        print(result["stalls"], flush=True)
        keep(given.out, result)
        server.llm.llm_engine.engine_core.shutdown()


def keep(out: Path | None, result: dict[str, Any]) -> None:
    if out is not None:
        out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
