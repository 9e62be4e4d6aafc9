"""Records of entities: what a row of an entity's table holds, packed, read and checked.

A record holds sources of features as the sparse graph would have bound the sent columns: int64 keys and float32
numbers, strings hashed with the seed of each table that looks them up, transforms applied. So a request that leaves its
columns out reads exactly the keys that it would have sent.

    words    int64 sources, 2 words a value, in the order of Manifest.sources and, within one, of seeds
             ragged sources, the length and then `capacity` values, 2 words each; unused places are 0
             float32 sources, 1 word a value; NaN is a missing number
             one word of padding if the number is odd
    given    the columns as they were given, as far as the sources do not hold them: numbers that transforms or filters
             read, laid out like sources; then strings (processor.package.record_texts); padded to an even number

What is given is read for filters, for recordings and for clients that ask for values, never to score. Versions whose
text_nbytes is below 0 were published without.

Invariants
- A record has a value for each source, and its bits depend on the values alone.
- A list beyond the capacity is refused, never cut, unless no feature reads what is cut.
- Records that filters read have all of their texts: what does not fit is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.columns import Column, Ragged, Strings
from freshet_serving.processor.errors import BadInput, first_of
from freshet_serving.processor.package.entities import (
    DEFAULT,
    MAX_ENTITIES,
    MAX_TEXT_NBYTES,
    NOT_GIVEN,
    UNKNOWN,
    EntityEntry,
)
from freshet_serving.processor.package.manifest_checks import want
from freshet_serving.processor.package.manifest_entries import DTYPES, Input
from freshet_serving.processor.package.record_texts import NOT_KEPT, TextColumn, check_texts, pack_texts, unpack_texts
from freshet_serving.processor.package.subgraphs import Described
from freshet_serving.processor.package.tensors import RECORD
from freshet_serving.processor.package.transforms import Transform, codes_a_value

Int64s = NDArray[np.int64]
Records = NDArray[np.int32]
HashStrings = Callable[[Strings, int], Int64s]


@dataclass(frozen=True, slots=True)
class RecordField:
    """One source of features in a record, at word `offset`.

    Attributes:
        seed: Seed of its strings' hashes; 0 for other types.
        floats: True for float32, False for int64.
        ragged: True for a list, which begins with its length.
        count: Values of a row; of a list the most.
    """

    source: str
    seed: int
    floats: bool
    ragged: bool
    count: int
    offset: int = 0

    @property
    def words(self) -> int:
        return self.count if self.floats else 2 * (self.count + self.ragged)


class RecordLayout(NamedTuple):
    """The words of an entity's records, an even number.

    Scoring reads the first bound_words, an even number, alone; `given` and texts are columns as they were given.
    """

    sources: list[RecordField]
    bound_words: int
    given: list[RecordField]
    texts: list[TextColumn]
    text_offset: int
    words: int


def column_specs(manifest: Described, entity: EntityEntry) -> list[Input]:
    """Return the columns of an entity's records, in their order there."""
    return [*(spec for spec in manifest.inputs if spec.name in entity.inputs), *entity.further]


def names_keys(entity: EntityEntry) -> bool:
    """Report whether records hold the texts of their keys."""
    return any(spec.name == entity.key for spec in entity.filters)


def derived(manifest: Described, entity: EntityEntry) -> list[Transform]:
    """Return the transforms of an entity's inputs alone, in order; raise BadInput if one reads other inputs as well."""
    names, transforms = set(entity.inputs), []
    for transform in manifest.transforms:
        from_entity = [name for name in transform.inputs if name in names]
        if not from_entity:
            continue
        if len(from_entity) < len(transform.inputs):
            others = ", ".join(name for name in transform.inputs if name not in names)[:120]
            raise BadInput(
                f"entities.{entity.name}.columns: {from_entity[0]!r} is combined with {others}, which the entity does "
                "not have: send it with requests, or give the entity all of them"
            )
        names.add(transform.name)
        transforms.append(transform)
    return transforms


