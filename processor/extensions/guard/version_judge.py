"""Judge whether a new version may take over from the served one, by the scores of the same kept requests. Pure.

Both versions score the same rows. A figure is 0 for a version that changes nothing, and grows with what it changes:

    nonfinite   of an output: the share of rows whose score has become non-finite
    constant    of an output: 1 if the scores of different rows have become equal
    mean        of an output with one column: the logarithm of how many times as high or low the mean score is; of one
                that can be negative, how far it has moved, relative to the larger mean size
    spread      of an output: the logarithm of how many times wider or narrower the scores lie
    disorder    of an output with one column: how far the order of the rows has changed: 1 - rank correlation
    moved       of an output with one column: the share of rows that have moved by more than half the scores' spread
    unreadable  of all: the share of rows that the served version reads and the new one cannot
    unknown     of all: by how much the share of looked-up ids without a row has grown

An output of several columns may be a vector, which good retrains turn any way they like: it has no mean and no order.

Two good retrains rank less alike than a model and its delta, so the bounds are not those of delta_guard. Of each figure
the judge remembers the last MOST_CHANGES good changes of version. Once there are LEARN, the limit is FACTOR times the
largest (twice that at first), between the least and the ceiling of the kind; until then it is the floor. So a model
that is retrained from new weights every night is measured by such nights. Non-finite and constant scores have no limit
to learn.

Few rows are no evidence: with fewer than LEAST_READABLE rows that the new version reads, or scores of fewer than
LEAST_ROWS different rows, a version is not judged. But a score that is not finite needs no second row, and rows that
the new version refuses are evidence themselves, as clients would get errors.

Costs: two sorts of a few hundred scores for each output; MOST_CHANGES numbers for each figure.

Rejected: the bounds of deltas with wider floors (a limit that lets a retrain pass lets a zeroed table pass too, unless
it is learned from retrains); judging the scores that the two versions serve (post_deploy_monitor does, afterwards).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.extensions.guard.delta_figures import ALIKE, EVIDENCE, SHIFT, score_figures
from freshet_serving.processor.watching import IN_LINE, LEAST_ROWS, OUT_OF_LINE, UNJUDGED, Figure, RequestScores

LEAST_READABLE = 64
LEARN, MOST_CHANGES, FACTOR = 3, 30, 2.0
HALF_SPREAD = 0.5
MOST_FIGURES = 1024


class FigureLimits(NamedTuple):
    """The limits of one kind of figure: while too few good changes are known, and the least and largest learned."""

    floor: float
    least: float
    ceiling: float


NEVER = FigureLimits(0.0, 0.0, 0.0)
LIMITS = {
    "nonfinite": NEVER,
    "constant": NEVER,
    "mean": FigureLimits(math.log(2.0), math.log(1.25), math.log(4.0)),
    "spread": FigureLimits(math.log(3.0), math.log(1.5), math.log(10.0)),
    "disorder": FigureLimits(0.5, 0.1, 0.8),
    "unreadable": FigureLimits(0.1, 0.05, 0.5),
    "unknown": FigureLimits(0.3, 0.1, 0.6),
    "moved": FigureLimits(0.95, 0.5, 0.95),
}
"""By kind, in the order in which they are judged."""
SAID = {
    "nonfinite": "{value} of the scores{what} would be NaN or infinite",
    "constant": "the scores{what} would be the same for every row",
    "mean": "the mean score{what} would change by a factor of {value}",
    "spread": "scores{what} would lie {value} times as wide or as narrow",
    "disorder": "the order of the scores{what} would change by {value}",
    "unreadable": "{value} of the rows that are requested cannot be read",
    "unknown": "{value} more of the looked-up ids would have no row",
    "moved": "{value} of the scores{what} would move by more than half their spread",
}
LOGARITHMIC, PERCENT = ("mean", "spread"), ("nonfinite", "unreadable", "unknown", "moved")
MOST_LOG = 700.0


@dataclass(frozen=True, slots=True)
class GateVerdict:
    """Verdict of the gate on a new version: IN_LINE, OUT_OF_LINE or UNJUDGED, and why, for people.

    `kind` is that of the figure that is out of line. `rows` counts kept rows that were scored under both versions.
    """

    outcome: str
    kind: str = ""
    reason: str = ""
    figures: tuple[Figure, ...] = ()
    rows: int = 0
    unreadable: int = 0


class VersionJudge:
    """The judge of one model's versions: what good changes of version have shown, and a verdict on each new one."""

    def __init__(self) -> None:
        # By kind and output.
        self._usual: dict[tuple[str, str], deque[float]] = {}

    def judge(self, before: RequestScores, after: RequestScores) -> GateVerdict:
        """Return the verdict on a version, by scores of the same requests under the served and the new one."""
        lost = int((before.scored & after.refused).sum())
        rows = int((before.scored & after.scored).sum())
        figures = version_figures(before, after)
        evidence = next((figure.value for figure in figures if figure.kind == EVIDENCE), 0.0)
        reason, judged = "", set(LIMITS)
        if rows < LEAST_READABLE:
            unread = f"it cannot read {lost} of the kept rows; " if lost else ""
            reason = f"{unread}expected at least {LEAST_READABLE} kept rows to score, got {rows}"
        elif not evidence:
            reason = "the two versions have no scores of one output to compare"
        elif evidence < LEAST_ROWS:
            reason = f"kept rows are too much alike: as good as {evidence:.0f} different ones, expected {LEAST_ROWS}"
        if reason:
            judged = {"nonfinite", "unreadable"} if before.scored.sum() >= LEAST_READABLE else {"nonfinite"}
        worst = self._worst([figure for figure in figures if figure.kind in judged])
        if worst is not None:
            return GateVerdict(OUT_OF_LINE, worst.kind, self._reason(worst), tuple(figures), rows, lost)
        return GateVerdict(UNJUDGED if reason else IN_LINE, "", reason, tuple(figures), rows, lost)

    def learn(self, figures: Sequence[Figure]) -> None:
        for kind, subject, value in figures:
            if kind in LIMITS and LIMITS[kind] is not NEVER:
                self._usual.setdefault((kind, subject), deque(maxlen=MOST_CHANGES)).append(value)

    def to_json(self) -> list[list[Any]]:
        """Return what was learned: kind, output and values of each figure."""
        return [[kind, subject, list(values)] for (kind, subject), values in self._usual.items()]

    def recall(self, learned: Any) -> None:
        """Take over the parsed JSON of to_json() from before a restart; anything else is left out."""
        for entry in learned[:MOST_FIGURES] if isinstance(learned, list) else ():
            match entry:
                case [str(kind), str(what), list(values)] if kind in LIMITS and all(map(_is_value, values)):
                    self._usual[kind, what] = deque(values, MOST_CHANGES)

    def _worst(self, figures: Sequence[Figure]) -> Figure | None:
        """Return the first figure that is out of line, by the order of their kinds; None if none is."""
        beyond = [figure for figure in figures if figure.kind in LIMITS and figure.value > self._limit(figure)[0]]
        order = list(LIMITS)
        return min(beyond, key=lambda figure: order.index(figure.kind), default=None)

    def _limit(self, figure: Figure) -> tuple[float, str]:
        limits = LIMITS[figure.kind]
        if limits is NEVER:
            return 0.0, "for any version"
        shown = self._usual.get((figure.kind, figure.what), ())
        if len(shown) < LEARN:
            return limits.floor, f"until {LEARN} good changes of version are known"
        largest = max(shown)
        # Few changes may be the quiet part of a lively series.
        limit = min(max(limits.least, FACTOR * (1 + LEARN / len(shown)) * largest), limits.ceiling)
        return limit, f"the last {len(shown)} changed it by up to {_amount(figure.kind, largest)}"

    def _reason(self, figure: Figure) -> str:
        what = f" of {figure.what!r}" if figure.what else ""
        said = SAID[figure.kind].format(value=_amount(figure.kind, figure.value), what=what)
        if LIMITS[figure.kind] is NEVER:
            return said
        limit, why = self._limit(figure)
        return f"{said}, limit {_amount(figure.kind, limit)} ({why})"


