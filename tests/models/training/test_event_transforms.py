"""Features of a history's events in the manifest, and their values by the served plan's transforms."""

import numpy as np
import pytest

from freshet_serving.models.config.train_config import parse_config
from freshet_serving.models.training.spec import draft
from freshet_serving.processor.columns import Ragged, Strings
from freshet_serving.processor.errors import TooLarge
from freshet_serving.processor.features.evaluation import OPS, Transforms, _flat
from freshet_serving.processor.features.limits import RequestLimits
from freshet_serving.processor.features.plan import SparsePlan
from freshet_serving.processor.package import Manifest, Transform

EVENTS = [(1, "view"), (2, "buy"), (3, "view"), (4, "buy"), (5, "view")]


@pytest.fixture(scope="module")
def manifest():
    config = parse_config({
        "model": {"name": "m", "arch": "deepfm"},
        "data": {"path": "log.parquet", "format": "parquet", "label": "clicked", "time": "ts"},
        "features": {
            "item": {"kind": "id", "side": "item"},
            "last": {"kind": "id", "from": "history.item", "take": -1},
            "bought": {"kind": "ids", "from": "history.item", "take": -2, "where": {"action": "buy"}},
            "seen": {"kind": "ids", "from": "history.item", "combiner": "mean"},
            "pairs": {"cross": ["history.item", "item"], "decay": "position"},
            "last_item": {"cross": ["last", "item"]},
        },
        "sequences": {
            "history": {"columns": {"item": "items", "action": "actions"}, "time": "times", "max_length": 4}
        },
    })  # fmt: skip
    return draft(config, {})


def columns(manifest, rows, items):
    """The columns of the transforms, by name, for histories of these lengths, with as many candidates."""
    histories = [EVENTS[:n] for n in rows]
    ids = Ragged.of([[item for item, _ in events] for events in histories] if any(rows) else [[0]])
    if not any(rows):
        ids = Ragged(np.empty(0, np.int64), np.zeros(len(rows) + 1, np.int64))
    actions = Strings.of([action for events in histories for _, action in events])
    inputs = {"history.item": ids, "history.action": Ragged(actions, ids.row_splits)}
    plan = SparsePlan(manifest)
    inputs = dict(plan.aligned(inputs)) | {"item": np.array(items, np.int64)}
    return Transforms(manifest).run(inputs)


def lists(column):
    return [column.values[a:b].tolist() for a, b in zip(column.row_splits, column.row_splits[1:])]


def test_history_is_no_input_of_the_network_and_has_no_rows(manifest):
    (entry,) = manifest.sequences
    assert (entry.columns, entry.width, entry.time) == ([], 0, "")
    assert [t.name for t in manifest.tables] == ["item", "last", "bought", "seen", "pairs", "last_item"]
    assert {f.name for f in manifest.features if f.table == "pairs"} == {"pairs", "pairs.2", "pairs.3-4"}
    assert list(manifest.fillers) == ["history.time"]
    assert Manifest.from_json(manifest.to_json()).sequences == manifest.sequences


def test_newest_events_are_those_that_max_length_keeps(manifest):
    found = columns(manifest, [0, 1, 3, 5], [7, 8, 9, 10])
    assert lists(found["last"]) == [[], [1], [3], [5]]
    assert lists(found["bought"]) == [[], [], [2], [2, 4]]


def test_where_tests_several_columns_of_a_history():
    config = parse_config({
        "model": {"name": "m", "arch": "deepfm"},
        "data": {"path": "log.parquet", "format": "parquet", "label": "clicked"},
        "features": {
            "item": {"kind": "id", "side": "item"},
            "last": {"kind": "id", "from": "history.item", "take": -1, "where": {"shop": 2, "action": "buy"}},
        },
        "sequences": {"history": {"columns": {"item": "items", "action": "actions", "shop": "shops"}}},
    })  # fmt: skip
    ids = Ragged.of([[1, 2, 3], [4]])
    actions = Ragged(Strings.of(["buy", "buy", "view", "view"]), ids.row_splits)
    shops = Ragged(np.array([2, 2, 2, 2]), ids.row_splits)
    inputs = {"history.item": ids, "history.action": actions, "history.shop": shops, "item": np.array([7, 8])}
    made = Transforms(draft(config, {})).run(inputs)["last"]
    assert lists(made) == [[2], []]


