"""Variables of a Keras model as tables, weights and keys of its package; what cannot be told is refused by name."""

import dataclasses

import numpy as np
import pytest

from freshet_serving.models.publishing.keras_mapping import _lookups, map_variables
from freshet_serving.models.publishing.publisher import Publisher
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.package import Manifest, Output, TableEntry
from tests.models.publishing.keras_models import CODES, USERS

pytestmark = [pytest.mark.tensorflow, pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")]
keras = pytest.importorskip("keras", reason="needs the train extra")


UNKNOWN = -(2**63)


def fit(repository, model, **given):
    publisher = Publisher(repository, "ctr")
    return map_variables(model, publisher.manifest, given, publisher.published_keys)


def rows_by_key(found, table):
    keys = next(keys for entry, keys, _ in found.tables if entry.name == table)
    return dict(zip(keys.keys.tolist(), keys.rows.tolist())), keys.unknown


def test_every_variable_is_a_table_or_weight_with_vocabulary_keys(repository, model):
    found = fit(repository, model)
    publisher = Publisher(repository, "ctr")

    assert sorted(entry.name.partition(".")[0] for entry, _, _ in found.tables) == [
        "code_rows", "item_rows", "kind_rows", "seen_rows", "user_rows",
    ]  # fmt: skip
    assert {name: list(v.shape) for name, v in found.dense.items()} == publisher.manifest.dense
    users = publisher.ids("user_rows.embeddings", USERS).tolist()
    assert rows_by_key(found, "user_rows.embeddings") == (
        {UNKNOWN: 0} | {key: row for row, key in enumerate(users, 1)},
        -1,
    )
    assert rows_by_key(found, "code_rows.embeddings") == (
        {UNKNOWN: 0} | {key: row for row, key in enumerate(CODES, 1)},
        -1,
    )
    for table, rows in (("item_rows", 30), ("kind_rows", 16), ("seen_rows", 50)):
        assert rows_by_key(found, f"{table}.embeddings") == ({row: row for row in range(rows)}, -1)


def towers(names, rows=21):
    """A model of embeddings by row number alone, with these names."""
    inputs = [keras.Input((1,), dtype="int64", name=f"{name}_index") for name in names]
    parts = [
        keras.layers.Flatten()(keras.layers.Embedding(rows, 4, name=name)(one)) for name, one in zip(names, inputs)
    ]
    return keras.Model(inputs, keras.layers.Add()(parts) if len(parts) > 1 else parts[0])


def test_nested_model_has_the_same_names(repository, model):
    class Outer(keras.Model):
        def __init__(self):
            super().__init__(name="outer")
            self.inner = model

        def call(self, inputs):
            return self.inner(inputs)

    inner, outer = fit(repository, model), fit(repository, Outer())
    assert {entry.name for entry, _, _ in outer.tables} == {entry.name for entry, _, _ in inner.tables}
    assert outer.dense.keys() == inner.dense.keys()


def test_trained_table_that_deltas_cannot_update_is_refused(repository, model):
    publisher = Publisher(repository, "ctr")
    staged = dataclasses.replace(publisher.manifest, copies={"item_rows.embeddings": ""})

    with pytest.raises(BadInput, match=r"table 'item_rows\.embeddings' cannot be changed by deltas"):
        map_variables(model, staged, {}, publisher.published_keys)
    model.get_layer("item_rows").trainable = False
    try:
        assert map_variables(model, staged, {}, publisher.published_keys).tables
    finally:
        model.get_layer("item_rows").trainable = True


def test_table_that_is_also_a_weight_is_mapped_as_both(repository, model):
    publisher = Publisher(repository, "ctr")
    path = model.get_layer("item_rows").embeddings.path
    dense = {**publisher.manifest.dense, path: [30, 4]}
    tied = dataclasses.replace(publisher.manifest, dense=dense, copies={"item_rows.embeddings": path})
    found = map_variables(model, tied, {}, publisher.published_keys)

    assert found.dense[path] is model.get_layer("item_rows").embeddings
    assert "item_rows.embeddings" in {entry.name for entry, _, _ in found.tables}


def test_undeterminable_keys_are_requested_and_accepted(repository):
    with pytest.raises(BadInput, match="cannot determine the keys of the rows of layer 'user_rows'"):
        fit(repository, towers(["user_rows"]))
    found = fit(repository, towers(["user_rows"]), user_rows=[None, *USERS])
    assert (
        rows_by_key(found, "user_rows.embeddings")[0]
        == rows_by_key(
            fit(repository, towers(["user_rows"]), **{"user_rows.embeddings": np.array([None, *USERS])}),
            "user_rows.embeddings",
        )[0]
    )
    assert len(found.tables[0][1].keys) == 20
    found = fit(repository, towers(["code_rows"]), code_rows=[None, *CODES, *range(200, 200)])
    assert rows_by_key(found, "code_rows.embeddings")[0][CODES[0]] == 1


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"user_rows": list(range(5))}, "keys of 'user_rows.embeddings': expected strings, the type of its features"),
        ({"user_rows": ["a"] * 22}, "keys of 'user_rows.embeddings': expected at most 21"),
        ({"user_rows": USERS, "usr": []}, "keys: expected an embedding layer or a table, got 'usr'"),
    ],
)
def test_mismatched_keys_are_refused(repository, given, message):
    with pytest.raises(BadInput, match=message):
        fit(repository, towers(["user_rows"]), **given)


