"""Several labels, weights of rows, dropout and an own network of several logits: from batches to what is served."""

import dataclasses

import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="training needs the train extra")

from freshet_serving.compiler.frameworks import keras
from freshet_serving.models.config.model_section import ModelConfig, NetworkConfig
from freshet_serving.models.data.formats import DataConfig
from freshet_serving.models.training.loop import TrainingRun
from freshet_serving.models.training.losses import mean_shares
from freshet_serving.models.training.published_baseline import PublishedBaseline
from freshet_serving.models.training.spec import draft
from freshet_serving.models.training.trainer import Trainer
from freshet_serving.models.zoo.arch import Arch
from freshet_serving.processor.engine import PredictRequest, Processor, ProcessorConfig
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.repository.model_repository import Repository
from tests.models.training.streams import MixedSource, make_batch, make_config

pytestmark = pytest.mark.tensorflow


class TwoLabels(MixedSource):
    """Every other row that is 1 is so by the second label too."""

    def batches(self, rows, start=0):
        for batch in super().batches(rows, start):
            yield two_labels(batch)


def two_labels(batch):
    second = batch.label * (np.arange(batch.start, batch.end) % 2)
    return dataclasses.replace(batch, label=np.stack([batch.label, second], axis=1).astype(np.float32))


def config_of(repository, arch="mmoe", labels=("click", "buy"), fusion=None, **options):
    config = make_config(repository, full_rows=256, delta_rows=64)
    return dataclasses.replace(
        config,
        model=ModelConfig("mixed", arch, options={"hidden": (8,)} | options),
        data=DataConfig("x", "csv", labels if len(labels) > 1 else labels[0]),
        fusion=fusion or {},
    )


def trainer_of(config):
    return Trainer(draft(config, {}), config.train, config.network, config.fusion)


@pytest.mark.long
@pytest.mark.usefixtures("quick")
def test_two_labels_are_trained_published_and_served_through_every_delta(tmp_path):
    config = config_of(tmp_path, experts=2, tower=(4,), fusion={"final": "click ** 1.0 * buy ** 0.5"})
    run = TrainingRun(config, TwoLabels(384))
    probe = make_batch(20, seed=2)
    generations = [str(run.full())]
    version = Repository(tmp_path).version("mixed", 1)
    frozen = PublishedBaseline(version, run.trainer.dense)
    np.testing.assert_array_equal(frozen.score(probe.columns), run.trainer.score(probe.columns))
    generations += [str(generation) for generation in run.stream()]

    assert generations == ["1.0", "1.1", "1.2"]
    assert version.manifest.notes["labels"] == {"click": "click", "buy": "buy"}
    assert {o.name: o.columns for o in version.manifest.outputs} == {"buy": 1, "click": 1, "final": 1}
    assert len(run.held_out) == 26
    click, buy = (run.evaluation_metrics.labels[label].scored for label in ("click", "buy"))
    assert (len(buy), click) == (26, run.held_out)
    assert click.auc() != buy.auc()
    wanted = run.trainer.score(probe.columns)
    assert wanted.shape == (20, 2)
    with Processor.initialize(ProcessorConfig(str(tmp_path), sessions=1)) as processor:
        outputs = processor.process(PredictRequest("mixed", probe.columns)).outputs
        np.testing.assert_allclose(np.hstack([outputs["click"], outputs["buy"]]), wanted, atol=1e-5)
        np.testing.assert_allclose(outputs["final"][:, 0], wanted[:, 0] * np.sqrt(wanted[:, 1]), atol=1e-5)


def step(network, x, label, weight=None):
    """One step on x [n, width] -> (loss, gradient by x)."""
    network.ready(len(x))
    network.fill(lambda rows, inputs: np.copyto(inputs["x"], x[rows]))
    loss, pieces = network.gradients(label, mean_shares(len(label), weight))
    network.move()
    return loss, np.concatenate([piece.by_inputs["x"] for piece in pieces])


