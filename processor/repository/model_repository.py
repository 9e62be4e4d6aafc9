"""The model repository as the engine sees it: which models and versions there are, and what is kept of a model.

Reading looks at one folder at a time and only when its modification time moved, so watching costs a few stat calls
however large the tree is. Names that start with a dot are somebody's unfinished work and are never opened. What a
version serves, and every delta of it, is its chain's to say and to write (processor.repository.log.change_log).

A folder that cannot be listed for now is not an empty one, nor is a file that cannot be read one that is not there:
NotReady is raised, and whoever had been told of a change asks for it again.

VersionFolders: which folder of a model holds which version: `3`, or with leading zeros `0003`, as TensorFlow Serving
takes them.

Two folders that mean one number are refused: neither is chosen, and the log says so once. A version that was seen
before the second folder came keeps its own, so that a stray copy takes nothing out of service.
"""

from __future__ import annotations

import json
import logging
import os
import re
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar, Self

from freshet_serving.processor.errors import (
    BadInput,
    Corrupt,
    NotFound,
    NotReady,
    UnknownModel,
    nearest,
    nearest_file,
    shortage,
)
from freshet_serving.processor.package import atomic_file
from freshet_serving.processor.repository.envelope import wrap_envelope, opened
from freshet_serving.processor.repository.keyring import NO_KEYS, Keyring
from freshet_serving.processor.package import NAME
from freshet_serving.processor.repository.storage import FolderStorage, VersionStorage
from freshet_serving.processor.package import read_file
from freshet_serving.processor.repository.version import MANIFEST, VersionReader, VersionWriter, inside

log = logging.getLogger("freshet.repository")

LABELS = "labels.json"
TRAFFIC = "traffic.json"
SAVED_MODEL, FILE_SUFFIXES = "saved_model.pb", (".keras", ".onnx")
MAX_LISTED = 10
RACY_NS = 2_000_000_000
MAX_KEPT_NBYTES = 16 << 20