def test_trained_variable_missing_from_the_package_is_refused(repository):
    message = r"variable 'shop_rows/embeddings' of shape \[21, 4\] is trained but is not among the package's tables"
    with pytest.raises(BadInput, match=message):
        fit(repository, towers(["shop_rows"]))


def test_untrained_variable_missing_from_the_package_is_listed(repository):
    model = towers(["shop_rows"])
    model.get_layer("shop_rows").trainable = False
    assert list(fit(repository, model).left_out) == ["shop_rows/embeddings"]


class FeatureCross(keras.layers.Layer):
    """The layer of keras-rs: x0 * dense(dense(x)) + x, of layers that it makes when it is built."""

    width = 3

    def build(self, input_shape):
        self.down = keras.layers.Dense(self.width, use_bias=False)
        self.up = keras.layers.Dense(input_shape[-1])
        self.down.build(input_shape)
        self.up.build((*input_shape[:-1], self.width))
        self.built = True

    def call(self, x0, x):
        return x0 * self.up(self.down(x)) + x


def crossed():
    item = keras.Input((1,), dtype="int64", name="item")
    x0 = keras.layers.Flatten()(keras.layers.Embedding(30, 4)(item))
    x = FeatureCross()(x0, FeatureCross()(x0, x0))
    return keras.Model(item, keras.layers.Dense(1, name="score")(x))


def package_of(model):
    """The manifest of a model's import; published keys are row numbers."""
    table = next(v for v in model.variables if v.path.endswith("embeddings"))
    dense = {v.path: [int(n) for n in v.shape] for v in model.variables if v is not table}
    entry = TableEntry(table.path.replace("/", "."), 4, 30)
    return Manifest("ctr", 1, "imported", 0.0, [], [], [entry], [Output("score")], 4, dense, {})


def test_layers_that_keras_numbered_anew_keep_their_variables():
    imported, again = crossed(), crossed()
    package = package_of(imported)

    for model in (imported, again, keras.models.clone_model(imported)):
        found = map_variables(model, package, {}, lambda table: np.arange(30))

        assert dict(zip(found.dense, map(id, found.dense.values()))) == {
            path: id(variable) for path, variable in zip(package.dense, model.variables[1:])
        }
        assert [variable for _, _, variable in found.tables] == model.variables[:1]


