"""Sequences of a table or an event log: the section [sequences.NAME], and batches with a sequence's columns.

A sequence's columns are called `<sequence>.<column>`, as in a request. They are list columns of the table, or made of
its rows: with from_events, a row's history is what earlier rows of the same user have, oldest first.

Invariants of from_events
- A row never sees itself or a row after it: rows are added to a history once their own has been read.
- With ties = "exclude" it never sees a row of the same time either, whatever the order in the file.
- A row's history does not depend on where reading starts: the rows before are read first, in the same pass.
- Rows of guests enter no history and see none.
- At most max_length events a user are in memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from freshet_serving.models.data.source import Batch, Field, Schema, Source
from freshet_serving.processor.columns import Column, Ragged, Strings, equal_strings
from freshet_serving.processor.errors import BadInput, first_of
from freshet_serving.processor.features.sequences import without_padding
from freshet_serving.processor.options import option

TIES = ("exclude", "file")
TIMES, FLOATS = "times", "floats"
"""Kinds of columns that no table has rows of: a sequence's times, int64 lists, and its floats."""


@dataclass(frozen=True, slots=True)
class SequenceConfig:
    """The section [sequences.<name>]."""

    name: str
    columns: Mapping[str, str] = field(
        metadata=option(
            "its columns, each the name of a list column of the data: `{ item = "
            '"hist_items" }`; with `from_events`, of a column of ids or strings of the event log, feature or not'
        )
    )
    tables: Mapping[str, str] = field(
        default_factory=dict, metadata=option("embedding tables by column, perhaps a feature's", empty="one of its own")
    )
    floats: Mapping[str, str] = field(
        default_factory=dict,
        metadata=option(
            'columns of numbers, such as `{ watched = "hist_seconds" }`, each the name of a list column of the data;'
            " with `from_events`, of a column of the event log, perhaps the label",
            empty="none",
        ),
    )
    dim: int = field(default=16, metadata=option("floats per row of tables that no feature has"))
    max_length: int = field(default=50, metadata=option("most events; of a longer list some are left out"))
    keep: str = field(default="newest", metadata=option("which events of a longer list count: `newest` or `oldest`"))
    time: str = field(default="", metadata=option("column of the events' times", empty="none"))
    time_unit: str = field(default="s", metadata=option("unit of the times in requests and lists: `s` or `ms`"))
    from_events: str = field(
        default="",
        metadata=option(
            "column of the user: then a row's history is made of the user's earlier rows, and `time` is `data.time`",
            empty="the columns are lists",
        ),
    )
    where: str = field(
        default="", metadata=option("with `from_events`: only rows with this column above 0 enter a history")
    )
    padding: int | str | None = field(
        default=None,
        metadata=option(
            "value of the first column in places without an event, where lists are padded to one length: left out, in"
            " requests too",
            empty="no place is left out",
        ),
    )
    guest: int | str | None = field(
        default=None,
        metadata=option(
            "with `from_events`: the user of rows of guests, who have no history",
            empty='`""` in a column of strings, which has it for null',
        ),
    )
    ties: str = field(
        default="exclude",
        metadata=option("with `from_events`, rows of the same time: `exclude`, or `file` for those before in the file"),
    )


class SequenceFeature(Protocol):
    """A feature, perhaps a column of a sequence (models.config.feature_sections.FeatureConfig)."""

    @property
    def name(self) -> str: ...
    @property
    def reads(self) -> Field | None: ...
    @property
    def kind(self) -> str: ...
    @property
    def column(self) -> str: ...
    @property
    def sequence(self) -> SequenceConfig | None: ...


class SequenceSource:
    """A source with the columns of sequences beside those of other features."""

    def __init__(self, source: Source, features: Sequence[SequenceFeature]) -> None:
        """Wrap a source that has all columns that the features read.

        Args:
            source: The source.
            features: The features.

        Raises:
            BadInput: A history from events needs times that the source does not have.
        """
        self._source = source
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
        own = source.schema
        padded = {f.sequence.name: f.sequence.padding for f in features if f.sequence is not None}
        self._padded = [
            ([n for n in self._lists if n.startswith(f"{name}.")], padding)
            for name, padding in padded.items()
            if padding is not None
        ]
        if self._events and not own.time and first_of(source.batches(1)).time is None:
            raise BadInput("data.time: expected the column of the rows' time, which from_events needs, got nothing")
        self.schema = Schema(tuple(fields), own.label, own.time, own.weight)

    @property
    def events(self) -> Source:
        """The rows without their sequences."""
        return self._source

    def count_rows(self) -> int | None:
        """Return the number of rows; None if there is no end."""
        return self._source.count_rows()

    def batches(self, rows: int, start: int = 0) -> Iterator[Batch]:
        """Yield batches as Source.batches does; with from_events all rows before `start` are read first."""
        histories = {name: _Histories(self._configs[name], made) for name, made in self._events.items()}
        if histories and start:
            for batch in self._source.batches(rows):
                if batch.start >= start:
                    break
                before = batch if batch.end <= start else batch.slice(0, start - batch.start)
                for history in histories.values():
                    history.lists(before, self.schema.labels)
        for batch in self._source.batches(rows, start):
            columns = {f.name: batch.columns[f.name] for f in self._plain}
            columns |= self._listed(batch)
            for history in histories.values():
                columns |= history.lists(batch, self.schema.labels)
            yield replace(batch, columns=columns)

    def _listed(self, batch: Batch) -> dict[str, Column]:
        """Return the columns of sequences that are lists of the table, without padding."""
        made: dict[str, Column] = {name: batch.columns[source] for name, source in self._lists.items()}
        for names, padding in self._padded:
            lists = [column for name in names if isinstance(column := made[name], Ragged)]
            ends = lists[0].row_splits
            # Lists of different lengths are refused later, with their names.
            if all(np.array_equal(column.row_splits, ends) for column in lists[1:]):
                made |= zip(names, without_padding(lists, 0, padding))
        return made


