"""An object store in memory, with what may go wrong at any call of it."""

import hashlib
import threading

from freshet_serving.processor.errors import Corrupt, NotReady
from freshet_serving.processor.extensions.object_stores.object_store import FolderListing, ObjectContent, ObjectHead


class Killed(BaseException):
    """The process ended here, as far as the store can tell."""


class Bucket:
    """Objects by key; faults: called with each call's name before it is done, and with `name!` after."""

    def __init__(self):
        self.objects = {}
        self.calls = []
        self.fault = lambda call, key: None
        self.down = False
        self._lock = threading.Lock()

    def _begin(self, call, key):
        self.calls.append((call, key))
        self.fault(call, key)
        if self.down:
            raise NotReady("repository: the object store cannot be reached: no connection")

    def get(self, key, etag="", limit=1 << 26):
        self._begin("get", key)
        data = self.objects.get(key)
        if data is None:
            return None
        if len(data) > limit:
            raise Corrupt("too large")
        now = _etag(data)
        return ObjectContent(b"", etag, True) if etag == now else ObjectContent(data, now)

    def download(self, key, path, nbytes):
        self._begin("download", key)
        data = self.objects.get(key)
        if data is None:
            return False
        if len(data) > nbytes:
            raise Corrupt("too large")
        path.write_bytes(data)
        return True

    def head(self, key):
        self._begin("head", key)
        data = self.objects.get(key)
        return None if data is None else ObjectHead(len(data), _etag(data))

    def create(self, key, content):
        self._begin("create", key)
        with self._lock:
            if key in self.objects:
                return False
            self.objects[key] = _bytes(content)
        self.fault("create!", key)
        return True

    def put(self, key, content):
        self._begin("put", key)
        self.objects[key] = _bytes(content)
        self.fault("put!", key)

    def folder(self, prefix):
        self._begin("folders", prefix)
        below = prefix.strip("/") + "/" if prefix.strip("/") else ""
        rest = {key.removeprefix(below): data for key, data in list(self.objects.items()) if key.startswith(below)}
        return FolderListing(
            sorted({name.partition("/")[0] for name in rest if "/" in name}),
            {name: _etag(data) for name, data in rest.items() if "/" not in name},
        )

    def keys(self, prefix):
        self._begin("keys", prefix)
        return iter(sorted(key for key in self.objects if key.startswith(prefix)))

    def delete(self, keys):
        self._begin("delete", "")
        for key in keys:
            self.objects.pop(key, None)


def _bytes(content):
    return content if isinstance(content, bytes) else content.read_bytes()


def _etag(data):
    return hashlib.md5(data, usedforsecurity=False).hexdigest()
