"""Sequences of a manifest: written and read again, left out where there are none, refused where they do not fit."""

import json
from dataclasses import replace

import pytest

from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.package import (
    GraphInput,
    Manifest,
    batch_symbol,
    divided,
    role,
    shorter_lengths,
    subgraphs,
)
from freshet_serving.processor.package.sequences import SEQUENCE
from tests.models.zoo.sequence_models import manifest

WHOLE = manifest("a", 3, timed=True)


def test_sequences_are_read_as_written():
    assert Manifest.from_json(WHOLE.to_json()).sequences == WHOLE.sequences
    assert "sequences" not in json.loads(replace(WHOLE, sequences=[]).to_json())


def test_columns_of_sequences_are_lookups_without_a_combiner():
    found = WHOLE.lookups[len(WHOLE.features) :]
    assert [(f.name, f.table, f.combiner, f.max_length, f.side) for f in found] == [
        ("history.item", "item", "none", 3, "user"),
        ("history.action", "action", "none", 3, "user"),
    ]


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
