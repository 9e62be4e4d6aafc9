import dataclasses
from dataclasses import replace

import numpy as np
import pytest

from freshet_serving.models.config.feature_sections import FeatureConfig
from freshet_serving.models.config.table_sections import TableConfig
from freshet_serving.models.config.train_section import TrainSettings
from freshet_serving.models.training.defaults import BEFORE, chosen, filled, filled_line, kept, of_table
from freshet_serving.models.training.hash_choice import rows_an_id


def columns(count, dim=16):
    return [FeatureConfig(f"c{i}", "id", f"c{i}", dim) for i in range(count)] + [FeatureConfig("price", "float")]


NAMED = TrainSettings(
    batch_rows=100, epochs=1, optimizer="adagrad", learning_rate=0.3, dense_learning_rate=0.02, initial_accumulator=0.5
)


def test_settings_in_the_file_are_kept():
    assert chosen(NAMED, columns(30), 10) == NAMED
    assert filled(NAMED, BEFORE) == NAMED
    one = chosen(TrainSettings(learning_rate=0.3), columns(30), 10)
    assert (one.learning_rate, one.optimizer) == (0.3, "adagrad")


def test_every_omitted_setting_is_chosen():
    settings = chosen(TrainSettings(), columns(3), 100_000)
    assert settings == TrainSettings(
        batch_rows=256,
        epochs=1,
        optimizer="adagrad",
        learning_rate=0.1,
        dense_learning_rate=0.001,
        initial_accumulator=1e-6,
    )


@pytest.mark.parametrize(
    ("histories", "batch_rows", "epochs"),
    [(0, 0, 50), (100, 0, 50), (6040, 0, 32), (6040, 12, 3), (14_681, 0, 14), (192_000, 0, 1), (10**7, 0, 1)],
)
def test_next_item_networks_take_fifteen_hundred_steps(histories, batch_rows, epochs):
    settings = chosen(TrainSettings(batch_rows=batch_rows), columns(3), 10**6, None, histories)
    assert settings.epochs == epochs
    assert filled_line(TrainSettings(), settings, 10**6).endswith(f", {epochs} epochs" if epochs > 1 else "rows")
    assert chosen(TrainSettings(epochs=3), columns(3), 10**6, None, histories).epochs == 3


def test_more_rows_allow_up_to_double_learning_rates():
    rates = [chosen(TrainSettings(), columns(3), rows).learning_rate for rows in (None, 0, 20_000, 45_000, 10**7)]
    assert rates == pytest.approx([0.05, 0.05, 0.05, 0.075, 0.1])


@pytest.mark.parametrize(
    ("rows", "batch_rows"),
    [(0, 32), (2000, 32), (10_000, 32), (20_000, 64), (80_000, 256), (200_000, 512), (10**9, 512), (None, 512)],
)
def test_small_tables_use_small_batches(rows, batch_rows):
    assert chosen(TrainSettings(), columns(3), rows).batch_rows == batch_rows


@pytest.mark.parametrize(
    ("rows", "ones", "batch_rows", "dense_rate"),
    [
        (12_000, 0.5, 32, 0.001),
        (12_000, 0.08, 64, 0.001),
        (12_000, 0.92, 64, 0.001),
        (6_000, 0.007, 128, 0.0005),
        (50_000, 0.001, 512, 0.0005),
        (50_000, 0.01, 512, 0.001),
        # At least 32 steps are left.
        (1_000, 0.003, 32, 0.0005),
        (3_000, 0.003, 64, 0.0005),
        (None, 0.001, 512, 0.0005),
        (10**7, 0.3, 512, 0.001),
        (12_000, 0.0, 128, 0.0005),
    ],
)
def test_rare_labels_use_larger_batches_and_lower_dense_rates(rows, ones, batch_rows, dense_rate):
    settings = chosen(TrainSettings(), columns(3), rows, ones)
    assert (settings.batch_rows, settings.dense_learning_rate) == (batch_rows, pytest.approx(dense_rate, rel=0.01))


@pytest.mark.parametrize(("ones", "dense_rate"), [(0.5, 0.003), (0.02, 0.00158), (0.001, 0.0005)])
def test_network_that_reads_counts_learns_faster_where_labels_are_many(ones, dense_rate):
    counted = [replace(f, counts=True, dim=2) for f in columns(3)]
    settings = chosen(TrainSettings(batch_rows=512), counted, 200_000, ones)
    assert settings.dense_learning_rate == pytest.approx(dense_rate, rel=0.01)


def test_dense_rate_follows_the_batch_size_in_the_file():
    rates = [
        chosen(TrainSettings(batch_rows=rows), columns(3), 10_000, 0.02).dense_learning_rate for rows in (32, 128, 512)
    ]
    assert rates == pytest.approx([0.0005, 0.001 * (128 * 0.02 * 0.98 / 4) ** 0.5, 0.001])


