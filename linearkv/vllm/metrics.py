"""What the plugin counts, as vLLM collects it and shows it to Prometheus beside its own."""

from dataclasses import dataclass
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats

from linearkv.vllm.counts import COUNTED


@dataclass
class Stats(KVConnectorStats):
    """Counters of an interval, `data` by name."""

    def reset(self) -> None:
        self.data.clear()

    def aggregate(self, other: KVConnectorStats) -> "Stats":
        names = {*self.data, *other.data}
        return Stats({name: self.data.get(name, 0) + other.data.get(name, 0) for name in names})

    def reduce(self) -> dict[str, int | float]:
        return dict(self.data)

    def is_empty(self) -> bool:
        return not self.data


class PromMetrics(KVConnectorPromMetrics):
    """`vllm:linearkv_<name>` of every counter, with vLLM's labels."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._counters: dict[str, dict[int, Any]] = {}
        for name, about in COUNTED.items():
            family = self._counter_cls(name=f"vllm:linearkv_{name}", documentation=about, labelnames=self._labelnames)
            self._counters[name] = {
                engine: family.labels(*values) for engine, values in self.per_engine_labelvalues.items()
            }

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        for name, amount in transfer_stats_data.items():
            self._counters[name][engine_idx].inc(amount)
