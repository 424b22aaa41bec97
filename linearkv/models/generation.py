"""Choosing the next token: greedy, or sampled with temperature, top-k and top-p."""

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
        if self.temperature < 0:
            raise ValueError(f"temperature must be at least 0, not {self.temperature}")
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
        scaled = logits / self.temperature
        if self.top_k and self.top_k < len(scaled):
            scaled = scaled.masked_fill(scaled < scaled.topk(self.top_k).values[-1], float("-inf"))
        if self.top_p < 1:
            ordered, index = scaled.softmax(-1).sort(descending=True)
            outside = ordered.cumsum(-1) - ordered >= self.top_p
            scaled = scaled.index_fill(0, index[outside], float("-inf"))
        return int(torch.multinomial(scaled.softmax(-1), 1, generator=generator))
