"""Entities in a manifest, and the contents of a record."""

import dataclasses

import numpy as np
import pytest

from freshet_serving.processor.columns import Ragged, Strings
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.kernels.hashing import hash_strings
from freshet_serving.processor.package import (
    RECORD,
    Delta,
    EntityEntry,
    Manifest,
    TableDelta,
    TableEntry,
    Transform,
    pack_records,
    parse_delta,
    record_layout,
    validate,
    write_delta,
)
from tests.support.packages import manifest

ENTITY = EntityEntry("user", "user", ["tags", "floats"], {"tags": 3})
WORDS = 2 * (1 + 3) + 4


def with_entity(entity=ENTITY, table=None, **changes) -> Manifest:
    plain = manifest()
    table = table or TableEntry("entities.user", WORDS, 0, RECORD)
    return dataclasses.replace(plain, entities=[entity], tables=[*plain.tables, table], executables=[], **changes)


def test_manifest_with_entities_is_read_as_it_was_written():
    before = with_entity()
    assert Manifest.from_json(before.to_json()).entities == [ENTITY]
    assert b'"entities"' not in dataclasses.replace(manifest(), executables=[]).to_json()


def test_record_holds_hashed_strings_and_numbers():
    model = with_entity()
    tags = {"tags": _ragged([["a", "b"], []]), "floats": np.arange(8, dtype=np.float32).reshape(2, 4)}
    records = pack_records(model, ENTITY, tags, 2, hash_strings)
    assert records.shape == (2, WORDS)
    hashes = hash_strings(Strings.of(["a", "b"]), 7).tolist()
    assert [(f.source, f.seed, f.count, f.offset) for f in record_layout(model, ENTITY).sources] == [
        ("tags", 7, 3, 0),
        ("floats", 0, 4, 8),
    ]
    assert records[:, :8].copy().view(np.int64).tolist() == [[2, *hashes, 0], [0, 0, 0, 0]]
    assert records[:, 8:].copy().view(np.float32).tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]


def _ragged(rows):
    return Ragged(Strings.of([s for row in rows for s in row]), np.cumsum([0, *map(len, rows)]))


refused = {
    "an unknown key": (with_entity(dataclasses.replace(ENTITY, key="x")), r"\.key: 'x' is not among"),
    "a ragged key": (with_entity(EntityEntry("user", "tags", ["floats"])), r"\.key: expected one int64 or string"),
    "an unknown input": (with_entity(EntityEntry("user", "user", ["x"])), r"\.inputs: 'x' is not among"),
    "its own key": (with_entity(EntityEntry("user", "user", ["user"])), r"\.inputs: 'user' is a key itself"),
    "no inputs": (with_entity(EntityEntry("user", "user", [])), r"\.inputs: expected distinct inputs"),
    "no capacity": (with_entity(dataclasses.replace(ENTITY, capacities={})), r"\.capacities: expected 1 or more"),
    "a table of another width": (with_entity(table=TableEntry("entities.user", 14, 0, RECORD)), "dim: expected 12"),
    "a table of numbers": (with_entity(table=TableEntry("entities.user", WORDS, 0)), "expected type 'record'"),
    "texts without room": (with_entity(dataclasses.replace(ENTITY, text_nbytes=3)), "text_nbytes: expected 4 or more"),
    "texts below none": (with_entity(dataclasses.replace(ENTITY, text_nbytes=-2)), "text_nbytes: expected -1 to 16384"),
    "no table": (dataclasses.replace(manifest(), entities=[ENTITY]), "expected type 'record'"),
}


@pytest.mark.parametrize("name", refused)
def test_manifest_that_contradicts_itself_is_refused(name):
    model, message = refused[name]
    with pytest.raises(BadInput, match=message):
        validate(model)


def test_transform_of_an_entity_and_other_inputs_is_refused():
    model = with_entity(transforms=[Transform("t", "cross", ["tags", "user"], [5, 1], [])])
    with pytest.raises(BadInput, match=r"entities\.user\.columns: 'tags' is combined with user"):
        validate(model)


def test_delta_carries_records_as_words(tmp_path):
    model = with_entity()
    records = np.array([[3, 0] + [-1] * (WORDS - 2), [0, 0] + [0x7FC00000] * (WORDS - 2)], np.int32)
    table = TableDelta(np.array([1, 2]), records, np.empty(0, np.int64))
    delta = Delta("small", 1, 1, 0, {"entities.user": table})
    delta.check_fits(model)
    write_delta(tmp_path / "1", delta)
    read = parse_delta((tmp_path / "1").read_bytes())
    np.testing.assert_array_equal(read.tables["entities.user"].rows, records)
    assert read.tables["entities.user"].rows.dtype == np.int32
    wrong = dataclasses.replace(delta, tables={"entities.user": dataclasses.replace(table, rows=np.float32(records))})
    with pytest.raises(BadInput, match="expected rows of int32, got float32"):
        wrong.check_fits(model)


@pytest.mark.parametrize(
    ("word", "value", "message"),
    [
        (0, 4, "'tags': expected lists of at most 3 values, got a length of 4"),
        (1, 1 << 20, "'tags': expected lists of at most 3 values, got a length of 4503599627370496"),
        (1, -1, "'tags': expected lists of at most 3 values, got a length of -4294967296"),
        (WORDS - 1, 0x7F800000, "'floats': expected finite numbers"),
    ],
)
def test_forged_records_of_a_delta_are_refused(word, value, message):
    records = np.zeros((2, WORDS), np.int32)
    records[1, word] = value
    forged = Delta("small", 1, 1, 0, {"entities.user": TableDelta(np.array([1, 2]), records, np.empty(0, np.int64))})
    with pytest.raises(BadInput, match=message):
        forged.check_fits(with_entity())
