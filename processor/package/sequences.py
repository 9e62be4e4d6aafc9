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

A sequence is the user's: it has one row a request, or one for each candidate where the users differ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from freshet_serving.processor.errors import BadInput

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
        name: Its name, `<sequence>.<column>`.
        kind: ids | strings | floats.
        input: Name of the tensor that it reads: an input of the request or, except for floats, a transform.
        table: Its embedding table; "" for floats.
        offset: First column in the sequence's input.
        width: Number of columns, the mask's included; floats have no mask of their own.
        log1p: Floats only, as are mean and scale: those of a float feature (processor.package.Feature).
        mean: See log1p.
        scale: See log1p.
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
        """Its log1p, mean and scale."""
        return self.log1p, self.mean, self.scale


@dataclass(frozen=True, slots=True)
class SequenceEntry:
    """One sequence.

    Attributes:
        name: Its name, and that of its input of the dense graph.
        columns: Its columns; none if only features read it.
        max_length: Most events.
        width: Columns of its input.
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
    """Return what a request sends as an input, to end a message with: ": expected ..."; "" unless it is a sequence's.

    Args:
        name: The input.
        sequences: The sequences of the version.
    """
    for s in sequences:
        if name in s.inputs:
            unit = "milliseconds" if s.time_unit == "ms" else "seconds"
            timed = name == f"{s.name}.time"
            values = f"the times of a user's events in {unit} since 1970" if timed else "values of a user's events"
            first = s.inputs[0]
            alike = f", as long as those of {first!r}" if name != first else ""
            return f": expected {values}, oldest first, as one list for all rows or one a row{alike}; [] without events"
    return ""


PADDINGS: Mapping[str, type] = {"int64": int, "string": str}
"""Types of a padding value, by the type of its input."""
MAX_PADDING = 256


class TensorShape(Protocol):
    """An input of the request as far as its shape goes (processor.package.manifest.Input)."""

    @property
    def dtype(self) -> str: ...
    @property
    def ragged(self) -> bool: ...


def validate_sequences(
    sequences: Sequence[SequenceEntry],
    inputs: Mapping[str, TensorShape],
    sources: Mapping[str, TensorShape],
    dims: Mapping[str, int],
) -> None:
    """Raise BadInput unless each sequence agrees with inputs and tables.

    Args:
        sequences: The sequences.
        inputs: Inputs of the request by name.
        sources: The request's inputs and all tensors computed from them, by name.
        dims: Elements per row by table.
    """
    names = [s.name for s in sequences]
    for s in sequences:
        where = f"manifest.sequences[{s.name[:64]}]"
        _want(names.count(s.name) == 1 and "." not in s.name, f"{where}: expected a name of its own without '.'")
        _want(0 < s.max_length <= MAX_EVENTS, f"{where}.max_length: expected 1 to {MAX_EVENTS}, got {s.max_length}")
        _want(s.keep in KEEPS, f"{where}.keep: expected one of {', '.join(KEEPS)}, got {s.keep[:40]!r}")
        _want(s.time_unit in TIME_UNITS, f"{where}.time_unit: expected one of {', '.join(TIME_UNITS)}")
        headed = s.columns[0].table if s.columns else s.inputs and not s.time
        _want(bool(headed), f"{where}.columns: expected at least one, the first with a table, or none and no time")
        for name in s.inputs:
            aligned = name in inputs and inputs[name].ragged and name.startswith(f"{s.name}.")
            _want(aligned, f"{where}.inputs: expected lists named {s.name}.<column>, got {name[:64]!r}")
        if s.padding is not None:
            alike = bool(s.inputs) and type(s.padding) is PADDINGS.get(inputs[s.inputs[0]].dtype)
            fits = -(2**63) <= s.padding < 2**63 if isinstance(s.padding, int) else len(s.padding) <= MAX_PADDING
            _want(alike and fits, f"{where}.padding: expected a value of its first input, got {str(s.padding)[:40]!r}")
        timed = not s.time or (s.time in s.inputs and inputs[s.time].dtype == "int64")
        _want(timed, f"{where}.time: expected one of its inputs, int64")
        at = 0
        for c in s.columns:
            _want(c.kind in LISTS, f"{where}.columns: expected kind {' or '.join(LISTS)}, got {c.kind[:40]!r}")
            _want(c.input in sources, f"{where}.columns: {c.input[:64]!r} is not an input")
            lists = sources[c.input].ragged and sources[c.input].dtype == LISTS[c.kind]
            _want(lists, f"{where}.columns: expected lists of {LISTS[c.kind]} in {c.input[:64]!r}")
            if c.kind == "floats":
                plain = c.input in s.inputs and not c.table
                _want(plain, f"{where}.columns: expected floats without a table, got {c.table[:64]!r}")
            else:
                _want(c.table in dims, f"{where}.columns: {c.table[:64]!r} is not among manifest.tables")
            wide = (dims[c.table] + 1 if c.table else 1) * s.max_length
            _want((c.offset, c.width) == (at, wide), f"{where}.columns: expected {wide} columns from {at} on")
            at += wide
        at += s.max_length if s.time else 0
        _want(s.width == at, f"{where}.width: expected {at}, got {s.width}")
    floats = {c.input for s in sequences for c in s.columns if c.kind == "floats"}
    floats |= {name for s in sequences if not s.columns for name in s.inputs}
    for name, spec in sources.items():
        alone = spec.ragged and spec.dtype == "float32" and name not in floats
        _want(not alone, f"manifest.inputs[{name}]: expected lists of float32 only as a column of a sequence")


def _want(condition: bool, message: str) -> None:
    if not condition:
        raise BadInput(message)
