"""Stages that read rows: run with each batch under its epoch, on each request's rows alone."""

from dataclasses import replace

import numpy as np
import pytest

from freshet_serving.processor.backends import EndedRun
from freshet_serving.processor.columns import Ragged, Strings
from freshet_serving.processor.errors import BadInput, Expired, TooLarge
from freshet_serving.processor.features import stage_runs
from freshet_serving.processor.features.bound_request import BatchView
from freshet_serving.processor.features.limits import RequestLimits
from freshet_serving.processor.features.plan import SparsePlan
from freshet_serving.processor.kernels import pool
from freshet_serving.processor.kernels.hashing import hash_strings
from freshet_serving.processor.package import (
    Feature,
    File,
    Input,
    Manifest,
    Output,
    StageEntry,
    StageLookup,
    TableDelta,
    TableEntry,
)
from freshet_serving.processor.tables.table import ServedTable, descriptors, packed

DIM, ITEMS = 2, 10
WORDS = ["a", "b", "c"]
ROWS = np.arange(ITEMS * DIM, dtype=np.float32).reshape(ITEMS, DIM)


def manifest():
    """A model whose stage reads rows by a list, a matrix and a word."""
    inputs = [
        Input("past", "int64", ragged=True), Input("pair", "int64", columns=2), Input("word", "string"),
        Input("price", "float32"),
    ]  # fmt: skip
    features = [Feature("made", "floats", "made", 0, width=3)]
    tables = [TableEntry("items", DIM, ITEMS), TableEntry("words", 1, len(WORDS))]
    lookups = [
        StageLookup("rows.past", "past", "items"),
        StageLookup("rows.pair", "pair", "items", [0, 1]),
        StageLookup("rows.word", "word", "words"),
    ]
    stage = StageEntry("sums", "stage/graph", [Input("made", "float32", columns=3)], lookups)
    files = {"stage/graph": File(1, "00000000")}
    return Manifest(
        "imported", 1, "imported", 0.0, inputs, features, tables, [Output("score")], 3, {}, files, stage=stage
    )


class Sums:
    """Sums of the rows of each list, and of each pair, beside the word's row; lists that begin with 9 are refused."""

    reads = ("past", "pair", "word")

    def __init__(self):
        self.calls = []

    def run(self, inputs, rows, found):
        self.calls.append(rows)
        past = inputs["past"]
        if len(past.values) and past.values[0] == 9:
            raise BadInput("the model refuses these inputs")
        splits = past.row_splits
        if len(past) == 1:
            splits = np.arange(rows + 1) * splits[-1]
        sums = np.array([found["rows.past"][a:b].sum() for a, b in zip(splits, splits[1:])])
        pairs = found["rows.pair"].reshape(rows, -1).sum(1)
        made = np.stack([sums, pairs, found["rows.word"].ravel()], 1)
        return {"made": made.astype(np.float32)}


@pytest.fixture
def tables():
    keys = hash_strings(Strings.of(WORDS), 0)
    order = np.argsort(keys)
    return [
        ServedTable(TableEntry("items", DIM, ITEMS), packed(np.arange(ITEMS, dtype=np.int64), ROWS)),
        ServedTable(
            TableEntry("words", 1, len(WORDS)), packed(keys[order], np.arange(3, dtype=np.float32)[order][:, None])
        ),
    ]


def request(past, pair, words):
    rows = max(len(past), len(pair), len(words))
    return {
        "past": Ragged.of(past), "pair": np.array(pair, np.int64), "word": Strings.of(words),
        "price": np.zeros(rows, np.float32),
    }  # fmt: skip


def expected(past, pair, words):
    rows = max(len(past), len(pair), len(words))
    past, pair, words = (one * rows if len(one) == 1 else one for one in (past, pair, words))
    return [
        [ROWS[ids].sum() if ids else 0.0, ROWS[both].sum(), WORDS.index(word)]
        for ids, both, word in zip(past, pair, words)
    ]


def fill(plan, tables, bound, spans, epoch=0):
    out = np.full((sum(rows for _, rows in spans), plan.width), -1, np.float32)
    counts = np.zeros((2, 2), np.int64)
    plan.fill(
        BatchView(descriptors([t.descriptor() for t in tables]), epoch, bound, np.array(spans, np.int64), counts), out
    )
    return out


A = ([[1, 2, 3], [], [4], [5, 5]], [[0, 1], [2, 3], [4, 5], [6, 7]], ["a", "b", "c", "a"])
ONE = ([[7, 8]], [[1, 1]], ["b"])
BROADCAST = ([[1, 2]], [[0, 1], [2, 3], [4, 5]], ["c"])


@pytest.mark.parametrize("asked", [A, ONE, BROADCAST, ([[3], [4]], [[1, 2]], ["a"])])
def test_rows_of_all_values_come_in_their_order(asked, tables):
    plan = SparsePlan(manifest(), Sums())
    bound = plan.bind_inputs(request(*asked))
    np.testing.assert_array_equal(fill(plan, tables, [bound], [(0, bound.rows)]), expected(*asked))


@pytest.mark.parametrize("asked", [A, BROADCAST])
@pytest.mark.parametrize("span", [(0, 3), (1, 2)])
def test_pieces_of_a_span_give_what_one_run_gives(asked, span, tables, monkeypatch):
    monkeypatch.setattr(stage_runs, "AT_ONCE", 1)
    stage = Sums()
    plan = SparsePlan(manifest(), stage)
    bound = plan.bind_inputs(request(*asked))
    first, rows = span
    got = fill(plan, tables, [bound], [span])
    np.testing.assert_array_equal(got, expected(*asked)[first : first + rows])
    assert stage.calls == [1] * rows


