"""vLLM's OpenAI-compatible server with the plugin, as its users start it, its engine a process of its own."""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request

import pytest

from linearkv.client import completion, indexing

from .conftest import HEAD_DIM, MACHINE, ON_GPU


@pytest.fixture(scope="module")
def server(checkpoint, tmp_path_factory):
    """Address of a server with a store of its own."""
    folder = tmp_path_factory.mktemp("server")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    connector = {
        "kv_connector": "LinearKVConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"store": str(folder / "store")},
    }
    command = [
        *(sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(checkpoint)),
        *("--served-model-name", "reference", "--host", "127.0.0.1", "--port", str(port)),
        *("--enforce-eager", "--mamba-ssm-cache-dtype", "float32", "--max-model-len", "4096", "--max-num-seqs", "8"),
        *("--kv-transfer-config", json.dumps(connector)),
        *(text for name, value in MACHINE.items() for text in (f"--{name.replace('_', '-')}", str(value))),
    ]
    # On a CPU, and only there, vLLM otherwise has the model in yet another process than the scheduler.
    environment = {**os.environ, "VLLM_ENABLE_V1_MULTIPROCESSING": "1" if ON_GPU else "0"}
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)
        try:
            wait_for(f"http://127.0.0.1:{port}/health", process, folder / "log")
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(60)


def wait_for(address, process, log):
    for _ in range(240):
        assert process.poll() is None, log.read_text()[-4000:]
        try:
            urllib.request.urlopen(address, timeout=5)
            return
        except OSError:
            time.sleep(0.5)
    raise AssertionError(log.read_text()[-4000:])


def post(server, body):
    request = urllib.request.Request(
        f"{server}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        return json.load(answer)


def counters(server):
    with urllib.request.urlopen(f"{server}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    found = [line for line in lines if line.startswith("vllm:linearkv_")]
    return {line.partition("{")[0].removeprefix("vllm:linearkv_"): float(line.rpartition(" ")[2]) for line in found}


def test_an_openai_client_indexes_asks_streams_and_sees_the_counters(server, prompt, chunks, questions):
    assert HEAD_DIM == 64
    for body in indexing(prompt, chunks[:8], model="reference"):
        assert post(server, body)["kv_transfer_params"] == {"linearkv": {"indexed": True}}
    some = [chunks[place] for place in (5, 0, 3, 7)]
    body = completion(prompt, some, questions[0].question, model="reference", max_tokens=12, temperature=0)
    first = post(server, body)
    plain = post(server, {name: value for name, value in body.items() if name != "kv_transfer_params"})
    assert first["choices"][0]["text"].strip() and plain["choices"][0]["text"].strip()
    assert first["usage"]["prompt_tokens"] == plain["usage"]["prompt_tokens"] == len(body["prompt"])
    assert streamed(server, body) == first["choices"][0]["text"]
    for _ in range(20):
        counts = counters(server)
        if counts.get("composed_total") == 2:
            break
        time.sleep(0.5)
    reused = len(prompt.prefix_ids) + sum(len(prompt.chunk_ids(chunk)) for chunk in some)
    assert counts["composed_total"] == 2 and counts["tokens_total"] == 2 * reused
    assert counts["stored_total"] == 9 and counts["chunks_total"] == 8 and counts["seconds_total"] > 0


def streamed(server, body):
    request = urllib.request.Request(
        f"{server}/v1/completions", json.dumps({**body, "stream": True}).encode(), {"Content-Type": "application/json"}
    )
    pieces = []
    with urllib.request.urlopen(request, timeout=120) as answer:
        for line in answer:
            data = line.decode().removeprefix("data: ").strip()
            if data and data != "[DONE]":
                pieces += [choice["text"] for choice in json.loads(data)["choices"]]
    return "".join(pieces)
