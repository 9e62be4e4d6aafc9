"""Read one version's change log: its records in order, each once, as what a server serves from.

A LogReader writes nothing; processor.repository.log.change_log extends it by writing, and has the invariants of both.

Invariants
- Records are read once: look() takes the next number until there is none.
- An invalid record ends the log, until a repair sets it aside; then the log is read again from its first record, and
  the old state stays if that fails.
- scrub() finds a served record or file that has changed since it was read. Each call checks the newest of them and, in
  turn, one of the others: two or three calls of stat(). A file that was touched or copied is read again, and accepted
  if its bytes are the same. A file that disappears together with its version is unreachable, not removed: an outage of
  a file system changes nothing. A file that has changed is checked every time, until it is restored.
- Records adopted in memory (ChangeLog.append) are the bytes that any writer would have written: a written record that
  differs from one is DIVERGED.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.errors import BadInput, Conflict, Corrupt, Diverged, NotFound, NotReady
from freshet_serving.processor.package import (
    MAX_DELTA_NBYTES,
    MAX_MANIFEST_NBYTES,
    Delta,
    Manifest,
    file_sha256,
    inside,
    parse_delta,
    read_delta_file,
    read_file,
    sha256,
)
from freshet_serving.processor.repository.log.chain_record import (
    DELTA,
    HOLD,
    REPAIR,
    ROLLBACK,
    ChainRecord,
    record_bytes,
    record_name,
    root_digest,
    root_hash,
)
from freshet_serving.processor.repository.log.history import ChainLink, History
from freshet_serving.processor.repository.storage import Identity, VersionStorage, identity_of
from freshet_serving.processor.repository.version import MANIFEST, VersionReader

if TYPE_CHECKING:
    from freshet_serving.processor.repository.log.repair import RepairWatch
    from freshet_serving.processor.repository.log.trusted_records import TrustedRecords

ABANDONED_S = 60.0


class EmptyRecord(NotReady):
    """The file of a record is empty, and has been for longer than a writer takes."""


class LogReader:
    """The change log of one committed version, as far as it is written. Not thread-safe."""

    def __init__(self, version: VersionReader, unix_s: Callable[[], float] = time.time) -> None:
        self.folder, self.storage, self.manifest = version.folder, version.storage, version.root_manifest
        self._unix_s, self.version = unix_s, version
        self._root, self._digest = root_hash(self.manifest), root_digest(self.manifest)
        self._written = 0
        # Records after the last written one that were adopted in memory, as they would be written.
        self._unwritten: list[bytes] = []
        # The newest repair that caused earlier records to be read again.
        self._reread = 0
        # None before the log was asked about repairs.
        self._repairs: RepairWatch | None = None
        self._scrubber = Scrubber(self.storage, self._root)
        # None where nothing is signed and no signature is required.
        self._trusted: TrustedRecords | None = None
        if self.manifest.key or version.keyring.trusted or version.keyring.memory is not None:
            from freshet_serving.processor.repository.log.trusted_records import TrustedRecords

            self._trusted = TrustedRecords(version, self._root)
        self.history = self._empty()

    def look(self) -> list[ChainRecord]:
        """Take and return the records that are new since the last call; raise Diverged."""
        records = []
        while (record := self._next()) is not None:
            records.append(record)
        return records

    def _next(self) -> ChainRecord | None:
        """Take and return the next record, or None."""
        number = self._written + 1
        try:
            read = self._read(number)
            if read is not None:
                self._take_read(*read)
            return read[0] if read is not None else None
        except (Diverged, EmptyRecord):
            if self._written + 1 != number or self._unwritten:
                raise
            # Loaded once a log is broken.
            from freshet_serving.processor.repository.log.repair import find_repair, newest_repair

            repair = find_repair(self.storage, number, self.check_record)
            if repair is None:
                # Records read earlier may be set aside as well.
                wider = newest_repair(self.storage, number)
                if wider is None or wider.since >= number or wider.number <= self._reread:
                    raise
                self._read_anew(wider)
                return wider
        path, data = self.folder / record_name(repair.number), repair.to_bytes()
        identity = identity_of(path)
        self.history.take(repair, sha256(data))
        self._written = repair.number
        self._scrubber.add(path, identity, sha256(data))
        return repair

    def check_record(self, record: ChainRecord, data: bytes) -> None:
        """Raise Corrupt or Conflict unless a record is trusted and the next one."""
        if self._trusted is not None:
            self._trusted.check_record(record, data)
        self.history.check_next(record)

    def repaired(self) -> bool:
        """Return True if there is a repair that no earlier call reported."""
        from freshet_serving.processor.repository.log.repair import RepairWatch

        self._repairs = self._repairs or RepairWatch(self.storage)
        return self._repairs.come(self._written)

    def records(self) -> Iterator[ChainRecord]:
        """Yield every record, read again from the first on; raise Diverged at an invalid one."""
        anew = LogReader(self.version, self._unix_s)
        while (record := anew._next()) is not None:
            yield record

    def scrub(self) -> None:
        """Check some of the served files; raise Diverged if one has changed."""
        self._scrubber.look(self.history)

    def read_delta(self, link: ChainLink) -> Delta:
        """Return a generation's delta, verified against its record; raise Diverged if that fails."""
        record, path = link.record, self.path_of(link)
        assert record is not None, "path_of() has seen to it"
        before, data = recorded_file(self.storage, record)
        if data is None and before is not None and self.storage.again(record.file):
            before, data = recorded_file(self.storage, record)
        if before is None:
            raise Diverged(f"delta {link.step}: the file that record {record.number} names does not exist", path)
        if data is None:
            raise Diverged(f"delta {link.step}: the file does not match record {record.number}", path)
        delta = parse_delta(data)
        self._scrubber.add(path, before, record.sha256, link.step)
        return delta

    def bring_delta(self, link: ChainLink) -> None:
        """Bring the file of a generation's delta into the folder, if it exists anywhere."""
        if link.record is not None and link.record.kind == DELTA:
            self.storage.fetch(link.record.file, link.record.nbytes)

    def path_of(self, link: ChainLink) -> Path:
        """Return the file of a generation's delta; raise NotFound if no delta leads to it."""
        if link.record is None or link.record.kind != DELTA:
            raise NotFound(f"step {link.step}: no delta produces it")
        return inside(self.folder, link.record.file)

    def reach_back(self) -> None:
        """Read the records before the snapshot too, to go back beyond it."""
        if not self.history.whole:
            unwritten, self._unwritten = self._unwritten, []
            try:
                self._read_all()
                for data in unwritten:
                    self._take(ChainRecord.from_bytes(data, self.history.number + 1), data)
            finally:
                self._unwritten = unwritten

    # Trust (processor.repository.log.chain_record).

    def recall(self) -> None:
        """Compare the version and its log with the trust memory; raise Corrupt if they are older or other ones.

        Raises NotReady if the record to compare is not here yet, or cannot be read.
        """
        if self._trusted is not None:
            self._trusted.recall(lambda number: record_bytes(self.storage, number))

    def remember(self) -> None:
        """Store what was read in the trust memory; raise NotReady if that cannot be made durable."""
        if self._trusted is not None:
            self._trusted.remember(self.history)

    def _empty(self) -> History:
        return History(self.manifest.model, self.manifest.version, self._root, self._digest)

    def _read(self, number: int) -> tuple[ChainRecord, bytes, Path, Identity | None] | None:
        """Return a record and its bytes, None if there is none yet; raise Diverged for an invalid one."""
        path = self.folder / record_name(number)
        before = identity_of(path)
        try:
            data = record_bytes(self.storage, number)
        except Corrupt as error:
            raise Diverged(f"record {number}: {error}", path) from None
        if data is None:
            return None
        if not data:
            # Without hard links a record is created and then written: this one was not written yet, or never will be.
            # An object store shows no object before it is complete.
            if self.storage.remote or (before is not None and self._unix_s() - before[0] / 1e9 > ABANDONED_S):
                cure = "if no process is writing it, `freshet delta repair` sets it aside"
                raise EmptyRecord(f"record {number}: the file is empty; {cure}")
            return None
        try:
            record = ChainRecord.from_bytes(data, number)
            if self._trusted is not None:
                self._trusted.check_record(record, data)
            return record, data, path, before
        except Corrupt as error:
            raise Diverged(str(error), path) from None

    def _take_read(self, record: ChainRecord, data: bytes, path: Path, identity: Identity | None) -> None:
        if self._unwritten:
            # Adopted in memory before another writer wrote it: by rule the same bytes.
            if self._unwritten[0] != data:
                raise Diverged(f"record {record.number}: differs from the record adopted here", path)
            del self._unwritten[0]
        elif record.kind in (ROLLBACK, HOLD) and record.step < self.history.base.step:
            self._read_all()
            return
        elif record.kind == REPAIR and record.since <= self.history.number and self._reread < record.number:
            self._read_anew(record)
            return
        else:
            self._take(record, data, path)
        self._written = record.number
        self._scrubber.add(path, identity, sha256(data))

    def _read_anew(self, repair: ChainRecord) -> None:
        """Read the log again, because a repair sets aside records that were read before and can no longer be read."""
        before, self._reread = self.history, repair.number
        try:
            self._read_all(repair.number)
        except NotReady:
            self._reread = 0
            raise
        # Applied records that were cut stay known, so that they can be undone.
        self.history.keep_undone(before)
        self._scrubber.forget(record_name(number) for number in range(repair.since, repair.number))

    def _read_all(self, until: int = 0) -> None:
        """Read the log from its first record on, at least to number `until`; keep the old state if that fails."""
        before = self.history, self._written
        self.history, self._written = self._empty(), 0
        try:
            self.look()
            if self._written < until:
                raise NotReady(f"record {self._written + 1}: another process may be writing it")
        except BaseException:
            self.history, self._written = before
            raise

    def _take(self, record: ChainRecord, data: bytes, path: Path | None = None) -> None:
        try:
            self.history.check_next(record)
        except Conflict as error:
            raise Diverged(str(error), path) from None
        self.history.take(record, sha256(data))

    def begin_at_snapshot(self, number: int | None = None) -> None:
        """Begin at the snapshot, if any, that a record (None: the newest) names; raise Diverged if that is invalid.

        Call this before anything is read.
        """
        newest = self._read(self.storage.newest(record_name) if number is None else number)
        if newest is None or not newest[0].snapshot:
            return
        snapshot = self._read(newest[0].snapshot)
        reached = self._read(snapshot[0].since) if snapshot else None
        if snapshot is None or reached is None or snapshot[0].digest != reached[0].digest:
            raise Diverged(f"record {newest[0].number}: record {newest[0].snapshot}, which it names, is not a snapshot")
        self.history = History.since(reached[0], sha256(reached[1]), snapshot[0])
        self._written = reached[0].number
        self._scrubber.add(reached[2], reached[3], sha256(reached[1]))


