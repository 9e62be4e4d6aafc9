"""A version's folder: written aside and committed by one rename, read through its manifest only.

Invariants: a version is built in a hidden sibling folder and renamed into place after its manifest, so a folder with
a number for a name and a model.json inside is always complete. A version made from what lies in its folder already (an
imported SavedModel) is moved in beside it, the manifest last. A reader opens nothing that the manifest does not name,
resolves every path inside the folder (links that lead out are refused), and checks size and checksum of every file
before it hands out a view of it. Tables alone are handed out mapped, because they may be larger than memory
(processor.repository.mapped_file); all else is read into memory, and checked there.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.errors import Conflict, Corrupt, NotFound, unreadable
from freshet_serving.processor.memory import reserve
from freshet_serving.processor.package import atomic_file, fsync_folder, hidden_beside
from freshet_serving.processor.repository.keyring import NO_KEYS, Keyring
from freshet_serving.processor.package import MAX_MANIFEST_NBYTES, File, Manifest
from freshet_serving.processor.repository.mapped_file import MappedFile, Stat, has_content, stat_of
from freshet_serving.processor.repository.storage import FolderStorage, VersionStorage
from freshet_serving.processor.package import file_sha256, open_regular, read_file
from freshet_serving.processor.package import crc32, file_crc32, parse_tensors, write_tensors

MANIFEST = "model.json"
DENSE = "dense.safetensors"
DELTAS = "deltas"
SNAPSHOTS = "snapshots"
SNAPSHOT_FORMAT = "freshet-snapshot/1"
GRAPH = "graph"
MOST_NBYTES = 16 << 30
"""Of a file that is read into memory."""


def table_file(name: str) -> str:
    """The table's file, relative to the version's folder: tensors keys, index, rows."""
    return f"tables/{name}.safetensors"


def inside(root: Path, relative: str) -> Path:
    """`relative` resolved below `root`; raises NotFound when it would leave it."""
    try:
        base = root.resolve()
        path = (base / relative).resolve()
    except (OSError, ValueError, RuntimeError):
        raise NotFound("path: a file inside the repository wanted") from None
    if "\0" in relative or not path.is_relative_to(base):
        raise NotFound("path: a file inside the repository wanted")
    return path


@dataclass(frozen=True, slots=True)
class SnapshotManifest:
    """What a snapshot holds: the tables and dense weights of a version as of a step.

    folder: relative to the version's. digest: of that generation. rows: by table. files: by the names that the version
    has them under. published_at, event_time: of that step.
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
        """Raises Corrupt for what to_json() would not have written."""
        try:
            raw = json.loads(data)
            files = {
                str(name): File(int(f["nbytes"]), str(f["crc32"]), str(f.get("sha256", "")))
                for name, f in raw["files"].items()
            }
            rows = {str(name): int(n) for name, n in raw["rows"].items()}
            published_at, times = float(raw["published_at"]), [float(t) for t in raw["event_time"]]
            made = cls(str(raw["folder"]), int(raw["step"]), str(raw["digest"]), rows, files, published_at, times)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise Corrupt("snapshot: its list of files cannot be read") from None
        if made.to_json() != data:
            raise Corrupt("snapshot: its list of files is not as it was written")
        return made


class VersionWriter:
    """Builds <repository>/<model>/<version>; nothing is visible there until commit().

    Use as a context manager: leaving the block without a commit removes what was written.
    """

    def __init__(
        self,
        repository: Path,
        model: str,
        version: int,
        beside: bool = False,
        storage: VersionStorage | None = None,
        keyring: Keyring = NO_KEYS,
    ) -> None:
        """beside: the version's folder is there already and holds what the version is made from, but no manifest.
        place: where it is to live, if not in the folder (processor.repository.model_repository.Repository.writer). keyring: who
        signs it. Raises SigningKeyRequired where it is to be signed and cannot be."""
        keyring.key_for(f"version {version}")
        self.keyring = keyring
        self.model, self.version = model, version
        self.storage = storage or FolderStorage(repository / model / str(version))
        self._target, self._beside = self.storage.folder, beside
        if (self._target / MANIFEST if beside else self._target).exists():
            raise Conflict(f"version {version} of {model!r} exists already")
        self.folder = hidden_beside(self._target)
        self.folder.mkdir(parents=True)

    def __enter__(self) -> VersionWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.folder.exists():
            shutil.rmtree(self.folder, ignore_errors=True)

    def tensors(
        self, relative: str, arrays: Mapping[str, NDArray[Any]], metadata: Mapping[str, str] | None = None
    ) -> None:
        """Writes one safetensors file of the package."""
        with atomic_file(self._place(relative)) as file:
            write_tensors(file, arrays, metadata or {})

    def file(self, relative: str, data: bytes) -> None:
        """Writes one file of any other kind."""
        self._place(relative).write_bytes(data)

    def _place(self, relative: str) -> Path:
        path = self.folder / relative
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def commit(self, manifest: Manifest) -> Path:
        """Fills in the manifest's list of files, writes it last and renames the folder into place."""
        files = {}
        for path in sorted(p for p in self.folder.rglob("*") if p.is_file()):
            files[path.relative_to(self.folder).as_posix()] = _file_of(path)
        text = sealed(replace(manifest, files=files), self.folder, self.keyring).to_json()
        (self.folder / DELTAS).mkdir(exist_ok=True)
        with atomic_file(self.folder / MANIFEST) as file:
            file.write(text)
        if self._beside:
            self._move_in()
        else:
            self.storage.install(self.folder)
        return self._target

    def _move_in(self) -> None:
        """Moves everything into the folder that is there, the manifest last: what an earlier try left is replaced."""
        for path in sorted(self.folder.iterdir(), key=lambda p: p.name == MANIFEST):
            storage = self._target / path.name
            if storage.is_dir() and not storage.is_symlink():
                shutil.rmtree(storage)
            if path.name == MANIFEST:
                fsync_folder(self._target)
            path.replace(storage)
        fsync_folder(self._target)


