"""History of a version: the state that results from its records in order. Pure: no I/O, no clock, no arrays.

Meaning of the records, complete
- The line is the run of generations from step 0 (or a snapshot) to the head; it is served, up to the gate.
- delta: continues the head, and becomes it. Its step is above the head's, and has never been used, or only for the very
  same digest: an undone delta may be applied again. So a step names one content for good.
- rollback: the head goes back to a generation of the line. Everything after it is undone, and a gate behind it lifted.
- snapshot: a generation of the line is stored whole in one place (compaction). It does not change what is served.
- hold: a gate after a generation of the line: what follows is not served (quarantine), whether it exists already or
  not. Another hold may only move the gate back. release: the gate is lifted, and what was behind it counts as approved.
  A rollback to the gate instead rejects what waits behind it.
- repair: the records from `since` up to this one are set aside, because the first of them is invalid
  (processor.repository.log.repair). It does not change what is served, but no step that they may have used is used
  again.

A record names the newest existing snapshot, where a start may begin: one that the records before it know, or itself.

Every record names the one before it by its SHA-256. One that does not, or that breaks a rule, is not a record of this
log: a reader stops there and reports it (Corrupt); a writer that is about to create it is refused (Conflict).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace

from freshet_serving.processor.errors import Conflict
from freshet_serving.processor.repository.log.chain_record import (
    DELTA,
    HOLD,
    RELEASE,
    REPAIR,
    ROLLBACK,
    SNAPSHOT,
    ChainRecord,
    delta_digest,
)

MOST_EVENTS = 512
MAX_STEP_AHEAD = 10**6
"""Maximum distance of a new step above the highest used one, so that a writer's mistake cannot use up all steps."""


@dataclass(frozen=True, slots=True)
class ChainLink:
    """A generation; `parent` is "" for the first that is known, `record` leads to it and is None for step 0."""

    step: int
    digest: str
    parent: str = ""
    record: ChainRecord | None = None


