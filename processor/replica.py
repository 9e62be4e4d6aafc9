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

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from processor.backends import load_backend
from processor.backends.base import Artefact, Executable
from processor.clock import Clock
from processor.cores import on
from processor.cost import CostTable
from processor.errors import Corrupt
from processor.generation import Generation
from processor.kernels.fences import exchange
from processor.kernels.rows import TABLE_FIELDS
from processor.memory import reserve
from processor.package.manifest import Executable as ExecutableEntry
from processor.package.manifest import Manifest
from processor.package.warmup import WARMUP, Inputs, blank_request, parse_warmup
from processor.sparse import SparsePlan
from processor.stores.remote import RemoteTables
from processor.table import descriptor

IDLE = np.iinfo(np.int64).max
READERS = 2048
# Whose word the last one is: no session and no split request has it.
SHADOW_READER = READERS - 1
CALIBRATION_RUNS = 3
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


class Package(Protocol):
    """What a replica needs of a version's files."""

    @property
    def manifest(self) -> Manifest: ...

    def file(self, name: str) -> bytes:
        """A verified file; raises Corrupt."""


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


Warm = Callable[["Replica", State, Sequence[Inputs]], None]
"""Runs requests through every session and bucket under a state that nobody is sent to yet; raises FreshetError."""


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
        warm: Warm | None = None,
    ) -> None:
        """Reads the executables' files; raises FreshetError when they cannot be served.

        control: control_words() of the version. process: this one's number. threads: that one run may use.
        cpus: cores for them, none for any. remote: where this process finds the rows of tables that are not in memory.
        warm: called once, before anybody is sent here, with the version's recorded requests.
        """
        self.manifest: Manifest = reader.manifest
        self.plan = SparsePlan(self.manifest)
        self.remote = remote.open(self.manifest, self.plan) if remote else None
        self.outputs = {o.name: o.columns for o in self.manifest.outputs}
        self.costs = CostTable({1: 1.0})
        self._clock, self._threads, self._cpus = clock, threads, cpus
        self._control = control
        self._pins = control[1 + process * READERS : 1 + (process + 1) * READERS]
        self._pins_address = self._pins.ctypes.data
        self._states: dict[int, State] = {}
        self._dense: Dense | None = None
        self._executables: dict[int, Executable] = {}
        self._warm = warm
        recorded = warm is not None and WARMUP in self.manifest.files
        self._recorded = parse_warmup(reader.file(WARMUP), self.manifest.inputs) if recorded else []
        self._artefacts: dict[str, list[Artefact]] = {}
        for entry in chosen(self.manifest):
            artefact = Artefact(entry.bucket, reader.file(entry.file), entry.weights)
            self._artefacts.setdefault(entry.backend, []).append(artefact)

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
        live ones, off the GIL; the first are measured, and the version is warmed with them."""
        first = self._dense is None
        if change.dense is not self._dense:
            executables = self._build(change.dense)
            if self._dense is None:
                costs = {b: _measure(e, self.plan.width, self.outputs, self._clock) for b, e in executables.items()}
                self.costs = CostTable(costs)
            self._dense, self._executables = change.dense, executables
        tables = [descriptor(t, arrays) for t, arrays in zip(self.manifest.tables, change.arrays)]
        keep = tuple(array for arrays in change.arrays for array in arrays.values())
        matrix = np.array(tables, np.int64) if tables else np.zeros((1, TABLE_FIELDS), np.int64)
        state = State(change.flip, change.epoch, change.generation, matrix, self._executables, keep)
        self._states = self._states | {change.flip: state}
        if first and self._warm is not None:
            self._warm(self, state, self._recorded or [blank_request(self.manifest.inputs)])
            self._recorded = []

    def forget(self, flip: int) -> None:
        self._states = {f: state for f, state in self._states.items() if f >= flip}

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

    def _build(self, dense: Dense) -> dict[int, Executable]:
        executables: dict[int, Executable] = {}
        # A backend's own threads inherit the cores of the thread that starts them.
        with on(self._cpus):
            for backend, artefacts in self._artefacts.items():
                loaded = load_backend(backend).load_all(artefacts, dense, self.plan.width, self.outputs, self._threads)
                executables |= {e.bucket: e for e in loaded}
        return executables


def chosen(manifest: Manifest) -> list[ExecutableEntry]:
    """The executables to serve: of each bucket the first that the manifest lists."""
    first: dict[int, ExecutableEntry] = {}
    for entry in manifest.executables:
        first.setdefault(entry.bucket, entry)
    if not first:
        raise Corrupt("manifest.executables: the version is not compiled; run `freshet compile`")
    return list(first.values())


def _measure(executable: Executable, width: int, outputs: dict[str, int], clock: Clock) -> float:
    """Seconds of one run, the best of a few: warms the executable and prices its bucket."""
    bucket = executable.bucket
    x = np.zeros((bucket, width), np.float32)
    run: Callable[[], None] = executable.bind(x, {n: np.empty((bucket, c), np.float32) for n, c in outputs.items()})
    best = float("inf")
    for _ in range(CALIBRATION_RUNS):
        started_s = clock.now_s()
        run()
        best = min(best, clock.now_s() - started_s)
    return max(best, 1e-7)
