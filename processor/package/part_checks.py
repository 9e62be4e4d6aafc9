"""Checks of parts that few manifests have: sequences, lookups of a stage, how much a stage computes.

Loaded with the first manifest that has one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from freshet_serving.processor.package.manifest_checks import want
from freshet_serving.processor.package.manifest_entries import Input
from freshet_serving.processor.package.sequences import KEEPS, LISTS, MAX_EVENTS, TIME_UNITS, SequenceEntry
from freshet_serving.processor.package.stage_entries import MAX_FACTOR, MAX_POWER, MAX_TERMS, StageGrowth, StageLookup
from freshet_serving.processor.package.transforms import ColumnShape

PADDINGS: Mapping[str, type] = {"int64": int, "string": str}
"""Types of a padding value, by the type of its input."""
MAX_PADDING = 256


def validate_sequences(
    sequences: Sequence[SequenceEntry],
    inputs: Mapping[str, Input],
    sources: Mapping[str, Input],
    dims: Mapping[str, int],
) -> None:
    """Raise BadInput unless each sequence agrees with the inputs, what is computed from them, and the tables' dims."""
    names = [s.name for s in sequences]
    for s in sequences:
        where = f"manifest.sequences[{s.name[:64]}]"
        want(names.count(s.name) == 1 and "." not in s.name, f"{where}: expected a name of its own without '.'")
        want(0 < s.max_length <= MAX_EVENTS, f"{where}.max_length: expected 1 to {MAX_EVENTS}, got {s.max_length}")
        want(s.keep in KEEPS, f"{where}.keep: expected one of {', '.join(KEEPS)}, got {s.keep[:40]!r}")
        want(s.time_unit in TIME_UNITS, f"{where}.time_unit: expected one of {', '.join(TIME_UNITS)}")
        headed = s.columns[0].table if s.columns else s.inputs and not s.time
        want(bool(headed), f"{where}.columns: expected at least one, the first with a table, or none and no time")
        for name in s.inputs:
            aligned = name in inputs and inputs[name].ragged and name.startswith(f"{s.name}.")
            want(aligned, f"{where}.inputs: expected lists named {s.name}.<column>, got {name[:64]!r}")
        if s.padding is not None:
            alike = bool(s.inputs) and type(s.padding) is PADDINGS.get(inputs[s.inputs[0]].dtype)
            fits = -(2**63) <= s.padding < 2**63 if isinstance(s.padding, int) else len(s.padding) <= MAX_PADDING
            want(alike and fits, f"{where}.padding: expected a value of its first input, got {str(s.padding)[:40]!r}")
        timed = not s.time or (s.time in s.inputs and inputs[s.time].dtype == "int64")
        want(timed, f"{where}.time: expected one of its inputs, int64")
        at = 0
        for c in s.columns:
            want(c.kind in LISTS, f"{where}.columns: expected kind {' or '.join(LISTS)}, got {c.kind[:40]!r}")
            want(c.input in sources, f"{where}.columns: {c.input[:64]!r} is not an input")
            lists = sources[c.input].ragged and sources[c.input].dtype == LISTS[c.kind]
            want(lists, f"{where}.columns: expected lists of {LISTS[c.kind]} in {c.input[:64]!r}")
            if c.kind == "floats":
                plain = c.input in s.inputs and not c.table
                want(plain, f"{where}.columns: expected floats without a table, got {c.table[:64]!r}")
            else:
                want(c.table in dims, f"{where}.columns: {c.table[:64]!r} is not among manifest.tables")
            wide = (dims[c.table] + 1 if c.table else 1) * s.max_length
            want((c.offset, c.width) == (at, wide), f"{where}.columns: expected {wide} columns from {at} on")
            at += wide
        at += s.max_length if s.time else 0
        want(s.width == at, f"{where}.width: expected {at}, got {s.width}")


def validate_stage_lookups(
    lookups: Sequence[StageLookup], outputs: Sequence[Input], shapes: Mapping[str, ColumnShape], tables: Collection[str]
) -> None:
    """Raise BadInput unless a stage's lookups agree with tables, and with the shapes of inputs and transforms."""
    names = [lookup.name for lookup in lookups]
    floats = all(output.dtype == "float32" for output in outputs)
    want(not lookups or floats, "manifest.stage.outputs: expected float32 of a stage with lookups")
    for lookup in lookups:
        where = f"manifest.stage.lookups[{lookup.name[:64]}]"
        want(bool(lookup.name) and names.count(lookup.name) == 1, f"{where}: expected a name of its own")
        want(lookup.table in tables, f"{where}.table: {lookup.table[:64]!r} is not among manifest.tables")
        if lookup.whole:
            want(not lookup.columns, f"{where}.columns: expected none of a weight")
            continue
        want(lookup.input in shapes, f"{where}.input: {lookup.input[:64]!r} is not an input or a transform")
        shape, columns = shapes[lookup.input], lookup.columns
        want(shape.dtype != "float32", f"{where}.input: expected int64 or string, got float32")
        inside = bool(columns) == bool(shape.columns) and all(0 <= column < shape.columns for column in columns)
        want(inside, f"{where}.columns: expected columns of {lookup.input!r}, which has {shape.columns}")


def validate_growth(growth: StageGrowth, inputs: Collection[str]) -> None:
    """Raise BadInput for a growth that is no polynomial with positive factors."""
    where = "manifest.stage.growth"
    want(0 < len(growth.terms) <= MAX_TERMS, f"{where}.terms: expected 1 to {MAX_TERMS}, got {len(growth.terms)}")
    for term in growth.terms:
        powers = 0 <= term.rows <= MAX_POWER and 0 <= term.length <= MAX_POWER
        want(powers, f"{where}.terms: expected powers from 0 to {MAX_POWER}, got {term.rows} and {term.length}")
        want(0 < term.cells <= MAX_FACTOR, f"{where}.terms: expected factors above 0, got {term.cells}")
    for name in growth.sized_by:
        want(name in inputs, f"{where}.sized_by: {name[:64]!r} is not an input")
