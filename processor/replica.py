"""The read side of a loaded version in one process: what sessions pin, and the executables that they run.

A version has one writer (processor.served) and one Replica in every process that answers requests: in the writer's own
process when that is the only one, else in each worker. They share the tables' buffers and the control words
(processor.control).

What a batch reads has two parts. The frame, tables' buffers and executables, is what a process has to map or pack
before it can serve it: it is prepared by every replica before a flip names it. The numbers, epoch and step, are read
from the control words by whoever pins the flip. Most flips bring new numbers over the frame that is there.

Invariants
- A replica's state of a flip is made by the first reader that has pinned it, from the flip's entry and its frame: both
  stand as long as the pin does. Two readers may make the same state; they are equal.
- A frame is forgotten only when no pin of this process names a flip under it, and the state kept for the next reader
  with it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from processor.backends import load_backend
from processor.backends.base import Artefact, Executable
from processor.clock import Clock
from processor.control import Control, Pins
from processor.cores import on
from processor.cost import CostTable
from processor.errors import Corrupt
from processor.generation import Generation
from processor.kernels.rows import TABLE_FIELDS
from processor.once import UserOnce
from processor.package.manifest import Executable as ExecutableEntry
from processor.package.manifest import Manifest
from processor.sparse import SparsePlan
from processor.stage import load_stage
from processor.stores.remote import RemoteTables
from processor.table import descriptor
from processor.userside import WHOLE, division

CALIBRATION_RUNS = 3
WRITTEN_BY_READERS = frozenset({"hits", "ring"})
"""Names of table arrays that sessions write too (processor.tier); other processes map the others for reading only."""

Dense = Mapping[str, NDArray[np.float32]]
Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True, eq=False)
class Frame:
    """What the writer offers its readers; number: never used for another. arrays: per table, the buffers that its
    kernels walk (table.descriptor). dense: every dense tensor; the same object as long as none has changed."""

    number: int
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

    def prepare(self, frame: Frame) -> None:
        """Returns when the frame can be served by all of them; raises why it cannot. Nothing is served by it yet."""

    def forget(self, frame: int) -> None:
        """Frames before that number are read by nobody."""

    def close(self) -> None:
        """The version is served no more."""

    @property
    def cost(self) -> Mapping[int, float]:
        """Seconds of one run, per bucket."""


@dataclass(frozen=True, slots=True, eq=False)
class State:
    """Everything a batch reads, as of one generation. tables: int64 [T, TABLE_FIELDS] (kernels.rows). executables: of
    the whole dense graph, by bucket. parts: those of the parts that it is divided into, by role (processor.once)."""

    flip: int
    epoch: int
    generation: Generation
    tables: NDArray[np.int64]
    executables: dict[int, Executable]
    keep: tuple[Any, ...]
    parts: Mapping[str, dict[int, Executable]]


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """A frame as this process serves it."""

    tables: NDArray[np.int64]
    executables: dict[str, dict[int, Executable]]
    keep: tuple[Any, ...]


class Replica:
    """One process's view of a version: prepares states, hands them to sessions, prices its executables."""

    def __init__(
        self,
        reader: Package,
        control: Control,
        process: int,
        threads: int,
        clock: Clock,
        cpus: frozenset[int] = frozenset(),
        remote: RemoteTables | None = None,
    ) -> None:
        """Reads the executables' files; raises FreshetError when they cannot be served.

        control: the version's. process: this one's number. threads: that one run may use.
        cpus: cores for them, none for any. remote: where this process finds the rows of tables that are not in memory.
        """
        self.manifest: Manifest = reader.manifest
        spec = self.manifest.stage
        self.plan = SparsePlan(self.manifest, load_stage(self.manifest, reader.file(spec.file)) if spec else None)
        self.remote = remote.open(self.manifest, self.plan) if remote else None
        self.outputs = {o.name: o.columns for o in self.manifest.outputs}
        divided = division(self.manifest)
        self.once = UserOnce(divided, self.plan) if divided else None
        self.costs = CostTable({1: 1.0})
        self._clock, self._threads, self._cpus = clock, threads, cpus
        self._control, self._pins = control, Pins(control, process)
        self._asking = threading.Lock()
        self._frames: dict[int, Prepared] = {}
        self._newest: State | None = None
        self._dense: Dense | None = None
        self._executables: dict[str, dict[int, Executable]] = {}
        self._artefacts: dict[tuple[str, str], list[Artefact]] = {}
        for entry in chosen(self.manifest):
            artefact = Artefact(entry.bucket, reader.file(entry.file), entry.weights)
            self._artefacts.setdefault((entry.role, entry.backend), []).append(artefact)

    @property
    def cost(self) -> Mapping[int, float]:
        return self.costs.cost

    @property
    def generation(self) -> Generation:
        """The one that is served now."""
        with self._asking, self.pinned(Pins.ASKING) as state:
            return state.generation

    def prepare(self, frame: Frame) -> None:
        """Makes the frame ready for the flip. New dense weights are packed into new executables beside the live ones,
        off the GIL; the first are measured."""
        if frame.dense is not self._dense:
            executables = self._build(frame.dense)
            if self._dense is None:
                costs = self._measure(executables)
                self.costs = CostTable(costs[WHOLE])
                if self.once is not None:
                    self.once.price(costs)
            self._dense, self._executables = frame.dense, executables
        tables = [descriptor(t, arrays) for t, arrays in zip(self.manifest.tables, frame.arrays)]
        keep = tuple(array for arrays in frame.arrays for array in arrays.values())
        matrix = np.array(tables, np.int64) if tables else np.zeros((1, TABLE_FIELDS), np.int64)
        self._frames = self._frames | {frame.number: Prepared(matrix, self._executables, keep)}

    def forget(self, frame: int) -> None:
        """See Readers.forget."""
        self._frames = {number: prepared for number, prepared in self._frames.items() if number >= frame}
        # It may be of a frame that is gone, and of a process that nobody asks it would be kept for good.
        self._newest = None

    def close(self) -> None:
        """Requests that hold the replica are still answered; it goes with the last of them."""

    def pin(self, reader: int) -> State:
        """The newest state, guaranteed whole until this reader's unpin(). reader: below READERS."""
        flip = self._pins.pin(reader)
        state = self._newest
        if state is None or state.flip != flip:
            state = self._newest = self._state(flip)
        return state

    def unpin(self, reader: int) -> None:
        self._pins.unpin(reader)

    @contextmanager
    def pinned(self, reader: int) -> Iterator[State]:
        try:
            yield self.pin(reader)
        finally:
            self.unpin(reader)

    def _state(self, flip: int) -> State:
        """What a pinned flip stands for."""
        epoch, step, number = self._control.entry(flip)
        frame = self._frames[number]
        generation = Generation(self.manifest.version, step)
        parts = frame.executables
        return State(flip, epoch, generation, frame.tables, parts[WHOLE], frame.keep, parts)

    def _build(self, dense: Dense) -> dict[str, dict[int, Executable]]:
        executables: dict[str, dict[int, Executable]] = {}
        # A backend's own threads inherit the cores of the thread that starts them.
        with on(self._cpus):
            for (role, backend), artefacts in self._artefacts.items():
                width, outputs = self._ends(role)
                loaded = load_backend(backend).load_all(artefacts, dense, width, outputs, self._threads)
                executables.setdefault(role, {}).update({e.bucket: e for e in loaded})
        return executables

    def _ends(self, role: str) -> tuple[int, dict[str, int]]:
        """Width of the input and columns of the outputs of the executables of a role."""
        if self.once is None or role == WHOLE:
            return self.plan.width, self.outputs
        part = self.once.parts[role]
        return part.width, part.outputs

    def _measure(self, executables: Mapping[str, Mapping[int, Executable]]) -> dict[str, dict[int, float]]:
        """Seconds of one run by role and bucket, the best of a few, all in turn so that a neighbour on the machine
        disturbs no single one: warms the executables and prices their buckets."""
        runs: dict[tuple[str, int], Callable[[], None]] = {}
        for role, part in executables.items():
            width, outputs = self._ends(role)
            for bucket, executable in part.items():
                arrays = {n: np.empty((bucket, c), np.float32) for n, c in outputs.items()}
                runs[role, bucket] = executable.bind(np.zeros((bucket, width), np.float32), arrays)
        costs: dict[str, dict[int, float]] = {role: {} for role in executables}
        now_s = self._clock.now_s
        for _ in range(CALIBRATION_RUNS):
            for (role, bucket), run in runs.items():
                started_s = now_s()
                run()
                costs[role][bucket] = max(1e-7, min(costs[role].get(bucket, np.inf), now_s() - started_s))
        return costs


def chosen(manifest: Manifest) -> list[ExecutableEntry]:
    """The executables to serve: of each role and bucket the first that the manifest lists."""
    first: dict[tuple[str, int], ExecutableEntry] = {}
    for entry in manifest.executables:
        first.setdefault((entry.role, entry.bucket), entry)
    if not any(role == WHOLE for role, _ in first):
        raise Corrupt("manifest.executables: the version is not compiled; run `freshet compile`")
    return list(first.values())