def with_sequences(source: Source, features: Sequence[SequenceFeature], more: Sequence[Field] = ()) -> Source:
    """Return a source that has the columns of features' sequences too; the source itself without any.

    Args:
        source: A source with all columns that the features read.
        features: The features.
        more: Columns of the source to keep besides.
    """
    return SequenceSource(source, [*features, *more]) if any(f.sequence is not None for f in features) else source


class _User:
    """One user's events so far.

    Attributes:
        past: Values by column, oldest first.
        tied: Events of the newest time, which rows of that time do not see.
        time: That time.
    """

    __slots__ = ("past", "tied", "time")

    def __init__(self, columns: int, most: int | None) -> None:
        self.past: list[deque[Any]] = [deque(maxlen=most) for _ in range(columns)]
        self.tied: list[tuple[Any, ...]] = []
        self.time = float("nan")


class _Histories:
    """The histories of all users, advanced row by row."""

    def __init__(self, config: SequenceConfig, made: Sequence[SequenceFeature]) -> None:
        self._config, self._made = config, made
        self._users: dict[Any, _User] = {}

    def lists(self, batch: Batch, labels: tuple[str, ...]) -> dict[str, Column]:
        """Return the history of each row of the next batch, by column.

        Args:
            batch: The batch.
            labels: Names of its labels.
        """
        config, made = self._config, self._made
        assert batch.time is not None
        # By-row values as Python objects: each is kept until its history is cut.
        values = list(zip(*(_listed(event_values(f, batch, labels)) for f in made)))
        users, times = _listed(batch.columns[config.from_events]), batch.time.tolist()
        enter = entering(batch, config, labels)
        newest, exclude = config.keep == "newest", config.ties == "exclude"
        most = config.max_length if newest else None
        flat: list[list[Any]] = [[] for _ in made]
        counts = np.zeros(len(batch), np.int64)
        for row, (key, time) in enumerate(zip(users, times)):
            user = self._users.get(key)
            if user is None:
                user = self._users[key] = _User(len(made), most)
            if user.tied and user.time != time:
                for event in user.tied:
                    self._add(user, event)
                user.tied.clear()
            counts[row] = len(user.past[0])
            for column, past in zip(flat, user.past):
                column.extend(past)
            if enter[row]:
                if exclude:
                    user.tied.append(values[row])
                    user.time = time
                else:
                    self._add(user, values[row])
        splits = np.zeros(len(batch) + 1, np.int64)
        np.cumsum(counts, out=splits[1:])
        return {f.name: Ragged(_packed(f, column), splits) for f, column in zip(made, flat)}

    def _add(self, user: _User, event: tuple[Any, ...]) -> None:
        if self._config.keep == "newest" or len(user.past[0]) < self._config.max_length:
            for past, value in zip(user.past, event):
                past.append(value)


def event_values(f: SequenceFeature, batch: Batch, labels: tuple[str, ...]) -> Any:
    """Return an event's value of a column, by row.

    Args:
        f: The column.
        batch: Rows of the event log.
        labels: Names of the batch's labels.
    """
    if f.kind == TIMES:
        assert batch.time is not None
        return np.floor(batch.time).astype(np.int64)
    return _label(batch, f.column, labels) if f.reads is None else batch.columns[f.reads.name]


def _label(batch: Batch, name: str, labels: tuple[str, ...]) -> Any:
    return batch.label if batch.label.ndim == 1 else batch.label[:, labels.index(name)]


def _listed(column: Column) -> list[Any]:
    if isinstance(column, Strings):
        return column.tolist()
    assert isinstance(column, np.ndarray)
    return list(column.tolist())


def entering(batch: Batch, config: SequenceConfig, labels: tuple[str, ...]) -> list[bool]:
    """Return which rows of a batch enter a history: those that `where` chooses, but no guest's."""
    where, users = config.where, batch.columns[config.from_events]
    if isinstance(users, Strings):
        known = ~equal_strings(users, str(config.guest or "").encode())
    else:
        known = np.ones(len(batch), bool) if config.guest is None else np.asarray(users) != config.guest
    if where:
        chosen: Any = _label(batch, where, labels) if where in labels else batch.columns[where]
        known &= chosen > 0
    return list(known.tolist())


def _packed(f: SequenceFeature, values: list[Any]) -> Any:
    if f.kind == "strings":
        return Strings.of(values)
    return np.array(values, np.float32 if f.kind == FLOATS else np.int64)
