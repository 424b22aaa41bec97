"""Malformed pages are refused, whatever they are; and the program that makes them sees it when one is not."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from linearkv.cache import decode, encode
from linearkv.eval.fuzz_pages import KEY, SECRET, TAG, Fuzzer, seal, unsound

CASES = 40_000
"""About a minute."""


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    """A run in a process of its own: what hears whether something is executed cannot be taken out again."""
    out = tmp_path_factory.mktemp("fuzz") / "result.json"
    command = [sys.executable, "-m", "linearkv.eval.fuzz_pages", "--cases", str(CASES), "--seed", "7", "--out", out]
    done = subprocess.run(command, capture_output=True, text=True)
    assert out.exists(), done.stdout + done.stderr
    return json.loads(out.read_text()) | {"code": done.returncode}


def test_malformed_pages_are_refused_or_are_sound(result):
    assert result["failures"] == []
    assert (result["code"], result["cases"]) == (0, CASES)


def test_the_cases_reach_every_check_and_some_pass_all(result):
    assert set(result["families"]) == {"sealed", "changed", "foreign"}
    assert result["reasons"]["first bytes"] > 0.1 * CASES
    assert result["reasons"]["MAC"] > 0.01 * CASES
    assert result["reasons"]["header"] > 0.2 * CASES
    assert result["pages"] > 0.02 * CASES


def as_bytes(data):
    return bytes(data.numpy()) if isinstance(data, torch.Tensor) else bytes(data)


def believes_any_mac(data, key, secret):
    return decode(seal(as_bytes(data), secret), key, secret)


def lets_errors_through(data, key, secret):
    if b'"F99"' in as_bytes(data):
        raise KeyError("F99")
    return decode(data, key, secret)


@pytest.mark.parametrize(
    ("decoder", "what"), [(believes_any_mac, "a page that nobody sealed"), (lets_errors_through, "KeyError: 'F99'")]
)
def test_a_decoder_that_is_wrong_is_found_out(tmp_path, decoder, what):
    fuzzer = Fuzzer(1, tmp_path, decoder=decoder)
    for number in range(1000):
        fuzzer.run(number)
    fuzzer.close()
    found = [failure for failure in fuzzer.result.failures if failure.what == what]
    assert found
    assert (tmp_path / f"1-{found[0].number}.hex").read_text() == fuzzer.make(found[0].number)[1].hex()


UNPICKLING = """
import _pickle, io, sys, torch
from pathlib import Path
from linearkv.eval.fuzz_pages import Alarms, Fuzzer, PageDamaged

def as_bytes(data):
    return bytes(data.numpy()) if isinstance(data, torch.Tensor) else bytes(data)

def refusing(function):
    def decoder(data, key, secret):
        try:
            function(as_bytes(data))
        except Exception:
            raise PageDamaged("first") from None
        return None
    return decoder

alarms = Alarms()
alarms.install()
folder = Path(sys.argv[1])
for name, function in [("pickle", _pickle.loads), ("eval", eval), ("load", lambda data: torch.load(io.BytesIO(data)))]:
    (folder / name).mkdir()
    fuzzer = Fuzzer(1, folder / name, alarms, refusing(function))
    for number in range(300):
        fuzzer.run(number)
    fuzzer.close()
    print(name, sum(failure.what.startswith("executed") for failure in fuzzer.result.failures) > 0)
    print((folder / name / "executed").exists())
"""


def test_what_a_decoder_executes_is_heard_and_does_not_come_to_pass(tmp_path):
    done = subprocess.run([sys.executable, "-c", UNPICKLING, str(tmp_path)], capture_output=True, text=True)
    assert done.stdout.split() == ["pickle", "True", "False", "eval", "True", "False", "load", "True", "False"], done


def test_a_tensor_outside_of_the_page_is_unsound():
    page = encode(KEY, {"x": torch.arange(4), "y": torch.arange(4)}, secret=SECRET, tag=TAG)
    data = bytes(page.buffer.numpy())
    assert unsound(page, data) == ""
    x, y = page.tensors.values()
    assert "'x' lies at" in unsound(replace(page, tensors={"x": torch.arange(4)}), data)
    assert "'x' lies at" in unsound(replace(page, tensors={"y": y, "x": x}), data), "over one another"
    assert "'h' lies at" in unsound(replace(page, tensors={"h": page.buffer[:9]}), data), "in the header"
    assert "its tag" in unsound(replace(page, tag="0" * 64), data)


def test_a_page_sealed_again_is_the_page_itself():
    data = bytes(encode(KEY, {"x": torch.arange(4)}, secret=SECRET).buffer.numpy())
    assert seal(data, SECRET) == data
