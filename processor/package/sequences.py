"""Sequences of a version: a user's events, newest last, as one input of the dense graph.

A sequence is several aligned columns of a request, `<sequence>.<column>`. Each column of ids has its table, which
features may share; a column of floats, such as the price of each event, has none and is not the first. The input of the
dense graph has the sequence's name and is float32 [rows, width]:

    for each column    max_length rows of its table, one after another, then max_length mask columns;
                       of floats: max_length columns, scaled as a float feature is (processor.package.Feature)
    with a time        max_length columns: seconds from each event to the newest one

Events lie from the oldest to the newest from place 0 on; places without an event are zeros. So a place is a position
counted from the oldest event that is kept, and the mask says which places have an event. A list longer than max_length
is cut before anything else is computed (processor.features.sequences).

A sequence without columns is no input of the dense graph: its lists are only aligned and cut, and features are computed
from them (processor.package.transforms).

A sequence has one row a request, or one for each candidate where the users differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

SEQUENCE = "sequence"
"""Source of an input of the dense graph that holds a sequence."""
KEEPS = ("newest", "oldest")
TIME_UNITS = {"s": 1, "ms": 1000}
"""Units of a sequence's times, each with how many there are in a second."""
MAX_EVENTS = 1 << 16
LISTS = {"ids": "int64", "strings": "string", "floats": "float32"}
"""Kinds of a sequence's columns, each with the type of its values."""
UNSCALED = {"log1p": False, "mean": 0.0, "scale": 1.0}
"""The scaling of a column that has none."""


@dataclass(frozen=True, slots=True)
class SequenceColumn:
    """One column of a sequence: looked up in a table, or floats.

    Attributes:
        kind: ids | strings | floats.
        input: Name of the tensor that it reads: an input of the request or, except for floats, a transform.
        table: Its embedding table; "" for floats.
        offset: First column in the sequence's input.
        width: Number of columns, the mask's included; floats have no mask of their own.
        log1p: Floats only, as are mean and scale: those of a float feature (processor.package.Feature).
    """

    name: str
    kind: str
    input: str
    table: str
    offset: int
    width: int
    log1p: bool = False
    mean: float = 0.0
    scale: float = 1.0

    @property
    def scaling(self) -> tuple[bool, float, float]:
        return self.log1p, self.mean, self.scale


@dataclass(frozen=True, slots=True)
class SequenceEntry:
    """One sequence of at most max_length events.

    Attributes:
        columns: Its columns; none if only features read it.
        keep: Events of a longer list that are kept: newest | oldest.
        time: Input of the request with the events' times, int64; "" without one.
        time_unit: Unit of these times: s | ms.
        inputs: Inputs of the request that are aligned, one value an event each.
        padding: Value of the first input in places that have no event, before or after the events; None for none.
    """

    name: str
    columns: list[SequenceColumn]
    max_length: int
    width: int
    inputs: list[str]
    keep: str = "newest"
    time: str = ""
    time_unit: str = "s"
    padding: int | str | None = None

    def columns_of(self, length: int) -> int:
        """Return the columns that its input has with so many places, or with max_length if that is less."""
        return self.width // self.max_length * min(length, self.max_length)


def dense_sequences(sequences: Sequence[SequenceEntry]) -> list[SequenceEntry]:
    """Return the sequences that are inputs of the dense graph."""
    return [s for s in sequences if s.columns]


def expected_lists(name: str, sequences: Sequence[SequenceEntry]) -> str:
    """Return what a request sends as an input of a sequence, to end a message with: ": expected ..."; else ""."""
    for s in sequences:
        if name in s.inputs:
            unit = "milliseconds" if s.time_unit == "ms" else "seconds"
            timed = name == f"{s.name}.time"
            values = f"the times of a user's events in {unit} since 1970" if timed else "values of a user's events"
            first = s.inputs[0]
            alike = f", as long as those of {first!r}" if name != first else ""
            return f": expected {values}, oldest first, as one list for all rows or one a row{alike}; [] without events"
    return ""
