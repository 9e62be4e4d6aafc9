"""Sequences of a manifest: written and read again, left out where there are none, refused where they do not fit."""

import json
from dataclasses import replace

import pytest

from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.package import (
    SEQUENCE,
    EntityEntry,
    GraphInput,
    Input,
    Manifest,
    TableEntry,
    batch_symbol,
    divided,
    role,
    shorter_lengths,
)
from freshet_serving.processor.package.subgraphs import subgraphs
from tests.models.zoo.sequence_models import MEAN, SCALE, manifest

WHOLE = manifest("a", 3, timed=True)
WATCHED = manifest("a", 3, timed=True, floats=True)


def test_sequences_are_read_as_written():
    assert Manifest.from_json(WHOLE.to_json()).sequences == WHOLE.sequences
    assert "sequences" not in json.loads(replace(WHOLE, sequences=[]).to_json())


def test_columns_of_sequences_are_lookups_without_a_combiner():
    found = WHOLE.lookups[len(WHOLE.features) :]
    assert [(f.name, f.table, f.combiner, f.max_length, f.side) for f in found] == [
        ("history.item", "item", "none", 3, "user"),
        ("history.action", "action", "none", 3, "user"),
    ]


def test_floats_are_read_as_written_and_others_stay_as_they_were():
    assert Manifest.from_json(WATCHED.to_json()) == WATCHED
    (entry,) = json.loads(WATCHED.to_json())["sequences"]
    scaled = {"log1p": True, "mean": float(MEAN), "scale": float(SCALE)}
    assert [column.keys() & scaled for column in entry["columns"]] == [set(), set(), set(scaled)]
    assert scaled.items() <= entry["columns"][2].items()
    assert (entry["columns"][2]["width"], entry["width"]) == (3, WHOLE.sequences[0].width + 3)


@pytest.mark.parametrize(
    ("place", "change", "message"),
    [
        (2, {"table": "item"}, "expected floats without a table, got 'item'"),
        (2, {"input": "history.time"}, "expected lists of float32 in 'history.time'"),
        (2, {"input": "price"}, "expected lists of float32 in 'price'"),
        (2, {"width": 6}, "expected 3 columns from"),
        (2, {"kind": "ids", "table": "item"}, "expected lists of int64 in 'history.watched'"),
        (1, {"kind": "floats", "table": ""}, "expected lists of float32 in 'history.action'"),
        (1, {"kind": "strings"}, "expected lists of string in 'history.action'"),
    ],
)
def test_floats_that_do_not_fit_are_refused(place, change, message):
    entry = WATCHED.sequences[0]
    columns = list(entry.columns)
    columns[place] = replace(columns[place], **change)
    with pytest.raises(BadInput, match=message):
        replace(WATCHED, sequences=[replace(entry, columns=columns)]).to_json()


def test_sequence_of_floats_alone_is_refused():
    entry = WATCHED.sequences[0]
    alone = replace(entry, columns=[replace(entry.columns[2], offset=0)], width=6)
    with pytest.raises(BadInput, match="columns: expected at least one, the first with a table"):
        replace(WATCHED, sequences=[alone]).to_json()


def test_lists_of_floats_outside_a_sequence_are_refused():
    lone = Input("prices", "float32", ragged=True)
    with pytest.raises(BadInput, match=r"inputs\[prices\]: expected lists of float32 only as a column of a sequence"):
        replace(WATCHED, inputs=[*WATCHED.inputs, lone]).to_json()


def test_entities_fill_no_lists_of_floats():
    entity = EntityEntry("e", "user", ["history.watched"], {"history.watched": 3})
    table = TableEntry(entity.table, 2, 0, "record")
    with pytest.raises(BadInput, match=r"entities\[e\].inputs: expected no list of floats, got 'history.watched'"):
        replace(WATCHED, tables=[*WATCHED.tables, table], entities=[entity]).to_json()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"max_length": 0}, "max_length: expected 1 to 65536, got 0"),
        ({"keep": "middle"}, "keep: expected one of newest, oldest"),
        ({"time_unit": "h"}, "time_unit: expected one of s, ms"),
        ({"width": 7}, "width: expected"),
        ({"name": "a.b"}, "expected a name of its own without"),
        ({"time": "item"}, "time: expected one of its inputs"),
        ({"inputs": ["item"]}, "expected lists named history.<column>, got 'item'"),
        ({"columns": []}, "columns: expected at least one"),
    ],
)
def test_contradictions_are_refused(change, message):
    with pytest.raises(BadInput, match=message):
        replace(WHOLE, sequences=[replace(WHOLE.sequences[0], **change)]).to_json()


@pytest.mark.parametrize(("key", "value"), [("table", "none"), ("kind", "id"), ("offset", 1), ("input", "odd")])
def test_columns_that_do_not_fit_are_refused(key, value):
    entry = WHOLE.sequences[0]
    columns = [replace(entry.columns[0], **{key: value}), *entry.columns[1:]]
    with pytest.raises(BadInput, match=r"manifest\.sequences\[history\]\.columns"):
        replace(WHOLE, sequences=[replace(entry, columns=columns)]).to_json()


def test_graphs_without_the_sequence_are_refused():
    with pytest.raises(BadInput, match=r"expected the sequences \['history'\], got \[\]"):
        replace(WHOLE, graphs=subgraphs(WHOLE)).to_json()


def shortened(lengths):
    """Return the version with parts for shorter histories."""
    tensors, wide = [("u0", 4)], GraphInput("history", ["rows", WHOLE.sequences[0].width], SEQUENCE)
    return replace(WHOLE, graphs=divided(WHOLE, tensors, [wide], dict.fromkeys(lengths, tensors)))


def test_parts_for_shorter_histories_are_read_as_written():
    found = Manifest.from_json(shortened([1, 2]).to_json())
    assert found == shortened([1, 2])
    assert shorter_lengths(found) == [1, 2]
    assert [i.dims for i in found.graphs["user-length2"].inputs] == [["requests", 4], ["requests", 30]]
    assert [i.source for i in found.graphs["score-length2"].inputs] == ["features", "user"]
    assert (role("user-length2"), role("score"), role("user-length0")) == (
        ("user", 2),
        ("score", 0),
        ("user-length0", 0),
    )
    assert (batch_symbol("user-length2"), batch_symbol("score-length2")) == ("requests", "rows")


@pytest.mark.parametrize(
    ("graphs", "message"),
    [
        (shortened([3]).graphs, r"expected histories shorter than 3, got \[3\]"),
        ({n: g for n, g in shortened([2]).graphs.items() if n != "score-length2"}, "expected 'score', or"),
        ({n: g for n, g in shortened([2]).graphs.items() if n != "user-length2"}, "expected 'score', or"),
        (shortened([2]).graphs | {"user-length2": shortened([1]).graphs["user-length1"]}, "expected 30 columns"),
        (
            {n: g for n, g in shortened([2]).graphs.items() if n in ("score-length2", "user-length2")},
            "expected 'score'",
        ),
    ],
)
def test_parts_that_do_not_fit_are_refused(graphs, message):
    with pytest.raises(BadInput, match=message):
        replace(WHOLE, graphs=graphs).to_json()
