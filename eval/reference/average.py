"""Averages the weights of runs that began from the same ones: better than each, at no cost (arXiv 2203.05482).

python -m linearkv.eval.reference.average RUN1/reference RUN2/reference --out linearkv/models/reference
"""

import argparse
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

WEIGHTS = "model.safetensors"


def average(folders: list[Path], out: Path) -> None:
    """Writes a checkpoint with the mean of `folders`' weights, and the other files of the first of them."""
    loaded = [load_file(folder / WEIGHTS) for folder in folders]
    if any(one.keys() != loaded[0].keys() for one in loaded):
        raise SystemExit("the checkpoints hold different tensors: they are not of one model")
    out.mkdir(parents=True, exist_ok=True)
    for file in folders[0].iterdir():
        if file.is_file() and file.name != WEIGHTS and file.parent != out:
            shutil.copyfile(file, out / file.name)
    mean = {
        name: torch.stack([one[name].float() for one in loaded]).mean(0).to(tensor.dtype)
        for name, tensor in loaded[0].items()
    }
    save_file(mean, out / WEIGHTS, metadata={"format": "pt"})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    average(options.folders, options.out)


if __name__ == "__main__":
    main()
