"""Use what was computed of users again: the seam of an extension between the runner and the subgraph `user`.

Before the user's part of a request is computed, the runner asks for what is kept of it; what it computes, it offers to
be kept. What is found is exactly what would be computed under the batch's state, or under an older one where the
request allows that (user_bounds.UserBounds); so the runner knows nothing of when it is valid. Without the extension,
or without memory for it, a batch has None in its place.
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
    """The state of the user of one request.

    Attributes:
        tensors: The user's tensors, in one row, until the thread's next look; None if they have to be computed.
    """

    tensors: Tensors | None

    def keep(self, computed: Tensors, request: int) -> None:
        """Keep what was computed, under the same pin.

        Args:
            computed: Outputs of the subgraph, a row for each request.
        """


class UserStates(Protocol):
    """The states of users of one version under one flip."""

    def look(self, tables: NDArray[np.int64], epoch: int, user: SubgraphRun, bound: BoundRequest) -> UserState | None:
        """Return what is kept of a request's user; None if such a request is not kept.

        Args:
            tables: As BatchView.tables.
            epoch: As BatchView.epoch, pinned.
            user: The subgraph that computes the user's tensors.
            bound: The request; its user inputs have one row. Its user_bounds, if any, say what was found.
        """


class WeightedStates(Protocol):
    """The states of users of one version with its present dense weights."""

    def at(self, publish_seq: int, step: int, turn: int) -> UserStates:
        """Return the states as they are read under a flip.

        Args:
            publish_seq: The flip, pinned.
            step: The step that it serves.
            turn: The newest turn, read under the pin (versions.control).
        """


class VersionStates(Protocol):
    """The states of users of one loaded version in one process."""

    def weighted(self, dense: Mapping[str, NDArray[Any]]) -> WeightedStates | None:
        """Return the states of dense weights; None if nothing is kept of what the version computes."""

    def counted(self) -> Snapshot:
        """Return the counters since the version was loaded, and those of the model's users whose inputs are kept."""


class ProcessStates(Protocol):
    """The states of users in one process."""

    @property
    def users(self) -> KeptUsers:
        """The users whose inputs are kept."""

    def of(self, manifest: Manifest, plan: SparsePlan, load: int, stamped: bool) -> VersionStates:
        """Return what is kept by a version.

        Args:
            load: Number of the load (versions.control).
            stamped: True if its rows have stamps: what is computed of others is not kept.
        """


def states_memory(megabytes: int, processes: int) -> NDArray[np.int64]:
    """Return the memory that processes keep states in.

    Args:
        megabytes: Its size.

    Raises:
        BadInput: It is too small, or the extension is not there.
    """
    memory: NDArray[np.int64] = _store().memory(megabytes << 20, processes)
    return memory


def open_states(memory: NDArray[np.int64], processes: int, process: int, clock: Clock) -> ProcessStates:
    """Return one process's states.

    Args:
        memory: What states_memory() returned, or a mapping of it.
        process: Number of this one.
    """
    states: ProcessStates = _store().open(memory, processes, process, clock)
    return states


def _store() -> UserStateStore:
    store: UserStateStore | None = ENGINE.only("user_states")
    if store is None:
        raise missing(OPTION, EXTENSION)
    return store
