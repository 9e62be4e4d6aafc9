"""Storage of one version in an object store, with a folder as its mirror (processor.repository.storage.VersionStorage).

Invariants
- A write goes to the store first, then to the folder: a record in the folder is, or was, in the store. The file that a
  record names is in both before the record is: a reader that sees the record need not wait.
- A name has one fixed content, in the store as in the folder.
- The folder is a copy. A file that is missing, fails its checksum or has not the size in its record is downloaded
  again; only if the store's is no better, it is damaged, or gone. catch_up() compares existing files with the store:
  the manifest, and the newest record, by whose hashes all earlier ones are checked.
- A version is built aside: files under one writer's claim (version_claim), then the manifest, created exclusively. A
  version without a manifest does not exist.
- A shared flock on `.lease` keeps the files for as long as a process needs the version.
- Nothing is downloaded whose size no manifest and no acceptable record gives, and nothing larger.

Only the store makes anything durable: files that a power cut leaves in the folder are checked like all others.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from freshet_serving.processor.errors import BadInput, Conflict, Corrupt, Diverged, NotReady
from freshet_serving.processor.extensions.object_stores.counted_store import CountedStore
from freshet_serving.processor.extensions.object_stores.version_claim import claimed
from freshet_serving.processor.extensions.object_stores.version_copy import AT_ONCE, EtagCache, VersionCopy
from freshet_serving.processor.package import MAX_DELTA_NBYTES, MAX_MANIFEST_NBYTES, Manifest, hidden_beside, sha256
from freshet_serving.processor.repository import DELTAS, MANIFEST, NO_KEYS, SNAPSHOTS, Keyring, VersionReader
from freshet_serving.processor.repository.log.chain_record import (
    CHAIN,
    DELTA,
    MAX_RECORD_NBYTES,
    REPAIR,
    ChainRecord,
    record_name,
    root_hash,
)
from freshet_serving.processor.repository.log.change_log import ChangeLog
from freshet_serving.processor.repository.log.contents import open_snapshot
from freshet_serving.processor.repository.log.dropped_deltas import unrecorded_deltas
from freshet_serving.processor.repository.log.repair import parsed_repair
from freshet_serving.processor.repository.log.trusted_records import TrustedRecords
from freshet_serving.processor.repository.storage import FolderStorage, newest

RECORD = re.compile(rf"{CHAIN}/([0-9]{{10}})\.json")
LEASE, WALKED = ".lease", 256


class MirroredStorage:
    """The storage of one version. Thread-safe."""

    remote = True

    def __init__(
        self,
        store: CountedStore,
        root: Path,
        model: str,
        number: int,
        named: Callable[[], None],
        wrote: Callable[[], None],
        now_s: Callable[[], float],
        lenient: bool,
    ) -> None:
        """Request nothing yet.

        `named` is called after writing something that others find only by its name, `wrote` after writing anything. If
        `lenient`, the files in the folder are used while the store cannot be reached.
        """
        self.model, self.folder, self.key = model, root / model / str(number), f"{model}/{number}"
        self._store, self._told, self._wrote, self._now_s, self._lenient = store, named, wrote, now_s, lenient
        self._here, self._copy = FolderStorage(self.folder), VersionCopy(store, self.folder, self.key)
        self._naming = threading.RLock()
        # True if the mirror polls it; the newest known record, -1 for none; time of the last lookup of a record.
        self.followed, self.known, self.asked_s = False, -1, -1e9
        # True if the store has reported that it has no record after that one.
        self._at_end = False
        self._gone: set[str] = set()
        self._known_files, self._etags = EtagCache(), dict[str, str]()
        self._turn = 0
        # A version with another root hash has replaced the one that is followed.
        self._replaced = False
        self._lease: int | None = None
        self._leasing = threading.Lock()
        # Time when its files were last needed; True if the store has reported that the version is gone.
        self.used_s, self.ended = now_s(), False

    # Methods of VersionStorage.

    def look_for(self, name: str) -> None:
        self.asked_s = self.used_s = self._now_s()
        if self.ended:
            return
        with self._naming:
            # A file is named before its record is: a reader that has seen the file finds the record too.
            if (self.folder / name).exists():
                return
        number = _number(name)
        if self.followed and (number is None or number > self.known):
            return
        try:
            if number is None:
                self.bring_dropped(name)
            else:
                self._fetch_record(number)
        except NotReady:
            if not self._lenient or (number is not None and number <= self.known):
                raise

    def fetch(self, name: str, nbytes: int) -> None:
        self.used_s = self._now_s()
        path = self.folder / name
        try:
            if path.stat().st_size == nbytes:
                return
        except OSError:
            pass
        self._copy.download(name, nbytes)

    def again(self, name: str) -> bool:
        (self.folder / name).unlink(missing_ok=True)
        return True

    def newest(self, named: Callable[[int], str]) -> int:
        if self.followed and self.known >= 0:
            return self.known
        newest_here = self._newest_here(named)
        try:
            start = newest_here if newest_here and self._there(named(newest_here)) else 0
            self.known = newest(lambda number: self._there(named(number)), start)
            self._at_end = True
        except NotReady:
            if not self._lenient:
                raise
            self.known = max(self.known, newest_here)
        return self.known

    def has(self, name: str) -> bool:
        return self._here.has(name) or self._there(name)

    def gone(self, name: str) -> bool:
        number = _number(name)
        if name in self._gone or number is None or number <= self.known or not self._at_end:
            return name in self._gone
        try:
            # The store may have received it since the last request.
            return not self._there(name)
        except NotReady:
            return False

    def create(self, name: str, data: bytes) -> None:
        if not self._store.create(self._copy.key(name), data):
            number = _number(name)
            if number is not None:
                self._fetch_record(number)
            raise FileExistsError(name)
        with self._naming:
            self._copy.put(name, data)
            self.known = max(self.known, _number(name) or 0)
        self._wrote()

    def give(self, aside: Path, name: str) -> None:
        if not self._store.create(self._copy.key(name), aside):
            with contextlib.suppress(Corrupt):
                self._copy.download(name, MAX_DELTA_NBYTES)
            raise FileExistsError(name)
        self._copy.name(aside, name)

    def send(self, name: str) -> None:
        path = self.folder / name
        if path.is_dir():
            self._send_all(path, name, path.rglob("*"))
            return
        # A dropped file is in the store already, and is not written again.
        head = self._store.head(self._copy.key(name)) if name.startswith(DELTAS) else None
        if head is None or head.nbytes != path.stat().st_size:
            self._store.put(self._copy.key(name), path)

    def replace(self, name: str, data: bytes) -> None:
        self._store.put(self._copy.key(name), data)
        (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
        self._here.replace(name, data)
        self._told()

    def remove(self, name: str) -> None:
        self._store.delete([*self._store.keys(self._copy.key(name) + "/"), self._copy.key(name)])
        self._here.remove(name)

    def install(self, built: Path) -> None:
        taken = Conflict(f"version {self.folder.name} of {self.folder.parent.name!r} already exists")
        data = (built / MANIFEST).read_bytes()
        if self._there(MANIFEST):
            raise taken
        with claimed(self._store, self.key, self.folder, built) as claim:
            if self._there(MANIFEST):
                claim.drop()
                raise taken
            # Leftovers of an interrupted end() would become part of this version.
            for part in (CHAIN, DELTAS, SNAPSHOTS):
                self._store.delete(self._store.keys(self._copy.key(part) + "/"))
            self._send_all(built, "", (path for path in built.rglob("*") if path.name != MANIFEST))
            claim.check_held()
            if not self._store.create(self._copy.key(MANIFEST), data):
                content = self._store.get(self._copy.key(MANIFEST), MAX_MANIFEST_NBYTES)
                if content is None or content.data != data:
                    raise taken
            self._move_in(built, data)
            self.known, self._at_end, self.ended = 0, True, False
            self._told()
        self._wrote()

    def _move_in(self, built: Path, data: bytes) -> None:
        with contextlib.suppress(OSError):
            if (self.folder / MANIFEST).read_bytes() != data:
                self.wipe()
        self.lease()
        for path in sorted((p for p in built.rglob("*") if p.is_file()), key=lambda p: p.name == MANIFEST):
            target = self.folder / path.relative_to(built)
            target.parent.mkdir(parents=True, exist_ok=True)
            path.replace(target)
        (self.folder / DELTAS).mkdir(exist_ok=True)
        shutil.rmtree(built, ignore_errors=True)

    def end(self) -> None:
        self._store.delete([self._copy.key(MANIFEST)])
        self._told()
        self._store.delete(self._store.keys(self.key + "/"))
        self.wipe()

    # Methods for the mirror.

    def lease(self) -> None:
        """Keep the folder's files for as long as the process lives, or until release()."""
        self.used_s = self._now_s()
        with self._leasing:
            if self._lease is not None and os.fstat(self._lease).st_nlink == 0:
                # Another process has removed the folder, including this file.
                self._release()
            if self._lease is None:
                self.folder.mkdir(parents=True, exist_ok=True)
                self._lease = os.open(self.folder / LEASE, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
                fcntl.flock(self._lease, fcntl.LOCK_SH)
            os.utime(self._lease)  # when it was needed last, for eviction

    def release(self) -> None:
        with self._leasing:
            self._release()

    def _release(self) -> None:
        fd, self._lease = self._lease, None
        if fd is not None:
            os.utime(fd)
            os.close(fd)

    @property
    def leased(self) -> bool:
        return self._lease is not None

    def wipe(self) -> None:
        """Remove the whole folder, because it belongs to another version of this number, or the version is gone."""
        self.release()
        self.known, self._at_end, self._replaced = -1, False, False
        self._gone.clear()
        self._etags.clear()
        self._known_files.clear()
        hidden = hidden_beside(self.folder)
        with contextlib.suppress(FileNotFoundError):
            self.folder.rename(hidden)
        shutil.rmtree(hidden, ignore_errors=True)

    def bring_manifest(self) -> bool:
        """Bring the store's manifest into the folder; return False if there is none.

        If it is another version's, the folder is removed; of a followed version only the manifest changes.
        """
        path = self.folder / MANIFEST
        content = self._store.get(self._copy.key(MANIFEST), MAX_MANIFEST_NBYTES, self._known_files.etag(path))
        if content is None:
            return False
        self.ended = False
        if content.unchanged:
            return True
        try:
            current = path.read_bytes()
        except OSError:
            current = b""
        if current and current != content.data and _root(current) != _root(content.data):
            if self.followed:
                self._replaced = True
            else:
                self.wipe()
        self.folder.mkdir(parents=True, exist_ok=True)
        self._known_files.put(path, content)
        return True

    def catch_up(self, keyring: Keyring = NO_KEYS) -> None:
        """Bring the manifest and the records since the newest snapshot in line with the store.

        Where keys are trusted, one of them must have signed the manifest before anything else is downloaded.
        """
        try:
            if self._replaced:
                self.wipe()
            if not self.bring_manifest():
                self.wipe()
                return
            if keyring.trusted:
                VersionReader(self.folder, storage=self, keyring=keyring)
            self.lease()
            number = self.newest(record_name)
            if number:
                self._agree(number)
            self._forget_others(number)
        except NotReady:
            if not (self._lenient and (self.folder / MANIFEST).exists()):
                raise
            self.lease()
            self.known = max(self.known, self._newest_here(record_name))

    def prepare(self, keyring: Keyring = NO_KEYS) -> None:
        """Bring all files needed to load the version into the folder; keys are used as in catch_up()."""
        self.catch_up(keyring)
        version = VersionReader(self.folder, storage=self, keyring=keyring)
        change_log = ChangeLog(version)
        with contextlib.suppress(Diverged):
            change_log.begin_at_snapshot()
            change_log.look()
        base = change_log.history.snapshot()
        files = version if base is None else open_snapshot(version, base)
        since = base.step if base else 0
        with ThreadPoolExecutor(AT_ONCE, "freshet-mirror") as pool:
            downloads = [pool.submit(files.fetch, [name]) for name in files.manifest.files]
            downloads += [
                pool.submit(change_log.bring_delta, link) for link in change_log.history.line() if link.step > since
            ]
            for download in downloads:
                download.result()
        for name in files.manifest.files:
            if not (self.folder / files.where(name)).exists():
                # The version is just being copied into the store, manifest first.
                raise NotReady(f"{name}: is not in the object store")

    @property
    def behind(self) -> bool:
        """True if the store may have records that have not been taken."""
        return self.known >= 0 and not self._at_end

    def advance(self, keyring: Keyring = NO_KEYS) -> None:
        """Take new records, at most WALKED at once, each after its file, which a trusted key must have signed."""
        if self.known < 0:
            return
        for _ in range(WALKED):
            number = self.known + 1
            name = record_name(number)
            data = self._record_object(name)
            if data is None:
                self._at_end = True
                return
            self._bring_set_aside(data, number)
            # An invalid record, or one that does not match its file, is reported by the ChangeLog.
            with contextlib.suppress(Corrupt):
                self._bring_file_of(ChainRecord.from_bytes(data, number), keyring)
            with self._naming:
                self._copy.put(name, data)
                self.known = max(self.known, number)
        self._at_end = False

    def _record_object(self, name: str) -> bytes | None:
        """Return the bytes of a record, None if there is none; of one that is too large, bytes that no reader takes."""
        try:
            content = self._store.get(self._copy.key(name), MAX_RECORD_NBYTES)
        except Corrupt:
            return bytes(MAX_RECORD_NBYTES + 1)
        return content.data if content is not None else None

    def _bring_set_aside(self, data: bytes, number: int) -> None:
        """Before a repair is stored, replace the records that it sets aside: one was damaged since it was copied."""
        repair = parsed_repair(data, number)
        if repair is not None:
            for other in range(repair.since, min(number, repair.since + WALKED)):
                self._fetch_record(other, anew=True)

    def _bring_file_of(self, record: ChainRecord, keyring: Keyring) -> None:
        path = self.folder / record.file
        if record.kind != DELTA or (path.exists() and path.stat().st_size == record.nbytes):
            return
        if keyring.trusted:
            version = VersionReader(self.folder, storage=self, keyring=keyring)
            try:
                TrustedRecords(version, root_hash(version.root_manifest)).check_record(record, record.to_bytes())
            except NotReady:
                # The manifest vouches for it by a later record that is not here yet: the reader will bring the file.
                return
        aside = self._copy.aside(record.file, min(record.nbytes, MAX_DELTA_NBYTES))
        if aside is not None:
            # A reader that has seen the file finds the record too: look_for().
            with self._naming:
                self._copy.name(aside, record.file)
                self._copy.put(record_name(record.number), record.to_bytes())
            aside.unlink(missing_ok=True)

    def bring_dropped(self, name: str) -> None:
        """Bring a file that may have been put into the store without a record."""
        head = self._store.head(self._copy.key(name))
        if head is not None and head.nbytes <= MAX_DELTA_NBYTES:
            self._copy.download(name, head.nbytes)

    def look_at_next_dropped(self) -> None:
        """Bring the delta after the newest record, if it was put into the store without a record."""
        record = self._record_here(self.known) if self.known > 0 else None
        if self.known == 0 or record is not None:
            name = f"{DELTAS}/{(record.top if record else 0) + 1}.safetensors"
            if not (self.folder / name).exists():
                self.bring_dropped(name)

    def scrub(self) -> None:
        """Update the newest record, another one and their files from the store; LogReader.scrub detects a change."""
        self._turn = self._turn + 1 if self._turn < self.known else 0
        for number in sorted({self.known, self._turn}):
            if number == 0:
                self._check_object(MANIFEST, MAX_MANIFEST_NBYTES)
            elif (self.folder / record_name(number)).exists() or record_name(number) in self._gone:
                record = self._record_here(number)
                self._check_object(record_name(number), MAX_RECORD_NBYTES)
                if record is not None and record.kind == DELTA:
                    self._check_file(record.file, record.nbytes)

    # Implementation.

    def _check_object(self, name: str, limit: int) -> None:
        path = self.folder / name
        content = self._store.get(self._copy.key(name), limit, self._known_files.etag(path))
        if content is None:
            if name == MANIFEST:
                return
            self._gone.add(name)
            path.unlink(missing_ok=True)
            return
        self._gone.discard(name)
        if not content.unchanged:
            self._known_files.put(path, content)

    def _check_file(self, name: str, nbytes: int) -> None:
        head, path = self._store.head(self._copy.key(name)), self.folder / name
        if head is None or head.nbytes > nbytes:
            # A file that is larger than its record says is not valid.
            self._gone.add(name)
            self._etags.pop(name, None)
            path.unlink(missing_ok=True)
            return
        was_gone = name in self._gone
        self._gone.discard(name)
        before = self._etags.setdefault(name, head.etag)
        exists = path.exists()
        replaced = exists and (before != head.etag or path.stat().st_size != head.nbytes)
        if (was_gone or replaced) and self._copy.download(name, head.nbytes):
            self._etags[name] = head.etag

    def _agree(self, number: int) -> None:
        """Bring the records in the folder in line with the store, from the newest back to where a start begins."""
        data = self._fetch_record(number, anew=True)
        try:
            record = ChainRecord.from_bytes(data, number)
            start = number
            if record.snapshot:
                snapshot = ChainRecord.from_bytes(self._fetch_record(record.snapshot, anew=True), record.snapshot)
                start = snapshot.since
            else:
                start = 1
            with ThreadPoolExecutor(AT_ONCE, "freshet-mirror") as pool:
                # In limited chunks: the number of records may be wrong.
                for end in range(number, start, -WALKED):
                    below = range(max(start, end - WALKED), end)
                    lower = [n for n in below if not (self.folder / record_name(n)).exists()]
                    list(pool.map(self._fetch_record, lower))
                    for n in reversed(below):
                        if record.kind == REPAIR and n >= record.since:
                            self._fetch_record(n, anew=True)
                            continue
                        before = (self.folder / record_name(n)).read_bytes()
                        if sha256(before) != record.previous:
                            before = self._fetch_record(n, anew=True)
                        record = ChainRecord.from_bytes(before, n)
        except (Corrupt, OSError):
            # Not a valid log: the ChangeLog reports it.
            return

    def _forget_others(self, number: int) -> None:
        """Remove files that continue the newest record and are not in the store."""
        newest = self._record_here(number) if number else None
        top = newest.top if newest else 0
        for name in _names(self.folder / CHAIN):
            if (_number(f"{CHAIN}/{name}") or 0) > number and not self._there(f"{CHAIN}/{name}"):
                (self.folder / CHAIN / name).unlink(missing_ok=True)
        for bare in unrecorded_deltas(self.folder):
            if bare.step > top and not self._there(f"{DELTAS}/{bare.path.name}"):
                bare.path.unlink(missing_ok=True)

    def _fetch_record(self, number: int, anew: bool = False) -> bytes:
        """Bring a record, even over one in the folder (`anew`); return its bytes, none if the store has none."""
        name = record_name(number)
        data = self._record_object(name)
        if data is None:
            return b""
        if not anew:
            self._bring_set_aside(data, number)
        with self._naming:
            self._copy.put(name, data, anew)
            self.known = max(self.known, number)
        return data

    def _record_here(self, number: int) -> ChainRecord | None:
        try:
            return ChainRecord.from_bytes((self.folder / record_name(number)).read_bytes(), number)
        except (OSError, Corrupt):
            return None

    def _newest_here(self, named: Callable[[int], str]) -> int:
        names = _names((self.folder / named(1)).parent)
        return max((n for name in names if (n := _number(f"{CHAIN}/{name}")) is not None), default=0)

    def _send_all(self, folder: Path, below: str, paths: Iterable[Path]) -> None:
        files = [path for path in paths if path.is_file() and not path.name.endswith(".tmp")]
        with ThreadPoolExecutor(AT_ONCE, "freshet-mirror") as pool:
            sent = [
                pool.submit(
                    self._store.put, self._copy.key(f"{below}/{p.relative_to(folder).as_posix()}".strip("/")), p
                )
                for p in files
            ]
            for upload in sent:
                upload.result()

    def _there(self, name: str) -> bool:
        return self._store.head(self._copy.key(name)) is not None


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _number(name: str) -> int | None:
    """Return the number of a record by its name; None for any other name."""
    match = RECORD.fullmatch(name)
    return int(match[1]) if match else None


def _root(data: bytes) -> str:
    try:
        return root_hash(Manifest.from_json(data))
    except BadInput:
        return ""
