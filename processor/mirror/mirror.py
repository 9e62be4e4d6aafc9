"""The mirror of a repository that lives in an object store: a folder of models, and one thread that keeps it fresh.

The store has the repository's own layout below its prefix, and beside it `.hint`, an object with random content that
whoever commits a version, a label or another manifest replaces.

Invariants
- What the folder shows is what the store had when it was last asked: a version's folder comes with its manifest, its
  tables when somebody is about to load it. A version that is gone in the store goes here too; who serves it has its
  files mapped and goes on.
- In a server one thread asks, follow() starts it; whoever reads the folder then waits for no network. A beat each
  BEAT_S asks for the hint and for the next record of each version that is read, by its name. What takes a listing is
  asked when the hint has changed, and every LIST_S. Before follow(), and in writers, who reads asks.
- An outage changes nothing here: the last state stays, seen_s() tells how old it is, and the next beat asks again.

Cost of a beat: a request for the hint, one for each followed version; each second two or three more for each version.

Refused: notifications of the store (each has its own, none has all, and what was missed has to be found anyway); one
asker for all servers of a machine (who ends with it, and what it is asked for, cost more than the requests).
"""

from __future__ import annotations

import contextlib
import logging
import random
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from processor.errors import FreshetError, NotReady
from processor.mirror.counted_store import CountedStore
from processor.mirror.eviction import evict, total_nbytes
from processor.mirror.mirrored_place import MirroredPlace
from processor.package.atomic import atomic_file
from processor.package.manifest import NAME
from processor.package.repository import LABELS, MAX_KEPT_NBYTES, SAVED_MODEL, TRAFFIC, VERSION
from processor.package.version import MANIFEST

if TYPE_CHECKING:
    from processor.mirror.object_store import ObjectStore

log = logging.getLogger("freshet.mirror")

HINT = ".hint"
BEAT_S, CHECK_S, EVICT_S, LIST_S = 0.25, 1.0, 10.0, 30.0
FOLLOWED_S = 60.0
"""A version is followed for so long after somebody has last looked at its chain."""
MAX_HINT_NBYTES = 1 << 10


