"""Reader side of a loaded version in one process: what sessions pin, and the executables that they run.

A version has one writer (processor.versions.served_version) and one Replica in every process that answers requests: in
the writer's own process if that is the only one, else in each worker. They share the tables' buffers and the control
words (processor.versions.control).

What a batch reads has two parts. The frame (tables' buffers and executables) is what a process has to map or pack
before it can serve it: every replica prepares it before a flip names it. The numbers (epoch and step) are read from the
control words by the reader that pins the flip. Most flips bring new numbers over an existing frame.

Invariants
- A replica's state of a flip is made by the first reader that has pinned it, from the flip's entry and its frame: both
  stay valid as long as the pin does. Two readers may make the same state; the two are equal.
- A frame is forgotten only when no pin of this process names a flip under it, and together with it the state that is
  kept for the next reader.

Warm-up: the recorded requests of a version are run through every bucket of every session's own buffers before a request
is sent to it, so that no request meets cold pages, kernels or caches (a cold start). Warm-up runs in the thread that
makes changes, on buffers that no session has yet, and is not counted.
"""

from __future__ import annotations

import logging
import math
import resource
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.backends import Executable, Package, Program, open_programs
from freshet_serving.processor.backends.buffers import Buffers, IoShape
from freshet_serving.processor.backends.cost import CostTable
from freshet_serving.processor.backends.cuda import allocator
from freshet_serving.processor.clock import Clock
from freshet_serving.processor.columns import Column
from freshet_serving.processor.cores import on
from freshet_serving.processor.features.plan import BoundRequest, NonFiniteInput, SparsePlan, blank_inputs
from freshet_serving.processor.features.stage import load_stage
from freshet_serving.processor.generation import Generation
from freshet_serving.processor.memory import advise
from freshet_serving.processor.package import WHOLE, Manifest, division
from freshet_serving.processor.repository import WARMUP, parse_warmup
from freshet_serving.processor.tables.remote.reader import RemoteReader, RemoteTables
from freshet_serving.processor.tables.table import descriptor, descriptors
from freshet_serving.processor.versions.control import PREVIEW_READER, ControlWords, Pins
from freshet_serving.processor.versions.preview import Preview, PreviewResult, PreviewState
from freshet_serving.processor.versions.user_split import UserSplitRuntime


