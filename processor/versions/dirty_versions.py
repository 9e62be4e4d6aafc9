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


class DirtyVersions:
    """The doubted versions of one model. Used under the model's lock."""

    def __init__(self, reload_log: Callable[[int], None]) -> None:
        """relearn: reads the log of a version anew; may raise."""
        self._reload_log = reload_log
        self._doubted: set[int] = set()

    def changing(self, number: int) -> DirtyGuard:
        """A change of a version, to be entered once: not within another one of the same version."""
        return DirtyGuard(self._doubted, number, self._reload_log)


class DirtyGuard:
    """The context of one change. No generator: where that cannot be resumed, nobody ends what it has begun."""

    __slots__ = ("_doubted", "_number", "_reload_log")

    def __init__(self, doubted: set[int], number: int, reload_log: Callable[[int], None]) -> None:
        self._doubted, self._number, self._reload_log = doubted, number, reload_log

    def __enter__(self) -> None:
        if self._number in self._doubted:
            self._reload_log(self._number)
        self._doubted.add(self._number)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None or issubclass(kind, FreshetError):
            self._doubted.discard(self._number)
