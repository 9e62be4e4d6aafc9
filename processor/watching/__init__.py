"""Statistics of batches and scores, and the values that judges draw from them. Pure values; nothing here acts.

Import names from here.

sketch     mergeable counts of a version's batches
judgements  bounds that an operator sets, and values that judges and those who act on them exchange
verdicts   the weighing of one side's evidence against another's, for judges of what is served
input_histogram  how far the inputs of requests are from those of training
stats      snapshots of sessions, groups, models, versions
"""

from freshet_serving.processor.watching.judgements import (
    IN_LINE,
    LEAST_ROWS,
    OUT_OF_LINE,
    REPLAYED,
    UNJUDGED,
    AutoRollback,
    CanaryBounds,
    DeltaBounds,
    Figure,
    Finding,
    LabelSums,
    PreviewResult,
    RequestScores,
    Verdict,
    VersionRollback,
)
from freshet_serving.processor.watching.sketch import (
    PHASES,
    ROW_BOUNDS,
    TIME_BOUNDS_S,
    Scores,
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

__all__ = [
    "DAMAGED", "GAP", "GATE", "IN_LINE", "LEAST_ROWS", "LONG_S", "OBSTACLES", "OUT_OF_LINE", "PHASES", "REFUSED",
    "REPLAYED", "ROW_BOUNDS", "SHORT_S", "TIME_BOUNDS_S", "UNJUDGED", "UNREADABLE", "AutoRollback", "CanaryBounds",
    "ChainStatus", "DeltaBounds", "Figure", "Finding", "GroupStats", "Histogram", "LabelSums", "ModelStats",
    "PreviewResult", "RequestScores", "Scores", "SessionStats", "Sketch", "StatsBlock", "Verdict", "VersionRollback",
    "VersionStats", "first_lost", "input_histogram", "note_batch", "note_scores", "total", "verdicts",
]  # fmt: skip
