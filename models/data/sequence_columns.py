"""Sequences of a table or an event log: the section [sequences.NAME], and batches with a sequence's columns.

A sequence's columns are called `<sequence>.<column>`, as in a request. They are list columns of the table or, with
from_events, made of its rows: what earlier rows of the same user have, oldest first (models.data.user_events).

Invariants of from_events
- A row's history does not depend on where reading starts: the rows before it come from a pass that has read them or
  from a checkpoint, and missing rows are read first.
- The pass that has read furthest holds the state; a pass that starts behind it, within KEPT_ROWS, reads from it. So a
  stream whose first rows are gone is read from any position that a run returns to.
- A run that goes back further learns rows again. Its pass has a state of its own, from which checkpoints and stores are
  written until it has overtaken the other.
- Rows of guests enter no history and see none.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from freshet_serving.models.data.source import Batch, Field, RequestedColumn, Schema, Source
from freshet_serving.processor.columns import Column, Ragged, Strings, equal_strings
from freshet_serving.processor.errors import BadInput, first_of
from freshet_serving.processor.features.sequences import without_padding
from freshet_serving.processor.options import option, required

if TYPE_CHECKING:
    # Its kernels take time to import, and reading a configuration needs none.
    from freshet_serving.models.data.saved_events import Int64s
    from freshet_serving.models.data.user_events import UserEvents

TIES = ("exclude", "file")
READ_ROWS = 1 << 14
Histories = Mapping[str, Sequence[Mapping[str, NDArray[Any]]]]
"""Saved parts by sequence."""
TIMES, FLOATS = "times", "floats"
"""Kinds of columns that no table has rows of: a sequence's times, int64 lists, and its floats."""


@dataclass(frozen=True, slots=True)
class SequenceConfig:
    name: str
    columns: Mapping[str, str] = field(
        metadata=required(
            "its columns, each the name of a list column of the data: `{ item = "
            '"hist_items" }`; with `from_events`, of a column of ids or strings of the event log, feature or not'
        )
    )
    tables: Mapping[str, str] = option({}, "embedding tables by column, perhaps a feature's", empty="one of its own")
    floats: Mapping[str, str] = option(
        {},
        'columns of numbers, such as `{ watched = "hist_seconds" }`, each the name of a list column of the data;'
        " with `from_events`, of a column of the event log, perhaps the label",
        empty="none",
    )
    dim: int = option(16, "floats per row of tables that no feature has")
    max_length: int = option(50, "most events; of a longer list some are left out")
    keep: str = option("newest", "which events of a longer list count: `newest` or `oldest`")
    time: str = option("", "column of the events' times", empty="none")
    time_unit: str = option("s", "unit of the times in requests and lists: `s` or `ms`")
    from_events: str = option(
        "",
        "column of the user: then a row's history is made of the user's earlier rows, and `time` is `data.time`",
        empty="the columns are lists",
    )
    where: str = option("", "with `from_events`: only rows with this column above 0 enter a history")
    padding: int | str | None = option(
        None,
        "value of the first column in places without an event, where lists are padded to one length: left out, in"
        " requests too",
        empty="no place is left out",
    )
    guest: int | str | None = option(
        None,
        "with `from_events`: the user of rows of guests, who have no history",
        empty='`""` in a column of strings, which has it for null',
    )
    ttl_s: float = option(0.0, "with `from_events`: seconds after which an event leaves a history", empty="never")
    memory_mb: int = option(
        256,
        "with `from_events`, MiB of memory for the events of all users; those beyond it are on disk, in the folder"
        " of the trainer",
    )
    ties: str = option(
        "exclude", "with `from_events`, rows of the same time: `exclude`, or `file` for those before in the file"
    )
    store: str = option(
        "",
        "with `from_events`: online store that histories are written to, as requests read them"
        " ([sequences.md](../how-to/sequences.md#written-by-the-trainer))",
        empty="none",
    )


class SequenceFeature(RequestedColumn, Protocol):
    """A feature, perhaps a column of a sequence (models.config.feature_sections.FeatureConfig)."""

    @property
    def kind(self) -> str: ...
    @property
    def column(self) -> str: ...
    @property
    def sequence(self) -> SequenceConfig | None: ...


