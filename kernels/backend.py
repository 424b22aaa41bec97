"""One switch that decides which implementation of an operation runs: `auto`, `torch` or `triton`.

Every operation keeps a plain-torch reference and, where one exists, a Triton version of the same signature. Callers
name neither; they call the operation, and the switch chooses by the caller's wish and the device of the tensors.
"""

import contextlib
import importlib
import importlib.util
import os
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any

import torch

from linearkv.errors import LinearKVError

HOPPER = (9, 0)
"""The least compute capability that the kernels are cut for."""
LARGEST_HEAD = 128
"""Largest key or value dim of a head that they are cut for."""
BACKENDS = ("auto", "torch", "triton")
_wanted: ContextVar[str] = ContextVar("linearkv_backend", default="auto")


@contextlib.contextmanager
def use_backend(name: str) -> Iterator[None]:
    """Runs every operation called inside the `with` block on `name` (`auto`, `torch` or `triton`)."""
    _check(name)
    token = _wanted.set(name)
    try:
        yield
    finally:
        _wanted.reset(token)


def asked_backend() -> str:
    """The backend asked for: `auto`, `torch` or `triton`."""
    return _wanted.get()


def triton_usable(device: torch.device) -> bool:
    """Whether Triton kernels can run on `device`: a CUDA device that answers, and the package. Never imports Triton.

    The kernels' tiles are cut for the shared memory of a Hopper processor; older ones run the reference.
    """
    if device.type != "cuda" or not torch.cuda.is_available() or importlib.util.find_spec("triton") is None:
        return False
    return torch.cuda.get_device_capability(device) >= HOPPER


def runs_triton(device: torch.device) -> bool:
    """Whether operations on `device` run their Triton versions, by the wish in force."""
    return asked_backend() != "torch" and triton_usable(device)


def implementation(
    operation: str, versions: Mapping[str, Callable[..., Any]], device: torch.device
) -> Callable[..., Any]:
    """The version of `operation` to run on `device`.

    `versions` maps `torch` (always there) and, where it exists, `triton` to functions of one signature. `auto` takes
    the Triton version where it exists and can run, else the reference. Asking for `triton` where it does not exist or
    cannot run is an error: a benchmark must not measure the reference under Triton's name. Triton's own interpreter
    (`TRITON_INTERPRET=1`) counts as a place to run for who asks, never for `auto`: it is for tests.
    """
    wanted = asked_backend()
    if wanted == "auto":
        wanted = "triton" if "triton" in versions and triton_usable(device) else "torch"
    if wanted not in versions:
        raise LinearKVError(
            f"operation {operation!r} has no {wanted!r} version (it has: {', '.join(sorted(versions))}); "
            f"use backend 'auto' or 'torch'"
        )
    if wanted == "triton" and not (triton_usable(device) or os.environ.get("TRITON_INTERPRET") == "1"):
        raise LinearKVError(
            f"the Triton version of operation {operation!r} cannot run on {device}: it needs a CUDA device of compute "
            f"capability 9.0 or more and the triton package; use backend 'auto' or 'torch' "
            f"(or set TRITON_INTERPRET=1 to test kernels without a GPU)"
        )
    return versions[wanted]


def versions(package: str, operation: str, dtype: torch.dtype, *dims: int) -> dict[str, Callable[..., Any]]:
    """The versions of `operation` that compute in `dtype` heads of `dims`, from `package`'s `reference` and `kernel`.

    Float64 is for tests of the mathematics, and only references compute in it. Triton is imported when it is first run.
    An operation that is another way to call a kernel has no reference of its own.
    """
    reference = importlib.import_module(f"{package}.reference")
    found = {"torch": getattr(reference, operation)} if hasattr(reference, operation) else {}
    if dtype != torch.float64 and max(dims, default=0) <= LARGEST_HEAD:
        found["triton"] = lambda *operands: getattr(importlib.import_module(f"{package}.kernel"), operation)(*operands)
    return found


def accumulation_dtype(*tensors: torch.Tensor) -> torch.dtype:
    """float64 where an operand is float64 (tests), else float32: what every operation accumulates in."""
    return torch.float64 if any(t.dtype == torch.float64 for t in tensors) else torch.float32


def _check(name: str) -> None:
    if name not in BACKENDS:
        raise ValueError(f"unknown backend {name!r}: expected one of {', '.join(BACKENDS)}")
