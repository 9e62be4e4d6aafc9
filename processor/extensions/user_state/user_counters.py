"""Count what became of kept users, by model. Several threads count, under one lock.

An erased user is counted as one who was never there: nothing remembers who was erased.
"""

from __future__ import annotations

import threading

from freshet_serving.processor.counter_block import CounterBlock, Slot, Snapshot
from freshet_serving.processor.extensions.user_state import state_arena as arena
from freshet_serving.processor.features.user_calls import CHANGES

BLOCK, RELEASE = "kept_users", "release"
VERBS = (*CHANGES, RELEASE)
CAUSES = {arena.EXPIRED: "expired", arena.EVICTED: "evicted", arena.ABSENT: "absent"}
"""Causes why a request finds nothing of its user; absent: never kept, released, erased, or lost with a process."""
USERS = Slot(BLOCK, "users", "model_kept_users", "Users whose inputs are kept.", gauge=True)
NBYTES = Slot(BLOCK, "nbytes", "model_kept_users_bytes", "Memory of users' inputs.", gauge=True)
COUNTERS = (
    *Slot(
        BLOCK, "changes", "model_kept_users_changes", "Changes of what is kept of a user, by verb.", "verb",
    ).each(VERBS),
    *Slot(
        BLOCK, "gone", "model_kept_users_gone",
        "Requests refused as nothing was kept of their user, by cause.", "cause",
    ).each(CAUSES.values()),
    Slot(
        BLOCK, "conflicts", "model_kept_users_conflicts",
        "Requests refused as their user had another version than they expected.",
    ),
    USERS,
    NBYTES,
)  # fmt: skip
_GONE, _CONFLICTS = len(VERBS), len(VERBS) + len(CAUSES)


class UserCounters:
    def __init__(self) -> None:
        self._block, self._lock = CounterBlock(COUNTERS), threading.Lock()

    def changed(self, verb: str) -> None:
        self._add(VERBS.index(verb))

    def gone(self, outcome: int) -> None:
        self._add(_GONE + list(CAUSES).index(outcome))

    def conflicted(self) -> None:
        self._add(_CONFLICTS)

    def snapshot(self, users: int, nbytes: int) -> Snapshot:
        with self._lock:
            return {**self._block.snapshot(), USERS: users, NBYTES: nbytes}

    def _add(self, cell: int) -> None:
        with self._lock:
            self._block.cells[cell] += 1
