"""Write a version's folder: built aside, and committed by one rename (read by processor.repository.version).

Invariants: a version is built in a hidden sibling folder and renamed into place after its manifest. A version made from
what already lies in its folder (an imported SavedModel) is moved in beside it, the manifest last.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

from numpy.typing import NDArray

from freshet_serving.processor.errors import Conflict
from freshet_serving.processor.package import (
    File,
    Manifest,
    atomic_file,
    crc32,
    file_crc32,
    file_sha256,
    fsync_folder,
    hidden_beside,
    inside,
    sha256,
    write_tensors,
)
from freshet_serving.processor.repository.keyring import NO_KEYS, Keyring
from freshet_serving.processor.repository.storage import FolderStorage, VersionStorage
from freshet_serving.processor.repository.version import DELTAS, MANIFEST, VersionReader


class VersionWriter:
    """A context in which a version is written; nothing is visible before commit(), and nothing stays without it."""

    def __init__(
        self,
        repository: Path,
        model: str,
        version: int,
        beside: bool = False,
        storage: VersionStorage | None = None,
        keyring: Keyring = NO_KEYS,
    ) -> None:
        """Create the hidden folder to build the version in.

        With `beside`, the version's folder holds what it is made from, but no manifest. Raises Conflict if the version
        exists, or SigningKeyRequired.
        """
        keyring.key_for(f"version {version}")
        self.keyring = keyring
        self.model, self.version = model, version
        self.storage = storage or FolderStorage(repository / model / str(version))
        self._target, self._beside = self.storage.folder, beside
        self._files: dict[str, File] = {}
        if (self._target / MANIFEST if beside else self._target).exists():
            raise Conflict(f"version {version} of {model!r} already exists")
        self.folder = hidden_beside(self._target)
        self._new = not self._target.parent.exists()
        self.folder.mkdir(parents=True)

    def __enter__(self) -> VersionWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.folder.exists():
            shutil.rmtree(self.folder, ignore_errors=True)
        if self._new:
            # Nothing is left of a model whose first version was refused; a folder that is used by now stays.
            with suppress(OSError):
                self._target.parent.rmdir()

    def tensors(self, relative: str, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Write one safetensors file of the package."""
        with atomic_file(self._place(relative)) as file:
            write_tensors(file, arrays, {})

    def file(self, relative: str, data: bytes) -> None:
        """Write one file of any other kind."""
        self._place(relative).write_bytes(data)

    def _place(self, relative: str) -> Path:
        path = self.folder / relative
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def commit(self, manifest: Manifest, candidate: VersionStorage | None = None) -> Path:
        """List the files, write the manifest last and rename the folder into place, or as a candidate; return it."""
        self._seal(manifest)
        if candidate is not None:
            candidate.install(self.folder)
            return candidate.folder
        if self._beside:
            self._move_in()
        else:
            self.storage.install(self.folder)
        return self._target

    def preview(self, manifest: Manifest) -> VersionReader:
        """Open the version as commit() would leave it: no file may be written afterwards; close it before commit()."""
        self._seal(manifest)
        return VersionReader(self.folder, storage=FolderStorage(self._target), keyring=self.keyring)

    def _seal(self, manifest: Manifest) -> None:
        """Write the manifest, with the files as they were when it was first written."""
        if not self._files:
            paths = sorted(p for p in self.folder.rglob("*") if p.is_file())
            self._files = {path.relative_to(self.folder).as_posix(): _file_of(path) for path in paths}
        text = sealed(replace(manifest, files=self._files), self.folder, self.keyring).to_json()
        (self.folder / DELTAS).mkdir(exist_ok=True)
        with atomic_file(self.folder / MANIFEST) as file:
            file.write(text)

    def _move_in(self) -> None:
        """Move everything into the existing folder, the manifest last; leftovers of an earlier try are replaced."""
        for path in sorted(self.folder.iterdir(), key=lambda p: p.name == MANIFEST):
            storage = self._target / path.name
            if storage.is_dir() and not storage.is_symlink():
                shutil.rmtree(storage)
            if path.name == MANIFEST:
                fsync_folder(self._target)
            path.replace(storage)
        fsync_folder(self._target)


def sealed(manifest: Manifest, folder: Path, keyring: Keyring, before: Manifest | None = None) -> Manifest:
    """Return a manifest as it is to be written: signed if there is a key, unsigned if no signature is required.

    `folder` has the files whose SHA-256 it does not have yet; `before` is the manifest that it replaces. Raises
    SigningKeyRequired, or Corrupt for a file that is not regular.
    """
    signer = keyring.key_for(f"version {manifest.version}", before.key if before else "")
    if signer is None:
        return replace(manifest, key="", signature="", edition=0, vouched=None)
    files = {}
    for name, entry in manifest.files.items():
        files[name] = entry if entry.sha256 else replace(entry, sha256=file_sha256(inside(folder, name)))
    edition = before.edition + 1 if before else 0
    unsigned = replace(manifest, files=files, key=signer.id, signature="", edition=edition)
    return replace(unsigned, signature=signer.sign(unsigned.to_sign()))


def add_file(version: VersionReader, name: str, data: bytes) -> None:
    """Add or replace a file of a committed version, and update its manifest; raise NotFound.

    A reader between the two renames finds a file that the manifest does not describe: it does not open a new one, and
    refuses the version until the next poll if the checksum does not match.
    """
    manifest = VersionReader(version.folder, storage=version.storage, keyring=version.keyring).manifest
    files = {**manifest.files, name: File(len(data), crc32(data), sha256(data) if version.keyring.signer else "")}
    # Sign before anything is written: there may be no key.
    text = sealed(replace(manifest, files=files), version.folder, version.keyring, manifest).to_json()
    version.storage.replace(name, data)
    version.storage.replace(MANIFEST, text)


def _file_of(path: Path) -> File:
    """Return a file's entry for the manifest; the file is durable when the call returns."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        nbytes = os.fstat(file.fileno()).st_size
        return File(nbytes, file_crc32(file.fileno(), nbytes))
