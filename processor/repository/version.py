"""A version's folder, read through its manifest only (written by processor.repository.version_writer).

Invariants: a folder with a number for a name and a model.json inside is always complete. A reader opens nothing that
the manifest does not name, resolves every path inside the folder (links that lead out are rejected), and checks size
and checksum of every file before it returns a view of it. Only tables, which may be larger than memory, are returned
mapped (processor.repository.mapped_file); everything else is read into memory, and checked there.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.errors import Corrupt, NotFound, unreadable
from freshet_serving.processor.memory import reserve
from freshet_serving.processor.package import (
    MAX_MANIFEST_NBYTES,
    File,
    Manifest,
    crc32,
    followed,
    inside,
    open_regular,
    parse_tensors,
    read_file,
    sha256,
)
from freshet_serving.processor.repository.keyring import NO_KEYS, Keyring
from freshet_serving.processor.repository.mapped_file import MappedFile, Stat, has_content, stat_of
from freshet_serving.processor.repository.storage import FolderStorage, VersionStorage

T = TypeVar("T")

MANIFEST = "model.json"
CANDIDATES = "candidates"
"""Folder of a model that holds its candidates (processor.repository.candidates)."""
TRAINER = "trainer.json"
"""File of a model that its trainer replaces (processor.repository.trainer_report)."""
DENSE = "dense.safetensors"
WARMUP = "warmup.safetensors"
DELTAS = "deltas"
SNAPSHOTS = "snapshots"
SNAPSHOT_FORMAT = "freshet-snapshot/1"
GRAPH = "graph"
MOST_NBYTES = 16 << 30
"""Maximum size of a file that is read into memory."""


def table_file(name: str) -> str:
    """Return a table's file (tensors keys, index, rows), relative to the version's folder."""
    return f"tables/{name}.safetensors"


@dataclass(frozen=True, slots=True)
class SnapshotManifest:
    """The manifest of a snapshot: the tables and dense weights of a version as of a step.

    Attributes:
        folder: Relative to the version's.
        digest: Digest of its generation.
        rows: Number of rows by table.
        files: By the names that the version has them under.
        published_at: Publication time of the step, in Unix seconds.
        event_time: Event times of the step; empty if unknown.
    """

    folder: str
    step: int
    digest: str
    rows: dict[str, int]
    files: dict[str, File]
    published_at: float
    event_time: list[float] = field(default_factory=list)

    def to_json(self) -> bytes:
        document = {"format": SNAPSHOT_FORMAT, **asdict(self)}
        for entry in document["files"].values():
            if not entry["sha256"]:
                del entry["sha256"]
        return (json.dumps(document, sort_keys=True, indent=1) + "\n").encode()

    @classmethod
    def from_json(cls, data: bytes) -> SnapshotManifest:
        """Parse the result of to_json(); raise Corrupt for anything that it would not have written."""
        try:
            raw = json.loads(data)
            files = {
                str(name): File(int(f["nbytes"]), str(f["crc32"]), str(f.get("sha256", "")))
                for name, f in raw["files"].items()
            }
            rows = {str(name): int(n) for name, n in raw["rows"].items()}
            published_at, times = float(raw["published_at"]), [float(t) for t in raw["event_time"]]
            snapshot = cls(str(raw["folder"]), int(raw["step"]), str(raw["digest"]), rows, files, published_at, times)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise Corrupt("snapshot: its list of files cannot be read") from None
        if snapshot.to_json() != data:
            raise Corrupt("snapshot: its list of files is not in canonical form")
        return snapshot


class VersionReader:
    """A committed version's folder, as it was published (`root_manifest`) or as of a snapshot (`manifest`).

    `digest` is the SHA-256 of the manifest's bytes, `mapped` are the files of which views were returned.
    """

    def __init__(
        self,
        folder: Path,
        snapshot: SnapshotManifest | None = None,
        storage: VersionStorage | None = None,
        keyring: Keyring = NO_KEYS,
    ) -> None:
        """Read and check the manifest, which these keys must have signed, and a snapshot if one is given.

        Raises NotFound without a manifest, or Corrupt if it is damaged or not trusted.
        """
        self.folder, self.snapshot, self.storage = folder, snapshot, storage or FolderStorage(folder)
        self.keyring = keyring
        self.mapped: list[MappedFile] = []
        self._verified: dict[str, Stat] = {}
        try:
            data = read_file(inside(folder, MANIFEST), MAX_MANIFEST_NBYTES).tobytes()
        except FileNotFoundError:
            raise NotFound(f"version {folder.name}: the manifest does not exist") from None
        except OSError as error:
            raise unreadable("manifest", error) from None
        self.manifest = Manifest.from_json(data)
        # The names of the repository, not those of the target of a link.
        named = self.storage.folder
        owners = {named.parent.name, named.parent.parent.name if named.parent.name == CANDIDATES else ""}
        if str(self.manifest.version) != named.name.lstrip("0") or self.manifest.model not in owners:
            raise Corrupt(
                f"manifest: is for {self.manifest.model!r} version {self.manifest.version}, not for its folder"
            )
        self.digest = sha256(data)
        self._check_signature(data)
        self.root_manifest = self.manifest
        if snapshot is not None:
            self.manifest = _as_of(self.root_manifest, snapshot)

    def _check_signature(self, data: bytes) -> None:
        manifest = self.manifest
        if manifest.key and manifest.to_json() != data:
            raise Corrupt("manifest: is signed, but not in canonical form")
        self.keyring.check_signature(
            "manifest", manifest.key, manifest.signature, manifest.to_sign() if manifest.key else b""
        )

    def verify(self, names: Iterable[str] | None = None) -> None:
        """Check size and checksum of the named files, or of all; raise Corrupt, which names the first that fails."""
        workers = max(1, min(8, os.cpu_count() or 1))
        with ThreadPoolExecutor(workers, "freshet-verify") as pool:
            for _ in pool.map(partial(self._twice, self._verify_once), self.manifest.files if names is None else names):
                pass

    def _twice(self, take: Callable[[str], T], name: str) -> T:
        """Call `take` with a file; if its copy is damaged and there is another, call it with that."""
        try:
            return take(name)
        except Corrupt:
            if not self.storage.again(self.where(name)):
                raise
            return take(name)

    def _verify_once(self, name: str) -> None:
        entry = self.manifest.files[name]
        path = self._brought(name)
        try:
            with open_regular(path, name) as file:
                seen = stat_of(file.fileno())
                if seen[1] != entry.nbytes:
                    raise Corrupt(f"{name}: expected {entry.nbytes} bytes, got {seen[1]}")
                good = has_content(file.fileno(), entry.nbytes, entry.crc32, entry.sha256)
        except OSError as error:
            raise unreadable(name, error) from None
        if not good:
            raise Corrupt(f"{name}: does not match its checksum")
        self._verified[name] = seen

    def tensors(self, name: str) -> dict[str, NDArray[Any]]:
        """Map a safetensors file that the manifest names and return views; it must be unchanged since verify()."""
        entry = self._entry(name)
        file = MappedFile.of(self._brought(name), name, entry.crc32, self._verified.get(name), entry.sha256)
        arrays = parse_tensors(file.array, name).arrays
        self.mapped.append(file)
        return arrays

    def file(self, name: str) -> bytes:
        """Return the bytes of a file that the manifest names, checked against its size and checksum."""
        return self._twice(self._read_once, name).tobytes()

    def _read_once(self, name: str) -> NDArray[np.uint8]:
        entry = self._entry(name)
        path = self._brought(name)
        try:
            data = read_file(path, min(entry.nbytes, MOST_NBYTES), name)
        except OSError as error:
            raise unreadable(name, error) from None
        if data.nbytes != entry.nbytes:
            raise Corrupt(f"{name}: expected {entry.nbytes} bytes, got {data.nbytes}")
        signed = entry.sha256
        if crc32(data.data) != entry.crc32 or (signed and sha256(data.data) != signed):
            raise Corrupt(f"{name}: does not match its checksum")
        return data

    def _entry(self, name: str) -> File:
        if name not in self.manifest.files:
            raise Corrupt(f"{name}: the manifest does not name it")
        return self.manifest.files[name]

    def dense(self) -> dict[str, NDArray[np.float32]]:
        """Return dense tensors by name, in shareable memory, checked against checksum and shapes."""
        arrays: dict[str, NDArray[Any]] = {}
        if self.manifest.dense:
            data = self._twice(self._read_once, DENSE)
            arrays = parse_tensors(reserve(data.nbytes, "dense", [data])[: data.nbytes], DENSE).arrays
        shapes = {name: list(a.shape) for name, a in arrays.items()}
        if shapes != self.manifest.dense or any(a.dtype != np.float32 for a in arrays.values()):
            raise Corrupt(f"{DENSE}: expected the manifest's float32 tensors")
        return arrays

    def fetch(self, names: Iterable[str] | None = None) -> None:
        """Bring the named files, or all, into the folder."""
        for name in self.manifest.files if names is None else names:
            self._brought(name)

    def _brought(self, name: str) -> Path:
        where = self.where(name)
        path = followed(self.folder, where)
        self.storage.fetch(where, self._entry(name).nbytes)
        return path

    def where(self, name: str) -> str:
        """Return the path of a file below the folder; a snapshot has a folder of its own."""
        snapshot = self.snapshot
        return f"{snapshot.folder}/{name}" if snapshot and name in snapshot.files else name


def _as_of(manifest: Manifest, snapshot: SnapshotManifest) -> Manifest:
    replaced = {table_file(t.name) for t in manifest.tables} | ({DENSE} if manifest.dense else set())
    if snapshot.files.keys() != replaced or snapshot.rows.keys() != {t.name for t in manifest.tables}:
        raise Corrupt("snapshot: expected every table of the version and its dense weights")
    tables = [replace(t, rows=snapshot.rows[t.name]) for t in manifest.tables]
    return replace(manifest, tables=tables, files={**manifest.files, **snapshot.files})
