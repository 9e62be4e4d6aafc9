"""Versions of which a change may have failed with their log half read.

What follows a version's log (its history, what was refused, what waits) is changed step by step while a change is under
way. A FreshetError leaves it whole: whoever raises one has planned for it. Anything else, a MemoryError above all, may
come between any two steps. So the next change does not believe it, and reads the log again: a few records.

Invariant: a version is doubted before a change of it begins, and no more once the change has ended as planned. So where
there is no memory left nothing has to be noted.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType

from freshet_serving.processor.errors import FreshetError


class Doubts:
    """The doubted versions of one model. Used under the model's lock."""

    def __init__(self, relearn: Callable[[int], None]) -> None:
        """relearn: reads the log of a version anew; may raise."""
        self._relearn = relearn
        self._doubted: set[int] = set()

    def about(self, number: int) -> Doubt:
        """A change of a version, to be entered once: not within another one of the same version."""
        return Doubt(self._doubted, number, self._relearn)


class Doubt:
    """The context of one change. No generator: where that cannot be resumed, nobody ends what it has begun."""

    __slots__ = ("_doubted", "_number", "_relearn")

    def __init__(self, doubted: set[int], number: int, relearn: Callable[[int], None]) -> None:
        self._doubted, self._number, self._relearn = doubted, number, relearn

    def __enter__(self) -> None:
        if self._number in self._doubted:
            self._relearn(self._number)
        self._doubted.add(self._number)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None or issubclass(kind, FreshetError):
            self._doubted.discard(self._number)
