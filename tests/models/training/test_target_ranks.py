"""Targets of histories are ranked among the items that have a row; those without one are ranked by nobody."""

import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="training needs the train extra")

from freshet_serving.models.data.source import Batch
from freshet_serving.models.evaluation.catalogue_ranking import CatalogueRanking
from freshet_serving.models.training.next_item_run import NextItemRun
from freshet_serving.models.training.target_ranks import rank_targets
from freshet_serving.processor.columns import Ragged
from tests.models.training.next_item_logs import next_config, write_log

pytestmark = [pytest.mark.tensorflow, pytest.mark.usefixtures("quick")]


def test_new_items_have_no_rank_and_few_targets_are_a_sample(tmp_path):
    write_log(tmp_path / "log.csv")
    run = NextItemRun(next_config(tmp_path, train={"epochs": 2}, publish={"delta_rows": 0}))
    run.full()
    # The newest item of the second history is new, and the oldest of the third.
    lists = [[100, 101, 102, 103], [100, 101, 999], [999, 100, 101]]
    histories = Batch({"history.item": Ragged.of(lists)}, np.array([3, 1, 2], np.float32), None, 0)
    work = run.trainer.transform(histories)
    gains = rank_targets(run.trainer, work, CatalogueRanking(10))[:, 0]
    assert np.isnan(gains).tolist() == [False, False, False, True, False, False]
    sampled = rank_targets(run.trainer, work, CatalogueRanking(10), 3)[:, 0]
    assert np.array_equal(sampled, gains[[0, 2, 4]], equal_nan=True)
