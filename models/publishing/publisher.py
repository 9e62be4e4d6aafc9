"""Publish changes of any trainer as deltas of a served version.

    publisher = Publisher("repository", "ctr")
    publisher.publish(rows={"user": (keys, values)}, dense={"mlp/bias": bias})
    publisher.publish(entities={"item": (keys, {"category": names, "price": prices})})

Needs only numpy, and xxhash for tables keyed by strings. The publisher manages the change log: steps, parents, records,
other writers' deltas, files placed in the folder. The trainer manages its weights: after a rollback it restores what
undone() returns, because its next delta would otherwise bring the undone changes back. The Keras callback and the
PyTorch hook do that automatically.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.models.publishing.entity_rows import entity_of, entity_rows
from freshet_serving.models.publishing.key_ids import as_ids
from freshet_serving.models.publishing.rollback_patch import RollbackPatch, rollback_patch_since
from freshet_serving.processor.errors import BadInput, ParentRolledBack
from freshet_serving.processor.generation import Generation
from freshet_serving.processor.package import RECORD, STORED_TYPES, Delta, Records, TableDelta
from freshet_serving.processor.repository import (
    ChainLink,
    ChangeLog,
    Difference,
    Int64s,
    Keyring,
    VersionContents,
    bits,
    lookup_of,
    open_repository,
    part_difference,
    table_difference,
    table_file,
)

if TYPE_CHECKING:
    from freshet_serving.models.publishing.keras_callback import KerasCallback
    from freshet_serving.models.publishing.torch_hook import TorchHook

NOTHING = np.empty(0, np.int64)
Changes = tuple[dict[str, TableDelta], dict[str, NDArray[np.float32]]]
"""Changes by table, and whole dense weights by name."""


class Publisher:
    """A writer of one version's deltas, beside any others. Not thread-safe.

        >>> publisher = Publisher("repository", "ctr")
        >>> keys, values = [3, 8], np.zeros((2, 4), np.float32)
        >>> generation = publisher.publish(rows={"user": (keys, values)}, events=2)
        >>> generation.version, generation.step
        (1, 1)

    Attributes:
        manifest: The version's manifest.
        last: The delta that it published last, or None.
    """

    def __init__(
        self,
        repository: str | Path,
        model: str,
        version: int | None = None,
        generation: str | None = None,
        unix_s: Callable[[], float] = time.time,
        key: str | Path = "",
    ) -> None:
        """Open a version.

        Args:
            repository: The model repository.
            model: Name of the model.
            version: Number of the version; by default the newest.
            generation: Generation that the trainer's weights are based on, as `generation` returned it when they were
                saved; by default the newest.
            unix_s: Clock.
            key: File of the private key that signs; "" for FRESHET_KEY, or no signature.

        Raises:
            NotFound: The model or version does not exist.
            BadInput: The generation does not fit the version.
            Diverged: The change log is inconsistent.
        """
        stands_on = None if generation is None else Generation.parse(generation)
        if stands_on is not None and version not in (None, stands_on.version):
            raise BadInput(f"generation: expected a generation of version {version}, got {generation}")
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
        if generation.version != self.manifest.version:
            raise BadInput(f"generation: expected a generation of version {self.manifest.version}, got {generation}")
        if self._change_log.history.known(generation.step) is None:
            self._change_log.reach_back()
        link = self._change_log.history.known(generation.step)
        if link is None:
            raise BadInput(f"generation: expected a generation of the version, got {generation}")
        return link

    @property
    def generation(self) -> Generation:
        """Generation that the trainer's weights are based on: the newest that it published, loaded, or started from.

        Save it with the weights.
        """
        return Generation(self.manifest.version, self._stands_on.step)

    @property
    def held(self) -> str:
        """The reason for which servers hold the newest generation, by the last look at the change log; "" for none.

        A guard that has not seen the generation yet may still hold it.
        """
        history = self._change_log.history
        return "" if history.gate is None else history.held or "held"

    def ids(self, table: str, keys: Any) -> Int64s:
        """Return keys as packages store them, int64 [n]; strings are hashed with the table's seed. Raises BadInput.

        Args:
            table: Name of the table.
            keys: Integers, str or bytes.
        """
        self._entry(table)
        return as_ids(self.manifest, table, keys)

    def published_keys(self, table: str) -> Int64s:
        """Return the keys that a table had when its version was published, int64 [n], in any order."""
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
        entities: Mapping[str, tuple[Any, Mapping[str, Any]]] | None = None,
    ) -> Generation:
        """Publish changes as one delta.

        If it raises, nothing is published and the call may be repeated.

        Args:
            rows: By table, keys [m] (integers, str or bytes; distinct) and values [m, dim]. The key None is that of the
                row which all keys without one share, a model's out-of-vocabulary row.
            removed: By table, keys [r] that lose their row.
            dense: By name, whole weights.
            event_time: Times of the first and the last event, Unix seconds.
            events: Number of events.
            hashed: Keys are int64 as ids() returns them, also those of strings.
            entities: By entity, keys [m] and all of its columns by name, m values each. Keys that lose their features
                are in `removed`, by the entity's table ("entities.item").

        Returns:
            The delta's generation, or the newest one without changes.

        Raises:
            BadInput: The changes do not fit the version.
            ParentRolledBack: A rollback was not taken over by undone(), take_served() or accept_served().
            Diverged: The change log has diverged.
            NotReady: The repository is not writable.
        """
        records = self._records(entities or {}, hashed)
        tables = self._tables({**(rows or {}), **records}, removed or {}, hashed, records.keys())
        weights = {name: self._weight(name, value) for name, value in (dense or {}).items()}
        return self._commit(lambda: (tables, weights), event_time, events)

    def publish_difference(
        self,
        tables: Mapping[str, tuple[Any, Any]],
        dense: Mapping[str, Any] | None = None,
        event_time: tuple[float, float] | None = None,
        events: int = 0,
        hashed: bool = False,
        entities: Mapping[str, tuple[Any, Mapping[str, Any]]] | None = None,
    ) -> Generation:
        """Publish the delta that makes whole tables be served exactly as given, bit by bit.

        It contains the rows that differ, and removes keys that are not given. For trainers that do not know which of
        their changes were published. Raises as publish(), and ParentRolledBack also if the newest deltas were rolled
        back and the trainer's generation was never given.

        Args:
            tables: By name, all keys [n] and rows [n, dim].
            dense: By name, whole weights.
            event_time: Times of the first and the last event, Unix seconds.
            events: Number of events.
            hashed: Keys are int64 as ids() returns them, also those of strings.
            entities: By entity, all keys [n] and all of its columns by name, n values each.

        Returns:
            The delta's generation, or the newest one without changes.
        """
        self.check_start()
        sides: dict[str, tuple[Int64s, NDArray[Any]]] = dict(self._records(entities or {}, hashed))
        for name, (keys, values) in tables.items():
            sides[name] = self._ids(name, keys, hashed), self._rows(name, values)
        for name, (ids, rows) in sides.items():
            self._check_table(name, ids, rows)
        weights = {name: self._weight(name, value) for name, value in (dense or {}).items()}
        state = {name: lookup_of(ids, rows.__getitem__) for name, (ids, rows) in sides.items()}

        def begin() -> Difference:
            contents = self.served()
            changes = {
                name: table_difference(contents, name, ids, rows.__getitem__) for name, (ids, rows) in sides.items()
            }
            moved = {
                name: value for name, value in weights.items() if (bits(value) != bits(contents.dense[name])).any()
            }
            return Difference(self.manifest, contents.link, state, weights, changes, moved)

        return self._commit(self._kept_up(begin), event_time, events)

    def restore(self, generation: str, only: str) -> Generation:
        """Publish the delta that takes one part of the model back to an earlier generation, and leaves the other.

        A trainer takes over a restored model with take_served(). Raises as publish(), and BadInput for a generation
        that is not one of the version's.

        Args:
            generation: The generation, such as "3.16".
            only: "entities" for their features, "model" for rows and dense weights.

        Returns:
            The delta's generation, or the newest one if the part has not changed since.
        """
        self._look()
        past = self._find(Generation.parse(generation))

        def begin() -> Difference:
            return part_difference(self._change_log, past, only)

        return self._commit(self._kept_up(begin), restores=past.step)

    def served(self) -> VersionContents:
        """Return tables and dense weights as of the newest generation: table(name), rows(name, keys), dense."""
        self._look()
        return VersionContents(self._version, self._change_log, self._change_log.history.head)

    def undone(self) -> RollbackPatch | None:
        """Return what to restore after a rollback; None if there was none.

        The caller must apply it: the next delta continues from the served state.
        """
        self._look()
        if self._on_line():
            return None
        undone = rollback_patch_since(self._version, self._change_log, self._stands_on)
        self._stands_on, self._told = self._change_log.history.head, True
        return undone

    def take_served(self) -> VersionContents:
        """Return served(), for a trainer that replaces all its weights with it and continues from there."""
        contents = self.served()
        self._stands_on, self._told = contents.link, True
        return contents

    def accept_served(self) -> Generation:
        """Continue from what is served without reading it, for a writer whose changes do not depend on it.

        It costs the same however many deltas there are; take_served() reads all since the newest snapshot.
        """
        self._look()
        self._stands_on, self._told = self._change_log.history.head, True
        return self.generation

    def check_start(self) -> None:
        """Raise ParentRolledBack if the newest deltas are undone and the trainer's weights may contain them."""
        self._look()
        head = self._change_log.history.head
        undone = [link.step for link in self._change_log.history.undone() if link.parent == head.digest]
        if undone and not self._told:
            raise ParentRolledBack(
                f"publisher: deltas after {self._named(head)} were rolled back, and none was published since: pass "
                "the generation at which the weights were saved (generation=), or begin with the served weights"
            )

    # For frameworks.

    def keras(self, **options: Any) -> KerasCallback:
        """Return a callback for `fit` that publishes its changes (keras_callback, docs/how-to/publishing.md)."""
        from freshet_serving.models.publishing.keras_callback import KerasCallback

        return KerasCallback(self, **options)

    def torch(self, model: Any, optimizer: Any = None, **options: Any) -> TorchHook:
        """Return a hook for a PyTorch loop that publishes its changes (torch_hook, docs/how-to/publishing.md).

        Args:
            model: The PyTorch model.
            optimizer: Its optimizer or optimizers; None if the loop calls step().
            **options: Options of TorchHook.
        """
        from freshet_serving.models.publishing.torch_hook import TorchHook

        return TorchHook(self, model, optimizer, **options)

    # Committing.

    def _kept_up(self, begin: Callable[[], Difference]) -> Callable[[], Changes]:
        """Return a function that returns a difference to the head as last read.

        `begin` computes it, at first and after a rollback of what it was computed for.
        """
        difference = begin()

        def changes() -> Changes:
            nonlocal difference
            if not difference.follow(self._change_log):
                difference = begin()
            return difference.tables, difference.dense

        return changes

    def _commit(
        self,
        changes: Callable[[], Changes],
        event_time: tuple[float, float] | None = None,
        events: int = 0,
        restores: int | None = None,
    ) -> Generation:
        """Publish changes() to the head as last read; `restores` is the earlier step that all of them come from."""
        # Readers accept such times, so that older logs stay readable.
        if event_time is not None and len(event_time) == 2 and event_time[0] > event_time[1]:
            raise BadInput(f"event_time: expected the first event no later than the last, got {list(event_time)}")
        newest_delta: list[Delta] = []

        def make() -> Delta | None:
            self._look()
            if not self._on_line():
                raise ParentRolledBack(
                    f"publisher: {self.generation} was rolled back, {self._named(self._change_log.history.head)} is "
                    "served: call undone(), load its rows and weights, then publish"
                )
            tables, dense = changes()
            tables = {name: table for name, table in tables.items() if len(table.keys) or len(table.removed)}
            if not tables and not dense:
                return None
            history, manifest = self._change_log.history, self.manifest
            delta = Delta(
                manifest.model,
                manifest.version,
                history.top + 1,
                history.head.step,
                tables,
                dense,
                self._unix_s(),
                event_time,
                events,
                restores=restores,
            )
            delta.check_fits(manifest)
            newest_delta[:] = [delta]
            return delta

        link = self._change_log.publish_on_head(make)
        if link is None:
            # As after a publication: from here on a rollback undoes what the trainer has.
            self._stands_on = self._change_log.history.head
            return self.generation
        self._stands_on, self._told, self.last = link, True, newest_delta[0]
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

    def _records(
        self, entities: Mapping[str, tuple[Any, Mapping[str, Any]]], hashed: bool
    ) -> dict[str, tuple[Int64s, Records]]:
        by_table = {}
        for name, (keys, columns) in entities.items():
            entity = entity_of(self.manifest, name)
            ids = self._ids(entity.table, keys, hashed)
            by_table[entity.table] = ids, entity_rows(self.manifest, entity, columns, len(ids), keys)
        return by_table

    def _tables(
        self,
        rows: Mapping[str, tuple[Any, Any]],
        removed: Mapping[str, Any],
        hashed: bool,
        records: Collection[str] = (),
    ) -> dict[str, TableDelta]:
        deltas = {}
        for name in [*rows, *(name for name in removed if name not in rows)]:
            keys, values = rows.get(name, (NOTHING, None))
            # Keys of records are ids already.
            ids = self._ids(name, keys, hashed or name in records)
            gone = self._ids(name, removed.get(name, NOTHING), hashed)
            entry = self._entry(name)
            if name in rows and name not in records and entry.dtype == RECORD:
                raise BadInput(f"table {name!r}: expected its features in entities=, not rows")
            carried_rows = np.empty((0, entry.dim), STORED_TYPES[entry.dtype].carried) if values is None else values
            carried_rows = carried_rows if entry.dtype == RECORD else self._rows(name, carried_rows)
            self._check_table(name, ids, carried_rows)
            both = np.concatenate([ids, np.unique(gone)])
            if len(np.unique(both)) < len(both):
                raise BadInput(f"table {name!r}: expected distinct keys to publish and to remove, got a key in both")
            order = np.argsort(ids)
            deltas[name] = TableDelta(ids[order], np.ascontiguousarray(carried_rows[order]), np.unique(gone))
        return deltas

    def _check_table(self, name: str, ids: Int64s, rows: NDArray[Any]) -> None:
        shape = [len(ids), self._entry(name).dim]
        if list(rows.shape) != shape:
            raise BadInput(f"table {name!r}: expected values of shape {shape}, got {list(rows.shape)}")
        distinct, counts = np.unique(ids, return_counts=True)
        if len(distinct) < len(ids):
            raise BadInput(f"table {name!r}: expected distinct keys, got {int(distinct[counts > 1][0])} more than once")
        for at in range(0, len(rows) if rows.dtype == np.float32 else 0, 1 << 16):
            bad = ~np.isfinite(rows[at : at + (1 << 16)]).all(axis=1)
            if bad.any():
                key = int(ids[at + int(np.argmax(bad))])
                raise BadInput(f"table {name!r}: expected finite values, got NaN or infinity for key {key}")

    def _entry(self, name: str) -> Any:
        entry = next((table for table in self.manifest.tables if table.name == name), None)
        if entry is None:
            names = ", ".join(table.name for table in self.manifest.tables)[:200] or "none"
            raise BadInput(f"table {str(name)[:64]!r} does not exist; the model has {names}")
        return entry

    def _ids(self, name: str, keys: Any, hashed: bool) -> Int64s:
        self._entry(name)
        if not hashed:
            return as_ids(self.manifest, name, keys)
        array = np.asarray(keys)
        if array.ndim != 1 or array.dtype != np.int64:
            raise BadInput(f"table {name!r}: expected hashed keys as int64 [n], got {array.dtype} {list(array.shape)}")
        return np.ascontiguousarray(array)

    def _rows(self, name: str, values: Any) -> NDArray[np.float32]:
        return _float32(f"table {name!r}: values", values)

    def _weight(self, name: str, value: Any) -> NDArray[np.float32]:
        shape = self.manifest.dense.get(name)
        if shape is None:
            names = ", ".join(self.manifest.dense)[:200] or "none"
            raise BadInput(f"dense weight {str(name)[:64]!r} does not exist; the model has {names}")
        array = _float32(f"dense weight {name!r}", value)
        if list(array.shape) != shape:
            raise BadInput(f"dense weight {name!r}: expected shape {shape}, got {list(array.shape)}")
        if not np.isfinite(array).all():
            raise BadInput(f"dense weight {name!r}: expected finite values, got NaN or infinity")
        return array


def _float32(label: str, value: Any) -> NDArray[np.float32]:
    array = np.asarray(value)
    if array.dtype.kind not in "fiu":
        raise BadInput(f"{label}: expected numbers, got {array.dtype}")
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(array, np.float32).reshape(array.shape)
