"""Choosing the next token: greedy, or sampled with temperature, top-k and top-p."""

import math
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen. `temperature=0` is greedy, and then nothing else matters.

    Attributes:
        temperature: divides the logits; 0 takes the most likely token.
        top_k: keeps the k most likely tokens; 0 keeps all.
        top_p: keeps the smallest set of tokens whose probability reaches p; 1 keeps all.
        seed: of the generator of one call; None draws a fresh one.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < math.inf:
            raise ValueError(f"temperature must be a number of at least 0, not {self.temperature}")
        if self.top_k < 0:
            raise ValueError(f"top_k must be at least 0, not {self.top_k}")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must be in (0, 1], not {self.top_p}")

    def generator(self, device: torch.device) -> torch.Generator | None:
        """The random generator of one call; None when greedy."""
        if not self.temperature:
            return None
        generator = torch.Generator(device=device)
        if self.seed is None:
            generator.seed()
        else:
            generator.manual_seed(self.seed)
        return generator

    def choose(self, logits: torch.Tensor, generator: torch.Generator | None) -> int:
        """The next token id from `logits [vocab]` float32."""
        if generator is None:
            return int(logits.argmax())
        scaled = (logits - logits.max()) / self.temperature  # less the largest, so that no temperature overflows
        if not self.top_k and self.top_p == 1:
            return int(torch.multinomial(scaled.softmax(-1), 1, generator=generator))
        # A stable sort: of equal logits, which are common in bfloat16, the lowest id comes first, as in argmax.
        scaled, index = scaled.sort(descending=True, stable=True)
        if self.top_k:
            scaled, index = scaled[: self.top_k], index[: self.top_k]
        probability = scaled.softmax(-1)
        if self.top_p < 1:
            probability = probability.masked_fill(probability.cumsum(-1) - probability >= self.top_p, 0)
        return int(index[torch.multinomial(probability, 1, generator=generator)])
