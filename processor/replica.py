"""The read side of a loaded version in one process: what sessions pin, and the executables that they run.

A version has one writer (processor.served) and one Replica in every process that answers requests: in the writer's own
process when that is the only one, else in each worker. They share the tables' buffers and one block of words:

control  int64 [1 + processes * READERS]   the flip that is served; then, per reader, the flip that it has pinned

Invariants
- One store to control[0] flips every table, dense weight, session and process at once. The writer makes it only when
  every replica has prepared the state of that flip.
- pin() announces a flip before it reads anything of it, and looks again: if the flip has moved on, it announces anew.
  Both sides use exchange(), so that either the reader sees the new flip or the writer sees the reader's pin.
- A state is forgotten only when no pin of this process names it.
- A reader's word is written by one thread at a time. A process that dies leaves its words behind; the writer clears
  them when it has buried it.

Refused: reference counts (a lock or an atomic read-modify-write shared by all sessions, for each batch).
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from processor.backends.base import Executable, Program, aligned
from processor.buffers import Buffers
from processor.clock import Clock
from processor.cores import on
from processor.cost import CostTable
from processor.executables import Package, open_programs
from processor.generation import Generation
from processor.kernels.fences import exchange
from processor.kernels.rows import TABLE_FIELDS
from processor.memory import advise, reserve
from processor.package.manifest import Manifest
from processor.sparse import SparsePlan, blank_inputs
from processor.stores.remote import RemoteTables
from processor.table import descriptor

IDLE = np.iinfo(np.int64).max
READERS = 2048
WARM_RUNS = 3
MADV_POPULATE_READ = 22
POPULATED = ("index", "base", "scales")
POPULATE_NBYTES = 256 << 20
WRITTEN_BY_READERS = frozenset({"hits", "ring"})
"""Names of table arrays that sessions write too (processor.tier); other processes map the others for reading only."""

Dense = Mapping[str, NDArray[np.float32]]
Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True, eq=False)
class Change:
    """What the writer offers its readers. arrays: per table, the buffers that its kernels walk (table.descriptor).
    dense: every dense tensor; the same object as long as none has changed."""

    flip: int
    epoch: int
    generation: Generation
    arrays: tuple[Arrays, ...]
    dense: Dense


class Readers(Protocol):
    """Whoever answers requests by a version, as its writer sees them."""

    def prepare(self, change: Change) -> None:
        """Returns when the change can be served by all of them; raises why it cannot. Nothing is served by it yet."""

    def forget(self, flip: int) -> None:
        """States older than `flip` are pinned by nobody."""

    def close(self) -> None:
        """The version is served no more."""

    @property
    def cost(self) -> Mapping[int, float]:
        """Seconds of one run, per bucket."""


@dataclass(frozen=True, slots=True, eq=False)
class State:
    """Everything a batch reads, as of one generation. tables: int64 [T, TABLE_FIELDS] (kernels.rows)."""

    flip: int
    epoch: int
    generation: Generation
    tables: NDArray[np.int64]
    executables: dict[int, Executable]
    keep: tuple[Any, ...]


def control_words(processes: int) -> NDArray[np.int64]:
    """A version's control block for so many processes: flip 0 is served, nobody reads."""
    words = reserve((1 + processes * READERS) * 8, "control").view(np.int64)[: 1 + processes * READERS]
    words[0], words[1:] = 0, IDLE
    return words


def clear_words(control: NDArray[np.int64], process: int) -> None:
    """Takes back every pin of a process that is dead."""
    control[1 + process * READERS : 1 + (process + 1) * READERS] = IDLE


