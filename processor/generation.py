"""Generations, which identify the state that answers, and the position of a version in memory. No I/O, clock or arrays.

- A delta applies to the state at its parent_step, which must be the current step, and leads to its step.
- A compacted delta replaces the run parent_step+1 .. step by the run's last values, so it also applies to any state
  inside that run.
- Rollback undoes applied deltas, newest first, at most `undo_depth` of them.

The records on disk define the order of deltas and what was undone (processor.repository.log.history).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from freshet_serving.processor.errors import BadInput, Conflict

UNDO_DEPTH = 16
"""Deltas that a server can undo without reading the disk, by default; a trainer keeps as many."""

CHAIN_STATES = CURRENT, WAITING, HELD, DIVERGED = "CURRENT", "WAITING", "HELD", "DIVERGED"
"""States of a version relative to its change log (processor.versions.log_applier)."""
GUARD_MODES = OFF, ON, STRICT = "off", "on", "strict"
"""Modes of the guard, which holds suspicious deltas (processor.extensions.guard). Here, away from kernels."""


@dataclass(frozen=True, slots=True, order=True)
class Generation:
    """The exact state that answered a request: (version, step), written `3.17`.

    Attributes:
        step: Step of the last delta, 0 for the full version.
        digest: Digest of its content, 32 hexadecimal digits (processor.repository.log.chain_record), "" if unknown;
            ignored in comparisons.
    """

    version: int
    step: int
    digest: str = field(default="", compare=False, repr=False)

    def __str__(self) -> str:
        return f"{self.version}.{self.step}"

    @classmethod
    def parse(cls, text: str) -> Generation:
        """Parse `3.17`; raises BadInput."""
        match = re.fullmatch(r"([0-9]{1,18})\.([0-9]{1,18})", text)
        if match is None:
            raise BadInput(f"generation: expected 'version.step' such as '3.17', got {text[:40]!r}")
        return cls(int(match[1]), int(match[2]))


@dataclass(slots=True)
class Position:
    """Position of a version in its change log; `undoable` are the steps to go back to without files, oldest first."""

    model: str
    version: int
    undo_depth: int
    step: int = 0
    undoable: list[int] = field(default_factory=list)

    def check_parent(self, model: str, version: int, step: int, parent_step: int, compacted: bool) -> None:
        """Raise BadInput or Conflict unless a delta, compacted or not, continues the change log here."""
        if model != self.model:
            raise BadInput(f"delta: expected model {self.model!r}, got {model[:64]!r}")
        if version != self.version:
            raise Conflict(f"delta: is for version {version}, but {self.model!r} serves version {self.version}")
        served = Generation(self.version, self.step)
        if step <= self.step:
            raise Conflict(f"delta: step {step} is not ahead of the served generation {served}")
        if parent_step != self.step and not (compacted and parent_step < self.step):
            raise Conflict(f"delta: continues step {parent_step}, the served generation is {served}")

    def advance(self, step: int) -> int:
        """Record an applied delta; return how many of the oldest deltas can no longer be undone."""
        self.undoable.append(self.step)
        self.step = step
        excess = max(0, len(self.undoable) - self.undo_depth)
        del self.undoable[:excess]
        return excess

    def undo_count(self, step: int) -> int | None:
        """Return the number of deltas to undo to reach `step`; None if it is out of reach."""
        if step == self.step:
            return 0
        if step not in self.undoable:
            return None
        return len(self.undoable) - self.undoable.index(step)

    def rewind(self, count: int) -> None:
        """Record that the newest `count` deltas were undone."""
        if count:
            self.step = self.undoable[-count]
            del self.undoable[-count:]
