"""The newest chosen rows, ranked by a version for its gate."""

import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="training needs the train extra")

from freshet_serving.models.data.open_data import open_source
from freshet_serving.models.training import newest_pairs
from freshet_serving.models.training.newest_pairs import NewestPairs
from freshet_serving.models.training.retrieval_run import RetrievalRun
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.repository import open_repository
from tests.models.training.retrieval_logs import pairs_config, write_log

pytestmark = [pytest.mark.tensorflow, pytest.mark.usefixtures("quick")]


def test_version_ranks_the_newest_chosen_rows_among_the_given_items(tmp_path, monkeypatch):
    write_log(tmp_path / "log.csv")
    config = pairs_config(tmp_path, publish={"delta_rows": 0, "gate": {"mode": "off"}})
    run = RetrievalRun(config)
    run.full()
    version = open_repository(str(tmp_path / "repository")).version("pairs", 1)
    rows = list(open_source(config.data, config.features).batches(100, 400))
    chosen = sum(int((batch.label > 0.5).sum()) for batch in rows)
    recent = run.trainer.recent
    ranked = NewestPairs(config, rows, recent.columns_of(np.arange(len(recent)))).ranked(version, "pairs")
    assert len(ranked.ranks) == chosen
    assert not ranked.alike
    assert ranked.top == 10
    assert (ranked.ranks >= 1).all()
    of_rows = NewestPairs(config, rows, {}).ranked(version, "pairs")
    assert len(of_rows.ranks) == chosen
    monkeypatch.setattr(newest_pairs, "PAIRS", 30)
    newest = NewestPairs(config, rows, {}).ranked(version, "pairs")
    np.testing.assert_array_equal(newest.ranks, of_rows.ranks[-30:])
    nothing = NewestPairs(config, [], recent.columns_of(np.arange(len(recent)))).ranked(version, "pairs")
    assert (len(nothing.ranks), nothing.alike) == (0, False)
    for batch in rows:
        del batch.columns["user_id"]
    with pytest.raises(BadInput, match="data: expected a column 'user_id'"):
        NewestPairs(config, rows, {}).ranked(version, "pairs")
