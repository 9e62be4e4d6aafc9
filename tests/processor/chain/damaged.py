"""Chains that end at a record which no reader takes, as the code before this check wrote them (findings A1)."""

from __future__ import annotations

from dataclasses import replace

from freshet_serving.processor.chain.chain_record import DELTA, ROLLBACK, delta_digest, record_name, sha256
from freshet_serving.processor.chain.history import Link
from freshet_serving.processor.chain.ledger import Ledger
from freshet_serving.processor.package.delta import write_delta
from tests.packages import make_delta

MILLISECONDS = 1.7e12


def write_unchecked(version, ledger, record):
    """Creates a record as a writer did that checked its history only."""
    data = record.to_bytes()
    (version.folder / record_name(record.number)).write_bytes(data)
    ledger.history.take(record, sha256(data))
    ledger._written = record.number
    return record


def delta_record(version, ledger, step, at=1.7e9, parent=None):
    """The next record, of a delta that lies in its folder."""
    head = ledger.history.head
    path = version.folder / "deltas" / f"{step}.safetensors"
    write_delta(path, make_delta(step, [step % 6], parent=head.step))
    digest = sha256(path.read_bytes())
    link = Link(step, delta_digest(head.digest, digest), head.digest)
    return ledger.history.next(
        DELTA, link, file=f"deltas/{step}.safetensors", sha256=digest, nbytes=path.stat().st_size, at=at
    )


def damaged_chain(version, good=3, behind=2):
    """A chain of `good` records, one with a time in milliseconds, and `behind` sound ones that stand on it, the last a
    rollback. Returns the ledger of the server that wrote it, which has noticed nothing."""
    ledger = Ledger.of(version, whole=True)
    for step in range(1, good + 1):
        ledger.publish(make_delta(step, [step % 6]))
    write_unchecked(version, ledger, delta_record(version, ledger, good + 1, at=MILLISECONDS))
    for step in range(good + 2, good + 1 + behind):
        write_unchecked(version, ledger, delta_record(version, ledger, step))
    if behind:
        back = ledger.history.on_line(good)
        write_unchecked(version, ledger, replace(ledger.history.next(ROLLBACK, back), at=1.7e9))
    return ledger
