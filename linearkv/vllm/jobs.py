"""What one request asks of the plugin: a context to stand behind, and what to keep of its prefill."""

import itertools
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch

from linearkv.vllm.composed import Composed


@dataclass(frozen=True)
class Wanted:
    """What is kept while a request's prompt is prefilled. Positions count from the prompt's first token.

    Attributes:
        start: first token of which states, keys and values are kept; up to the end of the prompt.
        maps: transition and update of these tokens.
        logits: of these tokens instead, and nothing else.
    """

    start: int
    maps: bool = True
    logits: bool = False


@dataclass(frozen=True)
class Captured:
    """What was kept; see `linearkv.states` for letters.

    Attributes:
        transition: `[Lg, H, K, K]` and update `[Lg, H, K, V]` float32; None unless `maps`.
        recurrent: `[Lg, H, K, V]` float32, vLLM's own state after the prompt.
        conv_tail: `[Lg, C, TAIL]`.
        key, value: `[La, T, Hkv, D]`, keys before rotary embedding.
        logits: `[T, vocab]` float32; then the others are None.
    """

    transition: torch.Tensor | None = None
    update: torch.Tensor | None = None
    recurrent: torch.Tensor | None = None
    conv_tail: torch.Tensor | None = None
    key: torch.Tensor | None = None
    value: torch.Tensor | None = None
    logits: torch.Tensor | None = None


@dataclass
class Job:
    """One request's business with the plugin.

    Attributes:
        composed: what the request stands behind, its first `composed.length` tokens; None for nothing.
        wanted: what to keep; None for nothing.
        captured: what was kept, once the prompt was prefilled.
        problem: why nothing was kept.
    """

    composed: Composed | None = None
    wanted: Wanted | None = None
    captured: Captured | None = None
    problem: str = ""


@dataclass
class Jobs:
    """Jobs of requests that are made in the engine's own process, by the number their parameters carry."""

    _jobs: dict[int, Job] = field(default_factory=dict)
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, job: Job) -> int:
        with self._lock:
            number = next(self._numbers)
            self._jobs[number] = job
        return number

    def get(self, number: object) -> Job | None:
        return self._jobs.get(number) if isinstance(number, int) else None

    def remove(self, number: int) -> None:
        with self._lock:
            self._jobs.pop(number, None)


JOBS = Jobs()
"""Of this process. A request that reaches the engine from elsewhere cannot name one of another process."""
