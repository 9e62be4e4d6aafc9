"""Stretches: a run with rows on disk is the run with all of them in memory, to the bit, whatever ends it."""

import threading

import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="training needs the train extra")

from freshet_serving.models.config.table_sections import TableConfig
from freshet_serving.models.data.prefetch import PrefetchPipeline
from freshet_serving.models.embedding import tiered_rows
from freshet_serving.models.training import prefetch_windows
from freshet_serving.models.training.spec import draft, measure_scaling
from freshet_serving.models.training.trainer import Trainer
from freshet_serving.processor.kernels.rows import LOGGED
from tests.models.embedding.test_variable import assert_same
from tests.models.training.streams import MixedSource, make_config

pytestmark = pytest.mark.tensorflow

ROWS, BATCH = 640, 32
IN_TIERS = {"user": TableConfig(memory_mb=1), "tag": TableConfig(memory_mb=1)}


def make_trainer(folder, tables=None):
    config, source = make_config(folder), MixedSource(ROWS)
    scaling = measure_scaling(source, config.features)
    return Trainer(draft(config, scaling), config.train, config.network, tables=tables, scratch=folder)


@pytest.fixture
def trainers(tmp_path):
    """Two trainers of one model: with few rows in memory, and with all of them there."""
    tiered, plain = make_trainer(tmp_path, IN_TIERS), make_trainer(tmp_path)
    for name in IN_TIERS:
        tiered.tables[name].tiers.most = 12
    return tiered, plain


def batches():
    return MixedSource(ROWS).batches(BATCH)


def assert_equal(tiered, plain):
    for name, table in plain.tables.items():
        assert_same(tiered.tables[name].export(), table.export())
    for name, weight in plain.dense.weights().items():
        assert tiered.dense.weights()[name].tobytes() == weight.tobytes()


@pytest.mark.parametrize("read_ids", [1, 700, 1 << 21])
def test_training_with_prefetch_windows_equals_training_in_memory(trainers, monkeypatch, read_ids):
    monkeypatch.setattr(prefetch_windows, "READ_IDS", read_ids)
    tiered, plain = trainers
    losses = [plain.learn(batch) for batch in batches()]
    found, fetched, enter_window = [], [], tiered_rows.TieredRows.enter_window

    def counted(table, ids, prefetched):
        fetched.append(len(prefetched.records))
        enter_window(table, ids, prefetched)

    monkeypatch.setattr(tiered_rows.TieredRows, "enter_window", counted)
    with tiered.with_prefetched_rows(PrefetchPipeline(batches(), tiered.transform)) as works:
        for work in works:
            # Read where they lie, and brought into memory.
            tiered.score(work)
            found.append(tiered.learn(work))
    assert found == losses
    assert_equal(tiered, plain)
    assert sum(fetched) > 0 or read_ids > ROWS * 10
    assert len(tiered.tables["user"].tiers.cold) > 0 or read_ids > ROWS * 10


def test_training_without_prefetch_windows_and_scores_are_equal_too(trainers):
    tiered, plain = trainers
    for batch in batches():
        assert tiered.learn(batch) == plain.learn(batch)
    assert_equal(tiered, plain)
    for name in IN_TIERS:
        tiered.tables[name].shrink_to_budget()
    assert len(tiered.tables["user"].tiers.cold) > 0
    for batch in batches():
        assert tiered.score(batch.columns).tobytes() == plain.score(batch.columns).tobytes()
    assert_equal(tiered, plain)


def test_every_row_of_a_prefetch_window_is_in_memory(trainers, monkeypatch):
    monkeypatch.setattr(prefetch_windows, "READ_IDS", 1)
    tiered, _ = trainers
    with tiered.with_prefetched_rows(PrefetchPipeline(batches(), tiered.transform)) as works:
        for work in works:
            for name in IN_TIERS:
                for _, ids in tiered._values(name, work.bound):
                    assert (tiered.tables[name].find(ids) < LOGGED).all()
            tiered.learn(work)


def test_table_without_a_budget_needs_no_prefetch_windows(trainers):
    ahead = PrefetchPipeline(iter([1, 2]))
    with trainers[1].with_prefetched_rows(ahead) as items:
        assert items is ahead
        assert list(items) == [1, 2]


def threads():
    return [t for t in threading.enumerate() if t.name == "ahead"]


@pytest.mark.parametrize("taken", [0, 1, 7])
def test_stopping_early_ends_the_threads(trainers, monkeypatch, taken):
    monkeypatch.setattr(prefetch_windows, "READ_IDS", 300)
    tiered, _ = trainers
    before = len(threads())
    with tiered.with_prefetched_rows(PrefetchPipeline(batches(), tiered.transform)) as works:
        for _ in range(taken):
            tiered.learn(next(works))
    assert len(threads()) == before


def test_error_follows_all_earlier_items(trainers, monkeypatch):
    monkeypatch.setattr(prefetch_windows, "READ_IDS", 300)
    tiered, _ = trainers

    def broken():
        for number, batch in enumerate(batches()):
            if number == 9:
                raise ValueError("the ninth")
            yield batch

    with tiered.with_prefetched_rows(PrefetchPipeline(broken(), tiered.transform)) as works:
        for _ in range(9):
            tiered.learn(next(works))
        with pytest.raises(ValueError, match="the ninth"):
            next(works)


def test_item_with_several_batches_stays_one_item(trainers):
    tiered, plain = trainers

    def pairs():
        found = list(batches())
        return iter([found[i : i + 2] for i in range(0, len(found), 2)])

    with tiered.with_prefetched_rows(
        PrefetchPipeline(pairs(), lambda two: [tiered.transform(one) for one in two]), list
    ) as chunks:
        lengths = [len([tiered.learn(work) for work in chunk]) for chunk in chunks]
    assert lengths == [2] * (ROWS // BATCH // 2)
    for batch in batches():
        plain.learn(batch)
    assert_equal(tiered, plain)
    assert np.isfinite(tiered.tables["user"].export().rows).all()
