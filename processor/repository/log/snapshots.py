"""Snapshots: a version's tables and dense weights as of a step, whole, in a folder of the version's.

    snapshots/<step>-<random>/snapshot.json       the list of its files (processor.repository.version.SnapshotManifest)
    snapshots/<step>-<random>/tables/...          as the version's own, index and all
    snapshots/<step>-<random>/dense.safetensors

A snapshot is written where nobody looks, every file made durable, and committed by its record. A kill before that
leaves a folder that no record names, which `freshet repository prune` removes. It changes no generation: whoever is
serving goes on, whoever starts loads it and the deltas since.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.repository.log.chain_record import ChainRecord, sha256
from freshet_serving.processor.errors import Corrupt, unreadable
from freshet_serving.processor.package.manifest import MAX_MANIFEST_NBYTES
from freshet_serving.processor.package.regular_file import read_file
from freshet_serving.processor.repository.version import SnapshotManifest, VersionReader, inside


def open_snapshot(version: VersionReader, record: ChainRecord) -> VersionReader:
    """The version as of the snapshot that a record names; raises Corrupt where it is not what the record says."""
    try:
        data = _read(version, record)
        if sha256(data) != record.sha256 and version.storage.again(record.file):
            data = _read(version, record)
    except OSError as error:
        raise unreadable(f"snapshot {record.step}: its list of files", error) from None
    if data.nbytes != record.nbytes or sha256(data) != record.sha256:
        raise Corrupt(f"snapshot {record.step}: its list of files is not the one that record {record.number} names")
    listed = SnapshotManifest.from_json(data.tobytes())
    if (listed.step, listed.digest) != (record.step, record.digest):
        raise Corrupt(f"snapshot {record.step}: its list of files is of another generation")
    if version.keyring.trusts and not all(entry.sha256 for entry in listed.files.values()):
        raise Corrupt(f"snapshot {record.step}: the SHA-256 of every file wanted, got a list from before it was signed")
    return VersionReader(version.folder, listed, version.storage, version.keyring)


def _read(version: VersionReader, record: ChainRecord) -> NDArray[np.uint8]:
    path = inside(version.folder, record.file)
    version.storage.fetch(record.file, record.nbytes)
    return read_file(path, min(record.nbytes, MAX_MANIFEST_NBYTES))
