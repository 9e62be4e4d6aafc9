"""Metric families of trainers, as their reports in the repository tell this server.

A trainer's own port (models.runs.train_metrics) has more of them, as long as it lives; these remain when it is dead.
A model whose trainer has never reported has no samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from prometheus_client.core import GaugeMetricFamily, Metric

from freshet_serving.serving.telemetry.version_metrics import valued_families

if TYPE_CHECKING:
    from freshet_serving.processor.versions.trainer_watch import TrainerStanding

GAUGES: tuple[tuple[str, str, Callable[[TrainerStanding], float]], ...] = (
    (
        "freshet_trainer_report_age_seconds",
        "Seconds since this server saw the trainer's report change.",
        lambda s: s.age_s,
    ),
    ("freshet_trainer_silent", "1 when a running trainer has stopped reporting.", lambda s: float(s.silent)),
    ("freshet_trainer_rows", "Rows that the run has trained on.", lambda s: s.report.rows),
    (
        "freshet_trainer_rows_per_second",
        "Rows per second that the run trained on in its newest minute.",
        lambda s: s.report.rows_per_s,
    ),
    (
        "freshet_trainer_waiting_rows",
        "Rows that have arrived and are not trained on yet.",
        lambda s: s.report.waiting_rows,
    ),
    ("freshet_trainer_version", "Version that deltas are published to.", lambda s: s.report.version),
    ("freshet_trainer_step", "Step of the newest delta that the trainer published.", lambda s: s.report.step),
    ("freshet_trainer_held", "1 while the trainer's guard holds deltas.", lambda s: float(bool(s.report.held))),
    ("freshet_trainer_stream_up", "1 while the trainer can read its stream.", lambda s: float(not s.report.trouble)),
    (
        "freshet_trainer_store_up",
        "1 unless an online store does not take the trainer's histories.",
        lambda s: float(not s.report.store_trouble),
    ),
    (
        "freshet_trainer_stale_tables",
        "Entities and user tables whose newest content the trainer cannot read.",
        lambda s: s.report.stale_tables,
    ),
)


def trainer_families(standings: Mapping[str, TrainerStanding]) -> Iterator[Metric]:
    trainers = sorted(standings.items())
    yield from valued_families((), GAUGES, ("model",), [((model,), standing) for model, standing in trainers])
    states = GaugeMetricFamily("freshet_trainer_state", "1 for the state of the run.", labels=("model", "state"))
    figures = GaugeMetricFamily(
        "freshet_trainer_held_out", "Figures of the run's held-out rows.", labels=("model", "figure")
    )
    for model, standing in trainers:
        for state in type(standing.report.state):
            states.add_metric((model, state.value), standing.report.state is state)
        for figure, number in sorted(standing.report.held_out.items()):
            figures.add_metric((model, figure), number)
    yield from (states, figures)
