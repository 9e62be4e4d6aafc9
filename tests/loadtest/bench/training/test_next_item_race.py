"""The page of the next-item race, with figures that are made up."""

import json

import pytest

pytest.importorskip("tensorflow", reason="training needs the train extra")

from loadtest.bench.training.next_item_race import EPOCHS, SEEDS, figures_of, page


def told(ndcg, epochs=EPOCHS):
    return [{"ndcg": ndcg * (n + 1) / EPOCHS, "hit_rate": 0.3, "cpu_seconds": 2.0} for n in range(epochs)]


def results(**sides):
    about = {"machine": {"cores": 2, "cpu": "c"}, "origin": {"date": "2026-01-01", "command": "make"}}
    return about | {"load": "Alone.", "users": 100, "sides": sides}


def test_aims_are_compared_over_all_seeds():
    sides = {"rectools": 0.18, "sasrec_next": 0.178, "hstu_next": 0.18}
    shown = page(results(**{side: {str(s): told(ndcg) for s in SEEDS} for side, ndcg in sides.items()}))
    assert "| sasrec_next at least RecTools SASRec -0.005 | -0.0020 | yes |" in shown
    assert "| hstu_next at least sasrec_next +0.005 | +0.0020 | no |" in shown
    assert "| SASRec's sequences a second at least 1.0 of RecTools' | 1.00 | yes |" in shown


def test_unfinished_sides_are_compared_at_the_epoch_that_both_have():
    shown = page(results(rectools={"0": told(0.2, 4)}, sasrec_next={"0": told(0.2, 9), "1": told(0.2, 2)}))
    assert "-0.005 after 4 epochs of 1 of 3 seeds | +0.0000 | open |" in shown
    assert "| 9 |  | 0.0900 |" in shown


def test_rectools_side_with_more_epochs_is_the_peer():
    """Its rate is that of the CPU alone, since other sides have no GPU."""
    ours, whole = {str(s): told(0.2) for s in SEEDS}, {str(s): told(0.1) for s in SEEDS}
    begun = whole | {"2": told(0.1, 4)}
    shown = page(results(**{"rectools": begun, "rectools-gpu": whole, "sasrec_next": ours}))
    assert "| sasrec_next at least RecTools SASRec on a GPU -0.005 | +0.1000 | yes |" in shown
    assert "| RecTools SASRec on a GPU | 20, 20, 20 | 0.1000, 0.1000, 0.1000 | 0.3000, 0.3000, 0.3000 |  |" in shown
    shown = page(results(**{"rectools": whole, "rectools-gpu": begun, "sasrec_next": ours}))
    assert "| sasrec_next at least RecTools SASRec -0.005 | +0.1000 | yes |" in shown


def test_figures_are_read_by_side_and_seed(tmp_path):
    (tmp_path / "hstu_next-1.json").write_text(json.dumps(told(0.1, 1)))
    assert list(figures_of(tmp_path)) == ["hstu_next"]
    assert list(figures_of(tmp_path)["hstu_next"]) == ["1"]
