"""The network's step: sizes of executables, networks with a state of their own, and what a checkpoint gives back."""

import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="training needs the train extra")

from freshet_serving.compiler.frameworks import keras
from freshet_serving.models.config.model_section import NetworkConfig
from freshet_serving.models.config.train_config import parse_config
from freshet_serving.models.config.train_section import TrainSettings
from freshet_serving.models.training.defaults import chosen
from freshet_serving.models.training.dense_step import DenseStep, _mover_size, _size
from freshet_serving.models.training.losses import mean_shares
from freshet_serving.models.training.spec import draft
from tests.models.zoo.sequence_models import manifest

pytestmark = pytest.mark.tensorflow


def normalised(layout, seed=0):
    """A user's own network, which keeps statistics of its batches."""
    x = keras.Input((layout.width,))
    h = keras.layers.BatchNormalization(momentum=0.0, name="norm")(x)
    initial = keras.initializers.GlorotUniform(seed)
    return keras.Model(x, keras.layers.Dense(1, kernel_initializer=initial, name="out")(h))


def make_step(arch="deepfm", train=None, **model):
    raw = {"model": {"name": "m", "arch": arch, **model}, "data": {"path": "x.csv", "label": "y"}, "train": train or {}}
    config = parse_config(raw | {"features": {"a": {"kind": "float", "transform": "none"}, "b": {"kind": "float"}}})
    settings = chosen(config.train, config.features, None)
    return DenseStep(draft(config, {}), settings, config.network)


def learn(step, x, label):
    step.ready(len(x))
    step.fill(lambda rows, inputs: np.copyto(inputs["x"], x[rows]))
    loss, _ = step.gradients(label, mean_shares(len(label), None))
    step.move()
    return loss


@pytest.mark.parametrize(
    ("rows", "batch_rows", "size"),
    [
        (512, 512, 512),
        (129, 512, 512),
        (128, 512, 128),
        (1, 512, 128),
        (8, 32, 32),
        (600, 512, 1024),
        (250, 32, 512),
        (513, 32, 1024),
        (1, 1, 1),
        (5, 7, 7),
    ],
)
def test_batch_uses_the_smallest_of_few_padded_sizes(rows, batch_rows, size):
    assert _size(rows, batch_rows) == size


def test_run_with_many_batch_sizes_compiles_four_executables():
    """A run over 3,000 rows spent most of its time in the compiler: nine executables, one for each odd size."""
    step = make_step(hidden=[4], train={"batch_rows": 32})
    for rows in (32, 8, 26, 16, 32):
        learn(step, np.zeros((rows, 2), np.float32), np.ones(rows, np.float32))
    for rows in (32, 16, 26, 250, 263):
        assert len(step.score(rows, lambda rows, inputs: inputs["x"].fill(0.5))) == rows
    assert sorted(step._functions) == [("gradients", 32, 0), ("moves", 1, 0), ("scores", 32, 0), ("scores", 512, 0)]


@pytest.mark.parametrize(
    ("length", "rows", "parts"), [(50, 512, [73] * 6 + [74]), (50, 64, [64]), (1000, 40, [13, 13, 14])]
)
def test_parts_hold_few_events_and_few_rows_of_long_histories(length, rows, parts):
    """1,024 rows of 50 events took four times as long a row as 64 did."""
    described = manifest("freshet_serving.models.zoo.din:build", length)
    step = DenseStep(described, TrainSettings(batch_rows=512, seed=0), NetworkConfig({}))
    assert sorted(stop - start for start, stop in step._shares(rows)) == parts


@pytest.mark.parametrize(("parts", "size"), [(1, 1), (2, 2), (3, 4), (25, 32)])
def test_a_few_executables_add_up_any_number_of_parts(parts, size):
    assert _mover_size(parts) == size


def test_batch_statistics_use_only_real_rows():
    step = make_step(f"{__name__}:normalised")
    random = np.random.default_rng(0)
    for rows in (7, 3):
        x = random.standard_normal((rows, 2)).astype(np.float32)
        learn(step, x, np.ones(rows, np.float32))
        weights = step.weights()
        np.testing.assert_allclose(weights["norm/moving_mean"], x.mean(axis=0), rtol=1e-5)
        np.testing.assert_allclose(weights["norm/moving_variance"], x.var(axis=0), rtol=1e-4)


def test_restored_step_continues_bitwise_even_from_keras_checkpoints():
    one, other = make_step(hidden=[4]), make_step(hidden=[4])
    random = np.random.default_rng(1)
    batches = [(random.standard_normal((9, 2)).astype(np.float32), np.ones(9, np.float32)) for _ in range(4)]
    for batch in batches[:2]:
        learn(one, *batch)
    state = one.state.optimizer() | {"0001": np.array(0.5, np.float32)}
    other.state.restore(one.weights(), state)
    assert [learn(one, *batch) for batch in batches[2:]] == [learn(other, *batch) for batch in batches[2:]]
    for name, array in one.weights().items():
        assert array.tobytes() == other.weights()[name].tobytes()


def test_replaced_weights_start_with_a_fresh_optimizer():
    step = make_step(hidden=[4])
    learn(step, np.ones((4, 2), np.float32), np.ones(4, np.float32))
    weights = {name: array + 1 for name, array in step.weights().items()}
    step.begin_with(weights)
    assert {name: array.tobytes() for name, array in step.weights().items()} == {
        name: array.tobytes() for name, array in weights.items()
    }
    state = step.state.optimizer()
    assert int(state["0000"]) == 0
    assert not any(array.any() for name, array in state.items() if name != "0000")
