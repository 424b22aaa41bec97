"""Time to first token of vLLM's own prefill on a GPU, at the sizes of published models and with random weights.

    python -m linearkv.eval.vllm_prefill --shape 27B --tokens 64 5184 13376 26688 --out vllm.json

What `linearkv.eval.end_to_end` compares with beside this project's own model code. Needs vLLM, which is imported here
and by nothing else. Every prompt is new, and prefix caching is off.
"""

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from linearkv.eval.end_to_end import PUBLISHED
from linearkv.vllm import register

VOCABULARY = 248_320


def write_config(folder: Path, shape: str) -> None:
    """A checkpoint folder without weights."""
    kinds = ["full_attention" if layer % 4 == 3 else "linear_attention" for layer in range(64)]
    config: dict[str, Any] = {
        "architectures": ["Qwen3_5ForCausalLM"],
        "model_type": "qwen3_5_text",
        "dtype": "bfloat16",
    }
    config |= {"vocab_size": VOCABULARY, "head_dim": 256, "linear_key_head_dim": 128, "linear_value_head_dim": 128}
    config |= {"max_position_embeddings": 262_144, "linear_conv_kernel_dim": 4, "hidden_act": "silu"}
    config |= {"rope_parameters": {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25}}
    config |= PUBLISHED[shape] | {"layer_types": kinds[: PUBLISHED[shape]["num_hidden_layers"]]}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")


def measure(shape: str, lengths: list[int], repeats: int, eager: bool, backend: str | None) -> dict[str, Any]:
    """Seconds from a prompt to its first token, by the prompt's length."""
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import vllm

    register()
    chosen: dict[str, Any] = {} if backend is None else {"gdn_prefill_backend": backend}
    with tempfile.TemporaryDirectory() as folder:
        write_config(Path(folder), shape)
        engine = vllm.LLM(
            folder,
            load_format="dummy",
            dtype="bfloat16",
            skip_tokenizer_init=True,
            enforce_eager=eager,
            enable_prefix_caching=False,
            mamba_ssm_cache_dtype="float32",
            max_model_len=max(lengths) + 16,
            max_num_batched_tokens=max(lengths) + 16,
            max_num_seqs=4,
            **chosen,
        )
    one = vllm.SamplingParams(max_tokens=1, temperature=0, detokenize=False)
    chance = random.Random(0)
    rows: list[dict[str, Any]] = []
    for length in lengths:
        seconds = []
        for _ in range(repeats + 1):
            prompt = {"prompt_token_ids": [chance.randrange(1000, 200_000) for _ in range(length)]}
            began = time.perf_counter()
            engine.generate(prompt, one, use_tqdm=False)
            seconds.append(time.perf_counter() - began)
        rows.append({"tokens": length, "median_s": statistics.median(seconds[1:]), "seconds": seconds[1:]})
        print(f"{length:7d} tokens: {rows[-1]['median_s'] * 1e3:9.1f} ms", flush=True)
    return {"vllm": vllm.__version__, "shape": shape, "eager": eager, "gdn_prefill_backend": backend, "rows": rows}


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=PUBLISHED, default="4B")
    parser.add_argument("--tokens", nargs="+", type=int, default=[64, 5184, 13376, 26688])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--graphs", action="store_true", help="with CUDA graphs and compilation; without, eager")
    parser.add_argument("--gdn-prefill-backend", help="as vLLM names it; without, vLLM's own choice")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args(argv)
    result = measure(given.shape, given.tokens, given.repeats, not given.graphs, given.gdn_prefill_backend)
    if given.out is not None:
        made = {"command": argv or sys.argv[1:]} | result
        given.out.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
