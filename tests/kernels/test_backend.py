"""Promises of the backend switch: it chooses by wish and device, and never runs one version under another's name."""

import threading

import pytest
import torch

from linearkv.errors import LinearKVError
from linearkv.kernels import backend
from linearkv.kernels.backend import accumulation_dtype, implementation, use_backend

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def reference():
    return "torch"


def fast():
    return "triton"


BOTH = {"torch": reference, "triton": fast}


@pytest.fixture
def no_interpreter(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)


@pytest.mark.parametrize("wanted", ["auto", "torch"])
def test_a_cpu_runs_the_reference(wanted):
    with use_backend(wanted):
        assert implementation("operation", BOTH, CPU) is reference


def test_auto_takes_triton_where_it_can_run(monkeypatch):
    monkeypatch.setattr(backend, "triton_usable", lambda device: device == CUDA)
    assert implementation("operation", BOTH, CUDA) is fast


def test_auto_takes_the_reference_of_an_operation_without_a_triton_version(monkeypatch):
    monkeypatch.setattr(backend, "triton_usable", lambda device: True)
    assert implementation("operation", {"torch": reference}, CUDA) is reference


def test_torch_is_taken_where_triton_could_run(monkeypatch):
    monkeypatch.setattr(backend, "triton_usable", lambda device: True)
    with use_backend("torch"):
        assert implementation("operation", BOTH, CUDA) is reference


def test_an_installed_triton_without_a_device_is_not_usable():
    """A package on disk is no device: triton may well be installed on a machine without a GPU."""
    assert not backend.triton_usable(CPU)
    if not torch.cuda.is_available():
        assert not backend.triton_usable(CUDA)


def test_triton_is_refused_where_no_version_exists():
    with (
        use_backend("triton"),
        pytest.raises(LinearKVError, match=r"'chunk_delta' has no 'triton' version \(it has: torch\); use .*'torch'"),
    ):
        implementation("chunk_delta", {"torch": reference}, CPU)


def test_triton_is_refused_where_it_cannot_run(no_interpreter):
    with use_backend("triton"), pytest.raises(LinearKVError, match="'operation'.* cannot run on cpu.*TRITON_INTERPRET"):
        implementation("operation", BOTH, CPU)


def test_triton_is_given_where_it_is_interpreted(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    with use_backend("triton"):
        assert implementation("operation", BOTH, CPU) is fast


def test_auto_never_interprets(monkeypatch):
    """Interpreted kernels are thousands of times slower: only for who asks."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert implementation("operation", BOTH, CPU) is reference


def test_an_unknown_backend_is_refused_by_name():
    with (
        pytest.raises(ValueError, match="unknown backend 'cuda': expected one of auto, torch, triton"),
        use_backend("cuda"),
    ):
        pass


def test_the_wish_ends_with_its_block():
    with pytest.raises(RuntimeError), use_backend("triton"), use_backend("torch"):
        raise RuntimeError
    assert implementation("operation", BOTH, CPU) is reference


def test_the_wish_is_of_one_thread():
    chosen = []
    with use_backend("triton"):
        thread = threading.Thread(target=lambda: chosen.append(implementation("operation", BOTH, CPU)))
        thread.start()
        thread.join()
    assert chosen == [reference]


@pytest.mark.parametrize(
    ("dtypes", "expected"),
    [
        ((torch.float16, torch.bfloat16), torch.float32),
        ((torch.float32, torch.float16), torch.float32),
        ((torch.float16, torch.float64), torch.float64),
    ],
)
def test_accumulation_is_float32_unless_an_operand_is_float64(dtypes, expected):
    assert accumulation_dtype(*(torch.zeros(1, dtype=dtype) for dtype in dtypes)) == expected
