"""Muon: momentum whose update is replaced by the nearest orthogonal matrix (K. Jordan and others, 2024)."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


def orthogonalise(matrices: Tensor, steps: int = 5) -> Tensor:
    """Approximately U V^T of each matrix's singular value decomposition. [n, rows, columns] -> the same, bf16."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = matrices.bfloat16()
    tall = x.shape[-2] > x.shape[-1]
    if tall:
        x = x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = a * x + torch.baddbmm(gram, gram, gram, beta=b, alpha=c) @ x
    return x.mT if tall else x


class Muon(torch.optim.Optimizer):
    """For weight matrices only; matrices of one shape are updated together."""

    def __init__(self, parameters: Iterable[Tensor], lr: float, momentum: float = 0.95, weight_decay: float = 0.0):
        super().__init__(list(parameters), {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            shapes: dict[torch.Size, list[Tensor]] = {}
            for parameter in group["params"]:
                if parameter.grad is not None:
                    shapes.setdefault(parameter.shape, []).append(parameter)
            for shape, parameters in shapes.items():
                grads = [parameter.grad for parameter in parameters if parameter.grad is not None]
                moments = [
                    self.state[parameter].setdefault("moment", torch.zeros_like(parameter)) for parameter in parameters
                ]
                torch._foreach_lerp_(moments, grads, 1 - group["momentum"])
                looked_ahead = torch._foreach_lerp(grads, moments, group["momentum"])
                updates = orthogonalise(torch.stack(list(looked_ahead))).to(parameters[0].dtype)
                scale = group["lr"] * max(1.0, shape[0] / shape[1]) ** 0.5
                torch._foreach_mul_(parameters, 1 - group["lr"] * group["weight_decay"])
                torch._foreach_add_(parameters, list(updates.unbind()), alpha=-scale)
