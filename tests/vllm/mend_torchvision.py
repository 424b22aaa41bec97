"""Lets torchvision be imported beside a torch for CPUs.

vLLM imports torchvision, whose build on PyPI is for CUDA: its operators do not load beside `torch+cpu`, and then it
fails at describing two of them. They are for images and never called here; declared, the import goes through. Run by
`make test` in vLLM's environment; does nothing where torchvision works.
"""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

DECLARED = """

if not _has_ops():  # LinearKV's tests: beside a torch for CPUs
    for _name in ("nms", "qnms"):
        torch.library.define(f"torchvision::{_name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
"""


def main() -> None:
    spec = find_spec("torchvision")
    if spec is None or spec.origin is None or imports():
        return
    file = Path(spec.origin).parent / "extension.py"
    if DECLARED not in (text := file.read_text(encoding="utf-8")):
        file.write_text(text + DECLARED, encoding="utf-8")
    if not imports():
        sys.exit("torchvision cannot be imported in this environment, and vLLM needs it")


def imports() -> bool:
    return subprocess.run([sys.executable, "-c", "import torchvision"], capture_output=True).returncode == 0


if __name__ == "__main__":
    main()
