"""Model repository in a folder: list models and versions, open them, and keep labels and traffic of a model.

A folder is listed only when its modification time has changed, so polling costs a few stat calls. Names that start with
a dot are unfinished work and are never opened. What a version serves is read and written by its change log alone
(processor.repository.log.change_log).

A folder that cannot be listed at the moment is not an empty one, nor is an unreadable file a missing one: NotReady is
raised, and the caller asks again.

Several servers change the labels of one model: a change holds the folder's lock, reads what the file has and replaces
it, so none is lost. The lock ends with its process, and leaves no file behind.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from freshet_serving.processor.errors import (
    BadInput,
    Conflict,
    Corrupt,
    NotFound,
    NotReady,
    UnknownModel,
    nearest,
    nearest_file,
    shortage,
)
from freshet_serving.processor.package import (
    MAX_MANIFEST_NBYTES,
    NAME,
    Manifest,
    atomic_file,
    followed,
    inside,
    locked_folder,
    read_file,
)
from freshet_serving.processor.repository.keyring import NO_KEYS, Keyring
from freshet_serving.processor.repository.log.chain_record import root_hash
from freshet_serving.processor.repository.storage import FolderStorage, VersionStorage
from freshet_serving.processor.repository.version import (
    CANDIDATES,
    MANIFEST,
    TRAINER,
    VersionReader,
)
from freshet_serving.processor.repository.version_folders import VersionFolders
from freshet_serving.processor.repository.version_records import WITHDRAWN, VersionRecords

if TYPE_CHECKING:
    from freshet_serving.processor.repository.version_record import VersionRecord
    from freshet_serving.processor.repository.version_writer import VersionWriter

log = logging.getLogger("freshet.repository")

LABELS = "labels.json"
TRAFFIC = "traffic.json"
SAVED_MODEL, FILE_SUFFIXES = "saved_model.pb", (".keras", ".onnx")
MAX_LISTED = 10
ONE_MODEL = "the repository is the folder of one model: expected the folder above it, which holds models by name"
MAX_KEPT_NBYTES = 16 << 20


class Repository:
    """A folder of models; every path that it returns lies inside it.

    `remote` is True for the mirror of a repository that lies elsewhere: a storage (processor.ports) opens a subclass.
    Beside the public methods it overrides `_kept` and `version_records` (bring files before they are read), and `_put`
    and `_create` (write elsewhere first).
    """

    remote = False
    keyring = NO_KEYS

    def __init__(self, root: str | Path) -> None:
        self.root, self._seen_at_s = Path(root).absolute(), time.monotonic()
        self._told: dict[tuple[str, str], str] = {}
        self._labels: dict[str, dict[str, int]] = {}
        self._folders = VersionFolders(self.root)
        self._records: dict[str, VersionRecords] = {}
        # Root hashes of manifests, with the identity of each file.
        self._roots: dict[tuple[str, int], tuple[tuple[int, ...], str]] = {}
        if not self.root.is_dir():
            hint = "" if self.root.exists() else nearest_file(self.root)
            raise NotFound(f"repository: {str(root)!r} is not a folder; create it or pass --repository{hint}")

    def with_keys(self, keyring: Keyring) -> Self:
        self.keyring = keyring
        self._records.clear()
        return self

    def models(self) -> list[str]:
        """Return the names of folders that may be models."""
        return sorted(e.name for e in _entries(self.root) if NAME.fullmatch(e.name) and e.is_dir())

    def misplaced(self) -> str:
        """Return one line on why a folder without a model is not the one that was meant; "" if nothing shows it."""
        folders = [e for e in _entries(self.root) if e.is_dir()]
        if any(_is_version(Path(e.path)) for e in folders):
            return ONE_MODEL
        within = (Path(model.path) for e in folders for model in _entries(Path(e.path)) if _may_be_model(model))
        if any(_is_version(Path(version.path)) for model in within for version in _entries(model)):
            return "the repository has no model, but a folder in it holds models: expected that folder"
        return ""

    def check_models(self, names: Iterable[str]) -> None:
        """Raise UnknownModel for a name without a folder; an empty repository passes: its models are still to come."""
        models = self.models()
        for name in names if models else ():
            if name not in models:
                raise unknown_model(name, models)

    def versions(self, model: str) -> list[int]:
        """Return the committed versions, ascending: folders named by a number (VersionFolders) with a manifest."""
        return self._committed(model)

    def candidates(self, model: str) -> list[int]:
        """Return the numbers of candidates, ascending (processor.repository.candidates)."""
        return self._committed(f"{check_name(model, 'model')}/{CANDIDATES}")

    def _committed(self, model: str) -> list[int]:
        return sorted(number for number, folder in self._numbered(model) if os.path.isfile(folder / MANIFEST))

    def uncommitted(self, model: str) -> dict[int, Path]:
        """Return the folders of versions without a manifest, by number."""
        return {number: folder for number, folder in self._numbered(model) if not os.path.isfile(folder / MANIFEST)}

    def _numbered(self, model: str) -> list[tuple[int, Path]]:
        folder = self.root / model
        return [(n, folder / name) for n, name in self._folders.of(model, [e.name for e in _entries(folder)]).items()]

    def sources(self, model: str) -> dict[int, Path]:
        """Return versions without a manifest that can be imported: a SavedModel, or one Keras or ONNX file."""
        sources = {}
        for version, folder in self.uncommitted(model).items():
            names = {entry.name for entry in _entries(folder)}
            files = [name for name in names if name.endswith(FILE_SUFFIXES)]
            if SAVED_MODEL in names:
                sources[version] = folder
            elif len(files) == 1:
                sources[version] = folder / files[0]
        return sources

    def folder(self, model: str, version: int) -> Path:
        return followed(self.root, self.path(model, version).relative_to(self.root).as_posix())

    def path(self, model: str, version: int) -> Path:
        """Return a version's folder, existing or not, without following links."""
        return self._folders.path(model, version)

    def version(self, model: str, number: int | None = None) -> VersionReader:
        """Open a version (None: the newest that is not barred, else the newest); raise NotFound or Corrupt."""
        numbers = self.versions(model)
        if not numbers:
            raise unknown_model(model, [name for name in self.models() if self.versions(name)])
        if number is not None and number not in numbers:
            listing = listed(map(str, reversed(numbers)))
            raise NotFound(f"model {model[:64]!r} version {number} is not in the repository, which holds {listing}")
        if number is None:
            barred = self.barred(model, numbers)
            number = ([n for n in numbers if n not in barred] or numbers)[-1]
        return self.reader(model, number)

    def reader(self, model: str, number: int) -> VersionReader:
        """Open a version that is known to exist."""
        return VersionReader(self.folder(model, number), storage=self.storage(model, number), keyring=self.keyring)

    def candidate(self, model: str, number: int) -> VersionReader:
        """Open a candidate; raise NotFound if there is none, Corrupt if it is damaged."""
        return self.reader(self._with_candidate(model, number), number)

    def release_candidate(self, model: str, number: int) -> None:
        """Make a candidate the version of its number; raise NotFound, or Conflict if another version has it by now."""
        # Loaded by a person's decision.
        from freshet_serving.processor.repository.candidates import release

        release(self.candidate(model, number), self.storage(model, number))

    def reject_candidate(self, model: str, number: int) -> None:
        """Remove a candidate, damaged or not; raise NotFound if absent, Conflict if another process was first."""
        try:
            self.storage(self._with_candidate(model, number), number).end()
        except FileNotFoundError:
            where = f"candidate {number} of {model!r}"
            raise Conflict(f"{where}: it was released or rejected at the same time; `freshet version list`") from None

    def candidate_storage(self, model: str, number: int) -> VersionStorage:
        """Return the storage in which a candidate lives, or will live."""
        (self.root / model / CANDIDATES).mkdir(parents=True, exist_ok=True)
        return self.storage(f"{model}/{CANDIDATES}", number)

    def _with_candidate(self, model: str, number: int) -> str:
        if number not in (numbers := self.candidates(model)):
            candidates = listed(map(str, reversed(numbers)))
            raise NotFound(f"model {model[:64]!r} has no candidate {number}; its candidates are {candidates}")
        return f"{model}/{CANDIDATES}"

    def writer(self, model: str, number: int, beside: bool = False) -> VersionWriter:
        """Begin a version (VersionWriter), `beside` files in its folder; raise Conflict if it exists."""
        from freshet_serving.processor.repository.version_writer import VersionWriter

        return VersionWriter(self.root, model, number, beside, self.storage(model, number), self.keyring)

    def storage(self, model: str, number: int) -> VersionStorage:
        """Return the storage in which a version lives, or will live."""
        return FolderStorage(self.path(model, number))

    def ready(self, model: str, number: int) -> bool:
        """Return True if all files to load a version are here, else start to fetch them; raise if they cannot be."""
        return True

    def prepare(self, model: str, number: int) -> None:
        """Fetch all files needed to load a version; raise an error if that fails."""

    def release(self, model: str, number: int) -> None:
        """Note that a version is no longer served: this process does not need its files."""

    def version_records(self, model: str) -> VersionRecords:
        """Return the decisions about a model's versions; with a background mirror, as of its last poll."""
        check_name(model, "model")
        records = self._records.get(model)
        if records is None:
            folder = self.root / model / WITHDRAWN
            records = VersionRecords(folder, model, self.keyring, lambda name, data: self._create(model, name, data))
            self._records[model] = records
        return records

    def standing(self, model: str, numbers: Iterable[int]) -> dict[int, VersionRecord]:
        """Return the records that stand for committed versions; a version without one is left out."""
        records = self.version_records(model)
        decided = sorted(records.versions() & set(numbers))
        standing = {number: records.standing(number, self.root_of(model, number)) for number in decided}
        return {number: record for number, record in standing.items() if record is not None}

    def barred(self, model: str, numbers: Iterable[int]) -> dict[int, VersionRecord]:
        """Return the standing records that hold or withdraw committed versions."""
        return {number: record for number, record in self.standing(model, numbers).items() if record.binds}

    def root_of(self, model: str, number: int) -> str:
        """Return the root hash of a version's manifest as it lies in the folder; "" if there is none to read."""
        try:
            state = os.stat(self.path(model, number) / MANIFEST)
        except OSError as error:
            if (short := shortage(error)) is not None:
                raise short from None
            return ""
        identity = (state.st_ino, state.st_size, state.st_mtime_ns)
        cached = self._roots.get((model, number))
        if cached is None or cached[0] != identity:
            manifest = self.manifest(model, number)
            try:
                root = root_hash(manifest) if manifest is not None else ""
            except RecursionError:
                # Nested too deep to be loaded: nothing is decided about it.
                root = ""
            cached = self._roots[model, number] = (identity, root)
        return cached[1]

    def manifest(self, model: str, number: int) -> Manifest | None:
        """Return a version's manifest as it lies in the folder, signed or not; None if there is none to read."""
        try:
            data = read_file(self.path(model, number) / MANIFEST, MAX_MANIFEST_NBYTES).tobytes()
            return Manifest.from_json(data)
        except (OSError, BadInput, Corrupt) as error:
            if (short := shortage(error)) is not None:
                raise short from None
            return None

    def seen_s(self) -> float:
        """Return seconds since the repository could last be checked for changes; 0.0 for a folder that exists."""
        now_s = time.monotonic()
        if self.root.is_dir():
            self._seen_at_s = now_s
        return now_s - self._seen_at_s

    def concern(self) -> str:
        """Return why new models, versions and labels are not seen, a constant text while it lasts; "" if they are."""
        return ""

    def follow(self) -> None:
        """Start polling in the background, so that reads do not wait for a network."""

    def close(self) -> None:
        """Stop polling in the background."""

    def resolve(self, path: str) -> Path:
        """Return a file inside the repository by relative or absolute path; raise NotFound for anything else."""
        if "\0" in path or len(path) > 4096:
            raise NotFound("path: expected a file inside the repository")
        relative = os.path.relpath(path, self.root) if os.path.isabs(path) else path
        file = inside(self.root, relative)
        if not os.path.isfile(file):  # not Path.is_file(), which raises for a name that is too long
            raise NotFound("path: expected a file inside the repository")
        return file

    def labels(self, model: str) -> dict[str, int]:
        """Return the labels as last set, those read before if the file is damaged or not trusted."""
        raw = self._kept(model, LABELS)
        if raw is None and not os.path.lexists(self.root / model / LABELS):
            raw = {}
        if raw is not None and all(type(number) is int for number in raw.values()):
            self._labels[model] = raw
        return self._labels.get(model, {})

    def keep_labels(self, model: str, changes: Mapping[str, int | None]) -> dict[str, int]:
        """Set labels, and remove those given as None, in the file as it is now; return all that it then has."""
        with _locked(self.root / model):
            changed = {**self.labels(model), **changes}
            labels = {label: number for label, number in changed.items() if number is not None}
            self._keep(model, LABELS, labels)
            self._labels[model] = labels
        return labels

    def traffic(self, model: str) -> dict[str, Any]:
        """Return what keep_traffic() stored; empty if the file is missing or has another format."""
        return self._kept(model, TRAFFIC) or {}

    def keep_traffic(self, model: str, traffic: dict[str, Any]) -> None:
        self._keep(model, TRAFFIC, traffic)

    def keep_trainer(self, model: str, report: bytes) -> None:
        """Replace the report of a model's trainer (trainer_report); does nothing while the model has no folder."""
        if (self.root / model).is_dir():
            self._replace(f"{model}/{TRAINER}", report)

    def re_sign_kept(self, model: str, unsigned: bool = False) -> None:
        """Sign labels and traffic again (unsigned ones if requested), and record the decisions about versions anew."""
        keyring, trusted = self.keyring, NO_KEYS if unsigned else self.keyring
        with _locked(self.root / model):
            for name in (LABELS, TRAFFIC):
                document = self.with_keys(trusted)._kept(model, name)
                self.keyring = keyring
                # Also an empty one: the last label may have been removed.
                if document is not None:
                    self._keep(model, name, document)
        records = self.with_keys(trusted).version_records(model).all()
        anew = self.with_keys(keyring).version_records(model)
        anew.all()
        for record in {(standing.version, standing.manifest): standing for standing in records}.values():
            if keyring.signer is not None and record.key != keyring.signer.id:
                anew.add(record.version, record.manifest, record.action, record.reason, record.by)

    def check_kept(self, model: str) -> None:
        """Raise Corrupt if labels or traffic are not signed by a trusted key."""
        from freshet_serving.processor.repository.envelope import opened

        for name in (LABELS, TRAFFIC):
            if os.path.isfile(self.root / model / name):
                raw = self._document(model, name)
                opened(raw if isinstance(raw, dict) else {"": raw}, model, name, self.keyring)

    def _document(self, model: str, name: str) -> Any:
        return json.loads(read_file(self.root / model / name, MAX_KEPT_NBYTES).tobytes())

    def _kept(self, model: str, name: str) -> dict[str, Any] | None:
        """Return a kept document, or None if it is missing, has another format or is not trusted."""
        try:
            raw = self._document(model, name)
            if not isinstance(raw, dict):
                return None
        except (OSError, ValueError, RecursionError, Corrupt) as error:
            if (short := shortage(error)) is not None:
                raise short from None
            return None
        # Loaded with the first of these files.
        from freshet_serving.processor.repository.envelope import opened

        try:
            return opened(raw, model, name, self.keyring)
        except Corrupt as error:
            if self._told.get((model, name)) != str(error):
                self._told[model, name] = str(error)
                log.error("ignoring a file of %s: %s", model, error)
            return None

    def _keep(self, model: str, name: str, document: dict[str, Any]) -> None:
        from freshet_serving.processor.repository.envelope import wrap_envelope

        try:
            before = self._document(model, name)
        except (OSError, ValueError, RecursionError, Corrupt):
            before = {}
        envelope = wrap_envelope(document, before if isinstance(before, dict) else {}, model, name, self.keyring)
        try:
            self._put(f"{model}/{name}", json.dumps(envelope, indent=1).encode())
        except OSError:
            raise NotReady(f"{name.partition('.')[0]}: the repository cannot be written") from None

    def _put(self, name: str, data: bytes) -> None:
        self._replace(name, data)

    def _replace(self, name: str, data: bytes) -> None:
        with atomic_file(self.root / name) as file:
            file.write(data)

    def _create(self, model: str, name: str, data: bytes) -> bool:
        """Create a version record exclusively and durably; return False if it exists."""
        from freshet_serving.processor.repository.version_record import create_record

        return create_record(self.root / model / WITHDRAWN / name, data)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Keep other processes from changing the folder's labels; not everywhere, because NFS locks no folders."""
    with ExitStack() as stack:
        with suppress(OSError):
            stack.enter_context(locked_folder(folder))
        yield


