import numpy as np
import pytest

from loadtest.live.reference import Reference, delta_keys
from tests.loadtest.packages import DEFAULT, IDS, score, table_rows, weights, write_delta, write_package

# The last row's second id is unknown to table b, whose default is not zero; its second float is missing.
INPUTS = {
    "ids": np.array([[10, 11], [13, 13], [12, 99]], np.int64),
    "floats": np.array([[0.5, 2.0], [-1.0, -3.0], [0.0, np.nan]], np.float32),
}


def wanted(a, b, w=None):
    w = w or weights()
    return [
        score(a[i], b[j], float(f0), float(f1), w) for (i, j), (f0, f1) in zip(INPUTS["ids"].tolist(), INPUTS["floats"])
    ]


def tables():
    a, b = ({int(k): row for k, row in zip(IDS, table_rows(seed))} for seed in (0, 1))
    return a, b | {99: np.array(DEFAULT)}


def test_scores_equal_the_formula_for_every_number(tmp_path):
    reference = Reference(write_package(tmp_path), INPUTS)
    assert reference.scores == pytest.approx(wanted(*tables()), abs=1e-6)
    assert (reference.version, reference.step) == (3, 0)


def test_deltas_replace_add_and_remove_rows_and_dense_weights(tmp_path):
    reference = Reference(write_package(tmp_path), INPUTS)
    a, b = tables()
    reference.apply(write_delta(tmp_path / "1.safetensors", 1, [12, 77], [[1.0, 2.0], [9.0, 9.0]]))
    a[12] = np.array([1.0, 2.0])
    assert reference.scores == pytest.approx(wanted(a, b), abs=1e-6)
    reference.apply(write_delta(tmp_path / "2.safetensors", 2, [99], [[0.1, 0.2]], removed=[11], table="b"))
    b[99], b[11] = np.array([0.1, 0.2]), np.array(DEFAULT)
    assert reference.scores == pytest.approx(wanted(a, b), abs=1e-6)
    bias = np.array([0.75], np.float32)
    reference.apply(write_delta(tmp_path / "3.safetensors", 3, dense={"linear/bias": bias}))
    assert reference.scores == pytest.approx(wanted(a, b, weights() | {"linear/bias": bias}), abs=1e-6)
    assert reference.step == 3


def test_scores_of_an_earlier_generation_stay_unchanged(tmp_path):
    reference = Reference(write_package(tmp_path), INPUTS)
    before = reference.scores
    kept = before.copy()
    reference.apply(write_delta(tmp_path / "1.safetensors", 1, [10], [[3.0, 3.0]]))
    assert (before == kept).all()
    assert (reference.scores != kept).any()


def test_delta_out_of_order_is_refused(tmp_path):
    reference = Reference(write_package(tmp_path), INPUTS)
    with pytest.raises(ValueError, match="delta 2"):
        reference.apply(write_delta(tmp_path / "2.safetensors", 2))


def test_different_architecture_is_refused(tmp_path):
    with pytest.raises(ValueError, match="deepfm"):
        Reference(write_package(tmp_path, arch="dlrm"), INPUTS)


def test_ids_changed_by_a_delta_are_listed_by_table(tmp_path):
    keys = delta_keys(write_delta(tmp_path / "1.safetensors", 1, [12, 77], [[1.0, 2.0], [9.0, 9.0]], removed=[5]))
    assert {name: ids.tolist() for name, ids in keys.items()} == {"a": [12, 77]}