def record_fields(manifest: Described, entity: EntityEntry) -> list[RecordField]:
    """Return the fields of an entity's records, in the order of their words."""
    names = {*entity.inputs, *(t.name for t in derived(manifest, entity))}
    seeds = {t.name: t.hash_seed for t in manifest.tables}
    read: dict[str, set[int]] = {}
    for f in manifest.features:
        if f.input in names:
            read.setdefault(f.input, set()).add(seeds.get(f.table, 0))
    fields = []
    for source in manifest.sources:
        for seed in sorted(read.get(source.name, ())) if source.dtype == "string" else [0] * (source.name in read):
            count = entity.capacities.get(source.name, 0) if source.ragged else source.columns or 1
            fields.append(RecordField(source.name, seed, source.dtype == "float32", source.ragged, count))
    return _placed(fields, 0)


def record_layout(manifest: Described, entity: EntityEntry) -> RecordLayout:
    sources = record_fields(manifest, entity)
    bound_words = _even(sum(f.words for f in sources))
    if entity.text_nbytes < 0:
        return RecordLayout(sources, bound_words, [], [], bound_words, bound_words)
    transformed = {name for t in derived(manifest, entity) for name in t.inputs}
    # Of lists that transforms read, a source holds what the features that read it directly need.
    whole = {f.source for f in sources if not (f.ragged and f.source in transformed)}
    given, texts = [], []
    for spec in column_specs(manifest, entity):
        count = entity.capacities.get(spec.name, 0) if spec.ragged else spec.columns or 1
        if spec.dtype == "string":
            most = 0 if spec.name in transformed else longest_read(manifest, spec.name)
            texts.append(TextColumn(spec.name, 0 if spec.ragged else count, most))
        elif spec.name not in whole:
            given.append(RecordField(spec.name, 0, spec.dtype == "float32", spec.ragged, count))
    given = _placed(given, bound_words)
    offset = bound_words + sum(f.words for f in given)
    words = offset + (-(-entity.text_nbytes // 4) if texts else 0)
    return RecordLayout(sources, bound_words, given, texts, offset, _even(words))


def _placed(fields: list[RecordField], offset: int) -> list[RecordField]:
    placed = []
    for field in sorted(fields, key=lambda f: (f.floats, f.ragged)):
        placed.append(replace(field, offset=offset))
        offset += field.words
    return placed


def _even(words: int) -> int:
    return words + words % 2


def longest_read(manifest: Described, source: str) -> int:
    """Return how many of a ragged source's first values features read; 0 for all of them."""
    codes = next((codes_a_value(t) for t in manifest.transforms if t.name == source), 1)
    most = [f.max_length * codes for f in manifest.features if f.input == source]
    return max(most, default=0) if all(most) else 0


def pack_records(
    manifest: Described, entity: EntityEntry, sources: Mapping[str, Column], rows: int, hash_strings: HashStrings
) -> Records:
    """Return the records of n keys, int32 [n, words], from its columns and the transforms derived of its inputs.

    The texts of keys are under the key's name. Raises BadInput for another shape or type than the manifest says, or a
    list that is too long.
    """
    layout = record_layout(manifest, entity)
    words = np.zeros((rows, layout.words), np.int32)
    for f in (*layout.sources, *layout.given):
        where = f"entity {entity.name!r}: {f.source!r}"
        if f.source not in sources:
            raise BadInput(f"{where}: is missing")
        column = sources[f.source]
        part = words[:, f.offset : f.offset + f.words]
        if f.ragged:
            most = 0 if f in layout.given else longest_read(manifest, f.source)
            part[:] = _lists(column, f, most, rows, hash_strings, where).view(np.int32)
            continue
        if isinstance(column, Ragged):
            raise BadInput(f"{where}: expected one value for each key, got lists")
        values: NDArray[Any] = hash_strings(column, f.seed) if isinstance(column, Strings) else column
        dtype = np.float32 if f.floats else np.int64
        if values.dtype != dtype or values.size != rows * f.count:
            got = f"{values.size} of {values.dtype.name}"
            raise BadInput(f"{where}: expected {rows * f.count} values of {np.dtype(dtype).name}, got {got}")
        if f.floats and np.isinf(values).any():
            raise BadInput(f"{where}: expected finite numbers (or NaN), got infinity")
        part[:] = np.ascontiguousarray(values).reshape(rows, f.count).view(np.int32)
    if layout.texts:
        if missing := [text.name for text in layout.texts if text.name not in sources]:
            raise BadInput(f"entity {entity.name!r}: {missing[0]!r} is missing")
        strings = [sources[column.name] for column in layout.texts]
        pack_texts(strings, layout.texts, words[:, layout.text_offset :])
        _check_kept(entity, layout, words)
    return words


def unpack_records(
    manifest: Described, entity: EntityEntry, records: Records, names: Collection[str]
) -> dict[str, Column]:
    """Return the named columns that all records, int32 [n, words], hold as given; BadInput for bad records."""
    layout = record_layout(manifest, entity)
    if entity.text_nbytes < 0:
        return {}
    check_records(manifest, entity.table, records)
    unpacked: dict[str, Column] = {}
    fields = {f.source: f for f in (*layout.sources, *layout.given) if f.source in names}
    for spec in column_specs(manifest, entity):
        f = fields.get(spec.name)
        if f is None or spec.dtype == "string":
            continue
        part = np.ascontiguousarray(records[:, f.offset : f.offset + f.words])
        values: NDArray[Any] = part.view(np.float32 if f.floats else np.int64)
        if f.ragged:
            used = np.arange(f.count) < values[:, :1]
            unpacked[spec.name] = Ragged(values[:, 1:][used], np.append(0, np.cumsum(values[:, 0])))
        else:
            unpacked[spec.name] = values if spec.columns else values[:, 0].copy()
    if any(column.name in names for column in layout.texts):
        texts = unpack_texts(records[:, layout.text_offset :], layout.texts, f"entity {entity.name!r}")
        unpacked |= {c.name: strings for c, strings in zip(layout.texts, texts or ()) if c.name in names}
    return unpacked


def _lists(
    column: Column, f: RecordField, most: int, rows: int, hash_strings: HashStrings, where: str
) -> NDArray[np.int64]:
    """Return lengths and values, int64 [rows, 1 + capacity]."""
    if not isinstance(column, Ragged) or len(column) != rows:
        got = f"{len(column)} lists" if isinstance(column, Ragged) else "one value for each"
        raise BadInput(f"{where}: expected {rows} lists, got {got}")
    values = hash_strings(column.values, f.seed) if isinstance(column.values, Strings) else column.values
    splits = np.asarray(column.row_splits, np.int64)
    lengths = np.diff(splits)
    if most:
        lengths = np.minimum(lengths, most)
    if len(lengths) and lengths.max() > f.count:
        raise BadInput(f"{where}: expected lists of at most {f.count} values, got {lengths.max()}")
    records = np.zeros((rows, 1 + f.count), np.int64)
    records[:, 0] = lengths
    row = np.repeat(np.arange(rows), lengths)
    place = np.arange(len(row)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    if len(row):
        records[row, 1 + place] = values[splits[row] + place]
    return records


def check_records(manifest: Described, table: str, rows: Records) -> None:
    """Raise BadInput for records from a file, int32 [n, words], that pack_records() does not make."""
    entity = first_of(e for e in manifest.entities if e.table == table)
    layout = record_layout(manifest, entity)
    for f in (*layout.sources, *layout.given):
        where = f"entity {entity.name!r}: {f.source!r}"
        part = rows[:, f.offset : f.offset + f.words]
        if f.floats and np.isinf(np.ascontiguousarray(part).view(np.float32)).any():
            raise BadInput(f"{where}: expected finite numbers (or NaN), got infinity")
        if f.ragged and len(rows):
            lengths = np.ascontiguousarray(part[:, :2]).view(np.int64)
            least, most = int(lengths.min()), int(lengths.max())
            if least < 0 or most > f.count:
                got = least if least < 0 else most
                raise BadInput(f"{where}: expected lists of at most {f.count} values, got a length of {got}")
    if layout.texts:
        check_texts(rows[:, layout.text_offset :], layout.texts, f"entity {entity.name!r}")
        _check_kept(entity, layout, rows)


def _check_kept(entity: EntityEntry, layout: RecordLayout, words: Records) -> None:
    if entity.filters and (words[:, layout.text_offset] == NOT_KEPT).any():
        names = ", ".join(column.name for column in layout.texts)
        raise BadInput(
            f"entity {entity.name!r}: expected texts of at most {entity.text_nbytes} bytes a key, 4 for each column "
            f"and string among them, got longer ones in {names[:120]}; a new version has room for them"
        )


def validate_entities(m: Described) -> None:
    """Raise BadInput unless the entities agree with the inputs, the features and the tables."""
    inputs, tables = {i.name: i for i in m.inputs}, {t.name: t for t in m.tables}
    records = {t.name for t in m.tables if t.dtype == RECORD}
    want(len(m.entities) <= MAX_ENTITIES, f"manifest.entities: expected at most {MAX_ENTITIES}")
    owned = {e.table for e in m.entities}
    want(len(owned) == len(m.entities), "manifest.entities: expected distinct names")
    want(owned == records, f"manifest.tables: expected type {RECORD!r} for tables of entities alone")
    want(not m.entities or m.stage is None, "manifest.entities: expected none in a model with a stage")
    want(not records & {f.table for f in m.features}, "manifest.features: expected no table of records")
    before = m.filled
    filled = set(before)
    keys = {e.key for e in m.entities} | {key for filler in before.values() for key in filler.keys}
    for e in m.entities:
        where = f"manifest.entities[{e.name[:64]}]"
        want(e.unknown in UNKNOWN, f"{where}.unknown: expected one of {', '.join(UNKNOWN)}, got {e.unknown[:64]!r}")
        key = inputs.get(e.key)
        want(key is not None, f"{where}.key: {e.key[:64]!r} is not among manifest.inputs")
        plain = key is not None and not key.ragged and not key.columns and key.dtype != "float32"
        want(plain, f"{where}.key: expected one int64 or string a row")
        by = before[e.key].kind if e.key in before else "an entity"
        want(e.key not in filled, f"{where}.key: {e.key[:64]!r} is filled by {by}")
        distinct = bool(e.inputs or e.filters) and len(set(e.inputs)) == len(e.inputs)
        want(distinct, f"{where}.inputs: expected distinct inputs")
        _validate_filters(e, key, where)
        for name in e.inputs:
            want(name in inputs, f"{where}.inputs: {name[:64]!r} is not among manifest.inputs")
            want(name not in keys, f"{where}.inputs: {name[:64]!r} is a key itself")
            want(name not in filled, f"{where}.inputs: {name[:64]!r} is filled twice")
            floats = inputs[name].ragged and inputs[name].dtype == "float32"
            want(not floats, f"{where}.inputs: expected no list of floats, got {name[:64]!r}")
            filled.add(name)
        bounded = NOT_GIVEN <= e.text_nbytes <= MAX_TEXT_NBYTES
        want(bounded, f"{where}.text_nbytes: expected {NOT_GIVEN} to {MAX_TEXT_NBYTES}, got {e.text_nbytes}")
        layout = record_layout(m, e)
        least = 4 * sum(1 + column.strings for column in layout.texts)
        want(e.text_nbytes >= least or not layout.texts, f"{where}.text_nbytes: expected {least} or more")
        want(bool(layout.sources) or not e.inputs, f"{where}.inputs: expected one that a feature reads")
        ragged = {f.source for f in (*layout.sources, *layout.given) if f.ragged}
        good = e.capacities.keys() == ragged and all(n > 0 for n in e.capacities.values())
        want(good, f"{where}.capacities: expected 1 or more for {sorted(ragged)[:8]}, got {str(e.capacities)[:120]}")
        words, table = layout.words, tables[e.table]
        want(table.dim == words, f"manifest.tables[{e.table}].dim: expected {words}, got {table.dim}")
        want(not table.default, f"manifest.tables[{e.table}].default: expected none for records")
        want(e.table not in m.copies, f"manifest.copies: expected no table of records, got {e.table}")


def _validate_filters(e: EntityEntry, key: Any, where: str) -> None:
    want(len({spec.name for spec in e.filters}) == len(e.filters), f"{where}.filters: expected distinct names")
    want(not e.filters or e.text_nbytes >= 0, f"{where}.text_nbytes: expected 0 or more with filters")
    want(bool(e.inputs) or e.unknown == DEFAULT, f"{where}.unknown: expected {DEFAULT!r} without inputs")
    for spec in e.filters:
        want(0 < len(spec.name) <= 1024, f"{where}.filters: expected names of 1 to 1024 characters")
        plain = spec.dtype in DTYPES and not spec.columns and not (spec.ragged and spec.dtype == "float32")
        want(plain, f"{where}.filters[{spec.name[:64]}]: expected one value or a list of ids or strings a key")
        text = spec.dtype == "string" and not spec.ragged and key is not None and key.dtype == "string"
        want(spec.name != e.key or text, f"{where}.filters[{spec.name[:64]}]: expected the texts of keys of strings")
