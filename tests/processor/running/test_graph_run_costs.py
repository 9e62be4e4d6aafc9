"""Subgraphs without a compiler: when dividing pays, what fills which input, what is lent."""

from dataclasses import replace

import numpy as np
import pytest

from freshet_serving.processor.features.plan import SparsePlan
from freshet_serving.processor.kernels.rows import TABLE_FIELDS
from freshet_serving.processor.package import SCORE, GraphInput
from freshet_serving.processor.running import fillers, graph_run
from freshet_serving.processor.running.graph_run import GraphRun, SubgraphRun
from tests.processor.running.graphs import manifest

NO_TABLES = np.zeros((0, TABLE_FIELDS), np.int64)


def priced(whole, user, score):
    graphs = GraphRun(manifest(), SparsePlan(manifest()))
    graphs.price({"whole": whole, "user": user, "score": score})
    return graphs


WHOLE = {1: 1.0, 64: 10.0}


def test_costs_before_measuring_are_those_of_one_row():
    run = GraphRun(manifest(), SparsePlan(manifest())).undivided
    assert run.costs.cost == {1: 1.0}


def test_new_version_divides_nothing_and_is_not_timed():
    graphs = GraphRun(manifest(), SparsePlan(manifest()))
    assert not graphs.worth_dividing(100)
    assert graphs.thresholds == []
    assert graphs.in_thread is False


def test_undivided_version_divides_nothing_once_priced():
    graphs = GraphRun(manifest(False), SparsePlan(manifest(False)))
    graphs.price({SCORE: WHOLE})
    assert not graphs.worth_dividing(64)
    assert graphs.undivided.costs.cost == WHOLE


def test_dividing_must_save_more_than_a_run_costs(monkeypatch):
    monkeypatch.setattr(graph_run, "WORTH", 1.0)
    even = priced({64: 10.0}, {1: 1.0}, {64: 9.0})
    assert not even.worth_dividing(64)
    assert priced({64: 10.0}, {1: 1.0}, {64: 8.9}).worth_dividing(64)


def test_one_users_cost_counts_not_that_of_two():
    assert priced({64: 10.0}, {1: 1.0, 2: 9.0}, {64: 6.0}).worth_dividing(64)


def test_last_row_count_is_judged_by_itself():
    graphs = priced({63: 9.8, 64: 10.0}, {1: 1.0}, {63: 5.0, 64: 60.0})
    assert graphs.worth_dividing(63)
    assert not graphs.worth_dividing(64)
    assert not graphs.worth_dividing(1000)


def test_more_rows_than_any_bucket_are_judged_as_the_most():
    graphs = priced({64: 10.0}, {1: 1.0}, {64: 6.0})
    assert graphs.worth_dividing(64)
    assert graphs.worth_dividing(1000)


@pytest.mark.parametrize(("whole", "score"), [({256: 20.0}, {64: 6.0}), ({64: 10.0}, {256: 12.0})])
def test_both_forms_are_judged_up_to_the_larger_bucket(whole, score):
    graphs = priced(whole, {1: 1.0}, score)
    assert graphs.worth_dividing(256) == (256 in score)


def odd(first):
    """A subgraph with a user's tensor and an input of another kind beside the features."""
    graph = manifest().graphs["score"]
    more = GraphInput("odd", ["rows", 1], "odd")
    lent = graph.inputs[1:]
    return replace(graph, inputs=[*lent, more, graph.inputs[0]] if first else [graph.inputs[0], more, *lent])


@pytest.mark.parametrize("first", [True, False])
def test_every_input_but_the_users_is_filled_by_its_source(monkeypatch, first):
    def make(given, plan):
        def fill(tables, epoch, bound, spans, out, counts):
            out[:] = 5

        return fill

    monkeypatch.setitem(fillers.FILLERS, "odd", make)
    plan = SparsePlan(manifest())
    run = SubgraphRun("score", odd(first), plan)
    bound = plan.bind_inputs({"a": np.float32([1]), "b": np.float32([2, 3])})
    given = ([bound], np.array([[0, 2]], np.int64))
    inputs = run.spec.allocate_inputs(2)
    run.fill(NO_TABLES, 0, *given, inputs, np.zeros((1, 2), np.int64))
    np.testing.assert_array_equal(inputs["x"], [[2], [3]])
    np.testing.assert_array_equal(inputs["odd"], [[5], [5]])
    np.testing.assert_array_equal(inputs["u0"], [[0]])

    def instead(tables, epoch, bound, spans, out, counts):
        out[:] = 7

    run.fill(NO_TABLES, 0, *given, inputs, np.zeros((1, 2), np.int64), instead)
    np.testing.assert_array_equal(inputs["x"], [[7], [7]])
    np.testing.assert_array_equal(inputs["odd"], [[5], [5]])
