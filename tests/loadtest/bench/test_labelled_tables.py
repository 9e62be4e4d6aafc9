import numpy as np

from loadtest.bench.labelled_tables import CLICK_COLUMNS, TABLES, AdClicks


def test_synthetic_clicks_have_the_stated_rate_and_are_reproducible():
    table = AdClicks(20_000, seed=3)
    whole = next(table.batches(20_000))
    assert 20 < whole.label.sum() < 90
    again = np.concatenate([batch.columns["app"] for batch in AdClicks(20_000, seed=3).batches(7000)])
    np.testing.assert_array_equal(again, whole.columns["app"])
    assert all(whole.columns[name].max() < ids for name, (ids, _, _) in CLICK_COLUMNS.items())
    assert len(np.unique(whole.columns["ip"])) > 10_000


def test_synthetic_table_opens_without_data_or_training_settings(tmp_path):
    for table in TABLES.values():
        if table.data:
            continue
        source, features = table.open(tmp_path)
        config = table.config(features)
        assert [f.name for f in config.features] == list(features)
        assert (config.train.optimizer, config.train.batch_rows, config.model.arch) == ("", 0, table.arch)
        assert source.count_rows() >= 10_000
