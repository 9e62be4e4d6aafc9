"""Publish features of an entity as their rows arrive in a stream: the newest row of a key is what is served.

    feed = FeatureFeed("repository", "ctr", "item", "kafka://host/items", state="feeds/item", follow=True)
    feed.run()

Invariants
- Rows are published in the order of the stream, in one delta for all that have come in `every_s`; of a key's rows in a
  delta the last one. Rows after the position on disk are published again after a crash, which changes nothing newer.
- The position moves after the delta is published. It belongs to a version: a new version, whose features are those of
  the trainer's table, gets the stream from its first row that is still there.
- The feed owns the rows that it publishes, nothing else, and continues from what is served: a trainer and other feeds
  publish to the version at the same time, and no feed undoes a rollback.
- A row that is no row of the entity is skipped and counted; it holds back no other.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from freshet_serving.models.data.entity_table import entity_fields
from freshet_serving.models.data.formats import SCHEMES
from freshet_serving.models.data.keyed_rows import ids_of
from freshet_serving.models.data.source import Batch, Schema
from freshet_serving.models.publishing.publisher import Publisher
from freshet_serving.models.streams.followed_source import FollowedSource
from freshet_serving.models.streams.open_rows import open_stream
from freshet_serving.models.streams.stream import ErrorContext
from freshet_serving.models.streams.stream_journal import StreamJournal
from freshet_serving.processor.columns import Column, join_columns, take_rows
from freshet_serving.processor.errors import BadInput, Corrupt, NotReady
from freshet_serving.processor.package import atomic_file
from freshet_serving.processor.repository import open_repository

JOURNAL, POSITION = "stream.journal", "position.json"
CONTEXT = ErrorContext("--from", "an empty --state folder starts")
RETRY_S = 1.0
LINGER_S = 0.1


class FeatureFeed:
    """Publishes one entity's rows from one stream. One process at a time uses a state folder."""

    def __init__(
        self,
        repository: str,
        model: str,
        entity: str,
        source: str,
        state: str | Path,
        *,
        follow: bool = False,
        every_s: float = 1.0,
        rows: int = 10_000,
        key: str = "",
        note: Callable[[str], None] = print,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Open the stream at the position of the state folder.

        Args:
            model: Name of the model; its newest version is published to.
            source: Folder of Parquet files, redis://host/stream or kafka://host/topic, with the key and all columns.
            state: Folder with the position; created if it does not exist.
            follow: Keep waiting for rows; otherwise end with those that are there.
            every_s: Longest time that a row waits for others.
            rows: Most rows of a delta.
            key: File of the private key that signs; "" for FRESHET_KEY, or no signature.
            note: Receives lines for people.

        Raises:
            BadInput: The model has no such entity, or the stream cannot be read.
            Corrupt: The state is damaged.
        """
        self._repository, self._model, self._entity, self._key = repository, model, entity, key
        self._every_s, self._rows, self._note, self._now_s = every_s, rows, note, now_s
        self._publisher = Publisher(repository, model, key=key)
        self._key_field, fields = entity_fields(self._publisher.manifest, entity)
        schema = Schema((self._key_field, *fields), ())
        self._stream = open_stream(
            SCHEMES.get(source.partition("://")[0], ""), source, schema, CONTEXT, strict=not follow
        )
        self._folder = Path(state)
        self._folder.mkdir(parents=True, exist_ok=True)
        journal = StreamJournal(self._folder / JOURNAL, self._stream.identity, context=CONTEXT)
        self._source = FollowedSource(self._stream, journal, schema, follow, now_s, LINGER_S)
        self._position = self._read_position()
        self._stopped = threading.Event()
        self.published = self.skipped = 0

    def stop(self) -> None:
        """Make run() end once the rows that it has read are published. Thread-safe."""
        self._stopped.set()

    def run(self) -> None:
        """Publish until stop(), or to the end of the stream if it is not followed."""
        try:
            while self._run_version() and not self._stopped.is_set():
                self._publisher = Publisher(self._repository, self._model, key=self._key)
                self._key_field, _ = entity_fields(self._publisher.manifest, self._entity)
                self._position = 0
                self._note(f"{self._model} {self._publisher.manifest.version}: a new version, from the first row")
        finally:
            self._source.close()

    def _run_version(self) -> bool:
        """Publish to one version; return True if there is a newer one."""
        held: list[Batch] = []
        since_s = 0.0
        for batch in self._source.arriving(self._rows, self._position):
            if batch is not None:
                since_s = since_s if held else self._now_s()
                held.append(batch)
            full = sum(map(len, held)) >= self._rows
            if held and (full or self._stopped.is_set() or self._now_s() - since_s >= self._every_s):
                self._publish(held)
                held = []
            for line in self._source.news():
                self._note(line)
            if self._stopped.is_set():
                return False
            if not held and self._is_old():
                return True
        if held:
            self._publish(held)
        return self._is_old()

    def _is_old(self) -> bool:
        newest = max(open_repository(self._repository).versions(self._model), default=0)
        return newest > self._publisher.manifest.version

    def _publish(self, batches: list[Batch]) -> None:
        columns = {name: join_columns([b.columns[name] for b in batches]) for name in batches[0].columns}
        keys = columns.pop(self._key_field.name)
        # The last row of each key, in any order.
        _, last = np.unique(ids_of(keys)[::-1], return_index=True)
        rows = len(keys) - 1 - last
        self._publish_rows(take_rows(keys, rows), {name: take_rows(c, rows) for name, c in columns.items()})
        self._position = batches[-1].start + len(batches[-1])
        self._write_position()

    def _publish_rows(self, keys: Column, columns: Mapping[str, Column]) -> None:
        """Publish rows; those that are no rows of the entity are found by halves, and skipped."""
        while True:
            try:
                # Whatever other writers have done meanwhile, a rollback included, is what the delta is based on.
                self._publisher.accept_served()
                generation = self._publisher.publish(entities={self._entity: (keys, columns)})
                break
            except BadInput as error:
                if len(keys) == 1:
                    self.skipped += 1
                    self._note(f"a row was skipped: {error}")
                    return
                for half in np.array_split(np.arange(len(keys)), 2):
                    self._publish_rows(take_rows(keys, half), {n: take_rows(c, half) for n, c in columns.items()})
                return
            except NotReady as error:
                self._note(f"cannot publish, trying again: {error}")
                if self._stopped.wait(RETRY_S):
                    raise
        self.published += len(keys)
        self._note(f"{self._model} {generation}: {len(keys)} rows of {self._entity}")

    def _read_position(self) -> int:
        path = self._folder / POSITION
        if not path.exists():
            return 0
        try:
            state = json.loads(path.read_bytes())
            version, row = int(state["version"]), int(state["row"])
        except (ValueError, KeyError, TypeError):
            raise Corrupt(f"{POSITION}: expected a version and a row") from None
        return row if version == self._publisher.manifest.version else 0

    def _write_position(self) -> None:
        state = {"version": self._publisher.manifest.version, "row": self._position}
        with atomic_file(self._folder / POSITION) as file:
            file.write(json.dumps(state).encode())
