"""Export a join's metrics to Prometheus, computed at each scrape."""

from __future__ import annotations

import math
from collections.abc import Callable

from freshet_serving.models.runs.train_metrics import Family, StatusMetrics
from freshet_serving.models.streams.join_run import JoinStatus

COUNTERS: tuple[Family[JoinStatus], ...] = (
    ("freshet_join_rows", "Recorded rows emitted after their window ended.", lambda s: s.counts.rows),
    ("freshet_join_positives", "Outcomes that arrived in time.", lambda s: s.counts.positives),
    ("freshet_join_late", "Outcomes that arrived late and were corrected.", lambda s: s.counts.late),
    ("freshet_join_too_late", "Outcomes too late for a correction.", lambda s: s.counts.too_late),
    ("freshet_join_unmatched", "Outcomes of requests that were not recorded.", lambda s: s.counts.unmatched),
    ("freshet_join_duplicates", "Outcomes of rows that already had one.", lambda s: s.counts.duplicates),
    ("freshet_join_ambiguous", "Outcomes of ids that several requests share.", lambda s: s.counts.ambiguous),
    ("freshet_join_repeated_rows", "Emitted rows that outcomes cannot be matched to.", lambda s: s.counts.repeated),
    ("freshet_join_retried_rows", "Rows skipped because they repeat a request.", lambda s: s.counts.retried),
    (
        "freshet_join_conflicting_id_rows",
        "Rows skipped because several requests share their id.",
        lambda s: s.counts.disowned,
    ),
    (
        "freshet_join_lost_rows",
        "Rows whose recording was deleted before the end of their window.",
        lambda s: s.counts.lost,
    ),
    ("freshet_join_lost_files", "Recordings deleted before they were read.", lambda s: s.lost_files),
    ("freshet_join_unreadable_files", "Files of either stream that cannot be read.", lambda s: s.files_aside),
    ("freshet_join_lost_outcomes", "Outcomes deleted before they were read.", lambda s: s.lost_outcomes),
    ("freshet_join_rejected_rows", "Invalid rows of either stream.", lambda s: s.rejected),
    ("freshet_join_files", "Files written.", lambda s: s.files),
)
GAUGES: tuple[Family[JoinStatus], ...] = (
    ("freshet_join_waiting_rows", "Rows whose window has not ended.", lambda s: s.waiting),
    ("freshet_join_pending_outcomes", "Outcomes whose row has not been read yet.", lambda s: s.held),
    ("freshet_join_correctable_rows", "Emitted rows that a late outcome can still correct.", lambda s: s.emitted),
    ("freshet_join_late_share", "Share of the positives that arrive late.", lambda s: s.late_share),
    ("freshet_join_calibration", "Mean score divided by mean label in the newest window.", lambda s: s.calibration),
    (
        "freshet_join_recordings_timestamp_seconds",
        "Time up to which recordings are read, Unix time.",
        lambda s: _since(s.rows_s),
    ),
    (
        "freshet_join_outcomes_timestamp_seconds",
        "Time up to which outcomes are read, Unix time.",
        lambda s: _since(s.outcomes_s),
    ),
    ("freshet_join_streams_up", "1 while both streams can be read.", lambda s: float(not s.trouble)),
)


class JoinMetrics(StatusMetrics[JoinStatus]):
    def __init__(self, model: Callable[[], str], status: Callable[[], JoinStatus]) -> None:
        super().__init__(model, status, COUNTERS, GAUGES)


def _since(unix_s: float) -> float:
    return unix_s if math.isfinite(unix_s) else 0.0
