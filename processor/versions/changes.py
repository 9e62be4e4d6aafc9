"""Parts that changes of a model share: guards of its lock and its log, states of a version, and results.

LockWatchdog measures for how long one holder has had a model's lock. A change that hangs (a disk that does not respond,
a thread that never started) holds it: every delta, rollback and poll waits, while predictions go on as if nothing were
wrong. So a thread that needs neither the lock nor the holder has to detect it.

Dirty versions are those of which a change may have failed with the log half read. The state that follows a log (its
history, what failed, what waits) is updated step by step. A FreshetError leaves it consistent; any other exception,
above all MemoryError, may occur between any two steps. Then the next change reads the log again, which is a few
records.

Invariants
- Nothing here can prevent the lock from being released or acquired: its holder only increments a number, and the check
  tries to acquire it.
- A lock that many holders take in turn does not count as held for long: each turn restarts the count. Nor does one
  under which a version is being loaded, which takes minutes for large versions and shows in their state.
- A version is marked dirty before a change begins, and unmarked once the change has ended as planned: nothing has to be
  recorded when no memory is left.
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
"""A lock held for this many seconds is held for too long."""


class LockWatchdog:
    """A watchdog for one lock. The holder calls turn() and excused(); one other thread calls look()."""

    def __init__(self, lock: threading.RLock) -> None:
        self._lock = lock
        self._turns = self._seen = 0
        self._excused = False
        self._since_s: float | None = None
        self.held_s = 0.0
        """Seconds for which the lock has been held as of the last check; 0.0 if it is free."""

    def turn(self) -> None:
        self._excused = False
        self._turns += 1

    @contextmanager
    def excused(self) -> Iterator[None]:
        """Exempt the enclosed work, which may take any time."""
        self._excused = True
        try:
            yield
        finally:
            self._excused = False

    def look(self, now_s: float) -> float:
        """Check whether and since when the lock is held; return `held_s`."""
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
        self._reload_log = reload_log
        self._doubted: set[int] = set()

    def changing(self, number: int) -> DirtyGuard:
        """Return a context for a change of a version; do not nest it for the same version."""
        return DirtyGuard(self._doubted, number, self._reload_log)


class DirtyGuard:
    """The context of one change. Not a generator: if a generator cannot be resumed, its cleanup never runs."""

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
    """Log poll() events: failures as errors, others that need attention as warnings."""
    for line in lines:
        warns = isinstance(line, WarningMessage)
        level = logging.ERROR if isinstance(line, FailureMessage) else logging.WARNING if warns else logging.INFO
        log.log(level, "%s", line)


@dataclass(frozen=True, slots=True)
class ApplyResult:
    """The result of applying a delta; milliseconds from the verified file until every session serves it."""

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
        recorded: True if it was written to the repository, so that other servers follow it.
        kept: Generations under which undone deltas that do not depend on the rejected one were published again.
        withdrawn: Versions that no server serves by itself until they are released.
    """

    generation: Generation
    undone: list[Generation]
    next_step: int
    recorded: bool
    kept: tuple[Generation, ...] = ()
    withdrawn: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class StateChange:
    """A change of a version, as one flip (`publish_seq`) publishes it."""

    publish_seq: int
    epoch: int
    generation: Generation
    frame: Frame


@dataclass(slots=True)
class UndoEntry:
    """All to go back over one delta: its row versions, the tensors that it replaced, and the state before it."""

    epoch: int
    versions: dict[str, RowVersions]
    dense: dict[str, NDArray[np.float32]]
    published_at: float
    event_time: tuple[float, float] | None
    digest: str


@dataclass(frozen=True, slots=True, eq=False)
class PastState:
    """The state of a generation."""

    generation: Generation
    epoch: int
    dense: Dense
