"""Counts of batches and scores, and what is concluded from them. Values; nothing here acts.

Names are imported from here, but for the function delta_figures(), which is called as its module is.

sketch     what a version's batches were like, in counts that add up
canary_judge  whether a canary may stay
trend      how far a version's scores have moved
delta_figures  what a delta is like, beside what was there
delta_guard    whether a delta may be served, and what became of the newest
drift          how far scores have come within an hour and a day
post_deploy_monitor  whether a delta may stay once it is served
stats      snapshots of sessions, groups, models, versions
"""

from freshet_serving.processor.watching.canary_judge import CanaryBounds, CanaryEvidence, CanaryJudge, Verdict
from freshet_serving.processor.watching.delta_figures import LEAST_ROWS, Figure, RowLengths, longest_row, score_figures
from freshet_serving.processor.watching.delta_guard import (
    IN_LINE,
    MODES,
    OF_SCORES,
    OFF,
    ON,
    OUT_OF_LINE,
    REPLAYED,
    STRICT,
    UNJUDGED,
    DeltaBounds,
    DeltaEntry,
    DeltaGuard,
    DeltaLog,
    is_quiet,
    score_shift,
)
from freshet_serving.processor.watching.drift import Drift
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
    CHAIN_STATES,
    CURRENT,
    DAMAGED,
    DIVERGED,
    GAP,
    GATE,
    HELD,
    LONG_S,
    OBSTACLES,
    REFUSED,
    SHORT_S,
    UNREADABLE,
    WAITING,
    ChainStatus,
    GroupStats,
    Histogram,
    ModelStats,
    SessionStats,
    ShadowComparison,
    VersionStats,
    total,
)
from freshet_serving.processor.watching.trend import Trend

__all__ = [
    "CHAIN_STATES",
    "CURRENT",
    "DAMAGED",
    "DIVERGED",
    "GAP",
    "GATE",
    "HELD",
    "IN_LINE",
    "LEAST_ROWS",
    "LONG_S",
    "MODES",
    "OBSTACLES",
    "OFF",
    "OF_SCORES",
    "ON",
    "OUT_OF_LINE",
    "PHASES",
    "REFUSED",
    "REPLAYED",
    "ROW_BOUNDS",
    "SHORT_S",
    "STRICT",
    "TIME_BOUNDS_S",
    "UNJUDGED",
    "UNREADABLE",
    "WAITING",
    "AutoRollback",
    "CanaryBounds",
    "CanaryEvidence",
    "CanaryJudge",
    "ChainStatus",
    "DeltaBounds",
    "DeltaEntry",
    "DeltaGuard",
    "DeltaLog",
    "Drift",
    "Figure",
    "GroupStats",
    "Histogram",
    "LabelSums",
    "ModelStats",
    "PostDeployMonitor",
    "RowLengths",
    "SessionStats",
    "ShadowComparison",
    "Sketch",
    "StatsBlock",
    "Trend",
    "Verdict",
    "VersionStats",
    "delta_figures",
    "first_lost",
    "is_quiet",
    "longest_row",
    "note_batch",
    "note_scores",
    "score_figures",
    "score_shift",
    "total",
]