def test_run_that_did_not_end_in_time_fails_its_request_alone(tables):
    class Slow(Sums):
        def run(self, inputs, rows, found):
            raise EndedRun("the model did not finish in time for these inputs")

    plan = SparsePlan(manifest(), Slow())
    bound = plan.bind_inputs(request(*ONE))
    with pytest.raises(Expired, match="did not finish in time") as late:
        fill(plan, tables, [bound], [(0, 1)])
    assert not isinstance(late.value, EndedRun)


def test_run_has_the_rows_of_its_span_alone(tables):
    stage = Sums()
    plan = SparsePlan(manifest(), stage)
    bound = plan.bind_inputs(request(*A))
    assert stage.calls == []
    got = fill(plan, tables, [bound, bound], [(1, 2), (3, 1)])
    np.testing.assert_array_equal(got, expected(*A)[1:4])
    assert stage.calls == [2, 1]


def test_inputs_of_one_row_are_computed_once(tables):
    class Users(Sums):
        reads = ("past", "word")

        def run(self, inputs, rows, found):
            self.calls.append(rows)
            return {"made": np.repeat(found["rows.past"].sum().reshape(1, 1), 3, 1)}

    stage = Users()
    plan = SparsePlan(manifest(), stage)
    bound = plan.bind_inputs(request(*BROADCAST))
    np.testing.assert_array_equal(fill(plan, tables, [bound], [(1, 2)]), np.full((2, 3), ROWS[[1, 2]].sum()))
    assert stage.calls == [1]


def test_outputs_name_the_stage_until_a_batch_fills_them(tables):
    plan = SparsePlan(manifest(), Sums())
    bound = plan.bind_inputs(request(*A))
    made = plan.filled(descriptors([t.descriptor() for t in tables]), 0, bound)
    fillers = [np.frombuffer(one.words, np.int64).reshape(-1, pool.INPUT_FIELDS)[:, -1] for one in (bound, made)]
    assert set(fillers[0].tolist()) == {pool.SENT, pool.BY_STAGE}
    assert set(fillers[1].tolist()) == {pool.SENT}


def test_rows_are_those_of_the_epoch_that_is_read(tables):
    plan = SparsePlan(manifest(), Sums())
    bound = plan.bind_inputs(request([[1]], [[0, 0]], ["a"]))
    tables[0].apply(TableDelta(np.array([1]), np.full((1, DIM), 50, np.float32), np.empty(0, np.int64)), 1)
    assert fill(plan, tables, [bound], [(0, 1)], 0)[0, 0] == ROWS[1].sum()
    assert fill(plan, tables, [bound], [(0, 1)], 1)[0, 0] == 100


def test_refused_request_leaves_the_others_filled(tables):
    plan = SparsePlan(manifest(), Sums())
    refused, sound = plan.bind_inputs(request([[9]], [[0, 0]], ["a"])), plan.bind_inputs(request(*ONE))
    out = np.zeros((2, plan.width), np.float32)
    spans = np.array([[0, 1], [0, 1]], np.int64)
    with pytest.raises(BadInput, match="the model refuses these inputs"):
        plan.fill(
            BatchView(
                descriptors([t.descriptor() for t in tables]), 0, [refused, sound], spans, np.zeros((2, 2), np.int64)
            ),
            out,
        )
    assert np.isnan(out[0]).all()
    np.testing.assert_array_equal(out[1:], expected(*ONE))


def test_what_rows_may_not_be_together_is_refused_before_any_runs(tables):
    class OfEqualLength(Sums):
        def check(self, inputs):
            if len(set(np.diff(inputs["past"].row_splits))) > 1:
                raise BadInput("expected rows of equal length")

    stage = OfEqualLength()
    plan = SparsePlan(manifest(), stage)
    with pytest.raises(BadInput, match="equal length"):
        plan.bind_inputs(request(*A))
    assert stage.calls == []
    bound = plan.bind_inputs(request(*ONE))
    np.testing.assert_array_equal(fill(plan, tables, [bound], [(0, 1)]), expected(*ONE))


def test_request_is_explained_with_what_the_stage_makes(tables):
    plan = SparsePlan(manifest(), Sums())
    bound = plan.filled(descriptors([t.descriptor() for t in tables]), 0, plan.bind_inputs(request(*A)))
    number = plan.source("made")
    np.testing.assert_array_equal(bound.keep[number].values.reshape(-1, 3), expected(*A))


def test_ids_of_a_stage_count_against_the_limits():
    plan = SparsePlan(manifest(), Sums())
    with pytest.raises(TooLarge, match="max_ids"):
        plan.bind_inputs(request([[1] * 40], [[0, 0]], ["a"]), RequestLimits(max_ids=20))
    assert plan.bind_inputs(request(*ONE)).ids == 5


def test_lookups_may_read_a_few_columns(tables):
    whole = manifest()
    some = [replace(one, columns=[1]) if one.columns else one for one in whole.stage.lookups]

    class Second(Sums):
        def run(self, inputs, rows, found):
            return {"made": np.repeat(found["rows.pair"].sum(1)[:, None], 3, 1)}

    plan = SparsePlan(replace(whole, stage=replace(whole.stage, lookups=some)), Second())
    bound = plan.bind_inputs(request(*A))
    np.testing.assert_array_equal(fill(plan, tables, [bound], [(0, 4)])[:, 0], ROWS[[1, 3, 5, 7]].sum(1))
