from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="training needs the train extra")

from freshet_serving.compiler.frameworks import tf
from freshet_serving.models.embedding.variable import EmbeddingVariable
from freshet_serving.models.evaluation.quality import ScoredRows
from freshet_serving.models.training import trainer as trainer_module
from freshet_serving.models.training.spec import draft
from freshet_serving.models.training.trainer import Trainer
from freshet_serving.processor.columns import Ragged, Strings
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.kernels.hashing import hash_strings
from tests.models.training.streams import (
    FEATURES,
    SEQUENCES,
    MixedSource,
    differing,
    make_batch,
    make_config,
    odd_batch,
    snapshot,
)
from tests.models.training.trainers import make_trainer

pytestmark = pytest.mark.tensorflow


@pytest.fixture(scope="module")
def trainer(tmp_path_factory):
    """A trainer that has seen six batches; tests may go on with it, none may count on where it stands."""
    trainer = make_trainer(make_config(tmp_path_factory.mktemp("r")), MixedSource(384))
    for batch in MixedSource(384).batches(64):
        trainer.learn(batch)
    return trainer


@pytest.fixture(scope="module")
def dlrm(tmp_path_factory):
    return make_trainer(make_config(tmp_path_factory.mktemp("r"), arch="dlrm", optimizer="adam"), MixedSource(384))


@pytest.fixture(scope="module")
def sequences(tmp_path_factory):
    """Lists without a combiner: rows side by side and a mask."""
    return make_trainer(make_config(tmp_path_factory.mktemp("r"), SEQUENCES), MixedSource(384))


def ids_of(column):
    """(ids, row splits or None) of a column as the model sees them."""
    splits = column.row_splits if isinstance(column, Ragged) else None
    values = column.values if isinstance(column, Ragged) else column
    return (hash_strings(values, 0) if isinstance(values, Strings) else values), splits


def tensorflow_loss(trainer, batch, rows):
    """The loss of a batch and its gradient by table, in nothing but TensorFlow; rows: {table: (sorted keys, rows)}."""
    variables = {name: tf.Variable(values) for name, (_, values) in rows.items()}
    weights = trainer.dense.weights()
    for variable in trainer.dense.arch.logits.variables:
        variable.assign(weights[variable.path])
    with tf.GradientTape() as tape:
        columns = []
        for f in trainer.manifest.features:
            column = batch.columns[f.name]
            if f.kind == "float":
                value = tf.constant(column, tf.float64)
                if f.log1p:
                    value = tf.sign(value) * tf.math.log1p(tf.abs(value))
                value = (value - f.mean) * f.scale
                columns.append(
                    tf.cast(tf.where(tf.math.is_nan(value), tf.zeros_like(value), value), tf.float32)[:, None]
                )
                continue
            ids, splits = ids_of(column)
            places = np.searchsorted(rows[f.table][0], ids)
            if splits is None:
                columns.append(tf.gather(variables[f.table], places))
                continue
            pooled = []
            for start, stop in zip(splits, splits[1:]):
                stop = min(stop, start + f.max_length) if f.max_length else stop
                if f.combiner == "none":
                    there = tf.reshape(tf.gather(variables[f.table], places[start:stop]), (-1,))
                    dim, count = trainer.tables[f.table].dim, int(stop - start)
                    mask = np.arange(f.max_length) < count
                    absent = np.zeros((f.max_length - count) * dim, np.float32)
                    pooled.append(tf.concat([there, absent, mask.astype(np.float32)], axis=0))
                    continue
                total = tf.reduce_sum(tf.gather(variables[f.table], places[start:stop]), axis=0)
                count = max(1, int(stop - start))
                pooled.append(total / {"sum": 1.0, "mean": count, "sqrtn": count**0.5}[f.combiner])
            columns.append(tf.stack(pooled))
        logits = tf.reshape(trainer.dense.arch.logits(tf.concat(columns, axis=1)), (-1,))
        loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(batch.label, logits))
    grads = tape.gradient(loss, list(variables.values()))
    return float(loss), {name: tf.convert_to_tensor(g).numpy() for name, g in zip(variables, grads)}


