"""Generations, which say what answers, and the steps of a version in memory. Pure: no I/O, no clock, no arrays.

- A delta applies to the state at its parent_step and takes it to its step.
- parent_step must be the current step. A compacted delta replaces the run parent_step+1 .. step, so it also applies
  to any state inside that run: its rows are the run's last values.
- Rollback goes back over applied deltas, newest first, at most `undo_depth` of them.

Which delta comes next, and what was undone, the records on disk say (processor.repository.log.history).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from freshet_serving.processor.errors import BadInput, Conflict

UNDO_DEPTH = 16
"""Deltas that a server can take back without reading the disk, if it is not told otherwise; a trainer keeps as many."""


@dataclass(frozen=True, slots=True, order=True)
class Generation:
    """The exact state that answered a request: (version, step), written `3.17`. digest: of its content, 32 hexadecimal
    digits (processor.repository.log.chain_record), or "" where it is not known; it takes no part in comparing."""

    version: int
    step: int
    digest: str = field(default="", compare=False, repr=False)

    def __str__(self) -> str:
        return f"{self.version}.{self.step}"

    @classmethod
    def parse(cls, text: str) -> Generation:
        """Reads `3.17`; raises BadInput."""
        match = re.fullmatch(r"([0-9]{1,18})\.([0-9]{1,18})", text)
        if match is None:
            raise BadInput(f"generation: 'version.step' such as '3.17' wanted, got {text[:40]!r}")
        return cls(int(match[1]), int(match[2]))


@dataclass(slots=True)
class Position:
    """Where a version in memory stands on its chain, and how far back it can go without its files."""

    model: str
    version: int
    undo_depth: int
    step: int = 0
    undoable: list[int] = field(default_factory=list)

    def check_parent(self, model: str, version: int, step: int, parent_step: int, compacted: bool) -> None:
        """Raises BadInput or Conflict unless such a delta continues the chain."""
        if model != self.model:
            raise BadInput(f"delta: for model {model[:64]!r}, wanted {self.model!r}")
        if version != self.version:
            raise Conflict(f"delta: for version {version}, {self.model!r} serves version {self.version}")
        here = Generation(self.version, self.step)
        if step <= self.step:
            raise Conflict(f"delta: step {step} is not ahead of the served generation {here}")
        if parent_step != self.step and not (compacted and parent_step < self.step):
            raise Conflict(f"delta: continues step {parent_step}, the served generation is {here}")

    def advance(self, step: int) -> int:
        """Notes an applied delta; returns how many of the oldest deltas can no longer be undone."""
        self.undoable.append(self.step)
        self.step = step
        excess = max(0, len(self.undoable) - self.undo_depth)
        del self.undoable[:excess]
        return excess

    def undo_count(self, step: int) -> int | None:
        """Number of deltas to undo so as to stand at `step`; None when that is out of reach."""
        if step == self.step:
            return 0
        if step not in self.undoable:
            return None
        return len(self.undoable) - self.undoable.index(step)

    def rewind(self, count: int) -> None:
        """Notes that the newest `count` deltas were undone."""
        if count:
            self.step = self.undoable[-count]
            del self.undoable[-count:]
