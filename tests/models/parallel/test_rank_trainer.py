"""Several processes that learn the same batches as one, each a thread here: scores, rows, counters, all of it."""

import dataclasses

import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="training needs the train extra")

from freshet_serving.models.config.table_sections import TableConfig
from freshet_serving.models.embedding.optimizer import OPTIMIZERS
from freshet_serving.models.training.spec import draft
from freshet_serving.models.training.trainer import Trainer
from freshet_serving.processor.errors import BadInput
from tests.models.parallel.fakes import Together, thread_ranks
from tests.models.training.streams import FEATURES, PARTS, SEQUENCES, make_batch, make_config
from tests.models.zoo.sequence_models import make_batch as history_batch
from tests.models.zoo.sequence_models import manifest

pytestmark = [pytest.mark.tensorflow, pytest.mark.long]

TABLES = {
    "user": TableConfig(admit_after=2),
    "item": TableConfig(admit_after=3, admit_by="bloom", admit_ids=50, evict_after_steps=9),
    "tag": TableConfig(evict_below_norm=0.02, init="normal", train={"optimizer": "adagrad"}),
}
FEW_ROWS = (3, 1, 2, 64, 17)


HASH_SEEDS = {"city": 2**62 + 5, "tag": 9}
"""Drawn by rank 0 alone, so the others have them of it."""


def arguments(features=FEATURES, tables=TABLES, **settings):
    config = make_config("x", features, **settings)
    return draft(config, {}, HASH_SEEDS), config.train, config.network, None, tables


def batches(count, weighed=False, users=400, items=300):
    start = 0
    for n, rows in enumerate([64] * (count // 2) + [*FEW_ROWS] + [64] * (count - count // 2 - len(FEW_ROWS))):
        batch = make_batch(rows, 5, users, items, start)
        start += rows
        if weighed and n % 2:
            batch = dataclasses.replace(batch, weight=np.linspace(0, 2, rows).astype(np.float32))
        yield batch


def assert_alike(one, many, within):
    for name, table in one.tables.items():
        for what in ("export", "changes"):
            wanted, found = getattr(table, what)(), getattr(many.tables[name], what)()
            for part in PARTS:
                a, b = getattr(wanted, part), getattr(found, part)
                assert a.shape == b.shape, (name, what, part)
                if a.dtype == np.int64:
                    assert np.array_equal(a, b), (name, what, part)
                elif part == "rows":
                    np.testing.assert_allclose(a, b, atol=within, err_msg=f"{name} {what}")
            wanted, found = getattr(table.admission, what)(), getattr(many.tables[name].admission, what)()
            assert wanted.keys() == found.keys()
            assert all(np.array_equal(wanted[part], found[part]) for part in wanted), (name, what)


@pytest.mark.parametrize(
    ("optimizer", "processes"),
    [
        ("adagrad", 3),
        ("adam", 2),
        *(pytest.param(name, 2 + n % 3, marks=pytest.mark.campaign) for n, name in enumerate(OPTIMIZERS)),
        pytest.param("adagrad", 4, marks=pytest.mark.campaign),
    ],
)
def test_several_processes_learn_like_one(optimizer, processes):
    given = arguments(optimizer=optimizer, clip_norm=0.5)
    one = Trainer(*given)
    with Together(processes, *given) as many:
        for n, batch in enumerate(batches(50, weighed=True)):
            assert one.learn(batch) == pytest.approx(many.learn(many.transform(batch)), abs=1e-5)
            if n % 10 == 9:
                assert one.evict() == many.evict()
        probe = make_batch(200, 9, 400, 300)
        off = np.abs(one.score(probe.columns) - many.score(probe.columns)).max()
        print(optimizer, processes, off)
        assert off <= 1e-5
        np.testing.assert_allclose(
            one.dense_inputs(probe.columns)["x"], many.dense_inputs(probe.columns)["x"], atol=1e-4
        )
        assert_alike(one, many, 1e-4)


def test_sequences_and_multiple_cores_per_process_learn_equally():
    given = arguments(SEQUENCES, {}, batch_rows=512, arch="dcn")
    one = Trainer(*given)
    with Together(2, *given) as many:
        for start in range(0, 512 * 12, 512):
            batch = make_batch(512, 3, 900, 700, start)
            one.learn(batch)
            many.learn(batch)
        probe = make_batch(100, 9)
        assert np.abs(one.score(probe.columns) - many.score(probe.columns)).max() <= 1e-5
        assert_alike(one, many, 1e-4)


def test_histories_learn_like_in_one_process():
    _, settings, network, _, _ = arguments()
    given = manifest("freshet_serving.models.zoo.stca:build", 7, floats=True), settings, network, None, {}
    one = Trainer(*given)
    with Together(3, *given) as many:
        for n in range(12):
            batch = history_batch(64, (7, 3, 9, 0, 1), n, floats=True)
            if n % 2:
                # Each process has rows with the same histories, which it computes once.
                batch = batch.take(np.repeat(np.arange(16), 4))
            assert one.learn(batch) == pytest.approx(many.learn(batch), abs=1e-5)
        probe = history_batch(100, (7, 3, 9, 0, 1), 99, floats=True)
        assert np.abs(one.score(probe.columns) - many.score(probe.columns)).max() <= 1e-5
        assert_alike(one, many, 1e-4)


def test_budgeted_tables_learn_like_those_in_memory(tmp_path):
    in_memory = arguments(tables={})
    tiered = (*in_memory[:4], {"user": TableConfig(memory_mb=1), "item": TableConfig(memory_mb=1)}, tmp_path)
    with Together(2, *in_memory) as plain, Together(2, *tiered) as many:
        for table in many.own.values():
            if table.tiers is not None:
                table.tiers.most = 20
        for batch in batches(40):
            plain.learn(batch)
            many.learn(batch)
        probe = make_batch(100, 9, 400, 300)
        assert np.array_equal(plain.score(probe.columns), many.score(probe.columns))
        assert len(many.own["user"].tiers.cold) > 0
        assert_alike(plain, many, 0)


def test_float16_transfer_halves_bytes_with_nearly_equal_scores():
    given = arguments(tables={})
    halved = (given[0], dataclasses.replace(given[1], wire="float16"), *given[2:])
    with Together(2, *given) as exact, Together(2, *halved) as many:
        for batch in batches(40):
            exact.learn(batch)
            many.learn(batch)
        probe = make_batch(100, 9, 400, 300)
        off = np.abs(exact.score(probe.columns) - many.score(probe.columns)).max()
        assert 0 < off <= 5e-3
        assert many.ranks.sent_nbytes < 0.8 * exact.ranks.sent_nbytes


def test_network_with_batch_statistics_is_refused():
    given = arguments(tables={})
    manifest, settings, network, *rest = given
    network = dataclasses.replace(network, options={"hidden": (8,)}, loss="tests.models.parallel.losses:pairs")
    with pytest.raises(BadInput, match="treat each row alone"), Together(2, manifest, settings, network, *rest):
        pass


def test_more_processes_than_shards_are_refused():
    ranks = thread_ranks(1)[0]
    ranks.size = 2000
    from freshet_serving.models.parallel.rank_trainer import RankTrainer

    with pytest.raises(BadInput, match="at most 1,024"):
        RankTrainer(ranks, *arguments())