@dataclass(slots=True)
class WatchedFile:
    """A file as it was read; of the manifest the root hash, of a delta the step, else -1."""

    path: Path
    identity: Identity | None
    sha256: str
    step: int = -1


class Scrubber:
    """The watched files of one version."""

    def __init__(self, storage: VersionStorage, root: str) -> None:
        self._storage, self._folder, self._turn = storage, storage.folder, 0
        folder = storage.folder
        self._watched = [WatchedFile(folder / MANIFEST, identity_of(folder / MANIFEST), root)]

    def add(self, path: Path, identity: Identity | None, digest: str, step: int = -1) -> None:
        """Watch a file, by its identity before it was read and the SHA-256 of its bytes."""
        self._watched.append(WatchedFile(path, identity, digest, step))

    def forget(self, names: Iterable[str]) -> None:
        """Stop watching files, named relative to the version's folder."""
        paths = {self._folder / name for name in names}
        self._watched = [file for file in self._watched if file.path not in paths]

    def look(self, history: History) -> None:
        """Check the newest files and one other; raise Diverged if one has changed."""
        watched = self._watched
        self._turn = (self._turn + 1) % len(watched)
        for index in sorted({self._turn, len(watched) - 1, max(0, len(watched) - 2)}, reverse=True):
            try:
                superfluous = self._superfluous(watched[index], history)
            except Diverged:
                watched.append(watched.pop(index))
                raise
            if superfluous:
                del watched[index]

    def _superfluous(self, file: WatchedFile, history: History) -> bool:
        """Return True if a file need not be watched any longer; raise Diverged if it has changed."""
        now = identity_of(file.path)
        if now == file.identity:
            return False
        if file.step >= 0:
            link, snapshot = history.on_line(file.step), history.snapshot()
            if link is None or (snapshot is not None and file.step <= snapshot.step):
                return True
        if now is None:
            removed = self._storage.gone(f"{file.path.parent.name}/{file.path.name}")
            if not removed or not (self._folder / MANIFEST).exists():
                return False
            raise Diverged(f"{_name_of(file, history)}: is served, but its file no longer exists", file.path)
        try:
            content = _content(file.path)
        except OSError:
            return False
        if content != file.sha256:
            raise Diverged(f"{_name_of(file, history)}: is served, but its file was replaced", file.path)
        file.identity = now
        return False


def _content(path: Path) -> str:
    try:
        if path.name == MANIFEST:
            return root_hash(Manifest.from_json(read_file(path, MAX_MANIFEST_NBYTES).tobytes()))
        return file_sha256(path)
    except BadInput:
        return ""


def _name_of(file: WatchedFile, history: History) -> str:
    if file.step >= 0:
        return f"delta {history.version}.{file.step}"
    return "manifest" if file.path.name == MANIFEST else f"record {int(file.path.stem)}"


def recorded_file(storage: VersionStorage, record: ChainRecord) -> tuple[Identity | None, NDArray[np.uint8] | None]:
    """Return a delta file's identity, None if it is missing, and its bytes, None if they are not the recorded ones."""
    path = storage.folder / record.file
    try:
        storage.fetch(record.file, record.nbytes)
        before = identity_of(path)
        data = read_delta_file(path, min(record.nbytes, MAX_DELTA_NBYTES)) if before is not None else None
    except Corrupt:
        return identity_of(path) or (0, 0, 0), None
    good = data is not None and data.nbytes == record.nbytes and sha256(data) == record.sha256
    return before, data if good else None
