"""One version's chain on disk: followed by who serves it, written by whoever changes what is served.

    <version>/chain/0000000017.json       record 17, created exclusively, never changed (processor.repository.log.chain_record)
    <version>/deltas/<step>.safetensors   a delta's file; named by its record, so it may be called otherwise
    <version>/snapshots/<name>/           tables and dense weights whole (processor.repository.log.contents)

Everything that publishes, uploads, rolls back, compacts or holds writes through a Ledger; there is no other writer.

Invariants
- A record's number is given once, by link(), O_EXCL or whatever else makes a file that nobody has made
  (processor.repository.storage): of two writers one wins, the other reads what won and decides anew. Nothing needs a
  rename, a lock or a list of the folder.
- A record is written after all that it names is durable, so what a kill leaves behind is a file without a record. A
  delta's file without one is what somebody might have dropped: the next writer adopts it where it continues the chain,
  and the bytes of that record are the ones that its own writer would have written.
- What a reader would not take is not created: a record is parsed by the reader's own check before it is (append).
- A record that is none ends the chain, until a repair sets it aside (processor.repository.log.repair).
- Records are never removed, and read once. To see whether there is a new one costs one look for one name. A start
  finds the newest record by doubling, reads the snapshot that it names, and only the records since.
- A record or a file that is served and that changes, or goes while its version stays, makes the chain DIVERGED: what is
  in memory is still served, and nothing further is taken until the version is loaded anew. Two of them are looked at
  with every look, the newest and, in turn, all others.
- Where nothing can be written (a copy of a repository) files are adopted in memory: the same records, not kept.

What a writer costs: a delta two files of its own, each made durable with its folder; a rollback one.

Refused: one log that is appended to (no object store can, and a torn tail has no owner); a lease for one writer (a
trainer that died would block the rollback of what it published); steps given by the store alone (a delta's file names
its step, so that it is checked whole).
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from freshet_serving.processor.repository.log.chain_record import (
    DELTA,
    HOLD,
    RELEASE,
    REPAIR,
    ROLLBACK,
    SNAPSHOT,
    ChainRecord,
    check_reason,
    delta_digest,
    record_name,
    root_digest,
    root_hash,
    sha256,
)
from freshet_serving.processor.repository.log.history import MAX_STEP_AHEAD, History, ChainLink
from freshet_serving.processor.repository.log.scrub import (
    Identity,
    Scrubber,
    TrustedRecords,
    unrecorded_deltas,
    identity_of,
    recorded_file,
)
from freshet_serving.processor.repository.log.pruning import missing
from freshet_serving.processor.repository.log.repair import (
    EmptyRecord,
    RepairWatch,
    find_repair,
    newest_repair,
    record_bytes,
)
from freshet_serving.processor.errors import BadInput, Conflict, Corrupt, Diverged, FreshetError, NotFound, NotReady
from freshet_serving.processor.repository.version import DELTAS, VersionReader, inside
from freshet_serving.processor.package import SUFFIX, Delta, DeltaBytes, parse_delta, read_delta_file, stream_delta
from freshet_serving.processor.package import file_sha256, same_content
from freshet_serving.processor.package import Signer

ABANDONED_S = 60.0
MOST_TRIES, TRY_AGAIN_S = 500, 0.01
READ_ONLY = {errno.EROFS, errno.EACCES, errno.EPERM}


@dataclass(frozen=True, slots=True)
class DurableDelta:
    """A delta's file, durable in the version's folder. ours: it was not there before."""

    path: Path
    sha256: str
    nbytes: int
    ours: bool


class ChangeLog:
    """The chain of one committed version. One thread at a time uses it."""

    def __init__(self, version: VersionReader, unix_s: Callable[[], float] = time.time) -> None:
        """Nothing is read before look()."""
        self.folder, self.storage, self.manifest = version.folder, version.storage, version.root_manifest
        self._unix_s, self._version = unix_s, version
        self._root, self._digest = root_hash(self.manifest), root_digest(self.manifest)
        self._written = 0
        # The number of a record that may stand although writing it has failed.
        self._doubtful = 0
        # Records after it that were adopted in memory, as they would be written.
        self._unwritten: list[bytes] = []
        # The newest repair for which what was read before was read anew.
        self._reread = 0
        self._scrubber, self._repairs = Scrubber(self.storage, self._root), RepairWatch(self.storage)
        self._trusted = TrustedRecords(version, self._root)
        self.history = self._empty()

    @classmethod
    def of(cls, version: VersionReader, whole: bool = False) -> ChangeLog:
        """The chain of a version, read and its dropped files adopted; from its newest snapshot on, if not `whole`.
        Raises Diverged where its records are no chain."""
        change_log = cls(version)
        if not whole:
            change_log.begin_at_snapshot()
        change_log.look()
        change_log.adopt_all()
        return change_log

    # Following.

    def look(self) -> list[ChainRecord]:
        """Takes the records that have come since the last look, and returns them; raises Diverged."""
        came = []
        while (record := self._next()) is not None:
            came.append(record)
        return came

    def _next(self) -> ChainRecord | None:
        """Takes the next record, None where there is none yet."""
        number = self._written + 1
        try:
            read = self._read(number)
            if read is not None:
                self._take_read(*read)
            return read[0] if read is not None else None
        except (Diverged, EmptyRecord):
            if self._written + 1 != number or self._unwritten:
                raise
            repair = find_repair(self.storage, number, self.check_record)
            if repair is None:
                # What was read before may be set aside as well.
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
        """Raises Corrupt or Conflict unless a record, with these bytes, is the next."""
        self._trusted.check_record(record, data)
        self.history.check_next(record)

    def repaired(self) -> bool:
        """Whether a repair has come that this was not asked about before."""
        return self._repairs.come(self._written)

    def records(self) -> Iterator[ChainRecord]:
        """Every record of the chain, read anew from the first on; raises Diverged where it ends at one that is none."""
        anew = ChangeLog(self._version, self._unix_s)
        while (record := anew._next()) is not None:
            yield record

    def scrub(self) -> None:
        """Looks at some of what is served; raises Diverged where it is not what it was (processor.repository.log.scrub)."""
        self._scrubber.look(self.history)

    def read_delta(self, link: ChainLink) -> Delta:
        """The delta that leads to a generation, verified against its record; raises Diverged where its file is another
        one, or gone."""
        record, path = link.record, self.path_of(link)
        assert record is not None, "path_of() has seen to it"
        before, data = recorded_file(self.storage, record)
        if data is None and before is not None and self.storage.again(record.file):
            before, data = recorded_file(self.storage, record)
        if before is None:
            raise Diverged(f"delta {link.step}: the file that record {record.number} names is not there", path)
        if data is None:
            raise Diverged(f"delta {link.step}: the file is not the one that record {record.number} names", path)
        delta = parse_delta(data)
        self._scrubber.add(path, before, record.sha256, link.step)
        return delta

    def bring_delta(self, link: ChainLink) -> None:
        """Has the file of the delta that leads to a generation lie in the folder, where it lies anywhere."""
        if link.record is not None and link.record.kind == DELTA:
            self.storage.fetch(link.record.file, link.record.nbytes)

    def path_of(self, link: ChainLink) -> Path:
        """The file of the delta that leads to a generation."""
        if link.record is None or link.record.kind != DELTA:
            raise NotFound(f"step {link.step}: no delta leads to it")
        return inside(self.folder, link.record.file)

    def reach_back(self) -> None:
        """Reads the records before the snapshot too, for who goes back beyond it."""
        if not self.history.whole:
            kept, self._unwritten = self._unwritten, []
            try:
                self._read_all()
                for data in kept:
                    self._take(ChainRecord.from_bytes(data, self.history.number + 1), data)
            finally:
                self._unwritten = kept

    @property
    def written(self) -> bool:
        """Whether every record that is known lies in the folder."""
        return not self._unwritten

    # Trust (processor.repository.log.chain_record).

    def recall(self) -> None:
        """Raises Corrupt where the version, or its chain, is not what was trusted before, or older; NotReady."""
        self._trusted.recall(lambda number: record_bytes(self.storage, number))

    def remember(self) -> None:
        """What was read is what was trusted from now on; raises NotReady where that cannot be made durable."""
        self._trusted.remember(self.history)

    # Writing.

    def may_write(self) -> Signer | None:
        """Who signs what is written, None where nobody has to; raises SigningKeyRequired."""
        return self._version.keyring.key_for("chain", self.manifest.key)

    def publish(self, delta: Delta) -> ChainLink:
        """Commits a delta: its file, then its record.

        The delta has passed Delta.check(). Raises Conflict unless it continues the chain, NotReady where the repository
        cannot be written.
        """
        self.look()
        self.check_delta(delta)
        name = f"{delta.step}{SUFFIX}"
        kept = self._write(delta, lambda file: stream_delta(file, delta), lambda digest: name)
        return self.commit(delta, kept)

    def keep(self, delta: Delta, data: DeltaBytes) -> DurableDelta:
        """Makes a delta's bytes durable in the version's folder, for commit(), under a name that nobody adopts: whether
        they become part of the chain is not known yet."""
        content = data.data if isinstance(data, np.ndarray) else data
        return self._write(delta, lambda file: file.write(content), lambda digest: f"{delta.step}-{digest[:8]}{SUFFIX}")

    def commit(self, delta: Delta, kept: DurableDelta) -> ChainLink:
        """Commits the record of a delta whose file is durable; takes the file back where that cannot be."""
        try:
            return self._record_delta(delta, kept.path, kept.sha256, kept.nbytes)
        except BaseException:
            self.forget(kept)
            raise

    def forget(self, kept: DurableDelta) -> None:
        """Takes back a file that was kept and not committed."""
        if kept.ours and not self.may_name(f"{DELTAS}/{kept.path.name}"):
            self.storage.remove(f"{DELTAS}/{kept.path.name}")

    def may_name(self, file: str) -> bool:
        """Whether a record names a file, or one may of which nobody can know: it may stand although writing it has
        failed."""
        try:
            self.look()
        except FreshetError:
            return True
        return self._doubtful > self._written or file in self.history.files

    def adopt(self, path: Path) -> tuple[ChainLink, Delta]:
        """Gives a delta's file that lies in the folder without a record its record: written where that can be, else
        kept in memory. Raises Conflict, or what is wrong with the file."""
        self._trusted.check_adoption()
        data = read_delta_file(path)
        delta = parse_delta(data)
        if path.name != f"{delta.step}{SUFFIX}":
            raise BadInput(f"delta: step {path.name.removesuffix(SUFFIX)} wanted by its file name, got {delta.step}")
        self.check_delta(delta)
        delta.check_fits(self.manifest)
        before, digest = identity_of(path), sha256(data)
        self.storage.send(f"{DELTAS}/{path.name}")
        link = self._record_delta(delta, path, digest, data.nbytes, in_memory=True)
        self._scrubber.add(path, before, digest, link.step)
        return link, delta

    def adopt_all(self) -> None:
        """Adopts what was dropped and continues the chain, in one pass by ascending step."""
        top = -1
        while top < self.history.top and (self.dropped or top < 0):
            top = self.history.top
            for bare in unrecorded_deltas(self.folder):
                if bare.step > self.history.top:
                    with contextlib.suppress(FreshetError):
                        self.adopt(bare.path)

    @property
    def dropped(self) -> bool:
        """Whether a file lies there that has no record and may be the next delta."""
        name = f"{DELTAS}/{self.history.top + 1}{SUFFIX}"
        self.storage.look_for(name)
        return (self.folder / name).exists()

    def check_delta(self, delta: Delta, digest: str = "") -> None:
        """Raises BadInput or Conflict unless such a delta continues the chain, anew or once more. digest: SHA-256 of
        its file, where that is known."""
        if delta.model != self.manifest.model:
            raise BadInput(f"delta: for model {delta.model[:64]!r}, wanted {self.manifest.model!r}")
        if delta.version != self.manifest.version:
            raise Conflict(f"delta: for version {delta.version}, this is version {self.manifest.version}")
        if delta.step > self.history.top + MAX_STEP_AHEAD:
            most = self.history.top + MAX_STEP_AHEAD
            raise BadInput(f"delta: step: expected at most {most}, the newest is {self.history.top}, got {delta.step}")
        if delta.step <= self.history.top and self.history.known(delta.step) is None:
            self.reach_back()
        head, history = self.history.head, self.history
        here = f"{delta.version}.{head.step}"
        if delta.step <= head.step:
            raise Conflict(f"delta: step {delta.step} is not ahead of the served generation {here}")
        if delta.parent_step != head.step and not (delta.compacted and delta.parent_step < head.step):
            raise Conflict(f"delta: continues step {delta.parent_step}, the served generation is {here}")
        known = history.known(delta.step)
        other = digest and known is not None and known.record is not None and known.record.sha256 != digest
        if other or (known is None and delta.step <= history.top):
            raise Conflict(f"delta: step {delta.step} is used already; the next one is {history.top + 1}")

    def rollback(self, step: int, reason: str = "") -> ChainLink:
        """Commits that the chain goes back to a generation of its line. Raises NotFound where there is none."""

        def make() -> ChainRecord | None:
            if step < self.history.base.step:
                self.reach_back()
            link = self.history.on_line(step)
            if link is None:
                known = f"{self.manifest.version}.{step}"
                raise NotFound(f"rollback: {known} is not a generation of model {self.manifest.model!r} to go back to")
            if link is self.history.head:
                return None
            self.check_whole(link)
            return self.history.next(ROLLBACK, link, at=self._unix_s(), reason=reason)

        self.append(make)
        return self.history.head

    def check_whole(self, link: ChainLink) -> None:
        """Raises NotFound for a generation before a snapshot where files that it is built from were pruned. What is
        lost otherwise may still be gone back to in memory."""
        folded = self.history.snapshot(self.history.head)
        if folded is not None and link.step < folded.step and missing(self.storage, self.history, link):
            where = f"{self.manifest.version}.{link.step}"
            raise NotFound(f"rollback: {where} cannot be gone back to: files that it is built from were pruned")

    def hold(self, reason: str = "", link: ChainLink | None = None) -> None:
        """Commits a gate behind a generation of the line (default: the head); nothing where one is there already, or
        where the generation has been undone."""

        def make() -> ChainRecord | None:
            at, gate = link or self.history.head, self.history.gate
            on = self.history.on_line(at.step)
            if on is None or on.digest != at.digest or (gate is not None and gate.step <= at.step):
                return None
            self.check_whole(at)
            return self.history.next(HOLD, at, at=self._unix_s(), reason=reason)

        self.append(make)

    def release(self, reason: str = "", gate: str = "", head: str = "") -> None:
        """Commits that the gate is lifted.

        Args:
            reason: kept in the record.
            gate, head: digests of the only gate and head that it may be lifted at, "" for any.

        Raises:
            Conflict: another gate or head is there by now.
        """

        def make() -> ChainRecord:
            history = self.history
            other = (history.gate.digest if history.gate else "") != gate or history.head.digest != head
            if gate and other:
                raise Conflict("release: the chain has gone on meanwhile")
            return history.next(RELEASE, history.head, at=self._unix_s(), reason=reason)

        self.append(make)

    def snapshot(self, link: ChainLink, file: str, digest: str, nbytes: int) -> None:
        """Commits that a generation of the line lies whole where `file` says; sha256, nbytes: of that file."""

        def make() -> ChainRecord:
            since = link.record.number if link.record else 0
            return self.history.next(
                SNAPSHOT, link, at=self._unix_s(), file=file, sha256=digest, nbytes=nbytes, since=since
            )

        self.append(make)

    def append(self, make: Callable[[], ChainRecord | None], in_memory: bool = False) -> None:
        """Commits the record that `make` returns, asked anew when another writer was faster; None: there is nothing to
        commit. in_memory: where the folder cannot be written the record is taken all the same, but not kept. Raises
        BadInput for a record that no reader would take."""
        self.may_write()
        for _ in range(MOST_TRIES):
            self.look()
            record = make()
            if record is None or self.create(record, in_memory):
                return
            # Whoever was faster may still be writing it.
            time.sleep(0 if self._read(record.number) else TRY_AGAIN_S)
        raise NotReady("chain: others are writing to it all the time; try again")

    def create(self, record: ChainRecord, in_memory: bool = False) -> bool:
        """Commits a record of this history; False where another writer has its number. See append()."""
        signer = self.may_write()
        check_reason(record.reason)
        self.history.check_next(record)
        if signer is not None:
            record = record.signed(signer, self._root)
        data = record.to_bytes()
        try:
            ChainRecord.from_bytes(data, record.number)
        except Corrupt as error:
            raise BadInput(str(error)) from None
        path = self.folder / record_name(record.number)
        try:
            self._write_unwritten()
            self.storage.create(record_name(record.number), data)
        except FileExistsError:
            return False
        except NotReady:
            self._doubtful = record.number
            raise
        except OSError as error:
            if self.storage.remote:
                self._doubtful = record.number
            if not (in_memory and error.errno in READ_ONLY):
                raise NotReady("chain: the repository cannot be written") from None
            self._unwritten.append(data)
            self.history.take(record, sha256(data))
            return True
        # Until it is taken in, nobody is to remove what it names: there may be no memory to take it in with.
        self._doubtful = record.number
        self.history.take(record, sha256(data))
        self._written = record.number
        self._scrubber.add(path, identity_of(path), sha256(data))
        with contextlib.suppress(NotReady):
            # It stands, whatever became of this: the next look asks again.
            self.remember()
        return True

    def _write_unwritten(self) -> None:
        """Writes what was adopted in memory while nothing could be written."""
        while self._unwritten:
            self.storage.create(record_name(self._written + 1), self._unwritten[0])
            self._written += 1
            del self._unwritten[0]

    def _record_delta(self, delta: Delta, path: Path, digest: str, nbytes: int, in_memory: bool = False) -> ChainLink:
        file = f"{DELTAS}/{path.name}"

        def make() -> ChainRecord | None:
            head = self.history.head
            # Somebody adopted the very file between its two commits.
            if head.record is not None and head.step == delta.step and head.record.sha256 == digest:
                return None
            self.check_delta(delta)
            link = ChainLink(delta.step, delta_digest(head.digest, digest), head.digest)
            return self.history.next(DELTA, link, file=file, sha256=digest, nbytes=nbytes, at=float(delta.published_at))

        self.append(make, in_memory)
        return self.history.head

    def _write(self, delta: Delta, write: Callable[[BinaryIO], object], name: Callable[[str], str]) -> DurableDelta:
        """Writes a delta's file; name: by its SHA-256. Raises Conflict for another content of a step that is used."""
        deltas = self.folder / DELTAS
        aside = deltas / f".{delta.step}.{secrets.token_hex(4)}.tmp"
        try:
            deltas.mkdir(exist_ok=True)
            with open(aside, "xb") as file:
                write(file)
                file.flush()
                os.fsync(file.fileno())
            digest, nbytes = file_sha256(aside), aside.stat().st_size
            self.check_delta(delta, digest)
            for called in (name(digest), f"{delta.step}-{digest[:8]}{SUFFIX}"):
                target = deltas / called
                try:
                    self.storage.give(aside, f"{DELTAS}/{called}")
                except FileExistsError:
                    # The very file, or one that somebody dropped under this step's name and that continues no chain.
                    if same_content(target, digest):
                        return DurableDelta(target, digest, nbytes, ours=False)
                    continue
                return DurableDelta(target, digest, nbytes, ours=True)
        except OSError:
            raise NotReady("delta: the repository cannot be written, so it could not be kept") from None
        finally:
            with contextlib.suppress(OSError):
                aside.unlink(missing_ok=True)
        raise Conflict(f"delta: step {delta.step} is being written by somebody else")

    # Reading.

    def _empty(self) -> History:
        return History(self.manifest.model, self.manifest.version, self._root, self._digest)

    def _read(self, number: int) -> tuple[ChainRecord, bytes, Path, Identity | None] | None:
        """A record and its bytes, None where there is none yet; raises Diverged for what is no record."""
        path = self.folder / record_name(number)
        before = identity_of(path)
        try:
            data = record_bytes(self.storage, number)
        except Corrupt as error:
            raise Diverged(f"record {number}: {error}", path) from None
        if data is None:
            return None
        if not data:
            # Where there are no hard links a record is created and then written: nobody wrote this one yet, or ever.
            # An object store shows no object before all of it is there.
            if self.storage.remote or (before is not None and self._unix_s() - before[0] / 1e9 > ABANDONED_S):
                cure = "if nobody is writing it, `freshet delta repair` sets it aside"
                raise EmptyRecord(f"record {number}: the file is empty; {cure}")
            return None
        try:
            record = ChainRecord.from_bytes(data, number)
            self._trusted.check_record(record, data)
            return record, data, path, before
        except Corrupt as error:
            raise Diverged(str(error), path) from None

    def _take_read(self, record: ChainRecord, data: bytes, path: Path, identity: Identity | None) -> None:
        if self._unwritten:
            # Adopted in memory before somebody wrote it: by rule the same bytes.
            if self._unwritten[0] != data:
                raise Diverged(f"record {record.number}: not what was adopted here without being written", path)
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
        """Reads the chain anew: what was read once is set aside by a repair, because it can be read no more."""
        before, self._reread = self.history, repair.number
        try:
            self._read_all(repair.number)
        except NotReady:
            self._reread = 0
            raise
        # Whoever stands on what was cut asks what it was, to put it back.
        self.history.keep_undone(before)
        self._scrubber.forget(record_name(number) for number in range(repair.since, repair.number))

    def _read_all(self, until: int = 0) -> None:
        """Reads the chain anew, from the first record on and at least to number `until`; where that fails, what was
        known stays known."""
        before = self.history, self._written
        self.history, self._written = self._empty(), 0
        try:
            self.look()
            if self._written < until:
                raise NotReady(f"record {self._written + 1}: somebody may be writing it")
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
        """Before anything is read: begins with the snapshot that a record names, the newest if it is not said which, if
        it names one. Raises Diverged where that is none."""
        newest = self._read(self.storage.newest(record_name) if number is None else number)
        if newest is None or not newest[0].snapshot:
            return
        snapshot = self._read(newest[0].snapshot)
        reached = self._read(snapshot[0].since) if snapshot else None
        if snapshot is None or reached is None or snapshot[0].digest != reached[0].digest:
            raise Diverged(f"record {newest[0].number}: record {newest[0].snapshot}, which it names, is no snapshot")
        self.history = History.since(reached[0], sha256(reached[1]), snapshot[0])
        self._written = reached[0].number
        self._scrubber.add(reached[2], reached[3], sha256(reached[1]))
