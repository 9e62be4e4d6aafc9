"""One version's change log on disk (a write-ahead log): read by servers, written by whatever changes what is served.

    <version>/chain/0000000017.json       record 17, created exclusively, never changed
    (processor.repository.log.chain_record)
    <version>/deltas/<step>.safetensors   a delta's file; its record names it, so it may have another name
    <version>/snapshots/<name>/           whole tables and dense weights (processor.repository.log.contents)

Everything that publishes, uploads, rolls back, compacts or holds writes through a ChangeLog.

Invariants
- A record's number is given once, by link(), O_EXCL or another exclusive creation (processor.repository.storage): of
  two writers one wins, and the other reads the winning record and decides again. Nothing needs a rename, a lock or a
  listing of the folder.
- A record is written after all that it names is durable: a kill leaves at most a file without a record, which is
  treated like one that was dropped into the folder. The next writer adopts it if it continues the log, with a record of
  the very bytes that its own writer would have written.
- A prepared record is durable under a hidden name before it is committed. It is used only if it is, byte for byte, the
  record to create, and becomes one only by its name, which is still given once.
- A record that no reader would accept is not created: append() parses it with the reader's own check first.
- An invalid record ends the log, until a repair sets it aside (processor.repository.log.repair).
- Records are never removed, and are read once. Checking for a new one costs one lookup of one name. A start finds the
  newest record by doubling, and reads the snapshot that it names and the records since.
- If a served record or file changes, or disappears while its version stays, the log is DIVERGED: what is in memory is
  still served, and nothing is applied until the version is loaded again. Every poll checks the newest file and, in
  turn, one of the others.
- Where nothing can be written (a copy of a repository), files are adopted in memory: the same records, not stored.

Costs for a writer: a delta takes two files, each made durable with its folder; a rollback takes one. keep() and
prepare() run while an upload's rows are staged and judged: only the last of these four fsyncs is left after that.

Rejected: one file that is appended to (no object store supports it, and a torn tail has no owner); a lease for one
writer (a trainer that died would block the rollback of what it published); steps assigned by the store alone (a delta's
file contains its step, so that it is verified whole).
"""

from __future__ import annotations

import contextlib
import errno
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

from freshet_serving.processor.errors import BadInput, Conflict, Corrupt, Diverged, FreshetError, NotFound, NotReady
from freshet_serving.processor.package import (
    SUFFIX,
    Delta,
    DeltaBytes,
    durable_file,
    file_sha256,
    hidden_beside,
    parse_delta,
    read_delta_file,
    same_content,
    sha256,
    stream_delta,
)
from freshet_serving.processor.repository.log.chain_record import (
    DELTA,
    HOLD,
    RELEASE,
    ROLLBACK,
    SNAPSHOT,
    ChainRecord,
    check_reason,
    delta_digest,
    record_name,
)
from freshet_serving.processor.repository.log.dropped_deltas import unrecorded_deltas
from freshet_serving.processor.repository.log.history import MAX_STEP_AHEAD, ChainLink, History
from freshet_serving.processor.repository.log.log_reader import LogReader
from freshet_serving.processor.repository.storage import VersionStorage, identity_of
from freshet_serving.processor.repository.version import DELTAS, VersionReader

if TYPE_CHECKING:
    from freshet_serving.processor.package import Signer

MOST_TRIES, TRY_AGAIN_S = 500, 0.01
READ_ONLY = {errno.EROFS, errno.EACCES, errno.EPERM}


@dataclass(frozen=True, slots=True)
class DurableDelta:
    """A delta's file, durable in the version's folder; `ours` if it did not exist before."""

    path: Path
    sha256: str
    nbytes: int
    ours: bool


