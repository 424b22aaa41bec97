"""Compiles every kernel for a Hopper GPU, which needs none; prints what became of each as JSON.

Run as a program of its own: where kernels are interpreted, the same process cannot compile them.
"""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from linearkv.kernels.chunk_delta import kernel as delta
from linearkv.kernels.compose import kernel as compose
from linearkv.kernels.relocate import kernel as relocate

HOPPER = GPUTarget("cuda", 90, 32)
STRIDE = re.compile(r".*_[a-z]$")
TABLES = {"transitions": "*i64", "updates": "*i64", "rows": "*i64", "bounds": "*i64"}
STATES = {"initial": "*fp32", "out": "*fp32", "entries": "*fp32", "scratch": "*fp32"}
SOLVED = dict.fromkeys(("w_scale", "y", "total", "out", "g", "beta"), "*fp32")
SOLVED |= {"w_high": "*fp16", "w_low": "*fp16", "lengths": "*i64"}


def compiled(kernel, constants, types, warps, **options):
    """Numbers of one compiled kernel, with strides that 16 divides, as a launch would specialise it."""
    signature, attributes = {}, {}
    for index, name in enumerate(kernel.arg_names):
        signature[name] = "constexpr" if name in constants else types.get(name, "i32")
        if signature[name].startswith("*") or (STRIDE.match(name) and name not in constants):
            attributes[(index,)] = [["tt.divisibility", 16]]
    source = ASTSource(kernel, signature, constants, attributes)
    made = triton.compile(source, target=HOPPER, options={"num_warps": warps} | options)
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(made.asm["cubin"])
        file.flush()
        used = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    ptx = made.asm["ptx"]
    return {
        "shared": made.metadata.shared,
        "registers": int(re.search(r"REG:(\d+)", used)[1]),
        "spilled": int(re.search(r"STACK:(\d+)", used)[1]),
        "tensor_core": len(re.findall(r"wgmma\.mma_async|mma\.sync", ptx)),
        "copies": len(re.findall(r"cp\.async\.cg\.shared\.global .{0,60}0x10", ptx)),
        "narrow_loads": len(re.findall(r"ld\.global\.b16", ptx)),
    }


def kernels():
    """(name, kernel, constants, types, warps, and options that it is launched with) of everything that a GPU runs."""
    for dim in (64, 128):
        for storage in ("fp16", "fp32"):
            maps = TABLES | STATES | {"t_base": f"*{storage}", "u_base": f"*{storage}"}
            shape = {"K": dim, "V": dim, "BK": dim, "PACKED": False, "initial_v": 1, "out_v": 1}
            config = compose.chain_config(dim, dim, 2 if storage == "fp16" else 4)
            for chains in (1, 2):
                constants = shape | {"BV": config.values, "CHAINS": chains, "ENTRIES": False}
                stages = {"num_stages": 2 * config.ahead + 1}
                yield f"chains {chains} {dim} {storage}", compose._chains, constants, maps, config.warps, stages
            yield f"entries {dim} {storage}", compose._chains, constants | {"ENTRIES": True}, maps, config.warps, stages
            constants |= {"PACKED": True}
            yield f"packed chains {dim} {storage}", compose._chains, constants, maps, config.warps, stages
            stages = {"num_stages": 2 if storage == "fp16" else 1}
            warps = compose.rotation_warps(dim, dim)
            yield f"rotations {dim} {storage}", compose._rotations, shape | {"BV": dim}, maps, warps, stages
        for dtype in ("bf16", "fp32"):
            types = SOLVED | {"k": f"*{dtype}", "v": f"*{dtype}"}
            shape = {"K": dim, "BK": dim, "BLOCK": delta.BLOCK, "HALF": dtype != "fp32"}
            yield (
                f"solve {dim} {dtype}",
                delta._solve,
                shape | {"V": dim, "BV": dim, "g_h": 1, "beta_h": 1},
                types,
                4,
                {"num_stages": 1},
            )
            shape |= {"COLUMNS": dim, "BN": dim, "STAGES": 3 if dtype == "bf16" else 2}
            for update in (False, True):
                yield f"walk {update} {dim} {dtype}", delta._walk, shape | {"UPDATE": update}, types, 4 * dim // 64
    types = dict.fromkeys(("key_base", "value_base", "cos", "sin", "out_key", "out_value"), "*bf16")
    shape = {"H": 4, "D": 256, "R": 64, "BLOCK": 16, "ROWS": relocate.ROWS, "SLOTS": True, "ALIGNED": 8}
    yield (
        "relocate 256 bf16",
        relocate._relocate,
        shape,
        types | {"parts": "*i64", "slots": "*i64"},
        4,
        {"enable_fp_fusion": False},
    )


if __name__ == "__main__":
    assert isinstance(compose._chains, triton.JITFunction), "kernels are being interpreted: unset TRITON_INTERPRET"
    json.dump({name: compiled(*rest[:4], **(rest[4] if rest[4:] else {})) for name, *rest in kernels()}, sys.stdout)
