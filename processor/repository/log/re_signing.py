"""A version signed anew, by another key or for the first time, and all of it checked against keys.

What is signed anew is the manifest alone. It vouches for the records that there are, by the number and the SHA-256 of
the newest: no byte of the chain changes, nor does a digest, so servers and trainers that are at work go on.
"""

from __future__ import annotations

import os
from dataclasses import replace

from freshet_serving.processor.repository.log.chain_record import DELTA
from freshet_serving.processor.repository.log.contents import open_snapshot
from freshet_serving.processor.repository.log.change_log import ChangeLog
from freshet_serving.processor.repository.log.pruning import missing
from freshet_serving.processor.errors import BadInput, Corrupt
from freshet_serving.processor.repository.version import MANIFEST, VersionReader, sealed
from freshet_serving.processor.package import Manifest, TrustedRecordPrefix
from freshet_serving.processor.repository.keyring import NO_KEYS
from freshet_serving.processor.repository.model_repository import Repository


def re_sign(repository: Repository, model: str, number: int, unsigned: bool = False) -> Manifest:
    """Signs a version anew by the repository's keyring; returns its manifest.

    unsigned: nobody has signed it, and it is vouched for as it lies there. Raises Corrupt or Diverged, and changes
    nothing, for what is not what a trusted key has signed, or not whole.
    """
    keyring = repository.keyring
    version = repository.reader(model, number) if not unsigned else repository.with_keys(NO_KEYS).reader(model, number)
    repository.with_keys(keyring)
    before = version.root_manifest
    if unsigned and before.key:
        raise BadInput(f"version {number}: is signed by key {before.key}: --trust wanted, and not --unsigned")
    change_log = check_version(version)
    history = change_log.history
    vouched = TrustedRecordPrefix(history.number, history.newest) if history.number else None
    made = sealed(replace(before, vouched=vouched), version.folder, keyring, before)
    version.storage.replace(MANIFEST, made.to_json())
    return made


def check_version(version: VersionReader) -> ChangeLog:
    """Reads every file and every record of a version, and what the records name, as far as it is needed or still there;
    raises Corrupt or Diverged with the first that is not what it should be."""
    version.verify()
    change_log = ChangeLog(version)
    change_log.look()
    history = change_log.history
    if gone := missing(version.storage, history, history.target):
        raise Corrupt(f"{gone}: is needed, and is not there")
    for link in history.links.values():
        if link.record is not None and link.record.kind == DELTA and version.storage.has(link.record.file):
            change_log.read_delta(link)
    for record in history.snapshots:
        if version.storage.has(record.file) and os.path.dirname(record.file):
            snapshot = open_snapshot(version, record)
            assert snapshot.snapshot is not None
            snapshot.verify(snapshot.snapshot.files)
    return change_log
