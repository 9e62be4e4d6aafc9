"""Columns of entities that no feature reads: in the manifest, in records, and what is refused."""

from dataclasses import replace

import numpy as np
import pytest

from freshet_serving.models.publishing.entity_rows import entity_rows
from freshet_serving.processor.columns import Strings
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.package import Input, Manifest, names_keys, record_layout, unpack_records
from freshet_serving.processor.package.entity_records import check_records, pack_records
from freshet_serving.processor.package.record_texts import NOT_KEPT
from tests.support.ranked import COLUMNS, RECORDS, columns_of, manifest, records_of, with_filters


def strings_as_ids(made):
    """The manifest with an item whose ids are strings."""
    inputs = [replace(i, dtype="string") if i.name == "item" else i for i in made.inputs]
    return replace(made, inputs=inputs, features=[replace(made.features[0], kind="string")])


def entity_with(**change):
    made = with_filters(manifest())
    return replace(made, executables=[], entities=[replace(made.entities[0], **change)])


def test_filters_survive_the_manifest_file():
    made = replace(with_filters(manifest()), executables=[])
    assert Manifest.from_json(made.to_json()).entities == made.entities
    assert made.to_json().count(b'"declared"') == 1
    # Servers that predate filters read versions without them.
    assert b"filters" not in replace(made, entities=[], tables=made.tables[:1]).to_json()


def test_records_hold_what_was_given():
    made, keys = with_filters(manifest()), list(range(50))
    records, columns = records_of(made, keys, 3), columns_of(keys, 3)
    names = [spec.name for spec in COLUMNS]
    found = unpack_records(made, made.entities[0], records, names)
    assert set(found) == set(names)
    assert found["stock"].tolist() == columns["stock"]
    assert [None if np.isnan(n) else n for n in found["price"].tolist()] == columns["price"]
    assert [text.decode() or None for text in found["category"].tolist()] == columns["category"]
    for name in ("tags", "sizes", "sellers"):
        splits, values = found[name].row_splits, found[name].values
        values = values.view(np.uint64) if name == "sellers" else values
        values = [text.decode() for text in values.tolist()] if isinstance(values, Strings) else values.tolist()
        assert [values[a:b] for a, b in zip(splits, splits[1:])] == columns[name]


def test_no_request_reads_or_sends_them():
    made = with_filters(manifest())
    assert [i.name for i in made.inputs] == ["item", "history.item"]
    assert made.expected_inputs(("item", "history.item")) == made.inputs
    assert record_layout(made, made.entities[0]).bound_words == 0


def test_records_have_the_texts_of_keys_that_are_strings():
    made = strings_as_ids(manifest())
    made = with_filters(made, columns=[Input("stock", "int64"), Input("item", "string")])
    (entity,) = made.entities
    assert names_keys(entity)
    records = entity_rows(made, entity, {"stock": [3, 0]}, 2, ["a", "bcd"])
    found = unpack_records(made, entity, records, ["item", "stock"])
    assert (found["item"].tolist(), found["stock"].tolist()) == ([b"a", b"bcd"], [3, 0])
    with pytest.raises(BadInput, match="entity 'item': 'item' is not one of its columns: stock"):
        entity_rows(made, entity, {"stock": [3], "item": ["a"]}, 1, ["a"])
    with pytest.raises(BadInput, match="entity 'item': column 'stock' is missing"):
        entity_rows(made, entity, {}, 1, ["a"])
    with pytest.raises(BadInput, match="entity 'item': 'item' is missing"):
        pack_records(made, entity, {"stock": np.array([3])}, 1, None)


def test_texts_that_do_not_fit_are_refused_where_filters_read_them():
    made = with_filters(manifest(), text_nbytes=40)
    columns = {"price": [1], "stock": [1], "category": ["c" * 60], "tags": [[]], "sizes": [[]]}
    columns["sellers"] = [[]]
    with pytest.raises(BadInput, match=r"entity 'item': expected texts of at most 40 bytes a key.* in category, tags"):
        entity_rows(made, made.entities[0], columns, 1)
    records = records_of(with_filters(manifest()), [1, 2], 0)
    made = with_filters(manifest())
    check_records(made, RECORDS, records)
    offset = record_layout(made, made.entities[0]).text_offset
    records[1, offset], records[1, offset + 1 :] = NOT_KEPT, 0
    with pytest.raises(BadInput, match="expected texts of at most 200 bytes a key"):
        check_records(made, RECORDS, records)


def test_lists_beyond_their_places_are_refused():
    made = with_filters(manifest())
    columns = columns_of([1], 0) | {"sizes": [[1, 2, 3, 4, 5]]}
    with pytest.raises(BadInput, match="'sizes': expected lists of at most 4 values, got 5"):
        entity_rows(made, made.entities[0], columns, 1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"filters": []}, r"inputs: expected distinct inputs"),
        ({"filters": [Input("price", "float32")] * 2}, r"filters: expected distinct names"),
        ({"text_nbytes": -1}, r"text_nbytes: expected 0 or more with filters"),
        ({"unknown": "drop"}, r"unknown: expected 'default' without inputs"),
        ({"filters": [Input("price", "float64")]}, r"filters\[price\]: expected one value or a list"),
        ({"filters": [Input("price", "float32", ragged=True)]}, r"filters\[price\]: expected one value or a list"),
        ({"filters": [Input("price", "float32", columns=2)]}, r"filters\[price\]: expected one value or a list"),
        ({"filters": [Input("item", "string")]}, r"filters\[item\]: expected the texts of keys of strings"),
        ({"filters": [Input("", "int64")]}, r"filters: expected names of 1 to 1024 characters"),
        ({"capacities": {}}, r"capacities: expected 1 or more for \['sellers', 'sizes'\]"),
        ({"filters": [*COLUMNS, Input("more", "int64")]}, r"tables\[entities.item\].dim: expected"),
    ],
)
def test_manifests_that_contradict_themselves_are_refused(change, message):
    with pytest.raises(BadInput, match=message):
        entity_with(**change).to_json()