class SequenceSource:
    """A source with the columns of sequences beside those of other features.

    Attributes:
        saved: Returns what a checkpoint has of the rows up to a row (see UserEvents.restore). None for nothing.
        erase_stored: Erases users in stores, given the users and the run's state; None without stores.
    """

    def __init__(self, source: Source, features: Sequence[SequenceFeature], folder: Path | None = None) -> None:
        """Wrap a source that has all columns that the features read; `folder` is for events beyond the memory budget.

        Raises BadInput if a history from events needs times that the source does not have.
        """
        self._source, self._folder = source, folder
        plain = [f for f in features if f.sequence is None]
        self._plain = list(dict.fromkeys(read for f in plain if (read := f.reads)))
        self._lists: dict[str, str] = {}
        self._events: dict[str, list[SequenceFeature]] = {}
        self._configs: dict[str, SequenceConfig] = {}
        fields = list(self._plain)
        for f in features:
            if f.sequence is None:
                continue
            fields.append(Field(f.name, "ids" if f.kind == TIMES else f.kind))
            if f.sequence.from_events:
                self._events.setdefault(f.sequence.name, []).append(f)
                self._configs[f.sequence.name] = f.sequence
            elif f.reads is not None:
                self._lists[f.name] = f.reads.name
        schema = source.schema
        padded = {f.sequence.name: f.sequence.padding for f in features if f.sequence is not None}
        self._padded = [
            ([n for n in self._lists if n.startswith(f"{name}.")], padding)
            for name, padding in padded.items()
            if padding is not None
        ]
        if self._events and not schema.time and first_of(source.batches(1)).time is None:
            raise BadInput("data.time: expected the column of the rows' time, which from_events needs, got nothing")
        self.schema = Schema(tuple(fields), schema.label, schema.time, schema.weight)
        self.saved: Callable[[int], Histories | None] | None = None
        self.erase_stored: Callable[[NDArray[np.int64], Any], Any] | None = None
        # Of the pass that has read furthest, and of the newest one that began before that one's floor.
        self._furthest: dict[str, UserEvents] = {}
        self._behind: dict[str, UserEvents] = {}
        # The state of the newest saved part: an increment can follow it.
        self._saved: dict[str, UserEvents] = {}

    @property
    def events(self) -> Source:
        return self._source

    def count_rows(self) -> int | None:
        return self._source.count_rows()

    def batches(self, rows: int, start: int = 0) -> Iterator[Batch]:
        """Yield batches as Source.batches does; rows before `start` that no state has are read first."""
        histories = self.events_before(start)
        for batch in self._source.batches(rows, start):
            yield self._with_lists(batch, histories)

    def arriving(self, rows: int, start: int) -> Iterator[Batch | None]:
        histories = self.events_before(start)
        source: Any = self._source
        for batch in source.arriving(rows, start):
            yield None if batch is None else self._with_lists(batch, histories)

    def saved_part(self, row: int, whole: bool) -> dict[str, NDArray[Any]] | None:
        """Return the histories as of a row, whole or since the last part; None if only a whole part can follow."""
        arrays: dict[str, NDArray[Any]] = {}
        histories = self._known(row)
        if histories is self._furthest:
            self._behind = {}
        if not whole and histories is not self._saved:
            return None
        if histories is None:
            # A run that has just begun has read nothing; one that went back, other rows.
            histories = self.events_before(row) if self._furthest else {}
        for name, events in histories.items():
            part = events.full(row) if whole else events.increment(row)
            if part is None:
                return None
            part["rules"] = np.frombuffer(self._rules(name).encode(), np.uint8)
            arrays |= {f"{name}/{key}": array for key, array in part.items()}
        self._saved = histories
        return arrays

    def erase(self, users: NDArray[np.int64], state: Any) -> None:
        """Remove all events of users (ids or hashes of keys), in stores first and then here. Raises NotReady."""
        if self.erase_stored is not None:
            self.erase_stored(users, state)
        for events in (*self._furthest.values(), *self._behind.values()):
            events.erase(users)

    def lists(self, name: str, splits: Int64s, times: Int64s, values: Sequence[Any]) -> dict[str, Ragged]:
        """Return the columns of a sequence made of events, by name, given what UserEvents.seen returns."""
        columns = iter(values)
        return {f.name: Ragged(times if f.kind == TIMES else next(columns), splits) for f in self._events[name]}

    def _rules(self, name: str) -> str:
        """Return what the events of a sequence depend on, as text."""
        config, features = self._configs[name], self._events[name]
        rules = {key: value for key, value in asdict(config).items() if key not in ("memory_mb", "store")}
        rules["named"] = self._stored(name) == "strings"
        return json.dumps([rules, [[f.name, f.kind] for f in features]], sort_keys=True, default=str)

    def _stored(self, name: str) -> str:
        """Return the kind of users whose histories are written to a store; "" if they are not."""
        config = self._configs[name]
        if not config.store:
            return ""
        return "strings" if any(f.kind == "string" for f in self._plain if f.name == config.from_events) else "ids"

    def events_before(self, start: int) -> dict[str, UserEvents]:
        """Return the events of all rows before a row, and perhaps of later ones, reading those that are missing."""
        if not self._events:
            return {}
        if (read := self._known(start)) is not None:
            return read
        histories = {name: self._no_events(name) for name in self._events}
        saved = self.saved(start) if self.saved is not None and start else None
        if saved is not None and all(self._restored(name, histories, saved) for name in histories):
            position, self._saved = min(events.position for events in histories.values()), histories
        else:
            histories, position = {name: self._no_events(name) for name in self._events}, 0
        for batch in self._source.batches(READ_ROWS, position) if position < start else ():
            if batch.start >= start:
                break
            self._add(batch if batch.end <= start else batch.slice(0, start - batch.start), histories)
        self._note(histories)
        if histories is not self._furthest:
            self._behind = histories
        return histories

    def _known(self, row: int) -> dict[str, UserEvents] | None:
        """Return the events of a pass that has what a row sees; None if none does."""
        for histories in (self._furthest, self._behind):
            if histories and all(events.floor <= row <= events.position for events in histories.values()):
                return histories
        return None

    def _restored(self, name: str, histories: Mapping[str, UserEvents], saved: Histories) -> bool:
        """Restore a sequence's events from a checkpoint if it has any of the same rules."""
        parts = saved.get(name, [])
        rules = self._rules(name).encode()
        if not parts or any(part["rules"].tobytes() != rules for part in parts):
            return False
        histories[name].restore(parts)
        return True

    def _no_events(self, name: str) -> UserEvents:
        from freshet_serving.models.data.user_events import EventRules, UserEvents

        config = self._configs[name]
        rules = EventRules(config.max_length, config.keep == "newest", config.ties == "exclude", config.ttl_s)
        kinds = [f.kind for f in self._events[name] if f.kind != TIMES]
        return UserEvents(rules, kinds, self._folder, config.memory_mb << 20, self._stored(name))

    def _with_lists(self, batch: Batch, histories: dict[str, UserEvents]) -> Batch:
        columns = {f.name: batch.columns[f.name] for f in self._plain}
        columns |= self._listed(batch)
        self._add(batch, histories)
        for name, events in histories.items():
            assert batch.time is not None
            users = batch.columns[self._configs[name].from_events]
            columns |= self.lists(name, *events.seen(batch.start, users, batch.time))
        self._note(histories)
        return replace(batch, columns=columns)

    def _add(self, batch: Batch, histories: Mapping[str, UserEvents]) -> None:
        labels = self.schema.labels
        for name, events in histories.items():
            config = self._configs[name]
            assert batch.time is not None
            values = [event_values(f, batch, labels) for f in self._events[name] if f.kind != TIMES]
            users, enter = batch.columns[config.from_events], entering(batch, config, labels)
            events.add(batch.start, users, batch.time, enter, values)

    def _note(self, histories: dict[str, UserEvents]) -> None:
        furthest = max((events.position for events in self._furthest.values()), default=-1)
        if histories and min(events.position for events in histories.values()) > furthest:
            self._furthest = histories
            self._behind = {} if self._behind is histories else self._behind

    def _listed(self, batch: Batch) -> dict[str, Column]:
        """Return the columns of sequences that are lists of the table, without padding."""
        columns: dict[str, Column] = {name: batch.columns[source] for name, source in self._lists.items()}
        for names, padding in self._padded:
            lists = [column for name in names if isinstance(column := columns[name], Ragged)]
            ends = lists[0].row_splits
            # Lists of different lengths are refused later, with their names.
            if all(np.array_equal(column.row_splits, ends) for column in lists[1:]):
                columns |= zip(names, without_padding(lists, 0, padding))
        return columns


