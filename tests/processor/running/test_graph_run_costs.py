"""Subgraphs without a compiler: when dividing pays, what fills which input, what is lent."""

from dataclasses import replace

import numpy as np
import pytest

from freshet_serving.processor.columns import Ragged
from freshet_serving.processor.features.bound_request import BatchView
from freshet_serving.processor.features.plan import SparsePlan
from freshet_serving.processor.kernels.rows import TABLE_FIELDS
from freshet_serving.processor.package import SCORE, GraphInput, Input, SequenceEntry, TableEntry, divided, shorter
from freshet_serving.processor.package.sequences import SEQUENCE, SequenceColumn
from freshet_serving.processor.running import fillers
from freshet_serving.processor.running.graph_run import GraphRun, SubgraphRun
from tests.processor.running.graphs import manifest

NO_TABLES = np.zeros((0, TABLE_FIELDS), np.int64)


def priced(whole, user, score):
    graphs = GraphRun(manifest(), SparsePlan(manifest()))
    graphs.price({"whole": whole, "user": user, "score": score})
    return graphs


WHOLE = {1: 1.0, 64: 10.0}


def test_costs_before_measuring_are_those_of_one_row():
    assert GraphRun(manifest(), SparsePlan(manifest())).undivided.costs.cost == {1: 1.0}


def test_new_version_divides_nothing_and_is_not_timed():
    graphs = GraphRun(manifest(), SparsePlan(manifest()))
    assert not graphs.pays(graphs._longest, 100)
    assert graphs.thresholds == []
    assert graphs.in_thread is False


def test_undivided_version_divides_nothing_once_priced():
    graphs = GraphRun(manifest(False), SparsePlan(manifest(False)))
    graphs.price({SCORE: WHOLE})
    assert graphs.thresholds == []
    assert graphs.undivided.costs.cost == WHOLE


@pytest.mark.parametrize(
    ("whole", "user", "score", "divided"),
    [
        ({64: 10.0}, {1: 1.0}, {64: 8.9}, {64: False}),
        ({64: 10.0}, {1: 1.0}, {64: 8.6}, {64: True, 1000: True}),
        ({64: 10.0}, {1: 1.0, 2: 9.0}, {64: 6.0}, {64: True}),
        ({63: 9.8, 64: 10.0}, {1: 1.0}, {63: 5.0, 64: 60.0}, {63: True, 64: False, 1000: False}),
        ({256: 20.0}, {1: 1.0}, {64: 6.0}, {256: False}),
        ({64: 10.0}, {1: 1.0}, {256: 12.0}, {256: True}),
    ],
    ids=[
        "saves too little",
        "saves more than a run costs",
        "one user",
        "last row count",
        "more rows whole",
        "more divided",
    ],
)
def test_requests_are_divided_where_costs_favour_it(whole, user, score, divided):
    graphs = priced(whole, user, score)
    assert {rows: graphs.pays(graphs._longest, rows) for rows in divided} == divided


def odd(first):
    """A subgraph with a user's tensor and an input of another kind beside the features."""
    graph = manifest().graphs["score"]
    more = GraphInput("odd", ["rows", 1], "odd")
    lent = graph.inputs[1:]
    return replace(graph, inputs=[*lent, more, graph.inputs[0]] if first else [graph.inputs[0], more, *lent])


@pytest.mark.parametrize("first", [True, False])
def test_every_input_but_the_users_is_filled_by_its_source(monkeypatch, first):
    def make(given, plan):
        def fill(view, out):
            out[:] = 5

        return fill

    monkeypatch.setitem(fillers.FILLERS, "odd", make)
    plan = SparsePlan(manifest())
    run = SubgraphRun("score", odd(first), plan)
    bound = plan.bind_inputs({"a": np.float32([1]), "b": np.float32([2, 3])})
    view = BatchView.of(NO_TABLES, 0, bound)
    inputs = run.spec.allocate_inputs(2)
    run.fill(view, inputs)
    np.testing.assert_array_equal(inputs["x"], [[2], [3]])
    np.testing.assert_array_equal(inputs["odd"], [[5], [5]])
    np.testing.assert_array_equal(inputs["u0"], [[0]])

    def instead(view, out):
        out[:] = 7

    run.fill(view, inputs, instead)
    np.testing.assert_array_equal(inputs["x"], [[7], [7]])
    np.testing.assert_array_equal(inputs["odd"], [[5], [5]])


def with_history(lengths=(2, 4)):
    """Return a version whose requests have a history of up to 8 events, with parts for shorter ones."""
    made = manifest()
    history = SequenceEntry("h", [SequenceColumn("h.i", "ids", "h.i", "t", 0, 16)], 8, 16, ["h.i"])
    made = replace(
        made,
        inputs=[*made.inputs, Input("h.i", "int64", ragged=True)],
        tables=[TableEntry("t", 1, 0)],
        sequences=[history],
    )
    tensors, more = [("u0", 1)], [GraphInput("h", ["rows", 16], SEQUENCE)]
    return replace(made, graphs=divided(made, tensors, more, dict.fromkeys(lengths, tensors)))