class History:
    """The state of one version after its records so far. check_next() and take() are called for each record in turn."""

    def __init__(self, model: str, version: int, root: str, digest: str) -> None:
        """Start at step 0, of this digest; `root` is the version's root hash, the `previous` of record 1."""
        self.model, self.version = model, version
        self.number, self.newest = 0, root
        self.head = self.base = ChainLink(0, digest)
        self.gate: ChainLink | None = None
        self.held = ""
        # Newest released step: no guard may hold it, or any before it, again.
        self.vouched = 0
        self.top = 0
        self._snapshots: list[ChainRecord] = []
        # Number of the newest snapshot on the line according to the newest record.
        self._hint = 0
        self.links: dict[str, ChainLink] = {digest: self.head}
        self.files: set[str] = set()
        # Newest records other than deltas, for people.
        self.events: deque[ChainRecord] = deque(maxlen=MOST_EVENTS)
        self._by_step: dict[int, str] = {0: digest}

    @classmethod
    def since(cls, reached: ChainRecord, sha256: str, snapshot: ChainRecord) -> History:
        """Return the history from a snapshot on, whose generation the record `reached` (with SHA-256) led to."""
        history = cls(reached.model, reached.version, sha256, reached.digest)
        history.head = history.base = ChainLink(reached.step, reached.digest, "", reached)
        history.links, history._by_step = {reached.digest: history.base}, {reached.step: reached.digest}
        history.number, history.top = reached.number, reached.top
        history._snapshots, history._hint = [snapshot], reached.snapshot
        return history

    @property
    def snapshots(self) -> tuple[ChainRecord, ...]:
        return tuple(self._snapshots)

    @property
    def whole(self) -> bool:
        """True if every record is known, from the first on."""
        return self.base.record is None

    @property
    def target(self) -> ChainLink:
        """The generation to serve."""
        return self.gate or self.head

    def line(self, until: ChainLink | None = None) -> list[ChainLink]:
        """Return the generations from the first known one to `until` (default: the target), in order."""
        return list(self.back(until or self.target))[::-1]

    def back(self, link: ChainLink) -> Iterator[ChainLink]:
        """Yield a generation and its ancestors, newest first."""
        while True:
            yield link
            if not link.parent:
                return
            link = self.links[link.parent]

    def distance(self, digest: str) -> int:
        """Return the number of generations of the line after one of it, or all of them if it is not on the line."""
        if digest == self.head.digest:
            return 0
        links = list(self.back(self.head))
        return next((n for n, link in enumerate(links) if link.digest == digest), len(links))

    def on_line(self, step: int) -> ChainLink | None:
        """Return the generation of the line with this step, or None."""
        link = self.links.get(self._by_step.get(step, ""))
        if link is None or link.step > self.head.step:
            return None
        return next((entry for entry in self.back(self.head) if entry.step <= step and entry is link), None)

    def known(self, step: int) -> ChainLink | None:
        """Return the generation that has, or had, this step, or None."""
        return self.links.get(self._by_step.get(step, ""))

    def keep_undone(self, before: History) -> None:
        """Keep the generations of an earlier reading; they are not on the line."""
        self.links = before.links | self.links

    def undone(self) -> list[ChainLink]:
        """Return the generations that are no longer on the line, by step."""
        line = {link.digest for link in self.back(self.head)}
        return sorted((link for link in self.links.values() if link.digest not in line), key=lambda link: link.step)

    def snapshot(self, until: ChainLink | None = None) -> ChainRecord | None:
        """Return the newest snapshot on the way to a generation of the line (default: the target), or None."""
        on = {link.digest for link in self.back(until or self.target)}
        return max((s for s in self._snapshots if s.digest in on), key=lambda s: (s.step, s.number), default=None)

    def next(self, kind: str, link: ChainLink, **fields: object) -> ChainRecord:
        """Return the next record; `link` is the generation that it leads to, or names."""
        number = self.number + 1
        if kind == SNAPSHOT:
            snapshot = self.snapshot(self.head)
            newest = number if snapshot is None or link.step >= snapshot.step else self._hint
        elif kind == ROLLBACK:
            snapshot = self.snapshot(link)
            newest = snapshot.number if snapshot else 0
        else:
            newest = self._hint
        record = ChainRecord(
            self.model, self.version, number, kind, self.newest, link.step, link.digest, self.head.step,
            self.head.digest, max(self.top, link.step), newest,
        )  # fmt: skip
        return replace(record, **fields)  # type: ignore[arg-type]

    def check_next(self, record: ChainRecord) -> None:
        where = f"record {record.number}"
        if (record.model, record.version) != (self.model, self.version):
            raise Conflict(f"{where}: for {record.model[:64]!r} version {record.version}, not for this change log")
        first = record.since if record.kind == REPAIR else record.number
        if first != self.number + 1 or record.previous != self.newest:
            raise Conflict(f"{where}: does not continue record {self.number}")
        if (record.parent_step, record.parent) != (self.head.step, self.head.digest):
            raise Conflict(f"{where}: continues step {record.parent_step}, the change log is at step {self.head.step}")
        if record.snapshot not in (0, self._hint):
            self._check_snapshot(record, where)
        if record.kind == REPAIR:
            self._check_repair(record, where)
            return
        if record.top != max(self.top, record.step):
            raise Conflict(f"{where}: top: expected {max(self.top, record.step)}, got {record.top}")
        if record.kind == DELTA:
            self._check_delta(record, where)
            return
        if record.kind == SNAPSHOT and record.step < self.base.step:
            return
        link = self.on_line(record.step)
        if link is None or link.digest != record.digest:
            raise Conflict(f"{where}: {record.kind} of step {record.step}, which is not on the current line")
        if record.kind == RELEASE and link is not self.head:
            raise Conflict(f"{where}: {record.kind} of step {record.step}, the change log is at step {self.head.step}")
        # A gate set before the snapshot that this history begins with may be lifted after it.
        lifted = record.kind == RELEASE and not self.gate and self.whole
        if (record.kind == HOLD and self.gate and link.step >= self.gate.step) or lifted:
            raise Conflict(f"{where}: {record.kind}, but the change log is {'' if self.gate else 'not '}held")

    def take(self, record: ChainRecord, sha256: str) -> None:
        """Add a record, whose bytes have this SHA-256, after check_next()."""
        if record.kind == DELTA:
            link = ChainLink(record.step, record.digest, record.parent, record)
            self.head = self.links[record.digest] = link
            self._by_step[record.step] = record.digest
        elif record.kind == ROLLBACK:
            self.head = self.links[record.digest]
            if self.gate is not None and self.gate.step >= self.head.step:
                self.gate, self.held = None, ""
        elif record.kind == SNAPSHOT:
            self._snapshots = [s for s in self._snapshots if s.number != record.number] + [record]
        elif record.kind == HOLD:
            self.gate, self.held = self.links[record.digest], record.why
        elif record.kind == RELEASE:
            self.gate, self.held, self.vouched = None, "", self.head.step
        if record.kind != DELTA:
            self.events.append(record)
        self.files.add(record.file)
        self.number, self.newest, self.top, self._hint = record.number, sha256, record.top, record.snapshot

    def _check_snapshot(self, record: ChainRecord, where: str) -> None:
        itself = record.kind == SNAPSHOT and record.snapshot == record.number
        # A snapshot older than the one that this history begins with is known only to older records.
        older = self.base.record is not None and record.snapshot < self.base.record.number
        if not itself and not older and all(other_record.number != record.snapshot for other_record in self._snapshots):
            raise Conflict(f"{where}: names record {record.snapshot} as its snapshot, which is not a snapshot")

    def _check_repair(self, record: ChainRecord, where: str) -> None:
        if (record.step, record.digest) != (self.head.step, self.head.digest):
            raise Conflict(f"{where}: {record.kind} of step {record.step}, the change log is at step {self.head.step}")
        if not self.top <= record.top <= self.top + MAX_STEP_AHEAD:
            raise Conflict(f"{where}: top: expected {self.top} to {self.top + MAX_STEP_AHEAD}, got {record.top}")

    def _check_delta(self, record: ChainRecord, where: str) -> None:
        if record.step <= self.head.step:
            raise Conflict(f"{where}: step {record.step} is not ahead of step {self.head.step}")
        if record.digest != delta_digest(record.parent, record.sha256):
            raise Conflict(f"{where}: its digest does not match its parent and its file")
        digest = self._by_step.get(record.step)
        # The content of a step before the snapshot is known only to older records, which the writer has read.
        if record.digest != digest and (digest or (record.step <= self.top and self.whole)):
            raise Conflict(f"{where}: step {record.step} is already used; the next one is {self.top + 1}")