def test_saved_names_without_inner_layers_find_their_variables():
    # As a SavedModel of keras-rs has them: TensorFlow counts the kernels of each layer.
    again = crossed()
    outer = [v.path.split("/")[0] for v in again.variables]
    saved = {
        "feature_cross/kernel": [4, 3], "feature_cross/kernel_3": [3, 4], "feature_cross/bias": [4],
        "feature_cross_1/kernel": [4, 3], "feature_cross_1/kernel_3": [3, 4], "feature_cross_1/bias": [4],
        "score/kernel": [4, 1], "score/bias": [1],
    }  # fmt: skip
    package = dataclasses.replace(package_of(again), dense=saved)

    found = map_variables(again, package, {}, lambda table: np.arange(30))

    assert len(found.dense) == 8
    first, second = sorted({name for name in outer if name.startswith("feature_cross")}, key=lambda n: (len(n), n))
    for name, variable in found.dense.items():
        assert [int(n) for n in variable.shape] == saved[name]
        layer = {"feature_cross": first, "feature_cross_1": second}.get(name.split("/")[0], "score")
        assert variable.path.startswith(f"{layer}/")


def test_name_that_fits_two_variables_is_nobodys():
    # Both of an inner layer's kernels are 4 by 4, so a name without the inner layer says neither.
    x = keras.Input((4,), name="x")
    square = type("FeatureCross", (FeatureCross,), {"width": 4})
    model = keras.Model(x, square()(x, x))
    saved = {"feature_cross/kernel": [4, 4], "feature_cross/kernel_3": [4, 4], "feature_cross/bias": [4]}
    package = dataclasses.replace(package_of(crossed()), tables=[], dense=saved)
    with pytest.raises(BadInput, match=r"kernel' of shape \[4, 4\] is trained but is not among"):
        map_variables(model, package, {}, lambda table: np.arange(30))


def test_equal_paths_in_nested_models_are_refused_with_the_remedy():
    def tower():
        x = keras.Input((4,))
        return keras.Model(x, keras.layers.Dense(4, name="turn")(x))

    x = keras.Input((4,), name="x")
    model = keras.Model(x, keras.layers.Add()([tower()(x), tower()(x)]))
    saved = {"turn/kernel": [4, 4], "turn/kernel_3": [4, 4], "turn/bias": [4], "turn/bias_3": [4]}
    package = dataclasses.replace(package_of(crossed()), tables=[], dense=saved)
    with pytest.raises(BadInput, match=r"'turn/kernel': expected a path of its own.*names of their own"):
        map_variables(model, package, {}, lambda table: np.arange(30))


def test_another_number_of_numbered_layers_is_refused():
    package = package_of(crossed())
    x = keras.Input((4,), name="x")
    with pytest.raises(
        BadInput, match=r"variable 'feature_cross_\d+/dense_\d+/kernel' of shape \[4, 3\] is trained but"
    ):
        map_variables(keras.Model(x, FeatureCross()(x, x)), package, {}, lambda table: np.arange(30))


def test_names_that_keras_did_not_number_are_taken_as_they_are():
    package = dataclasses.replace(
        package_of(towers(["tower_1", "tower_2"], 30)), tables=[TableEntry("tower_1.embeddings", 4, 30)]
    )
    with pytest.raises(BadInput, match="variable 'tower_2/embeddings'"):
        map_variables(towers(["tower_2"], 30), dataclasses.replace(package, dense={}), {}, lambda table: np.arange(30))


def test_lookup_behind_a_layer_that_keeps_its_values_is_the_embedding_s():
    keras = pytest.importorskip("keras")
    lookup, embedding = keras.layers.StringLookup(vocabulary=["a", "b"]), keras.layers.Embedding(3, 2)
    embedding(keras.layers.Reshape((2, 1))(lookup(keras.Input((2,), dtype="string"))))
    assert list(_lookups(embedding)) == [lookup]
