"""Buckets: every row can be found again, and bytes from outside can do no harm."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from freshet_serving.processor.errors import BadInput, Corrupt
from freshet_serving.processor.extensions.remote_rows.bucket_bytes import FOUND, LOST, NOWHERE
from freshet_serving.processor.extensions.remote_rows.layout import (
    COMPLETE,
    PUSHING,
    ROWS_PER_BUCKET,
    SHARDS,
    StoredTable,
    parse_marker,
)
from tests.support.packages import manifest

keys = st.integers(-(2**63), 2**63 - 1) | st.integers(0, 20)


def table(rows, dim=3):
    return StoredTable("m", 1, "t", rows, dim, "float32", "0badcafe", max(1, -(-rows // ROWS_PER_BUCKET)))


def packed(stored, ids):
    rows = np.arange(len(ids) * stored.dim, dtype=np.float32).reshape(len(ids), stored.dim)
    return rows, {
        key: value for chunk in stored.pack(ids, rows, np.empty(0, np.float32)) for key, value in chunk.items()
    }


@settings(max_examples=80, deadline=None)
@given(ids=st.lists(keys, unique=True, max_size=200), asked=st.lists(keys, min_size=1, max_size=40))
def test_exactly_the_stored_rows_are_found_again(ids, asked):
    ids = np.array(ids, np.int64)
    stored = table(len(ids))
    rows, values = packed(stored, ids)
    assert len(values) == stored.buckets
    asked = np.concatenate([np.array(asked, np.int64), ids[:10]])
    wanted, position = stored.plan(asked)
    assert len(set(wanted)) == len(wanted)
    got, status = stored.unpack([values[key] for key in wanted], position, asked)
    where = {int(i): n for n, i in enumerate(ids)}
    for i, row, s in zip(asked.tolist(), got, status.tolist()):
        assert s == (FOUND if i in where else NOWHERE)
        if s == FOUND:
            np.testing.assert_array_equal(row.view(np.float32), rows[where[i]])


@settings(max_examples=100, deadline=None)
@given(data=st.data(), count=st.integers(1, 30))
def test_changed_bucket_is_lost_or_holds_valid_rows(data, count):
    ids = np.arange(count)
    stored = table(count)
    _, values = packed(stored, ids)
    wanted, position = stored.plan(ids)
    raw = [bytearray(values[key]) for key in wanted]
    victim = data.draw(st.integers(0, len(raw) - 1))
    kind = data.draw(st.sampled_from(["cut", "grow", "head", "garbage"]))
    if kind == "cut":
        raw[victim] = raw[victim][: data.draw(st.integers(0, len(raw[victim]) - 1))]
    elif kind == "grow":
        raw[victim] += data.draw(st.binary(min_size=1, max_size=30))
    elif kind == "head":
        raw[victim][data.draw(st.integers(0, 7))] ^= 1 << data.draw(st.integers(0, 7))
    else:
        raw[victim] = bytearray(data.draw(st.binary(max_size=60)))
    got, status = stored.unpack([bytes(v) for v in raw], position, ids)
    assert got.shape == (count, stored.row_nbytes)
    assert (status[position == victim] == LOST).all()
    assert (status[position != victim] == FOUND).all()


def test_keys_name_model_version_table_and_shard_tag():
    stored = table(5000)
    assert stored.marker_key == b"freshet:{m/1/t}"
    assert stored.keys(np.array([0, 5, 129])) == [
        b"freshet:{m/1/t/00}:0",
        b"freshet:{m/1/t/05}:5",
        b"freshet:{m/1/t/01}:129",
    ]
    every = [key for chunk in stored.all_keys() for key in chunk]
    assert len(set(every)) == stored.buckets == 625
    assert len({key.split(b"}")[0] for key in every}) == SHARDS


def test_empty_table_has_one_bucket():
    stored = table(0)
    _, values = packed(stored, np.empty(0, np.int64))
    assert [len(v) for v in values.values()] == [8]


def test_marker_round_trips():
    stored = table(10)
    for state in (PUSHING, COMPLETE):
        assert parse_marker(stored.marker(state)) == (stored, state)


good = table(10).marker(COMPLETE)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"null",
        b"\xff",
        b"[" * 10_000,
        good[:-1],
        good.replace(b'"rows": 10', b'"rows": "10"'),
        good.replace(b'"rows": 10', b'"rows": true'),
        good.replace(b'"buckets": 2', b'"buckets": 0'),
        good.replace(b'"buckets": 2', b'"buckets": 9999999999'),
        good.replace(b"complete", b"done"),
        good.replace(b"float32", b"float64"),
        good.replace(b"freshet-rows/1", b"freshet-rows/2"),
        good.replace(b'"table"', b'"tables"'),
    ],
)
def test_foreign_marker_is_refused(data):
    with pytest.raises(Corrupt, match=r"the row store's marker (cannot be read|has another format)"):
        parse_marker(data)


def test_table_missing_from_the_manifest_is_refused():
    with pytest.raises(BadInput, match="table does not exist in model 'small': 'colour'; expected one of user, tag"):
        StoredTable.of(manifest(), "colour")
