"""Decisions about full versions: records that hold a version, withdraw it or release it again.

    <model>/withdrawn/<version>-<n>.json    n = 1, 2, ...: created exclusively, never changed

Servers, trainers and people write them; whoever chooses a version reads them. The newest record of a version that names
its manifest stands. Under a standing HOLD or WITHDRAW no process chooses the version by itself; under a RELEASE, or
without a record, it may.

Invariants
- A number is given once: of two writers one creates it; the other gets Conflict, reads again and decides anew. So no
  writer overrules a decision that it has not read.
- A record names the version's root hash (processor.repository.log.chain_record), which compiling, signing and recorded
  requests leave as it is. No old record binds a new version under an old number.
- Records count from 1 to the first missing number, so a stray file with a high number uses none up. A file that is
  torn, foreign or not signed by a trusted key keeps its number, decides nothing, and is logged once. With a file in the
  folder's place there are no records, and none can be written.
- A record that no reader would accept is not created.
- Nothing here reads a version's tables, and no record is needed to serve.

Costs: one stat a poll; after a change one listing and the new files. In an object store the mirror lists the folder
beside the versions of a model, and only if the model has one.

Limit: whoever may delete files of the repository may delete a decision; a signature does not show what is missing.

Rejected: a record in the version's chain (a server reads a chain after it has chosen the version, and a trainer removes
old versions with their chains); one file that is replaced (no object store gives it to one of two writers); removing
the version's folder (a person may want to release it).
"""

from __future__ import annotations

import logging
import os
import re
import threading
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from freshet_serving.processor.errors import BadInput, Conflict, Corrupt, NotReady, shortage
from freshet_serving.processor.package import read_file
from freshet_serving.processor.repository.keyring import Keyring
from freshet_serving.processor.repository.log.chain_record import check_reason
from freshet_serving.processor.repository.storage import FolderWatch

if TYPE_CHECKING:
    from freshet_serving.processor.repository.version_record import VersionRecord

log = logging.getLogger("freshet.repository")

WITHDRAWN = "withdrawn"
RECORD_NAME = re.compile(r"([1-9][0-9]{0,17})-([1-9][0-9]{0,3})\.json")
MAX_FILES = 100_000


