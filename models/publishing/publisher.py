"""Publisher: what any trainer changed, published as deltas of a version that is served. numpy alone, plus xxhash for
tables that are keyed by strings.

    publisher = Publisher("repository", "ctr")
    publisher.publish(rows={"user": (keys, values)}, dense={"mlp/bias": bias})

It owns the chain: steps, parents, records, other writers' deltas, files that somebody dropped. What the trainer has to
own is its weights: after a rollback it puts back what undone() says, because it would bring the undone back otherwise.
Callback and hook do that by themselves.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.models.publishing.difference import Int64s, bits, table_difference
from freshet_serving.models.publishing.key_ids import as_ids
from freshet_serving.models.publishing.rollback_patch import RollbackPatch, rollback_patch_since
from freshet_serving.processor.errors import BadInput, Conflict, Diverged, ParentRolledBack
from freshet_serving.processor.generation import Generation
from freshet_serving.processor.package import Delta, TableDelta
from freshet_serving.processor.repository import (
    ChainLink,
    ChangeLog,
    Keyring,
    VersionContents,
    open_repository,
    table_file,
)

if TYPE_CHECKING:
    from freshet_serving.models.publishing.keras_callback import KerasCallback
    from freshet_serving.models.publishing.torch_hook import TorchHook

NOTHING = np.empty(0, np.int64)


class Publisher:
    """The writer of one version's deltas, beside any others. One thread at a time uses it. last: the delta that it
    published last."""

    def __init__(
        self,
        repository: str | Path,
        model: str,
        version: int | None = None,
        generation: str | None = None,
        unix_s: Callable[[], float] = time.time,
        key: str | Path = "",
    ) -> None:
        """version: the newest when left out. generation: what the trainer's weights stand on, as `generation` said when
        they were saved; the newest when left out. key: the file of the private key that signs; "" for FRESHET_KEY, or
        nobody. Raises NotFound, BadInput, Diverged."""
        stands_on = None if generation is None else Generation.parse(generation)
        if stands_on is not None and version not in (None, stands_on.version):
            raise BadInput(f"generation: one of version {version} wanted, got {generation}")
        number = version if stands_on is None else stands_on.version
        self._version = open_repository(repository).with_keys(Keyring.of_writer(key)).version(model, number)
        self.manifest = self._version.root_manifest
        self._change_log = ChangeLog.of(self._version)
        self._unix_s = unix_s
        self._told = stands_on is not None
        self._stands_on = self._change_log.history.head
        self.last: Delta | None = None
        if stands_on is not None:
            self._stands_on = self._find(stands_on)

    def _find(self, generation: Generation) -> ChainLink:
        if self._change_log.history.known(generation.step) is None:
            self._change_log.reach_back()
        link = self._change_log.history.known(generation.step)
        if link is None:
            raise BadInput(f"generation: one of the version's wanted, got {generation}")
        return link

    @property
    def generation(self) -> Generation:
        """What the trainer's weights stand on: the newest generation that it published, or took, or began from. To be
        saved with the weights."""
        return Generation(self.manifest.version, self._stands_on.step)

    def ids(self, table: str, keys: Any) -> Int64s:
        """int64 [n]: keys of a table as packages hold them; strings hashed with the table's seed. Raises BadInput."""
        self._entry(table)
        return as_ids(self.manifest, table, keys)

    def published_keys(self, table: str) -> Int64s:
        """int64 [n]: the keys that a table had when its version was published, in any order."""
        self._entry(table)
        keys: Int64s = self._version.tensors(table_file(table))["keys"]
        return keys

    def publish(
        self,
        rows: Mapping[str, tuple[Any, Any]] | None = None,
        removed: Mapping[str, Any] | None = None,
        dense: Mapping[str, Any] | None = None,
        event_time: tuple[float, float] | None = None,
        events: int = 0,
        hashed: bool = False,
    ) -> Generation:
        """Publishes what changed as one delta; returns its generation, or the newest where nothing is given.

        rows: by table, keys [m] (integers, str or bytes; distinct) and values [m, dim]. removed: by table, keys [r]
        that lose their row. dense: by name, whole weights. event_time: first and last event, Unix seconds. hashed: keys
        are int64 as ids() gives them, those of strings too.

        Raises BadInput for what does not fit the version, ParentRolledBack after a rollback that was not taken,
        Diverged, NotReady where the repository cannot be written; then nothing is published and the call may be
        repeated.
        """
        tables = self._tables(rows or {}, removed or {}, hashed)
        weights = {name: self._weight(name, value) for name, value in (dense or {}).items()}
        return self._commit(tables, weights, event_time, events)

    def publish_difference(
        self,
        tables: Mapping[str, tuple[Any, Any]],
        dense: Mapping[str, Any] | None = None,
        event_time: tuple[float, float] | None = None,
        events: int = 0,
        hashed: bool = False,
    ) -> Generation:
        """Publishes what it takes so that these tables are served as they are given, whole, to the bit: rows that
        differ, and removals of what is not among the keys. For whoever cannot know what of theirs was published.

        tables: by name, all keys [n] and rows [n, dim]. Errors as of publish(). Also raises ParentRolledBack where the
        newest deltas were rolled back and nobody said on which generation the trainer stands.
        """
        self.check_start()
        contents = self.served()
        found: dict[str, TableDelta] = {}
        for name, (keys, values) in tables.items():
            ids, rows = self._ids(name, keys, hashed), self._rows(name, values)
            self._check_table(name, ids, rows)
            found[name] = table_difference(contents, name, ids, rows.__getitem__)
        weights = {name: self._weight(name, value) for name, value in (dense or {}).items()}
        weights = {name: value for name, value in weights.items() if (bits(value) != bits(contents.dense[name])).any()}
        return self._commit(found, weights, event_time, events)

    def served(self) -> VersionContents:
        """Tables and dense weights as of the newest generation: table(name), rows(name, keys), dense."""
        self._look()
        return VersionContents(self._version, self._change_log, self._change_log.history.head)

    def undone(self) -> RollbackPatch | None:
        """What to put back after a rollback, None where there was none. Whoever asks has taken it: the next delta goes
        on from what is served."""
        self._look()
        if self._on_line():
            return None
        undone = rollback_patch_since(self._version, self._change_log, self._stands_on)
        self._stands_on, self._told = self._change_log.history.head, True
        return undone

    def take_served(self) -> VersionContents:
        """served(), for a trainer that makes all of its weights what is served, and goes on from there."""
        contents = self.served()
        self._stands_on, self._told = contents.link, True
        return contents

    def check_start(self) -> None:
        """Raises ParentRolledBack where the newest deltas are undone, and what the trainer holds may be what was
        undone."""
        self._look()
        head = self._change_log.history.head
        undone = [link.step for link in self._change_log.history.undone() if link.parent == head.digest]
        if undone and not self._told:
            raise ParentRolledBack(
                f"publisher: what followed {self._named(head)} was rolled back, and nothing was published since: say "
                "what the weights stand on (generation=, as it was when they were saved), or begin with what is served"
            )

    # For frameworks.

    def keras(self, **options: Any) -> KerasCallback:
        """A callback for `fit` that publishes what it changes (models.publishing.keras_callback,
        docs/how-to/publishing.md)."""
        from freshet_serving.models.publishing.keras_callback import KerasCallback

        return KerasCallback(self, **options)

    def torch(self, model: Any, optimizer: Any = None, **options: Any) -> TorchHook:
        """A hook in a PyTorch loop that publishes what it changes (models.publishing.torch_hook,
        docs/how-to/publishing.md)."""
        from freshet_serving.models.publishing.torch_hook import TorchHook

        return TorchHook(self, model, optimizer, **options)

    # Committing.

    def _commit(
        self,
        tables: dict[str, TableDelta],
        dense: dict[str, NDArray[np.float32]],
        event_time: tuple[float, float] | None,
        events: int,
    ) -> Generation:
        tables = {name: table for name, table in tables.items() if len(table.keys) or len(table.removed)}
        checked = False
        while True:
            self._look()
            head, top = self._change_log.history.head, self._change_log.history.top
            if not self._on_line():
                raise ParentRolledBack(
                    f"publisher: {self.generation} was rolled back, {self._named(head)} is served: take undone(), put "
                    "its rows and weights back, then publish"
                )
            if not tables and not dense:
                # As after any publication: from here a rollback takes away what the trainer has.
                self._stands_on = head
                return self.generation
            model, version = self.manifest.model, self.manifest.version
            delta = Delta(model, version, top + 1, head.step, tables, dense, self._unix_s(), event_time, events)
            if not checked:
                delta.check_fits(self.manifest)
                checked = True
            try:
                self._stands_on = self._change_log.publish(delta)
            except Diverged:
                raise
            except Conflict:
                # Somebody was faster: once more, on top of theirs.
                now = self._change_log.history
                if (now.head.digest, now.top) == (head.digest, top):
                    raise
                continue
            self._told, self.last = True, delta
            return self.generation

    def _look(self) -> None:
        self._change_log.look()
        if self._change_log.dropped:
            self._change_log.adopt_all()

    def _on_line(self) -> bool:
        history, digest = self._change_log.history, self._stands_on.digest
        return any(link.digest == digest for link in history.back(history.head))

    def _named(self, link: ChainLink) -> str:
        return str(Generation(self.manifest.version, link.step))

    # Checks.

    def _tables(
        self, rows: Mapping[str, tuple[Any, Any]], removed: Mapping[str, Any], hashed: bool
    ) -> dict[str, TableDelta]:
        found = {}
        for name in [*rows, *(name for name in removed if name not in rows)]:
            keys, values = rows.get(name, (NOTHING, None))
            ids, gone = self._ids(name, keys, hashed), self._ids(name, removed.get(name, NOTHING), hashed)
            dim = self._entry(name).dim
            given = np.empty((0, dim), np.float32) if values is None else self._rows(name, values)
            self._check_table(name, ids, given)
            both = np.concatenate([ids, np.unique(gone)])
            if len(np.unique(both)) < len(both):
                raise BadInput(f"table {name!r}: keys that are published or removed wanted, got one that is both")
            order = np.argsort(ids)
            found[name] = TableDelta(ids[order], np.ascontiguousarray(given[order]), np.unique(gone))
        return found

    def _check_table(self, name: str, ids: Int64s, rows: NDArray[np.float32]) -> None:
        wanted = [len(ids), self._entry(name).dim]
        if list(rows.shape) != wanted:
            raise BadInput(f"table {name!r}: values of shape {wanted} wanted, got {list(rows.shape)}")
        distinct, counts = np.unique(ids, return_counts=True)
        if len(distinct) < len(ids):
            raise BadInput(f"table {name!r}: distinct keys wanted, got {int(distinct[counts > 1][0])} more than once")
        for at in range(0, len(rows), 1 << 16):
            bad = ~np.isfinite(rows[at : at + (1 << 16)]).all(axis=1)
            if bad.any():
                key = int(ids[at + int(np.argmax(bad))])
                raise BadInput(f"table {name!r}: finite values wanted, got NaN or infinity for key {key}")

    def _entry(self, name: str) -> Any:
        entry = next((table for table in self.manifest.tables if table.name == name), None)
        if entry is None:
            known = ", ".join(table.name for table in self.manifest.tables)[:200] or "none"
            raise BadInput(f"table {str(name)[:64]!r} is not one of the model's: {known}")
        return entry

    def _ids(self, name: str, keys: Any, hashed: bool) -> Int64s:
        self._entry(name)
        if not hashed:
            return as_ids(self.manifest, name, keys)
        array = np.asarray(keys)
        if array.ndim != 1 or array.dtype != np.int64:
            raise BadInput(f"table {name!r}: hashed keys as int64 [n] wanted, got {array.dtype} {list(array.shape)}")
        return np.ascontiguousarray(array)

    def _rows(self, name: str, values: Any) -> NDArray[np.float32]:
        return _float32(f"table {name!r}: values", values)

    def _weight(self, name: str, value: Any) -> NDArray[np.float32]:
        wanted = self.manifest.dense.get(name)
        if wanted is None:
            known = ", ".join(self.manifest.dense)[:200] or "none"
            raise BadInput(f"dense weight {str(name)[:64]!r} is not one of the model's: {known}")
        array = _float32(f"dense weight {name!r}", value)
        if list(array.shape) != wanted:
            raise BadInput(f"dense weight {name!r}: shape {wanted} wanted, got {list(array.shape)}")
        if not np.isfinite(array).all():
            raise BadInput(f"dense weight {name!r}: finite values wanted, got NaN or infinity")
        return array


def _float32(what: str, value: Any) -> NDArray[np.float32]:
    array = np.asarray(value)
    if array.dtype.kind not in "fiu":
        raise BadInput(f"{what}: numbers wanted, got {array.dtype}")
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(array, np.float32).reshape(array.shape)