def test_row_weight_counts_as_that_many_rows(tmp_path):
    config = make_config(tmp_path)
    network = trainer_of(config).dense
    first = network.weights(), network.state.optimizer()
    random = np.random.default_rng(0)
    x, label = random.standard_normal((8, network.graph.width), np.float32), (np.arange(8) % 2).astype(np.float32)
    loss, grad = step(network, x, label, np.array([6, *[3] * 6, 0], np.float32))
    weights = network.weights()
    network.state.restore(*first)
    again, gradient = step(network, np.concatenate([x[:7], x[:1]]), np.concatenate([label[:7], label[:1]]))

    assert loss == pytest.approx(again, rel=1e-5)
    np.testing.assert_allclose(grad[1:7], gradient[1:7], rtol=1e-4, atol=1e-7)
    np.testing.assert_allclose(grad[0], gradient[0] + gradient[7], rtol=1e-4, atol=1e-7)
    assert (grad[7] == 0).all()
    for name, array in network.weights().items():
        np.testing.assert_allclose(array, weights[name], rtol=1e-3, atol=1e-5)


def test_dropout_applies_in_training_only_and_continues_from_checkpoints(tmp_path):
    config = config_of(tmp_path, "deepfm", ("label",), dropout=0.5, hidden=(8, 8))
    trainer, other = trainer_of(config), trainer_of(config)
    operations = {op.type for op in trainer.dense.graph.concrete.graph.get_operations()}
    assert not {kind for kind in operations if "Random" in kind or "Stateless" in kind}
    batches = [make_batch(32, seed=n) for n in range(4)]
    for batch in batches[:2]:
        trainer.learn(batch)
    state = trainer.dense.weights(), trainer.dense.state.optimizer()
    x = trainer.dense_inputs(batches[2].columns)["x"]
    losses = [step(trainer.dense, x, batches[2].label)[0] for _ in range(2)]
    other.dense.state.restore(*state)
    assert [step(other.dense, x, batches[2].label)[0] for _ in range(2)] == losses
    other.dense.state.restore(state[0], {n: a for n, a in state[1].items() if n[0].isdigit()})
    assert [step(other.dense, x, batches[2].label)[0] for _ in range(2)] != losses
    scores = trainer.score(batches[3].columns)
    np.testing.assert_array_equal(trainer.score(batches[3].columns), scores)


def test_dropout_does_not_change_initial_weights():
    from freshet_serving.models.zoo.deepfm import build
    from tests.models.zoo.layouts import make_layout

    plain, dropped = (build(make_layout(4, 4), (6, 5), dropout=share, seed=2).logits for share in (0.0, 0.5))
    for a, b in zip(plain.trainable_variables, dropped.trainable_variables, strict=True):
        assert a.path == b.path
        np.testing.assert_array_equal(a.numpy(), b.numpy())


def test_custom_model_with_several_logits_has_one_output_per_label():
    x = keras.Input((3,))
    logits = keras.layers.Dense(2, name="d")(x)
    arch = Arch.of(keras.Model(x, logits), ("click", "buy"))
    rows = np.ones((2, 3), np.float32)
    scores = arch.scores(rows)
    probabilities = np.hstack([scores[name].numpy() for name in arch.outputs])
    np.testing.assert_allclose(probabilities, 1 / (1 + np.exp(-arch.logits(rows).numpy())), atol=1e-6)
    assert arch.outputs == ("click", "buy")
    with pytest.raises(BadInput, match=r"to logits \[n, 3\] of a, b, c"):
        Arch.of(keras.Model(x, logits), ("a", "b", "c"))
    with pytest.raises(BadInput, match=r"expected one logit \[n, 1\] and as many outputs, got 2 and 2"):
        Arch.of(arch, ("click",))


def test_options_unknown_to_the_network_are_refused_at_build(tmp_path):
    config = make_config(tmp_path)
    with pytest.raises(BadInput, match=r"model\.hiden: unknown key; expected one of hidden, dropout"):
        Trainer(draft(config, {}), config.train, NetworkConfig({"hiden": 3}))


def test_custom_arch_without_its_named_outputs_is_refused(tmp_path, monkeypatch):
    def build(layout, seed=0):
        x = keras.Input((layout.width,))
        logits = keras.layers.Dense(1, name="d")(x)
        return Arch(keras.Model(x, logits), keras.Model(x, {"ctr": keras.ops.sigmoid(logits)}), ("score",))

    monkeypatch.setattr("freshet_serving.models.training.dense_step.resolve_arch", lambda name: build)
    monkeypatch.setattr("freshet_serving.models.zoo.arch.resolve_arch", lambda name: build)
    config = make_config(tmp_path)
    with pytest.raises(BadInput, match=r"arch: expected an output 'score' \[n, 1\], got ctr"):
        Trainer(dataclasses.replace(draft(config, {}), arch="its own"), config.train)
