"""Repairs: how a chain goes on behind a record that no reader takes.

A record is created once and never changed or removed, so one that is none (written by a program with a mistake, damaged
by a disk, signed by nobody who is trusted) ends its chain for every reader. A repair sets it aside, with everything
after it:

    chain/0000000031.json   the last good record
    chain/0000000032.json   none: set aside
    chain/0000000033.json   stands on 32: set aside
    chain/0000000034.json   the repair. since: 32; previous: the SHA-256 of 31; sha256: of what 32 and 33 are

Invariants
- A repair is a record like any other: immutable, signed where records are, created exclusively under the number behind
  the newest. Of two repairs, or of a repair and an append, one gets the number and the other looks anew. Nothing that
  lies there is changed or removed, and the next record stands on the repair.
- Nothing that a reader takes is cut. A repair begins at the first record that a reader refuses (processor.repository.log.damage
  asks the reader's own code), and a reader looks for a repair only where it would say DIVERGED otherwise. One that sets
  aside a sound record is refused by all readers.
- Every reader sets aside the same bytes: a repair holds only while the files from `since` on are those that `sha256`
  was made of. A file that is put back as it was ends the chain there again, in words, rather than forking it.
- A reader that has the cut records in memory (their file was damaged after it was read) meets the repair as the next
  number, begins anew from the records and goes back to the last good generation, as after a rollback.
- A step that a record which is set aside may have used is not used for other content: `top` goes up.
- A reader that begins at a snapshot need not know of repairs behind it. A damaged record that only such a start leaves
  out is not cut: what comes after it is served.

Costs: nothing while the chain is sound. A reader that is DIVERGED reads all records behind the damage once, and then
looks for one name at a time.

A server from before there were repairs does not know the kind: it stays DIVERGED until it is updated.

Refused: removing or replacing the damaged file (two servers might read different bytes under one number, and an object
store has no exclusive replace); a name of its own beside the number (a second sequence to be looked for, and an append
could win a number that the repair has skipped); going on at the number of the damaged record (it is taken).
"""

from __future__ import annotations

import hashlib
import itertools
import os
from collections.abc import Callable

from freshet_serving.processor.repository.log.chain_record import (
    MAX_RECORD_NBYTES,
    REPAIR,
    ChainRecord,
    record_name,
    sha256,
)
from freshet_serving.processor.errors import Conflict, Corrupt, NotReady
from freshet_serving.processor.repository.storage import VersionStorage
from freshet_serving.processor.package import read_file

NO_FILE = b""
"""Stands for what lies under a record's name and cannot be read as a record's file: a folder, a pipe, a large file."""


class EmptyRecord(NotReady):
    """The file of a record is empty, and has been for longer than a writer takes."""


def record_bytes(storage: VersionStorage, number: int) -> bytes | None:
    """What lies under a record's name: its bytes, None where there is nothing.

    Args:
        place: the version's.
        number: the record's.

    Raises:
        Corrupt: what lies there cannot be a record's file.
        NotReady: it cannot be read for now.
    """
    storage.look_for(record_name(number))
    try:
        return read_file(storage.folder / record_name(number), MAX_RECORD_NBYTES).tobytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        # Of no record alone: where the folder cannot be read, none can, and no search for the last one would end.
        raise NotReady(f"record {number}: cannot be read: {os.strerror(error.errno or 0)}") from None


def find_repair(storage: VersionStorage, first: int, check: Callable[[ChainRecord, bytes], None]) -> ChainRecord | None:
    """The repair that sets aside the records from `first` on, None where there is none.

    Args:
        place: the version's.
        first: number of the first record that is none.
        check: raises Corrupt or Conflict for a repair that is not to be taken.
    """
    marks = RecordsDigest()
    for number in itertools.count(first):
        data = marks.read(storage, number)
        if data is None:
            return None
        if (record := marks.repair(data, number, first, check)) is not None:
            return record
        marks.add(number, data)
    return None


def newest_repair(storage: VersionStorage, first: int) -> ChainRecord | None:
    """The newest repair among the records from `first` on, whatever it sets aside; None where there is none.

    Args:
        place: the version's.
        first: number of the first record to look at.
    """
    found = None
    for number in itertools.count(first):
        data = RecordsDigest().read(storage, number)
        if data is None:
            return found
        found = parsed_repair(data, number) or found
    return None


def parsed_repair(data: bytes, number: int) -> ChainRecord | None:
    """The record that these bytes are, if it is a repair."""
    if b'"kind":"repair"' not in data:
        return None
    try:
        record = ChainRecord.from_bytes(data, number)
    except Corrupt:
        return None
    return record if record.kind == REPAIR else None


class RecordsDigest:
    """The SHA-256 of a run of records, as a repair names it: over a line for each of number and SHA-256."""

    def __init__(self) -> None:
        self._all = hashlib.sha256()

    def read(self, storage: VersionStorage, number: int) -> bytes | None:
        """The bytes of a record, NO_FILE for what cannot be one, None where there is nothing."""
        try:
            return record_bytes(storage, number)
        except Corrupt:
            return NO_FILE

    def add(self, number: int, data: bytes) -> None:
        """Adds the next."""
        self._all.update(f"{number} {sha256(data)}\n".encode())

    def repair(
        self, data: bytes, number: int, first: int, check: Callable[[ChainRecord, bytes], None]
    ) -> ChainRecord | None:
        """The repair that these bytes are, if it sets aside what was added and is to be taken; see find_repair()."""
        record = parsed_repair(data, number)
        if record is None or (record.since, record.sha256) != (first, self.digest()):
            return None
        try:
            check(record, data)
        except (Corrupt, Conflict):
            # Of another chain, or signed by nobody who is trusted: it is set aside like the rest.
            return None
        return record

    def digest(self) -> str:
        """Of those that were added."""
        return self._all.hexdigest()


class RepairWatch:
    """Tells a follower that is DIVERGED whether a repair has come, at the cost of one look for one name."""

    def __init__(self, storage: VersionStorage) -> None:
        self._storage, self._seen = storage, 0

    def come(self, known: int) -> bool:
        """Whether there is one that this has not told of.

        Args:
            known: the newest record that was taken.
        """
        found, self._seen = False, max(self._seen, known)
        try:
            while (data := RecordsDigest().read(self._storage, self._seen + 1)) is not None:
                self._seen += 1
                found |= parsed_repair(data, self._seen) is not None
        except NotReady:
            pass
        return found
