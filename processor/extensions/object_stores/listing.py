"""List a repository in an object store into its mirror: folders of models, manifests of versions, labels, traffic.

Invariants
- The folder shows what the store had at the last listing. A model has a folder once one of its versions has a manifest;
  a version that is gone in the store is removed here too.
- A listing ends, and reports when and how: the store limits each part (object_store), names without a version are
  queried a few at a time (NegativeCache), and names that were not queried within WHOLE_S come first in the next one.
- A version appears after the records that hold or withdraw it (processor.repository.version_records): a server that
  starts on an empty mirror chooses none that was gone back from. If they cannot be listed, no new version appears.
- While the mirror follows, a listing has its own thread, and passes followed versions that are gone to the follower's
  thread, to which these belong (`gone`).

Costs: one LIST for the models; for each model one LIST, for each version one GET of its manifest (unchanged except for
the first). The LIST has the etags of labels, traffic and the trainer's report: each is requested only when it differs.
A model with version records takes one LIST more, and one GET for each record, once. AT_ONCE models at a time.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import threading
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from freshet_serving.processor.errors import BadInput, Corrupt, FreshetError, NotReady
from freshet_serving.processor.extensions.object_stores.counted_store import CountedStore
from freshet_serving.processor.extensions.object_stores.mirrored_storage import MirroredStorage
from freshet_serving.processor.extensions.object_stores.store_errors import StoreErrors
from freshet_serving.processor.extensions.object_stores.version_copy import AT_ONCE, EtagCache
from freshet_serving.processor.package import NAME
from freshet_serving.processor.repository import MANIFEST, MAX_TRAINER_NBYTES, TRAINER, identity_of
from freshet_serving.processor.repository.model_repository import LABELS, MAX_KEPT_NBYTES, SAVED_MODEL, TRAFFIC
from freshet_serving.processor.repository.version_folders import VERSION
from freshet_serving.processor.repository.version_record import MAX_RECORD_NBYTES, create_record, record_file
from freshet_serving.processor.repository.version_records import MAX_FILES, RECORD_NAME, WITHDRAWN

log = logging.getLogger("freshet.mirror")

LIST_S, AGAIN_S, WHOLE_S = 30.0, 1.0, 60.0
"""Seconds from the start of one listing to that of the next, of the pause after a failed one, and for a whole one.

