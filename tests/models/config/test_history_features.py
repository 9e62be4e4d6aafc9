"""Features that are made of the events of a history: kinds, sides, decay, and one line for what does not fit."""

from pathlib import Path

import pytest

from freshet_serving.models.config.train_config import load_config, parse_config
from freshet_serving.processor.errors import BadInput

HISTORY = {"columns": {"item": "items", "action": "actions"}, "max_length": 20}
PLAIN = {"user": {"kind": "id", "side": "user"}, "item": {"kind": "id", "side": "item"}, "hour": {"transform": "hour"}}
EQUAL = {"cross": ["history.item", "item"], "equal": True}
LAST = {"kind": "id", "from": "history.item", "take": -1}


def parse(arch="deepfm", history=HISTORY, **features):
    config = parse_config({
        "model": {"name": "m", "arch": arch},
        "data": {"path": "log.parquet", "format": "parquet", "label": "clicked", "time": "ts"},
        "features": PLAIN | features,
        "sequences": {"history": history},
    })  # fmt: skip
    return {f.name: f for f in config.features}


def test_last_event_is_a_list_of_the_user():
    last = parse(last=LAST)["last"]
    assert (last.kind, last.side, last.window, last.reads) == ("ids", "user", (0, 1), None)
    several = parse(bought=LAST | {"kind": "ids", "take": -3, "where": {"action": 2}})["bought"]
    assert (several.window, several.where) == ((0, 3), {"action": 2})


def test_strings_of_list_columns_follow_from_the_features():
    features = parse(last=LAST | {"kind": "string", "where": {"action": "buy"}})
    assert [features[f"history.{key}"].kind for key in ("item", "action")] == ["strings", "strings"]


def test_cross_is_the_users_only_if_all_its_parts_are():
    features = parse(
        last=LAST,
        pairs={"cross": ["history.item", "item"]},
        of_user={"cross": ["last", "user"]},
        by_hour={"cross": ["last", "hour"]},
        plain={"cross": ["user", "hour"]},
    )
    sides = {name: (features[name].side, features[name].kind) for name in ("pairs", "of_user", "by_hour", "plain")}
    assert sides == {
        "pairs": ("item", "ids"),
        "of_user": ("user", "ids"),
        "by_hour": ("item", "ids"),
        "plain": ("context", "id"),
    }


def test_decay_parts_events_by_their_distance_from_the_newest():
    features = parse(pairs={"cross": ["history.item", "item"], "decay": "position"})
    windows = {f.name: f.window for f in features.values() if f.table == "pairs"}
    assert windows == {
        "pairs": (0, 1),
        "pairs.2": (1, 1),
        "pairs.3-4": (2, 2),
        "pairs.5-8": (4, 4),
        "pairs.9-16": (8, 8),
        "pairs.17-20": (16, 4),
    }


def test_cross_takes_the_newest_events():
    pairs = {"cross": ["history.item", "item"], "take": -3}
    assert parse(pairs=pairs)["pairs"].window == (0, 3)
    parts = parse(pairs=pairs | {"decay": "position"})
    assert {f.name: f.window for f in parts.values() if f.cross} == {
        "pairs": (0, 1),
        "pairs.2": (1, 1),
        "pairs.3": (2, 1),
    }


def test_decay_parts_events_by_their_age():
    features = parse(history=HISTORY | {"time": "times"}, pairs={"cross": ["history.item", "item"], "decay": "age"})
    windows = {f.name: f.window for f in features.values() if f.table == "pairs"}
    assert list(windows) == ["pairs", "pairs.day", "pairs.week", "pairs.month", "pairs.older"]
    ends = [end for window in windows.values() for end in window]
    assert ends[1:-1:2] == ends[2::2] == [3_600, 86_400, 604_800, 2_592_000]


def test_equal_events_are_one_id_of_the_candidate():
    made = parse(a=EQUAL | {"take": -3, "decay": "position"})
    assert [(f.name, f.kind, f.side, f.window) for f in made.values() if f.equal] == [
        ("a", "id", "item", (0, 1)),
        ("a.2", "id", "item", (1, 1)),
        ("a.3", "id", "item", (2, 1)),
    ]


def test_network_over_features_reads_no_history_but_its_features():
    assert parse(last=LAST)["history.item"].dim == 0
    shared = HISTORY | {"tables": {"item": "item"}}
    assert parse("din", shared, last=LAST)["history.item"].dim == 16


@pytest.mark.parametrize(
    ("features", "message"),
    [
        ({"last": LAST | {"take": -2}}, "features.last.take: expected -1 for kind 'id', or kind 'ids', got '-2'"),
        ({"last": LAST | {"take": 1}}, "features.last.take: expected -65536 to 0, got 1"),
        ({"last": LAST | {"kind": "float"}}, "features.last.kind: expected ids or strings"),
        ({"last": LAST | {"side": "item"}}, "features.last.side: expected 'user', whose history it is"),
        (
            {"last": LAST | {"kind": "string", "where": {"action": 2}}, "two": LAST},
            "features.two.kind: expected string",
        ),
        ({"last": LAST | {"where": {"price": 2}}}, "features.last.where: expected one of item, action, got 'price'"),
        (
            {"last": LAST | {"where": {"item": 1, "action": "x"}}, "two": LAST | {"where": {"action": 2}}},
            "features.two.where.action: expected a string, got '2'",
        ),
        (
            {"last": LAST | {"where": {"action": 2}}, "two": LAST | {"where": {"action": "buy"}}},
            "features.last.where.action: expected a string, got '2'",
        ),
        ({"last": {"kind": "id", "take": -1}}, "features.last.take: expected a column of a history in from or cross"),
        ({"a": {"cross": ["user", "item"], "decay": "position"}}, "features.a.decay: expected a cross with one column"),
        (
            {"a": {"cross": ["history.item", "item"], "decay": "age"}},
            "features.a.decay: expected sequences.history.time",
        ),
        ({"a": {"kind": "id", "equal": True}}, "features.a.equal: expected a cross of a column of a history and a"),
        (
            {"a": {"cross": ["history.item", "item", "hour"], "equal": True}, "hour": {"kind": "ids"}},
            "features.a.equal:",
        ),
        ({"a": {"cross": ["history.item", "last"], "equal": True}, "last": LAST}, "features.a.equal: expected a cross"),
        ({"a": EQUAL | {"buckets": 9}}, "features.a.buckets: expected none beside equal, got '9'"),
        ({"a": EQUAL | {"kind": "ids"}}, "features.a.kind: expected 'id', which this cross makes, got 'ids'"),
        (
            {"a": {"cross": ["user", "item"], "equal": True}},
            "features.a.equal: expected a cross of a column of a history",
        ),
        (
            {"a": {"cross": ["history.action", "item"], "equal": True}, "last": LAST | {"where": {"action": "x"}}},
            "features.a.equal: expected history.action and item of one kind",
        ),
        (
            {"a": {"cross": ["history.price", "item"]}},
            "features.a.cross: expected one of user, item, hour, history.item",
        ),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(features, message):
    with pytest.raises(BadInput) as refused:
        parse(**features)
    assert str(refused.value).startswith(message)


def test_example_of_crosses_is_a_valid_file():
    config = load_config(Path(__file__).parents[3] / "examples" / "crosses.toml")
    assert [f.name for f in config.features if f.table == "pairs"][-1] == "pairs.17-20"
