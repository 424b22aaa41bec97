"""Promises of the compiled kernels, without a GPU: they compile for one, and as they were meant to.

Triton's interpreter runs what Triton's compiler refuses, and sees nothing of how memory is read.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def kernels(tmp_path_factory):
    """What each kernel became, by name."""
    environment = os.environ | {"TRITON_CACHE_DIR": str(tmp_path_factory.mktemp("triton"))}
    environment.pop("TRITON_INTERPRET", None)
    program = Path(__file__).with_name("compile_kernels.py")
    run = subprocess.run([sys.executable, program], env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-3000:]
    return json.loads(run.stdout)


def test_every_kernel_compiles_for_a_hopper_gpu_and_fits_it(kernels):
    assert len(kernels) == 33
    assert {name: made["shared"] for name, made in kernels.items() if made["shared"] > 227 << 10} == {}


def test_products_run_on_tensor_cores(kernels):
    assert [name for name, made in kernels.items() if not made["tensor_core"]] == ["relocate 256 bf16"]


@pytest.mark.parametrize("chains", [1, 2])
@pytest.mark.parametrize("dim", [64, 128])
def test_stored_maps_are_copied_sixteen_bytes_at_a_time_and_states_stay_in_registers(kernels, chains, dim):
    """A pointer whose alignment is not known is read element by element: correct, and many times slower."""
    made = kernels[f"chains {chains} {dim} fp16"]
    assert made["copies"] > 0
    assert made["narrow_loads"] == 0
    assert made["spilled"] <= (0 if chains == 1 else 128)
