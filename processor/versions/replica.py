"""Reader side of a loaded version in one process: what sessions pin, and the executables that they run.

A version has one writer (processor.versions.served_version) and one Replica in every process that answers requests: the
writer's own process if it is the only one, else each worker. They share the tables' buffers and the control words
(processor.versions.control).

What a batch reads has two parts. The frame (tables' buffers and executables) has to be mapped or packed: every replica
prepares it before a flip names it. The numbers (epoch and step) are read from the control words by the reader that pins
the flip. Most flips bring new numbers over an existing frame.

Invariants
- A flip's state is made by the first reader that pins it, from the flip's entry and its frame; both stay valid as long
  as the pin. Two readers may make the same state; the two are equal.
- A frame is forgotten only when no pin of this process names a flip under it, together with the state cached for the
  next reader.

Warm-up: before the first request, the version's recorded requests run through every bucket of every session's own
buffers, so that no request meets cold pages, kernels or caches. This runs in the thread that makes changes, on buffers
that no session has yet, and is not counted.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.backends import Executable, Program, allocator
from freshet_serving.processor.clock import Clock
from freshet_serving.processor.columns import Column
from freshet_serving.processor.cores import on
from freshet_serving.processor.counter_block import Snapshot, merged
from freshet_serving.processor.features.bound_request import BoundRequest, NonFiniteInput
from freshet_serving.processor.features.input_lookup import NO_LOOKUPS, InputLookups
from freshet_serving.processor.features.input_reader import blank_inputs
from freshet_serving.processor.features.plan import SparsePlan
from freshet_serving.processor.generation import Generation
from freshet_serving.processor.memory import advise
from freshet_serving.processor.package import Manifest
from freshet_serving.processor.ports import ENGINE
from freshet_serving.processor.repository import WARMUP
from freshet_serving.processor.running import OpenedPrograms, Package, open_programs
from freshet_serving.processor.running.buffers import Buffers, BufferSize
from freshet_serving.processor.running.cost import CostTable
from freshet_serving.processor.running.graph_run import PRICED, GraphRun
from freshet_serving.processor.running.run_limit import endable
from freshet_serving.processor.running.warm_up import measure, warm_up
from freshet_serving.processor.tables.table import descriptor, descriptors
from freshet_serving.processor.versions.control import PREVIEW_READER, ControlWords, Pins
from freshet_serving.processor.versions.sample import RequestSample
from freshet_serving.processor.watching import PreviewResult, RequestScores

if TYPE_CHECKING:
    from freshet_serving.processor.running.placed_rows import PlacedRows
    from freshet_serving.processor.running.split_choice import SplitCost
    from freshet_serving.processor.running.user_states import ProcessStates, UserStates, WeightedStates
    from freshet_serving.processor.tables.remote_rows import RemoteTables
    from freshet_serving.processor.versions.row_scoring import RowScorer

log = logging.getLogger("freshet.replica")

MADV_POPULATE_READ = 22
POPULATED = ("index", "base", "scales")
POPULATE_NBYTES = 256 << 20
WRITTEN_BY_READERS = frozenset({"hits", "ring"})
"""Names of table arrays that sessions also write (processor.tables.tier); other processes map the rest read-only."""

Dense = Mapping[str, NDArray[np.float32]]
Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True, eq=False)
class Frame:
    """A frame, with a number that is never reused, as the writer offers it to its replicas.

    `arrays` are each table's buffers (table.descriptor); `dense` is the same object as long as no tensor has changed.
    """

    number: int
    arrays: tuple[Arrays, ...]
    dense: Dense


class Replicas(Protocol):
    """The replicas of a version in all processes, as its writer sees them."""

    def prepare(self, frame: Frame) -> None:
        """Prepare a frame that is not served yet; return when all replicas can serve it, raise if one cannot."""

    def preview(
        self, frame: int, epoch: int, generation: Generation, max_rows: int, max_s: float
    ) -> PreviewResult | None:
        """Return a prepared state's effect on scores (processor.versions.row_scoring), or None if it is unknown."""

    def kept(self) -> bytes:
        """Return recently answered requests (RowScorer.kept); b"" if there are none."""

    def remember(self, requests: bytes) -> None:
        """Keep requests until there are enough newer ones; those that the version cannot read are left out."""

    def score(self, requests: bytes, max_s: float) -> RequestScores | None:
        """Return the scores of kept requests (of any version) under the newest state, within max_s, or None."""

    def example(self) -> Mapping[str, Column | str] | None:
        """Return the inputs of a recently answered request, or None; those of another process as JSON text."""

    def forget(self, frame: int, last: int | None = None) -> None:
        """Release the frames before `frame` and after `last` (None: the newest): no reader uses them."""

    def close(self) -> None:
        """Stop serving the version."""

    @property
    def cost(self) -> Mapping[int, float]:
        """Seconds of one run, per bucket."""

    @property
    def computes(self) -> Mapping[int, str]:
        """Backend and precision of each bucket, and why no lower one (OpenedPrograms)."""

    @property
    def user_split_thresholds(self) -> Sequence[int]:
        """Row counts at which splitting a user's requests begins or stops to pay (GraphRun.thresholds)."""

    @property
    def splits(self) -> Sequence[SplitCost]:
        """Costs of requests whole and divided, and the way they take; none without a user/candidate split."""


