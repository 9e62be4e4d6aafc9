"""Judge whether a version that has taken over must be taken back. Pure: counts and the time are arguments.

The gate has compared both versions on the same rows, which were few and are past. Once the new version is served, its
failures, its non-finite scores and the distribution of its scores are compared with those of the last full window of
the version before (processor.watching.verdicts, as a canary against its baseline, within the bounds of a delta),
until it has been served for as long, and by as many requests, as a delta is watched.

A version that a person has chosen is not judged, nor is one that comes after a way back.

Rejected: comparing with everything that the version before has served (traffic of the night and of the day differ).
"""

from __future__ import annotations

from freshet_serving.processor.extensions.guard.post_deploy_monitor import is_full
from freshet_serving.processor.watching import DeltaBounds, Sketch, VersionRollback
from freshet_serving.processor.watching.verdicts import weigh


class VersionMonitor:
    def __init__(self) -> None:
        self._number = 0
        self._began: tuple[float, Sketch] | None = None
        self._newest: Sketch | None = None
        # The last full window of the version that answers, and that of the one before while the new one is watched.
        self._window: Sketch | None = None
        self._before: tuple[int, Sketch] | None = None

    def look(
        self, bounds: DeltaBounds, now_s: float, number: int, sketch: Sketch, vouched: bool = False
    ) -> VersionRollback | None:
        """Judge the version that answers by default, by its counts up to now; `vouched`: a person has chosen it."""
        window = None if self._began is None or number != self._number else sketch.since(self._began[1])
        if window is None or self._began is None:
            self._begin(bounds, now_s, number, sketch, vouched)
            return None
        self._newest = sketch
        if self._before is not None and (verdict := weigh(bounds.served, self._before[1], window)) is not None:
            return VersionRollback(number, self._before[0], verdict)
        if now_s - self._began[0] >= bounds.watch_s and is_full(bounds, window):
            self._window, self._before, self._began = window, None, (now_s, sketch)
        return None

    def _begin(self, bounds: DeltaBounds, now_s: float, number: int, sketch: Sketch, vouched: bool) -> None:
        """Begin to watch another version, or the same one whose counts have begun again."""
        window, before = self._window, None
        if window is None and self._newest is not None and self._began is not None:
            window = self._newest.since(self._began[1])
        comparable = window is not None and is_full(bounds, window) and window.outputs == sketch.outputs
        if window is not None and comparable and 0 < self._number < number and not vouched:
            before = (self._number, window)
        self._number, self._began, self._newest = number, (now_s, sketch), sketch
        self._window, self._before = None, before