def warm_up(
    plan: SparsePlan,
    remote: RemoteReader | None,
    tables: NDArray[np.int64],
    epoch: int,
    executables: Mapping[int, Executable],
    stock: Sequence[Buffers],
    requests: Sequence[BoundRequest],
) -> None:
    """Run every bucket of all buffers once, on rows of the requests in turn.

    The largest bucket of the first buffers is run until every row has been looked up.

    Args:
        plan: Sparse plan of the version.
        remote: Reader of tables in a row store, or None (see Replica).
        tables: Table descriptors (see State).
        epoch: Epoch of the table rows.
        executables: Executables by bucket.
        stock: The buffers to warm.
        requests: Bound requests.
    """
    whole, largest = sum([bound.rows for bound in requests]), max(executables)
    for n, buffers in enumerate(stock):
        at = 0
        for bucket in sorted(executables, reverse=True):
            for _ in range(-(-whole // largest) if n == 0 and bucket == largest else 1):
                x, _, run = buffers.get(executables[bucket])
                bound, spans, at = _rows_of(requests, at % whole, bucket)
                # The arrays that hold remote rows must outlive the fill.
                batch_tables = remote.batch_tables(tables, epoch, bound, spans) if remote is not None else None
                # A request that was recorded earlier, or for another scaling, is not a fault of this version.
                with suppress(NonFiniteInput):
                    plan.fill(
                        tables if batch_tables is None else batch_tables.tables, epoch, bound, spans, x, buffers.counts
                    )
                run()
        buffers.counts[:] = 0


def _rows_of(requests: Sequence[BoundRequest], at: int, rows: int) -> tuple[list[BoundRequest], NDArray[np.int64], int]:
    """Return rows of the requests, treated as a ring, in the form that fill() accepts, and the position after them.

    Args:
        requests: The bound requests.
        at: Row to start at.
        rows: Number of rows.
    """
    part, spans, n, first = [], [], 0, at
    while first >= requests[n].rows:
        first -= requests[n].rows
        n += 1
    left = rows
    while left:
        bound = requests[n % len(requests)]
        count = min(left, bound.rows - first)
        part.append(bound)
        spans.append((first, count))
        left, first, n = left - count, 0, n + 1
    return part, np.array(spans, np.int64), at + rows


log = logging.getLogger("freshet.replica")

WARM_RUNS = 3
MADV_POPULATE_READ = 22
POPULATED = ("index", "base", "scales")
POPULATE_NBYTES = 256 << 20
WRITTEN_BY_READERS = frozenset({"hits", "ring"})
"""Names of table arrays that sessions also write (processor.tables.tier); other processes map the rest read-only."""

Dense = Mapping[str, NDArray[np.float32]]
Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True, eq=False)
class Frame:
    """A frame, as the writer offers it to its replicas.

    Attributes:
        number: Number of the frame, never reused.
        arrays: For each table the buffers that its kernels walk (table.descriptor).
        dense: Every dense tensor; the same object as long as none has changed.
    """

    number: int
    arrays: tuple[Arrays, ...]
    dense: Dense


class Replicas(Protocol):
    """The replicas of a version in all processes, as its writer sees them."""

    def prepare(self, frame: Frame) -> None:
        """Prepare a frame; return when all replicas can serve it, raise if one cannot. It is not served yet."""

    def preview(
        self, frame: int, epoch: int, generation: Generation, max_rows: int, max_s: float
    ) -> PreviewResult | None:
        """Return the effect of a prepared state on scores (processor.versions.preview), or None if it is unknown.

        Args:
            frame: Number of the prepared frame.
            epoch: Epoch for which rows are staged.
            generation: The new generation.
            max_rows: Maximum number of rows to score.
            max_s: Seconds that the preview may take.
        """

    def example(self) -> Mapping[str, Column | str] | None:
        """Return the inputs of a recently answered request by name, or None; those of another process as JSON text."""

    def forget(self, frame: int, last: int | None = None) -> None:
        """Release the frames before `frame` and those after `last`: no reader uses them.

        Args:
            frame: The first frame to keep.
            last: The last frame to keep; None for the newest.
        """

    def close(self) -> None:
        """Stop serving the version."""

    @property
    def cost(self) -> Mapping[int, float]:
        """Seconds of one run, per bucket."""

    @property
    def computes(self) -> Mapping[int, str]:
        """Backend and precision of each bucket, and why no lower one (processor.backends.opening.OpenedPrograms)."""

    @property
    def user_split_thresholds(self) -> Sequence[int]:
        """Row counts at which splitting a user's requests begins or stops to pay (UserSplitRuntime.thresholds)."""


@dataclass(frozen=True, slots=True, eq=False)
class State:
    """Everything that a batch reads, as of one generation.

    Attributes:
        publish_seq: The flip.
        epoch: Epoch of the table rows.
        generation: The generation that replies name.
        tables: int64 [T, TABLE_FIELDS] (kernels.rows).
        executables: Executables of the whole dense graph, by bucket.
        keep: Arrays that must stay alive while the state is used.
        parts: Executables by role and bucket: the whole graph and its parts (processor.versions.user_split).
    """

    publish_seq: int
    epoch: int
    generation: Generation
    tables: NDArray[np.int64]
    executables: dict[int, Executable]
    keep: tuple[Any, ...]
    parts: Mapping[str, dict[int, Executable]]


@dataclass(frozen=True, slots=True, eq=False)
class PreparedFrame:
    """A frame as this process serves it.

    Attributes:
        tables: int64 [T, TABLE_FIELDS] (kernels.rows).
        executables: Executables by role and bucket.
        keep: Arrays that must stay alive while the frame is used.
    """

    tables: NDArray[np.int64]
    executables: dict[str, dict[int, Executable]]
    keep: tuple[Any, ...]


class Replica:
    """One process's view of a version: prepares states, hands them to sessions, prices its executables."""

    def __init__(
        self,
        files: Package,
        control: ControlWords,
        process: int,
        threads: int,
        clock: Clock,
        cpus: frozenset[int] = frozenset(),
        remote: RemoteTables | None = None,
        runs: int = 1,
    ) -> None:
        """Read the executables' files; raise FreshetError if they cannot be served.

        Args:
            files: The version's files.
            control: The version's control words.
            process: Number of this process.
            threads: Threads that one run may use.
            clock: Source of time.
            cpus: Cores for those threads; any if empty.
            remote: Source of the rows of tables that are not in memory, in this process.
            runs: Number of buffers to have ready and warm before the first request, and of runs of an executable that
                may be in progress at once.
        """
        self.manifest: Manifest = files.manifest
        spec = self.manifest.stage
        self.plan = SparsePlan(self.manifest, load_stage(self.manifest, files.file(spec.file)) if spec else None)
        self.remote = remote.open_reader(self.manifest, self.plan) if remote else None
        self.outputs = {o.name: o.columns for o in self.manifest.outputs}
        divided = division(self.manifest)
        self.user_split = UserSplitRuntime(divided, self.plan) if divided else None
        self.costs = CostTable({1: 1.0})
        # True if a run is mostly computed by the calling thread.
        self.in_thread = False
        self._clock, self._cpus, self._runs = clock, cpus, runs
        self._lending = threading.Lock()
        self._buffer_pool: list[Buffers] = []
        self._borrowed: weakref.WeakSet[Buffers] = weakref.WeakSet()
        self._control, self._pins = control, Pins(control, process)
        self._asking = threading.Lock()
        self._frames: dict[int, PreparedFrame] = {}
        self._newest: State | None = None
        self._dense: Dense | None = None
        self._executables: dict[str, dict[int, Executable]] = {}
        widths: dict[str, tuple[int, Mapping[str, int]]] = {WHOLE: (self.manifest.width, self.outputs)}
        if self.user_split is not None:
            widths |= {role: (part.width, part.outputs) for role, part in self.user_split.parts.items()}
        # A backend's own threads inherit the cores of the thread that starts them.
        with on(cpus):
            opened = {
                role: open_programs(files, width, outputs, threads, runs, role=role)
                for role, (width, outputs) in widths.items()
            }
        self._io_shapes = {role: IoShape(*widths[role], max(part.chosen)) for role, part in opened.items()}
        self._allocate = allocator(e.target for part in opened.values() for e in part.chosen.values())
        self.chosen, self._opened = opened[WHOLE].chosen, opened[WHOLE]
        self._programs: dict[str, list[Program]] = {role: part.programs for role, part in opened.items()}
        self._threads = threads
        self.sample = Preview(self.plan, self.outputs, self._buffers, clock)
        recorded = WARMUP in self.manifest.files
        self._recorded = parse_warmup(files.file(WARMUP), self.manifest.inputs) if recorded else []

    @property
    def cost(self) -> Mapping[int, float]:
        return self.costs.cost

    @property
    def computes(self) -> Mapping[int, str]:
        return self._opened.computes()

    @property
    def user_split_thresholds(self) -> Sequence[int]:
        return self.user_split.thresholds if self.user_split is not None else ()

    @property
    def publish_seq(self) -> int:
        """The flip that is served now. Without a pin it can only be compared with another one."""
        return self._control.publish_seq

    @property
    def generation(self) -> Generation:
        """The generation that is served now."""
        with self._asking, self.pinned(Pins.ASKING) as state:
            return state.generation

    def prepare(self, frame: Frame) -> None:
        """Make the frame ready for the flip.

        New dense weights are packed into new executables beside the live ones, off the GIL, and run a few times, so
        that no request meets a cold one. The first executables, and those whose precision differs from the ones before,
        are priced by these runs, unless the manifest has costs for this very machine. The first frame also runs the
        version's recorded requests.
        """
        if frame.dense is not self._dense:
            first, before = self._dense is None, self.computes
            executables = self._build(frame.dense)
            if first:
                self._buffer_pool = [self._buffers() for _ in range(self._runs)]
            for buffers in self._all_buffers():
                buffers.bind_ahead(executables, run=first)
            costs = self._measure(executables)
            if first or self.computes != before:
                self.costs = CostTable(self._opened.cost(self._threads) or costs[WHOLE])
                if self.user_split is not None:
                    self.user_split.price(costs)
            self._dense, self._executables = frame.dense, executables
        tables = [descriptor(t, arrays) for t, arrays in zip(self.manifest.tables, frame.arrays)]
        keep = tuple(array for arrays in frame.arrays for array in arrays.values())
        matrix = descriptors(tables)
        if not self._frames:
            _populate(frame.arrays)
            self._warm_up(matrix)
        self._frames = self._frames | {frame.number: PreparedFrame(matrix, self._executables, keep)}

    def preview(
        self, frame: int, epoch: int, generation: Generation, max_rows: int, max_s: float
    ) -> PreviewResult | None:
        """Compare scores without reading row stores; return None if a table is in one.

        Args:
            frame: Number of the prepared frame.
            epoch: Epoch for which rows are staged.
            generation: The new generation.
            max_rows: Maximum number of rows to score.
            max_s: Seconds that the preview may take.
        """
        if self.remote is not None:
            return None
        with self.pinned(PREVIEW_READER) as state:
            prepared = self._frames[frame]
            before = PreviewState(state.generation.digest, state.epoch, state.tables, state.executables)
            after = PreviewState(generation.digest, epoch, prepared.tables, prepared.executables[WHOLE])
            return self.sample.look(before, after, self.costs.cost, max_rows, max_s)

    def example(self) -> Mapping[str, Column | str] | None:
        return self.sample.example

    def forget(self, frame: int, last: int | None = None) -> None:
        last = max(self._frames) if last is None else last
        self._frames = {number: prepared for number, prepared in self._frames.items() if frame <= number <= last}
        # It may refer to a frame that is gone; a process without requests would keep that frame forever.
        self._newest = None
        newest = self._frames[max(self._frames)].executables
        if all(prepared.executables is newest for prepared in self._frames.values()):
            for buffers in self._all_buffers():
                buffers.drop_stale_runs(newest)

    def close(self) -> None:
        """Do nothing: requests that hold the replica are still answered, and it is freed with the last of them."""

    def pin(self, reader: int) -> State:
        """Return the newest state, guaranteed whole until this reader's unpin().

        Args:
            reader: A number below READERS.
        """
        publish_seq = self._pins.pin(reader)
        state = self._newest
        if state is None or state.publish_seq != publish_seq:
            state = self._newest = self._state(publish_seq)
        return state

    def unpin(self, reader: int) -> None:
        self._pins.unpin(reader)

    @contextmanager
    def pinned(self, reader: int) -> Iterator[State]:
        try:
            yield self.pin(reader)
        finally:
            self.unpin(reader)

    def _state(self, publish_seq: int) -> State:
        """Return the state of a pinned flip."""
        entry = self._control.entry(publish_seq)
        frame = self._frames[entry.frame]
        generation = Generation(self.manifest.version, entry.step, entry.digest)
        parts = frame.executables
        return State(publish_seq, entry.epoch, generation, frame.tables, parts[WHOLE], frame.keep, parts)

    def borrow_buffers(self) -> Buffers:
        """Return buffers for one session to keep, from the pool while there are any."""
        with self._lending:
            buffers = self._buffer_pool.pop() if self._buffer_pool else self._buffers()
            self._borrowed.add(buffers)
            return buffers

    def _all_buffers(self) -> list[Buffers]:
        with self._lending:
            return [*self._buffer_pool, *self._borrowed]

    def _buffers(self) -> Buffers:
        return Buffers(self._io_shapes, len(self.manifest.tables), len(self.outputs), self._allocate)

    def _warm_up(self, tables: NDArray[np.int64]) -> None:
        """Run the version's recorded requests, or one blank row, before the first request.

        A blank row is not sent to a row store or a stage.
        """
        requests = self._recorded
        if not requests and self.remote is None and self.plan.stage is None:
            requests = [blank_inputs(self.manifest)]
        started_s, bound = self._clock.now_s(), list[BoundRequest]()
        for request in requests:
            # A request recorded before its numbers were rejected is not a fault of the version.
            with suppress(NonFiniteInput):
                bound.append(self.plan.bind_inputs(request))
        if self._recorded and self.remote is None:
            for one in bound:
                self.sample.take(one)
        if bound:
            epoch = self._control.entry(self._control.publish_seq).epoch
            warm_up(self.plan, self.remote, tables, epoch, self._executables[WHOLE], self._buffer_pool, bound)
            log.info(
                "%s version %d is warm: %d requests, %d buckets, %d sessions, %.0f ms",
                self.manifest.model, self.manifest.version, len(bound), len(self._executables[WHOLE]),
                len(self._buffer_pool), (self._clock.now_s() - started_s) * 1e3,
            )  # fmt: skip
        self._recorded = []

    def _build(self, dense: Dense) -> dict[str, dict[int, Executable]]:
        executables: dict[str, dict[int, Executable]] = {}
        with on(self._cpus):
            for role, programs in self._programs.items():
                part: dict[int, Executable] = {}
                for program in programs:
                    part |= program.with_weights(dense)
                executables[role] = dict(sorted(part.items()))
        return executables

    def _measure(self, executables: Mapping[str, Mapping[int, Executable]]) -> dict[str, dict[int, float]]:
        """Return seconds of one run by role and bucket, the best of a few; this also warms the executables.

        Buckets are run in turn, so that other work on the machine does not distort a single one. A first run reads its
        weights from memory; only after some runs do caches hold as much of them as fits. The smallest buckets come
        last, because a run of them does little more than read weights.
        """
        buffers = self._buffers()
        core_s = self._clock.core_s
        cores: dict[tuple[str, int], float] = {}
        slept = 0
        ordered = sorted(((b, role) for role, part in executables.items() for b in part), reverse=True)
        runs = {(role, b): buffers.get(executables[role][b], role)[2] for b, role in ordered}
        costs: dict[str, dict[int, float]] = {role: {} for role in executables}
        now_s = self._clock.now_s
        for _ in range(WARM_RUNS):
            for (role, bucket), run in runs.items():
                before, started_s, had_s = _sleeps(), now_s(), core_s()
                run()
                cores[role, bucket] = max(1e-7, min(cores.get((role, bucket), np.inf), core_s() - had_s))
                costs[role][bucket] = max(1e-7, min(costs[role].get(bucket, np.inf), now_s() - started_s))
                slept += _sleeps() != before
        # If other threads compute, the calling thread sleeps until they are done.
        self.in_thread = 2 * slept < WARM_RUNS * len(runs)
        if self.in_thread:
            for (role, bucket), cost in cores.items():
                costs[role][bucket] = cost
        return costs


def _sleeps() -> float:
    """Return how often this thread has slept; NaN, which differs from itself, if the system does not report it."""
    thread = getattr(resource, "RUSAGE_THREAD", None)
    return math.nan if thread is None else resource.getrusage(thread).ru_nvcsw


def _populate(tables: Sequence[Arrays]) -> None:
    """Map the pages of small tables now, just after the checksums have read them.

    A page that a request touches first costs it half a microsecond. Tables with a memory budget manage their pages
    themselves.
    """
    for arrays in tables:
        for name in () if "ring" in arrays else POPULATED:
            if arrays[name].nbytes <= POPULATE_NBYTES:
                advise(arrays[name], MADV_POPULATE_READ)