class Mirror:
    """Thread-safe."""

    def __init__(
        self,
        store: ObjectStore,
        root: Path,
        most_nbytes: int = 0,
        serving: bool = False,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """root: the mirror's folder. most_nbytes: what it may take, 0 for half of the disk. serving: where the store
        cannot be reached, what lies in the folder is served."""
        root.mkdir(parents=True, exist_ok=True)
        self.root, self.store, self.serving, self._now_s = root, CountedStore(store, now_s), serving, now_s
        self.most_nbytes = most_nbytes or shutil.disk_usage(root).total // 2
        self.nbytes = 0
        self.following = False
        self._places: dict[tuple[str, int], MirroredPlace] = {}
        self._making = threading.RLock()
        self._preparing: dict[tuple[str, int], Preparation] = {}
        self._etags: dict[str, str] = {}
        self._told_of: set[str] = set()
        self._seen_s, self._out = now_s(), False
        self._listed_s = self._checked_s = self._evicted_s = -1e9
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def place(self, model: str, number: int) -> MirroredPlace:
        """The one place of a version in this process."""
        with self._making:
            place = self._places.get((model, number))
            if place is None:
                place = MirroredPlace(self.store, self.root, model, number, self.tell, self._now_s, self.serving)
                self._places[model, number] = place
            return place

    def seen_s(self) -> float:
        """Seconds since the store was last asked for all that is new."""
        return max(0.0, self._now_s() - (self._seen_s if self.following else self.store.answered_s))

    def tell(self) -> None:
        """Has everybody list the repository soon. What fails here is found by the next listing."""
        with contextlib.suppress(FreshetError):
            self.store.put(HINT, secrets.token_hex(16).encode())

    # Versions that are about to be loaded.

    def prepare(self, model: str, number: int) -> None:
        """Has all that it takes to load a version lie in the folder, and follows it from then on."""
        place = self.place(model, number)
        place.prepare()
        place.asked_s = self._now_s()
        place.followed = self.following

    def ready(self, model: str, number: int) -> bool:
        """prepare(), beside the caller while the mirror follows: True once it is done; raises why it could not be."""
        if not self.following:
            self.prepare(model, number)
            return True
        with self._making:
            key = model, number
            running = self._preparing.get(key)
            if running is None:
                running = self._preparing[key] = Preparation(lambda: self.prepare(model, number))
            if not running.done:
                return False
            del self._preparing[key]
        running.check()
        return True

    # What there is.

    def list_models(self) -> None:
        """Has a folder for each model, and for no other; see list_versions()."""
        names = [name for name in self.store.folders("") if NAME.fullmatch(name) and not name.startswith(".")]
        for name in names:
            self.list_versions(name)
        for folder in self.root.iterdir():
            if folder.is_dir() and NAME.fullmatch(folder.name) and folder.name not in names:
                self._end(folder.name, _versions(folder))
                with contextlib.suppress(OSError):
                    (folder / LABELS).unlink(missing_ok=True)
                    (folder / TRAFFIC).unlink(missing_ok=True)
                    folder.rmdir()

    def list_versions(self, model: str) -> None:
        """Has the manifest of each version of a model, and of no other, and its labels and traffic."""
        numbers = [int(name) for name in self.store.folders(model) if VERSION.fullmatch(name)]
        folder = self.root / model
        if numbers:
            folder.mkdir(exist_ok=True)
        for number in numbers:
            place = self.place(model, number)
            if not (place.folder / MANIFEST).exists() and not place.bring_manifest():
                self._tell_of(place)
        # One that was committed since the listing is not gone.
        self._end(model, (n for n in _versions(folder) if n not in numbers))
        for name in (LABELS, TRAFFIC):
            self.bring_kept(f"{model}/{name}")

    def bring_kept(self, name: str) -> None:
        """Brings a file that is replaced in its place: labels, traffic."""
        found = self.store.get(name, MAX_KEPT_NBYTES, self._etags.get(name, ""))
        path = self.root / name
        if found is None:
            path.unlink(missing_ok=True)
        elif not found.unchanged or not path.exists():
            data = found.data if not found.unchanged else self._again(name)
            if not path.exists() or path.read_bytes() != data:
                path.parent.mkdir(exist_ok=True)
                with atomic_file(path) as file:
                    file.write(data)
            self._etags[name] = found.etag

    def _again(self, name: str) -> bytes:
        found = self.store.get(name, MAX_KEPT_NBYTES)
        return found.data if found else b"{}"

    def _end(self, model: str, numbers: Iterable[int]) -> None:
        for number in list(numbers):
            place = self.place(model, number)
            if self.store.head(f"{place.key}/{MANIFEST}") is None:
                place.followed = False
                place.wipe()

    def _tell_of(self, place: MirroredPlace) -> None:
        if place.key not in self._told_of and self.store.head(f"{place.key}/{SAVED_MODEL}") is not None:
            self._told_of.add(place.key)
            log.warning("%s: a SavedModel in an object store is not imported: `freshet import` does it", place.key)

    # Following.

    def follow(self) -> None:
        """Starts the thread."""
        if self._thread is None:
            self.following = True
            with self._making:
                for place in self._places.values():
                    place.followed = place.known >= 0
            self._thread = threading.Thread(target=self._run, name="freshet-mirror", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Ends the thread; what it waits for may keep it a moment longer."""
        self._stop.set()
        self.following = False

    def _run(self) -> None:
        while not self._stop.wait(BEAT_S * random.uniform(0.8, 1.2)):
            self.beat()

    def beat(self) -> None:
        """Asks once for what is new; does not raise."""
        now_s = self._now_s()
        try:
            self._look(now_s)
        except NotReady as error:
            if not self._out:
                self._out = True
                log.warning("%s; what is served stays", error)
            return
        except FreshetError as error:
            log.error("mirror: %s", error)
            return
        except Exception:
            log.exception("the mirror could not be kept")
            return
        self._seen_s = now_s
        if self._out:
            self._out = False
            log.warning("repository: the object store answers again")

    def _look(self, now_s: float) -> None:
        followed = self._followed(now_s)
        for place in followed:
            place.advance()
        hint = self.store.get(HINT, MAX_HINT_NBYTES, self._etags.get(HINT, ""))
        fresh = hint is not None and not hint.unchanged
        if fresh or now_s - self._listed_s >= LIST_S:
            self.list_models()
            for place in followed:
                place.bring_manifest()
            self._listed_s = now_s
            if hint is not None:
                self._etags[HINT] = hint.etag
        if now_s - self._checked_s >= CHECK_S:
            self._checked_s = now_s
            for place in followed:
                place.look_at_next_dropped()
                place.patrol()
        if now_s - self._evicted_s >= EVICT_S:
            self._evicted_s = now_s
            self.tidy()

    def _followed(self, now_s: float) -> list[MirroredPlace]:
        with self._making:
            places = list(self._places.values())
        followed = []
        for place in places:
            if place.followed and now_s - place.asked_s > FOLLOWED_S:
                place.followed = False
                place.release()
            if place.followed:
                followed.append(place)
        return followed

    def tidy(self) -> None:
        """Removes what nothing needs, where the mirror takes more than it may."""
        self.nbytes = total_nbytes(self.root)
        if self.nbytes <= self.most_nbytes:
            return
        with self._making:
            mine = [place for place in self._places.values() if place.leased]
        self.nbytes -= evict(self.root, mine, self.nbytes - self.most_nbytes)
        if self.nbytes > self.most_nbytes and "" not in self._told_of:
            self._told_of.add("")
            log.warning(
                "mirror_bytes: what is served takes %d bytes of the mirror, more than %d", self.nbytes, self.most_nbytes
            )


class Preparation:
    """A version being brought, on a thread of its own."""

    def __init__(self, act: Callable[[], None]) -> None:
        self._error: BaseException | None = None
        self._act, self.done = act, False
        threading.Thread(target=self._run, name="freshet-bring", daemon=True).start()

    def _run(self) -> None:
        try:
            self._act()
        except BaseException as error:
            self._error = error
        self.done = True

    def check(self) -> None:
        """Raises why it could not be brought."""
        if self._error is not None:
            raise self._error


def _versions(folder: Path) -> list[int]:
    try:
        return [int(path.name) for path in folder.iterdir() if VERSION.fullmatch(path.name)]
    except OSError:
        return []
