"""The user states of one process: looks and keeps for the runner (processor.running.user_states).

A state is what a subgraph of the user computed, with the stamps of the rows that it read. It is valid where the stamps,
as of the epoch that is pinned, and the dense weights are the same: so a delta, a rollback or a new version sends
nothing to anybody, and a rollback makes a state valid again that was not replaced. A name has one state a process.

Invariants
- Stamps are found under the pin of the batch that reads or makes the state, as its rows are.
- Stamps of two loads of a version are not compared: a name has the number of the load.
- Dense weights are told by a hash of their bytes: equal in all processes, equal again after a rollback, and the same
  over a delta that brings the same weights.
- A version that reads rows outside of the process has no states: such rows have no stamps.

Bounded. A request may allow a user part that is not valid any more (user_bounds.UserBounds). Such a state is used if it
is few enough steps and seconds old, and if no turn lies between its flip and the pinned one (versions.control): the
pinned generation continues its generation. It stays until it is out of bounds. All rows of a request read one user
part: chunks of a large request, which may run at once, have no bounds, and neither has a prepare.

Rounded. A model may have its user parts kept as float16 (state_tensors). A reply that used one names its generation,
also where that is the reply's own. Chunks and prepares read and keep such states too, of the pinned generation: a chunk
that finds nothing uses what it has computed, so rows of a large request may differ by the rounding.

Costs of a look: a hash of the user's inputs; where there is a state of the name, two or three cache misses for each
row, which are prefetched, and a copy of the state. Of a miss: the hash, the stamps of rows that were read just before,
and a copy into the arena. A gate (state_gate) leaves users out while that does not pay.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Mapping
from functools import cached_property, partial
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.clock import Clock
from freshet_serving.processor.counter_block import Snapshot
from freshet_serving.processor.extensions.user_state import state_arena as arena
from freshet_serving.processor.extensions.user_state.kept_users import KeptUsers
from freshet_serving.processor.extensions.user_state.state_counters import (
    BEYOND,
    KEPT,
    ROUNDED,
    UNASKED,
    UNKEPT,
    StateCounters,
    flops_of,
)
from freshet_serving.processor.extensions.user_state.state_erasure import SharedStates, Subjects
from freshet_serving.processor.extensions.user_state.state_gate import StateGate
from freshet_serving.processor.extensions.user_state.state_names import EVERYBODY, StateNames
from freshet_serving.processor.extensions.user_state.state_store import StateName, StateStore, arena_memory
from freshet_serving.processor.extensions.user_state.state_tensors import StateTensors
from freshet_serving.processor.extensions.user_state.user_reads import UserReads
from freshet_serving.processor.features.bound_request import BoundRequest
from freshet_serving.processor.features.plan import SparsePlan
from freshet_serving.processor.features.user_bounds import DTYPES, UserBounds
from freshet_serving.processor.memory import place_in_file
from freshet_serving.processor.package import USER, Manifest, Subgraph, role
from freshet_serving.processor.running.buffers import Tensors
from freshet_serving.processor.running.graph_run import SubgraphRun

Int64s = NDArray[np.int64]

LEAST_S = 0.0005
"""A subgraph that takes less is not worth a look, which takes a tenth of a millisecond, hit or miss."""


class ProcessStates:
    def __init__(self, store: StateStore, clock: Clock) -> None:
        self.store, self.names, self.clock = store, StateNames(store.secret), clock
        self.users = KeptUsers(store, self.names)
        self._scopes = itertools.count(1)

    def of(self, manifest: Manifest, plan: SparsePlan, load: int, stamped: bool) -> VersionStates:
        """Return the states of a loaded version (ProcessStates.of); without `stamped` rows there are none."""
        graphs = {name: graph for name, graph in manifest.graphs.items() if stamped and role(name)[0] == USER}
        return VersionStates(self, manifest, plan, load, graphs, next(self._scopes))


class UserPart:
    """One subgraph of the user: what it reads, how its outputs lie in a state, and its work (`flops`, 0: unknown)."""

    def __init__(self, scope: bytes, graph: Subgraph, plan: SparsePlan, flops: int) -> None:
        self.reads, self.gate, self.flops = UserReads(graph, plan), StateGate(), flops
        self.exact, self.rounded = (StateTensors(scope, graph, dtype) for dtype in DTYPES)


class VersionStates:
    def __init__(
        self,
        states: ProcessStates,
        manifest: Manifest,
        plan: SparsePlan,
        load: int,
        graphs: Mapping[str, Subgraph],
        scope: int,
    ) -> None:
        self.process, self.scope, self.counters = states, scope, StateCounters()
        self._read_by = manifest, plan
        self.parts = {
            name: UserPart(
                f"{manifest.model}/{manifest.version}/{load}/{name}".encode(), graph, plan, flops_of(manifest, name)
            )
            for name, graph in graphs.items()
        }
        self._model = manifest.model
        self._local = threading.local()

    @cached_property
    def subjects(self) -> Subjects:
        return Subjects(*self._read_by)

    def weighted(self, dense: Mapping[str, NDArray[Any]]) -> WeightedStates | None:
        """Return the states of these dense weights (VersionStates.weighted)."""
        if not self.parts:
            return None
        digest = blake2b(digest_size=8)
        for name, tensor in sorted(dense.items()):
            digest.update(f"{name} {tensor.dtype} {tensor.shape} ".encode())
            digest.update(np.ascontiguousarray(tensor).reshape(-1).view(np.uint8).data)
        return WeightedStates(self, int.from_bytes(digest.digest(), "little", signed=True))

    def counted(self) -> Snapshot:
        users = self.process.users.counted(self._model)
        if not self.parts:
            return users
        return {**self.counters.snapshot(self.process.store.usage(self.scope)[1]), **users}

    def words(self, count: int) -> Int64s:
        """Return memory for so many words of a state, which the calling thread uses until it asks again."""
        memory: Int64s | None = getattr(self._local, "memory", None)
        if memory is None or len(memory) < count:
            memory = self._local.memory = np.empty(count, np.int64)
        return memory[:count]


class WeightedStates:
    """The states of one loaded version with certain dense weights: implements running.user_states.WeightedStates."""

    def __init__(self, states: VersionStates, weights: int) -> None:
        self.states, self.weights = states, weights

    def at(self, publish_seq: int, step: int, turn: int) -> PinnedStates:
        return PinnedStates(self.states, self.weights, publish_seq, step, turn)


class PinnedStates:
    """The states of one loaded version under one flip: implements running.user_states.UserStates."""

    def __init__(self, states: VersionStates, weights: int, flip: int, step: int, turn: int) -> None:
        self.states, self.weights, self.flip, self.step, self._turn = states, weights, flip, step, turn

    def look(self, tables: Int64s, epoch: int, user: SubgraphRun, bound: BoundRequest) -> UserLook | None:
        """Look for what a subgraph of the user computed of a request (UserStates.look), unless it is fast."""
        asked = bound.user_bounds
        if asked is not None:
            asked.step = None
        user_s = user.costs.dense_s(1)
        if user_s < LEAST_S:
            return None
        states, part = self.states, self.states.parts[user.name]
        process = states.process
        began_s = process.clock.core_s()
        draw, inputs = part.reads.inputs(bound)
        if draw < 0:
            return None
        if not part.gate.admits(draw):
            states.counters.add(UNASKED)
            return None
        erasures = process.store.erasures
        layout = part.rounded if asked is not None and asked.oldest.rounded else part.exact
        name = process.names.name(EVERYBODY, layout.scope, part.reads.content(inputs), states.subjects.of(bound))
        stamps, memory = partial(part.reads.stamps, tables, inputs, epoch), states.words(layout.words + layout.room)
        words, room = memory[: layout.words], memory[layout.words :]
        bounds = arena.EXACT if asked is None or not asked.oldest.bounded else self._bounds(asked)
        outcome, age_s = process.store.find(name, self.weights, stamps, words, bounds)
        tensors = layout.tensors(words, room) if outcome == arena.HIT else None
        spent_s = process.clock.core_s() - began_s
        states.counters.looked(outcome, spent_s, age_s, part.flops)
        if tensors is not None:
            steps = self.step - int(bounds[arena.AS_OF]) if bounds[arena.AS_OF] >= 0 else 0
            if steps:
                states.counters.used_older(steps)
            if not layout.exact:
                states.counters.add(ROUNDED)
            if asked is not None and (steps or not layout.exact):
                asked.used(self.step - steps)
            part.gate.judge(draw, user_s, spent_s)
        return UserLook(self, part, layout, name, stamps, erasures, tensors, draw, spent_s)

    def _bounds(self, asked: UserBounds) -> Int64s:
        """Return what a request may read of states that are not valid (state_arena)."""
        oldest = asked.oldest
        from_step = 0 if oldest.steps is None else self.step - oldest.steps
        from_s = 0.0 if oldest.age_s is None else self.states.process.store.now_s - oldest.age_s
        return np.array([self._turn, self.flip, from_step, int(from_s * 1000), -1], np.int64)


class UserLook:
    """The result of a look, and all that it takes to keep what is computed instead.

    It has the user's tensors, until the next look of the thread; None if they have to be computed.
    """

    __slots__ = ("_draw", "_erasures", "_layout", "_name", "_part", "_spent_s", "_stamps", "_states", "tensors")

    def __init__(
        self,
        states: PinnedStates,
        part: UserPart,
        layout: StateTensors,
        name: StateName,
        stamps: Callable[[], Int64s],
        erasures: int,
        tensors: Tensors | None,
        draw: int,
        spent_s: float,
    ) -> None:
        self._states, self._part, self._layout = states, part, layout
        self._name, self._stamps, self._erasures = name, stamps, erasures
        self.tensors, self._draw, self._spent_s = tensors, draw, spent_s

    def keep(self, computed: Tensors, request: int) -> None:
        """Keep what was computed, under the pin of the look (UserState.keep)."""
        states, part = self._states.states, self._part
        process = states.process
        began_s = process.clock.core_s()
        pieces = self._layout.pieces(computed, request)
        if pieces is None:
            states.counters.add(BEYOND)
        else:
            was_kept = process.store.keep(
                self._name, self._states.weights, self._stamps(), pieces, self._erasures, states.scope,
                flip=self._states.flip, step=self._states.step,
            )  # fmt: skip
            states.counters.add(KEPT if was_kept else UNKEPT)
        part.gate.judge(self._draw, 0.0, self._spent_s + process.clock.core_s() - began_s)


def shared_memory(nbytes: int, processes: int) -> Int64s:
    memory = arena_memory(nbytes, processes)
    SharedStates(memory, processes)
    return memory


def open_states(memory: Int64s, processes: int, process: int, clock: Clock) -> ProcessStates:
    assert processes == 1 or place_in_file(memory), "processes that share the memory lock bytes of its file"
    return ProcessStates(StateStore(memory, processes, process, clock.now_s), clock)
