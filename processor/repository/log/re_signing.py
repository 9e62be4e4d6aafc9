"""Sign a version again, with another key or for the first time, and check all of it against keys.

Only the manifest is signed again. It vouches for the existing records by the number and the SHA-256 of the newest: no
byte of the change log changes, nor does a digest, so running servers and trainers go on.

A signed record has the format freshet-record/2 and two more fields: `key`, the id of the key, and `signature`, Ed25519
over the version's root hash in hexadecimal digits, a newline, and the record's bytes without `signature`. A signed
manifest has `key`, `signature`, `edition` (how often it was signed), `vouched`, and the SHA-256 of every file.
"""

from __future__ import annotations

import os
from dataclasses import replace

from freshet_serving.processor.errors import BadInput, Corrupt
from freshet_serving.processor.package import Manifest, TrustedRecordPrefix
from freshet_serving.processor.repository.keyring import NO_KEYS
from freshet_serving.processor.repository.log.chain_record import DELTA
from freshet_serving.processor.repository.log.change_log import ChangeLog, missing
from freshet_serving.processor.repository.log.contents import open_snapshot
from freshet_serving.processor.repository.model_repository import Repository
from freshet_serving.processor.repository.version import MANIFEST, VersionReader
from freshet_serving.processor.repository.version_writer import sealed


def re_sign(repository: Repository, model: str, number: int, unsigned: bool = False) -> Manifest:
    """Sign a version again by the repository's keyring; return its manifest.

    `unsigned` trusts a version without a signature as it is. Raises BadInput if it is signed, Corrupt or Diverged if a
    file or record is invalid; nothing is changed then.
    """
    keyring = repository.keyring
    version = repository.reader(model, number) if not unsigned else repository.with_keys(NO_KEYS).reader(model, number)
    repository.with_keys(keyring)
    before = version.root_manifest
    if unsigned and before.key:
        raise BadInput(f"version {number}: is signed by key {before.key}; use --trust, not --unsigned")
    change_log = check_version(version)
    history = change_log.history
    vouched = TrustedRecordPrefix(history.number, history.newest) if history.number else None
    signed = sealed(replace(before, vouched=vouched), version.folder, keyring, before)
    version.storage.replace(MANIFEST, signed.to_json())
    return signed


def check_version(version: VersionReader) -> ChangeLog:
    """Read all files and records of a version, and files that records name if they exist; return its change log.

    Raises Corrupt, with the first file that is damaged, or missing and needed; or Diverged for an invalid record.
    """
    version.verify()
    change_log = ChangeLog(version)
    change_log.look()
    history = change_log.history
    if gone := missing(version.storage, history, history.target):
        raise Corrupt(f"{gone}: does not exist, but is needed")
    for link in history.links.values():
        if link.record is not None and link.record.kind == DELTA and version.storage.has(link.record.file):
            change_log.read_delta(link)
    for record in history.snapshots:
        if version.storage.has(record.file) and os.path.dirname(record.file):
            snapshot = open_snapshot(version, record)
            assert snapshot.snapshot is not None
            snapshot.verify(snapshot.snapshot.files)
    return change_log
