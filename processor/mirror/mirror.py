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
- What is wrong with one model, version or file in the store keeps nobody from the others, and is told once.
- Where signatures are asked for, nothing of a version is brought but its manifest until a trusted key has signed that.

Cost of a beat: a request for the hint, one for each followed version; each second four more for each version.
A listing: three requests for each model that is wanted, AT_ONCE at a time. What walks the folder does so a hundredth of
the time at most.

Refused: notifications of the store (each has its own, none has all, and what was missed has to be found anyway); one
asker for all servers of a machine (who ends with it, and what it is asked for, cost more than the requests).
"""

from __future__ import annotations

import contextlib
import errno
import logging
import random
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from processor.chain.chain_record import CHAIN
from processor.errors import BadInput, Corrupt, FreshetError, NotReady, shortage
from processor.mirror.counted_store import CountedStore
from processor.mirror.eviction import evict, total_nbytes
from processor.mirror.mirrored_place import MirroredPlace
from processor.mirror.version_copy import AT_ONCE, KnownFiles
from processor.package.keyring import NO_KEYS
from processor.package.manifest import NAME
from processor.package.repository import LABELS, MAX_KEPT_NBYTES, SAVED_MODEL, TRAFFIC, VERSION
from processor.package.version import DELTAS, MANIFEST
from processor.standing_thread import COME_S, spawn

if TYPE_CHECKING:
    from processor.mirror.object_store import Found, ObjectStore

log = logging.getLogger("freshet.mirror")

HINT = ".hint"
BEAT_S, CHECK_S, EVICT_S, LIST_S = 0.25, 1.0, 10.0, 30.0
FOLLOWED_S, KEPT_S = 60.0, 2 * 3600.0
"""A version is followed for so long after somebody has last looked at its chain, and its files are kept for so long
after they were last needed, unless somebody says sooner that they are not."""
MAX_HINT_NBYTES = 1 << 10
ROOM_NBYTES = 256 << 20
"""Of the disk, to be free for what comes."""
TIDY_REST = 100
"""Between two walks through the folder: so many times as long as one took."""
PREPARING = threading.BoundedSemaphore(4)
NO_FOLDER = {errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG}


class Mirror:
    """Thread-safe."""

    def __init__(
        self,
        store: ObjectStore,
        root: Path,
        most_nbytes: int = 0,
        serving: bool = False,
        models: Iterable[str] = (),
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """root: the mirror's folder. most_nbytes: what it may take, 0 for half of the disk. serving: where the store
        cannot be reached, what lies in the folder is served. models: the only ones that are wanted; all, if there are
        none."""
        root.mkdir(parents=True, exist_ok=True)
        self.root, self.store, self.serving, self._now_s = root, CountedStore(store, now_s), serving, now_s
        self.most_nbytes = most_nbytes or shutil.disk_usage(root).total // 2
        self.nbytes, self._wanted = 0, frozenset(models)
        self.following = self.listed = False
        self.keyring = NO_KEYS
        """Whom what is brought has to be signed by."""
        self._places: dict[tuple[str, int], MirroredPlace] = {}
        self._making = threading.RLock()
        self._preparing: dict[tuple[str, int], Preparation] = {}
        self._hint_etag, self._kept = "", KnownFiles()
        self._told_of: set[str] = set()
        self._wrong: dict[str, str] = {}
        self._seen_s, self._out = now_s(), False
        # What one version could not be asked for, although the store answers.
        self._late: NotReady | None = None
        self._listed_s = self._checked_s = self._tidied_s = -1e9
        self._rest_s = EVICT_S
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def place(self, model: str, number: int) -> MirroredPlace:
        """The one place of a version in this process."""
        with self._making:
            place = self._places.get((model, number))
            if place is None:
                place = MirroredPlace(
                    self.store, self.root, model, number, self.tell, self.wrote, self._now_s, self.serving
                )
                self._places[model, number] = place
            return place

    def seen_s(self) -> float:
        """Seconds since the store was last asked for all that is new."""
        return max(0.0, self._now_s() - (self._seen_s if self.following else self.store.answered_s))

    def tell(self) -> None:
        """Has everybody list the repository soon. What fails here is found by the next listing."""
        with contextlib.suppress(FreshetError):
            self.store.put(HINT, secrets.token_hex(16).encode())

    def wrote(self) -> None:
        """Makes room, now and then, where no thread does: a trainer's mirror grows too."""
        now_s = self._now_s()
        if self.following or now_s - self._tidied_s < self._rest_s:
            return
        with self._making:
            places = list(self._places.values())
        for place in places:
            if place.leased and now_s - place.used_s > FOLLOWED_S:
                place.release()
        with contextlib.suppress(OSError):
            self._tidy_timed(now_s)

    # Versions that are about to be loaded.

    def prepare(self, model: str, number: int) -> None:
        """Has all that it takes to load a version lie in the folder, and follows it from then on."""
        place = self.place(model, number)
        # What was known of it was known of what it was before.
        place.followed = False
        with ours(place.key):
            place.prepare(self.keyring)
        place.asked_s = self._now_s()
        place.lease()
        place.followed = self.following

    def ready(self, model: str, number: int) -> bool:
        """prepare(), beside the caller while the mirror follows: True once it is done; raises why it could not be."""
        if not self.following:
            self.prepare(model, number)
            return True
        with self._making:
            key = model, number
            running = self._preparing.get(key)
            if running is None or (running.done and self._now_s() - running.asked_s > FOLLOWED_S):
                running = self._preparing[key] = Preparation(lambda: self.prepare(model, number))
            running.asked_s = self._now_s()
            if not running.done and not running.lost:
                return False
            del self._preparing[key]
        running.check()
        return True

    # What there is.

    def list_models(self) -> None:
        """Has a folder for each model, and for no other; see list_versions()."""
        found = [folder.name for folder in self.root.iterdir() if folder.is_dir()]
        try:
            found = self.store.folders("")
        except BadInput as error:
            # A bucket that is not there, or names that no listing can hold.
            if not found:
                raise
            self._tell_wrong(HINT, str(error))
        names = [name for name in found if NAME.fullmatch(name) and not name.startswith(".")]
        wanted = [name for name in names if not self._wanted or name in self._wanted]
        with ThreadPoolExecutor(AT_ONCE, "freshet-mirror") as pool:
            list(pool.map(lambda name: self._alone(name, partial(self.list_versions, name)), wanted))
        self.listed = True
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
            self._alone(f"{place.key}/{MANIFEST}", partial(self._show, place))
        # One that was committed since the listing is not gone.
        self._end(model, (n for n in _versions(folder) if n not in numbers))
        for name in (LABELS, TRAFFIC):
            self._alone(f"{model}/{name}", partial(self.bring_kept, f"{model}/{name}"))

    def _show(self, place: MirroredPlace) -> None:
        if not place.followed and not place.bring_manifest():
            self._tell_of(place)

    def bring_kept(self, name: str) -> None:
        """Brings a file that is replaced in its place: labels, traffic."""
        path = self.root / name
        found = self.store.get(name, MAX_KEPT_NBYTES, self._kept.etag(path))
        if found is None:
            path.unlink(missing_ok=True)
        elif not found.unchanged:
            path.parent.mkdir(exist_ok=True)
            self._kept.put(path, found)

    def _end(self, model: str, numbers: Iterable[int]) -> None:
        for number in list(numbers):
            place = self.place(model, number)
            if self.store.head(f"{place.key}/{MANIFEST}") is None:
                place.followed = False
                place.wipe()
                place.ended = True

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
            all_seen = self._look(now_s)
        except NotReady as error:
            if not self._out:
                self._out = True
                log.warning("%s; what is served stays", error)
            return
        except FreshetError as error:
            self._tell_wrong("mirror", str(error))
            return
        except Exception:
            log.exception("the mirror could not be kept")
            return
        self._wrong.pop("mirror", None)
        if all_seen:
            self._seen_s = now_s
        if self._out:
            self._out = False
            log.warning("repository: the object store answers again")

    def _look(self, now_s: float) -> bool:
        """Whether all that is new was seen."""
        self._late = None
        followed = self._followed(now_s)
        if now_s - self._tidied_s >= self._rest_s:
            # Before what may fail for want of room.
            self._tidy_timed(now_s)
        for place in followed:
            self._alone(place.key, partial(place.advance, self.keyring))
        behind = any(place.behind for place in followed)
        hint = self._hint()
        fresh = hint is not None and not hint.unchanged
        if fresh or now_s - self._listed_s >= LIST_S:
            self.list_models()
            for place in followed:
                self._alone(f"{place.key}/{MANIFEST}", place.bring_manifest)
            self._listed_s = now_s
            if hint is not None:
                self._hint_etag = hint.etag
        if now_s - self._checked_s >= CHECK_S:
            self._checked_s = now_s
            for place in followed:
                if not self.keyring.trusts:
                    self._alone(f"{place.key}/{DELTAS}", place.look_at_next_dropped)
                self._alone(f"{place.key}/{CHAIN}", place.patrol)
        if self._late is not None:
            raise self._late
        return not behind

    def _alone(self, name: str, act: Callable[[], object]) -> None:
        """What is wrong with one model, version or file keeps nobody from the others; an outage does. Told once."""
        try:
            act()
            self._wrong.pop(name, None)
        except NotReady as error:
            if not self._answers():
                raise
            self._late = error
            self._tell_wrong(name, str(error))
        except Exception as error:
            known = str(error) if isinstance(error, FreshetError) else getattr(error, "strerror", "")
            self._tell_wrong(name, known or type(error).__name__, traceback=not known)

    def _tell_wrong(self, name: str, why: str, traceback: bool = False) -> None:
        if self._wrong.get(name) != why:
            self._wrong[name] = why
            log.error("%s: cannot be followed: %s", name, why, exc_info=traceback)

    def _answers(self) -> bool:
        """Whether the store does, for what everybody needs."""
        try:
            self.store.head(HINT)
        except NotReady:
            return False
        return True

    def _hint(self) -> Found | None:
        with contextlib.suppress(Corrupt):
            return self.store.get(HINT, MAX_HINT_NBYTES, self._hint_etag)
        return None

    def _followed(self, now_s: float) -> list[MirroredPlace]:
        with self._making:
            places = list(self._places.values())
        followed = []
        for place in places:
            asked = now_s - place.asked_s <= FOLLOWED_S
            if place.followed and not asked:
                place.followed = False
            elif asked and not place.followed and place.known >= 0:
                # A look at it has taken its time: a version that loads is asked for nothing meanwhile.
                place.lease()
                place.followed = True
            if place.followed:
                followed.append(place)
            elif place.leased and now_s - place.used_s > KEPT_S:
                place.release()
        return followed

    def _tidy_timed(self, now_s: float) -> None:
        begun_s = time.monotonic()
        self.tidy()
        self._tidied_s, self._rest_s = now_s, max(EVICT_S, TIDY_REST * (time.monotonic() - begun_s))

    def tidy(self) -> None:
        """Removes what nothing needs, where the mirror takes more than it may, or its disk has no room."""
        self.nbytes = total_nbytes(self.root)
        wanted = max(self.nbytes - self.most_nbytes, ROOM_NBYTES - shutil.disk_usage(self.root).free)
        if wanted <= 0:
            return
        with self._making:
            mine = [place for place in self._places.values() if place.leased]
        self.nbytes -= evict(self.root, mine, wanted)
        if self.nbytes > self.most_nbytes and "" not in self._told_of:
            self._told_of.add("")
            log.warning(
                "mirror_bytes: what is served takes %d bytes of the mirror, more than %d", self.nbytes, self.most_nbytes
            )