def with_sequences(
    source: Source, features: Sequence[SequenceFeature], more: Sequence[Field] = (), folder: Path | None = None
) -> Source:
    """Return a source that also has the sequences' columns, and the columns `more`; the source itself without any."""
    return (
        SequenceSource(source, [*features, *more], folder) if any(f.sequence is not None for f in features) else source
    )


def event_values(f: SequenceFeature, batch: Batch, labels: tuple[str, ...]) -> Any:
    """Return an event's value of a column, by row; `labels` names those of the batch."""
    if f.kind == TIMES:
        assert batch.time is not None
        return np.floor(batch.time).astype(np.int64)
    return _label(batch, f.column, labels) if f.reads is None else batch.columns[f.reads.name]


def _label(batch: Batch, name: str, labels: tuple[str, ...]) -> Any:
    return batch.label if batch.label.ndim == 1 else batch.label[:, labels.index(name)]


def entering(batch: Batch, config: SequenceConfig, labels: tuple[str, ...]) -> list[bool]:
    """Return which rows of a batch enter a history: those that `where` chooses, but no guest's."""
    where, users = config.where, batch.columns[config.from_events]
    if isinstance(users, Strings):
        enters = ~equal_strings(users, str(config.guest or "").encode())
    else:
        enters = np.ones(len(batch), bool) if config.guest is None else np.asarray(users) != config.guest
    if where:
        chosen: Any = _label(batch, where, labels) if where in labels else batch.columns[where]
        enters &= chosen > 0
    return list(enters.tolist())