class Replica:
    """One process's view of a version: prepares states, hands them to sessions, prices its executables."""

    def __init__(
        self,
        reader: Package,
        control: NDArray[np.int64],
        process: int,
        threads: int,
        clock: Clock,
        cpus: frozenset[int] = frozenset(),
        remote: RemoteTables | None = None,
        sessions: int = 1,
    ) -> None:
        """Reads the executables' files; raises FreshetError when they cannot be served.

        control: control_words() of the version. process: this one's number. threads: that one run may use.
        cpus: cores for them, none for any. remote: where this process finds the rows of tables that are not in memory.
        sessions: how many are to run batches at once.
        """
        self.manifest: Manifest = reader.manifest
        self.plan = SparsePlan(self.manifest)
        self.remote = remote.open(self.manifest, self.plan) if remote else None
        self.outputs = {o.name: o.columns for o in self.manifest.outputs}
        self.costs = CostTable({1: 1.0})
        self._clock, self._cpus, self._sessions = clock, cpus, sessions
        self._lending = threading.Lock()
        self._stock: list[Buffers] = []
        self._lent: weakref.WeakSet[Buffers] = weakref.WeakSet()
        self._control = control
        self._pins = control[1 + process * READERS : 1 + (process + 1) * READERS]
        self._pins_address = self._pins.ctypes.data
        self._states: dict[int, State] = {}
        self._dense: Dense | None = None
        self._executables: dict[int, Executable] = {}
        # A backend's own threads inherit the cores of the thread that starts them.
        with on(cpus):
            opened = open_programs(reader, self.plan.width, self.outputs, threads, sessions)
        self.chosen = opened.chosen
        self._programs: list[Program] = opened.programs
        self._known_cost = opened.cost(threads)

    @property
    def cost(self) -> Mapping[int, float]:
        return self.costs.cost

    @property
    def generation(self) -> Generation:
        """The one that is served now."""
        while True:
            state = self._states.get(int(self._control[0]))
            if state is not None:
                return state.generation

    def prepare(self, change: Change) -> None:
        """Makes the change's state ready for the flip. New dense weights are packed into new executables beside the
        live ones, off the GIL, and run a few times, so that no request meets a cold one. The first are priced by
        that, unless the manifest has the costs of this very machine."""
        if change.dense is not self._dense:
            executables = self._build(change.dense)
            first = self._dense is None
            if first:
                self._stock = [self._buffers() for _ in range(self._sessions)]
            for buffers in self._all_buffers():
                buffers.bind_ahead(executables, run=first)
            costs = self._measure(executables)
            if first:
                self.costs = CostTable(self._known_cost or costs)
            self._dense, self._executables = change.dense, executables
        tables = [descriptor(t, arrays) for t, arrays in zip(self.manifest.tables, change.arrays)]
        keep = tuple(array for arrays in change.arrays for array in arrays.values())
        matrix = np.array(tables, np.int64) if tables else np.zeros((1, TABLE_FIELDS), np.int64)
        state = State(change.flip, change.epoch, change.generation, matrix, self._executables, keep)
        if not self._states:
            _populate(change.arrays)
            if self.remote is None:
                self._fill_once(state)
        self._states = self._states | {change.flip: state}

    def forget(self, flip: int) -> None:
        self._states = {f: state for f, state in self._states.items() if f >= flip}
        newest = self._states[max(self._states)].executables
        if all(state.executables is newest for state in self._states.values()):
            for buffers in self._all_buffers():
                buffers.settle(newest)

    def close(self) -> None:
        """Requests that hold the replica are still answered; it goes with the last of them."""

    def pin(self, reader: int) -> State:
        """The newest state, guaranteed whole until this reader's unpin(). reader: below READERS."""
        word = self._pins_address + 8 * reader
        while True:
            flip = int(self._control[0])
            exchange(word, flip)
            if self._control[0] == flip:
                return self._states[flip]

    def unpin(self, reader: int) -> None:
        self._pins[reader] = IDLE

    @contextmanager
    def pinned(self, reader: int) -> Iterator[State]:
        try:
            yield self.pin(reader)
        finally:
            self.unpin(reader)

    def lend(self) -> Buffers:
        """Buffers for one session, for as long as it keeps them; out of the stock while there are any."""
        with self._lending:
            buffers = self._stock.pop() if self._stock else self._buffers()
            self._lent.add(buffers)
            return buffers

    def _all_buffers(self) -> list[Buffers]:
        with self._lending:
            return [*self._stock, *self._lent]

    def _buffers(self) -> Buffers:
        return Buffers(self.plan.width, self.outputs, len(self.manifest.tables))

    def _fill_once(self, state: State) -> None:
        """Runs the sparse graph over one row of nothing in particular, so that its kernels are there when a request
        comes."""
        bound = self.plan.bind(blank_inputs(self.manifest))
        x, counts = aligned((1, self.plan.width)), np.zeros((max(1, len(self.manifest.tables)), 2), np.int64)
        self.plan.fill(state.tables, state.epoch, [bound], np.array([[0, 1]], np.int64), x, counts)

    def _build(self, dense: Dense) -> dict[int, Executable]:
        executables: dict[int, Executable] = {}
        with on(self._cpus):
            for program in self._programs:
                executables |= program.with_weights(dense)
        return dict(sorted(executables.items()))

    def _measure(self, executables: Mapping[int, Executable]) -> dict[int, float]:
        """Seconds of one run per bucket, the best of a few: warms each executable and prices its bucket.

        A first run has its weights from memory, and only after some do caches hold what they can of them. The smallest
        bucket comes last, because a run of it is little else than reading weights."""
        costs: dict[int, float] = {}
        buffers = self._buffers()
        for bucket, executable in sorted(executables.items(), reverse=True):
            _, _, run = buffers.get(executable)
            best = float("inf")
            for _ in range(WARM_RUNS):
                started_s = self._clock.now_s()
                run()
                best = min(best, self._clock.now_s() - started_s)
            costs[bucket] = max(best, 1e-7)
        return costs


def _populate(tables: Sequence[Arrays]) -> None:
    """Maps the pages of small tables now, which the checksums have just read: a page that is first met costs a request
    half a microsecond. Tables with a memory budget look after their pages themselves."""
    for arrays in tables:
        for name in () if "ring" in arrays else POPULATED:
            if arrays[name].nbytes <= POPULATE_NBYTES:
                advise(arrays[name], MADV_POPULATE_READ)