def sealed(manifest: Manifest, folder: Path, keyring: Keyring, before: Manifest | None = None) -> Manifest:
    """A manifest as it is to be written: signed where there is a key, without a signature where none is asked for.

    folder: where files lie whose SHA-256 it does not know. before: the one that it comes in the place of. Raises
    SigningKeyRequired, Corrupt.
    """
    signer = keyring.key_for(f"version {manifest.version}", before.key if before else "")
    if signer is None:
        return replace(manifest, key="", signature="", edition=0, vouched=None)
    files = {}
    for name, entry in manifest.files.items():
        files[name] = entry if entry.sha256 else replace(entry, sha256=file_sha256(inside(folder, name)))
    edition = before.edition + 1 if before else 0
    made = replace(manifest, files=files, key=signer.id, signature="", edition=edition)
    return replace(made, signature=signer.sign(made.to_sign()))


def add_file(version: VersionReader, name: str, data: bytes) -> None:
    """Puts one file more, or another in its place, into a committed version, and into its manifest; raises NotFound.

    A reader between the two renames finds a file that the manifest does not describe: one that it did not name before,
    and so does not open, or one whose checksum does not match, which refuses the version until the next look.
    """
    manifest = VersionReader(version.folder, storage=version.storage, keyring=version.keyring).manifest
    sha256 = hashlib.sha256(data).hexdigest() if version.keyring.signer else ""
    files = {**manifest.files, name: File(len(data), crc32(data), sha256)}
    # Before anything is written: there may be no key.
    text = sealed(replace(manifest, files=files), version.folder, version.keyring, manifest).to_json()
    version.storage.replace(name, data)
    version.storage.replace(MANIFEST, text)


