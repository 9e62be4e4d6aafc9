"""Writer side of a loaded version: stage, flip, reclaim and undo deltas. Reader side: processor.versions.replica.

One writer at a time (the lock) moves a version from state to state. Each reader, a session of this process or of a
worker, owns one word of `control`: it pins before a batch and unpins after it.

Readers must never see
- Half a delta. A state is immutable and names everything that a batch reads: the epoch, the tables' buffers, the
  executables with their weights. Every reading process prepares its frame (buffers and executables) first; then one
  store to the control words publishes the state. A whole batch, and every part of a split request, uses one state.
- A row that is being reused. A pin is announced before anything is read, and confirmed against the flip. The writer
  reuses a slot only when every pin has reached the flip that the slot waits for.
- A flip without a free entry. The control words have room for all flips of a change before it begins. A reader that
  stands still for ENTRIES flips holds up the next change, which is refused after a minute; the reader's state stays.
- A refused change. A change that fails at any point (no memory, thread or descriptor) is undone before the lock is
  released. What this needs is allocated before the first row is published, and an epoch is never used twice. `torn` is
  set before the first step that must be completed, and cleared when the change or its undoing is complete. If the undo
  fails too, `torn` stays set: what is served is still whole (the rows left over have an epoch that no reader uses), but
  a further change would expose them. So damage() reports it, and the version is loaded again from its log.
- A lock held forever. Work beside the writer runs on a standby thread (processor.standby_thread), or in the writer
  without one; no thread is created here.
- A state that a crash would lose. An upload's file is made durable while its rows are staged, then its record is
  written, then it is served. What cannot be recorded is undone.
- An unverified byte. Checksums are verified where the file is read (processor.package.delta); parent, names, shapes and
  finiteness here, before any change. What can fail later (a full arena, executables that cannot be built from the new
  weights) leaves the state as it was. Only tables' rows are read from mapped files, which are checked periodically
  (damage()): if one has changed, the caller unloads the version.

Costs: a flip is O(delta) for rows, and readers are contacted only about a new frame: an index that has grown or new
dense weights. Those cost one re-pack in each reading process, off the GIL, before the flip. The writer waits twice for
the disk, for a file and its folder: on busy cores a quarter of the time until a small delta is served. Then it waits
for the batches under the state before, polling with an eighth of the time waited so far: it waits at most an eighth too
long. Rollback costs O(rows of the deltas undone), plus a re-pack if dense tensors change back. The undo log keeps keys
and slots of the last `undo_depth` deltas, and the dense tensors that they replaced.

Rejected: locks or reference counts on the read path; a copy of the model per generation; undoing by re-reading old
delta files (they may be gone).
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.clock import Clock
from freshet_serving.processor.errors import NotReady, first_of
from freshet_serving.processor.features.sources import paired_tables
from freshet_serving.processor.generation import Generation, Position
from freshet_serving.processor.memory import gather
from freshet_serving.processor.package import Delta, Manifest, TableEntry
from freshet_serving.processor.repository import DENSE, SIZES, VersionReader, delta_digest, root_digest, table_file
from freshet_serving.processor.running import executable_files
from freshet_serving.processor.standby_thread import BackgroundTask, StandbyThread
from freshet_serving.processor.tables.table import RowVersions, ServedTable
from freshet_serving.processor.versions.changes import PastState, StateChange, UndoEntry
from freshet_serving.processor.versions.control import ControlEntry, ControlWords
from freshet_serving.processor.versions.replica import Arrays, Dense, Frame, Replicas
from freshet_serving.processor.versions.row_watchers import FIRST_SLICES, DerivedState, RowWatchers
from freshet_serving.processor.watching import LONG_S, SHORT_S, Histogram, PreviewResult

if TYPE_CHECKING:
    from freshet_serving.processor.tables.budgets import Budgets

FIRST_LOOK_S, LAST_LOOK_S, LOOK_PART = 0.0001, 0.002, 1 / 8
GRACE_TIMEOUT_S = 60.0
FLIPS = 2
"""Maximum number of flips of one change."""
TORN = "change: one failed and could not be undone because memory ran out"
STAMPS = 1 << 14
"""Number of newest deltas for which the step of an epoch is remembered."""


class ServedVersion:
    """One version in memory, moved along its log of deltas by one writer; read through `replicas` once open."""

    def __init__(
        self,
        files: VersionReader,
        undo_depth: int,
        clock: Clock,
        processes: int = 1,
        remote: Mapping[str, ServedTable] = MappingProxyType({}),
        budgets: Budgets | None = None,
        beside: StandbyThread | None = None,
    ) -> None:
        """Load and verify the version; raise FreshetError if it cannot be served.

        Deltas may be applied before attach_replicas(). Files of remote tables are neither opened nor verified; budgets
        are enforced by maintain().
        """
        self.manifest: Manifest = files.manifest
        self.files = files
        self.lock = threading.RLock()
        self.control = ControlWords.reserve(processes)
        self._clock = clock
        self._replicas: Replicas | None = None
        self._beside = beside
        self._closed = self._torn = False
        # Dense weights and executables are verified where they are read: a damaged one may have a replacement.
        elsewhere = {table_file(name) for name in remote} | executable_files(self.manifest) | {DENSE}
        files.verify(self.manifest.files.keys() - elsewhere)
        tensors = {t.name: files.tensors(table_file(t.name)) for t in self.manifest.tables if t.name not in remote}
        self.tables: dict[str, ServedTable] = {
            t.name: remote[t.name] if t.name in remote else self._open(t, tensors[t.name], budgets)
            for t in self.manifest.tables
        }
        self._watchers = RowWatchers(files, self.tables, tensors)
        self.dense: Dense = files.dense()
        snapshot = files.snapshot
        step = snapshot.step if snapshot else 0
        self.position = Position(self.manifest.model, self.manifest.version, undo_depth, step)
        digest = snapshot.digest if snapshot else root_digest(files.root_manifest)
        self._undo: list[UndoEntry] = []
        self._epoch = 0
        self._stamps: dict[int, int] = {}
        self.published_at = snapshot.published_at if snapshot else self.manifest.created_at
        times = (snapshot or self.manifest).event_time
        self.event_time = (times[0], times[1]) if times else None
        self.delta_count = self.delta_rows = self.delta_nbytes = 0
        # Per delta: seconds to apply it, and its age and that of its newest event when it was served.
        self.apply_s, self.age_s, self.event_age_s = Histogram(SHORT_S), Histogram(LONG_S), Histogram(LONG_S)
        self.last_apply_ms = self.last_freshness_s = 0.0
        self.change = StateChange(
            0, 0, Generation(self.manifest.version, step, digest), Frame(0, self._arrays(), self.dense)
        )
        self.control.publish(0, ControlEntry.of(0, 0, self.change.generation))
        self._frames = self._forgotten = 0

    def _open(self, spec: TableEntry, arrays: dict[str, NDArray[Any]], budgets: Budgets | None) -> ServedTable:
        filtered = spec.name in paired_tables(self.manifest)
        if budgets is None or not (nbytes := budgets.of(self.manifest.model, spec.name)):
            return ServedTable(spec, arrays, filtered=filtered)
        return ServedTable(spec, arrays, budget_nbytes=nbytes, scratch=budgets.scratch, filtered=filtered)

    @property
    def generation(self) -> Generation:
        return self.change.generation

    @property
    def digest(self) -> str:
        return self.change.generation.digest

    @property
    def derived_lag(self) -> tuple[int, float] | None:
        """Steps and seconds by which rows that extensions derive lag; None without such rows."""
        return self._watchers.lag

    @property
    def opened(self) -> bool:
        return self._replicas is not None

    @property
    def replicas(self) -> Replicas:
        """The replicas that answer requests; raises NotReady before attach_replicas()."""
        if self._replicas is None:
            raise NotReady(f"version {self.manifest.version} of model {self.manifest.model!r} is not open")
        return self._replicas

    def attach_replicas(self, replicas: Replicas) -> None:
        """Open the version to these replicas at its current step."""
        with self.lock:
            self._watchers.open(self._state(self.change.epoch, self.generation, self.dense))
            opened = self._next(self.change.generation, self.change.epoch, self.dense)
            if opened.frame is not self.change.frame:
                self._publish(opened)
            replicas.prepare(self.change.frame)
            self._replicas = replicas
            self._watchers.refresh(self.change.epoch, FIRST_SLICES)

    def close(self) -> None:
        """Stop serving the version; requests that hold it are still answered."""
        with self.lock:
            self._closed = True
            if self._replicas is not None:
                self._replicas.close()

    @property
    def torn(self) -> bool:
        """True if a change has failed and could not be taken back: no other is accepted. False during a change."""
        if not self._unfinished or not self.lock.acquire(blocking=False):
            return False
        try:
            return self._unfinished
        finally:
            self.lock.release()

    @property
    def _unfinished(self) -> bool:
        return self._torn or any(t.torn for tables in (self.tables, self._watchers.tables) for t in tables.values())

    def _table(self, name: str) -> ServedTable | None:
        """Return a table of the version or a derived one; None once another has replaced it."""
        return self.tables.get(name) or self._watchers.tables.get(name)

    def damage(self, effort: int) -> str:
        """Return the first mapped file that has changed, with the reason; "" if there is none.

        Takes no lock, except to try it once while a change is unfinished.
        """
        if self.torn:
            return TORN
        damages = ((file.name, file.damage(effort)) for file in self.files.mapped)
        return next((f"{name}: {why}" for name, why in damages if why), "")

    def check_delta(self, delta: Delta) -> None:
        """Raise BadInput or Conflict unless the delta continues this version's log and fits its shapes."""
        self.position.check_parent(delta.model, delta.version, delta.step, delta.parent_step, delta.compacted)
        delta.check_fits(self.manifest)

    def apply(
        self,
        delta: Delta,
        digest: str = "",
        *,
        keep: Callable[[], None] | None = None,
        examine: Callable[[StateChange], None] = lambda change: None,
        commit: Callable[[], None] = lambda: None,
    ) -> float:
        """Move the version to the delta's step; return milliseconds from the call until every reader serves it.

        An exception of `keep`, `examine` or `commit` refuses the delta.

        Args:
            digest: Digest of the generation reached; by default derived from the delta's checksum.
            keep: Makes the verified delta durable, on the standby thread if there is one, while rows are staged.
            examine: Decides whether the staged change may be served; may call preview().
            commit: Called last before the flip, to make the delta part of the log.
        """
        started_s = self._clock.now_s()
        with self.lock:
            self._check_open()
            self.check_delta(delta)
            self._wait_room()
            versions = {name: RowVersions() for name in delta.tables}
            try:
                # A delta that is followed is durable already.
                with BackgroundTask(keep, self._beside) if keep is not None else nullcontext() as keeping:
                    self._reclaim(delta)
                    self._torn, self._epoch = True, self._epoch + 1
                    self._stage(delta, versions)
                    dense = {**self.dense, **_gathered(delta.dense)} if delta.dense else self.dense
                    reached = digest or delta_digest(self.digest, delta.checksum)
                    generation = Generation(self.manifest.version, delta.step, reached)
                    self._watchers.stage(self._state(self._epoch, generation, dense), self.change.epoch, versions)
                    self._watchers.changing({name: [v.keys] for name, v in versions.items()})
                    change = self._next(generation, self._epoch, dense)
                    self._prepare(change)
                    replaced = {name: self.dense[name] for name in delta.dense}
                    before = self.change.epoch
                    undo = UndoEntry(before, versions, replaced, self.published_at, self.event_time, self.digest)
                    if keeping is not None:
                        keeping.run_if_pending()
                    examine(change)
                commit()
            except BaseException:
                self._unstage(versions)
                self._watchers.settle(False)
                raise
            self._undo.append(undo)
            self.dense = dense
            self.published_at = delta.published_at
            self.event_time = delta.event_time or self.event_time
            excess = self.position.advance(delta.step)
            self._stamps[change.epoch] = delta.step
            if len(self._stamps) > STAMPS:
                del self._stamps[first_of(self._stamps)]
            self._publish(change)
            self._watchers.settle(True)
            for old in self._undo[:excess]:
                for name, table_versions in old.versions.items():
                    if table := self._table(name):
                        table.retire(table_versions, change.publish_seq)
            del self._undo[:excess]
            self._torn = False
            self._wait_readers()
            self._watchers.refresh(change.epoch)
            self._release_frames()
            self.delta_count += 1
            self.delta_rows += delta.rows
            self.delta_nbytes += delta.nbytes
            now_s = self._clock.unix_s()
            self.last_freshness_s = max(0.0, now_s - delta.published_at)
            self.age_s.observe(self.last_freshness_s)
            if delta.event_time:
                self.event_age_s.observe(max(0.0, now_s - delta.event_time[1]))
            self.last_apply_ms = (self._clock.now_s() - started_s) * 1e3
            self.apply_s.observe(self.last_apply_ms / 1e3)
            return self.last_apply_ms

    def preview(self, change: StateChange, max_rows: int, max_s: float) -> PreviewResult | None:
        """Return a prepared change's effect on scores; None if it is unknown, or before attach_replicas()."""
        if self._replicas is None:
            return None
        return self._replicas.preview(change.frame.number, change.epoch, change.generation, max_rows, max_s)

    def forget_refused(self) -> None:
        """Make replicas release frames that were prepared and never served."""
        with self.lock:
            if self._replicas is not None and self._frames > self.change.frame.number:
                self._replicas.forget(self.change.frame.number, self.change.frame.number)

    def look_up(self, table: str, keys: NDArray[np.int64]) -> tuple[NDArray[np.bool_], NDArray[np.float32]]:
        """Return a table's rows (keys: int64 [n]) as of the served generation; writer only."""
        return self.tables[table].look_up(keys, self.change.epoch)

    def step_of(self, digest: str) -> int | None:
        """Return the step of a generation that is served or within reach of rollback(); None for any other."""
        if digest == self.digest:
            return self.position.step
        undone = ((step, entry.digest) for step, entry in zip(self.position.undoable, self._undo))
        return next((step for step, undone_digest in undone if undone_digest == digest), None)

    def as_of(self, step: int) -> PastState | None:
        """Return a state that is served or within reach of rollback(), else None; the lock keeps its rows."""
        count = self.position.undo_count(step)
        if count is None:
            return None
        if count == 0:
            return PastState(self.change.generation, self.change.epoch, self.dense)
        dense = self.dense
        for entry in reversed(self._undo[-count:]):
            dense = {**dense, **entry.dense} if entry.dense else dense
        oldest = self._undo[-count]
        return PastState(Generation(self.manifest.version, step, oldest.digest), oldest.epoch, dense)

    def stamped(self, epoch: int) -> int | None:
        """Return the step of the delta whose rows carry this epoch; None if it is too old."""
        return self._stamps.get(epoch)

    def rollback(self, step: int) -> None:
        """Serve an earlier step again; return when every session does.

        Raises NotReady, with nothing changed, if a reader holds it up or the step is older than the undo log.
        """
        with self.lock:
            count = self.position.undo_count(step)
            if count is None:
                raise NotReady(f"generation {self.manifest.version}.{step} is older than the undo log")
            if count == 0:
                return
            self._check_open()
            self._wait_room()
            past, before = self.as_of(step), self.change
            assert past is not None, "it can be undone"
            undone, oldest, dense = self._undo[-count:], self._undo[-count], past.dense
            for entry in undone:
                self._watchers.changing({name: [v.keys] for name, v in entry.versions.items()})
            try:
                self._watchers.turn(self._state(past.epoch, past.generation, dense))
                change = self._next(past.generation, past.epoch, dense)
                self._prepare(change)
                self._torn = True
                self._publish(change)
                self._wait_readers()
            except BaseException:
                # A reader may still use the rows to be taken back: they stay, and so does the state that names them.
                if self.change is not before:
                    self._publish(replace(before, publish_seq=change.publish_seq + 1))
                self._torn = False
                self._watchers.settle(False)
                raise
            self._watchers.settle(True)
            self.dense = dense
            self.published_at, self.event_time = oldest.published_at, oldest.event_time
            self.position.rewind(count)
            for entry in reversed(undone):
                self._remove_staged(entry.versions)
            del self._undo[-count:]
            # Slots that a late reader still names carry old epochs, which must never be reused, so the served epoch
            # moves on to the newest one with the same content.
            again = self._next(change.generation, self._epoch, dense)
            self._prepare(again)
            self._publish(again)
            self._torn = False
            self._release_frames()

    def maintain(self) -> bool:
        """Keep tables within their memory budgets and derived rows up to date, a slice at a time; True if more remains.

        Released rows can be reused after a flip: without a delta, the same content is published again. The lock is
        released between two tables, so a delta waits for a slice at most.
        """
        tiered = [table for table in self.tables.values() if table.tiered]
        # Rows are copied out of mapped files here: the writer must not touch a page that is gone.
        if not (tiered or self._watchers.left or self._watchers.behind) or self.damage(SIZES):
            return False
        given_up = self._maintain_budgets(tiered)
        with self.lock:
            if self._closed or self._unfinished:
                return False
            if self._watchers.left and self.control.oldest_pin() >= self.change.publish_seq:
                self._watchers.refresh(self.change.epoch)
            state = self._state(self.change.epoch, self.generation, self.dense)
            if self._watchers.behind and self._watchers.advance(state):
                try:
                    self._renew()
                except BaseException:
                    self._watchers.settle(False)
                    raise
            return given_up or self._watchers.left or self._watchers.behind

    def _maintain_budgets(self, tables: Sequence[ServedTable]) -> bool:
        given_up = False
        for table in tables:
            with self.lock:
                if self._closed or self._unfinished:
                    return False
                oldest = self._oldest_read()
                given_up |= table.maintain(oldest, self.change.publish_seq + 1, self._clock.now_s())
        with self.lock:
            if given_up and not (self._closed or self._unfinished):
                self._renew()
        return given_up

    def _renew(self) -> None:
        """Publish the same content again with the current buffers."""
        self._wait_room()
        again = self._next(self.change.generation, self.change.epoch, self.dense)
        self._prepare(again)
        self._publish(again)
        self._watchers.settle(True)
        self._wait_readers()
        self._release_frames()

    def export(self) -> tuple[dict[str, tuple[NDArray[np.int64], NDArray[np.float32]]], Dense]:
        """Return the served generation: ascending keys and rows per table, and dense tensors."""
        with self.lock:
            return {name: t.export(self.change.epoch) for name, t in self.tables.items()}, dict(self.dense)

    def memory(self) -> dict[str, int]:
        """Return bytes by part: mapped rows, index, arena, dense, and "beside": what extensions derive."""
        parts = {"dense": sum(a.nbytes for a in self.dense.values())}
        if nbytes := self._watchers.nbytes:
            parts["beside"] = nbytes
        for table in self.tables.values():
            for part, nbytes in table.nbytes.items():
                parts[part] = parts.get(part, 0) + nbytes
        return parts

    def _check_open(self) -> None:
        if self._closed or self._unfinished:
            raise NotReady(f"version {self.manifest.version} is no longer served")

    def _stage(self, delta: Delta, into: dict[str, RowVersions]) -> None:
        for name, changes in delta.tables.items():
            self.tables[name].apply(changes, self._epoch, into[name])

    def _unstage(self, staged: dict[str, RowVersions]) -> None:
        """Undo _stage(): nothing was flipped, so no reader sees the newest epoch."""
        with suppress(BaseException):
            self._remove_staged(staged)
            self._torn = False

    def _remove_staged(self, staged: dict[str, RowVersions]) -> None:
        """Remove the newest delta's rows from every table; continue after an error and raise it at the end."""
        failed: BaseException | None = None
        for name in staged:
            try:
                if table := self._table(name):
                    table.undo(staged[name], self.change.publish_seq + 1)
            except BaseException as error:
                failed = error
        if failed is not None:
            raise failed

    def _arrays(self) -> tuple[Arrays, ...]:
        return tuple({**t.arrays, **self._watchers.arrays(name)} for name, t in self.tables.items())

    def _next(self, generation: Generation, epoch: int, dense: Dense) -> StateChange:
        """Return the next change, with a new frame only if a buffer or a dense tensor is a different object."""
        frame, arrays = self.change.frame, self._arrays()
        if not (_same_arrays(dense, frame.dense) and all(map(_same_arrays, arrays, frame.arrays))):
            self._frames += 1
            frame = Frame(self._frames, arrays, dense)
        return StateChange(self.change.publish_seq + 1, epoch, generation, frame)

    def _prepare(self, change: StateChange) -> None:
        if self._replicas is not None and change.frame is not self.change.frame:
            self._replicas.prepare(change.frame)

    def _wait_room(self) -> None:
        """Wait for room in the control words for all flips of a change.

        A reader may announce a very old flip, which it drops as soon as it runs again.
        """
        self._wait(lambda: self.control.has_room(FLIPS))

    def _publish(self, change: StateChange) -> None:
        entry = ControlEntry.of(change.epoch, change.frame.number, change.generation)
        torn, self._torn = self._torn, True
        self.change = change
        self.control.publish(change.publish_seq, entry)
        self._torn = torn

    def _wait_readers(self) -> None:
        """Wait until no session is pinned to an older state."""
        publish_seq = self.change.publish_seq
        self._wait(lambda: self.control.oldest_pin() >= publish_seq)

    def _release_frames(self) -> None:
        """Release frames that no session can reach: no pin is older than the served state."""
        frame = self.change.frame.number
        if self._replicas is not None and self._forgotten < frame:
            self._replicas.forget(frame)
            self._forgotten = frame

    def _wait(self, reached: Callable[[], bool]) -> None:
        began_s = self._clock.now_s()
        while not reached():
            waited_s = self._clock.now_s() - began_s
            if waited_s > GRACE_TIMEOUT_S:
                raise NotReady("a session did not finish its batch within a minute")
            time.sleep(min(max(FIRST_LOOK_S, waited_s * LOOK_PART), LAST_LOOK_S))

    def _reclaim(self, delta: Delta) -> None:
        oldest = self._oldest_read()
        for name, table in self.tables.items():
            changes = delta.tables.get(name)
            coming = 0 if changes is None else len(changes.keys) + len(changes.removed)
            table.reclaim(oldest, self.change.publish_seq + 1, coming)
        for table in self._watchers.tables.values():
            # How many rows will be derived is not known yet.
            table.reclaim(oldest, self.change.publish_seq + 1, sys.maxsize)

    def _oldest_read(self) -> int:
        """Return a flip whose state, and every later one, is all that anybody reads."""
        return min(self.control.oldest_pin(), self.change.publish_seq, self._watchers.floor)

    def _state(self, epoch: int, generation: Generation, dense: Dense) -> DerivedState:
        return DerivedState(epoch, self.change.publish_seq, generation, dense, self._readable)

    def _readable(self) -> bool:
        return not any(file.damage(SIZES) for file in self.files.mapped)


def _gathered(dense: Dense) -> Dense:
    """Copy dense tensors out of a delta's buffer into shareable memory."""
    return dict(zip(dense, gather(list(dense.values()), "dense")))


def _same_arrays(arrays: Mapping[str, NDArray[Any]], others: Mapping[str, NDArray[Any]]) -> bool:
    return arrays is others or (arrays.keys() == others.keys() and all(a is others[name] for name, a in arrays.items()))
