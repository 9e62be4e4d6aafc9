"""Mirror of a repository in an object store: a local folder of models, kept in sync by polling threads.

The store has the layout of a repository folder, and beside it `.hint`, an object with random content that every writer
of a version, a label or another manifest replaces.

Invariants
- The folder shows what the store had at the last request: a version's folder appears with its manifest, its tables when
  it is about to be loaded. A version that is gone in the store is removed here too; a process that serves it has its
  files mapped and goes on.
- In a server, follow() starts two threads; reading the folder then waits for no network. One polls the hint, and by
  its name the next record of each version that is read. The other lists (listing) when the hint has changed and every
  half a minute. Before follow(), and in writers, each read queries the store.
- A poll comes BEAT_S after the last, and less often while nothing changes: after a quiet time of T within T / 100, at
  most LONGEST_BEAT_S. So what ends a pause is late by a hundredth of it, and a trainer that publishes every 25 s or
  more often is never waited for.
- An outage changes nothing here: the last state stays, seen_s() reports its age, and the next beat tries again.
- An error with one model, version or file in the store does not affect the others, and is logged once.
- Where signatures are required, only the manifest of a version is downloaded until a trusted key has signed it.

Costs of a beat: one request for the hint, one for each followed version; at every CHECK_BEATS-th four more for each
version (requests a month: docs/extensions/object_stores.md). Walking the folder takes at most a hundredth of the time.

Rejected: notifications of the store (each store has its own kind, and missed changes have to be found anyway); one
poller for all servers of a machine (managing its lifetime costs more than the requests).
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

from freshet_serving.processor.errors import Corrupt, FreshetError, NotReady, shortage
from freshet_serving.processor.extensions.object_stores.counted_store import CountedStore
from freshet_serving.processor.extensions.object_stores.eviction import evict, total_nbytes
from freshet_serving.processor.extensions.object_stores.listing import RepositoryListing, end_place
from freshet_serving.processor.extensions.object_stores.mirrored_storage import MirroredStorage
from freshet_serving.processor.extensions.object_stores.store_errors import StoreErrors
from freshet_serving.processor.repository import DELTAS, MANIFEST, NO_KEYS
from freshet_serving.processor.repository.log.chain_record import CHAIN
from freshet_serving.processor.standby_thread import COME_S, spawn

if TYPE_CHECKING:
    from freshet_serving.processor.extensions.object_stores.object_store import ObjectContent, ObjectStore

log = logging.getLogger("freshet.mirror")

HINT = ".hint"
BEAT_S, LONGEST_BEAT_S, QUIET_SHARE, CHECK_BEATS, EVICT_S = 0.25, 2.0, 0.01, 4, 10.0
FOLLOWED_S, KEPT_S = 60.0, 2 * 3600.0
"""Seconds that a version is followed after its log was last read, and that its files are kept after their last use."""
MAX_HINT_NBYTES = 1 << 10
ROOM_NBYTES = 256 << 20
"""Disk space to keep free for new files."""
TIDY_REST = 100
"""Pause between two walks through the folder, as a multiple of the duration of one."""
PREPARING = threading.BoundedSemaphore(4)
NO_FOLDER = {errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG}


class Mirror:
    """The mirror of one repository. Thread-safe."""

    def __init__(
        self,
        store: ObjectStore,
        root: Path,
        max_nbytes: int = 0,
        serving: bool = False,
        models: Iterable[str] = (),
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create the mirror folder; nothing is requested from the store yet.

        Args:
            root: The mirror's folder.
            max_nbytes: Maximum size of the mirror; 0 for half of the disk.
            serving: Serve what the folder has while the store cannot be reached.
            models: Names of the only models to mirror; all if empty.
        """
        root.mkdir(parents=True, exist_ok=True)
        self.root, self.store, self.serving, self._now_s = root, CountedStore(store, now_s), serving, now_s
        self.max_nbytes = max_nbytes or shutil.disk_usage(root).total // 2
        self.nbytes = 0
        self.following = False
        self.keyring = NO_KEYS
        """Keys that must have signed what is downloaded."""
        self._places: dict[tuple[str, int], MirroredStorage] = {}
        self._making = threading.RLock()
        self._preparing: dict[tuple[str, int], VersionFetch] = {}
        self._store_errors = StoreErrors(self._answers)
        self.listing = RepositoryListing(self.store, root, self.storage, self._store_errors, models, now_s)
        # The hint as of the newest beat, and as of the newest complete listing.
        self._hint_etag = self._listed_etag = ""
        self._listing_ended, self._list_now = False, threading.Event()
        self._seen_s, self._out, self._told_full = now_s(), False, False
        self._tidied_s = -1e9
        self._beats = 0
        # What the newest beat saw, and when that last changed.
        self._state: object = None
        self._changed_s = now_s()
        self._rest_s = EVICT_S
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []

    def storage(self, model: str, number: int) -> MirroredStorage:
        """Return the storage of a version; there is one per version in this process."""
        with self._making:
            storage = self._places.get((model, number))
            if storage is None:
                storage = MirroredStorage(
                    self.store, self.root, model, number, self.tell, self.wrote, self._now_s, self.serving
                )
                self._places[model, number] = storage
            return storage

    def seen_s(self) -> float:
        """Return the seconds since the store was last checked for all changes."""
        return max(0.0, self._now_s() - (self._seen_s if self.following else self.store.answered_s))

    def tell(self) -> None:
        """Replace the hint, so that all mirrors list the repository soon; if that fails, the next listing suffices."""
        with contextlib.suppress(FreshetError):
            self.store.put(HINT, secrets.token_hex(16).encode())

    def wrote(self) -> None:
        """Free space from time to time where no thread does: a trainer's mirror grows too."""
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

    # Versions to be loaded.

    def prepare(self, model: str, number: int) -> None:
        """Bring all files needed to load a version into the folder, and follow the version from then on."""
        storage = self.storage(model, number)
        # Its cached state refers to the old version.
        storage.followed = False
        with ours(storage.key):
            storage.prepare(self.keyring)
        storage.asked_s = self._now_s()
        storage.lease()
        storage.followed = self.following

    def ready(self, model: str, number: int) -> bool:
        """Run prepare() in the background while the mirror follows; return True once it is done, raise its error."""
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
        if not self._threads:
            self.following = True
            with self._making:
                for storage in self._places.values():
                    storage.followed = storage.known >= 0
            for name, run in (("freshet-mirror", self._run), ("freshet-listing", self._run_listings)):
                self._threads.append(threading.Thread(target=run, name=name, daemon=True))
                self._threads[-1].start()

    def close(self) -> None:
        """Stop the threads; a pending request may keep them a moment longer."""
        self._stop.set()
        self._list_now.set()
        self.following = False

    def _run(self) -> None:
        while not self._stop.wait(self.pause_s() * random.uniform(0.8, 1.2)):
            self.beat()
            if self.listing_due():
                self._list_now.set()

    def _run_listings(self) -> None:
        while self._list_now.wait() and not self._stop.is_set():
            self._list_now.clear()
            if self.listing_due():
                self.list_all()

    def pause_s(self) -> float:
        """Return the seconds from one poll to the next: longer while nothing changes, within bounds."""
        return min(max(BEAT_S, QUIET_SHARE * (self._now_s() - self._changed_s)), LONGEST_BEAT_S)

    def listing_due(self) -> bool:
        return self.listing.due(self._now_s(), self._hint_etag != self._listed_etag)

    def list_all(self) -> None:
        """List the repository, followed models first; does not raise. The next beat removes versions that are gone."""
        etag = self._hint_etag
        with self._making:
            followed = {storage.model for storage in self._places.values() if storage.followed}
        if self.listing.look(followed):
            self._listed_etag = etag
        self._listing_ended = True

    def beat(self) -> None:
        """Poll the store once for changes; does not raise."""
        now_s = self._now_s()
        try:
            all_seen = self._look(now_s)
        except NotReady as error:
            if not self._out:
                self._out = True
                log.warning("%s; the server keeps serving its current versions", error)
            return
        except FreshetError as error:
            self._store_errors.tell("mirror", str(error))
            return
        except Exception:
            log.exception("cannot update the mirror")
            return
        self._store_errors.over("mirror")
        if all_seen:
            self._seen_s = now_s
        if self._out:
            self._out = False
            log.warning("repository: the object store answers again")

    def _look(self, now_s: float) -> bool:
        """Poll what is followed; return True if all changes were seen."""
        while self.listing.gone:
            end_place(self.listing.gone.popleft())
        followed, alone = self._followed(now_s), self._store_errors.alone
        if now_s - self._tidied_s >= self._rest_s:
            # Before requests that may fail because the disk is full.
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
        state = self._hint_etag, [(storage.key, storage.known) for storage in followed]
        if behind or state != self._state:
            self._state, self._changed_s = state, now_s
        self._beats += 1
        if self._beats % CHECK_BEATS == 1:
            for storage in followed:
                if not self.keyring.trusted:
                    complete &= alone(f"{storage.key}/{DELTAS}", storage.look_at_next_dropped)
                complete &= alone(f"{storage.key}/{CHAIN}", storage.scrub)
        return complete and not behind

    def _answers(self) -> bool:
        """Return True if the store answers a request that does not depend on one model."""
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
                # Its log was not read for a while, as happens when a version loads, and is read again now.
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
        """Remove unneeded files if the mirror is too large, or its disk is full."""
        self.nbytes = total_nbytes(self.root)
        excess = max(self.nbytes - self.max_nbytes, ROOM_NBYTES - shutil.disk_usage(self.root).free)
        if excess <= 0:
            return
        with self._making:
            leased = [storage for storage in self._places.values() if storage.leased]
        self.nbytes -= evict(self.root, leased, excess)
        if self.nbytes > self.max_nbytes and not self._told_full:
            self._told_full = True
            log.warning(
                "mirror_bytes: the served versions take %d bytes of the mirror, more than %d",
                self.nbytes,
                self.max_nbytes,
            )


@contextlib.contextmanager
def ours(subject: str) -> Iterator[None]:
    """Convert an error that prevents a version's download to one of ours; NotReady if it is temporary."""
    try:
        yield
    except FreshetError:
        raise
    except OSError as error:
        if error.errno in NO_FOLDER:
            raise Corrupt("manifest: names files that cannot be stored in a folder") from None
        raise shortage(error) or NotReady(f"mirror: cannot be written: {error.strerror}") from None
    except Exception as error:
        if (short := shortage(error)) is not None:
            raise short from None
        log.exception("cannot download %s", subject)
        raise Corrupt("version: cannot be downloaded; see the server's log") from None


class VersionFetch:
    """The download of a version on its own thread."""

    def __init__(self, act: Callable[[], None]) -> None:
        self._error: BaseException | None = None
        self._act, self.done, self.asked_s = act, False, 0.0
        # The thread is not waited for: where memory is short, it may die before it has begun.
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
        """True if its thread has never started."""
        return not self._begun and time.monotonic() - self._made_s > COME_S

    def raise_error(self) -> None:
        if self.lost:
            raise NotReady("not enough threads")
        if self._error is not None:
            raise self._error


def _manifest(storage: MirroredStorage) -> None:
    storage.bring_manifest()
