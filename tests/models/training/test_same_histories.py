"""Rows of the same histories are learned from as rows each with its own, in fewer calculations."""

import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="training needs the train extra")

from freshet_serving.models.training import dense_step
from freshet_serving.models.training.same_histories import SameHistories, _keep_equal
from freshet_serving.processor.columns import Ragged, take_rows
from freshet_serving.processor.features.plan import SparsePlan
from tests.models.zoo.sequence_models import make_batch, make_trainer, manifest, move_weights

pytestmark = pytest.mark.tensorflow

LENGTH, ROWS = 6, 48


def make_repeating(seed, distinct=5, timed=False, floats=False):
    """Rows whose histories are those of the first few, in turn and at random."""
    batch = make_batch(ROWS, (LENGTH, 3, 0, 1, LENGTH + 2), seed, timed=timed, floats=floats)
    at = np.random.default_rng(seed).integers(0, distinct, ROWS)
    for name in batch.columns:
        if name.startswith("history."):
            batch.columns[name] = take_rows(batch.columns[name], at)
    return batch, at


def first_rows(columns, timed=False, floats=False):
    described = manifest("stca", LENGTH, timed, floats)
    plan = SparsePlan(described)
    return SameHistories(described, plan).first_rows(plan.bind_inputs(columns))


def test_rows_of_equal_lists_have_one_first_row():
    batch, at = make_repeating(1)
    columns = batch.columns
    lists = [tuple(columns[n].values[a:b]) for n in ("history.item",) for a, b in zip(*ends(columns[n]))]
    wanted = [lists.index(own) for own in lists]
    np.testing.assert_array_equal(first_rows(columns), wanted)
    assert len(set(wanted)) == len(set(at))


def ends(column):
    return column.row_splits[:-1], column.row_splits[1:]


@pytest.mark.parametrize("other", ["history.action", "history.time"])
def test_one_other_value_makes_another_history(other):
    columns = make_batch(1, (3,), timed=True).columns | make_batch(2, (3,), timed=True).columns
    for name in [n for n in columns if n.startswith("history.")]:
        values = columns[name].values[:3]
        columns[name] = Ragged(np.concatenate([values, values]), np.array([0, 3, 6]))
    assert first_rows(columns, timed=True).tolist() == [0, 0]
    columns[other].values[4] += 1
    assert first_rows(columns, timed=True).tolist() == [0, 1]


def test_floats_are_part_of_a_history():
    columns = make_batch(2, (3,), floats=True).columns
    for name in [n for n in columns if n.startswith("history.")]:
        values = columns[name].values[:3]
        columns[name] = Ragged(np.concatenate([values, values]), np.array([0, 3, 6]))
    columns["history.watched"].values[[1, 4]] = np.nan
    assert first_rows(columns, floats=True).tolist() == [0, 0]
    columns["history.watched"].values[5] += 1
    assert first_rows(columns, floats=True).tolist() == [0, 1]


def test_rows_of_equal_hashes_and_other_values_are_told_apart():
    firsts = np.zeros(4, np.int64)
    _keep_equal(np.array([1, 2, 1, 2, 1, 3, 1]), np.array([0, 2, 4, 6, 7]), firsts)
    assert firsts.tolist() == [0, 0, 2, 3]


@pytest.mark.parametrize(
    ("arch", "timed", "parts"),
    [
        ("stca", False, 2),
        *(
            pytest.param(*case, marks=pytest.mark.long)
            for case in [("stca", False, 1), ("sasrec", False, 1), ("hstu", True, 1)]
        ),
    ],
)
def test_step_over_shared_histories_equals_the_plain_step(arch, timed, parts, monkeypatch):
    monkeypatch.setattr(dense_step, "PART_ROWS", ROWS // parts)
    sharing, plain = (make_trainer(arch, LENGTH, timed, arch == "stca") for _ in range(2))
    for trainer in (sharing, plain):
        move_weights(trainer, np.random.default_rng(3))
    plain._histories = None
    batch, _ = make_repeating(0, timed=timed, floats=arch == "stca")
    assert sharing.learn(batch) == pytest.approx(plain.learn(batch), abs=1e-6)
    assert {what for what, *_ in sharing.dense._functions} == {"shared_gradients", "moves"}
    assert {what for what, *_ in plain.dense._functions} == {"gradients", "moves"}
    np.testing.assert_allclose(sharing.dense.gradient(), plain.dense.gradient(), atol=1e-6)
    np.testing.assert_allclose(sharing.dense.scores(), plain.dense.scores(), atol=1e-6)
    for name, table in sharing.own.items():
        other, keys = plain.own[name], table.export().keys
        np.testing.assert_array_equal(np.sort(keys), np.sort(other.export().keys))
        mine, its = table.find(keys), other.find(keys)
        np.testing.assert_allclose(table.rows[mine], other.rows[its], atol=1e-6)
        # How often and when each row was met.
        books, other_books = table._ids.columns["books"], other._ids.columns["books"]
        assert books[mine].tolist() == other_books[its].tolist()
    after, _ = make_repeating(1, timed=timed, floats=arch == "stca")
    assert sharing.learn(after) == pytest.approx(plain.learn(after), abs=1e-5)


def test_rows_of_histories_of_their_own_are_learned_as_before():
    trainer = make_trainer("stca", LENGTH, False, True)
    trainer.learn(make_batch(ROWS, (LENGTH,), 3, floats=True))
    assert {what for what, *_ in trainer.dense._functions} == {"gradients", "moves"}


def test_network_that_stays_whole_compares_no_histories():
    assert make_trainer("din", LENGTH)._histories is None


@pytest.mark.parametrize(("distinct", "size", "wanted"), [(128, 128, 0), (65, 128, 0), (64, 128, 64), (3, 128, 16)])
def test_distinct_histories_use_one_of_few_sizes(distinct, size, wanted):
    assert dense_step._distinct_size(distinct, size) == wanted
