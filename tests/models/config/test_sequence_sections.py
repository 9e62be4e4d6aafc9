"""[sequences.*] of a training file: columns that share tables, defaults, and one line for what does not fit."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from freshet_serving.models.config.train_config import parse_config
from freshet_serving.models.data.source import Field
from freshet_serving.models.training.spec import draft
from freshet_serving.processor.columns import Ragged, Strings
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.extensions.online_features.section import groups_of
from freshet_serving.processor.features.plan import SparsePlan
from freshet_serving.processor.package import UNREAD

FILE = {
    "model": {"name": "m", "arch": "din"},
    "data": {"path": "log.parquet", "format": "parquet", "label": "clicked", "time": "ts"},
    "features": {
        "user_id": {"kind": "id", "side": "user"},
        "item_id": {"kind": "string", "side": "item", "dim": 8},
        "price": {"kind": "float"},
    },
}


def parse(arch="din", **section):
    return parse_config(FILE | {"model": FILE["model"] | {"arch": arch}, "sequences": {"history": section}})


def test_columns_share_tables_and_become_inputs_named_after_the_sequence():
    config = parse(
        "hstu",
        columns={"item": "hist_items", "action": "hist_actions"},
        tables={"item": "item_id"},
        time="hist_times",
        time_unit="ms",
        max_length=20,
    )
    manifest = draft(config, {})
    assert {i.name: (i.dtype, i.ragged) for i in manifest.inputs if i.ragged} == {
        "history.item": ("string", True),
        "history.action": ("int64", True),
        "history.time": ("int64", True),
    }
    (entry,) = manifest.sequences
    assert [(c.name, c.kind, c.table, c.offset, c.width) for c in entry.columns] == [
        ("history.item", "strings", "item_id", 0, 9 * 20),
        ("history.action", "ids", "history.action", 9 * 20, 17 * 20),
    ]
    assert (entry.time, entry.time_unit, entry.keep, entry.width) == ("history.time", "ms", "newest", 27 * 20)
    assert [t.name for t in manifest.tables] == ["user_id", "item_id", "history.action"]
    assert [f.reads.name for f in config.features if f.sequence] == ["hist_items", "hist_actions", "hist_times"]


def test_floats_are_columns_without_a_table_behind_the_others():
    given = {"columns": {"item": "hist_items"}, "tables": {"item": "item_id"}, "floats": {"paid": "hist_prices"}}
    config = parse(**given, max_length=20)
    (entry,) = draft(config, {"history.paid": (2.0, 0.5)}).sequences
    assert [(c.name, c.kind, c.table, c.offset, c.width) for c in entry.columns] == [
        ("history.item", "strings", "item_id", 0, 9 * 20),
        ("history.paid", "floats", "", 9 * 20, 20),
    ]
    assert (entry.inputs, entry.width) == (["history.item", "history.paid"], 10 * 20)
    assert (entry.columns[1].mean, entry.columns[1].scale) == (2.0, 0.5)
    inputs = {i.name: (i.dtype, i.ragged) for i in draft(config, {}).inputs}
    assert inputs["history.paid"] == ("float32", True)
    assert [f.reads for f in config.features if f.sequence] == [
        Field("hist_items", "strings"),
        Field("hist_prices", "floats"),
    ]


def test_floats_of_an_event_log_are_any_column_of_numbers_or_a_label():
    given = {"columns": {"item": "item_id"}, "tables": {"item": "item_id"}, "from_events": "user_id"}
    config = parse(**given, floats={"paid": "price", "watched": "seconds", "liked": "clicked"})
    read = {f.name: f.reads for f in config.features if f.kind == "floats"}
    assert read == {
        "history.paid": Field("price", "float"),
        "history.watched": Field("seconds", "float"),
        "history.liked": None,
    }


def test_ratings_of_movielens_are_floats_of_histories_alone():
    movies = {"model": FILE["model"], "data": {"path": "ml", "format": "movielens"}}
    history = {"columns": {"item": "movie_id"}, "tables": {"item": "movie_id"}, "from_events": "user_id"}
    config = parse_config(movies | {"sequences": {"h": history | {"floats": {"rating": "rating"}}}})
    assert [f.reads for f in config.features if f.kind == "floats"] == [Field("rating", "float")]
    with pytest.raises(BadInput, match=r"features.rating: expected a column other than data.label, got 'rating'"):
        parse_config(movies | {"features": {"rating": {"kind": "float"}}})


@pytest.fixture
def log(tmp_path):
    """A training file over an event log with an action by name, one by number, and what was paid."""
    columns = {"user_id": [1], "item_id": ["a"], "price": [1.0], "clicked": [1], "ts": [5]}
    table = pa.table(columns | {"action": ["buy"], "action_id": [3], "paid": [2.5]})
    pq.write_table(table, tmp_path / "log.parquet")
    return FILE | {"data": FILE["data"] | {"path": str(tmp_path / "log.parquet")}}


def test_columns_of_an_event_log_need_not_be_features(log):
    columns = {"item": "item_id", "action": "action", "kind": "action_id"}
    history = {"columns": columns, "tables": {"item": "item_id"}, "from_events": "user_id"}
    config = parse_config(log | {"sequences": {"history": history}})
    assert {f.name: f.reads for f in config.features if f.sequence} == {
        "history.item": Field("item_id", "string"),
        "history.action": Field("action", "string"),
        "history.kind": Field("action_id", "id"),
    }
    manifest = draft(config, {})
    assert {i.name: i.dtype for i in manifest.inputs if i.ragged} == {
        "history.item": "string", "history.action": "string", "history.kind": "int64",
    }  # fmt: skip
    assert [i.name for i in manifest.inputs if not i.ragged] == ["user_id", "item_id", "price"]


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (
            "paid",
            r"columns: expected a column of ids or strings \(sequences.history.floats takes numbers\), got 'paid'",
        ),
        ("clicked", "columns: expected columns other than data.label, time and weight, got 'clicked'"),
        ("acton", "column 'acton': expected exactly one in log.parquet, got 0"),
    ],
)
def test_column_that_cannot_be_an_event_is_refused(log, column, message):
    history = {"columns": {"i": column}, "from_events": "user_id"}
    with pytest.raises(BadInput, match=message):
        parse_config(log | {"sequences": {"history": history}})


def test_times_that_the_network_does_not_read_may_be_left_out():
    history = {"columns": {"item": "hist_items"}, "tables": {"item": "item_id"}, "time": "hist_times"}
    types = {"hist_items": "string_list", "hist_times": "int64_list"}
    online = {"user": {"key": "user_id", "format": "hash", "features": [*types], "types": types}}
    inputs, filled, optional = {}, {}, {}
    for arch in ("din", "hstu"):
        file = FILE | {"model": FILE["model"] | {"arch": arch}, "online_features": online}
        manifest = draft(parse_config(file | {"sequences": {"history": history}}), {})
        inputs[arch] = [i.name for i in manifest.inputs if i.ragged]
        filled[arch] = [f.input for group in groups_of(manifest) for f in group.features]
        assert manifest.sequences[0].inputs == inputs[arch]
        assert manifest.sequences[0].time == ("history.time" if arch == "hstu" else "")
        optional[arch] = [name for name, filler in manifest.fillers.items() if filler.kind == UNREAD]
    assert inputs["din"] == inputs["hstu"] == filled["hstu"] == ["history.item", "history.time"]
    assert filled["din"] == ["history.item"]
    assert optional == {"din": ["history.time"], "hstu": []}


@pytest.mark.parametrize(
    "times",
    [
        {},
        {"history.time": Ragged.of([[7, 8]])},
        {"history.time": np.array([7, 8]), "history.row_splits": np.array([0, 2])},
        {"history.time": np.array([[7, 8, 0]]), "history.lengths": np.array([2])},
    ],
)
def test_request_may_have_times_that_the_network_does_not_read(times):
    manifest = draft(parse(columns={"item": "hist_items"}, tables={"item": "item_id"}, time="hist_times"), {})
    items = Strings.of(["a", "b", ""] if "history.lengths" in times else ["a", "b"])
    history = {"history.item": items if len(times) == 2 else Ragged(items, np.array([0, 2]))}
    candidates = {"user_id": np.array([1]), "item_id": Strings.of(["a", "c"]), "price": np.ones(2, np.float32)}
    bound = SparsePlan(manifest).bind_inputs(history | candidates | times)
    assert (bound.rows, bound.ids) == (2, 5)


EVENTS = {"columns": {"i": "item_id"}, "from_events": "user_id"}
LISTS = {"columns": {"i": "hist_items"}, "tables": {"i": "item_id"}}


def test_file_without_sequences_has_none():
    assert draft(parse_config(FILE | {"model": {"name": "m"}}), {}).sequences == []


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({}, "sequences.history.columns: expected a table of strings, got nothing"),
        ({"columns": {}}, "sequences.history.columns: expected at least one column"),
        ({"columns": ["a"]}, "sequences.history.columns: expected a table of strings, got"),
        ({"columns": {"time": "a"}}, "names of letters, digits, '_' other than time"),
        ({"columns": {"i": "a"}, "tables": {"j": "item_id"}}, "history.tables: expected one of i, got 'j'"),
        ({"columns": {"i": "a"}, "floats": {"i": "b"}}, "history.floats: expected names that columns does not have"),
        ({"columns": {"i": "a"}, "floats": {"time": "b"}}, "names of letters, digits, '_' other than time"),
        ({"columns": {"i": "a"}, "floats": {"f": "a"}}, "floats: expected a column of kind 'floats', got 'a'"),
        ({"columns": {"i": "a"}, "floats": {"f": "ts"}}, "floats: expected columns of numbers other than data.time"),
        ({"columns": {"i": "a"}, "floats": ["b"]}, "sequences.history.floats: expected a table of strings, got"),
        ({"columns": {}, "floats": {"f": "b"}}, "sequences.history.columns: expected at least one column"),
        ({"columns": {"i": "a"}, "max_length": 0}, "max_length: expected 1 to 65536, got 0"),
        ({"columns": {"i": "a"}, "keep": "new"}, "keep: expected one of newest, oldest"),
        ({"columns": {"i": "a"}, "time_unit": "h"}, "time_unit: expected one of s, ms"),
        ({"columns": {"i": "a"}, "where": "clicked"}, "where: only with from_events"),
        ({"columns": {"i": "a"}, "ties": "file"}, "ties: only with from_events"),
        ({"columns": {"i": "a"}, "ttl_s": 60.0}, "ttl_s: only with from_events"),
        (EVENTS | {"ttl_s": -1.0}, "ttl_s: expected 0 or more seconds"),
        (EVENTS | {"ttl_s": 5.0, "keep": "oldest"}, "ttl_s: expected keep = 'newest' with it"),
        (EVENTS | {"memory_mb": 0}, "memory_mb: expected"),
        (EVENTS | {"floats": {"f": "user_id"}}, "history.floats: expected a column of kind 'float', got 'user_id'"),
        (EVENTS | {"where": "x"}, "where: expected one of clicked, price"),
        (EVENTS | {"time": "t"}, "time: expected data.time, 'ts', got 't'"),
        (EVENTS | {"guest": "0"}, "history.guest: expected an integer"),
        (EVENTS | {"padding": ""}, "padding: only for list columns"),
        (LISTS | {"guest": 0}, "history.guest: only with from_events"),
        (LISTS | {"padding": 1.5}, "history.padding: expected an integer or a string, got a number"),
        (
            LISTS | {"padding": 0},
            "history.padding: expected a string of at most 256 characters, as the column has, got '0'",
        ),
        ({"columns": {"i": "item_id"}, "from_events": "user"}, "from_events: expected one of item_id, user_id"),
        ({"columns": {"i": "a"}, "sise": 3}, "sise: unknown key; expected one of columns, tables"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(section, message):
    with pytest.raises(BadInput, match=message):
        parse(**section)


def test_followed_data_may_have_sequences():
    followed = FILE | {"data": FILE["data"] | {"follow": True}}
    config = parse_config(
        followed | {"sequences": {"history": {"columns": {"item": "hist"}, "tables": {"item": "item_id"}}}}
    )
    assert list(config.sequences) == ["history"]


def test_name_with_a_dot_is_refused():
    with pytest.raises(BadInput, match=r"expected a name of letters, digits, '_', '-' other than x, got 'a.b'"):
        parse_config(FILE | {"sequences": {"a.b": {"columns": {"item": "hist"}}}})


@pytest.mark.parametrize(("padding", "column"), [(0, "hist_users"), ("<pad>", "hist_items")])
def test_padding_reaches_the_manifest(padding, column):
    table = {"hist_users": "user_id", "hist_items": "item_id"}[column]
    columns = {"item": "hist_items"} if column == "hist_items" else {"user": column, "item": "hist_items"}
    config = parse(columns=columns, tables={"item": "item_id"} | {next(iter(columns)): table}, padding=padding)
    (entry,) = draft(config, {}).sequences
    assert (entry.padding, entry.inputs[0]) == (padding, f"history.{next(iter(columns))}")


def sides(**features):
    file = FILE | {"model": {"name": "m", "arch": "own:network"}, "features": FILE["features"] | features}
    history = {"columns": {"item": "hist_items"}, "tables": {"item": "item_id"}}
    return {f.name: f.side for f in parse_config(file | {"sequences": {"history": history}}).features}


@pytest.mark.parametrize(("said", "side"), [({}, "item"), ({"side": "context"}, "context"), ({"side": "user"}, "user")])
def test_feature_of_a_sequences_table_is_the_candidates_unless_it_says_otherwise(said, side):
    assert sides(item_id={"kind": "string", "dim": 8} | said)["item_id"] == side


def test_no_side_is_implied_where_several_features_share_the_table():
    last = {"kind": "string", "table": "item_id", "dim": 8}
    made = sides(item_id={"kind": "string", "dim": 8}, last_item=last)
    assert (made["item_id"], made["last_item"]) == ("context", "context")