@contextlib.contextmanager
def ours(what: str) -> Iterator[None]:
    """Whatever keeps a version from being brought as an error of ours: what passes as NotReady."""
    try:
        yield
    except FreshetError:
        raise
    except OSError as error:
        if error.errno in NO_FOLDER:
            raise Corrupt("manifest: names files that no folder can hold") from None
        raise shortage(error) or NotReady(f"mirror: cannot be written: {error.strerror}") from None
    except Exception as error:
        if (short := shortage(error)) is not None:
            raise short from None
        if isinstance(error, RuntimeError) and "new thread" in str(error):
            raise NotReady("there are not enough threads for it") from None
        log.exception("%s: could not be brought", what)
        raise Corrupt("version: could not be brought; the server's log says why") from None


class Preparation:
    """A version being brought, on a thread of its own."""

    def __init__(self, act: Callable[[], None]) -> None:
        self._error: BaseException | None = None
        self._act, self.done, self.asked_s = act, False, 0.0
        # A thread is not waited for: where memory is short it may die before it has begun.
        self._made_s, self._begun = time.monotonic(), False
        spawn(self._run)

    def _run(self) -> None:
        self._begun = True
        try:
            with PREPARING:
                self._act()
        except BaseException as error:
            self._error = error
        self.done = True

    @property
    def lost(self) -> bool:
        """Whether its thread has never come."""
        return not self._begun and time.monotonic() - self._made_s > COME_S

    def check(self) -> None:
        """Raises why it could not be brought."""
        if self.lost:
            raise NotReady("there are not enough threads for it")
        if self._error is not None:
            raise self._error


def _versions(folder: Path) -> list[int]:
    try:
        return [int(path.name) for path in folder.iterdir() if VERSION.fullmatch(path.name)]
    except OSError:
        return []
