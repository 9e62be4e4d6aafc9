"""A loaded version and the life of its deltas: stage, flip, reclaim, undo.

Who owns what. One writer at a time (the lock) moves a version from state to state. Readers are sessions: each owns
one slot of `pins` and may only pin() before a batch and unpin() after it.

What may never be seen
- Half a delta. A state is immutable and names everything a batch reads: the epoch, the tables' descriptor, the
  executables with their weights. Publishing it is one attribute store; a reader takes one state for a whole batch,
  for every part of a split request, and so for every reply.
- A row that is being reused. pin() writes the state's flip number before it reads anything, and confirms that the
  state is still the newest; the writer reuses a slot only when every pin has reached the flip the slot waits for.
- An unverified byte: chain, checksums, shapes and finiteness are checked, and new executables built, before any
  change. What can still fail after that (a full arena) leaves the state as it was.

What it costs. A flip is O(delta) for rows. New dense weights cost one re-pack in the writer's thread, off
the GIL, before the flip. Rollback costs O(rows of the deltas undone), plus a re-pack where dense tensors change back.
The undo log keeps keys and slots of the last `undo_depth` deltas, and the dense tensors that they replaced.

Refused: locks or reference counts on the read path; one copy of the model per version of it; undoing by re-reading
old delta files (they may be gone).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from processor.backends import load_backend
from processor.backends.base import Artefact, Executable
from processor.clock import Clock
from processor.cost import CostTable
from processor.errors import Corrupt, NotReady
from processor.generation import Chain, Generation
from processor.package.delta import Delta
from processor.package.manifest import Executable as ExecutableEntry
from processor.package.manifest import Manifest
from processor.package.version import VersionReader, table_file
from processor.sparse import SparsePlan
from processor.stores.remote import RemoteTables
from processor.stores.table import RemoteTable
from processor.table import ServedTable, Versions

IDLE = np.iinfo(np.int64).max
GRACE_POLL_S = 0.0002
GRACE_TIMEOUT_S = 60.0
CALIBRATION_RUNS = 3

Dense = dict[str, NDArray[np.float32]]


@dataclass(frozen=True, slots=True, eq=False)
class State:
    """Everything a batch reads, as of one generation. tables: int64 [T, 8] (kernels.pool)."""

    flip: int
    epoch: int
    generation: Generation
    tables: NDArray[np.int64]
    executables: dict[int, Executable]
    keep: tuple[Any, ...]


@dataclass(slots=True)
class Undo:
    """What it takes to go back over one delta."""

    epoch: int
    versions: dict[str, Versions]
    dense: Dense
    published_at: float
    event_time: tuple[float, float] | None
    checksum: str


class ServedVersion:
    """One version in memory: pinned by sessions, moved along its chain of deltas by one writer."""

    def __init__(
        self,
        reader: VersionReader,
        sessions: int,
        threads: int,
        undo_depth: int,
        clock: Clock,
        remote: RemoteTables | None = None,
    ) -> None:
        """Loads and verifies the version; raises FreshetError when it cannot be served. Files of remote tables are
        not opened: the row store vouches for their checksum."""
        self.manifest: Manifest = reader.manifest
        self.reader = reader
        self.lock = threading.RLock()
        self.pins = np.full(sessions, IDLE, np.int64)
        self._clock = clock
        self._threads = threads
        self.plan = SparsePlan(self.manifest)
        elsewhere = remote.names(self.manifest) if remote else []
        self.remote = remote.open(self.manifest, self.plan) if remote else None
        reader.verify(self.manifest.files.keys() - {table_file(name) for name in elsewhere})
        self.outputs = {o.name: o.columns for o in self.manifest.outputs}
        self.tables: dict[str, ServedTable] = {
            t.name: RemoteTable(t) if t.name in elsewhere else ServedTable(t, reader.tensors(table_file(t.name)))
            for t in self.manifest.tables
        }
        self.dense: Dense = reader.dense()
        self._artefacts: dict[str, list[Artefact]] = {}
        for entry in chosen(self.manifest):
            artefact = Artefact(entry.bucket, reader.file(entry.file), entry.weights)
            self._artefacts.setdefault(entry.backend, []).append(artefact)
        self.chain = Chain(self.manifest.model, self.manifest.version, undo_depth)
        self._undo: list[Undo] = []
        self._epoch = 0
        self.published_at = self.manifest.created_at
        times = self.manifest.event_time
        self.event_time = (times[0], times[1]) if times else None
        self.checksum = ""
        self.delta_count = self.delta_rows = 0
        self.last_apply_ms = self.last_freshness_s = 0.0
        self._executables = self._build(self.dense)
        self.costs = CostTable(
            {b: _measure(e, self.plan.width, self.outputs, clock) for b, e in self._executables.items()}
        )
        self.state = self._state(flip=1)

    @property
    def generation(self) -> Generation:
        return self.state.generation

    def pin(self, session: int) -> State:
        """The newest state, guaranteed whole until this session's unpin()."""
        while True:
            state = self.state
            self.pins[session] = state.flip
            if self.state is state:
                return state

    def unpin(self, session: int) -> None:
        self.pins[session] = IDLE

    @contextmanager
    def pinned(self, session: int) -> Iterator[State]:
        try:
            yield self.pin(session)
        finally:
            self.unpin(session)

    def check(self, delta: Delta) -> None:
        """Raises BadInput or Conflict unless the delta continues this version's chain and fits its shapes."""
        self.chain.check(delta.model, delta.version, delta.step, delta.parent_step, delta.compacted)
        delta.check(self.manifest)

    def apply(self, delta: Delta, *, keep: Callable[[], None] = lambda: None, serve: bool = True) -> float:
        """Takes the version to the delta's step; returns milliseconds from the call until every session serves it.

        keep: called once the delta is verified and before anything changes, to make it durable. serve=False leaves
        the executables as they are, for a run of deltas at start-up that ends with refresh().
        """
        started_s = self._clock.now_s()
        with self.lock:
            self.check(delta)
            keep()
            dense = self.dense | delta.dense
            executables = self._build(dense) if delta.dense and serve else self._executables
            flip = self.state.flip + 1
            self._reclaim()
            versions = self._stage(delta)
            replaced = {name: self.dense[name] for name in delta.dense}
            undo = Undo(self._epoch, versions, replaced, self.published_at, self.event_time, self.checksum)
            self._undo.append(undo)
            self._epoch += 1
            self.dense, self._executables = dense, executables
            self.published_at, self.checksum = delta.published_at, delta.checksum
            self.event_time = delta.event_time or self.event_time
            excess = self.chain.advance(delta.step)
            self.state = self._state(flip)
            for old in self._undo[:excess]:
                for name, table_versions in old.versions.items():
                    self.tables[name].retire(table_versions, flip + 1)
            del self._undo[:excess]
            self.wait_readers(flip)
            self.delta_count += 1
            self.delta_rows += delta.rows
            self.last_freshness_s = max(0.0, self._clock.unix_s() - delta.published_at)
            self.last_apply_ms = (self._clock.now_s() - started_s) * 1e3
            return self.last_apply_ms

    def refresh(self) -> None:
        """Builds the executables for the current dense weights, after deltas applied with serve=False."""
        with self.lock:
            self._executables = self._build(self.dense)
            self.state = self._state(self.state.flip + 1)

    def can_undo(self, step: int) -> bool:
        return self.chain.undo_count(step) is not None

    def rollback(self, step: int) -> None:
        """Serves an earlier step again; returns when every session does. The caller has asked can_undo()."""
        with self.lock:
            count = self.chain.undo_count(step)
            if count is None:
                raise NotReady(f"generation {self.manifest.version}.{step} is beyond the undo log")
            if count == 0:
                return
            undone = self._undo[-count:]
            dense = dict(self.dense)
            for entry in reversed(undone):
                dense |= entry.dense
            executables = self._build(dense) if any(u.dense for u in undone) else self._executables
            flip = self.state.flip + 1
            newest_epoch, self._epoch = self._epoch, undone[0].epoch
            self.dense, self._executables = dense, executables
            self.published_at, self.event_time, self.checksum = (
                undone[0].published_at,
                undone[0].event_time,
                undone[0].checksum,
            )
            self.chain.rewind(count)
            self.state = self._state(flip)
            self.wait_readers(flip)
            for entry in reversed(undone):
                for name, versions in entry.versions.items():
                    self.tables[name].undo(versions, flip + 1)
            del self._undo[-count:]
            # Slots that a late reader still names carry old epochs: none may ever be given out again.
            self._epoch = newest_epoch
            self.state = self._state(flip + 1)

    def wait_readers(self, flip: int) -> None:
        """Returns when no session is pinned to a state older than `flip`."""
        give_up_s = self._clock.now_s() + GRACE_TIMEOUT_S
        while int(self.pins.min()) < flip:
            if self._clock.now_s() > give_up_s:
                raise NotReady("a session has not finished its batch within a minute")
            time.sleep(GRACE_POLL_S)

    def export(self) -> tuple[dict[str, tuple[NDArray[np.int64], NDArray[np.float32]]], Dense]:
        """The whole model as of the served generation: per table ascending keys and rows, and the dense tensors."""
        with self.lock:
            return {name: t.export(self.state.epoch) for name, t in self.tables.items()}, dict(self.dense)

    def memory(self) -> dict[str, int]:
        """Bytes by part: mapped rows, index, arena, dense."""
        parts = {"dense": sum(a.nbytes for a in self.dense.values())}
        for table in self.tables.values():
            for part, nbytes in table.nbytes.items():
                parts[part] = parts.get(part, 0) + nbytes
        return parts

    def _stage(self, delta: Delta) -> dict[str, Versions]:
        done: dict[str, Versions] = {}
        try:
            for name, changes in delta.tables.items():
                done[name] = self.tables[name].apply(changes, self._epoch + 1)
        except BaseException:
            # Nothing was flipped: no reader sees epoch + 1, so what was staged can be taken back at once.
            for name, versions in done.items():
                self.tables[name].undo(versions, self.state.flip + 1)
            self._epoch += 1
            raise
        return done

    def _reclaim(self) -> None:
        oldest = min(int(self.pins.min()), self.state.flip)
        for table in self.tables.values():
            table.reclaim(oldest)

    def _state(self, flip: int) -> State:
        tables = np.array([t.descriptor() for t in self.tables.values()], np.int64).reshape(len(self.tables), -1)
        if not self.tables:
            tables = np.zeros((1, 8), np.int64)
        keep = tuple(buffer for t in self.tables.values() for buffer in t.buffers)
        generation = Generation(self.manifest.version, self.chain.step)
        return State(flip, self._epoch, generation, tables, self._executables, keep)

    def _build(self, dense: Dense) -> dict[int, Executable]:
        executables: dict[int, Executable] = {}
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