def test_more_multiplied_embeddings_lower_the_learning_rate():
    def rates(optimizer="", dim=16):
        return [chosen(TrainSettings(optimizer=optimizer), columns(n, dim), 1000).learning_rate for n in (0, 3, 26)]

    assert rates() == [0.05, 0.05, pytest.approx(2 / 26 / 4)]
    assert rates(dim=64)[2] == pytest.approx(2 / 26 / 8)
    assert rates("adam") == pytest.approx([rate / 10 for rate in rates()])


def test_named_optimizer_starts_with_the_keras_accumulator():
    for name in ("adagrad", "ftrl"):
        assert chosen(TrainSettings(optimizer=name), columns(3), 1000).initial_accumulator == 0.1


def test_checkpoint_keeps_the_chosen_defaults_for_any_later_rows():
    first = chosen(TrainSettings(), columns(26), 10_000)
    again = filled(TrainSettings(seed=4), kept(first))
    assert again == dataclasses.replace(first, seed=4)


def test_one_line_lists_the_defaults_and_row_count():
    settings = TrainSettings()
    line = filled_line(settings, chosen(settings, columns(3), 8000), 8000)
    assert line == "defaults: adagrad 0.05, network 0.001, batch 32 for 8,000 rows"
    assert filled_line(NAMED, NAMED, 8000) == ""
    some = TrainSettings(batch_rows=64, epochs=1, optimizer="adam", learning_rate=0.01)
    assert filled_line(some, chosen(some, columns(3), None), None) == "defaults: network 0.001"


@pytest.mark.long
@pytest.mark.tensorflow
@pytest.mark.parametrize("share", [0.5, 0.03])
def test_small_table_with_a_clear_signal_needs_one_epoch(share):
    """Ids whose own chances differ; the truth has an AUC of 0.88, the former defaults came to 0.75 and 0.68 here."""
    pytest.importorskip("tensorflow", reason="training needs the train extra")
    from freshet_serving.compiler.building.auc import auc
    from freshet_serving.models.config.train_config import parse_config
    from freshet_serving.models.data.source import Batch
    from freshet_serving.models.training.spec import draft
    from freshet_serving.models.training.trainer import Trainer

    random, rows, learned = np.random.default_rng(1), 8000, 6000
    user, item = random.integers(0, 400, rows), random.integers(0, 50, rows)
    logit = random.normal(0, 1.5, 400)[user] + random.normal(0, 1.5, 50)[item] + np.log(share / (1 - share))
    label = (random.random(rows) < 1 / (1 + np.exp(-logit))).astype(np.float32)
    batch = Batch({"user": user, "item": item}, label, None, 0)
    features = {"user": {"kind": "id"}, "item": {"kind": "id"}}
    data = {"path": "x.csv", "label": "y"}
    config = parse_config({"model": {"name": "m", "hidden": [16]}, "data": data, "features": features})

    settings = chosen(config.train, config.features, learned)
    trainer = Trainer(draft(config, {}), settings, config.network)
    trainer.dense.set_initial_bias([float(np.log(share / (1 - share)))])
    for first in range(0, learned, settings.batch_rows):
        trainer.learn(batch.slice(first, min(learned, first + settings.batch_rows)))

    later = batch.slice(learned, rows)
    assert auc(later.label, trainer.score(later.columns)) > 0.8


@pytest.mark.parametrize(
    ("run", "own", "rate"),
    [
        ("adagrad", {}, 0.05),
        ("adagrad", {"optimizer": "ftrl"}, 0.05),
        ("adagrad", {"optimizer": "adam"}, 0.005),
        ("adamw", {"optimizer": "adagrad"}, 0.5),
        ("adagrad", {"optimizer": "adam", "learning_rate": 0.3}, 0.3),
        ("sgd", {"l2": 0.0}, 0.05),
    ],
)
def test_table_with_its_own_optimizer_gets_a_matching_rate(run, own, rate):
    table = of_table(TrainSettings(batch_rows=64, epochs=1, optimizer=run, learning_rate=0.05), TableConfig(train=own))
    assert table.learning_rate == pytest.approx(rate)
    assert table.optimizer == own.get("optimizer", run)


@pytest.mark.parametrize(
    ("table", "rows"),
    [
        ({"hash": "none", "hash_rows": 64}, 1),
        ({"hash": "quotient_remainder", "hash_rows": 64}, 2),
        ({"hash": "k_way", "hash_rows": 64}, 2),
        ({"hash": "k_way", "hash_rows": 64, "hash_codes": 4}, 4),
        ({"hash": "binary_code", "hash_rows": 64}, 16),
    ],
)
def test_rows_of_one_hashed_id_share_the_rate(table, rows):
    run = TrainSettings(batch_rows=64, epochs=1, optimizer="adagrad", learning_rate=0.06)
    assert rows_an_id(TableConfig(**table)) == rows
    assert of_table(run, TableConfig(**table)).learning_rate == pytest.approx(0.06 / rows)
    assert of_table(run, TableConfig(**table, train={"learning_rate": 0.3})).learning_rate == 0.3
