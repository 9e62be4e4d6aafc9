"""Windows of chosen rows are judged by their ranks, before and after a delta."""

import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="training needs the train extra")

from freshet_serving.models.config.guard_section import GuardConfig
from freshet_serving.models.training.pair_ranks import PairRanks
from freshet_serving.models.training.retrieval_guard import RetrievalGuard
from tests.models.training.test_retrieval_trainer import make_trainer, pairs

pytestmark = pytest.mark.tensorflow


def test_bad_step_lowers_the_ranks_of_rows_before_the_window(tmp_path):
    trainer = make_trainer(tmp_path)
    rows = [(n % 8, 100 + n % 8) for n in range(64)]
    for _ in range(30):
        trainer.learn(pairs(*rows))
    guard = RetrievalGuard(GuardConfig(), trainer, PairRanks(trainer), 3)
    work = trainer.transform(pairs(*rows))
    guard.see(work, np.ones(64))
    guard.begin()
    guard.prepare()
    guard._look_again()
    assert guard._window.figures().fall == pytest.approx(0.0)
    table = trainer.own["item_id"]
    table.rows[:] = -table.rows
    guard._look_again()
    assert guard._window.figures().fall > 0.3


def test_rows_of_the_newest_batches_are_kept_only(tmp_path):
    trainer = make_trainer(tmp_path)
    trainer.learn(pairs((1, 100), (2, 101)))
    guard = RetrievalGuard(GuardConfig(), trainer, PairRanks(trainer), 3)
    work = trainer.transform(pairs(*((n % 8, 100) for n in range(300))))
    for _ in range(5):
        guard.see(work, np.zeros(300))
    assert len(guard._works) == 2
    figures = guard._window.figures()
    assert figures.events == 1500
