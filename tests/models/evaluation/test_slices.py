import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from freshet_serving.compiler.building.auc import auc
from freshet_serving.models.evaluation import slices as module
from freshet_serving.models.evaluation.slices import GroupedAuc, Slices
from freshet_serving.processor.columns import Ragged, Strings
from freshet_serving.processor.errors import BadInput
from tests.models.evaluation.test_tally import auc_of_pairs, random_rows

SCORES = [0.1, 0.25, 0.5, 0.9]
random_inputs = st.lists(
    st.tuples(st.sampled_from("abcd"), st.booleans(), st.sampled_from(SCORES), st.sampled_from([1.0, 2.0])),
    min_size=1,
    max_size=40,
)


def arrays(drawn):
    return [np.array(column, np.float32) for column in list(zip(*drawn))[1:]]


@given(random_inputs, st.integers(1, 9))
def test_slice_has_the_metrics_of_its_rows(drawn, step):
    sliced, whole = Slices(), arrays(drawn)
    for first in range(0, len(drawn), step):
        part = drawn[first : first + step]
        sliced.add(Strings.of([value for value, *_ in part]), *(c[first : first + step] for c in whole))
    lines = {line.value: line.metrics for line in sliced.lines()}
    assert set(lines) == {value for value, *_ in drawn}
    for value, metrics in lines.items():
        own = [(y, s, w) for v, y, s, w in drawn if v == value]
        assert metrics.rows == len(own)
        assert metrics.weight == sum(w for *_, w in own)
        assert metrics.auc == pytest.approx(auc_of_pairs(own), abs=1e-9, nan_ok=True)
        assert metrics.observed == pytest.approx(sum(w for y, _, w in own if y) / metrics.weight)
        assert metrics.predicted == pytest.approx(sum(s * w for _, s, w in own) / metrics.weight, rel=1e-6)
    assert [line.metrics.rows for line in sliced.lines()] == sorted((m.rows for m in lines.values()), reverse=True)


@given(random_inputs)
def test_grouped_auc_is_the_weighted_mean_over_mixed_groups(drawn):
    grouped = GroupedAuc()
    grouped.add(Strings.of([value for value, *_ in drawn]), *arrays(drawn))
    groups = {}
    for value, *row in drawn:
        groups.setdefault(value, []).append(row)
    aucs = {value: auc_of_pairs(rows) for value, rows in groups.items()}
    both = {value: sum(w for *_, w in groups[value]) for value, auc in aucs.items() if not math.isnan(auc)}
    wanted = sum(aucs[v] * w for v, w in both.items()) / sum(both.values()) if both else math.nan
    result = grouped.result()
    assert result.auc == pytest.approx(wanted, abs=1e-9, nan_ok=True)
    assert (result.groups, result.of, result.share, result.error) == (len(both), len(groups), 1.0, 0.0)


def test_values_beyond_the_largest_are_combined_into_one_line():
    random = np.random.default_rng(0)
    values = np.minimum(random.geometric(0.05, 600), 200)
    sliced, (labels, scores, _) = Slices(), random_rows(600)
    sliced.add(values, labels, scores)
    *shown, others = sliced.lines(5)
    known, counts = np.unique(values, return_counts=True)
    assert [line.metrics.rows for line in shown] == sorted(counts.tolist(), reverse=True)[:5]
    assert others.others == len(known) - 5
    assert others.metrics.rows + sum(line.metrics.rows for line in shown) == 600
    inside = np.isin(values, [int(line.value) for line in shown])
    assert others.metrics.auc == pytest.approx(auc_of_pairs(list(zip(labels[~inside], scores[~inside], np.ones(600)))))


@pytest.mark.parametrize("bound", ["FIRST_VALUES", "FIRST_ROWS"])
def test_many_values_keep_the_largest_in_bounded_memory(monkeypatch, bound):
    monkeypatch.setattr(module, "MOST_VALUES", 50)
    monkeypatch.setattr(module, bound, 300)
    labels, scores, _ = random_rows(6000)
    values = np.where(np.arange(6000) % 3 == 0, 7, np.arange(6000) + 1000)
    sliced = Slices()
    for first in range(0, 6000, 60):
        part = slice(first, first + 60)
        sliced.add(values[part], labels[part], scores[part])
    assert len(sliced._codes) == 50
    first, *_, others = sliced.lines(3)
    assert (first.value, first.metrics.rows) == ("7", 2000)
    assert others.others > 100
    assert sum(line.metrics.rows for line in sliced.lines(3)) == 6000
    own = values == 7
    assert first.metrics.auc == pytest.approx(auc(labels[own], scores[own]))


def test_list_counts_once_per_distinct_value_and_empty_separately():
    column = Ragged.of([["a", "b", "a"], [], ["b"]])
    sliced = Slices()
    sliced.add(column, np.array([1, 0, 0], np.float32), np.array([0.9, 0.5, 0.2], np.float32))
    assert {line.value: line.metrics.rows for line in sliced.lines()} == {"b": 2, "a": 1, "": 1}


def test_values_are_shown_as_written():
    sliced, ones = Slices(), np.ones(2, np.float32)
    sliced.add(np.array([1.0, np.nan], np.float32), ones, ones)
    sliced.add(np.array([np.nan, 0.5], np.float32), ones, ones)
    sliced.add(np.array([-3, 12]), ones, ones)
    sliced.add(Strings.of([b"\xff<b>", "Zürich"]), ones, ones)
    values = {line.value: line.metrics.rows for line in sliced.lines()}
    assert values == {"1": 1, "nan": 2, "0.5": 1, "-3": 1, "12": 1, "\ufffd<b>": 1, "Zürich": 1}


def test_unusable_slice_columns_are_refused():
    ones = np.ones(2, np.float32)
    with pytest.raises(BadInput, match=r"evaluate\.group: expected a column with one value"):
        GroupedAuc().add(Ragged.of([[1], [2]]), ones, ones)
    with pytest.raises(BadInput, match=r"evaluate\.by: expected a column with one value or one list"):
        Slices().add(np.zeros((2, 3), np.float32), ones, ones)


def test_metrics_without_data_are_nan():
    assert Slices().lines() == []
    result = GroupedAuc().result()
    assert math.isnan(result.auc)
    assert (result.groups, result.of) == (0, 0)
    one = Slices()
    one.add(np.array([1]), np.ones(1, np.float32), np.full(1, 0.5, np.float32))
    (line,) = one.lines()
    assert math.isnan(line.metrics.auc)
    assert line.metrics.log_loss == pytest.approx(math.log(2))
