"""What a change of a served model answers: the values that callers of processor.versions.model get."""

from __future__ import annotations

from dataclasses import dataclass

from freshet_serving.processor.generation import Generation


@dataclass(frozen=True, slots=True)
class ApplyResult:
    """An applied delta, and what it did. apply_ms: from the verified file until every session serves it."""

    model: str
    generation: Generation
    rows: int
    removed: int
    apply_ms: float


@dataclass(frozen=True, slots=True)
class RollbackResult:
    """A rollback, and what follows from it. undone: generations that are served no more, oldest first. next_step: what
    the next delta will be called. recorded: whether the repository could be told, and with it other servers. kept: what
    undone deltas that do not stand on the one that was rejected have become."""

    generation: Generation
    undone: list[Generation]
    next_step: int
    recorded: bool
    kept: tuple[Generation, ...] = ()
