"""Messages as rows: every form gives the same rows, and what is no row is told by its place and left out."""

import json

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from freshet_serving.models.data.canonical import CanonicalColumns, join_parts
from freshet_serving.models.streams import stream_rows
from freshet_serving.models.streams.stream_rows import MessageRows, RejectedRows, sound_parts
from tests.models.streams.made import SCHEMA, cells_of, rows_of, said, table_of

COLUMNS = CanonicalColumns(SCHEMA, text=False)


def arrow_of(table):
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=3)
    return sink.getvalue().to_pybytes()


def read(parts):
    """(rows, [(number of the row, why)]) of what came."""
    rows, refused, first = [], [], 0
    for part in parts:
        if isinstance(part, RejectedRows):
            refused.append((first, part.why))
        else:
            for row, made in sound_parts(part, 0, len(part)):
                if isinstance(made, str):
                    refused.append((first + row, made))
                else:
                    rows += said(COLUMNS.batch(join_parts([made]), 0))
        first += len(part)
    return rows, refused


def messages(*payloads):
    return MessageRows(SCHEMA).of_messages([(f"message {n}", payload) for n, payload in enumerate(payloads)])


def test_json_rows_lists_and_arrow_streams_give_equal_rows():
    rows = rows_of(0, 10)
    one_by_one = [json.dumps(row).encode() for row in rows]
    assert read(messages(*one_by_one)) == (rows, [])
    assert read(messages(json.dumps(rows).encode())) == (rows, [])
    assert read(messages(arrow_of(table_of(0, 10)))) == (rows, [])
    mixed = [*one_by_one[:2], json.dumps(rows[2:5]).encode(), arrow_of(table_of(5, 4)), one_by_one[9]]
    assert read(messages(*mixed)) == (rows, [])


def test_text_fields_or_one_message_field_give_equal_rows():
    rows = rows_of(0, 6)
    entries = [("a", cells_of(rows[0])), ("b", {b"json": json.dumps(rows[1:3]).encode()})]
    entries += [("c", {b"arrow": arrow_of(table_of(3, 2))}), ("d", cells_of(rows[5]))]
    assert read(MessageRows(SCHEMA).of_cells(entries)) == (rows, [])


def test_missing_fields_are_null_and_times_may_be_iso_dates():
    row = {"user": 7, "clicked": True, "ts": "2001-09-09T01:46:40Z"}
    (found,), refused = read(messages(json.dumps(row).encode()))
    assert refused == []
    assert (found["user"], found["city"], found["tags"], found["clicked"], found["ts"]) == (7, "", [], 1.0, 1e9)
    assert found["price"] != found["price"]
    cells = {b"user": b"7", b"clicked": b"1", b"ts": b"2001-09-09 01:46:40", b"tags": b""}
    (found,), refused = read(MessageRows(SCHEMA).of_cells([("a", cells)]))
    assert (refused, found["ts"], found["tags"]) == ([], 1e9, [])


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"user": None}, "column 'user': expected an id, got a null at message 2"),
        ({"user": "seven"}, "column 'user'"),
        ({"user": 1.5}, "column 'user'"),
        ({"user": 2**70}, "expected a JSON object, a list of them or an Arrow stream|column 'user'"),
        ({"clicked": 2}, "column 'clicked': expected a label from 0 to 1, got 2.0 at message 2"),
        ({"clicked": None}, "column 'clicked': expected a label, got a null at message 2"),
        ({"ts": "soon"}, "column 'ts'"),
        ({"tags": 3}, "column 'tags'"),
        ({"tags": ["a"]}, "column 'tags'"),
        ({"city": 3}, "column 'city'"),
    ],
)
def test_bad_row_is_skipped_with_its_position(change, why):
    rows = rows_of(0, 5)
    given_rows = [row | change if n == 2 else row for n, row in enumerate(rows)]
    found, refused = read(messages(*[json.dumps(row).encode() for row in given_rows]))
    assert found == rows[:2] + rows[3:]
    ((place, told),) = refused
    assert place == 2
    assert any(part in told for part in why.split("|")), told


@pytest.mark.parametrize(
    "payload", [b"", b"3", b'"a"', b"[1]", b"{", b"\xff\xff\xff\xff", b"\xff\xff\xff\xff\x10\x00", b"[" * 99999]
)
def test_malformed_message_is_one_skipped_row(payload):
    rows = rows_of(0, 2)
    found, refused = read(messages(json.dumps(rows[0]).encode(), payload, json.dumps(rows[1]).encode()))
    assert found == rows
    assert [place for place, _ in refused] == [1]
    assert "message 1: " in refused[0][1]


def test_overlong_message_is_not_read(monkeypatch):
    monkeypatch.setattr(stream_rows, "MAX_MESSAGE_NBYTES", 20)
    (part,) = messages(json.dumps(rows_of(0, 1)).encode())
    assert part.why.startswith("message 0: expected messages of at most 20 bytes, got ")


def test_arrow_stream_with_missing_or_mistyped_column_is_reported():
    (part,) = messages(arrow_of(table_of(0, 3).drop_columns(["user"])))
    assert part.why == "message 0: column 'user' does not exist"
    wrong = table_of(0, 3).set_column(0, "user", pa.array(["a", "b", "c"]))
    (part,) = messages(arrow_of(wrong))
    assert "expected integers for kind 'id', got a column of type string" in part.why


@settings(deadline=None, max_examples=40)
@given(st.data())
def test_corrupted_arrow_stream_never_gives_more_rows(data):
    whole = bytearray(arrow_of(table_of(0, 8)))
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(4, len(whole) - 1))] = data.draw(st.integers(0, 255))
    rows, refused = read(messages(bytes(whole)))
    assert len(rows) <= 8
    assert len(refused) <= 8


@settings(deadline=None, max_examples=40)
@given(st.sets(st.integers(0, 40)), st.integers(1, 41))
def test_every_row_is_returned_or_rejected_once_in_order(bad, count):
    rows = [row | ({"clicked": 9} if row["user"] in bad else {}) for row in rows_of(0, count)]
    found, refused = read(messages(*[json.dumps(row).encode() for row in rows]))
    assert [row["user"] for row in found] == [n for n in range(count) if n not in bad]
    assert [place for place, _ in refused] == sorted(n for n in bad if n < count)


def test_event_in_milliseconds_is_skipped_and_the_rest_learned():
    rows = rows_of(0, 9)
    rows[4]["ts"] = 1.7e12
    payloads = [json.dumps(row).encode() for row in rows]
    for came in (messages(*payloads), messages(json.dumps(rows).encode())):
        found, refused = read(came)
        assert [row["user"] for row in found] == [0, 1, 2, 3, 5, 6, 7, 8]
        assert [number for number, _ in refused] == [4]
        assert "column 'ts': expected a time in seconds since 1970, got 1700000000000.0 at " in refused[0][1]


def test_json_ids_are_whole_numbers_of_64_bits():
    row = rows_of(0, 1)[0]
    big = row | {"user": 2**64 - 1, "tags": [2**63, 1]}
    (read_row,), refused = read(messages(json.dumps(big).encode()))
    assert (read_row["user"], read_row["tags"], refused) == (-1, [-(2**63), 1], [])
    (whole,), _ = read(messages(json.dumps(row | {"user": 5.0}).encode()))
    assert whole["user"] == 5
    for user in (5.5, 2**64, 2.0**53):
        _, ((_, why),) = read(messages(json.dumps(row | {"user": user}).encode()))
        assert "column 'user'" in why