def listed(names: Iterable[str], between: str = ", ") -> str:
    """Return names for a message: at most MAX_LISTED of them, and the number of the others."""
    items = list(names)
    more = f"{between}and {len(items) - MAX_LISTED} more" if len(items) > MAX_LISTED else ""
    return between.join(items[:MAX_LISTED]) + more or "nothing"


def unknown_model(name: str, known: Iterable[str]) -> UnknownModel:
    """Return the error for an unknown model, which names the known ones."""
    names = sorted(known)
    listing, hint = listed(names), nearest(name, names)
    return UnknownModel(f"model {name[:64]!r} is not in the repository, which holds {listing}{hint}", listing)


def check_name(name: str, what: str) -> str:
    """Return a valid name of a model or label; raise BadInput, which says what kind of name it is."""
    if NAME.fullmatch(name) is None:
        raise BadInput(f"{what}: expected a name of letters, digits, '_', '.', '-', got {name[:64]!r}")
    return name


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return [e for e in entries if not e.name.startswith(".")]
    except OSError as error:
        if (short := shortage(error)) is not None:
            raise short from None
        return []


def _may_be_model(entry: os.DirEntry[str]) -> bool:
    return entry.name != CANDIDATES and entry.is_dir()


def _is_version(folder: Path) -> bool:
    """Return True for a folder named by a number that holds a version, committed or to be imported."""
    if not folder.name.isdigit():
        return False
    return any(e.name in (MANIFEST, SAVED_MODEL) or e.name.endswith(FILE_SUFFIXES) for e in _entries(folder))
