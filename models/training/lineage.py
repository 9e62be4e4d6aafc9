"""Keep a run's weights in sync with the change log of its version: publish on its head, and go back after rollbacks.

The trainer is one writer of the change log among others: servers roll back, people upload. So it reads the records
before it trains on a chunk and before it publishes one. They say one of these:
- Its newest generation is the head: it continues.
- Other writers' generations are based on it: it loads their rows and weights, and continues from there.
- Its newest generation is undone: it restores its own weights, optimizer included, of the newest generation on the
  current line that a checkpoint has, and advances from there to the head. Published rows that were undone are skipped,
  or trained on again (replay); unpublished rows are trained on again. If no checkpoint reaches back far enough, the
  weights come from the repository and the optimizer starts anew. Histories are not weights and stay as they are.
- A hold stops what is served, not training: deltas continue behind it.
So trainer and head agree at the start of every chunk, except for dense weights that are withheld.

With publish.dense_every = N, every Nth delta has dense weights, and others have rows alone, which servers combine with
the older dense weights.
- A delta has the whole difference between the trainer's dense weights and the head's, or nothing of it.
- RunState.withheld counts the newest deltas without them. Checkpoints store it, so it survives rollbacks and kills. If
  it is not 0, the head's dense weights are read from the repository.
- A delta without learned rows has all that is withheld; a run that ends publishes one if necessary.
Rejected: intervals in seconds, which a repeated run could not repeat; in steps, which other writers take, too.

The increment of a generation is saved before its delta is published, with the digest that it will have. After a kill
between the two, the next run publishes it byte for byte or, if another writer was faster, on top of theirs. While the
repository is unreachable, the step is retried and nothing is trained on.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from types import SimpleNamespace
from typing import BinaryIO, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from freshet_serving.compiler.progress import Reporter
from freshet_serving.models.config.publish_section import PublishConfig
from freshet_serving.models.embedding.variable import Changes
from freshet_serving.models.streams.followed_tables import FollowedTable
from freshet_serving.models.training.checkpoint import (
    Checkpoints,
    RestoredCheckpoint,
    RunState,
    changes_of,
    clear_changed,
)
from freshet_serving.models.training.divergence import check_weights
from freshet_serving.models.training.entity_deltas import EntityDeltas, Marks
from freshet_serving.models.training.trainer import Trainer
from freshet_serving.processor.errors import Conflict, Diverged, FreshetError, NotReady
from freshet_serving.processor.generation import UNDO_DEPTH, Generation
from freshet_serving.processor.package import Delta, TableDelta, stream_delta
from freshet_serving.processor.repository import (
    MAX_REASON,
    ChainLink,
    ChangeLog,
    History,
    VersionContents,
    VersionReader,
    delta_digest,
)
from freshet_serving.processor.tables.compaction import compact

GUARDED = "window: "
"""Prefix of a hold's reason if a trainer's guard set it."""
NOTHING_REMOVED = np.empty(0, np.int64)
Float32s = NDArray[np.float32]


T = TypeVar("T")
Wait = Callable[[NotReady], None]


def no_retry(error: NotReady) -> None:
    raise error


def retry_until_ready(act: Callable[[], T], wait: Wait) -> T:
    """Return act(), retried while it raises NotReady and wait(), which may raise to give up, returns."""
    while True:
        try:
            return act()
        except NotReady as error:
            wait(error)


class Lineage:
    """The change log of the version that a run publishes to. Updates the run's state in place."""

    def __init__(
        self,
        version: VersionReader,
        trainer: Trainer,
        checkpoints: Checkpoints,
        state: RunState,
        report: Reporter,
        replay: bool,
        publish: PublishConfig,
        wait: Wait = no_retry,
        tables: Sequence[FollowedTable] = (),
    ) -> None:
        """Read the change log; raise Diverged if the records do not form one.

        With `replay`, undone rows are trained on again. wait() waits for an unreachable repository, or raises.
        """
        self._wait = wait
        self._version, self._trainer, self._checkpoints = version, trainer, checkpoints
        self._state, self._report = state, report
        self._replay, self._publish_config = replay, publish
        self._change_log = retry_until_ready(lambda: ChangeLog.of(version, whole=True), wait)
        self._at = self.history.on_line(0) or self.history.head
        self._dense = trainer.dense.weights()
        self._entities = EntityDeltas(tables, version.root_manifest, self._served, report.note)
        # Of the weights' generation.
        self._marks: Marks = state.entities
        self._unfolded = self._count_unfolded()

    @property
    def history(self) -> History:
        return self._change_log.history

    def resume(self, restored: RestoredCheckpoint) -> None:
        """Continue from a restored checkpoint: publish its unpublished changes, or go back if it was undone."""
        state = self._state
        link = self._link_of(state)
        self._marks = state.entities if link is not None else state.parent_entities
        if link is not None:
            self._stand_on(link, exact=not state.withheld)
            self.follow()
        elif restored.changes is not None and (parent := self._parent_of(state)) is not None:
            self._stand_on(parent, exact=False)
            for name, changes in restored.changes.items():
                self._trainer.tables[name].mark(changes)
            self._publish(state.withheld)
        else:
            self._go_back()
        state.event_time, state.events = None, 0

    def follow(self) -> bool:
        """Read the records, sync the weights, and forget users as asked; return True if the weights went back."""
        retry_until_ready(self._change_log.look, self._wait)
        if not self._on_line(self._at):
            self._go_back()
            return True
        self._checkpoints.erase_asked(self._trainer, self._state, self.wanted)
        if self._at.digest != self.history.head.digest:
            self._take_in()
        return False

    def publish(self) -> Generation | None:
        """Save all changes and publish them on the head with the state's times; None if the weights went back."""
        withheld = self._state.withheld + 1
        return self._publish(withheld if self._state.events and withheld < self._publish_config.dense_every else 0)

    def _publish(self, withheld: int) -> Generation | None:
        while True:
            if self.follow():
                return None
            records = self.history.number
            try:
                self._commit(withheld)
            except Diverged:
                raise
            except Conflict:
                # Another writer was faster: read their record and decide again.
                retry_until_ready(self._change_log.look, self._wait)
                if self.history.number == records:
                    raise
                continue
            self._checkpoints.compact(self._trainer, self._state, self.wanted)
            self._fold()
            return Generation(self._state.version, self._state.step)

    def entities_changed(self) -> bool:
        """Return True if an entity has changed since the generation of the weights."""
        return bool(self._entities.since(self._marks)[0])

    @property
    def made_at(self) -> float:
        """Unix time at which the version was made."""
        return self._version.manifest.created_at

    @property
    def held(self) -> str:
        """Reason of a hold that this run's guard has set; "" if there is none."""
        guarded = self.history.gate is not None and self.history.held.startswith(GUARDED)
        return self.history.held.removeprefix(GUARDED) if guarded else ""

    def hold(self, reason: str) -> bool:
        """Hold deltas after the head unless a hold exists; return True if it was set."""
        with suppress(Conflict):
            if self.history.gate is None:
                retry_until_ready(lambda: self._change_log.hold(f"{GUARDED}{reason}"[:MAX_REASON]), self._wait)
                return True
        return False

    def release(self) -> bool:
        """Release a hold of this run's guard; return True if there was one."""
        with suppress(Conflict):
            if self.held:
                retry_until_ready(lambda: self._change_log.release("windows are normal again"), self._wait)
                return True
        return False

    def wanted(self) -> list[int]:
        """Return the numbers of the checkpoints needed for rollbacks that servers can perform."""
        line = list(self.history.back(self.history.head))[: UNDO_DEPTH + 1]
        on = {link.digest for link in line}
        linked = [(number, self._link_of(state)) for number, state in self._checkpoints.states()]
        return [number for number, link in linked if link is not None and link.digest in on]

    def _commit(self, withheld: int) -> None:
        state, head = self._state, self.history.head
        changes = changes_of(self._trainer)
        check_weights(changes, self._trainer, self._checkpoints.newest)
        records, marks = self._entities.since(self._marks)
        dense = {} if withheld else self._moved()
        delta = self._delta(changes, records, dense, head)
        delta.check_fits(self._version.root_manifest)
        digest = delta_digest(head.digest, _file_sha256(delta))
        if digest != state.digest:
            state.step, state.digest, state.parent = delta.step, digest, head.digest
            state.entities, state.parent_entities, state.withheld = marks, self._marks, withheld
            self._checkpoints.borders.published(state.position, Generation(state.version, state.step))
            self._checkpoints.save_changes(self._trainer, state, changes)
        self._at = retry_until_ready(lambda: self._published(delta, digest), self._wait)
        clear_changed(self._trainer)
        self._marks = marks
        self._dense |= delta.dense

    def _published(self, delta: Delta, digest: str) -> ChainLink:
        try:
            return self._change_log.publish(delta)
        except Conflict:
            # An earlier attempt may have succeeded although its reply was lost.
            if (link := self.history.links.get(digest)) is None:
                raise
            return link

    def _served(self) -> VersionContents:
        return VersionContents(self._version, self._change_log, self.history.head)

    def _moved(self) -> dict[str, Float32s]:
        """Return the trainer's dense weights that are not the head's."""
        dense = self._trainer.dense.weights()
        return {n: a for n, a in dense.items() if not np.array_equal(a, self._dense[n])}

    def _delta(
        self,
        changes: dict[str, Changes],
        records: dict[str, TableDelta],
        dense: dict[str, Float32s],
        head: ChainLink,
    ) -> Delta:
        state = self._state
        # A version of an older release has no table of items' sources.
        named = {table.name for table in self._version.root_manifest.tables}
        return Delta(
            model=self._version.manifest.model,
            version=state.version,
            step=self.history.top + 1,
            parent_step=head.step,
            tables={
                name: TableDelta(c.keys, c.rows, c.removed)
                for name, c in changes.items()
                if name in named and (len(c.keys) or len(c.removed))
            }
            | records,
            dense=dense,
            published_at=state.finished_at,
            event_time=state.event_time,
            events=state.events,
        )

    # Going back, and loading generations of other writers.

    def _go_back(self) -> None:
        head = self.history.head
        linked = [(n, s, link) for n, s in self._checkpoints.states() if (link := self._link_of(s)) is not None]
        newest, until = (linked[-1][2], linked[-1][1].position) if linked else (self._at, self._state.position)
        undone = newest if self._on_line(self._at) else self._at
        line = {link.digest for link in self.history.back(head)}
        number, state, link = next(
            (entry for entry in reversed(linked) if entry[2].digest in line), (0, self._state, head)
        )
        if number:
            self._checkpoints.restore(self._trainer, number)
            self._stand_on(link, exact=not state.withheld)
            self._state.withheld = state.withheld
            self._take_in()
            back = state.position
        else:
            self._rebuild(head)
            back = until
        position = back if self._replay else until
        self._marks = state.entities if self._replay and number else self._marks
        restored = dataclasses.replace(state, position=position, step=self._at.step, digest=self._at.digest)
        # The store of histories did not go back.
        restored = dataclasses.replace(restored, entities=self._marks, histories=self._state.histories)
        self._become(dataclasses.replace(restored, withheld=self._state.withheld))
        # No increment contains changes loaded from other writers.
        clear_changed(self._trainer)
        self._checkpoints.save_full(self._trainer, self._state, self.wanted())
        self._unfolded = self._count_unfolded()
        self._report.note(self._told(undone, head, until - back, rebuilt=not number))

    def _told(self, undone: ChainLink, head: ChainLink, rows: int, rebuilt: bool) -> str:
        version = self._state.version
        line = f"{version}.{undone.step} was rolled back to {version}.{head.step}: "
        if rebuilt:
            return line + (
                "no checkpoint is that old, so the weights come from the repository and the optimizer starts anew; rows"
                " trained on since then are skipped"
            )
        return line + f"went back, {'trains on' if self._replay else 'skipped'} {rows:,} rows{' again' * self._replay}"

    def _take_in(self) -> None:
        """Advance from the generation of the weights to the head, which another writer published."""
        head = self.history.head
        links = []
        for link in self.history.back(head):
            if link.digest == self._at.digest:
                break
            links.append(link)
        try:
            for link in reversed(links):
                self._overwrite(retry_until_ready(partial(self._change_log.read_delta, link), self._wait))
        except Diverged:
            self._rebuild(head)
        self._at = head
        if links:
            self._checkpoints.borders.interrupted(self._state.position)
            self._report.note(
                f"{self._state.version}.{head.step} was published by another writer: continuing from there"
            )

    def _overwrite(self, delta: Delta) -> None:
        trainer = self._trainer
        for name, table in delta.tables.items():
            if name not in trainer.tables:
                # Features of an entity, which the trainer reads from their own table.
                continue
            rate = trainer.rates[name]
            trainer.tables[name].overwrite(table.keys, table.rows, table.removed, rate, trainer.steps)
        trainer.dense.state.assign(delta.dense)
        self._dense |= {name: array for name, array in delta.dense.items() if name in self._dense}

    def _rebuild(self, link: ChainLink) -> None:
        retry_until_ready(
            lambda: rebuild(self._trainer, VersionContents(self._version, self._change_log, link)), self._wait
        )
        self._stand_on(link, exact=True)
        self._state.withheld = 0
        self._checkpoints.borders.forget()
        self._checkpoints.borders.interrupted(self._state.position)

    def _stand_on(self, link: ChainLink, exact: bool) -> None:
        """Take a generation as the weights'; unless `exact`, its dense weights are read from the repository."""
        self._at, self._dense = link, self._trainer.dense.weights()
        if not exact:
            served = retry_until_ready(lambda: VersionContents(self._version, self._change_log, link), self._wait)
            self._dense |= {name: np.array(array) for name, array in served.dense.items() if name in self._dense}

    def _become(self, state: RunState) -> None:
        """Copy a state into the run's state, which others hold by reference."""
        for field in dataclasses.fields(state):
            setattr(self._state, field.name, getattr(state, field.name))
        self._state.event_time, self._state.events = None, 0

    # Relation between checkpoints and generations.

    def _link_of(self, state: RunState) -> ChainLink | None:
        """Return the generation that a checkpoint's weights were published as; None if they were not."""
        if state.version != self._version.manifest.version:
            return None
        if state.digest:
            return self.history.links.get(state.digest)
        return self.history.known(state.step)

    def _parent_of(self, state: RunState) -> ChainLink | None:
        """Return the generation on the line that an unpublished checkpoint is based on."""
        link = self.history.links.get(state.parent) if state.parent else self.history.known(state.step - 1)
        return link if link is not None and self._on_line(link) else None

    def _on_line(self, link: ChainLink) -> bool:
        current = self.history.on_line(link.step)
        return current is not None and current.digest == link.digest

    # Snapshots.

    def _count_unfolded(self) -> int:
        snapshot = self.history.snapshot()
        since = snapshot.step if snapshot else 0
        return sum(link.step > since for link in self.history.back(self.history.target))

    def _fold(self) -> None:
        self._unfolded += 1
        after = self._publish_config.snapshot_after
        if not after or self._unfolded < after:
            return
        self._unfolded = 0
        try:
            link = compact(self._version, self._change_log)
        except FreshetError as error:
            self._report.note(f"could not write a snapshot: {error}")
            return
        if link is not None:
            self._report.note(f"{self._state.version}.{link.step} is in a snapshot, from which servers start")


def _file_sha256(delta: Delta) -> str:
    sha256 = hashlib.sha256()
    stream_delta(cast(BinaryIO, SimpleNamespace(write=sha256.update)), delta)
    return sha256.hexdigest()


def rebuild(trainer: Trainer, contents: VersionContents) -> None:
    """Load a generation's weights from the repository into a trainer, with new optimizers."""
    trainer.clear()
    named = {table.name for table in contents.base.root_manifest.tables}
    for name, table in trainer.tables.items():
        if name not in named:
            continue
        keys, rows = contents.table(name)
        table.overwrite(keys, rows, NOTHING_REMOVED, trainer.rates[name], trainer.steps)
    trainer.dense.begin_with(contents.dense)
    clear_changed(trainer)
