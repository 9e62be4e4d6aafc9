"""Trends of a version's scores: their distribution, and how far they moved since the previous generation. Pure.

A window of a minute gives mean and quantiles; a window is closed only when it has enough scores to be meaningful. The
reference is the scores of the previous generation: generations that come too fast to fill a window are taken together.
"""

from __future__ import annotations

from freshet_serving.processor.generation import Generation
from freshet_serving.processor.watching import Scores, Sketch

WINDOW_S = 60.0
MIN_SCORES = 1000


class Trend:
    """The trend of one version's scores: of each output in the last full window, or in the first one so far.

    `drift` is Scores.shift() of each between this generation and the previous one; None before both are known.
    """

    def __init__(self) -> None:
        self.scores: tuple[Scores, ...] = ()
        self.drift: tuple[float, ...] | None = None
        self._full = False
        self._window: tuple[float, Sketch] | None = None
        self._began: tuple[Generation, Sketch] | None = None
        self._before: tuple[Scores, ...] | None = None
        self._newest: tuple[Scores, ...] | None = None

    @classmethod
    def following(cls, other: Trend) -> Trend:
        """Return the trend of a version that takes over from another: its scores are compared with the other's."""
        trend = cls()
        trend._before = other._newest
        return trend

    def look(self, now_s: float, generation: Generation, sketch: Sketch) -> None:
        """Update the trend by all counts of the version so far; the time is monotonic."""
        shown = None if self._window is None else sketch.since(self._window[1])
        scored = None if self._began is None else sketch.since(self._began[1])
        if self._window is None or self._began is None or shown is None or scored is None:
            self._window, self._began = (now_s, sketch), (generation, sketch)
            return
        since, began = self._began
        sketches = tuple(scored.every())
        self._show(now_s, self._window[0], tuple(shown.every()), sketch)
        if _enough(sketches):
            self._newest = sketches
        if self._before is not None and _enough(sketches):
            self.drift = tuple(a.shift(b) for a, b in zip(sketches, self._before))
        if generation != since:
            if _enough(sketches):
                self._before = sketches
                self._began = (generation, sketch)
            else:
                self._began = (generation, began)

    def _show(self, now_s: float, began_s: float, scores: tuple[Scores, ...], sketch: Sketch) -> None:
        if now_s - began_s >= WINDOW_S and _enough(scores):
            self._window, self.scores, self._full = (now_s, sketch), scores, True
        elif not self._full:
            self.scores = scores


def _enough(scores: tuple[Scores, ...]) -> bool:
    return all(output.count >= MIN_SCORES for output in scores)
