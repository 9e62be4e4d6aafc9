"""The mirror of a repository that lives in an object store: a folder of models, and what keeps it fresh.

The store has the repository's own layout below its prefix, and beside it `.hint`, an object with random content that
whoever commits a version, a label or another manifest replaces.

Invariants
- What the folder shows is what the store had when it was last asked: a version's folder comes with its manifest, its
  tables when somebody is about to load it. A version that is gone in the store goes here too; who serves it has its
  files mapped and goes on.
- In a server two threads ask, follow() starts them; whoever reads the folder then waits for no network. A beat each
  BEAT_S asks for the hint and for the next record of each version that is read, by its name. What takes a listing
  (processor.repository.mirror.listing) is the other thread's, when the hint has changed and every half a minute: however long it
  takes, records come. Before follow(), and in writers, who reads asks.
- An outage changes nothing here: the last state stays, seen_s() tells how old it is, and the next beat asks again.
- What is wrong with one model, version or file in the store keeps nobody from the others, and is told once.
- Where signatures are asked for, nothing of a version is brought but its manifest until a trusted key has signed that.

Cost of a beat: a request for the hint, one for each followed version; each second four more for each version. What
walks the folder does so a hundredth of the time at most.

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
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from freshet_serving.processor.repository.log.chain_record import CHAIN
from freshet_serving.processor.errors import Corrupt, FreshetError, NotReady, shortage
from freshet_serving.processor.repository.mirror.counted_store import CountedStore
from freshet_serving.processor.repository.mirror.eviction import evict, total_nbytes
from freshet_serving.processor.repository.mirror.listing import RepositoryListing, end_place
from freshet_serving.processor.repository.mirror.mirrored_storage import MirroredStorage
from freshet_serving.processor.repository.mirror.store_errors import StoreErrors
from freshet_serving.processor.repository.version import DELTAS, MANIFEST
from freshet_serving.processor.repository.keyring import NO_KEYS
from freshet_serving.processor.standby_thread import COME_S, spawn

if TYPE_CHECKING:
    from freshet_serving.processor.repository.mirror.object_store import ObjectContent, ObjectStore

log = logging.getLogger("freshet.mirror")

HINT = ".hint"
BEAT_S, CHECK_S, EVICT_S = 0.25, 1.0, 10.0
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
        max_nbytes: int = 0,
        serving: bool = False,
        models: Iterable[str] = (),
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """root: the mirror's folder. max_nbytes: what it may take, 0 for half of the disk. serving: where the store
        cannot be reached, what lies in the folder is served. models: the only ones that are wanted; all, if there are
        none."""
        root.mkdir(parents=True, exist_ok=True)
        self.root, self.store, self.serving, self._now_s = root, CountedStore(store, now_s), serving, now_s
        self.max_nbytes = max_nbytes or shutil.disk_usage(root).total // 2
        self.nbytes = 0
        self.following = False
        self.keyring = NO_KEYS
        """Whom what is brought has to be signed by."""
        self._places: dict[tuple[str, int], MirroredStorage] = {}
        self._making = threading.RLock()
        self._preparing: dict[tuple[str, int], VersionFetch] = {}
        self._store_errors = StoreErrors(self._answers)
        self.listing = RepositoryListing(self.store, root, self.storage, self._store_errors, models, now_s)
        # The hint as of the newest beat, and as of the newest listing that came to its end.
        self._hint_etag = self._listed_etag = ""
        self._listing_ended, self._list_now = False, threading.Event()
        self._seen_s, self._out, self._told_full = now_s(), False, False
        self._checked_s = self._tidied_s = -1e9
        self._rest_s = EVICT_S
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []

    def storage(self, model: str, number: int) -> MirroredStorage:
        """The one place of a version in this process."""
        with self._making:
            storage = self._places.get((model, number))
            if storage is None:
                storage = MirroredStorage(
                    self.store, self.root, model, number, self.tell, self.wrote, self._now_s, self.serving
                )
                self._places[model, number] = storage
            return storage

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
        for storage in places:
            if storage.leased and now_s - storage.used_s > FOLLOWED_S:
                storage.release()
        with contextlib.suppress(OSError):
            self._tidy_timed(now_s)

    # Versions that are about to be loaded.

    def prepare(self, model: str, number: int) -> None:
        """Has all that it takes to load a version lie in the folder, and follows it from then on."""
        storage = self.storage(model, number)
        # What was known of it was known of what it was before.
        storage.followed = False
        with ours(storage.key):
            storage.prepare(self.keyring)
        storage.asked_s = self._now_s()
        storage.lease()
        storage.followed = self.following

    def ready(self, model: str, number: int) -> bool:
        """prepare(), beside the caller while the mirror follows: True once it is done; raises why it could not be."""
        if not self.following:
            self.prepare(model, number)
            return True
        with self._making:
            key = model, number
            running = self._preparing.get(key)
            if running is None or (running.done and self._now_s() - running.asked_s > FOLLOWED_S):
                running = self._preparing[key] = VersionFetch(lambda: self.prepare(model, number))
            running.asked_s = self._now_s()
            if not running.done and not running.lost:
                return False
            del self._preparing[key]
        running.raise_error()
        return True

    # Following.

    def follow(self) -> None:
        """Starts the thread."""
        if not self._threads:
            self.following = True
            with self._making:
                for storage in self._places.values():
                    storage.followed = storage.known >= 0
            for name, run in (("freshet-mirror", self._run), ("freshet-listing", self._run_listings)):
                self._threads.append(threading.Thread(target=run, name=name, daemon=True))
                self._threads[-1].start()

    def close(self) -> None:
        """Ends the threads; what they wait for may keep them a moment longer."""
        self._stop.set()
        self._list_now.set()
        self.following = False

    def _run(self) -> None:
        while not self._stop.wait(BEAT_S * random.uniform(0.8, 1.2)):
            self.beat()
            if self.listing_due():
                self._list_now.set()

    def _run_listings(self) -> None:
        while self._list_now.wait() and not self._stop.is_set():
            self._list_now.clear()
            if self.listing_due():
                self.list_all()

    def listing_due(self) -> bool:
        """Whether it is time for a listing."""
        return self.listing.due(self._now_s(), self._hint_etag != self._listed_etag)

    def list_all(self) -> None:
        """Lists the repository, with what is followed first; does not raise. The next beat takes what has gone."""
        etag = self._hint_etag
        with self._making:
            followed = {storage.model for storage in self._places.values() if storage.followed}
        if self.listing.look(followed):
            self._listed_etag = etag
        self._listing_ended = True

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
            self._store_errors.tell("mirror", str(error))
            return
        except Exception:
            log.exception("the mirror could not be kept")
            return
        self._store_errors.over("mirror")
        if all_seen:
            self._seen_s = now_s
        if self._out:
            self._out = False
            log.warning("repository: the object store answers again")

    def _look(self, now_s: float) -> bool:
        """Whether all that is new was seen of what is followed."""
        while self.listing.gone:
            end_place(self.listing.gone.popleft())
        followed, alone = self._followed(now_s), self._store_errors.alone
        if now_s - self._tidied_s >= self._rest_s:
            # Before what may fail for want of room.
            self._tidy_timed(now_s)
        complete = True
        for storage in followed:
            complete &= alone(storage.key, partial(storage.advance, self.keyring))
        behind = any(storage.behind for storage in followed)
        hint = self._hint()
        if hint is not None:
            self._hint_etag = hint.etag
        if self._listing_ended:
            self._listing_ended = False
            for storage in followed:
                complete &= alone(f"{storage.key}/{MANIFEST}", partial(_manifest, storage))
        if now_s - self._checked_s >= CHECK_S:
            self._checked_s = now_s
            for storage in followed:
                if not self.keyring.trusts:
                    complete &= alone(f"{storage.key}/{DELTAS}", storage.look_at_next_dropped)
                complete &= alone(f"{storage.key}/{CHAIN}", storage.scrub)
        return complete and not behind

    def _answers(self) -> bool:
        """Whether the store does, for what everybody needs."""
        try:
            self.store.head(HINT)
        except NotReady:
            return False
        return True

    def _hint(self) -> ObjectContent | None:
        with contextlib.suppress(Corrupt):
            return self.store.get(HINT, MAX_HINT_NBYTES, self._hint_etag)
        return None

    def _followed(self, now_s: float) -> list[MirroredStorage]:
        with self._making:
            places = list(self._places.values())
        followed = []
        for storage in places:
            asked = now_s - storage.asked_s <= FOLLOWED_S
            if storage.followed and not asked:
                storage.followed = False
            elif asked and not storage.followed and storage.known >= 0:
                # A look at it has taken its time: a version that loads is asked for nothing meanwhile.
                storage.lease()
                storage.followed = True
            if storage.followed:
                followed.append(storage)
            elif storage.leased and now_s - storage.used_s > KEPT_S:
                storage.release()
        return followed

    def _tidy_timed(self, now_s: float) -> None:
        begun_s = time.monotonic()
        self.tidy()
        self._tidied_s, self._rest_s = now_s, max(EVICT_S, TIDY_REST * (time.monotonic() - begun_s))

    def tidy(self) -> None:
        """Removes what nothing needs, where the mirror takes more than it may, or its disk has no room."""
        self.nbytes = total_nbytes(self.root)
        wanted = max(self.nbytes - self.max_nbytes, ROOM_NBYTES - shutil.disk_usage(self.root).free)
        if wanted <= 0:
            return
        with self._making:
            mine = [storage for storage in self._places.values() if storage.leased]
        self.nbytes -= evict(self.root, mine, wanted)
        if self.nbytes > self.max_nbytes and not self._told_full:
            self._told_full = True
            log.warning(
                "mirror_bytes: what is served takes %d bytes of the mirror, more than %d", self.nbytes, self.max_nbytes
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


class VersionFetch:
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

    def raise_error(self) -> None:
        """Raises why it could not be brought."""
        if self.lost:
            raise NotReady("there are not enough threads for it")
        if self._error is not None:
            raise self._error


def _manifest(storage: MirroredStorage) -> None:
    storage.bring_manifest()
