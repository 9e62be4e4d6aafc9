"""Candidates: full versions that a gate has refused, complete but beside the versions that servers look at.

    <model>/candidates/<version>/    a version's folder as usual; the gate's verdict is in the notes of its manifest

No server takes it for a version, TensorFlow Serving's neither, because its folder lies below one without a number. A
person releases it, which makes it the version of its number, or rejects it, which removes it.

Invariants
- A candidate is installed as a version is: by one rename, or in an object store with the manifest last.
- Releasing never shows half a version, and never overwrites one. In a folder it is one rename; in an object store the
  version is uploaded from the candidate, its manifest last and exclusively, and then the candidate ends. After a kill
  between the two, releasing it again ends the candidate.
- The manifest stays as it is, to the byte, with its signature, its number and its root hash.

Costs: nothing for servers. Releasing a candidate in an object store downloads and uploads it once.

Rejected: a mark in the manifest of a version in its usual place (every server, older ones and others too, would have to
know it); releasing under the next free number (what was judged, signed and named in the logs would be another one).
"""

from __future__ import annotations

import os
import shutil

from freshet_serving.processor.errors import Conflict
from freshet_serving.processor.package import MAX_MANIFEST_NBYTES, fsync_folder, hidden_beside, read_file
from freshet_serving.processor.repository.storage import VersionStorage
from freshet_serving.processor.repository.version import MANIFEST, VersionReader


def release(candidate: VersionReader, target: VersionStorage) -> None:
    """Make a candidate the version of its number, in that version's storage; raise Conflict if another one has it.

    Raises Corrupt for a damaged file, or NotReady.
    """
    if target.has(MANIFEST):
        _check_same(candidate, target)
    elif target.remote:
        candidate.verify()
        _upload(candidate, target)
    else:
        candidate.verify()
        folder = candidate.storage.folder
        target.install(folder)
        fsync_folder(folder.parent)
        return
    candidate.storage.end()


def _check_same(candidate: VersionReader, target: VersionStorage) -> None:
    """Raise Conflict unless the version is this candidate, whose release a kill has interrupted."""
    target.look_for(MANIFEST)
    released = read_file(target.folder / MANIFEST, MAX_MANIFEST_NBYTES).tobytes()
    if released != read_file(candidate.folder / MANIFEST, MAX_MANIFEST_NBYTES).tobytes():
        manifest = candidate.root_manifest
        raise Conflict(
            f"version {manifest.version} of {manifest.model!r} exists by now, so the candidate of that number cannot be"
            " released: reject it, and publish a new version"
        )


def _upload(candidate: VersionReader, target: VersionStorage) -> None:
    built = hidden_beside(target.folder)
    try:
        for name in (*candidate.root_manifest.files, MANIFEST):
            path = built / name
            path.parent.mkdir(parents=True, exist_ok=True)
            os.link(candidate.folder / name, path)
        target.install(built)
    finally:
        shutil.rmtree(built, ignore_errors=True)