@pytest.mark.parametrize(("unit", "scale"), [("s", 1), ("ms", 1000)])
def test_pairs_of_all_ages_are_the_pairs_of_the_history(unit, scale):
    config = parse_config({
        "model": {"name": "m", "arch": "deepfm"},
        "data": {"path": "log.parquet", "format": "parquet", "label": "clicked"},
        "features": {
            "item": {"kind": "id", "side": "item"},
            "pairs": {"cross": ["history.item", "item"], "decay": "age"},
            "all": {"cross": ["history.item", "item"]},
        },
        "sequences": {"history": {"columns": {"item": "items"}, "time": "times", "time_unit": unit}},
    })  # fmt: skip
    made = draft(config, {})
    assert "history.time" in {i.name for i in made.read_inputs}
    assert made.sequences[0].time == ""
    ids = Ragged.of([[1, 2, 3, 4, 5], [6], [7, 8]])
    now = 1_700_000_000
    times = [now - 90 * 86_400, now - 10 * 86_400, now - 86_400, now - 3_600, now, -(2**62) // scale, now - 3_599, now]
    inputs = {"history.item": ids, "history.time": Ragged(np.array(times) * scale, ids.row_splits)}
    found = Transforms(made).run(inputs | {"item": np.array([1, 1, 1])})
    parts = ("pairs", "pairs.day", "pairs.week", "pairs.month", "pairs.older")
    counts = {name: np.diff(found[name].row_splits).tolist() for name in parts}
    assert counts == {
        "pairs": [1, 1, 2],
        "pairs.day": [1, 0, 0],
        "pairs.week": [1, 0, 0],
        "pairs.month": [1, 0, 0],
        "pairs.older": [1, 0, 0],
    }
    oldest_first = [id_ for name in reversed(parts) for id_ in lists(found[name])[0]]
    assert oldest_first == lists(found["all"])[0]


def test_ages_of_empty_histories_and_extreme_times():
    ids = Ragged.of([[1, 2], [3]])
    ids = Ragged(ids.values, np.array([0, 0, 2, 2, 3]))
    times = Ragged(np.array([-(2**63), 2**63 - 1, 0]), ids.row_splits)
    for window, kept in (([0, 3600], [[], [2], [], [3]]), ([3600, 2**62], [[], [], [], []])):
        made = OPS["aged"](Transform("t", "aged", ["r", "times"], window), [_flat(ids, 1), _flat(times, 1)])
        assert lists(Ragged(made.values, made.splits)) == kept


def test_pairs_of_all_distances_are_the_pairs_of_the_history(manifest):
    found = columns(manifest, [0, 1, 3, 5], [7, 8, 9, 10])
    counts = {name: np.diff(found[name].row_splits).tolist() for name in ("pairs", "pairs.2", "pairs.3-4")}
    assert counts == {"pairs": [0, 1, 1, 1], "pairs.2": [0, 0, 1, 1], "pairs.3-4": [0, 0, 1, 2]}
    assert lists(found["pairs"]) == lists(found["last_item"])


def test_one_history_is_crossed_with_every_candidate(manifest):
    once, each = columns(manifest, [3], [7, 8, 9]), columns(manifest, [3, 3, 3], [7, 8, 9])
    for name in ("pairs", "pairs.2", "pairs.3-4", "last_item"):
        assert lists(once[name]) == lists(each[name])


def test_request_of_too_many_pairs_is_refused_by_name(manifest):
    plan = SparsePlan(manifest)
    items = Ragged.of([[1, 2, 3, 4]])
    inputs = {"history.item": items, "history.action": Ragged(Strings.of(["buy"] * 4), items.row_splits)}
    inputs["item"] = np.arange(100, dtype=np.int64)
    assert plan.bind_inputs(inputs, RequestLimits(max_ids=500)).rows == 100
    with pytest.raises(TooLarge, match="max_ids: expected at most 499 crossed ids per request, got 500 or more"):
        plan.bind_inputs(inputs, RequestLimits(max_ids=499))