class FolderWatch:
    """Tells whether a folder's entries may have changed since the last look.

    A change within the clock tick of the last look leaves the modification time as it was, so a folder that
    changed less than two seconds before a look counts as changed at the next one too.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seen: tuple[int, bool] | None = None

    def changed(self) -> bool:
        try:
            mtime_ns = os.stat(self._folder).st_mtime_ns
        except OSError:
            mtime_ns = -1
        settled = abs(time.time_ns() - mtime_ns) > RACY_NS
        seen, self._seen = self._seen, (mtime_ns, settled)
        return seen != (mtime_ns, True)

    def again(self) -> None:
        """The folder counts as changed at the next look: nothing could be made of the last one."""
        self._seen = None


class Repository:
    """A folder of models; every path it hands out lies inside it. remote: it is the mirror of one that lies elsewhere
    (processor.repository.mirror)."""

    remote = False
    keyring = NO_KEYS

    def __init__(self, root: str | Path) -> None:
        self.root, self._seen_at_s = Path(root).absolute(), time.monotonic()
        self._told: dict[tuple[str, str], str] = {}
        self._folders = VersionFolders(self.root)
        if not self.root.is_dir():
            hint = "" if self.root.exists() else nearest_file(self.root)
            raise NotFound(f"repository: {str(root)!r} is not a folder; create it or pass --repository{hint}")

    def with_keys(self, keyring: Keyring) -> Self:
        """The same, read by whom this keyring trusts and written by whom it signs for."""
        self.keyring = keyring
        return self

    def models(self) -> list[str]:
        """Names of the folders that may be models."""
        return sorted(e.name for e in _entries(self.root) if NAME.fullmatch(e.name) and e.is_dir())

    def check_models(self, wanted: Iterable[str]) -> None:
        """Raises UnknownModel for a name that no folder has; an empty repository is one whose models are to come."""
        there = self.models()
        for name in wanted if there else ():
            if name not in there:
                raise unknown_model(name, there)

    def versions(self, model: str) -> list[int]:
        """Committed versions, ascending: folders with a number for a name (version_folders) and a manifest inside."""
        return sorted(number for number, folder in self._numbered(model) if os.path.isfile(folder / MANIFEST))

    def uncommitted(self, model: str) -> dict[int, Path]:
        """Folders of versions that are no packages yet."""
        return {number: folder for number, folder in self._numbered(model) if not os.path.isfile(folder / MANIFEST)}

    def _numbered(self, model: str) -> list[tuple[int, Path]]:
        folder = self.root / model
        return [(n, folder / name) for n, name in self._folders.of(model, [e.name for e in _entries(folder)]).items()]

    def sources(self, model: str) -> dict[int, Path]:
        """Versions that are no packages yet but hold what one is imported from: a SavedModel, or one Keras or ONNX
        file."""
        found = {}
        for version, folder in self.uncommitted(model).items():
            names = {entry.name for entry in _entries(folder)}
            files = [name for name in names if name.endswith(FILE_SUFFIXES)]
            if SAVED_MODEL in names:
                found[version] = folder
            elif len(files) == 1:
                found[version] = folder / files[0]
        return found

    def folder(self, model: str, version: int) -> Path:
        return inside(self.root, self.path(model, version).relative_to(self.root).as_posix())

    def path(self, model: str, version: int) -> Path:
        """Return a version's folder, there or to come, without following links."""
        return self._folders.path(model, version)

    def version(self, model: str, number: int | None = None) -> VersionReader:
        """Opens a version, or the newest; raises NotFound where there is none, Corrupt where it is not sound."""
        known = self.versions(model)
        if not known:
            raise unknown_model(model, [name for name in self.models() if self.versions(name)])
        if number is not None and number not in known:
            there = listed(map(str, reversed(known)))
            raise NotFound(f"model {model[:64]!r} version {number} is not in the repository, which holds {there}")
        return self.reader(model, known[-1] if number is None else number)

    def reader(self, model: str, number: int) -> VersionReader:
        """Opens a version that is known to be there."""
        return VersionReader(self.folder(model, number), storage=self.storage(model, number), keyring=self.keyring)

    def writer(self, model: str, number: int, beside: bool = False) -> VersionWriter:
        """Begins a version; see VersionWriter. Raises Conflict where there is one."""
        return VersionWriter(self.root, model, number, beside, self.storage(model, number), self.keyring)

    def storage(self, model: str, number: int) -> VersionStorage:
        """Where a version lives, or is to live."""
        return FolderStorage(self.path(model, number))

    def ready(self, model: str, number: int) -> bool:
        """Whether all that it takes to load a version is here; where it is not, it is on its way then. Raises why it
        cannot be had."""
        return True

    def prepare(self, model: str, number: int) -> None:
        """Has all that it takes to load a version be here; raises why it cannot be had."""

    def release(self, model: str, number: int) -> None:
        """A version is not served any longer: nobody here needs its files."""

    def seen_s(self) -> float:
        """Seconds since it could last be asked what is new: 0.0 for a folder that is there."""
        now_s = time.monotonic()
        if self.root.is_dir():
            self._seen_at_s = now_s
        return now_s - self._seen_at_s

    def concern(self) -> str:
        """Why new models, versions and labels are not seen, although what is served is sound; "" where they are. The
        same words for as long as it lasts."""
        return ""

    def follow(self) -> None:
        """From now on somebody looks for what is new all the time, and who reads does not wait for a network."""

    def close(self) -> None:
        """Nobody does any longer."""

    def resolve(self, path: str) -> Path:
        """A file inside the repository by relative or absolute path; raises NotFound for anything else."""
        if "\0" in path or len(path) > 4096:
            raise NotFound("path: a file inside the repository wanted")
        relative = os.path.relpath(path, self.root) if os.path.isabs(path) else path
        found = inside(self.root, relative)
        if not os.path.isfile(found):  # not Path.is_file(), which raises for a name that is too long
            raise NotFound("path: a file inside the repository wanted")
        return found

    def labels(self, model: str) -> dict[str, int]:
        """Labels as last set; none when the file is missing or not ours."""
        raw = self._kept(model, LABELS)
        return raw if all(type(v) is int for v in raw.values()) else {}

    def keep_labels(self, model: str, labels: dict[str, int]) -> None:
        self._keep(model, LABELS, labels)

    def traffic(self, model: str) -> dict[str, Any]:
        """The traffic that keep_traffic() kept; nothing when the file is missing or not ours."""
        return self._kept(model, TRAFFIC)

    def keep_traffic(self, model: str, traffic: dict[str, Any]) -> None:
        self._keep(model, TRAFFIC, traffic)

    def re_sign_kept(self, model: str, unsigned: bool = False) -> None:
        """Signs labels and traffic anew. unsigned: also where nobody has signed them."""
        keyring = self.keyring
        for name in (LABELS, TRAFFIC):
            kept = self.with_keys(NO_KEYS if unsigned else keyring)._kept(model, name)
            self.keyring = keyring
            if kept:
                self._keep(model, name, kept)

    def check_kept(self, model: str) -> None:
        """Raises Corrupt where labels or traffic are not signed by whom the keyring trusts."""
        for name in (LABELS, TRAFFIC):
            if os.path.isfile(self.root / model / name):
                raw = json.loads(read_file(self.root / model / name, MAX_KEPT_NBYTES).tobytes())
                opened(raw if isinstance(raw, dict) else {"": raw}, model, name, self.keyring)

    def _kept(self, model: str, name: str) -> dict[str, Any]:
        try:
            raw = json.loads(read_file(self.root / model / name, MAX_KEPT_NBYTES).tobytes())
            if not isinstance(raw, dict):
                return {}
        except (OSError, ValueError, RecursionError, Corrupt) as error:
            if (short := shortage(error)) is not None:
                raise short from None
            return {}
        try:
            return opened(raw, model, name, self.keyring)
        except Corrupt as error:
            if self._told.get((model, name)) != str(error):
                self._told[model, name] = str(error)
                log.error("%s is passed over: %s", model, error)
            return {}

    def _keep(self, model: str, name: str, document: dict[str, Any]) -> None:
        try:
            before = json.loads(read_file(self.root / model / name, MAX_KEPT_NBYTES).tobytes())
        except (OSError, ValueError, RecursionError, Corrupt):
            before = {}
        kept = wrap_envelope(document, before if isinstance(before, dict) else {}, model, name, self.keyring)
        try:
            self._put(f"{model}/{name}", json.dumps(kept, indent=1).encode())
        except OSError:
            raise NotReady(f"{name.partition('.')[0]}: the repository cannot be written") from None

    def _put(self, name: str, data: bytes) -> None:
        with atomic_file(self.root / name) as file:
            file.write(data)


