"""An online store that is a dictionary, with what can go wrong in one."""

import math

import numpy as np

from freshet_serving.processor.columns import Strings
from freshet_serving.processor.errors import NotReady
from freshet_serving.processor.extensions.online_features.group_sections import parse_group
from freshet_serving.processor.extensions.online_features.online_store import Loss, OpenStore
from freshet_serving.processor.extensions.online_features.reader import OnlineFeatures


class MemoryStore:
    """An OnlineStore in memory: hashes, losses by key, and one loss for all that it is asked while `down`."""

    def __init__(self):
        self.hashes, self.losses, self.down = {}, {}, None
        self.fetches = []
        self.closed = False

    def fetch(self, reads, end_s):
        self.fetches.append((list(reads), end_s))
        if self.down is not None:
            return [self.down] * len(reads)
        return [
            self.losses.get(read.key) or [self.hashes.get(read.key, {}).get(field) for field in read.fields]
            for read in reads
        ]

    def close(self):
        self.closed = True


class MemoryWriter:
    """A RedisWriter to a MemoryStore; `down`, it `fails` so many times, or `dies` and forgets after so many sends."""

    def __init__(self, store):
        self.store, self.run_id, self.down, self.fails, self.dies = store, "1", False, 0, -1
        self.commands, self.left_ms = [], {}

    def begin(self):
        if self.down or self.fails:
            self.fails = max(0, self.fails - 1)
            raise NotReady("online store main cannot be reached")
        return self.run_id

    def send(self, commands):
        self.begin()
        self.dies -= 1
        if self.dies == 0:
            self.restart()
            raise NotReady("online store main cannot be reached")
        self.commands += commands
        return [self._do(*command) for command in commands]

    def _do(self, name, key, *words):
        if name == b"PEXPIRE":
            self.left_ms[key] = int(words[0])
        elif name == b"PERSIST":
            self.left_ms.pop(key, None)
        elif name == b"HSET":
            self.store.hashes.setdefault(key, {}).update(zip(words[::2], words[1::2]))
            return len(words) // 2
        else:
            fields = self.store.hashes.get(key, {})
            removed = sum(fields.pop(word, None) is not None for word in words)
            if not fields:
                self.store.hashes.pop(key, None)
            return removed
        return 1

    def restart(self):
        """Come up again, empty."""
        self.store.hashes.clear()
        self.run_id = str(int(self.run_id) + 1)


HASHES = {
    "key": "user_id",
    "format": "hash",
    "features": ["age", "tags"],
    "types": {"age": "int64", "tags": "string_list"},
    "timeout_ms": 50,
}


def opened(store, ttl_s=10.0, nbytes=1 << 20):
    return {"main": OpenStore(store, ttl_s, nbytes)}


def features_of(store, clock, section=HASHES, ttl_s=10.0, **defaults):
    return OnlineFeatures([parse_group("user", section)], opened(store, ttl_s), defaults, clock)


def read(features, entities, end_s=math.inf):
    return features.read(features.keys_of(entities), end_s)


def peek(features, entities):
    return features.peek(features.keys_of(entities))


def users(*ids):
    return {"user_id": np.array(ids, np.int64)}


def plain(column):
    """A column as Python values."""
    values = column.values
    if hasattr(values, "row_splits"):
        flat = values.values.tolist()
        return [flat[a:b] for a, b in zip(values.row_splits, values.row_splits[1:])]
    return values.tolist()


__all__ = ["HASHES", "Loss", "MemoryStore", "MemoryWriter", "Strings", "features_of", "opened", "plain", "users"]
