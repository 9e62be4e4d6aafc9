"""Interface of training data sources: every reader provides a schema, and batches of columns in stream order.

Readers know nothing of models. A feature is requested by its name and kind; a reader that cannot provide it raises a
one-line error before the first batch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.columns import Column, join_columns, slice_column, take_rows
from freshet_serving.processor.errors import BadInput, first_of, nearest

S = TypeVar("S")

LIST_SEPARATOR = "|"
"""What stands between the values of a list that is text, unless data.list_separator says otherwise."""
ONE_OF = {"ids": "id", "strings": "string", "floats": "float"}
"""Kinds of lists, each with the kind of its values."""


@dataclass(frozen=True, slots=True)
class Field:
    """One column of a batch.

    Attributes:
        kind: id | string | float | ids | strings, as in a manifest's Feature; floats, lists of these; or seconds:
            int64, whole Unix seconds.
        where: The place that asks for it, for messages, such as sequences.seen.columns; "" for [features.<name>].
    """

    name: str
    kind: str
    where: str = dataclasses.field(default="", compare=False)

    @property
    def asked(self) -> str:
        """The place that asks for it, as messages begin."""
        return self.where or f"features.{self.name}"

    @property
    def column(self) -> str:
        return self.name

    @property
    def reads(self) -> Field | None:
        return self

    @property
    def sequence(self) -> None:
        return None


class RequestedColumn(Protocol):
    """A feature as readers see it; models.config.feature_sections.FeatureConfig and Field implement it."""

    @property
    def name(self) -> str: ...
    @property
    def reads(self) -> Field | None:
        """The column that it derives from; None if the columns of other features suffice."""
        ...


@dataclass(frozen=True, slots=True)
class Schema:
    """The columns of every batch, in order.

    Attributes:
        fields: Columns of Batch.columns.
        label: Name of the column of Batch.label, or several names if the model has several labels.
        time: Name of the column of Batch.time; "" for none.
        weight: Name of the column of Batch.weight; "" for none.
    """

    fields: tuple[Field, ...]
    label: str | tuple[str, ...]
    time: str = ""
    weight: str = ""
    list_separator: str = LIST_SEPARATOR

    def __post_init__(self) -> None:
        roles = {self.weight: "weight", self.time: "time"} | dict.fromkeys(self.labels, "label")
        for f in self.fields:
            role = roles.get(f.name, "")
            if role and not (role == "time" and f.kind == "seconds"):
                raise BadInput(f"{f.asked}: expected a column other than data.{role}")

    @property
    def labels(self) -> tuple[str, ...]:
        return (self.label,) if isinstance(self.label, str) else self.label

    @property
    def names(self) -> list[str]:
        return [f.name for f in self.fields]

    def kind(self, name: str) -> str:
        return first_of(f.kind for f in self.fields if f.name == name)


@dataclass(frozen=True, slots=True)
class Batch:
    """Consecutive rows of the stream: rows [start, start + len(self)).

    Arrays may be read-only views of the reader's buffers.

    Attributes:
        label: float32 [n], 0 to 1, or [n, labels] with several labels.
        time: float64 [n], Unix seconds, ascending, or None.
        start: Position of the first row.
        weight: float32 [n], or None for 1.
        covers: Rows of the stream that it stands for, if these are not its own rows.
    """

    columns: dict[str, Column]
    label: NDArray[np.float32]
    time: NDArray[np.float64] | None
    start: int
    weight: NDArray[np.float32] | None = None
    covers: int | None = None

    def __len__(self) -> int:
        return len(self.label)

    @property
    def end(self) -> int:
        """Position of the row after this batch: `start` for a reader that continues here."""
        return self.start + self.stream_rows

    @property
    def stream_rows(self) -> int:
        return len(self) if self.covers is None else self.covers

    def slice(self, first: int, last: int) -> Batch:
        """Return rows [first, last) of this batch as views."""
        if (first, last) == (0, len(self)):
            return self
        columns = {name: slice_column(c, first, last) for name, c in self.columns.items()}
        time = None if self.time is None else self.time[first:last]
        weight = None if self.weight is None else self.weight[first:last]
        return Batch(columns, self.label[first:last], time, self.start + first, weight)

    def pieces(self, rows: int) -> Iterator[Batch]:
        for first in range(0, len(self), rows):
            yield self.slice(first, min(first + rows, len(self)))

    def take(self, rows: NDArray[np.int64]) -> Batch:
        """Return these rows of the batch in this order, as copies; its position stays."""
        columns = {name: take_rows(c, rows) for name, c in self.columns.items()}
        time = None if self.time is None else self.time[rows]
        weight = None if self.weight is None else self.weight[rows]
        return Batch(columns, self.label[rows], time, self.start, weight)


class Source(Protocol):
    """A stream of labelled rows that can be read repeatedly from any position."""

    @property
    def schema(self) -> Schema: ...

    def batches(self, rows: int, start: int = 0) -> Iterator[Batch]:
        """Yield batches of consecutive rows. Raises BadInput if the data violate the schema.

        Batch i holds rows [start + i * rows, start + (i + 1) * rows); only the last may be shorter. So a reader resumed
        at the end of a batch yields exactly the batches of an uninterrupted one. A start at or past the end yields
        nothing.
        """
        ...

    def count_rows(self) -> int | None:
        """Return the number of rows of the whole stream; None if it is endless. May read all of the data."""
        ...


def join_batches(parts: Sequence[Batch]) -> Batch:
    if len(parts) == 1:
        return parts[0]
    columns = {name: join_columns([part.columns[name] for part in parts]) for name in parts[0].columns}
    times = [part.time for part in parts if part.time is not None]
    weights = [part.weight for part in parts if part.weight is not None]
    return Batch(
        columns,
        np.concatenate([part.label for part in parts]),
        np.concatenate(times) if times else None,
        parts[0].start,
        np.concatenate(weights) if weights else None,
    )


def rows_between(source: Source, rows: int, first: int, until: int | None) -> Iterator[Batch]:
    """Yield batches of the rows [first, until), by default all from the first on."""
    for batch in source.batches(rows, first) if until is None or first < until else ():
        if until is not None and batch.start >= until:
            return
        yield batch if until is None else batch.slice(0, min(len(batch), until - batch.start))


def layer_of(source: Source, kind: type[S]) -> S | None:
    """Return the source of a kind among a source and what it is made of; None without one."""
    layer: object = source
    while layer is not None and not isinstance(layer, kind):
        layer = getattr(layer, "events", None)
    return layer


def check_position(rows: int, start: int) -> None:
    """Raise BadInput unless a batch size is 1 or more and a position 0 or more."""
    if rows < 1:
        raise BadInput(f"batch rows: expected 1 or more, got {rows}")
    if start < 0:
        raise BadInput(f"start: expected a row position of 0 or more, got {start}")


def wanted_fields(features: Sequence[RequestedColumn]) -> tuple[Field, ...]:
    """Return the columns that features derive from, each once, in the order of first use."""
    return tuple(dict.fromkeys(field for feature in features if (field := feature.reads)))


def choose(available: Sequence[Field], wanted: Sequence[Field], others: Sequence[Field] = ()) -> tuple[Field, ...]:
    """Return the named fields of a reader's fixed set; all of `available` if none are named. Raises BadInput."""
    if not wanted:
        return tuple(available)
    kinds = {f.name: f.kind for f in (*available, *others)}
    for field in wanted:
        if field.name not in kinds:
            names = ", ".join(kinds) if len(kinds) <= 16 else f"{', '.join(list(kinds)[:16])}, ..."
            hint = nearest(field.name, list(kinds))
            raise BadInput(f"{field.asked}: expected a column of the data: {names}{hint}")
        if field.kind != kinds[field.name]:
            kind = kinds[field.name]
            key = "" if field.where else ".kind"
            raise BadInput(f"{field.asked}{key}: expected {kind!r} for this column, got {field.kind!r}")
    return tuple(wanted)
