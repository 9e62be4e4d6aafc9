"""Statistics of batches and scores, and the verdicts drawn from them. Pure values; nothing here acts.

Import names from here, except the function delta_figures(), which has the name of its module.

sketch     mergeable counts of a version's batches
verdicts   bounds of a canary, verdicts, and the weighing of one side against another's
trend      how far a version's scores have moved
delta_figures  figures of a delta, relative to the state before it
delta_guard    judges whether a delta may be served, and logs the newest deltas
drift          limits how far scores may move within an hour and a day
post_deploy_monitor  judges whether a served delta must be rolled back
input_drift    how far the inputs of requests have moved
input_histogram  how far they are from those of training
version_monitor  judges whether a version that has taken over must be taken back
version_judge  judges whether a new version may take over
stats      snapshots of sessions, groups, models, versions
"""

from freshet_serving.processor.watching.delta_figures import LEAST_ROWS, Figure, RowLengths, longest_row, score_figures
from freshet_serving.processor.watching.delta_guard import (
    IN_LINE,
    OF_SCORES,
    OUT_OF_LINE,
    REPLAYED,
    UNJUDGED,
    DeltaBounds,
    DeltaEntry,
    DeltaGuard,
    DeltaLog,
    is_quiet,
    score_shift,
)
from freshet_serving.processor.watching.drift import Drift
from freshet_serving.processor.watching.input_drift import input_shifts
from freshet_serving.processor.watching.input_histogram import NOTE_OF_INPUTS, input_histograms, training_shifts
from freshet_serving.processor.watching.post_deploy_monitor import AutoRollback, LabelSums, PostDeployMonitor
from freshet_serving.processor.watching.sketch import (
    PHASES,
    ROW_BOUNDS,
    TIME_BOUNDS_S,
    Sketch,
    StatsBlock,
    first_lost,
    note_batch,
    note_scores,
)
from freshet_serving.processor.watching.stats import (
    DAMAGED,
    GAP,
    GATE,
    LONG_S,
    OBSTACLES,
    REFUSED,
    SHORT_S,
    UNREADABLE,
    ChainStatus,
    GroupStats,
    Histogram,
    ModelStats,
    SessionStats,
    VersionStats,
    total,
)
from freshet_serving.processor.watching.trend import Trend
from freshet_serving.processor.watching.verdicts import CanaryBounds, Verdict, weigh
from freshet_serving.processor.watching.version_judge import GateVerdict, RequestScores, VersionJudge
from freshet_serving.processor.watching.version_monitor import VersionMonitor, VersionRollback

__all__ = [
    "DAMAGED",
    "GAP",
    "GATE",
    "IN_LINE",
    "LEAST_ROWS",
    "LONG_S",
    "NOTE_OF_INPUTS",
    "OBSTACLES",
    "OF_SCORES",
    "OUT_OF_LINE",
    "PHASES",
    "REFUSED",
    "REPLAYED",
    "ROW_BOUNDS",
    "SHORT_S",
    "TIME_BOUNDS_S",
    "UNJUDGED",
    "UNREADABLE",
    "AutoRollback",
    "CanaryBounds",
    "ChainStatus",
    "DeltaBounds",
    "DeltaEntry",
    "DeltaGuard",
    "DeltaLog",
    "Drift",
    "Figure",
    "GateVerdict",
    "GroupStats",
    "Histogram",
    "LabelSums",
    "ModelStats",
    "PostDeployMonitor",
    "RequestScores",
    "RowLengths",
    "SessionStats",
    "Sketch",
    "StatsBlock",
    "Trend",
    "Verdict",
    "VersionJudge",
    "VersionMonitor",
    "VersionRollback",
    "VersionStats",
    "delta_figures",
    "first_lost",
    "input_histograms",
    "input_shifts",
    "is_quiet",
    "longest_row",
    "note_batch",
    "note_scores",
    "score_figures",
    "score_shift",
    "total",
    "training_shifts",
    "weigh",
]
