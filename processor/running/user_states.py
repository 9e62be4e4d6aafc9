"""Use what was computed of users again: the seam of an extension between the runner and the subgraph `user`.

Before the user's part of a request is computed, the runner asks for a cached one; what it computes, it offers to the
cache. A cached part is exactly what would be computed under the batch's state, or under an older one where the request
allows that (user_bounds.UserBounds). Without the extension, or without memory for it, a batch has None in its place.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.clock import Clock
from freshet_serving.processor.counter_block import Snapshot
from freshet_serving.processor.features.bound_request import BoundRequest
from freshet_serving.processor.features.plan import SparsePlan
from freshet_serving.processor.features.user_calls import KeptUsers
from freshet_serving.processor.package import Manifest
from freshet_serving.processor.ports import ENGINE, missing
from freshet_serving.processor.running.buffers import Tensors

if TYPE_CHECKING:
    from freshet_serving.processor.ports import UserStateStore
    from freshet_serving.processor.running.graph_run import SubgraphRun

OPTION, EXTENSION = "user_state_mb", "user_state"


class UserState(Protocol):
    """The state of one request's user; tensors, in one row, are valid until the thread's next look, None if missing."""

    tensors: Tensors | None

    def keep(self, computed: Tensors, request: int) -> None:
        """Cache what was computed (a row for each request), under the same pin."""


class UserStates(Protocol):
    """The states of users of one version under one flip."""

    def look(self, tables: NDArray[np.int64], epoch: int, user: SubgraphRun, bound: BoundRequest) -> UserState | None:
        """Return the cached state of a request's user, noted in its user_bounds; None if it cannot be cached."""


class WeightedStates(Protocol):
    """The states of users of one version with its present dense weights."""

    def at(self, publish_seq: int, step: int, turn: int) -> UserStates:
        """Return the states under a flip that serves a step; flip and newest turn are read under the pin."""


class VersionStates(Protocol):
    """The states of users of one loaded version in one process."""

    def weighted(self, dense: Mapping[str, NDArray[Any]]) -> WeightedStates | None:
        """Return the states of dense weights; None if nothing is cached of what the version computes."""

    def counted(self) -> Snapshot:
        """Return the counters since the version was loaded, and those of the model's users whose inputs are cached."""


class ProcessStates(Protocol):
    """The states of users in one process."""

    @property
    def users(self) -> KeptUsers:
        """The users whose inputs are cached."""

    def of(self, manifest: Manifest, plan: SparsePlan, load: int, stamped: bool) -> VersionStates:
        """Return the cache of a version's load (versions.control); rows without stamps leave nothing to cache."""


def states_memory(megabytes: int, processes: int) -> NDArray[np.int64]:
    """Return the memory that processes cache states in; raise BadInput if it is too small, or without the extension."""
    memory: NDArray[np.int64] = _store().memory(megabytes << 20, processes)
    return memory


def open_states(memory: NDArray[np.int64], processes: int, process: int, clock: Clock) -> ProcessStates:
    """Return one process's states; `memory` is what states_memory() returned, or a mapping of it."""
    states: ProcessStates = _store().open(memory, processes, process, clock)
    return states


def _store() -> UserStateStore:
    store: UserStateStore | None = ENGINE.only("user_states")
    if store is None:
        raise missing(OPTION, EXTENSION)
    return store
