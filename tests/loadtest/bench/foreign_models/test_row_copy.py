"""The check on networks of a few lines, whose rows follow in every use, in some, in none; then on a package."""

from dataclasses import replace

import numpy as np
import pytest

from freshet_serving.processor.engine import PredictRequest, Processor, ProcessorConfig
from freshet_serving.processor.errors import BadInput
from loadtest.bench.foreign_models.built import TableUse
from loadtest.bench.foreign_models.row_copy import (
    CONSTANT,
    FOLLOWS,
    HALF,
    REFUSED,
    UNTOLD,
    CopiedRow,
    check_rows,
    publish_copies,
    untouched,
)
from loadtest.bench.foreign_models.trial import columns
from tests.support.packages import write_package

ITEM, HISTORY = TableUse("item", "item"), TableUse("item", "history", 0)
INPUTS = {"item": np.array([3, 4, 5]), "history": np.array([[3, 4], [4, 5], [5, 3]])}


class Network:
    """Scores of an item and a history by one table; a delta may reach the rows of each, or not."""

    def __init__(self, item=True, history=True):
        rows = np.random.default_rng(1).standard_normal(6).astype(np.float32)
        self.item, self.history = rows.copy(), rows.copy()
        self.reached = [rows for rows, reached in ((self.item, item), (self.history, history)) if reached]

    def ask(self, inputs):
        return (self.item[inputs["item"]] + 0.5 * self.history[inputs["history"]].mean(1))[:, None]

    def publish(self):
        for rows in self.reached:
            rows[1] = rows[2]
        return {}


@pytest.mark.parametrize(
    ("item", "history", "verdict", "left"),
    [
        (True, True, FOLLOWS, []),
        (True, False, HALF, ["history"]),
        (False, True, HALF, ["item"]),
        (False, False, CONSTANT, ["item", "history"]),
    ],
)
def test_verdict_says_which_uses_follow(item, history, verdict, left):
    network = Network(item, history)
    found = check_rows(network.ask, network.publish, INPUTS, [ITEM, HISTORY])
    assert found == [CopiedRow("item", verdict, left)]


def test_use_that_follows_in_part_is_half_served():
    """A place where the table is read twice, once as constants: the scores move, and stay different."""
    network = Network()
    kept = network.item.copy()
    found = check_rows(
        lambda inputs: network.ask(inputs) + kept[inputs["item"]][:, None], network.publish, INPUTS, [ITEM]
    )
    assert found == [CopiedRow("item", HALF, ["item"])]


def test_use_that_the_model_ignores_is_named():
    network = Network()
    use = TableUse("item", "history", 1)
    found = check_rows(lambda inputs: network.item[inputs["item"]][:, None], network.publish, INPUTS, [ITEM, use])
    assert found == [CopiedRow("item", UNTOLD, ["history"])]


def test_tables_are_judged_apart():
    network = Network(item=True, history=False)
    other = TableUse("other", "history", 0)
    verdicts = {row.table: row.verdict for row in check_rows(network.ask, network.publish, INPUTS, [ITEM, other])}
    assert verdicts == {"item": FOLLOWS, "other": CONSTANT}


def test_other_places_look_up_rows_that_stay():
    inputs = {"item": np.array([1, 4]), "history": np.array([[3, 1], [4, 5]])}
    found = untouched(inputs, [ITEM, HISTORY])
    assert {name: array.tolist() for name, array in found.items()} == {"item": [2, 2], "history": [[2, 2], [2, 5]]}


USER = TableUse("user", "user", one=3, other=5, row_of_one=3, row_of_other=5)
TAG = TableUse("tag", "tags", one="a", other="b")
ROWS = {
    "user": np.array([1, 2, 3]),
    "tags": np.array(["a", "b", "c"]),
    "tags:row_splits": np.array([0, 1, 1, 3]),
    "floats": np.ones((3, 4), np.float32),
}


def checked(root, uses):
    """Verdicts on the small package of the tests by table, and what it refuses."""
    write_package(root)
    refused = {}
    with Processor.initialize(ProcessorConfig(repository=str(root), delta_guard="off")) as processor:
        manifest = processor.predictor.manifest("small")[0]

        def ask(inputs):
            return processor.process(PredictRequest("small", columns(manifest, inputs))).outputs["score"]

        def publish():
            refused.update(publish_copies(str(root), "small", uses))
            processor.poll()
            return refused

        found = check_rows(ask, publish, ROWS, uses)
    return {row.table: (row.verdict, row.uses) for row in found}, refused


def test_tables_of_a_served_package_follow(tmp_path):
    assert checked(tmp_path, [USER, TAG]) == ({"user": (FOLLOWS, []), "tag": (FOLLOWS, [])}, {})


def test_package_that_holds_a_table_twice_is_half_served(tmp_path):
    """One table of the framework in two tables of the package, and only one of them has the row that is published."""
    uses = [replace(USER, table="item"), TableUse("item", "tags", one="a", other="unknown", row_of_one=77)]
    assert checked(tmp_path, uses) == ({"item": (HALF, ["tags"])}, {})


def test_table_that_refuses_deltas_is_not_half_served(tmp_path, monkeypatch):
    def refuse(manifest, table):
        if table == "tag":
            raise BadInput("read in the stage")

    monkeypatch.setattr("freshet_serving.processor.package.Manifest.check_reachable", refuse)
    found = {"user": (FOLLOWS, []), "tag": (REFUSED, ["tags"])}
    assert checked(tmp_path, [USER, TAG]) == (found, {"tag": "read in the stage"})
