"""Options of one session group, with what the layout has decided."""

from __future__ import annotations

from dataclasses import dataclass

from freshet_serving.processor.sessions.session_options import Compute, SessionOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOptions(SessionOptions):
    """The options of one session group.

    Attributes:
        sessions: Number of sessions; with compute "inline" all but one are helpers.
        max_batch_rows: Maximum rows in a batch.
        compute: "threads" or "inline".
        cpus: Cores for each session in turn; empty for any.
    """

    sessions: int = 1
    max_batch_rows: int = 256
    compute: Compute = "threads"
    cpus: tuple[frozenset[int], ...] = ()

    @property
    def runs(self) -> int:
        """Number of buffers that a version must have ready."""
        if not self.device_stages:
            return self.sessions
        # Loaded where there are device stages.
        from freshet_serving.processor.sessions.stages import staging_count

        return staging_count(self.device_stages)

    @property
    def all_cpus(self) -> frozenset[int]:
        """The cores of all sessions; empty for any."""
        return frozenset().union(*self.cpus)