class ChangeLog(LogReader):
    """The change log of one committed version, with what writes to it. Not thread-safe."""

    def __init__(self, version: VersionReader, unix_s: Callable[[], float] = time.time) -> None:
        """Prepare the log; nothing is read before look(). `unix_s` returns Unix seconds."""
        super().__init__(version, unix_s)
        # Number of a record that may exist although writing it has failed.
        self._doubtful = 0
        # Bytes of the prepared record, and its durable file.
        self._prepared: tuple[bytes, Path] | None = None

    @classmethod
    def of(cls, version: VersionReader, whole: bool = False) -> ChangeLog:
        """Read a log from its newest snapshot, or `whole`, and adopt dropped files; raise Diverged if it is invalid."""
        change_log = cls(version)
        if not whole:
            change_log.begin_at_snapshot()
        change_log.look()
        change_log.adopt_all()
        return change_log

    def may_write(self) -> Signer | None:
        """Return the signing key for new records, None if they are not signed; raise SigningKeyRequired."""
        return self.version.keyring.key_for("change log", self.manifest.key)

    def publish(self, delta: Delta) -> ChainLink:
        """Commit a delta that has passed Delta.check(): its file, then its record; raise Conflict or NotReady."""
        self.look()
        self.check_delta(delta)
        name = f"{delta.step}{SUFFIX}"
        durable = self._write(delta, lambda file: stream_delta(file, delta), lambda digest: name)
        return self.commit(delta, durable)

    def publish_on_head(self, make: Callable[[], Delta | None]) -> ChainLink | None:
        """Commit a delta on top of the newest generation, made anew whenever another writer was faster.

        `make` returns a delta of the head as it was last read, or None if there is nothing to commit. Raises Conflict
        if that does not continue the log, NotReady if the repository is not writable or others write all the time.
        """
        for _ in range(MOST_TRIES):
            self.look()
            delta = make()
            if delta is None:
                return None
            try:
                return self.publish(delta)
            except Diverged:
                raise
            except Conflict:
                if (self.history.head.step, self.history.top + 1) == (delta.parent_step, delta.step):
                    raise
        raise NotReady("change log: other writers write to it all the time; try again")

    def keep(self, delta: Delta, data: DeltaBytes) -> DurableDelta:
        """Make a delta's bytes durable for commit(), under a name that no reader adopts."""
        content = data.data if isinstance(data, np.ndarray) else data
        return self._write(delta, lambda file: file.write(content), lambda digest: f"{delta.step}-{digest[:8]}{SUFFIX}")

    def prepare(self, delta: Delta, kept: DurableDelta) -> None:
        """Make a kept delta's record durable under a name that no reader opens, to keep commit() short.

        Does nothing where the version does not live in a writable folder.
        """
        self._drop_prepared()
        record = self._delta_record(delta, kept.path, kept.sha256, kept.nbytes)
        if record is None or self.storage.remote:
            return
        data, path = self._sealed(record)[1], self.folder / record_name(record.number)
        aside = hidden_beside(path)
        try:
            path.parent.mkdir(exist_ok=True)
            with durable_file(aside) as file:
                file.write(data)
            self._prepared = data, aside
        except BaseException as error:
            with contextlib.suppress(OSError):
                aside.unlink(missing_ok=True)
            # commit() will try again, and say why it fails.
            if not isinstance(error, OSError):
                raise

    def commit(self, delta: Delta, kept: DurableDelta) -> ChainLink:
        """Commit the record of a delta whose file is durable; remove the file if that fails."""
        try:
            return self._record_delta(delta, kept.path, kept.sha256, kept.nbytes)
        except BaseException:
            self.forget(kept)
            raise
        finally:
            self._drop_prepared()

    def forget(self, kept: DurableDelta) -> None:
        """Remove a file that was kept and not committed, and its prepared record."""
        self._drop_prepared()
        if kept.ours and not self.may_name(f"{DELTAS}/{kept.path.name}"):
            self.storage.remove(f"{DELTAS}/{kept.path.name}")

    def may_name(self, file: str) -> bool:
        """Return True if a record names a file, or may: the log is unreadable, or writing the record failed halfway."""
        try:
            self.look()
        except FreshetError:
            return True
        return self._doubtful > self._written or file in self.history.files

    def adopt(self, path: Path) -> tuple[ChainLink, Delta]:
        """Create the record of a delta's file that lies in the folder without one, in memory if it cannot be written.

        Raises Conflict, or the error of the file.
        """
        if self._trusted is not None:
            self._trusted.check_adoption()
        data = read_delta_file(path)
        delta = parse_delta(data)
        if path.name != f"{delta.step}{SUFFIX}":
            raise BadInput(f"delta: expected step {path.name.removesuffix(SUFFIX)} by its file name, got {delta.step}")
        self.check_delta(delta)
        delta.check_fits(self.manifest)
        before, digest = identity_of(path), sha256(data)
        self.storage.send(f"{DELTAS}/{path.name}")
        link = self._record_delta(delta, path, digest, data.nbytes, in_memory=True)
        self._scrubber.add(path, before, digest, link.step)
        return link, delta

    def adopt_all(self) -> None:
        """Adopt dropped files that continue the log, in one pass by ascending step."""
        top = -1
        while top < self.history.top and (self.dropped or top < 0):
            top = self.history.top
            for bare in unrecorded_deltas(self.folder):
                if bare.step > self.history.top:
                    with contextlib.suppress(FreshetError):
                        self.adopt(bare.path)

    @property
    def dropped(self) -> bool:
        """True if a file without a record may be the next delta."""
        name = f"{DELTAS}/{self.history.top + 1}{SUFFIX}"
        self.storage.look_for(name)
        return (self.folder / name).exists()

    def check_delta(self, delta: Delta, digest: str = "") -> None:
        """Raise BadInput or Conflict unless the delta continues the log, or has done so with this SHA-256 ("": any)."""
        if delta.model != self.manifest.model:
            raise BadInput(f"delta: expected model {self.manifest.model!r}, got {delta.model[:64]!r}")
        if delta.version != self.manifest.version:
            raise Conflict(f"delta: is for version {delta.version}, but this is version {self.manifest.version}")
        if delta.step > self.history.top + MAX_STEP_AHEAD:
            most = self.history.top + MAX_STEP_AHEAD
            raise BadInput(f"delta: step: expected at most {most}, the newest is {self.history.top}, got {delta.step}")
        if delta.step <= self.history.top and self.history.known(delta.step) is None:
            self.reach_back()
        head, history = self.history.head, self.history
        served = f"{delta.version}.{head.step}"
        if delta.step <= head.step:
            raise Conflict(f"delta: step {delta.step} is not ahead of the served generation {served}")
        if delta.parent_step != head.step and not (delta.compacted and delta.parent_step < head.step):
            raise Conflict(f"delta: continues step {delta.parent_step}, the served generation is {served}")
        applied = history.known(delta.step)
        differs = digest and applied is not None and applied.record is not None and applied.record.sha256 != digest
        if differs or (applied is None and delta.step <= history.top):
            raise Conflict(f"delta: step {delta.step} is already used; the next one is {history.top + 1}")

    def rollback(self, step: int, reason: str = "") -> ChainLink:
        """Commit a rollback to a generation of the line; raise NotFound if there is none."""

        def make() -> ChainRecord | None:
            if step < self.history.base.step:
                self.reach_back()
            link = self.history.on_line(step)
            if link is None:
                target = f"{self.manifest.version}.{step}"
                raise NotFound(f"rollback: generation {target} of model {self.manifest.model!r} does not exist")
            if link is self.history.head:
                return None
            self.check_whole(link)
            return self.history.next(ROLLBACK, link, at=self._unix_s(), reason=reason)

        self.append(make)
        return self.history.head

    def check_whole(self, link: ChainLink) -> None:
        """Raise NotFound for a generation before a snapshot if files that it is built from were pruned.

        Files that are missing for other reasons do not prevent a rollback in memory.
        """
        folded = self.history.snapshot(self.history.head)
        if folded is not None and link.step < folded.step and missing(self.storage, self.history, link):
            where = f"{self.manifest.version}.{link.step}"
            raise NotFound(f"rollback: cannot return to {where}: files that it needs were pruned")

    def hold(self, reason: str = "", link: ChainLink | None = None) -> None:
        """Commit a gate behind a generation of the line (None: the head), unless there is one or it has been undone."""

        def make() -> ChainRecord | None:
            at, gate = link or self.history.head, self.history.gate
            on = self.history.on_line(at.step)
            if on is None or on.digest != at.digest or (gate is not None and gate.step <= at.step):
                return None
            self.check_whole(at)
            return self.history.next(HOLD, at, at=self._unix_s(), reason=reason)

        self.append(make)

    def release(self, reason: str = "", gate: str = "", head: str = "") -> None:
        """Commit that the gate is lifted; raise Conflict unless gate and head have these digests (gate "": any)."""

        def make() -> ChainRecord:
            history = self.history
            moved = (history.gate.digest if history.gate else "") != gate or history.head.digest != head
            if gate and moved:
                raise Conflict("release: the change log has changed meanwhile")
            return history.next(RELEASE, history.head, at=self._unix_s(), reason=reason)

        self.append(make)

    def snapshot(self, link: ChainLink, file: str, digest: str, nbytes: int) -> None:
        """Commit that a generation of the line is stored whole in a file with this SHA-256 and size."""

        def make() -> ChainRecord:
            since = link.record.number if link.record else 0
            return self.history.next(
                SNAPSHOT, link, at=self._unix_s(), file=file, sha256=digest, nbytes=nbytes, since=since
            )

        self.append(make)

    def append(self, make: Callable[[], ChainRecord | None], in_memory: bool = False) -> None:
        """Commit the record that `make` returns, in memory if the folder is not writable and `in_memory` is set.

        `make` returns None if there is nothing to commit, and is called again if another writer was faster. Raises
        BadInput for a record that no reader would accept.
        """
        self.may_write()
        for _ in range(MOST_TRIES):
            self.look()
            record = make()
            if record is None or self.create(record, in_memory):
                return
            # The writer that was faster may still be writing it.
            time.sleep(0 if self._read(record.number) else TRY_AGAIN_S)
        raise NotReady("change log: other writers write to it all the time; try again")

    def create(self, record: ChainRecord, in_memory: bool = False) -> bool:
        """Commit a record of this history (append()); return False if another writer has its number."""
        record, data = self._sealed(record)
        path = self.folder / record_name(record.number)
        try:
            self._write_unwritten()
            if self._prepared is not None and self._prepared[0] == data and self._prepared[1].exists():
                self.storage.give(self._prepared[1], record_name(record.number))
            else:
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
                raise NotReady("change log: the repository cannot be written") from None
            self._unwritten.append(data)
            self.history.take(record, sha256(data))
            return True
        # Until the record is taken, the files that it names must stay: memory may be too short to take it.
        self._doubtful = record.number
        self.history.take(record, sha256(data))
        self._written = record.number
        self._scrubber.add(path, identity_of(path), sha256(data))
        with contextlib.suppress(NotReady):
            # The record exists, even if this fails: the next poll remembers it.
            self.remember()
        return True

    def _sealed(self, record: ChainRecord) -> tuple[ChainRecord, bytes]:
        """Return a record as it is stored, signed if records are; raise BadInput if no reader would accept it."""
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
        return record, data

    def _drop_prepared(self) -> None:
        if self._prepared is not None:
            with contextlib.suppress(OSError):
                self._prepared[1].unlink(missing_ok=True)
            self._prepared = None

    def _write_unwritten(self) -> None:
        while self._unwritten:
            self.storage.create(record_name(self._written + 1), self._unwritten[0])
            self._written += 1
            del self._unwritten[0]

    def _record_delta(self, delta: Delta, path: Path, digest: str, nbytes: int, in_memory: bool = False) -> ChainLink:
        self.append(lambda: self._delta_record(delta, path, digest, nbytes), in_memory)
        return self.history.head

    def _delta_record(self, delta: Delta, path: Path, digest: str, nbytes: int) -> ChainRecord | None:
        """Return the record of a delta on the head as it was last read; None if the head is that delta."""
        head, file = self.history.head, f"{DELTAS}/{path.name}"
        # Another writer adopted the very file between its two commits.
        if head.record is not None and head.step == delta.step and head.record.sha256 == digest:
            return None
        self.check_delta(delta)
        link = ChainLink(delta.step, delta_digest(head.digest, digest), head.digest)
        return self.history.next(DELTA, link, file=file, sha256=digest, nbytes=nbytes, at=float(delta.published_at))

    def _write(self, delta: Delta, write: Callable[[BinaryIO], object], name: Callable[[str], str]) -> DurableDelta:
        """Write a delta's file, named by its SHA-256; raise Conflict if its step is used for other content."""
        deltas = self.folder / DELTAS
        aside = deltas / f".{delta.step}.{secrets.token_hex(4)}.tmp"
        try:
            deltas.mkdir(exist_ok=True)
            with durable_file(aside) as file:
                write(file)
            digest, nbytes = file_sha256(aside), aside.stat().st_size
            self.check_delta(delta, digest)
            for called in (name(digest), f"{delta.step}-{digest[:8]}{SUFFIX}"):
                target = deltas / called
                try:
                    self.storage.give(aside, f"{DELTAS}/{called}")
                except FileExistsError:
                    # The very same file, or one that was dropped under this step's name and continues no log.
                    if same_content(target, digest):
                        return DurableDelta(target, digest, nbytes, ours=False)
                    continue
                return DurableDelta(target, digest, nbytes, ours=True)
        except OSError:
            raise NotReady("delta: cannot be stored because the repository cannot be written") from None
        finally:
            with contextlib.suppress(OSError):
                aside.unlink(missing_ok=True)
        raise Conflict(f"delta: step {delta.step} is being written by another process")


def missing(storage: VersionStorage, history: History, link: ChainLink) -> str:
    """Return the first missing file that a generation is built from; "" if none is missing."""
    snapshot = history.snapshot(link)
    since = snapshot.step if snapshot else 0
    files = [snapshot.file] if snapshot else []
    files += [older.record.file for older in history.back(link) if older.step > since and older.record is not None]
    return next((name for name in files if not storage.has(name)), "")
