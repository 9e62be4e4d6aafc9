"""Decide which records of a version are accepted where signatures are required (TrustedRecords).

A record is accepted if a trusted key has signed it, over the root hash of its version, or if the signed manifest
vouches for it (processor.package.manifest.TrustedRecordPrefix): such records were signed by an older key, or not at
all, before the version was signed again. They are one hash chain, which is walked back from the newest as far as it is
read. The newest record is compared with the one that was accepted before a restart.

Nothing after a record that is not accepted is read, and what is in memory stays served (DIVERGED).
"""

from __future__ import annotations

from collections.abc import Callable

from freshet_serving.processor.errors import ACCEPT, Conflict, Corrupt, NotReady
from freshet_serving.processor.package import read_file, sha256
from freshet_serving.processor.repository.log.chain_record import MAX_RECORD_NBYTES, REPAIR, ChainRecord, record_name
from freshet_serving.processor.repository.log.history import History
from freshet_serving.processor.repository.version import VersionReader


class TrustedRecords:
    """The accepted records of one version."""

    def __init__(self, version: VersionReader, root: str) -> None:
        """Read what the manifest vouches for; `root` is the version's root hash."""
        self._version, self._root = version, root
        self._keyring, self._manifest = version.keyring, version.root_manifest
        vouched = self._manifest.vouched
        # SHA-256 of vouched records, by number, as far back as they were walked.
        self._vouched = {vouched.number: vouched.sha256} if vouched is not None else {}
        self._newest = self._walked = vouched.number if vouched is not None else 0
        self._noted = 0

    def check_record(self, record: ChainRecord, data: bytes) -> None:
        if not self._keyring.trusted:
            return
        if record.number <= self._newest:
            if sha256(data) != self._hash_of(record.number):
                raise Corrupt(f"record {record.number}: expected the one that the manifest names, got a different one")
            return
        signed = record.to_sign(self._root) if record.key else b""
        self._keyring.check_signature(f"record {record.number}", record.key, record.signature, signed)

    def check_adoption(self) -> None:
        """Raise Conflict if a file without a record must not be adopted, because no key has signed it."""
        if self._keyring.trusted or self._manifest.key:
            raise Conflict("delta: expected a signed record, got only the file; use `freshet delta apply`")

    def recall(self, read: Callable[[int], bytes | None]) -> None:
        """Compare the version and its newest known record with the trust memory; raise Corrupt or NotReady.

        `read` returns a record's bytes, even if it was set aside since, or None.
        """
        memory, manifest = self._keyring.memory, self._manifest
        if memory is None:
            return
        memory.check_manifest(manifest.model, manifest.version, self._root, manifest.edition, self._version.digest)
        trusted = memory.of(manifest.model).versions.get(manifest.version)
        if trusted is None or not trusted.number:
            return
        data = read(trusted.number)
        if data is None and not self._version.storage.gone(record_name(trusted.number)):
            raise NotReady(f"record {trusted.number}: has not arrived yet")
        if data is None or sha256(data) != trusted.record:
            got = "a change log that ends before it" if data is None else "a different one"
            raise Corrupt(
                f"record {trusted.number}: expected the one that was trusted here before, got {got}; {ACCEPT}"
            )

    def remember(self, history: History) -> None:
        """Store the newest record in the trust memory; raise NotReady if that cannot be made durable."""
        memory, manifest = self._keyring.memory, self._manifest
        if memory is not None and history.number > self._noted:
            memory.note_record(manifest.model, manifest.version, history.number, history.newest)
            self._noted = history.number

    def _hash_of(self, number: int) -> str:
        while (at := self._walked) > number:
            name = record_name(at)
            self._version.storage.look_for(name)
            try:
                data = read_file(self._version.folder / name, MAX_RECORD_NBYTES).tobytes()
            except FileNotFoundError:
                if not self._version.storage.gone(name):
                    raise NotReady(f"record {at}: has not arrived yet") from None
                raise Corrupt(f"record {at}: does not exist, but the manifest names it") from None
            except OSError:
                raise NotReady(f"record {at}: cannot be read") from None
            if sha256(data) != self._vouched[at]:
                raise Corrupt(f"record {at}: expected the one that the manifest names, got a different one")
            record = ChainRecord.from_bytes(data, at)
            # The manifest does not vouch for records that a repair sets aside.
            self._walked = (record.since if record.kind == REPAIR else at) - 1
            self._vouched[self._walked] = record.previous
        return self._vouched.get(number, "")