@np.errstate(over="ignore", invalid="ignore")
def version_figures(before: RequestScores, after: RequestScores) -> list[Figure]:
    """Return the figures of the module's table, and EVIDENCE, of outputs that both versions have."""
    both = before.scored & after.scored
    names = [n for n in before.outputs if n in after.outputs and before.outputs[n].shape == after.outputs[n].shape]
    old, new = ({name: side.outputs[name][both] for name in names} for side in (before, after))
    figures = []
    # Not all kinds of score_figures() are judged here: bias, level, stretch and width say the same in other words.
    for kind, name, value in score_figures(old, new):
        single = name not in old or old[name].shape[1] == 1
        if kind in ("nonfinite", "spread", EVIDENCE) or (kind == "disorder" and single):
            figures.append(Figure(kind, name, value))
        elif kind == SHIFT and single:
            figures.append(Figure("mean", name, abs(value)))
    for name in names:
        old_scores, new_scores = (scores.reshape(-1).astype(np.float64) for scores in (old[name], new[name]))
        finite = np.isfinite(old_scores) & np.isfinite(new_scores)
        old_scores, new_scores = old_scores[finite], new_scores[finite]
        if len(old_scores) < LEAST_ROWS or not _varies(old_scores):
            continue
        figures.append(Figure("constant", name, float(not _varies(new_scores))))
        if old[name].shape[1] == 1:
            moved = np.abs(new_scores - old_scores) > HALF_SPREAD * old_scores.std()
            figures.append(Figure("moved", name, float(moved.mean())))
    lost = int((before.scored & after.refused).sum())
    figures.append(Figure("unreadable", "", lost / max(1, int(before.scored.sum()))))
    if before.lookups[0] and after.lookups[0]:
        grown = after.lookups[1] / after.lookups[0] - before.lookups[1] / before.lookups[0]
        figures.append(Figure("unknown", "", max(0.0, grown)))
    return figures


def _varies(scores: NDArray[np.float64]) -> bool:
    return float(np.ptp(scores)) > ALIKE * float(np.abs(scores).mean())


def _is_value(value: Any) -> bool:
    return type(value) in (int, float) and value >= 0


def _amount(kind: str, value: float) -> str:
    if kind in PERCENT:
        return f"{100 * value:.3g}%"
    return f"{math.exp(min(value, MOST_LOG)) if kind in LOGARITHMIC else value:.3g}"