class VersionRecords:
    """The records of one model's versions, as they were last read. Thread-safe."""

    def __init__(
        self,
        folder: Path,
        model: str,
        keyring: Keyring,
        create: Callable[[str, bytes], bool],
        unix_s: Callable[[], float] = time.time,
    ) -> None:
        """Prepare the records; nothing is read yet.

        `create` creates a file of the folder exclusively and durably, and returns False if it exists.
        """
        self._folder, self._model, self._keyring = folder, model, keyring
        self._create, self._unix_s = create, unix_s
        self._watch, self._lock = FolderWatch(folder), threading.Lock()
        # By version, from number 1 on without a gap; None for an invalid record.
        self._records: dict[int, list[VersionRecord | None]] = {}
        self._revision = 0
        self._told: set[str] = set()

    @property
    def revision(self) -> int:
        """A number that grows with every change of the records."""
        self._read()
        return self._revision

    def standing(self, version: int, manifest: str) -> VersionRecord | None:
        """Return the record that stands for a version with this root hash; None if nothing was decided."""
        self._read()
        records = self._records.get(version, [])
        return next((old for old in reversed(records) if old is not None and old.manifest == manifest), None)

    def all(self) -> list[VersionRecord]:
        """Return all valid records, by version and number."""
        self._read()
        return [record for _, records in sorted(self._records.items()) for record in records if record is not None]

    def versions(self) -> set[int]:
        self._read()
        return set(self._records)

    def add(self, version: int, manifest: str, action: str, reason: str = "", by: str = "") -> VersionRecord:
        """Decide (one of ACTIONS) about a version with a root hash, durably.

        Raises:
            Conflict: Another writer was first; its record is read with the next call: decide anew.
            SigningKeyRequired: Records must be signed, and this process has no key.
            NotReady: The repository cannot be written.
            BadInput: No reader would accept the record, or a text is too long.
        """
        from freshet_serving.processor.repository.version_record import MAX_BY, VersionRecord, record_file

        check_reason(reason)
        if len(by) > MAX_BY or not by.isprintable():
            raise BadInput(f"by: expected at most {MAX_BY} printable characters, got {len(by)}")
        with self._lock:
            records = self._records.get(version, [])
            number, last = len(records) + 1, next((old for old in reversed(records) if old is not None), None)
        name = record_file(version, number)
        if RECORD_NAME.fullmatch(name) is None:
            raise BadInput(f"version {version}: it has {number - 1} records, which is the most")
        signer = self._keyring.key_for("version record", last.key if last else "")
        record = VersionRecord(self._model, version, number, action, manifest, reason, by, float(self._unix_s()))
        if signer is not None:
            record = record.signed(signer)
        data = record.to_bytes()
        try:
            VersionRecord.from_bytes(data, self._model, version, number)
        except Corrupt as error:
            raise BadInput(str(error)) from None
        try:
            created = self._create(name, data)
        except OSError:
            raise NotReady("version record: the repository cannot be written") from None
        with self._lock:
            self._watch.again()
            if created and len(records := self._records.get(version, [])) == number - 1:
                self._records = {**self._records, version: [*records, record]}
                self._revision += 1
        if not created:
            raise Conflict(f"version {version}: another decision about it was recorded at the same time; try again")
        return record

    def _read(self) -> None:
        with self._lock:
            if not self._watch.changed():
                return
            try:
                records = self._listed()
            except BaseException:
                self._watch.again()
                raise
            if records != self._records:
                self._records, self._revision = records, self._revision + 1

    def _listed(self) -> dict[int, list[VersionRecord | None]]:
        numbers: dict[int, set[int]] = {}
        try:
            with os.scandir(self._folder) as entries:
                for entry in islice(entries, MAX_FILES):
                    if (match := RECORD_NAME.fullmatch(entry.name)) is not None:
                        numbers.setdefault(int(match[1]), set()).add(int(match[2]))
        except FileNotFoundError:
            return {}
        except NotADirectoryError:
            if WITHDRAWN not in self._told:
                self._told.add(WITHDRAWN)
                log.warning(
                    "%s: expected a folder named %r, got a file: versions are served as if nothing was decided about "
                    "them; remove the file",
                    self._model,
                    WITHDRAWN,
                )
            return {}
        except OSError as error:
            raise NotReady(f"version records: cannot be read: {os.strerror(error.errno or 0)}") from None
        records: dict[int, list[VersionRecord | None]] = {}
        for version, listed in numbers.items():
            old_records, number = self._records.get(version, []), 1
            while number in listed:
                before = old_records[number - 1] if number <= len(old_records) else None
                records.setdefault(version, []).append(before or self._parsed(version, number))
                number += 1
        return records

    def _parsed(self, version: int, number: int) -> VersionRecord | None:
        # Loaded with the first record.
        from freshet_serving.processor.repository.version_record import MAX_RECORD_NBYTES, VersionRecord, record_file

        name = record_file(version, number)
        try:
            data = read_file(self._folder / name, MAX_RECORD_NBYTES).tobytes()
            record = VersionRecord.from_bytes(data, self._model, version, number)
            self._keyring.check_signature(f"record {version}-{number}", record.key, record.signature, record.to_sign())
            return record
        except Corrupt as error:
            reason = str(error)
        except OSError as error:
            # A file that cannot be read now may be the decision that binds.
            if (short := shortage(error)) is not None:
                raise short from None
            reason = f"record {version}-{number}: cannot be read: {os.strerror(error.errno or 0)}"
        if name not in self._told:
            self._told.add(name)
            log.error("ignoring a version record of %s: %s", self._model, reason)
        return None
