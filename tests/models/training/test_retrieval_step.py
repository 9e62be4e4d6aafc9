"""Rows that fill an executable change nothing."""

import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="training needs the train extra")

from freshet_serving.models.training import retrieval_step
from freshet_serving.models.training.dense_step import fewest_size
from tests.models.training.test_retrieval_trainer import make_trainer, pairs

pytestmark = pytest.mark.tensorflow


@pytest.mark.parametrize("negatives", [0, 16])
def test_filled_up_rows_are_nobodys_candidates(negatives, tmp_path, monkeypatch):
    learned = []
    for fewest in (4, 32):
        monkeypatch.setattr(retrieval_step, "FEWEST", fewest)
        trainer = make_trainer(tmp_path, model={"negatives": negatives})
        losses = [trainer.learn(pairs((1, 100), (2, 101), (1, 102), (3, 100))) for _ in range(4)]
        learned.append((losses, trainer.own["item_id"].export().rows))
    assert learned[0][0] == pytest.approx(learned[1][0], rel=1e-5)
    np.testing.assert_allclose(learned[0][1], learned[1][1], rtol=1e-4, atol=1e-6)


def test_sizes_hold_their_rows_and_are_few():
    sizes = [fewest_size(rows, retrieval_step.FEWEST, retrieval_step.SIZES) for rows in range(1, 5000)]
    assert all(rows <= size for rows, size in enumerate(sizes, 1))
    assert all(size <= max(32, 1.25 * rows + 1) for rows, size in enumerate(sizes, 1))
    assert len(set(sizes)) < 40


def test_vectors_are_computed_in_slices(tmp_path, monkeypatch):
    trainer = make_trainer(tmp_path)
    trainer.learn(pairs(*((n, 100 + n) for n in range(9))))
    whole = trainer.item_vectors(np.arange(9))
    monkeypatch.setattr(retrieval_step, "SLICE_ROWS", 4)
    np.testing.assert_allclose(trainer.item_vectors(np.arange(9)), whole, rtol=1e-5, atol=1e-6)
    assert trainer.item_vectors(np.arange(0)).shape[0] == 0