@pytest.mark.parametrize("which", ["trainer", "sequences"])
def test_gradient_of_every_row_equals_a_pure_tensorflow_model(which, request, monkeypatch):
    trainer = request.getfixturevalue(which)
    batch, seen = make_batch(48, seed=9), {}
    for f in trainer.manifest.features:
        if f.table:
            trainer.tables[f.table].insert(ids_of(batch.columns[f.name])[0])
    rows = {name: (e.keys, e.rows) for name, e in ((n, t.export()) for n, t in trainer.tables.items())}
    loss, wanted = tensorflow_loss(trainer, batch, rows)

    def capture(table, touched, sums, met, rate, step):
        places = np.full(len(table.rows), -1)
        places[table.find(rows[table.name][0])] = np.arange(len(rows[table.name][0]))
        seen[table.name] = np.zeros_like(wanted[table.name])
        seen[table.name][places[touched]] = sums

    monkeypatch.setattr(EmbeddingVariable, "update", capture)

    assert trainer.learn(batch) == pytest.approx(loss, rel=1e-5)
    assert seen.keys() == wanted.keys()
    for name, gradient in wanted.items():
        assert np.abs(gradient).max() > 0
        np.testing.assert_allclose(seen[name], gradient, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("arch", ["trainer", "dlrm"])
def test_loss_decreases_on_learnable_data(arch, request):
    trainer = request.getfixturevalue(arch)
    source = MixedSource(1024, seed=5)
    losses = [[trainer.learn(batch) for batch in source.batches(64)] for _ in range(4)]
    assert np.mean(losses[3]) < 0.8 * np.mean(losses[0])
    assert np.mean(losses[3]) < 0.5


def log_loss(trainer, batch):
    scored = ScoredRows()
    scored.add(batch.label, trainer.score(batch.columns))
    return scored.log_loss()


def test_learning_returns_the_loss_before_its_step(trainer):
    batch = make_batch(64, seed=2)
    trainer.learn(batch)
    before = log_loss(trainer, batch)
    assert trainer.learn(batch) == pytest.approx(before, rel=1e-5)
    assert log_loss(trainer, batch) < before


def test_scoring_changes_nothing_and_creates_no_rows(trainer):
    before, rows = snapshot(trainer), {name: len(t) for name, t in trainer.tables.items()}
    for table in trainer.tables.values():
        table.clear_changed()
    for batch in (odd_batch(), make_batch(30, seed=77, users=10_000)):
        scores = trainer.score(batch.columns)
        assert scores.shape == (len(batch),)
        assert ((scores >= 0) & (scores <= 1)).all()
    assert differing(snapshot(trainer), before) == []
    assert {name: len(t) for name, t in trainer.tables.items()} == rows
    assert not any(len(t.changes().keys) for t in trainer.tables.values())


def test_unseen_id_scores_like_zeros(trainer):
    unseen = odd_batch()
    x = trainer.dense_inputs(unseen.columns)["x"]
    user = next(f for f in trainer.manifest.features if f.name == "user")
    assert (x[[0, 1, 4, 5], user.offset : user.offset + user.width] == 0).all()


def test_row_scores_equally_alone_or_in_a_batch(trainer):
    batch = make_batch(20, seed=4)
    together = trainer.score(batch.columns)
    alone = [trainer.score(batch.slice(i, i + 1).columns)[0] for i in range(20)]
    np.testing.assert_allclose(together, alone, atol=1e-6)


@pytest.mark.parametrize("arch", ["deepfm", "dcn"])
def test_scores_of_a_step_are_those_that_servers_gave_before_it(arch, tmp_path, monkeypatch):
    monkeypatch.setattr(trainer_module, "APART_ROWS", 0)
    stepped, scored = (make_trainer(make_config(tmp_path, arch=arch), MixedSource(384)) for _ in range(2))
    own, rows = stepped.score, []
    monkeypatch.setattr(stepped, "score", lambda work: rows.append(len(work.batch)) or own(work))
    for batch in [*MixedSource(384).batches(64), *MixedSource(384).batches(64)]:
        expected = scored.score(batch.columns)
        loss, scores = stepped.learn_scored(stepped.transform(batch))
        np.testing.assert_allclose(scores, expected, rtol=1e-4, atol=1e-6)
        assert loss == scored.learn(batch)
    assert differing(snapshot(stepped), snapshot(scored)) == []
    # All of the first batches, then rows with a new id.
    assert rows[0] == 64
    assert len(rows) <= 6
    assert min(rows) < 16


def test_only_rows_touched_by_a_batch_move(trainer):
    for batch in MixedSource(384).batches(64):
        trainer.learn(batch)
    before = {name: table.export() for name, table in trainer.tables.items()}
    for table in trainer.tables.values():
        table.clear_changed()
    batch = make_batch(5, seed=6)
    trainer.learn(batch)
    for name, table in trainer.tables.items():
        touched = set()
        for f in trainer.manifest.features:
            if f.table == name:
                touched |= set(ids_of(batch.columns[f.name])[0].tolist())
        assert set(table.changes().keys.tolist()) <= touched
        still = ~np.isin(before[name].keys, list(touched))
        assert still.any()
        refs = table.find(before[name].keys[still])
        assert table.rows[refs].tobytes() == before[name].rows[still].tobytes()
        assert table.slots[refs].tobytes() == before[name].slots[still].tobytes()


def test_trainers_with_equal_seed_and_stream_are_bitwise_equal(tmp_path):
    config = make_config(tmp_path, optimizer="ftrl")
    # Another thread builds a network of its own: within one, equal trainers share theirs (tests.support.shared_steps).
    with ThreadPoolExecutor(1) as another:
        trainers = [make_trainer(config), another.submit(make_trainer, config).result()]
    assert trainers[0].dense.arch.logits is not trainers[1].dense.arch.logits
    for trainer in trainers:
        for batch in MixedSource(256).batches(64):
            trainer.learn(batch)
    assert differing(*map(snapshot, trainers)) == []


def test_restored_dense_state_uses_the_configured_rate(trainer, tmp_path):
    moved = []
    for rate in (0.01, 0.0001):
        other = make_trainer(make_config(tmp_path, dense_learning_rate=rate), MixedSource(64))
        other.dense.state.restore(trainer.dense.weights(), trainer.dense.state.optimizer())
        before = other.dense.weights()
        assert {n: a.tobytes() for n, a in before.items()} == {
            n: a.tobytes() for n, a in trainer.dense.weights().items()
        }
        other.learn(make_batch(64, seed=8))
        moved.append(max(float(np.abs(a - before[n]).max()) for n, a in other.dense.weights().items()))
    assert moved[0] == pytest.approx(100 * moved[1], rel=0.02)


def test_model_of_only_floats_or_only_ids_can_be_trained(tmp_path):
    for features in (FEATURES[6:], FEATURES[:1]):
        source = MixedSource(128)
        trainer = make_trainer(make_config(tmp_path, features=features), source)
        for batch in source.batches(64):
            chosen = {f.name: batch.columns[f.name] for f in features}
            assert np.isfinite(trainer.learn(replace(batch, columns=chosen)))
        assert trainer.steps == 2


def test_unknown_architecture_or_optimizer_is_refused(tmp_path):
    manifest = draft(make_config(tmp_path), {})
    for settings, change in ((dict(optimizer="sgb"), {}), ({}, dict(arch="no_such"))):
        config = make_config(tmp_path, **settings)
        with pytest.raises(BadInput, match=r"expected .*, got '(sgb|no_such)'"):
            Trainer(replace(manifest, **change), config.train)


def test_rows_and_network_follow_the_schedule_and_clipping(tmp_path):
    batch = make_batch(64)
    halved = {"learning_rate": 0.05, "dense_learning_rate": 0.005}
    warming = make_trainer(make_config(tmp_path, warmup_steps=2), MixedSource(64))
    half = make_trainer(make_config(tmp_path, **halved), MixedSource(64))
    for trainer in (warming, half):
        trainer.learn(batch)
    assert differing(snapshot(warming), snapshot(half)) == []
    assert warming.rate_factor == 0.5
    warming.learn(batch)
    assert warming.rate_factor == 1.0
    assert warming.dense.rate == 0.01

    # A step of sgd is the rate times the gradient, so it is as long as the gradient may be.
    clipped = make_trainer(make_config(tmp_path, optimizer="sgd", learning_rate=1.0, clip_norm=1e-4), MixedSource(64))
    clipped.learn(batch)
    first = {name: table.export() for name, table in clipped.tables.items()}
    clipped.learn(batch)
    for name, table in clipped.tables.items():
        moved = np.linalg.norm(table.export().rows.astype(np.float64) - first[name].rows, axis=1)
        assert moved.max() == pytest.approx(1e-4, rel=1e-2)
