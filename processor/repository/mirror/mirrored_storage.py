"""One version that lives in an object store, with a folder that is its mirror (processor.repository.storage.VersionStorage).

Invariants
- What is written is in the store first, and in the folder after: a record that the folder has, the store has, or had.
  What a record names is in the store before the record is (processor.repository.log.change_log), and its file in the folder too, so
  that a reader who meets the record need not wait.
- A name has one content for good, in the store as in the folder (processor.repository.mirror.version_copy).
- The folder is a copy. What fails its checksum there, has another size than its record says, or is not there, is
  brought (once more); only what is not in the store either is wrong, or gone. catch_up() compares what lies there from
  before with the store: the manifest, and the newest record, with which by its hashes all before it agree.
- Versions are built aside: files under the claim of one writer (processor.repository.mirror.version_claim), then the manifest,
  created exclusively. A version without a manifest is none.
- What is needed is kept by a shared lock (flock) on `.lease`, for as long as a process needs the version.
- Nothing that the manifest, or a record that may be taken, has not told the size of is brought, and nothing larger.

Nothing is made durable here but by the store: what a power cut leaves of the folder is checked like all else.
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

from freshet_serving.processor.repository.log.chain_record import (CHAIN, DELTA, MAX_RECORD_NBYTES, REPAIR, ChainRecord, record_name, root_hash, sha256)
from freshet_serving.processor.repository.log.contents import open_snapshot
from freshet_serving.processor.repository.log.change_log import ChangeLog
from freshet_serving.processor.repository.log.scrub import TrustedRecords, unrecorded_deltas
from freshet_serving.processor.repository.log.repair import parsed_repair
from freshet_serving.processor.errors import BadInput, Conflict, Corrupt, Diverged, NotReady
from freshet_serving.processor.repository.mirror.counted_store import CountedStore
from freshet_serving.processor.repository.mirror.version_claim import claimed
from freshet_serving.processor.repository.mirror.version_copy import AT_ONCE, EtagCache, VersionCopy
from freshet_serving.processor.repository.version import DELTAS, MANIFEST, SNAPSHOTS, VersionReader
from freshet_serving.processor.package import MAX_DELTA_NBYTES, MAX_MANIFEST_NBYTES, Manifest
from freshet_serving.processor.package import hidden_beside
from freshet_serving.processor.repository.keyring import NO_KEYS, Keyring
from freshet_serving.processor.repository.storage import FolderStorage, newest

RECORD = re.compile(rf"{CHAIN}/([0-9]{{10}})\.json")
LEASE, WALKED = ".lease", 256


class MirroredStorage:
    """One version's. Thread-safe."""

    remote = True

    def __init__(
        self,
        store: CountedStore,
        root: Path,
        model: str,
        number: int,
        told: Callable[[], None],
        wrote: Callable[[], None],
        now_s: Callable[[], float],
        lenient: bool,
    ) -> None:
        """told: called when something was written that others find by its name only; wrote: when anything was.
        lenient: where the store cannot be reached, what lies in the folder counts."""
        self.model, self.folder, self.key = model, root / model / str(number), f"{model}/{number}"
        self._store, self._told, self._wrote, self._now_s, self._lenient = store, told, wrote, now_s, lenient
        self._here, self._copy = FolderStorage(self.folder), VersionCopy(store, self.folder, self.key)
        self._naming = threading.RLock()
        # Whether somebody looks all the time; the newest record that is known; when somebody asked for one.
        self.followed, self.known, self.asked_s = False, -1, -1e9
        # Whether the store has said that it has no record after that one.
        self._at_end = False
        self._gone: set[str] = set()
        self._known_files, self._etags = EtagCache(), dict[str, str]()
        self._turn = 0
        # A version of another root has come in the place of the one that is followed.
        self._replaced = False
        self._lease: int | None = None
        self._leasing = threading.Lock()
        # When its files were last needed; whether the store has said that there is no such version any more.
        self.used_s, self.ended = now_s(), False

    # What a VersionStorage has.

    def look_for(self, name: str) -> None:
        self.asked_s = self.used_s = self._now_s()
        if self.ended:
            return
        with self._naming:
            # A file is named before its record is: who has seen the file finds the record too.
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
        here = self._newest_here(named)
        try:
            known = here if here and self._there(named(here)) else 0
            self.known = newest(lambda number: self._there(named(number)), known)
            self._at_end = True
        except NotReady:
            if not self._lenient:
                raise
            self.known = max(self.known, here)
        return self.known

    def has(self, name: str) -> bool:
        return self._here.has(name) or self._there(name)

    def gone(self, name: str) -> bool:
        number = _number(name)
        if name in self._gone or number is None or number <= self.known or not self._at_end:
            return name in self._gone
        try:
            # That it had none when it was last asked does not say that it has none now.
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
        # What was dropped is there already, and is not written again.
        found = self._store.head(self._copy.key(name)) if name.startswith(DELTAS) else None
        if found is None or found.nbytes != path.stat().st_size:
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
        taken = Conflict(f"version {self.folder.name} of {self.folder.parent.name!r} exists already")
        data = (built / MANIFEST).read_bytes()
        if self._there(MANIFEST):
            raise taken
        with claimed(self._store, self.key, self.folder, built) as claim:
            if self._there(MANIFEST):
                claim.drop()
                raise taken
            # What an end() that was cut short has left there would become part of this version.
            for part in (CHAIN, DELTAS, SNAPSHOTS):
                self._store.delete(self._store.keys(self._copy.key(part) + "/"))
            self._send_all(built, "", (path for path in built.rglob("*") if path.name != MANIFEST))
            claim.check_held()
            if not self._store.create(self._copy.key(MANIFEST), data):
                found = self._store.get(self._copy.key(MANIFEST), MAX_MANIFEST_NBYTES)
                if found is None or found.data != data:
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

    # What the mirror asks for.

    def lease(self) -> None:
        """Keeps the folder's files, for as long as the process lives or until release()."""
        self.used_s = self._now_s()
        with self._leasing:
            if self._lease is not None and os.fstat(self._lease).st_nlink == 0:
                # Another process has wiped the folder, and this with it.
                self._release()
            if self._lease is None:
                self.folder.mkdir(parents=True, exist_ok=True)
                self._lease = os.open(self.folder / LEASE, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
                fcntl.flock(self._lease, fcntl.LOCK_SH)
            os.utime(self._lease)  # when it was needed last, for eviction

    def release(self) -> None:
        """The process needs the folder's files no longer."""
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
        """Removes the folder, whole: what lies there is of another version of its number, or the version has gone."""
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
        """Has the manifest be the store's; False where there is none. A version that is another one than what lies here
        begins anew, unless it is followed: then only what it is has changed."""
        path = self.folder / MANIFEST
        found = self._store.get(self._copy.key(MANIFEST), MAX_MANIFEST_NBYTES, self._known_files.etag(path))
        if found is None:
            return False
        self.ended = False
        if found.unchanged:
            return True
        try:
            here = path.read_bytes()
        except OSError:
            here = b""
        if here and here != found.data and _root(here) != _root(found.data):
            if self.followed:
                self._replaced = True
            else:
                self.wipe()
        self.folder.mkdir(parents=True, exist_ok=True)
        self._known_files.put(path, found)
        return True

    def catch_up(self, keyring: Keyring = NO_KEYS) -> None:
        """Has the manifest and the records since the newest snapshot be the store's, whatever lies here. keyring: whom
        the manifest has to be signed by before anything else is brought."""
        try:
            if self._replaced:
                self.wipe()
            if not self.bring_manifest():
                self.wipe()
                return
            if keyring.trusts:
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
        """Has all that it takes to load the version lie in the folder. keyring: see catch_up()."""
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
            wanted = [pool.submit(files.fetch, [name]) for name in files.manifest.files]
            wanted += [pool.submit(change_log.bring_delta, link) for link in change_log.history.line() if link.step > since]
            for one in wanted:
                one.result()
        for name in files.manifest.files:
            if not (self.folder / files.where(name)).exists():
                # Somebody copies it into the store, and the manifest was first.
                raise NotReady(f"{name}: is not in the object store")

    @property
    def behind(self) -> bool:
        """Whether the store may have records that have not been taken."""
        return self.known >= 0 and not self._at_end

    def advance(self, keyring: Keyring = NO_KEYS) -> None:
        """Takes the records that have come, WALKED at once, each with its file before it, unless none of the keyring's
        keys has signed it."""
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
            # What is no record, or names another file than it says, is the ledger's to tell.
            with contextlib.suppress(Corrupt):
                self._bring_file_of(ChainRecord.from_bytes(data, number), keyring)
            with self._naming:
                self._copy.put(name, data)
                self.known = max(self.known, number)
        self._at_end = False

    def _record_object(self, name: str) -> bytes | None:
        """The bytes of a record's object, None where there is none; of one that is too large for a record, as many that
        no reader takes them either."""
        try:
            found = self._store.get(self._copy.key(name), MAX_RECORD_NBYTES)
        except Corrupt:
            return bytes(MAX_RECORD_NBYTES + 1)
        return found.data if found is not None else None

    def _bring_set_aside(self, data: bytes, number: int) -> None:
        """Before a repair comes: has what it sets aside be the store's. A sound copy may lie here of a record that was
        damaged since."""
        repair = parsed_repair(data, number)
        if repair is not None:
            for other in range(repair.since, min(number, repair.since + WALKED)):
                self._fetch_record(other, anew=True)

    def _bring_file_of(self, record: ChainRecord, keyring: Keyring) -> None:
        path = self.folder / record.file
        if record.kind != DELTA or (path.exists() and path.stat().st_size == record.nbytes):
            return
        if keyring.trusts:
            version = VersionReader(self.folder, storage=self, keyring=keyring)
            try:
                TrustedRecords(version, root_hash(version.root_manifest)).check_record(record, record.to_bytes())
            except NotReady:
                # The manifest vouches for it by a later one, which comes after it: who reads brings the file.
                return
        aside = self._copy.aside(record.file, min(record.nbytes, MAX_DELTA_NBYTES))
        if aside is not None:
            # Who has seen the file finds the record too: look_for().
            with self._naming:
                self._copy.name(aside, record.file)
                self._copy.put(record_name(record.number), record.to_bytes())
            aside.unlink(missing_ok=True)

    def bring_dropped(self, name: str) -> None:
        """Brings a file that somebody may have put there without a record."""
        found = self._store.head(self._copy.key(name))
        if found is not None and found.nbytes <= MAX_DELTA_NBYTES:
            self._copy.download(name, found.nbytes)

    def look_at_next_dropped(self) -> None:
        """The same for the delta after the newest record."""
        record = self._record_here(self.known) if self.known > 0 else None
        if self.known == 0 or record is not None:
            name = f"{DELTAS}/{(record.top if record else 0) + 1}.safetensors"
            if not (self.folder / name).exists():
                self.bring_dropped(name)

    def scrub(self) -> None:
        """Looks whether the newest record, another one, and what they name, are still what lies here, and makes what
        lies here what they are: who serves it finds that out (processor.repository.log.scrub)."""
        self._turn = self._turn + 1 if self._turn < self.known else 0
        for number in sorted({self.known, self._turn}):
            if number == 0:
                self._check_object(MANIFEST, MAX_MANIFEST_NBYTES)
            elif (self.folder / record_name(number)).exists() or record_name(number) in self._gone:
                record = self._record_here(number)
                self._check_object(record_name(number), MAX_RECORD_NBYTES)
                if record is not None and record.kind == DELTA:
                    self._check_file(record.file, record.nbytes)

    # How.

    def _check_object(self, name: str, limit: int) -> None:
        path = self.folder / name
        found = self._store.get(self._copy.key(name), limit, self._known_files.etag(path))
        if found is None:
            if name == MANIFEST:
                return
            self._gone.add(name)
            path.unlink(missing_ok=True)
            return
        self._gone.discard(name)
        if not found.unchanged:
            self._known_files.put(path, found)

    def _check_file(self, name: str, nbytes: int) -> None:
        found, path = self._store.head(self._copy.key(name)), self.folder / name
        if found is None or found.nbytes > nbytes:
            # One that is larger than its record says is none.
            self._gone.add(name)
            self._etags.pop(name, None)
            path.unlink(missing_ok=True)
            return
        was_gone = name in self._gone
        self._gone.discard(name)
        before = self._etags.setdefault(name, found.etag)
        there = path.exists()
        replaced = there and (before != found.etag or path.stat().st_size != found.nbytes)
        if (was_gone or replaced) and self._copy.download(name, found.nbytes):
            self._etags[name] = found.etag

    def _agree(self, number: int) -> None:
        """Makes the records that lie here those of the store, from the newest back to where a start begins."""
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
                # So many at once: what says that there are more may be wrong.
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
            # No chain: the ledger says so.
            return

    def _forget_others(self, number: int) -> None:
        """Removes what lies here as if it came after the newest record, and is not in the store."""
        newest = self._record_here(number) if number else None
        top = newest.top if newest else 0
        for name in _names(self.folder / CHAIN):
            if (_number(f"{CHAIN}/{name}") or 0) > number and not self._there(f"{CHAIN}/{name}"):
                (self.folder / CHAIN / name).unlink(missing_ok=True)
        for bare in unrecorded_deltas(self.folder):
            if bare.step > top and not self._there(f"{DELTAS}/{bare.path.name}"):
                bare.path.unlink(missing_ok=True)

    def _fetch_record(self, number: int, anew: bool = False) -> bytes:
        """Brings a record, if there is one; its bytes. anew: though one lies here."""
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
            for one in sent:
                one.result()

    def _there(self, name: str) -> bool:
        return self._store.head(self._copy.key(name)) is not None


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _number(name: str) -> int | None:
    """The number of a record by its name; None for what is named otherwise."""
    found = RECORD.fullmatch(name)
    return int(found[1]) if found else None


def _root(data: bytes) -> str:
    try:
        return root_hash(Manifest.from_json(data))
    except BadInput:
        return ""