@dataclass(frozen=True, slots=True, eq=False)
class State:
    """Everything that a batch reads, as of one generation.

    Attributes:
        tables: int64 [T, TABLE_FIELDS] (kernels.rows).
        executables: By subgraph and bucket.
        arrays: Each table's arrays, which must stay alive while the state is used.
        users: Cached user parts; None without such a cache.
    """

    publish_seq: int
    epoch: int
    generation: Generation
    tables: NDArray[np.int64]
    executables: Mapping[str, dict[int, Executable]]
    arrays: tuple[Arrays, ...]
    users: UserStates | None = None


@dataclass(frozen=True, slots=True, eq=False)
class PreparedFrame:
    """A frame as this process serves it; fields as in State."""

    tables: NDArray[np.int64]
    executables: dict[str, dict[int, Executable]]
    arrays: tuple[Arrays, ...]
    users: WeightedStates | None


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
        lookups: InputLookups = NO_LOOKUPS,
        states: ProcessStates | None = None,
        device_nbytes: int = 0,
    ) -> None:
        """Read the executables' files; raise FreshetError if they cannot be served.

        Args:
            threads: Threads that one run may use, on these cores or any.
            runs: Number of buffers to have warm before the first request, and of concurrent runs of an executable.
            states: Cache of user parts in this process.
            device_nbytes: Memory of a device for rows of tables; 0 for none.
        """
        self.manifest: Manifest = files.manifest
        self.model = files.manifest.model
        spec = self.manifest.stage
        stage = growth = None
        if spec is not None:
            # Loaded with the first version that has a stage.
            from freshet_serving.processor.features.growth_meter import growth_of
            from freshet_serving.processor.features.stage import load_stage

            data = files.file(spec.file)
            stage = load_stage(self.manifest, data)
            growth = growth_of(self.manifest, stage, data)
        self.plan = SparsePlan(self.manifest, stage, growth)
        self.remote = remote.open_reader(self.manifest, self.plan) if remote else None
        self.lookup = lookups.of(self.manifest)
        # Rows outside of the process have no stamps.
        self._states = (
            None if states is None else states.of(self.manifest, self.plan, control.load, self.remote is None)
        )
        self._users: WeightedStates | None = None
        self.outputs = {o.name: o.columns for o in self.manifest.outputs}
        self.graphs = GraphRun(self.manifest, self.plan)
        self._clock, self._cpus, self._runs = clock, cpus, runs
        self._lending = threading.Lock()
        self._buffer_pool: list[Buffers] = []
        self._borrowed: weakref.WeakSet[Buffers] = weakref.WeakSet()
        self._control, self._pins = control, Pins(control, process)
        self._asking, self._previewing = threading.Lock(), threading.Lock()
        self._frames: dict[int, PreparedFrame] = {}
        self._newest: State | None = None
        self._dense: Dense | None = None
        self._executables: dict[str, dict[int, Executable]] = {}
        # A backend's own threads inherit the cores of the thread that starts them.
        with on(cpus):
            opened = {
                name: open_programs(files, run.spec, threads, runs, subgraph=name)
                for name, run in self.graphs.by_name.items()
            }
        self._placed = self._place(files, opened, device_nbytes) if device_nbytes else None
        self._sizes = {n: BufferSize(self.graphs.by_name[n].spec, max(part.chosen)) for n, part in opened.items()}
        self._allocate = allocator(e.target for part in opened.values() for e in part.chosen.values())
        self._opened = opened[self.graphs.undivided.name]
        # The key of its costs, and the key under which they were last published.
        self._priced_as: Hashable = None
        self._graphs = tuple([f"{name} {graph}" for name, part in opened.items() for graph in part.graphs])
        # Only these may run a bucket by something else when the weights change.
        self._bounded = {name: part.bounded for name, part in opened.items() if part.bounded is not None}
        self.chosen = self._opened.chosen
        self._programs: dict[str, Sequence[Program]] = {name: part.programs for name, part in opened.items()}
        if self._placed is not None:
            self._programs |= {name: [program] for name, program in self._placed.programs.items()}
        self._threads = threads
        # A partial: a bound method kept by the scorer would make a cycle, and an unloaded version's memory would stay
        # until the garbage collector looks at the oldest objects.
        self._new_buffers = partial(Buffers, self._sizes, len(self.manifest.tables), len(self.outputs), self._allocate)
        self.sample = RequestSample(clock, self.manifest.model)
        create = ENGINE.only("scorer")
        self._scorer: RowScorer | None = (
            create(self.graphs.undivided, self.plan, self.sample, self._new_buffers, clock) if create else None
        )
        self._recorded: list[Mapping[str, Column]] = []
        if WARMUP in self.manifest.files:
            from freshet_serving.processor.repository import parse_warmup

            self._recorded += parse_warmup(files.file(WARMUP), self.manifest.inputs)

    @property
    def costs(self) -> CostTable:
        """Costs for everything that plans ahead."""
        return self.graphs.costs

    @property
    def cost(self) -> Mapping[int, float]:
        """Seconds of one run of the undivided subgraph by bucket."""
        return self.graphs.undivided.costs.cost

    @property
    def computes(self) -> Mapping[int, str]:
        return self._opened.computes()

    @property
    def user_split_thresholds(self) -> Sequence[int]:
        return self.graphs.thresholds

    @property
    def splits(self) -> Sequence[SplitCost]:
        return self.graphs.split.costs() if self.graphs.split is not None else ()

    @property
    def publish_seq(self) -> int:
        """The served flip. Without a pin it can only be compared with another one."""
        return self._control.publish_seq

    @property
    def generation(self) -> Generation:
        with self._asking, self.pinned(Pins.ASKING) as state:
            return state.generation

    def prepare(self, frame: Frame) -> None:
        """Make the frame ready for the flip.

        New dense weights are packed into new executables beside the live ones, off the GIL, and run once, so that no
        request meets a cold one. The first executables, and those of another precision than before, are priced by a few
        runs, unless the manifest has costs for this very machine or a loaded version has the same programs. The first
        frame also runs the version's recorded requests.
        """
        if self._placed is not None and self._dense is None:
            self._placed.load(frame.arrays)
        if frame.dense is not self._dense:
            first, before = self._dense is None, self._fallbacks()
            executables = self._build(frame.dense)
            if first:
                self._buffer_pool = [self._new_buffers() for _ in range(self._runs)]
            for buffers in self._all_buffers():
                buffers.bind_ahead(executables, run=first)
            after, undivided = self._fallbacks(), self.graphs.undivided.name
            if first or after.get(undivided) != before.get(undivided):
                self._price(executables)
            else:
                with self._unused_buffers() as buffers:
                    buffers.bind_ahead(executables, run=True)
            if first or after != before:
                self.graphs.endable = endable(executables)
            if self._states is not None:
                self._users = self._states.weighted(frame.dense)
            self._dense, self._executables = frame.dense, executables
        tables = [descriptor(t, arrays) for t, arrays in zip(self.manifest.tables, frame.arrays)]
        matrix = descriptors(tables)
        if not self._frames:
            _populate(frame.arrays)
            self._warm_up(matrix)
        prepared = PreparedFrame(matrix, self._executables, frame.arrays, self._users)
        self._frames = self._frames | {frame.number: prepared}

    def _price(self, executables: Mapping[str, dict[int, Executable]]) -> None:
        """Price the executables by running them, or take the costs of a loaded version with the same programs."""
        key = (*self._graphs, self._threads, *((name, *sorted(back)) for name, back in self._fallbacks().items()))
        priced = PRICED.get(key)
        if priced is not None and priced is not self.graphs:
            self.graphs.take_over(priced)
        else:
            costs, self.graphs.in_thread = measure(executables, self._new_buffers(), self._clock)
            # Stored costs are of executables that read rows which the host has pooled.
            self.graphs.price(costs, None if self._placed else self._opened.cost(self._threads))
        if self._priced_as is not None and PRICED.get(self._priced_as) is self.graphs:
            del PRICED[self._priced_as]
        self._priced_as, PRICED[key] = key, self.graphs

    def counted(self) -> Snapshot:
        """Return the counters of remote tables, input lookups, user states and rows on a device."""
        return merged(
            part.counted() for part in (self.remote, self.lookup, self._states, self._placed) if part is not None
        )

    def preview(
        self, frame: int, epoch: int, generation: Generation, max_rows: int, max_s: float
    ) -> PreviewResult | None:
        """Compare scores; None if a table is in a row store (which is not read), or nothing here scores."""
        if self.remote is not None or self._scorer is None:
            return None
        # Loaded where something scores, here and below.
        from freshet_serving.processor.versions.row_scoring import PreviewState

        with self._previewing, self.pinned(PREVIEW_READER) as state:
            prepared = self._frames[frame]
            name = self.graphs.undivided.name
            before = PreviewState(state.generation.digest, state.epoch, state.tables, state.executables[name])
            after = PreviewState(generation.digest, epoch, prepared.tables, prepared.executables[name])
            return self._scorer.compare(before, after, self.cost, max_rows, max_s)

    def kept(self) -> bytes:
        names = {i.name for i in self.manifest.read_inputs} | {entity.key for entity in self.manifest.entities}
        return self._scorer.kept(names) if self._scorer else b""

    def remember(self, requests: bytes) -> None:
        if self.remote is None and self._scorer is not None:
            self._scorer.remember(requests)

    def score(self, requests: bytes, max_s: float) -> RequestScores | None:
        """Score requests; None if a table is in a row store (which is not read), or nothing here scores."""
        if self.remote is not None or self._scorer is None:
            return None
        from freshet_serving.processor.versions.row_scoring import PreviewState

        with self._previewing, self.pinned(PREVIEW_READER) as pinned:
            executables = pinned.executables[self.graphs.undivided.name]
            state = PreviewState(pinned.generation.digest, pinned.epoch, pinned.tables, executables)
            return self._scorer.score(requests, state, self.cost, max_s)

    def example(self) -> Mapping[str, Column | str] | None:
        return self.sample.example

    def forget(self, frame: int, last: int | None = None) -> None:
        last = max(self._frames) if last is None else last
        self._frames = {number: prepared for number, prepared in self._frames.items() if frame <= number <= last}
        # It may refer to a released frame, which a process without requests would keep forever.
        self._newest = None
        newest = self._frames[max(self._frames)].executables
        if all(prepared.executables is newest for prepared in self._frames.values()):
            for buffers in self._all_buffers():
                buffers.drop_stale_runs(newest)

    def close(self) -> None:
        """Do nothing: requests that hold the replica are still answered; the last of them frees it."""

    def pin(self, reader: int) -> State:
        """Return the newest state, guaranteed whole until this reader's unpin(); reader < READERS."""
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
        entry = self._control.entry(publish_seq)
        frame = self._frames[entry.frame]
        generation = Generation(self.manifest.version, entry.step, entry.digest)
        users = None if frame.users is None else frame.users.at(publish_seq, entry.step, self._control.turn)
        return State(publish_seq, entry.epoch, generation, frame.tables, frame.executables, frame.arrays, users)

    def borrow_buffers(self) -> Buffers:
        """Return buffers for one session to keep, from the pool while it has any."""
        with self._lending:
            buffers = self._buffer_pool.pop() if self._buffer_pool else self._new_buffers()
            self._borrowed.add(buffers)
            return buffers

    @contextmanager
    def _unused_buffers(self) -> Iterator[Buffers]:
        with self._lending:
            stocked = self._buffer_pool.pop() if self._buffer_pool else None
        try:
            yield stocked or self._new_buffers()
        finally:
            if stocked is not None:
                with self._lending:
                    self._buffer_pool.append(stocked)

    def _all_buffers(self) -> list[Buffers]:
        with self._lending:
            return [*self._buffer_pool, *self._borrowed]

    def _warm_up(self, tables: NDArray[np.int64]) -> None:
        """Run the recorded requests, or one blank row (not sent to a row store or stage), before the first request."""
        requests = self._recorded
        if not requests and self.remote is None and self.plan.stage is None:
            requests = [blank_inputs(self.manifest)]
        started_s, bound = self._clock.now_s(), list[BoundRequest]()
        for request in requests:
            # A request recorded before its numbers were rejected is not a fault of the version.
            with suppress(NonFiniteInput):
                bound.append(self.plan.bind_inputs(request))
                if self._recorded and self.remote is None:
                    self.sample.take(bound[-1], request)
        if bound:
            epoch = self._control.entry(self._control.publish_seq).epoch
            run = self.graphs.undivided
            executables = self._executables[run.name]
            warm_up(run, self.remote, tables, epoch, executables, self._buffer_pool, bound)
            log.info(
                "%s version %d is warm: %d requests, %d buckets, %d sessions, %.0f ms",
                self.manifest.model, self.manifest.version, len(bound), len(executables),
                len(self._buffer_pool), (self._clock.now_s() - started_s) * 1e3,
            )  # fmt: skip
        self._recorded = []

    def _place(self, files: Package, opened: Mapping[str, OpenedPrograms], nbytes: int) -> PlacedRows | None:
        """Place rows on the device that runs the version, if one does; None where they stay in memory."""
        create = ENGINE.only("device_rows") if self.remote is None else None
        placed: PlacedRows | None = create(files, self.graphs, self.plan, opened, nbytes) if create else None
        for name, inputs in placed.inputs.items() if placed is not None else ():
            self.graphs.by_name[name].place(inputs)
        return placed

    def _fallbacks(self) -> dict[str, Mapping[int, str]]:
        """Return, by subgraph, the buckets of a lower precision that float32 serves with the newest weights."""
        return {name: bounded.back for name, bounded in self._bounded.items()}

    def _build(self, dense: Dense) -> dict[str, dict[int, Executable]]:
        executables: dict[str, dict[int, Executable]] = {}
        with on(self._cpus) if self._cpus else nullcontext():
            for name, programs in self._programs.items():
                part: dict[int, Executable] = {}
                for program in programs:
                    part |= program.with_weights(dense)
                executables[name] = dict(sorted(part.items()))
        return executables


def _populate(tables: Sequence[Arrays]) -> None:
    """Map the pages of small tables without a budget after the checksums have read them: half a microsecond each."""
    for arrays in tables:
        for name in () if "ring" in arrays else POPULATED:
            if arrays[name].nbytes <= POPULATE_NBYTES:
                advise(arrays[name], MADV_POPULATE_READ)