class VersionReader:
    """A committed version's folder, as it was published or as of a snapshot; raises NotFound or Corrupt on construction
    when the manifest is not sound.

    manifest: with the tables' rows and files of what is read. root_manifest: as it was published. mapped: the files
    that views were handed out of. place: where the version lives, if not in the folder. keyring: whom it has to be
    signed by. digest: SHA-256 of its manifest's bytes.
    """

    def __init__(
        self,
        folder: Path,
        snapshot: SnapshotManifest | None = None,
        storage: VersionStorage | None = None,
        keyring: Keyring = NO_KEYS,
    ) -> None:
        self.folder, self.snapshot, self.storage = folder, snapshot, storage or FolderStorage(folder)
        self.keyring = keyring
        self.mapped: list[MappedFile] = []
        self._verified: dict[str, Stat] = {}
        try:
            data = read_file(inside(folder, MANIFEST), MAX_MANIFEST_NBYTES).tobytes()
        except FileNotFoundError:
            raise NotFound(f"version {folder.name}: no manifest") from None
        except OSError as error:
            raise unreadable("manifest", error) from None
        self.manifest = Manifest.from_json(data)
        if str(self.manifest.version) != folder.name.lstrip("0") or self.manifest.model != folder.parent.name:
            raise Corrupt(f"manifest: names {self.manifest.model!r} version {self.manifest.version}, not its folder's")
        self.digest = hashlib.sha256(data).hexdigest()
        self._check_signature(data)
        self.root_manifest = self.manifest
        if snapshot is not None:
            self.manifest = _as_of(self.root_manifest, snapshot)

    def _check_signature(self, data: bytes) -> None:
        manifest = self.manifest
        if manifest.key and manifest.to_json() != data:
            raise Corrupt("manifest: is signed, and not spelled as manifests are")
        self.keyring.check_signature("manifest", manifest.key, manifest.signature, manifest.to_sign() if manifest.key else b"")

    def verify(self, names: Iterable[str] | None = None) -> None:
        """Checks size and checksum of every file of the package, or of `names`; raises Corrupt naming the first that
        fails."""
        workers = max(1, min(8, os.cpu_count() or 1))
        with ThreadPoolExecutor(workers, "freshet-verify") as pool:
            for _ in pool.map(self._verify_file, self.manifest.files if names is None else names):
                pass

    def _verify_file(self, name: str) -> None:
        try:
            self._verify_once(name)
        except Corrupt:
            if not self.storage.again(self.where(name)):
                raise
            self._verify_once(name)

    def _verify_once(self, name: str) -> None:
        entry = self.manifest.files[name]
        path = self._brought(name)
        try:
            with open_regular(path, name) as file:
                seen = stat_of(file.fileno())
                if seen[1] != entry.nbytes:
                    raise Corrupt(f"{name}: {entry.nbytes} bytes wanted, got {seen[1]}")
                good = has_content(file.fileno(), entry.nbytes, entry.crc32, entry.sha256)
        except OSError as error:
            raise unreadable(name, error) from None
        if not good:
            raise Corrupt(f"{name}: does not match its checksum")
        self._verified[name] = seen

    def tensors(self, name: str) -> dict[str, NDArray[Any]]:
        """Views of one safetensors file that the manifest names, mapped: what verify() has read, where it has."""
        entry = self._entry(name)
        file = MappedFile.of(self._brought(name), name, entry.crc32, self._verified.get(name), entry.sha256)
        arrays = parse_tensors(file.array, name).arrays
        self.mapped.append(file)
        return arrays

    def file(self, name: str) -> bytes:
        """The bytes of one file that the manifest names, checked against its size and checksum."""
        return self._read(name).tobytes()

    def _read(self, name: str) -> NDArray[np.uint8]:
        try:
            return self._read_once(name)
        except Corrupt:
            if not self.storage.again(self.where(name)):
                raise
            return self._read_once(name)

    def _read_once(self, name: str) -> NDArray[np.uint8]:
        entry = self._entry(name)
        path = self._brought(name)
        try:
            data = read_file(path, min(entry.nbytes, MOST_NBYTES), name)
        except OSError as error:
            raise unreadable(name, error) from None
        if data.nbytes != entry.nbytes:
            raise Corrupt(f"{name}: {entry.nbytes} bytes wanted, got {data.nbytes}")
        signed = entry.sha256
        if crc32(data.data) != entry.crc32 or (signed and hashlib.sha256(data.data).hexdigest() != signed):
            raise Corrupt(f"{name}: does not match its checksum")
        return data

    def _entry(self, name: str) -> File:
        if name not in self.manifest.files:
            raise Corrupt(f"{name}: not named by the manifest")
        return self.manifest.files[name]

    def dense(self) -> dict[str, NDArray[np.float32]]:
        """Dense tensors by name, in memory that can be shared; checked against the manifest's checksum and shapes."""
        arrays: dict[str, NDArray[Any]] = {}
        if self.manifest.dense:
            data = self._read(DENSE)
            arrays = parse_tensors(reserve(data.nbytes, "dense", [data])[: data.nbytes], DENSE).arrays
        shapes = {name: list(a.shape) for name, a in arrays.items()}
        if shapes != self.manifest.dense or any(a.dtype != np.float32 for a in arrays.values()):
            raise Corrupt(f"{DENSE}: the manifest's float32 tensors wanted")
        return arrays

    def fetch(self, names: Iterable[str] | None = None) -> None:
        """Has every file of the package, or of `names`, lie in the folder."""
        for name in self.manifest.files if names is None else names:
            self._brought(name)

    def _brought(self, name: str) -> Path:
        where = self.where(name)
        path = inside(self.folder, where)
        self.storage.fetch(where, self._entry(name).nbytes)
        return path

    def where(self, name: str) -> str:
        """Where a file that the manifest names lies, below the folder: of a snapshot, in its own."""
        snapshot = self.snapshot
        return f"{snapshot.folder}/{name}" if snapshot and name in snapshot.files else name


def _as_of(manifest: Manifest, snapshot: SnapshotManifest) -> Manifest:
    replaced = {table_file(t.name) for t in manifest.tables} | ({DENSE} if manifest.dense else set())
    if snapshot.files.keys() != replaced or snapshot.rows.keys() != {t.name for t in manifest.tables}:
        raise Corrupt("snapshot: every table of the version and its dense weights wanted")
    tables = [replace(t, rows=snapshot.rows[t.name]) for t in manifest.tables]
    return replace(manifest, tables=tables, files={**manifest.files, **snapshot.files})


def _file_of(path: Path) -> File:
    """What the manifest says of a file: durable when the call returns."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        nbytes = os.fstat(file.fileno()).st_size
        return File(nbytes, file_crc32(file.fileno(), nbytes))
