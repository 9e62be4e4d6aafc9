"""A change of what a model serves: how one is guarded, the states that it leads between, and what it results in.

LockWatchdog measures, from outside, for how long one holder has had a model's lock. A change that hangs (a disk that
does not respond, a thread that never started) holds its model's lock. Every delta, rollback and poll of the repository
then waits behind it, while predictions go on as if nothing were wrong. It has to be detected by a thread that needs
neither the lock nor the holder.

Dirty versions are those of which a change may have failed with the log half read. The state that follows a version's
log (its history, what failed, what waits) is updated step by step during a change. A FreshetError leaves it consistent,
because the code that raises one has planned for it. Any other exception, above all MemoryError, may occur between any
two steps. So the next change does not trust that state and reads the log again, which is a few records.

StateChange, UndoEntry and PastState are states of a version as its writer keeps them: the one to publish, those that
can be restored, and how.

What a poll results in is event lines; an applied delta and a rollback have results of their own.

Invariants
- Nothing here can prevent the lock from being released or acquired: its holder only increments a number. The check
  finds out whether the lock is held by trying to acquire it.
- A lock that many holders take in turn does not count as held for long: each turn restarts the count. Nor does one
  under which a version is being loaded: that takes minutes for large versions, and their state says so.
- A version is marked dirty before a change of it begins, and unmarked once the change has ended as planned. So nothing
  has to be recorded when no memory is left.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.errors import FreshetError
from freshet_serving.processor.generation import Generation

if TYPE_CHECKING:
    from freshet_serving.processor.tables.table import RowVersions
    from freshet_serving.processor.versions.replica import Dense, Frame

LONG_S = 60.0
"""A lock that is held for this many seconds is held for too long."""


class LockWatchdog:
    """A watchdog for one lock. The holder calls turn() and excused(); one other thread calls look()."""

    def __init__(self, lock: threading.RLock) -> None:
        self._lock = lock
        self._turns = self._seen = 0
        self._excused = False
        self._since_s: float | None = None
        self.held_s = 0.0
        """Seconds for which the lock has been held, as of the last check; 0.0 if it is free."""

    def turn(self) -> None:
        """Record that the lock has a new holder."""
        self._excused = False
        self._turns += 1

    @contextmanager
    def excused(self) -> Iterator[None]:
        """Exempt the enclosed work, which may take any length of time."""
        self._excused = True
        try:
            yield
        finally:
            self._excused = False

    def look(self, now_s: float) -> float:
        """Check whether the lock is held, and since when; return `held_s`."""
        turns = self._turns
        if self._lock.acquire(blocking=False):
            self._lock.release()
            self._since_s = None
        elif self._excused or self._since_s is None or turns != self._seen:
            self._since_s = now_s
        self._seen = turns
        self.held_s = now_s - self._since_s if self._since_s is not None else 0.0
        return self.held_s


class DirtyVersions:
    """The dirty versions of one model. Used under the model's lock."""

    def __init__(self, reload_log: Callable[[int], None]) -> None:
        """Start without dirty versions.

        Args:
            reload_log: Reads the log of a version again; may raise.
        """
        self._reload_log = reload_log
        self._doubted: set[int] = set()

    def changing(self, number: int) -> DirtyGuard:
        """Return a context for a change of a version; do not nest it for the same version."""
        return DirtyGuard(self._doubted, number, self._reload_log)


class DirtyGuard:
    """The context of one change.

    A class and not a generator: if a generator cannot be resumed, its cleanup never runs.
    """

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


class FailureMessage(str):
    """An event line that needs attention: what cannot be served, and why."""

    __slots__ = ()


class WarningMessage(str):
    """An event line that needs attention although what is served stays served."""

    __slots__ = ()


def report(log: logging.Logger, lines: Iterable[str]) -> None:
    """Log the events that poll() returned, failures as errors and others that need attention as warnings."""
    for line in lines:
        warns = isinstance(line, WarningMessage)
        level = logging.ERROR if isinstance(line, FailureMessage) else logging.WARNING if warns else logging.INFO
        log.log(level, "%s", line)


@dataclass(frozen=True, slots=True)
class ApplyResult:
    """The result of applying a delta.

    Attributes:
        generation: The generation that is served now.
        rows: Rows that the delta set.
        removed: Rows that the delta removed.
        apply_ms: Milliseconds from the verified file until every session serves it.
    """

    model: str
    generation: Generation
    rows: int
    removed: int
    apply_ms: float


@dataclass(frozen=True, slots=True)
class RollbackResult:
    """The result of a rollback.

    Attributes:
        generation: The generation that is served now.
        undone: Generations that are no longer served, oldest first.
        next_step: The step that the next delta will have.
        recorded: True if the rollback was written to the repository, so that other servers follow it.
        kept: Generations under which undone deltas that do not depend on the rejected one were published again.
        withdrawn: Versions that were gone back from: no server serves them by itself until they are released.
    """

    generation: Generation
    undone: list[Generation]
    next_step: int
    recorded: bool
    kept: tuple[Generation, ...] = ()
    withdrawn: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class StateChange:
    """A change of a version: what one flip publishes.

    Attributes:
        publish_seq: The flip.
        epoch: Epoch of the table rows.
        generation: The generation that is served under the flip.
        frame: Buffers and dense weights.
    """

    publish_seq: int
    epoch: int
    generation: Generation
    frame: Frame


@dataclass(slots=True)
class UndoEntry:
    """An entry of the undo log: everything needed to go back over one delta.

    Attributes:
        epoch: Epoch before the delta.
        versions: Row versions that the delta staged, by table.
        dense: Dense tensors that it replaced.
        published_at: `published_at` before the delta.
        event_time: `event_time` before the delta.
        digest: Digest of the generation before the delta.
    """

    epoch: int
    versions: dict[str, RowVersions]
    dense: dict[str, NDArray[np.float32]]
    published_at: float
    event_time: tuple[float, float] | None
    digest: str


@dataclass(frozen=True, slots=True, eq=False)
class PastState:
    """The state of a generation.

    Attributes:
        epoch: Epoch of its rows.
    """

    generation: Generation
    epoch: int
    dense: Dense
