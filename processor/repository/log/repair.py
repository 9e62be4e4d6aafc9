"""Repair records: how a change log continues after a record that no reader accepts.

A record is created once and never changed or removed, so an invalid one (of a faulty program, damaged by a disk, not
signed by a trusted key) ends its log for every reader. A repair sets it aside, with everything after it:

    chain/0000000031.json   the last good record
    chain/0000000032.json   invalid: set aside
    chain/0000000033.json   continues 32: set aside
    chain/0000000034.json   the repair. since: 32; previous: the SHA-256 of 31; sha256: over 32 and 33

`sha256` is that of one line for each record set aside: its number, a blank, the SHA-256 of its file in hexadecimal
digits (of no bytes if it is not a file or is larger than a record may be), a newline.

Invariants
- A repair is a record like any other: immutable, signed where records are, created exclusively under the number after
  the newest. Of two repairs, or of a repair and an append, one gets the number and the other starts again. No existing
  file is changed or removed, and the next record continues the repair.
- Nothing that a reader accepts is cut: a repair begins at the first record that a reader rejects
  (processor.repository.log.damage runs the reader's own code), and a reader looks for one only where it would report
  DIVERGED otherwise. All readers reject a repair that sets aside a sound record.
- Every reader sets aside the same bytes: a repair is valid only while `sha256` matches the files from `since` on.
  Restoring a file ends the log there again, with a message, instead of forking it.
- A reader that has the cut records in memory finds the repair as the next number, reads the records again from the
  start and goes back to the last good generation, as after a rollback.
- A step that a set-aside record may have used is not used for other content: `top` goes up.
- A reader that begins at a snapshot need not know of repairs before it. A damaged record that only such a start skips
  is not cut: what comes after it is served.

Costs: nothing while the log is sound. A reader that is DIVERGED reads all records after the damage once, and then looks
for one name at a time. A server from before repairs were introduced stays DIVERGED until it is updated.

Rejected: removing or replacing the damaged file (two servers might read different bytes under one number, and an object
store has no exclusive replace); a separate name beside the number (a second sequence to look for, and an append could
take a number that the repair has skipped); reusing the number of the damaged record (it is taken).
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable

from freshet_serving.processor.errors import Conflict, Corrupt, NotReady
from freshet_serving.processor.package import sha256
from freshet_serving.processor.repository.log.chain_record import REPAIR, ChainRecord, record_bytes
from freshet_serving.processor.repository.storage import VersionStorage

NO_FILE = b""
"""Stands for anything under a record's name that cannot be read as its file: a folder, a pipe, a large file."""


def find_repair(storage: VersionStorage, first: int, check: Callable[[ChainRecord, bytes], None]) -> ChainRecord | None:
    """Return the repair, which `check` accepts, that sets aside the records from `first` on, or None."""
    marks = RecordsDigest()
    for number in itertools.count(first):
        data = read_record(storage, number)
        if data is None:
            return None
        if (record := marks.repair(data, number, first, check)) is not None:
            return record
        marks.add(number, data)
    return None


def newest_repair(storage: VersionStorage, first: int) -> ChainRecord | None:
    """Return the newest repair among the records from `first` on, whatever it sets aside, or None."""
    newest = None
    for number in itertools.count(first):
        data = read_record(storage, number)
        if data is None:
            return newest
        newest = parsed_repair(data, number) or newest
    return None


def read_record(storage: VersionStorage, number: int) -> bytes | None:
    """Return the bytes of a record, NO_FILE if they cannot be one, None if there are none."""
    try:
        return record_bytes(storage, number)
    except Corrupt:
        return NO_FILE


def parsed_repair(data: bytes, number: int) -> ChainRecord | None:
    """Parse a record's bytes; return None if it is not a repair."""
    if b'"kind":"repair"' not in data:
        return None
    try:
        record = ChainRecord.from_bytes(data, number)
    except Corrupt:
        return None
    return record if record.kind == REPAIR else None


class RecordsDigest:
    """The SHA-256 of a run of records, as a repair names it (see the module)."""

    def __init__(self) -> None:
        self._all = hashlib.sha256()

    def add(self, number: int, data: bytes) -> None:
        self._all.update(f"{number} {sha256(data)}\n".encode())

    def repair(
        self, data: bytes, number: int, first: int, check: Callable[[ChainRecord, bytes], None]
    ) -> ChainRecord | None:
        """Return the repair in the bytes if it sets aside exactly the added records, else None; as find_repair()."""
        record = parsed_repair(data, number)
        if record is None or (record.since, record.sha256) != (first, self.digest()):
            return None
        try:
            check(record, data)
        except (Corrupt, Conflict):
            # From another log, or not signed by a trusted key: it is set aside like the rest.
            return None
        return record

    def digest(self) -> str:
        return self._all.hexdigest()


class RepairWatch:
    """Detector of new repairs for a reader that is DIVERGED, at the cost of one lookup of one name."""

    def __init__(self, storage: VersionStorage) -> None:
        self._storage, self._seen = storage, 0

    def come(self, known: int) -> bool:
        """Return True if there is a repair, after the known records, that no earlier call reported."""
        repaired, self._seen = False, max(self._seen, known)
        try:
            while (data := read_record(self._storage, self._seen + 1)) is not None:
                self._seen += 1
                repaired |= parsed_repair(data, self._seen) is not None
        except NotReady:
            pass
        return repaired
