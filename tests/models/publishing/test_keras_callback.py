"""The callback in real fits: what is served is what the model has, for every optimizer."""

import numpy as np
import pytest

from freshet_serving.models.publishing.publisher import Publisher
from freshet_serving.processor.errors import BadInput, ParentRolledBack
from freshet_serving.processor.package.delta import read_delta
from freshet_serving.processor.repository.log.change_log import ChangeLog
from freshet_serving.processor.repository.model_repository import Repository
from tests.models.publishing.keras_models import assert_served_is, make_data, make_model, parts_of

# What Keras itself does when it saves a model.
pytestmark = [pytest.mark.tensorflow, pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")]
keras = pytest.importorskip("keras", reason="needs the train extra")

OPTIMIZERS = {
    "SGD": (lambda: keras.optimizers.SGD(0.5), True),
    "SGD, clipped": (lambda: keras.optimizers.SGD(0.5, clipnorm=0.1), True),
    "SGD with momentum": (lambda: keras.optimizers.SGD(0.5, momentum=0.9), False),
    "SGD with averages": (lambda: keras.optimizers.SGD(0.5, use_ema=True, ema_overwrite_frequency=3), False),
    "SGD, gradients gathered": (lambda: keras.optimizers.SGD(0.5, gradient_accumulation_steps=3), False),
    "Adagrad": (lambda: keras.optimizers.Adagrad(0.5), True),
    "Adagrad with decay": (lambda: keras.optimizers.Adagrad(0.5, weight_decay=0.1), False),
    "Adam": (lambda: keras.optimizers.Adam(0.01), False),
    "AdamW": (lambda: keras.optimizers.AdamW(0.01), False),
}


def fit(model, callback, seed=0, epochs=1, **options):
    model.fit(
        *make_data(seed=seed, **options), batch_size=8, epochs=epochs, verbose=0, shuffle=False, callbacks=[callback]
    )


@pytest.mark.long
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_served_weights_equal_the_model_for_every_optimizer(repository, model, name):
    optimizer, collected = OPTIMIZERS[name]
    model.compile(optimizer(), "binary_crossentropy")
    publisher = Publisher(repository, "ctr")
    callback = publisher.keras(every_batches=2)

    fit(model, callback)

    assert_served_is(Publisher(repository, "ctr"), model)
    # Averages are written into the model when the fit ends.
    assert publisher.generation.step == (5 if "averages" in name else 4)
    assert callback.generation == publisher.generation
    delta = read_delta(repository / "ctr/1/deltas/4.safetensors")
    items = set(make_data()[0]["item"][-16:].ravel().tolist())
    if collected:
        assert set(delta.tables["item_rows.embeddings"].keys.tolist()) == items


@pytest.mark.long
def test_callback_can_be_reused_across_fits_and_optimizers(repository, model):
    model.compile(keras.optimizers.SGD(0.5), "binary_crossentropy")
    callback = Publisher(repository, "ctr").keras(every_batches=4)
    fit(model, callback)
    model.compile(keras.optimizers.Adam(0.01), "binary_crossentropy")
    fit(model, callback, seed=1)
    assert_served_is(Publisher(repository, "ctr"), model)


def test_served_weights_equal_a_full_export_bitwise(repository, model, tmp_path):
    from freshet_serving.compiler.imports.importing import import_model

    model.compile(keras.optimizers.Adagrad(0.5), "binary_crossentropy")
    publisher = Publisher(repository, "ctr")
    fit(model, publisher.keras(every_batches=3))
    model.save(tmp_path / "trained.keras")
    import_model(tmp_path / "trained.keras", tmp_path / "exported", "ctr")
    exported = Publisher(tmp_path / "exported", "ctr")
    assert parts_of(publisher.served(), publisher.manifest) == parts_of(exported.served(), exported.manifest)


def test_rows_with_dense_gradients_are_compared(repository):
    """A regularised embedding moves as a whole, whatever was looked up."""
    model = make_model(regularised=True)
    model.compile(keras.optimizers.SGD(0.5), "binary_crossentropy")
    fit(model, Publisher(repository, "ctr").keras(every_batches=2))
    assert_served_is(Publisher(repository, "ctr"), model)
    assert len(read_delta(repository / "ctr/1/deltas/4.safetensors").tables["item_rows.embeddings"].keys) == 30


@pytest.mark.long
def test_previously_compiled_fit_is_tracked_too(repository, model):
    model.compile(keras.optimizers.SGD(0.5), "binary_crossentropy", steps_per_execution=2)
    model.fit(*make_data(seed=5), batch_size=8, verbose=0)
    publisher = Publisher(repository, "ctr")
    callback = publisher.keras(every_batches=4)
    model.evaluate(*make_data(seed=5), batch_size=8, verbose=0, callbacks=[callback])
    fit(model, callback)
    assert_served_is(publisher, model)
    assert publisher.generation.step == 2


def test_removed_rows_stay_removed_until_restored(repository, model):
    model.compile(keras.optimizers.SGD(0.5), "binary_crossentropy")
    callback = Publisher(repository, "ctr").keras(every_batches=2)
    callback.remove("user_rows.embeddings", ["u3", "u4"])
    fit(model, callback)
    publisher = Publisher(repository, "ctr")
    gone = publisher.ids("user_rows.embeddings", ["u3", "u4"])
    assert not publisher.served().rows("user_rows.embeddings", gone)[0].any()
    callback.restore("user_rows.embeddings", ["u3", "u4"])
    callback.publish()
    assert_served_is(publisher, model)


def unknown_row(publisher, table):
    there, rows = publisher.served().rows(table, publisher.ids(table, [None]))
    assert there.all()
    return rows[0].tolist()


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_rows_follow_the_model_and_its_rollbacks_out_of_vocabulary_too(repository, model, optimizer):
    model.compile(optimizer, "binary_crossentropy")
    publisher = Publisher(repository, "ctr")
    callback = publisher.keras(every_batches=4)
    layers = [model.get_layer(f"{name}_rows") for name in ("user", "code", "item")]

    def rows():
        return [layer.embeddings.numpy() for layer in layers]

    def check_unknown():
        served = [unknown_row(publisher, f"{layer.name}.embeddings") for layer in layers[:2]]
        assert served == [array[0].tolist() for array in rows()[:2]]

    imported = rows()
    fit(model, callback, unknown=True)
    check_unknown()
    before = rows()
    assert all((array[0] != first[0]).any() for array, first in zip(before, imported))
    fit(model, callback, seed=1, unknown=True)
    ChangeLog.of(Repository(repository).version("ctr")).rollback(2)

    callback.publish()

    assert [array.tobytes() for array in rows()] == [array.tobytes() for array in before]
    fit(model, callback, seed=2, unknown=True)
    check_unknown()
    assert_served_is(Publisher(repository, "ctr"), model)


def test_model_can_start_from_the_served_weights(repository, model, imported):
    model.compile(keras.optimizers.SGD(0.5), "binary_crossentropy")
    publisher = Publisher(repository, "ctr")
    fit(model, publisher.keras())
    steps = publisher.generation.step
    ChangeLog.of(Repository(repository).version("ctr")).rollback(0)

    again = keras.saving.load_model(imported[1])
    again.compile(keras.optimizers.SGD(0.5), "binary_crossentropy")
    with pytest.raises(ParentRolledBack, match="pass the generation at which the weights were saved"):
        fit(again, Publisher(repository, "ctr").keras())
    again.get_layer("score").bias.assign([5.0])
    callback = Publisher(repository, "ctr").keras(begin="served", every_batches=1000)
    fit(again, callback)
    assert callback.generation.step == steps + 1
    assert_served_is(Publisher(repository, "ctr"), again)


def test_callback_is_unusable_before_its_fit(repository):
    callback = Publisher(repository, "ctr").keras()
    for ask in (callback.publish, lambda: callback.restore("user", [1])):
        with pytest.raises(BadInput, match=r"callback: call fit\(\) with this callback first"):
            ask()
    assert np.isfinite(callback.generation.step)


def sequence_model(layer):
    """A list of items of any length, in the model through attention or a recurrent layer, and a word."""
    layers = keras.layers
    seen = keras.Input((None,), dtype="int64", name="seen")
    word = keras.Input((1,), dtype="string", name="word")
    steps = layers.Embedding(20, 4, name="items")(seen)
    if layer == "attention":
        steps = layers.LayerNormalization(name="norm")(layers.MultiHeadAttention(2, 2)(steps, steps))
        # Its scale is a scalar.
        steps = layers.Attention(use_scale=True, name="again")([steps, steps])
        state = layers.GlobalAveragePooling1D()(steps)
    else:
        state = getattr(layers, layer)(3)(steps)
    own = layers.Flatten()(layers.Embedding(4, 2, name="words")(layers.StringLookup(vocabulary=["a", "b", "c"])(word)))
    return keras.Model([seen, word], layers.Dense(1, name="score")(layers.Concatenate()([state, own])))


@pytest.mark.parametrize("layer", ["attention", *(pytest.param(n, marks=pytest.mark.long) for n in ("GRU", "LSTM"))])
def test_generations_of_a_model_of_free_length_score_as_the_model(tmp_path, layer):
    import tensorflow as tf

    from freshet_serving.compiler.imports.importing import ImportOptions, import_model
    from freshet_serving.processor.columns import Ragged, Strings
    from freshet_serving.processor.engine import PredictRequest, Processor, ProcessorConfig

    keras.utils.set_random_seed(1)
    model = sequence_model(layer)
    model.export(str(tmp_path / "exported"), format="tf_saved_model", verbose=False)
    import_model(tmp_path / "exported", tmp_path / "models", "free", options=ImportOptions(buckets=(1, 8)))
    draw = np.random.default_rng(2)
    seen = draw.integers(0, 20, (16, 5))
    words = np.array(["a", "b", "c", "stranger"] * 4)
    inputs = {"seen": seen, "word": tf.constant(words[:, None])}
    model.compile(keras.optimizers.Adam(0.05), "mse")
    callback = Publisher(tmp_path / "models", "free").keras(every_batches=1)

    with Processor.initialize(ProcessorConfig(repository=str(tmp_path / "models"), sessions=1)) as processor:
        for step in range(3):
            if step:
                model.fit(inputs, draw.random((16, 1)), batch_size=8, verbose=0, callbacks=[callback])
            processor.poll()
            columns = {
                "seen": Ragged(seen.ravel(), np.arange(17) * 5),
                "word": Strings.of([word.encode() for word in words]),
            }
            (got,) = processor.process(PredictRequest("free", columns)).outputs.values()
            np.testing.assert_allclose(got.ravel(), model.predict(inputs, verbose=0).ravel(), rtol=1e-5, atol=1e-5)
