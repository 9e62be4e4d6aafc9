"""Times of a sequence: seconds to the newest event, per row, in either unit, broadcast for one user."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from freshet_serving.compiler.passes.shorter_histories import kept_columns
from freshet_serving.processor.columns import Ragged
from freshet_serving.processor.features.plan import SparsePlan
from freshet_serving.processor.package import GraphInput, SequenceEntry
from freshet_serving.processor.running.sequence_filler import SequenceFill
from tests.models.zoo.sequence_models import DIM, MEAN, SCALE, make_batch, make_trainer, manifest

pytest.importorskip("tensorflow", reason="the tables are a trainer's")

LENGTH = 3


@cache
def trainer_with_times():
    """One for all tests, made by the first: not where tests are only collected."""
    return make_trainer("hstu", LENGTH, timed=True)


def seconds(times, rows, unit="s"):
    """Return the rows that the filler writes for lists of times, over other numbers."""
    whole = manifest("freshet_serving.models.zoo.hstu:build", LENGTH, timed=True)
    entry: SequenceEntry = replace(whole.sequences[0], time_unit=unit)
    plan = SparsePlan(replace(whole, sequences=[entry]))
    lists = Ragged.of([list(range(len(t))) for t in times])
    columns = make_batch(rows, (0,), timed=True).columns
    columns |= {"history.item": lists, "history.action": lists, "history.time": Ragged.of(times)}
    bound = plan.bind_inputs(columns)
    return written(trainer_with_times(), bound, GraphInput("history", []), plan, entry.width)[:, -LENGTH:].tolist()


def written(trainer, bound, history, plan, width):
    """Return what a filler of the history writes for a request over other numbers, with the tables of a trainer."""
    out = np.full((bound.rows, width), 9, np.float32)
    with trainer._pooling(bound) as write:
        trainer.run.fillers = [("x", lambda *a: None), ("history", SequenceFill(history, plan))]
        write(slice(0, bound.rows), {"x": np.empty((bound.rows, 1), np.float32), "history": out})
    return out


def test_seconds_are_counted_from_each_rows_newest_event():
    found = seconds([[100, 130, 160], [], [5], [1, 2, 3, 4]], 4)
    assert found == [[60, 30, 0], [0, 0, 0], [0, 0, 0], [2, 1, 0]]


def test_milliseconds_become_seconds_without_loss():
    start = 1_700_000_000_000
    assert seconds([[start, start + 500]], 1, "ms") == [[0.5, 0, 0]]


def test_one_users_times_are_those_of_every_row():
    assert seconds([[10, 40]], 3) == [[30, 0, 0]] * 3


def test_inputs_of_fewer_places_hold_the_first_ones():
    whole = manifest("freshet_serving.models.zoo.hstu:build", LENGTH, timed=True, floats=True)
    entry, plan = whole.sequences[0], SparsePlan(whole)
    lists = Ragged.of([[3, 4]])
    columns = make_batch(1, (0,), timed=True).columns
    columns |= {"history.item": lists, "history.action": lists, "history.time": Ragged.of([[10, 40]])}
    columns["history.watched"] = Ragged.of([[4, float("nan")]])
    bound = plan.bind_inputs(columns)
    assert plan.longest_history(bound) == 2
    trainer, filled = make_trainer("hstu", LENGTH, timed=True, floats=True), {}
    for table in ("item", "action"):
        trainer.own[table].insert(np.arange(5), np.ones(5, np.int64))
    for length in (2, LENGTH):
        wide = entry.columns_of(length)
        filled[length] = written(trainer, bound, GraphInput("history", ["requests", wide]), plan, wide)
    np.testing.assert_array_equal(filled[2], filled[LENGTH][:, kept_columns(entry, 2)])
    assert filled[2][0, : 2 * DIM].all()
    assert filled[2][0, -2:].tolist() == [30, 0]
    assert filled[2][0, -4:-2].tolist() == [(np.log1p(np.float32(4)) - MEAN) * SCALE, 0]
