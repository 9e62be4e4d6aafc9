"""An object store with counted requests that knows whether it was reachable at the last request."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from freshet_serving.processor.errors import NotReady

if TYPE_CHECKING:
    from freshet_serving.processor.extensions.object_stores.object_store import (
        FolderListing,
        ObjectContent,
        ObjectHead,
        ObjectStore,
    )

T = TypeVar("T")
KINDS = READ, LOOKED, LISTED, WRITTEN, REMOVED = "get", "head", "list", "put", "delete"
RECEIVED, SENT = "received", "sent"


class CountedStore:
    """The methods of ObjectStore that a mirror needs. Thread-safe."""

    def __init__(self, store: ObjectStore, now_s: Callable[[], float]) -> None:
        self._store, self._now_s, self._counting = store, now_s, threading.Lock()
        self.requests: Counter[tuple[str, bool]] = Counter()
        """Requests by kind, and by whether they succeeded."""
        self.nbytes: Counter[str] = Counter()
        self.reachable, self.answered_s = True, now_s()

    def get(self, key: str, limit: int, etag: str = "") -> ObjectContent | None:
        content = self._asked(READ, lambda: self._store.get(key, etag, limit))
        self._count(RECEIVED, len(content.data) if content else 0)
        return content

    def download(self, key: str, path: Path, nbytes: int) -> bool:
        exists = self._asked(READ, lambda: self._store.download(key, path, nbytes))
        self._count(RECEIVED, path.stat().st_size if exists else 0)
        return exists

    def head(self, key: str) -> ObjectHead | None:
        return self._asked(LOOKED, lambda: self._store.head(key))

    def create(self, key: str, content: bytes | Path) -> bool:
        created = self._asked(WRITTEN, lambda: self._store.create(key, content))
        self._count(SENT, _size(content))
        return created

    def put(self, key: str, content: bytes | Path) -> None:
        self._asked(WRITTEN, lambda: self._store.put(key, content))
        self._count(SENT, _size(content))

    def folder(self, prefix: str) -> FolderListing:
        return self._asked(LISTED, lambda: self._store.folder(prefix))

    def keys(self, prefix: str, most: int | None = None) -> list[str]:
        """Return the keys below a prefix, at most so many; None for all."""
        return self._asked(LISTED, lambda: list(islice(self._store.keys(prefix), most)))

    def delete(self, keys: Iterable[str]) -> None:
        self._asked(REMOVED, lambda: self._store.delete(keys))

    def _asked(self, kind: str, act: Callable[[], T]) -> T:
        try:
            answer = act()
        except NotReady:
            self.reachable = False
            with self._counting:
                self.requests[kind, False] += 1
            raise
        self.reachable, self.answered_s = True, self._now_s()
        with self._counting:
            self.requests[kind, True] += 1
        return answer

    def _count(self, way: str, nbytes: int) -> None:
        with self._counting:
            self.nbytes[way] += nbytes


def _size(content: bytes | Path) -> int:
    return len(content) if isinstance(content, bytes) else content.stat().st_size