def lengths_taken(costs, events, rows=8, lengths=(2, 4)):
    """Return the lengths that the version keeps, and that of a request with so many events."""
    made = with_history(lengths)
    plan = SparsePlan(made)
    graphs = GraphRun(made, plan)
    both = {shorter(part, n) if n else part: {8: s} for n, s in costs.items() for part in ("user", "score")}
    graphs.price({"whole": {8: 100.0}, **both})
    ids = Ragged.of([list(range(events))])
    bound = plan.bind_inputs({"a": np.float32([1]), "b": np.zeros(rows, np.float32), "h.i": ids})
    parts = graphs.divided(bound, rows)
    assert parts is None or parts.score.name.removeprefix("score") == parts.user.name.removeprefix("user")
    return graphs.lengths, parts and parts.length


@pytest.mark.parametrize(("events", "length"), [(0, 2), (2, 2), (3, 4), (4, 4), (5, 8), (8, 8), (20, 8)])
def test_requests_take_the_shortest_parts_their_history_fits(events, length):
    assert lengths_taken({0: 8.0, 4: 4.0, 2: 2.0}, events) == ([2, 4], length)


@pytest.mark.parametrize(
    ("costs", "kept", "length"),
    [({0: 8.0, 4: 8.0, 2: 2.0}, [2], 2), ({0: 8.0, 4: 4.0, 2: 3.9}, [4], 4), ({0: 8.0, 4: 9.0, 2: 7.9}, [], 8)],
)
def test_lengths_that_save_nothing_are_never_taken(costs, kept, length):
    assert lengths_taken(costs, 1) == (kept, length)


def test_kept_lengths_do_not_change_with_new_weights():
    made = with_history()
    graphs = GraphRun(made, SparsePlan(made))
    assert graphs.lengths == []
    costs = {"whole": {8: 9.0}, **{n: {8: 1.0} for n in ("user", "score", "user-length4", "score-length4")}}
    for seconds in (0.1, 9.0):
        graphs.price({**costs, "user-length2": {8: seconds}, "score-length2": {8: seconds}})
        assert graphs.lengths == [2]


def test_dear_division_at_the_longest_histories_is_not_taken():
    assert lengths_taken({0: 80.0, 4: 4.0, 2: 2.0}, 8) == ([2, 4], None)


def test_short_histories_whose_parts_cost_more_run_whole():
    assert lengths_taken({0: 80.0, 4: 60.0, 2: 10.0}, 3) == ([2, 4], None)
    assert lengths_taken({0: 80.0, 4: 60.0, 2: 10.0}, 2) == ([2, 4], 2)


def test_requests_of_several_users_are_not_divided_at_any_length():
    made = with_history()
    plan = SparsePlan(made)
    graphs = GraphRun(made, plan)
    given = {"a": np.float32([1, 2]), "b": np.float32([1, 2]), "h.i": Ragged.of([[1], [2]])}
    assert graphs.divided(plan.bind_inputs(given), 2) is None


def test_requests_with_histories_are_planned_by_the_cheaper_way():
    made = with_history(())
    graphs = GraphRun(made, SparsePlan(made))
    graphs.price({"whole": {1: 5.0, 2: 9.0}, "user": {1: 4.0}, "score": {1: 3.0, 8: 4.0}})
    assert graphs.costs.cost == {1: 5.0, 2: 8.0, 8: 8.0}
    assert priced(WHOLE, {1: 0.1}, {64: 0.1}).costs.cost == WHOLE


def test_stored_costs_plan_batches_and_do_not_decide_about_dividing():
    made = with_history(())
    graphs = GraphRun(made, SparsePlan(made))
    graphs.price({"whole": {1: 5.0, 2: 9.0}, "user": {1: 4.0}, "score": {1: 3.0, 8: 4.0}}, {1: 2.0, 2: 3.0})
    assert graphs.undivided.costs.cost == {1: 2.0, 2: 3.0}
    assert graphs.costs.cost == {1: 2.0, 2: 3.0, 8: 8.0}
    graphs = GraphRun(manifest(), SparsePlan(manifest()))
    graphs.price({"whole": {64: 10.0}, "user": {1: 1.0}, "score": {64: 2.0}}, {64: 1.0})
    assert graphs.pays(graphs._longest, 64)
    assert graphs.costs.cost == {64: 1.0}


def test_costs_and_decisions_of_equal_programs_are_taken_over():
    before = GraphRun(with_history((4,)), SparsePlan(with_history((4,))))
    shorter_costs = {shorter("user", 4): {1: 0.5}, shorter(SCORE, 4): {1: 0.5, 8: 1.0}}
    before.price({"whole": {1: 5.0, 2: 90.0}, "user": {1: 4.0}, "score": {1: 3.0, 8: 4.0}, **shorter_costs})
    before.costs.row_s, before.in_thread = 0.25, True
    after = GraphRun(with_history((4,)), SparsePlan(with_history((4,))))
    after.take_over(before)
    assert after.lengths == before.lengths == [4]
    assert after.thresholds == before.thresholds != []
    assert (after.costs.cost, after.costs.row_s) == (before.costs.cost, 0.25)
    assert after.in_thread
    after.undivided.costs.record_run(1, 1.0)
    assert before.undivided.costs.cost[1] == 5.0
