"""Results of changing what is served: the event lines of a poll, and what an applied delta or a rollback returns."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass

from freshet_serving.processor.generation import Generation


class FailureMessage(str):
    """An event line that needs attention: what cannot be served, and why."""

    __slots__ = ()


class WarningMessage(str):
    """An event line that needs attention although what is served stays served."""

    __slots__ = ()


def report(log: logging.Logger, lines: Iterable[str]) -> None:
    """Log the events that poll() returned, failures as errors and others that need attention as warnings.

    Args:
        log: The logger.
        lines: The events.
    """
    for line in lines:
        warns = isinstance(line, WarningMessage)
        level = logging.ERROR if isinstance(line, FailureMessage) else logging.WARNING if warns else logging.INFO
        log.log(level, "%s", line)


@dataclass(frozen=True, slots=True)
class ApplyResult:
    """The result of applying a delta.

    Attributes:
        model: Name of the model.
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
