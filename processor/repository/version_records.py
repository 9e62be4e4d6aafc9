"""Decisions about full versions: records that hold a version, withdraw it or release it again.

    <model>/withdrawn/<version>-<n>.json    n = 1, 2, ...: created exclusively, never changed

Servers, trainers and people write them; whoever chooses a version reads them. The newest record of a version that names
its manifest stands. Under a standing HOLD or WITHDRAW no process chooses the version by itself; under a RELEASE, or
without a record, it may.

Invariants
- A number is given once: of two writers one creates it, and the other gets Conflict, reads again and decides anew. A
  writer therefore never overrules a decision that it has not read.
- A record names the version's root hash (processor.repository.log.chain_record), which compiling, signing and recorded
  requests leave as it is. A new version under an old number is bound by no old record.
- Records count from 1 to the first number that is missing, so a stray file with a high number uses none up. A file that
  is torn, foreign or not signed by a trusted key keeps its number, says nothing, and is logged once. A file in the
  place of the folder is no folder: there are no records, and none can be written.
- A record that no reader would accept is not created.
- Nothing here reads a version's tables, and no record is needed to serve what has none.

Costs: one stat a poll while the folder stays as it was; after a change one listing and the files that are new. In an
object store the mirror lists the folder beside the versions of a model, and only if the model has such a folder.

Limit: whoever may delete files of the repository may delete a decision; a signature does not show what is missing.

Rejected: a record in the version's chain (a server reads the chain of a version after it has chosen it, and a trainer
removes old versions with their chains); one file that is replaced (no object store gives it to one of two writers);
removing the version's folder (a person may want to release it).
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from freshet_serving.processor.errors import BadInput, Conflict, Corrupt, NotReady, printable, shortage
from freshet_serving.processor.package import KEY_ID, SIGNATURE, exclusive_file, fsync_folder, read_file
from freshet_serving.processor.repository.folder_watch import FolderWatch
from freshet_serving.processor.repository.keyring import Keyring
from freshet_serving.processor.repository.log.chain_record import HEX64, HOLD, MAX_REASON, RELEASE, check_reason

if TYPE_CHECKING:
    from freshet_serving.processor.package import Signer

log = logging.getLogger("freshet.repository")

FORMAT = "freshet-version-record/1"
WITHDRAWN = "withdrawn"
ACTIONS = HOLD, WITHDRAW, RELEASE = HOLD, "withdraw", RELEASE
RECORD_NAME = re.compile(r"([1-9][0-9]{0,17})-([1-9][0-9]{0,3})\.json")
MAX_RECORD_NBYTES = 8 << 10
MAX_BY = 64
MAX_FILES = 100_000


@dataclass(frozen=True, slots=True)
class VersionRecord:
    """One decision about a full version.

    Attributes:
        model: Name of the model.
        version: The version.
        number: Number of the record among those of the version.
        action: One of ACTIONS.
        manifest: Root hash of the version that it is about.
        reason: Reason, as it was written; see `why`.
        by: Who decided: "gate", "rollback", or a person's name.
        at: Time in Unix seconds.
        key: Id of the key that signed to_sign(); "" for none.
        signature: The signature.
    """

    model: str
    version: int
    number: int
    action: str
    manifest: str
    reason: str = ""
    by: str = ""
    at: float = 0.0
    key: str = ""
    signature: str = ""

    @property
    def why(self) -> str:
        """The reason for people to read; control characters of another program are escaped."""
        return printable(self.reason)

    @property
    def binds(self) -> bool:
        """True if no process may choose the version by itself while this record stands."""
        return self.action != RELEASE

    @property
    def state(self) -> str:
        """State of the version under this record, as people read it; "available" after a release."""
        return {HOLD: "held", WITHDRAW: "withdrawn", RELEASE: "available"}[self.action]

    def describe(self) -> str:
        """Return the decision in a few words for logs and people."""
        state = "released" if self.action == RELEASE else self.state
        by = f" by {printable(self.by)}" if self.by else ""
        return f"{state}{by}{f': {self.why}' if self.reason else ''}"

    def to_bytes(self) -> bytes:
        """Return the bytes of its file: one line of JSON, keys sorted, without spaces."""
        document = {"format": FORMAT, **{name: getattr(self, name) for name in _TYPES}}
        return json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False).encode() + b"\n"

    def to_sign(self) -> bytes:
        """Return the bytes that its signature covers."""
        return dataclasses.replace(self, signature="").to_bytes()

    def signed(self, signer: Signer) -> VersionRecord:
        """Return the record with a signature."""
        made = dataclasses.replace(self, key=signer.id, signature="")
        return dataclasses.replace(made, signature=signer.sign(made.to_sign()))

    @classmethod
    def from_bytes(cls, data: bytes, model: str, version: int, number: int) -> VersionRecord:
        """Parse a record's file; raise Corrupt for anything that to_bytes() would not have written.

        Args:
            data: Bytes of the file.
            model: Model that it must name.
            version: Version that it must name.
            number: Number that it must have.
        """
        where = f"record {version}-{number}"
        try:
            raw = json.loads(data[:MAX_RECORD_NBYTES])
        except (ValueError, RecursionError):
            raise Corrupt(f"{where}: expected a JSON object") from None
        if not isinstance(raw, dict) or raw.pop("format", None) != FORMAT:
            raise Corrupt(f"{where}: expected format {FORMAT!r}")
        if raw.keys() != _TYPES.keys():
            raise Corrupt(f"{where}: expected the keys {', '.join(_TYPES)}")
        for name, kind in _TYPES.items():
            if type(raw[name]) is int and kind is float:
                raw[name] = _seconds(raw[name], where)
            if type(raw[name]) is not kind:
                raise Corrupt(f"{where}: {name}: expected {kind.__name__}")
        record = cls(**raw)
        if (record.model, record.version, record.number) != (model, version, number):
            raise Corrupt(f"{where}: expected the model, version and number of its name")
        if record.action not in ACTIONS:
            raise Corrupt(f"{where}: action: expected one of {', '.join(ACTIONS)}, got {record.action[:32]!r}")
        if not HEX64.fullmatch(record.manifest):
            raise Corrupt(f"{where}: manifest: expected 64 hexadecimal digits")
        if not 0 <= record.at < 1e12 or len(record.reason) > MAX_REASON or len(record.by) > MAX_BY:
            raise Corrupt(f"{where}: at, reason or by out of bounds")
        signed = KEY_ID.fullmatch(record.key) and SIGNATURE.fullmatch(record.signature)
        if (record.key or record.signature) and not signed:
            raise Corrupt(f"{where}: expected a key and its signature in hexadecimal digits")
        if record.to_bytes() != data:
            raise Corrupt(f"{where}: not in canonical form")
        return record


_TYPES: dict[str, type] = {
    f.name: {"int": int, "str": str, "float": float}[str(f.type)] for f in dataclasses.fields(VersionRecord)
}


def record_file(version: int, number: int) -> str:
    """Return the name of a record's file in the folder of records.

    Args:
        version: The version.
        number: Number of the record.
    """
    return f"{version}-{number}.json"


def create_record(path: Path, data: bytes) -> bool:
    """Create a record's file exclusively and durably, with its folder; return False if it exists.

    Args:
        path: The file.
        data: Its bytes.
    """
    if not path.parent.is_dir():
        path.parent.mkdir(parents=True, exist_ok=True)
        fsync_folder(path.parent.parent)
    try:
        with exclusive_file(path) as file:
            file.write(data)
    except FileExistsError:
        return False
    return True


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

        Args:
            folder: Folder of the records, existing or not.
            model: Name of the model.
            keyring: Keys to sign with and to trust.
            create: Creates a file of the folder exclusively and durably; returns False if it exists.
            unix_s: Clock for Unix seconds.
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
        """Return the record that stands for a version; None if nothing was decided about it.

        Args:
            version: The version.
            manifest: Its root hash.
        """
        self._read()
        known = self._records.get(version, [])
        return next((one for one in reversed(known) if one is not None and one.manifest == manifest), None)

    def all(self) -> list[VersionRecord]:
        """Return all valid records, by version and number."""
        self._read()
        return [one for _, records in sorted(self._records.items()) for one in records if one is not None]

    def versions(self) -> set[int]:
        """Return the versions that have records."""
        self._read()
        return set(self._records)

    def add(self, version: int, manifest: str, action: str, reason: str = "", by: str = "") -> VersionRecord:
        """Decide about a version, durably.

        Args:
            version: The version.
            manifest: Its root hash.
            action: One of ACTIONS.
            reason: Reason, at most MAX_REASON printable characters.
            by: Who decides, at most MAX_BY printable characters.

        Raises:
            Conflict: Another writer was first; its record is read with the next call: decide anew.
            SigningKeyRequired: Records must be signed, and this process has no key.
            NotReady: The repository cannot be written.
            BadInput: No reader would accept the record.
        """
        check_reason(reason)
        if len(by) > MAX_BY or not by.isprintable():
            raise BadInput(f"by: expected at most {MAX_BY} printable characters, got {len(by)}")
        with self._lock:
            known = self._records.get(version, [])
            number, last = len(known) + 1, next((one for one in reversed(known) if one is not None), None)
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
            if created and len(known := self._records.get(version, [])) == number - 1:
                self._records = {**self._records, version: [*known, record]}
                self._revision += 1
        if not created:
            raise Conflict(f"version {version}: another decision about it was recorded at the same time; try again")
        return record

    def _read(self) -> None:
        """Read the records that are new, if the folder has changed."""
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
        for version, there in numbers.items():
            known, number = self._records.get(version, []), 1
            while number in there:
                before = known[number - 1] if number <= len(known) else None
                records.setdefault(version, []).append(before or self._parsed(version, number))
                number += 1
        return records

    def _parsed(self, version: int, number: int) -> VersionRecord | None:
        """Return the record of a file; None if it is invalid."""
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


def _seconds(value: int, where: str) -> Any:
    if not 0 <= value < 10**12:
        raise Corrupt(f"{where}: at: out of bounds")
    return float(value)
