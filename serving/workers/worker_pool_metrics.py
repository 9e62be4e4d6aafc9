"""Render /metrics of a worker pool: the counts of all workers, and the state of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from freshet_serving.processor.counter_block import Snapshot, merged
from freshet_serving.processor.versions.host import ModelHost
from freshet_serving.serving.lifecycle import Availability
from freshet_serving.serving.telemetry.metrics import Counts, Metrics
from freshet_serving.serving.workers.counter_layout import COUNTED, PROCESS
from freshet_serving.serving.workers.worker_pool_host import WorkerPoolHost

LABELS = ("worker",)


class WorkerPoolMetrics(Metrics):
    """The supervisor's Metrics; `host` returns None while models load, when workers already count refusals."""

    def __init__(self, lifecycle: Availability[ModelHost], host: Callable[[], WorkerPoolHost | None]) -> None:
        super().__init__(lifecycle)
        self._host = host

    def counts(self) -> Counts:
        """Return the counts as the workers report now."""
        totals = self.totals()
        return Counts.of(totals) if totals else super().counts()

    def counted(self) -> Snapshot:
        """Return the counters of all workers, as they reported last, and the supervisor's own."""
        host = self._host()
        workers = [] if host is None else [host.totals.counted(COUNTED, PROCESS) or {}]
        return merged([super().counted(), *workers])

    def totals(self) -> dict[str, Any]:
        """Return the sum of all workers' counts, as they report now."""
        host = self._host()
        if host is None:
            return {}
        host.refresh()
        counters: dict[str, Any] = host.totals.counters()
        return counters

    def collect(self) -> Iterator[Metric]:
        yield from super().collect()
        host = self._host()
        if host is None:
            return
        up = GaugeMetricFamily("freshet_worker_up", "1 when the worker answers requests.", labels=LABELS)
        silent = GaugeMetricFamily("freshet_worker_heartbeat_age_seconds", "Age of its last heartbeat.", labels=LABELS)
        open_now = GaugeMetricFamily("freshet_worker_connections", "Open connections.", labels=LABELS)
        restarts = CounterMetricFamily("freshet_worker_restarts", "Times its process was replaced.", labels=LABELS)
        cpu = CounterMetricFamily("freshet_worker_cpu_seconds", "User and system time of the process.", labels=LABELS)
        gauges = host.totals.gauges()
        for worker in host.workers():
            label = (str(worker["worker"]),)
            up.add_metric(label, worker["up"])
            open_now.add_metric(label, worker["connections"])
            restarts.add_metric(label, worker["restarts"])
            if worker["silent_s"] is not None:
                silent.add_metric(label, worker["silent_s"])
            if worker["worker"] in gauges:
                cpu.add_metric(label, gauges[worker["worker"]]["cpu_s"])
        yield from (up, silent, open_now, restarts, cpu)
