"""Make rows of a version's entities from columns, as serving would have bound them (processor.package.entities)."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping, Set
from typing import Any

import numpy as np

from freshet_serving.models.publishing.key_ids import Int64s, carried, hashed
from freshet_serving.processor.columns import Column, Ragged, Strings, exact_array
from freshet_serving.processor.errors import BadInput, NotReady
from freshet_serving.processor.package import EntityEntry, Input, Manifest, Records, column_specs, derived, pack_records


def entity_of(manifest: Manifest, name: str) -> EntityEntry:
    """Return an entity of a version; raise BadInput if it has none of that name."""
    entity = next((e for e in manifest.entities if e.name == name), None)
    if entity is None:
        names = ", ".join(e.name for e in manifest.entities)[:200] or "none"
        raise BadInput(f"entity {str(name)[:64]!r} does not exist; the model has {names}")
    return entity


def entity_rows(
    manifest: Manifest, entity: EntityEntry, columns: Mapping[str, Any], rows: int, keys: Any = ()
) -> Records:
    """Return the records of n keys, int32 [n, words].

    Columns are arrays or lists, of ragged inputs lists of lists. The texts of `keys` are part of records that name
    items. Raises NotReady if the model transforms the columns, and only the client is installed.
    """
    names = [spec.name for spec in column_specs(manifest, entity) if spec.name != entity.key]
    for name in columns:
        if name not in names:
            names_shown = ", ".join(names)
            raise BadInput(f"entity {entity.name!r}: {str(name)[:64]!r} is not one of its columns: {names_shown[:200]}")
    typed_columns: dict[str, Column] = {}
    for spec in column_specs(manifest, entity):
        where = f"entity {entity.name!r}: {spec.name!r}"
        if spec.name not in columns and spec.name != entity.key:
            raise BadInput(f"entity {entity.name!r}: column {spec.name!r} is missing: records are published whole")
        typed_columns[spec.name] = as_column(spec, keys if spec.name == entity.key else columns[spec.name], where)
    if not derived(manifest, entity):
        return pack_records(manifest, entity, typed_columns, rows, _hash_strings)
    try:
        # By name: the client's own distribution has neither Numba nor this module.
        records = importlib.import_module("freshet_serving.processor.features.entity_records")
    except ImportError:
        raise NotReady("publisher: columns that the model transforms need freshet-serving") from None
    packed: Records = records.make_records(manifest, entity, typed_columns, rows)
    return packed


def as_column(spec: Input, values: Any, where: str) -> Column:
    """Return values as a column of an input's type; `where` begins the message of BadInput for another type."""
    if isinstance(values, Ragged) and spec.dtype == "int64" and isinstance(values.values, np.ndarray):
        return Ragged(
            carried(values.values, spec.declared == "uint64", f"{where}: expected numbers"), values.row_splits
        )
    if isinstance(values, (Strings, Ragged)):
        return values
    if spec.ragged:
        # As in training: a missing list is empty, a missing string "" and a missing float NaN.
        lists = [[] if row is None else _items(row, f"{where}: row {n}") for n, row in enumerate(_items(values, where))]
        splits = np.cumsum([0, *map(len, lists)], dtype=np.int64)
        flat = as_column(Input(spec.name, spec.dtype, declared=spec.declared), [v for row in lists for v in row], where)
        assert not isinstance(flat, Ragged)
        return Ragged(flat, splits)
    if spec.dtype == "string":
        words = values.reshape(-1).tolist() if isinstance(values, np.ndarray) else _items(values, where)
        words = ["" if word is None else word for word in words]
        if not all(isinstance(word, (str, bytes)) for word in words):
            raise BadInput(f"{where}: expected str or bytes")
        return Strings.of(words)
    if not isinstance(values, np.ndarray):
        values = _items(values, where)
        if spec.dtype == "float32":
            values = [np.nan if value is None else value for value in values]
    try:
        array = exact_array(values)
    except OverflowError:
        raise BadInput(f"{where}: expected {spec.declared or spec.dtype}, got numbers beyond it") from None
    except ValueError:
        raise BadInput(f"{where}: expected {spec.declared or spec.dtype}, got lists of several lengths") from None
    kinds = "fiub" if spec.dtype == "float32" else "iu"
    if array.size and array.dtype.kind not in kinds:
        raise BadInput(f"{where}: expected {spec.declared or spec.dtype}, got {array.dtype}")
    if spec.dtype == "int64" and array.size:
        return carried(array, spec.declared == "uint64", f"{where}: expected numbers")
    with np.errstate(over="ignore"):
        return array.astype(spec.dtype)


def _items(values: Any, where: str) -> list[Any]:
    """Return the items of a list or array; strings, mappings and sets are none."""
    if isinstance(values, (str, bytes, bytearray, Mapping, Set)) or not isinstance(values, Iterable):
        raise BadInput(f"{where}: expected a list or an array, got {type(values).__name__}")
    try:
        return list(values)
    except TypeError:
        raise BadInput(f"{where}: expected a list or an array, got a single value") from None


def _hash_strings(strings: Strings, seed: int) -> Int64s:
    return hashed(strings.tolist(), seed)  # type: ignore[arg-type]
