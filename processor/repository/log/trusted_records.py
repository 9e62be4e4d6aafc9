"""Which records of a version are taken, where signatures are asked for, and what was taken before a restart.

A record is taken that one of the trusted keys has signed, over the root hash of its version, or that the signed
manifest vouches for (processor.package.manifest.TrustedRecordPrefix): what an older key has signed, or nobody has, before the
version was signed anew. Those are one hash chain, so the newest of them names all others; it is walked back as far as
is read.

A record that is not taken is none: nothing after it is read, and what is in memory is served on (DIVERGED).
"""

from __future__ import annotations

from collections.abc import Callable

from freshet_serving.processor.repository.log.chain_record import (MAX_RECORD_NBYTES, REPAIR, ChainRecord, record_name, sha256)
from freshet_serving.processor.repository.log.history import History
from freshet_serving.processor.errors import Conflict, Corrupt, NotReady
from freshet_serving.processor.package.regular_file import read_file
from freshet_serving.processor.repository.trust_memory import ACCEPT
from freshet_serving.processor.repository.version import VersionReader


class TrustedRecords:
    """Of one version."""

    def __init__(self, version: VersionReader, root: str) -> None:
        """root: the version's root hash."""
        self._version, self._root = version, root
        self._keyring, self._manifest = version.keyring, version.root_manifest
        vouched = self._manifest.vouched
        # Of the records that the manifest vouches for, by number, as far back as they were walked.
        self._vouched = {vouched.number: vouched.sha256} if vouched is not None else {}
        self._newest = self._walked = vouched.number if vouched is not None else 0
        self._noted = 0

    def check_record(self, record: ChainRecord, data: bytes) -> None:
        """Raises Corrupt unless a record may be taken. data: its bytes."""
        if not self._keyring.trusts:
            return
        if record.number <= self._newest:
            if sha256(data) != self._hash_of(record.number):
                raise Corrupt(f"record {record.number}: the one that the manifest vouches for wanted, got another one")
            return
        signed = record.to_sign(self._root) if record.key else b""
        self._keyring.check_signature(f"record {record.number}", record.key, record.signature, signed)

    def check_adoption(self) -> None:
        """Raises Conflict where a file without a record must not be given one: nobody has signed it."""
        if self._keyring.trusts or self._manifest.key:
            raise Conflict("delta: a signed record of it wanted, got the file alone: `freshet delta apply`")

    def recall(self, read: Callable[[int], bytes | None]) -> None:
        """See ChangeLog.recall. read: the bytes of a record's file, also of one that was set aside since; None where there
        is none."""
        memory, manifest = self._keyring.memory, self._manifest
        if memory is None:
            return
        memory.check_manifest(manifest.model, manifest.version, self._root, manifest.edition, self._version.digest)
        known = memory.of(manifest.model).versions.get(manifest.version)
        if known is None or not known.number:
            return
        found = read(known.number)
        if found is None and not self._version.storage.gone(record_name(known.number)):
            raise NotReady(f"record {known.number}: is not here yet")
        if found is None or sha256(found) != known.record:
            got = "a chain that ends before it" if found is None else "another one"
            raise Corrupt(f"record {known.number}: the one that was trusted here wanted, got {got}; {ACCEPT}")

    def remember(self, history: History) -> None:
        """See ChangeLog.remember."""
        memory, manifest = self._keyring.memory, self._manifest
        if memory is not None and history.number > self._noted:
            memory.note_record(manifest.model, manifest.version, history.number, history.newest)
            self._noted = history.number

    def _hash_of(self, number: int) -> str:
        """The SHA-256 that a record which is vouched for has to have."""
        while (at := self._walked) > number:
            name = record_name(at)
            self._version.storage.look_for(name)
            try:
                data = read_file(self._version.folder / name, MAX_RECORD_NBYTES).tobytes()
            except FileNotFoundError:
                if not self._version.storage.gone(name):
                    raise NotReady(f"record {at}: is not here yet") from None
                raise Corrupt(f"record {at}: the manifest vouches for it, and it is not there") from None
            except OSError:
                raise NotReady(f"record {at}: cannot be read") from None
            if sha256(data) != self._vouched[at]:
                raise Corrupt(f"record {at}: the one that the manifest vouches for wanted, got another one")
            record = ChainRecord.from_bytes(data, at)
            # What a repair sets aside nobody vouches for.
            self._walked = (record.since if record.kind == REPAIR else at) - 1
            self._vouched[self._walked] = record.previous
        return self._vouched.get(number, "")
