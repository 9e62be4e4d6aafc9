"""Entities in the deltas of a run that follows them: the keys that have changed since the generation before it.

Invariants
- A run's marks say up to which state of each entity the generation that it stands on has the rows. A checkpoint has
  those of its own generation and those of the one before: after a kill between checkpoint and publication the changes
  are in the delta that is published on resume.
- Marks of another identity, or none, say nothing: the delta is then what makes the entity served exactly as it is.
- Rows that training has joined are of a state that is at most as new as the one that the next delta is made of.
- What a rollback took back comes again with a key's next change, or with the next full version.
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
    """Return the tables that are entities; the others are user tables, which no version has."""
    return [table for table in tables if table.section == f"entities.{table.name}"]


def marks_of(tables: Sequence[FollowedTable]) -> Marks:
    """Return the marks of the entities as they are."""
    return {table.name: (table.identity, table.mark) for table in entities_of(tables)}


def forget_gone(tables: Sequence[FollowedTable], saved: Sequence[tuple[int, RunState]]) -> None:
    """Drop the keys of entities that every checkpoint knows to be gone.

    Args:
        saved: The checkpoints.
    """
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
        """Make changes of the tables that are the version's entities.

        Args:
            served: Returns the newest generation.
            note: Receives lines about what is not published.
        """
        self._manifest, self._served, self._note = manifest, served, note
        self._tables, self._told = list[FollowedTable](), dict[str, int]()
        columns = {entity.name: (entity.key, frozenset(_columns(manifest, entity))) for entity in manifest.entities}
        for table in entities_of(tables):
            if columns.get(table.name) == (table.key.name, frozenset(f.name for f in table.fields)):
                self._tables.append(table)
            elif any(i.name == f.name for i in manifest.inputs for f in table.fields):
                # Else events of histories alone have its columns, and no version ever does.
                note(f"{table.section}: changes are published from the next full version on, which has its columns")

    def since(self, marks: Marks) -> tuple[dict[str, TableDelta], Marks]:
        """Return the changes by table since marks, without those that have none, and the marks with them.

        Args:
            marks: Of the generation that the changes follow.
        """
        changes, now = dict[str, TableDelta](), dict(marks)
        for table in self._tables:
            known = marks.get(table.name)
            # Read once: it may change meanwhile.
            same = known is not None and known[0] == table.identity
            rows = table.changed(known[1]) if same and known is not None else table.newest()
            now[table.name] = table.identity, rows.mark
            change = self._change(table.name, rows, whole=not same)
            if len(change.keys) or len(change.removed):
                changes[self._entity(table.name).table] = change
        return changes, now

    def _change(self, name: str, rows: ChangedRows, whole: bool) -> TableDelta:
        entity, refused = self._entity(name), list[str]()
        ids = self._ids(entity, rows.keys)
        columns = {**rows.columns, entity.key: rows.keys} if names_keys(entity) else rows.columns
        kept, records = self._fitting(entity, columns, np.arange(len(ids)), refused)
        if refused and self._told.get(name) != rows.mark:
            self._told[name] = rows.mark
            self._note(f"entities.{name}: {len(refused):,} rows were skipped; the last: {refused[-1]}")
        if whole:
            return table_difference(self._served(), entity.table, ids[kept], records.__getitem__)
        order = np.argsort(ids[kept])
        removed: Int64s = np.unique(self._ids(entity, rows.removed))
        return TableDelta(ids[kept][order], records[order], removed)

    def _entity(self, name: str) -> EntityEntry:
        return first_of(entity for entity in self._manifest.entities if entity.name == name)

    def _fitting(
        self, entity: EntityEntry, columns: Mapping[str, Column], rows: Int64s, refused: list[str]
    ) -> tuple[Int64s, Records]:
        """Return the rows that fit the version, found by halves, and their records; add why others do not."""
        try:
            taken = {name: take_rows(column, rows) for name, column in columns.items()}
            return rows, make_records(self._manifest, entity, taken, len(rows))
        except BadInput as error:
            if len(rows) == 1:
                refused.append(str(error))
                return rows[:0], np.empty((0, self._manifest.table(entity.table).dim), np.int32)
            halves = [self._fitting(entity, columns, half, refused) for half in np.array_split(rows, 2)]
            return np.concatenate([kept for kept, _ in halves]), np.concatenate([made for _, made in halves])

    def _ids(self, entity: EntityEntry, keys: Column) -> Int64s:
        if isinstance(keys, Strings):
            hashed: Int64s = hash_strings(keys, self._manifest.table(entity.table).hash_seed)
            return hashed
        assert isinstance(keys, np.ndarray)
        return keys.astype(np.int64)
