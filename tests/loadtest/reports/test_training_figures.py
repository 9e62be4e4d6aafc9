"""Figures of training are those of the rounds of its reports."""

import pytest

from loadtest.reports.training_figures import lookups, quality, steps


def test_peer_steps_are_compared_round_by_round():
    turns = {
        "Freshet": [[2.0, 3.0], [4.0, 4.0]],
        "Keras": [[4.0, 9.0], [6.0, 9.0]],
        "PyTorch": [[3.0, 9.0], [3.0, 9.0]],
    }
    found = steps({"machine": {"cores": 2}, "races": {"512 20000": {"turns": turns}}})
    assert found == {
        "Keras, 512 20000": ([2.0, 1.5], (">=", 2.0)),
        "PyTorch, 512 20000": ([1.5, 0.75], (">=", 1.5)),
        "overlap, 512 20000": ([pytest.approx(4 / 3), 2.0], ("<=", 1.25)),
    }


def test_quality_is_compared_by_seed_with_settings_run_everywhere():
    def runs(*aucs):
        return {str(seed): {"auc": [auc, auc / 2]} for seed, auc in enumerate(aucs)}

    sides = {
        "Freshet": {"its own": runs(0.8, 0.7)},
        "Keras": {"tried": runs(0.9), "best": runs(0.75, 0.75)},
        "Freshet in order": {"its own": runs(0.1, 0.1)},
    }
    found = quality({"archs": {"mmoe": sides}})
    assert found == {
        "mmoe, Keras, label 0": ([pytest.approx(0.05), pytest.approx(-0.05)], (">=", -0.001)),
        "mmoe, Keras, label 1": ([pytest.approx(0.025), pytest.approx(-0.025)], (">=", -0.001)),
    }


def test_lookups_are_listed_by_row_type_and_lookup_method():
    turns = {
        "Freshet": [[2.0, 1.0], [4.0, 1.0]],
        "Freshet, by its hash": [[4.0, 1.0], [4.0, 1.0]],
        "FBGEMM, by row number": [[1.0, 1.0], [3.0, 1.0]],
        "FBGEMM, by its hash": [[6.0, 1.0], [2.0, 1.0]],
    }
    assert lookups({"races": {"int8": {"turns": turns}}}) == {
        "FBGEMM, by row number, int8": ([0.5, 0.75], (">=", 0.8)),
        "FBGEMM, by its hash, int8": ([1.5, 0.5], (">=", 1.0)),
    }
