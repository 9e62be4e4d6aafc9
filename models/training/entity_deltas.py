"""Publish changes of entities in the deltas of a run that follows them.

Invariants
- A run's marks say which state of each entity its generation has. A checkpoint stores those of its own generation and
  of the one before: after a kill before publication, the delta published on resume has the changes.
- Without a mark, or with another identity, the delta makes the served entity equal to the followed one.
- Rows joined in training are of a state at most as new as the next delta's.
- What a rollback undid returns with a key's next change, or with the next full version.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from freshet_serving.models.data.keyed_rows import Int64s
from freshet_serving.models.streams.followed_tables import FollowedTable
from freshet_serving.models.streams.table_state import ChangedRows
from freshet_serving.models.training.checkpoint import RunState
from freshet_serving.processor.columns import Column, Strings, take_rows
from freshet_serving.processor.errors import BadInput, first_of
from freshet_serving.processor.features.entity_records import make_records
from freshet_serving.processor.kernels.hashing import hash_strings
from freshet_serving.processor.package import EntityEntry, Manifest, Records, TableDelta, column_specs, names_keys
from freshet_serving.processor.repository import VersionContents, table_difference

Marks = Mapping[str, tuple[str, int]]
"""Identity and mark by entity."""


def entities_of(tables: Sequence[FollowedTable]) -> list[FollowedTable]:
    """Return the tables that are entities; versions do not have the others, user tables."""
    return [table for table in tables if table.section == f"entities.{table.name}"]


def marks_of(tables: Sequence[FollowedTable]) -> Marks:
    return {table.name: (table.identity, table.mark) for table in entities_of(tables)}


def forget_gone(tables: Sequence[FollowedTable], saved: Sequence[tuple[int, RunState]]) -> None:
    """Drop the keys of entities that are gone in every checkpoint."""
    for table in entities_of(tables):
        marks = [state.entities.get(table.name, ("", 0)) for _, state in saved]
        table.forget(min((mark if identity == table.identity else 0 for identity, mark in marks), default=0))


def _columns(manifest: Manifest, entity: EntityEntry) -> list[str]:
    return [spec.name for spec in column_specs(manifest, entity) if spec.name != entity.key]


class EntityDeltas:
    """The changes of a version's entities."""

    def __init__(
        self,
        tables: Sequence[FollowedTable],
        manifest: Manifest,
        served: Callable[[], VersionContents],
        note: Callable[[str], None],
    ) -> None:
        """Make changes of the tables that are the version's entities; served() returns the newest generation."""
        self._manifest, self._served, self._note = manifest, served, note
        self._tables, self._told = list[FollowedTable](), dict[str, int]()
        columns = {entity.name: (entity.key, frozenset(_columns(manifest, entity))) for entity in manifest.entities}
        for table in entities_of(tables):
            if columns.get(table.name) == (table.key.name, frozenset(f.name for f in table.fields)):
                self._tables.append(table)
            elif any(i.name == f.name for i in manifest.inputs for f in table.fields):
                # Else the columns belong to events of histories only.
                note(f"{table.section}: changes are published from the next full version on, which has its columns")

    def since(self, marks: Marks) -> tuple[dict[str, TableDelta], Marks]:
        """Return the non-empty changes by table since a generation's marks, and the new marks."""
        changes, now = dict[str, TableDelta](), dict(marks)
        for table in self._tables:
            mark = marks.get(table.name)
            # newest() and changed() are read once: the table may change meanwhile.
            same = mark is not None and mark[0] == table.identity
            rows = table.changed(mark[1]) if same and mark is not None else table.newest()
            now[table.name] = table.identity, rows.mark
            change = self._change(table.name, rows, whole=not same)
            if len(change.keys) or len(change.removed):
                changes[self._entity(table.name).table] = change
        return changes, now

    def _change(self, name: str, rows: ChangedRows, whole: bool) -> TableDelta:
        entity, refused = self._entity(name), list[str]()
        ids = self._ids(entity, rows.keys)
        columns = {**rows.columns, entity.key: rows.keys} if names_keys(entity) else rows.columns
        fitting, records = self._fitting(entity, columns, np.arange(len(ids)), refused)
        if refused and self._told.get(name) != rows.mark:
            self._told[name] = rows.mark
            self._note(f"entities.{name}: {len(refused):,} rows were skipped; the last: {refused[-1]}")
        if whole:
            return table_difference(self._served(), entity.table, ids[fitting], records.__getitem__)
        order = np.argsort(ids[fitting])
        removed: Int64s = np.unique(self._ids(entity, rows.removed))
        return TableDelta(ids[fitting][order], records[order], removed)

    def _entity(self, name: str) -> EntityEntry:
        return first_of(entity for entity in self._manifest.entities if entity.name == name)

    def _fitting(
        self, entity: EntityEntry, columns: Mapping[str, Column], rows: Int64s, refused: list[str]
    ) -> tuple[Int64s, Records]:
        """Return the rows that fit the version, found by bisection, and their records; note why others do not."""
        try:
            taken = {name: take_rows(column, rows) for name, column in columns.items()}
            return rows, make_records(self._manifest, entity, taken, len(rows))
        except BadInput as error:
            if len(rows) == 1:
                refused.append(str(error))
                return rows[:0], np.empty((0, self._manifest.table(entity.table).dim), np.int32)
            halves = [self._fitting(entity, columns, half, refused) for half in np.array_split(rows, 2)]
            return np.concatenate([fitting for fitting, _ in halves]), np.concatenate(
                [records for _, records in halves]
            )

    def _ids(self, entity: EntityEntry, keys: Column) -> Int64s:
        if isinstance(keys, Strings):
            hashed: Int64s = hash_strings(keys, self._manifest.table(entity.table).hash_seed)
            return hashed
        assert isinstance(keys, np.ndarray)
        return keys.astype(np.int64)
