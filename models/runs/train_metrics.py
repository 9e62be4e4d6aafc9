"""Export a run's metrics for Prometheus; each scrape reads the current status."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, Metric, ProcessCollector, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from freshet_serving.processor.errors import BadInput

S = TypeVar("S")
Family = tuple[str, str, Callable[[S], float]]
"""Name, help text and value of a metric."""


@dataclass(frozen=True, slots=True)
class RunStatus:
    """Status of a run. Times are Unix seconds, 0 for none; figures of the newest window are before it was learned.

    Attributes:
        position: Number of the next row.
        waiting_rows: Rows that have arrived and are not learned yet, as far as the stream knows.
        lost_rows: Of the stream (models.streams.followed_source), as rejected_rows, files_aside and trouble.
        store_trouble: Why histories cannot be written to an online store; "" if they can.
        stale_tables: Joined tables whose newest content cannot be read.
        window_calibration: Mean score over mean label.
        gate: Newest verdict of the gate; "" for none.
        held: Why the guard holds deltas; "" if it does not.
    """

    learned_rows: int = 0
    position: int = 0
    waiting_rows: int = 0
    lost_rows: int = 0
    rejected_rows: int = 0
    files_aside: int = 0
    trouble: str = ""
    store_trouble: str = ""
    stale_tables: int = 0
    event_time: float = 0.0
    published_at: float = 0.0
    version: int = 0
    step: int = 0
    deltas: int = 0
    versions: int = 0
    held_windows: int = 0
    loss: float = float("nan")
    window_auc: float = float("nan")
    window_calibration: float = float("nan")
    window_ndcg: float = float("nan")
    held_out: Mapping[str, float] = field(default_factory=dict)
    gate: str = ""
    held: str = ""
    table_rows: dict[str, int] = field(default_factory=dict)


COUNTERS: tuple[Family[RunStatus], ...] = (
    ("freshet_train_rows", "Rows that this process has trained on.", lambda s: s.learned_rows),
    (
        "freshet_train_rejected_rows",
        "Rows of the stream that were skipped because they are invalid.",
        lambda s: s.rejected_rows,
    ),
    ("freshet_train_lost_rows", "Rows that the stream had deleted before they were read.", lambda s: s.lost_rows),
    ("freshet_train_unreadable_files", "Files of the stream that cannot be read.", lambda s: s.files_aside),
    ("freshet_train_deltas", "Deltas that this process has published.", lambda s: s.deltas),
    ("freshet_train_versions", "Full versions that this process has published.", lambda s: s.versions),
    ("freshet_train_windows_held", "Windows whose delta was held back.", lambda s: s.held_windows),
)
GAUGES: tuple[Family[RunStatus], ...] = (
    ("freshet_train_position", "Position of the next row to train on.", lambda s: s.position),
    ("freshet_train_waiting_rows", "Rows that have arrived and are not trained on yet.", lambda s: s.waiting_rows),
    ("freshet_train_stream_up", "1 while the stream can be read.", lambda s: float(not s.trouble)),
    (
        "freshet_train_store_up",
        "1 unless an online store does not take the histories that are written.",
        lambda s: float(not s.store_trouble),
    ),
    (
        "freshet_train_stale_tables",
        "Entities and user tables whose newest content cannot be read.",
        lambda s: s.stale_tables,
    ),
    ("freshet_train_held", "1 while the guard holds deltas back.", lambda s: float(bool(s.held))),
    ("freshet_train_version", "Version that deltas are published to.", lambda s: s.version),
    ("freshet_train_step", "Step of the newest delta.", lambda s: s.step),
    ("freshet_train_event_timestamp_seconds", "Newest event that was trained on, Unix time.", lambda s: s.event_time),
    ("freshet_train_published_timestamp_seconds", "Newest publication, Unix time.", lambda s: s.published_at),
    ("freshet_train_loss", "Mean loss of the newest batch before its update.", lambda s: s.loss),
    ("freshet_train_window_auc", "AUC of the newest window before training on it.", lambda s: s.window_auc),
    (
        "freshet_train_window_calibration",
        "Mean score over mean label of the newest window before training on it.",
        lambda s: s.window_calibration,
    ),
    (
        "freshet_train_window_ndcg",
        "NDCG of the newest window of a next-item network before training on it.",
        lambda s: s.window_ndcg,
    ),
)


class StatusMetrics(Collector, Generic[S]):
    """The metric families of one model's run, computed from its status at each scrape."""

    def __init__(
        self,
        model: Callable[[], str],
        status: Callable[[], S],
        counters: Sequence[Family[S]],
        gauges: Sequence[Family[S]],
    ) -> None:
        self._model, self._status = model, status
        self._families = ((counters, CounterMetricFamily), (gauges, GaugeMetricFamily))
        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(self)
        ProcessCollector(registry=self.registry)

    def collect(self) -> Iterator[Metric]:
        status, model = self._status(), self._model()
        for families, make in self._families:
            for name, help_text, value in families:
                family: Any = make(name, help_text, labels=["model"])
                family.add_metric([model], value(status))
                yield family


class TrainMetrics(StatusMetrics[RunStatus]):
    def __init__(self, model: str, status: Callable[[], RunStatus]) -> None:
        super().__init__(lambda: model, status, COUNTERS, GAUGES)

    def collect(self) -> Iterator[Metric]:
        yield from super().collect()
        rows = GaugeMetricFamily("freshet_train_table_rows", "Rows of a table.", labels=["model", "table"])
        for table, count in self._status().table_rows.items():
            rows.add_metric([self._model(), table], count)
        yield rows


def serve_metrics(metrics: StatusMetrics[Any], host: str, port: int) -> tuple[WSGIServer, threading.Thread]:
    """Serve /metrics from a thread; raise BadInput if the port is not free."""
    try:
        return start_http_server(port, host, metrics.registry)
    except OSError as error:
        raise BadInput(f"--metrics-port: expected a free port of {host}, got {port}: {error.strerror}") from None
