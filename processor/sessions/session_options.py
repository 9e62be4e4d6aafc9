"""Define the options of sessions, for a process and for its groups, and those of a group that the layout has decided.

Light to import: the command line reads its options here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, Self, get_args

from freshet_serving.processor.options import between, one_of, option

Compute = Literal["threads", "inline"]
COMPUTES: tuple[str, ...] = get_args(Compute)
MAX_SESSIONS = 1024
COMPUTING = "Computing"
# Rows that may wait by default, and ids for each row that may, which bound the memory of long lists.
QUEUE_ROWS, ROW_IDS = 65_536, 64


computing = partial(option, heading=COMPUTING, folded=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionOptions:
    """The options of a process's sessions, which apply to groups that do not override them."""

    sessions: int = computing(
        0,
        "Sessions of each serving process; if sessions is set and workers is not, there is one process",
        between(0, MAX_SESSIONS, "one per core"),
    )
    threads_per_session: int = computing(1, "Threads for one run of an executable", between(1, 256))
    device_stages: int = computing(
        0, "Threads that run the rows of several sessions in one large batch; for GPUs", between(0, 64, "none")
    )
    device_rows_mb: int = computing(
        0,
        "Memory of a GPU for the rows of a version, which the GPU then gathers itself",
        between(0, 1 << 24, "none"),
        unit="MiB",
    )
    batch_window_us: float = computing(
        0.0,
        "Longest wait for a batch to grow; with 0 an idle session takes all waiting requests",
        between(0, 10_000_000),
        unit="microseconds",
    )
    max_queue_rows: int = computing(
        QUEUE_ROWS,
        "Candidate rows that may wait, and their ids; the server refuses requests beyond that (load shedding)",
        between(1, 1 << 31),
    )


@dataclass(frozen=True, slots=True)
class GroupConfig:
    """A session group as the user writes it; None means the process's option.

    Attributes:
        sessions: Number of sessions; 0 for one per core.
        cpus: Cores such as "0-1", or one set for each session in turn, such as "0-1;2-3"; "" for any.
        p99_ms: Milliseconds within which 99 of 100 requests are to be answered, with the least cores for that.
        share: Its weight among groups that share the other cores; 1 by default.
        min_cores: Cores that it always has; 1 by default.
    """

    models: list[str] = field(default_factory=list)
    sessions: int | None = None
    threads_per_session: int | None = None
    cpus: str | None = None
    batch_window_us: float | None = None
    max_queue_rows: int | None = None
    device_stages: int | None = None
    device_rows_mb: int | None = None
    p99_ms: float | None = None
    share: float | None = None
    min_cores: int | None = None

    @property
    def planned(self) -> bool:
        """True if the group's cores are planned while it serves."""
        return (self.p99_ms, self.share, self.min_cores) != (None, None, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessOptions(SessionOptions):
    """The options of a process's sessions, and of what all its groups share."""

    user_state_mb: int = computing(
        0,
        "Memory for what was computed of users, to be used again while it is exact; shared by all processes",
        between(0, 1 << 24, "none"),
        unit="MiB",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionConfig(ProcessOptions):
    """The options of a process's sessions, with the groups that override them."""

    compute: Compute = option(
        "threads", "Where sessions run: in their own threads or inline in the event loop", one_of(*COMPUTES)
    )
    groups: Mapping[str, GroupConfig] = field(default_factory=dict)

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Self:
        """Return the SessionConfig of options read from JSON or TOML; each group is an object of its own options."""
        groups = {name: GroupConfig(**group) for name, group in options["groups"].items()}
        return cls(**{**options, "groups": groups})


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOptions(SessionOptions):
    """The options of one session group.

    Attributes:
        sessions: Number of sessions; with compute "inline" all but one are helpers.
        max_batch_rows: Maximum rows in a batch; with device stages more, where those cost little more.
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
