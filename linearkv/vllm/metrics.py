"""What the plugin counts, as vLLM collects it and shows it to Prometheus beside its own."""

from dataclasses import dataclass
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats

from linearkv.vllm.counts import COUNTED


@dataclass
class Stats(KVConnectorStats):
    """Counters since the engine was started, by the half of the connector that counts and by name.

    No differences: where vLLM's offline engine has a step without an answer it drops what was told with it.
    """

    def reset(self) -> None:
        self.data.clear()

    def aggregate(self, other: KVConnectorStats) -> "Stats":
        """The later of both, which is `other`."""
        return Stats({**self.data, **other.data})

    def reduce(self) -> dict[str, int | float]:
        return sums(self.data)

    def is_empty(self) -> bool:
        return not self.data


class PromMetrics(KVConnectorPromMetrics):
    """`vllm:linearkv_<name>` of every counter, with vLLM's labels."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._counters: dict[str, dict[int, Any]] = {}
        self._told: dict[tuple[int, str, str], float] = {}
        for name, about in COUNTED.items():
            family = self._counter_cls(name=f"vllm:linearkv_{name}", documentation=about, labelnames=self._labelnames)
            self._counters[name] = {
                engine: family.labels(*values) for engine, values in self.per_engine_labelvalues.items()
            }

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        for half, counted in transfer_stats_data.items():
            for name, count in counted.items():
                place = engine_idx, half, name
                if (more := count - self._told.get(place, 0)) > 0:
                    self._counters[name][engine_idx].inc(more)
                    self._told[place] = count


def sums(data: dict[str, Any]) -> dict[str, int | float]:
    """Both halves' counters together."""
    made: dict[str, int | float] = {}
    for counted in data.values():
        for name, count in counted.items():
            made[name] = made.get(name, 0) + count
    return made
