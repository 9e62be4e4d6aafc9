"""Chains, and those that end at a record which no reader takes, as the code before this check wrote them (A1)."""

from __future__ import annotations

from dataclasses import replace

from freshet_serving.processor.package import sha256, write_delta
from freshet_serving.processor.repository.log.chain_record import DELTA, ROLLBACK, delta_digest, record_name
from freshet_serving.processor.repository.log.change_log import ChangeLog
from freshet_serving.processor.repository.log.history import ChainLink
from tests.support.packages import make_delta

MILLISECONDS = 1.7e12


def chain_of(version, count):
    """The version's log, of so many deltas."""
    change_log = ChangeLog.of(version)
    for step in range(1, count + 1):
        change_log.publish(make_delta(step, [step]))
    return change_log


def snapshot_at(change_log, step):
    """A record of a snapshot whose files nobody looks at."""
    change_log.snapshot(change_log.history.on_line(step), f"snapshots/{step}-ab/snapshot.json", "ab" * 32, 9)


def write_unchecked(version, change_log, record):
    """Creates a record as a writer did that checked its history only."""
    data = record.to_bytes()
    (version.folder / record_name(record.number)).write_bytes(data)
    change_log.history.take(record, sha256(data))
    change_log._written = record.number
    return record


def delta_record(version, change_log, step, at=1.7e9, parent=None):
    """The next record, of a delta that lies in its folder."""
    head = change_log.history.head
    path = version.folder / "deltas" / f"{step}.safetensors"
    write_delta(path, make_delta(step, [step % 6], parent=head.step))
    digest = sha256(path.read_bytes())
    link = ChainLink(step, delta_digest(head.digest, digest), head.digest)
    return change_log.history.next(
        DELTA, link, file=f"deltas/{step}.safetensors", sha256=digest, nbytes=path.stat().st_size, at=at
    )


def damaged_chain(version, good=3, behind=2):
    """A chain of `good` records, one with a time in milliseconds, and `behind` sound ones that stand on it, the last a
    rollback. Returns the ledger of the server that wrote it, which has noticed nothing."""
    change_log = ChangeLog.of(version, whole=True)
    for step in range(1, good + 1):
        change_log.publish(make_delta(step, [step % 6]))
    write_unchecked(version, change_log, delta_record(version, change_log, good + 1, at=MILLISECONDS))
    for step in range(good + 2, good + 1 + behind):
        write_unchecked(version, change_log, delta_record(version, change_log, step))
    if behind:
        back = change_log.history.on_line(good)
        write_unchecked(version, change_log, replace(change_log.history.next(ROLLBACK, back), at=1.7e9))
    return change_log