def listed(names: Iterable[str], between: str = ", ") -> str:
    """Names for a message: at most MAX_LISTED of them, and how many more there are."""
    found = list(names)
    more = f"{between}and {len(found) - MAX_LISTED} more" if len(found) > MAX_LISTED else ""
    return between.join(found[:MAX_LISTED]) + more or "nothing"


def unknown_model(name: str, known: Iterable[str]) -> UnknownModel:
    """The error that says which models there are instead."""
    names = sorted(known)
    there, hint = listed(names), nearest(name, names)
    return UnknownModel(f"model {name[:64]!r} is not in the repository, which holds {there}{hint}", there)


def check_name(name: str, what: str) -> str:
    """`name` if it may be a model's or a label's; raises BadInput."""
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


VERSION = re.compile(r"[1-9][0-9]{0,17}")
PADDED = re.compile(r"0{0,17}[1-9][0-9]{0,17}")


class VersionFolders:
    """The version folders of one repository's models, as they were last listed."""

    # Of all repositories of a process: several may be opened of one folder, the importer's with every look.
    _told: ClassVar[set[tuple[str, ...]]] = set()

    def __init__(self, root: Path) -> None:
        self._root = root
        self._names: dict[tuple[str, int], str] = {}

    def of(self, model: str, names: Iterable[str]) -> dict[int, str]:
        """Map version numbers to folder names.

        Args:
            model: The model whose folder was listed.
            names: What the model's folder holds.

        Returns:
            One folder name for each number; numbers that two folders mean are left out.
        """
        found: dict[int, list[str]] = {}
        for name in names:
            if PADDED.fullmatch(name):
                found.setdefault(int(name), []).append(name)
        chosen = {}
        for number, spelled in found.items():
            name = self._names.get((model, number), spelled[0])
            if len(spelled) > 1:
                self._tell(model, number, sorted(spelled))
                if self._names.get((model, number)) not in spelled:
                    continue
            self._names[model, number] = chosen[number] = name if name in spelled else spelled[0]
        return chosen

    def path(self, model: str, number: int) -> Path:
        """Return the folder of a version, or where a new one belongs: the number without leading zeros."""
        folder, plain = self._root / model, str(number)
        known = self._names.get((model, number))
        if known is not None and (known == plain or os.path.lexists(folder / known)):
            return folder / known
        if not os.path.lexists(folder / plain):
            try:
                return folder / self.of(model, os.listdir(folder)).get(number, plain)
            except OSError:
                pass
        return folder / plain

    def _tell(self, model: str, number: int, spelled: list[str]) -> None:
        told = (str(self._root), model, *spelled)
        if told not in self._told:
            self._told.add(told)
            log.error(
                "%s version %d: expected one folder, got %s: remove all but one", model, number, " and ".join(spelled)
            )