The pause between two is at least as long as one took.
"""
LATE_S = 2 * LIST_S
KEPT = {LABELS: MAX_KEPT_NBYTES, TRAFFIC: MAX_KEPT_NBYTES, TRAINER: MAX_TRAINER_NBYTES}
"""Files of a model that are replaced in place, and the maximum size of each."""
MOST_TOLD = 1000


class RepositoryListing:
    """The listings of one mirror. look() runs one at a time; readers may request a part of one in parallel."""

    def __init__(
        self,
        store: CountedStore,
        root: Path,
        storage: Callable[[str, int], MirroredStorage],
        store_errors: StoreErrors,
        models: Iterable[str],
        now_s: Callable[[], float],
    ) -> None:
        """Request nothing yet; `models` are the names of the only ones to list, all if empty."""
        self._store, self._root, self._storage, self._store_errors = store, root, storage, store_errors
        self._wanted, self._now_s = frozenset(models), now_s
        self._kept = EtagCache()
        self._told_of: set[str] = set()
        self._empty, self._empty_versions = NegativeCache(), dict[str, NegativeCache]()
        self._emptying = threading.Lock()
        self.listed = False
        """True once there was a listing."""
        self.of_one_model = False
        """True if the last listing was of the folder of one model: its versions lie at the top."""
        self.gone: deque[MirroredStorage] = deque()
        """Followed versions that the store no longer has; the follower's thread removes them."""
        self.ended_s = now_s()
        self._next_s = self._rested_s = -1e9
        self._left: set[str] = set()
        self._trouble = ""

    # Timing.

    def due(self, now_s: float, hinted: bool) -> bool:
        """Return True if it is time for a listing; `hinted`: the repository's hint has changed."""
        return now_s >= self._next_s or (hinted and now_s >= self._rested_s)

    def look(self, followed: Iterable[str] = ()) -> bool:
        """List everything once, `followed` models first; return True on success. Does not raise."""
        began_s = self._now_s()
        try:
            complete = self.models(followed)
            if self._left:
                raise NotReady(f"repository: listing {len(self._left)} names took more than {WHOLE_S:g} s")
            if not complete:
                raise NotReady("repository: some objects cannot be fetched; see the log")
            self._trouble, self.ended_s = "", self._now_s()
            self._store_errors.over("listing")
        except Exception as error:
            expected = isinstance(error, FreshetError)
            self._trouble = str(error) if expected else "repository: cannot be listed; see the log"
            self._store_errors.tell("listing", str(error) or type(error).__name__, traceback=not expected)
        ended_s = self._now_s()
        self._rested_s = ended_s + (AGAIN_S if self._trouble else 0.0) + (ended_s - began_s)
        self._next_s = self._rested_s if self._trouble else max(began_s + LIST_S, self._rested_s)
        return not self._trouble

    def ended_ago_s(self) -> float:
        """Return the seconds since the last complete listing."""
        return max(0.0, self._now_s() - self.ended_s)

    def concern(self) -> str:
        """Return why new models, versions and labels are not seen; "" if they are (Repository.concern)."""
        if self.ended_ago_s() < LATE_S:
            return ""
        why = self._trouble or "repository: listing takes long"
        return f"{why}; new models, versions and labels have not been detected for more than {LATE_S:g} s"

    # Contents.

    def models(self, first: Iterable[str] = ()) -> bool:
        """Create a folder for each model, and remove others; return True if all of it could be queried."""
        listed = [folder.name for folder in self._root.iterdir() if folder.is_dir()]
        try:
            listed = self._store.folder("").folders
        except BadInput as error:
            # The bucket does not exist, or it has names that cannot be listed.
            if not listed:
                raise
            self._store_errors.tell("names", str(error))
        names = [name for name in listed if NAME.fullmatch(name) and not name.startswith(".")]
        numbers = [name for name in names if VERSION.fullmatch(name)]
        self.of_one_model = bool(numbers) and self._store.head(f"{numbers[-1]}/{MANIFEST}") is not None
        chosen = {name for name in names if not self._wanted or name in self._wanted}
        with self._emptying:
            due = self._empty.due(sorted(chosen))
            self._empty_versions = {name: empty for name, empty in self._empty_versions.items() if name in chosen}
        early, left = set(first), self._left
        due.sort(key=lambda name: (name not in early, name not in left))
        self._left = set()
        complete = self._each(due, self._now_s() + WHOLE_S)
        self.listed = True
        for folder in self._root.iterdir():
            if folder.is_dir() and NAME.fullmatch(folder.name) and folder.name not in names:
                self._end(folder.name, versions_here(folder))
                with contextlib.suppress(OSError):
                    for name in KEPT:
                        (folder / name).unlink(missing_ok=True)
                    shutil.rmtree(folder / WITHDRAWN, ignore_errors=True)
                    folder.rmdir()
        return complete

    def _each(self, models: list[str], until_s: float) -> bool:
        def one(model: str) -> bool:
            if self._now_s() > until_s:
                self._left.add(model)
                return True
            return self._store_errors.alone(model, partial(self.versions, model))

        with ThreadPoolExecutor(AT_ONCE, "freshet-listing") as pool:
            try:
                return all([*pool.map(one, models)])
            except BaseException:
                # An outage: the remaining requests would fail too, each after seconds.
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def versions(self, model: str, strict: bool = False) -> bool:
        """Bring the manifests of a model's versions, its labels and traffic; remove versions that are gone.

        With `strict`, raise NotReady if a manifest cannot be queried, so that an existing version is not skipped.
        Return True if all of it could be queried.
        """
        listed = self._store.folder(model)
        numbers = {int(name) for name in listed.folders if VERSION.fullmatch(name)}
        if numbers and (WITHDRAWN in listed.folders or (self._root / model / WITHDRAWN).exists()):
            key = f"{model}/{WITHDRAWN}"
            if not self._store_errors.alone(key, partial(self.records, model), strict):
                return False
        with self._emptying:
            empty = self._empty_versions.get(model) or NegativeCache()
            # The newest first: a trainer's next version comes before names that others have created.
            due = empty.due(str(number) for number in sorted(numbers, reverse=True))
        complete = True
        for number in map(int, due):
            key = f"{model}/{number}"
            complete &= self._store_errors.alone(f"{key}/{MANIFEST}", partial(self._show, model, number, empty), strict)
        # A version that was committed since the listing is not gone.
        self._end(model, (n for n in versions_here(self._root / model) if n not in numbers))
        is_model = bool(versions_here(self._root / model))
        with self._emptying:
            self._empty.note(model, not is_model)
            if is_model:
                self._empty_versions[model] = empty
        for name, limit in KEPT.items() if is_model else ():
            key = f"{model}/{name}"
            brought = self._store_errors.alone(key, partial(self._kept_as_listed, key, limit, listed.etags.get(name)))
            # The trainer's report is for people: new versions are found without it.
            complete &= brought or name == TRAINER
        return complete

    def _kept_as_listed(self, name: str, limit: int, etag: str | None) -> None:
        """Bring a file that is replaced in place, unless it has the etag of a listing (None: it is not there)."""
        path = self._root / name
        # One that is here and not in the listing may have been put since.
        absent = etag is None and not path.exists()
        if not absent and (not etag or etag != self._kept.etag(path)):
            self.kept(name, limit)

    def kept(self, name: str, limit: int = MAX_KEPT_NBYTES) -> None:
        """Bring a file that is replaced in place: labels, traffic, the trainer's report."""
        path = self._root / name
        before = identity_of(path)
        content = self._store.get(name, limit, self._kept.etag(path))
        if identity_of(path) != before:
            # This process has put another content meanwhile; the next listing brings what the store has.
            return
        if content is None:
            path.unlink(missing_ok=True)
        elif not content.unchanged:
            path.parent.mkdir(exist_ok=True)
            self._kept.put(path, content)

    def records(self, model: str) -> bool:
        """Bring the version records of a model, each one's number after those before it; remove those that are gone."""
        folder, prefix = self._root / model / WITHDRAWN, f"{model}/{WITHDRAWN}/"
        # Before the store is listed: what this process creates meanwhile is not gone.
        downloaded = set(os.listdir(folder)) if folder.is_dir() else set()
        names = {key.rpartition("/")[2] for key in self._store.keys(prefix, MAX_FILES)}
        numbered = sorted((int(m[1]), int(m[2])) for name in names if (m := RECORD_NAME.fullmatch(name)))
        for version, number in numbered:
            name = record_file(version, number)
            if (folder / name).exists():
                continue
            try:
                content = self._store.get(f"{prefix}{name}", MAX_RECORD_NBYTES)
                data = content.data if content is not None else None
            except Corrupt:
                # It keeps its number, and is as invalid here as it is there.
                data = b""
            if data is not None:
                create_record(folder / name, data)
        with contextlib.suppress(OSError):
            for name in downloaded - names:
                if RECORD_NAME.fullmatch(name):
                    (folder / name).unlink(missing_ok=True)
        return True

    def _show(self, model: str, number: int, empty: NegativeCache) -> None:
        key, downloaded = f"{model}/{number}", (self._root / model / str(number) / MANIFEST).exists()
        # Do not create a storage for a name without a manifest.
        exists = downloaded or self._store.head(f"{key}/{MANIFEST}") is not None
        if exists:
            storage = self._storage(model, number)
            exists = storage.followed or storage.bring_manifest()
        if not exists:
            self._tell_of(key)
        with self._emptying:
            empty.note(str(number), not exists)

    def _end(self, model: str, numbers: Iterable[int]) -> None:
        for number in list(numbers):
            storage = self._storage(model, number)
            if self._store.head(f"{storage.key}/{MANIFEST}") is not None:
                continue
            if storage.followed:
                self.gone.append(storage)
            else:
                end_place(storage)

    def _tell_of(self, key: str) -> None:
        logged = key in self._told_of or len(self._told_of) >= MOST_TOLD
        if not logged and self._store.head(f"{key}/{SAVED_MODEL}") is not None:
            self._told_of.add(key)
            log.warning("%s: a SavedModel in an object store is not imported automatically; use `freshet import`", key)


def end_place(storage: MirroredStorage) -> None:
    storage.followed = False
    storage.wipe()
    storage.ended = True


def versions_here(folder: Path) -> list[int]:
    try:
        return [int(path.name) for path in folder.iterdir() if VERSION.fullmatch(path.name)]
    except OSError:
        return []


EMPTY_AT_ONCE = 64


class NegativeCache:
    """Names of one listing that contain no version.

    Any writer can create names, so their cost must not grow with their number.
    """

    def __init__(self) -> None:
        # In the order in which they were queried.
        self._asked: dict[str, None] = {}

    def due(self, names: Iterable[str]) -> list[str]:
        """Return the names of a listing to query now, and forget others.

        These are all that are not known to be empty, and EMPTY_AT_ONCE of the others, those queried longest ago.
        """
        names_now = dict.fromkeys(names)
        self._asked = {name: None for name in self._asked if name in names_now}
        return [name for name in names_now if name not in self._asked] + list(self._asked)[:EMPTY_AT_ONCE]

    def note(self, name: str, empty: bool) -> None:
        self._asked.pop(name, None)
        if empty:
            self._asked[name] = None
