"""Judge whether a delta that is served must be rolled back. Pure: counts and the time are arguments.

Generations that follow each other too fast to distinguish are judged together, from the first whose evidence is not
full yet, and are compared with what was served before them: failures, non-finite scores, and the distribution of scores
(processor.watching.verdicts, as a canary against its baseline). Traffic may change at the same moment: if the
preview has shown that the delta leaves the scores of the same rows alone, the delta has not moved the scores.

Calibration comes from the process that joins labels, as sums of scores and labels by generation. It is compared with
the generations before: a model that is trained on every tenth negative is off by the same factor all the time.

Rejected: one window for each generation (with a delta every second none would ever be judged); rolling back to the
generation just before the newest (it may be the bad one).
"""

from __future__ import annotations

import math

from freshet_serving.processor.generation import Generation
from freshet_serving.processor.watching import AutoRollback, DeltaBounds, LabelSums, Sketch, Verdict
from freshet_serving.processor.watching.verdicts import weigh

LEAST_LABELS, MOST_LABELS = 50, 1e6
SURE = 4.0
"""Standard deviations of chance that a change of calibration must exceed."""


class PostDeployMonitor:
    def __init__(self) -> None:
        self._seen: Generation | None = None
        # The newest generation known to be good, and the first that is not.
        self._good: Generation | None = None
        self._monitored: Generation | None = None
        self._began: tuple[float, Sketch] | None = None
        self._before: Sketch | None = None
        # Label sums reported since the last look().
        self._told: list[tuple[Generation, LabelSums]] = []
        self._calibrated = self._calibrated_now = LabelSums()

    def monitored(self, generation: Generation) -> bool:
        """Report whether a served generation is not yet known to be good, or nothing has been counted yet.

        Until the first look() there is nothing to compare with, so a delta right after a load would not be judged.
        """
        return self._monitored is not None or generation != self._seen

    def tell(self, generation: Generation, evidence: LabelSums) -> None:
        """Add label sums of rows that a generation has scored. Any thread may call it."""
        self._told.append((generation, evidence))

    def look(
        self, bounds: DeltaBounds, now_s: float, generation: Generation, sketch: Sketch, moved: int, vouched: int = 0
    ) -> AutoRollback | None:
        """Judge the served generations by all counts up to now; return the rollback to make, or None.

        The time is monotonic. `moved` is the newest step that may have moved the scores of the same rows, `vouched` the
        newest that a person has released.
        """
        window = None if self._began is None else sketch.since(self._began[1])
        back = self._seen is not None and generation.step < self._seen.step
        if self._began is None or window is None or back or (generation != self._seen and generation.step <= vouched):
            self._begin(now_s, sketch, good=generation)
            self._before, self._told = (self._before if back else None), []
            return None
        if generation != self._seen:
            if self._monitored is None or is_full(bounds, window):
                self._settle(window, bounds)
                self._good, self._monitored, self._began = self._seen, generation, (now_s, sketch)
            self._seen = generation
            return None
        self._count()
        verdict = None
        if self._monitored is not None and self._good is not None:
            if self._before is not None:
                verdict = weigh(bounds.served, self._before, window, traffic=moved < self._monitored.step)
            verdict = verdict or _miscalibrated(bounds, self._calibrated, self._calibrated_now)
            if verdict is not None:
                return AutoRollback(self._monitored, self._good, verdict)
        if now_s - self._began[0] >= bounds.watch_s and is_full(bounds, window):
            self._settle(window, bounds)
            self._begin(now_s, sketch, good=generation)
        return None

    def _begin(self, now_s: float, sketch: Sketch, good: Generation) -> None:
        self._seen = self._good = good
        self._monitored, self._began = None, (now_s, sketch)

    def _settle(self, window: Sketch, bounds: DeltaBounds) -> None:
        is_thin = self._before is not None and not is_full(bounds, window)
        self._before = self._before + window if is_thin and self._before is not None else window
        self._calibrated = self._calibrated + self._calibrated_now
        if self._calibrated.labels > MOST_LABELS:
            self._calibrated = self._calibrated.half()
        self._calibrated_now = LabelSums()

    def _count(self) -> None:
        reported, self._told = self._told, []
        for generation, evidence in reported:
            if self._monitored is not None and generation.step >= self._monitored.step:
                self._calibrated_now += evidence
            else:
                self._calibrated += evidence


def is_full(bounds: DeltaBounds, window: Sketch) -> bool:
    """Report whether there is enough evidence for a judgement."""
    least = bounds.served
    return window.requests >= least.min_requests and all(s.count >= least.min_scores for s in window.every())


def _miscalibrated(bounds: DeltaBounds, before: LabelSums, now: LabelSums) -> Verdict | None:
    if min(before.labels, now.labels) < LEAST_LABELS or min(before.scores, now.scores) <= 0:
        return None
    was, is_now = before.scores / before.labels, now.scores / now.labels
    off = abs(math.log(is_now / was))
    # The standard deviation of counts; labels that are not counts vary less.
    chance = SURE * math.sqrt(1 / before.labels + 1 / now.labels)
    if off <= max(math.log1p(bounds.max_miscalibration), chance):
        return None
    return Verdict(
        "calibration",
        f"scores are {is_now:.2f} times the labels of {now.rows} rows, and were {was:.2f} times; limit: a factor of "
        f"{1 + bounds.max_miscalibration:g}",
    )
