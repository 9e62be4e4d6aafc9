"""Signatures of a SavedModel that read the same inputs are served by one version; what they share is computed once."""

import numpy as np
import pytest

from freshet_serving.compiler.frameworks import keras, saved_model_pb2, tf
from freshet_serving.compiler.imports.feeds import own_names_of
from freshet_serving.compiler.imports.foreign import open_source
from freshet_serving.compiler.imports.importer import Importer
from freshet_serving.compiler.imports.importing import ImportOptions, import_model
from freshet_serving.processor.package import CLASSIFY, PREDICT, REGRESS
from freshet_serving.processor.repository.version import VersionReader
from tests.compiler.imports.foreign import saved, variable, without_deprecations
from tests.compiler.imports.replies import replies
from tests.peers.peer_models import save_half_plus_two

SMALL = ImportOptions(buckets=(1, 16))
USER = tf.TensorSpec([None], tf.int64, name="user")


class Two(tf.Module):
    """A score and a vector of the same user, in a body of their own each, and a signature of another input."""

    def __init__(self):
        self.users = variable(1, 12, 8, name="users")
        self.last = variable(2, 8, 1, name="last")

    @tf.function(input_signature=[USER])
    def score(self, user):
        return {"score": tf.gather(self.users, user) @ self.last}

    @tf.function(input_signature=[USER])
    def vector(self, user):
        return {"vector": tf.gather(self.users, user), "score": tf.gather(self.users, user) @ self.last}

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64, name="item")])
    def other(self, item):
        return {"vector": tf.gather(self.users, item)}


def test_signatures_of_one_graph_reply_with_their_own_outputs(tmp_path):
    with without_deprecations():
        save_half_plus_two(tmp_path / "model")
    imported = import_model(tmp_path / "model", tmp_path / "repository", "half", options=SMALL)
    manifest = VersionReader(imported.folder).manifest
    assert {s.name: s.method for s in manifest.signatures} == {
        "serving_default": PREDICT,
        "classify_x_to_y": CLASSIFY,
        "regress_x_to_y": REGRESS,
        "regress_x_to_y2": REGRESS,
    }
    # y is computed once, whatever it is called.
    assert [o.name for o in manifest.outputs] == ["regress_x_to_y2.outputs", "y"]
    assert {given: o.name for given, o in manifest.replies("classify_x_to_y").items()} == {"scores": "y"}
    assert imported.report["notes"] == ["signature 'regress_x2_to_y3' is left out: it reads other inputs"]


def test_signatures_of_own_bodies_share_one_table_and_lookup(tmp_path):
    module = Two()
    signatures = {"serving_default": module.score, "vector": module.vector, "other": module.other}
    with without_deprecations():
        tf.saved_model.save(module, str(tmp_path / "model"), signatures=signatures)
    imported = import_model(tmp_path / "model", tmp_path / "repository", "two", options=SMALL)
    manifest = VersionReader(imported.folder).manifest
    assert [f.name for f in manifest.features] == ["user"]
    assert [t.name for t in manifest.tables] == ["users"]
    assert [s.outputs for s in manifest.signatures] == [
        {"score": "score"},
        {"score": "score", "vector": "vector.vector"},
    ]
    user = np.arange(12)
    found = replies(tmp_path / "repository", "two", {"user": user})
    np.testing.assert_allclose(found["vector.vector"], module.users.numpy(), rtol=1e-6)
    np.testing.assert_allclose(found["score"], module.users.numpy() @ module.last.numpy(), rtol=1e-5)


def test_model_under_two_names_is_computed_once(tmp_path):
    """As Keras exports it; a recurrent network is a loop, of which the graph has one for each name."""
    past, item = keras.Input((None,), dtype="int64", name="past"), keras.Input((), dtype="int64", name="item")
    rows = keras.layers.Embedding(12, 4, mask_zero=True)
    both = keras.layers.Concatenate()([keras.layers.GRU(4)(rows(past)), rows(item)])
    keras.Model([item, past], keras.layers.Dense(1)(both)).export(str(tmp_path / "model"), verbose=False)
    imported = import_model(tmp_path / "model", tmp_path / "repository", "gru", options=SMALL)
    manifest = VersionReader(imported.folder).manifest
    assert len(manifest.outputs) == 1
    assert {s.name: s.outputs for s in manifest.signatures} == {
        name: {"output_0": manifest.outputs[0].name} for name in ("serving_default", "serve")
    }


@pytest.mark.parametrize("shape", [[], [1]])
def test_signatures_without_rows_are_served_row_by_row(shape, tmp_path):
    module = tf.Module()
    module.serve = tf.function(
        lambda x: {"y": 0.5 * x + 3.0}, input_signature=[tf.TensorSpec(shape, tf.float32, name="x")], autograph=False
    )
    with without_deprecations():
        tf.saved_model.save(module, str(tmp_path / "model"), signatures={"serving_default": module.serve})
    import_model(tmp_path / "model", tmp_path / "repository", "half", options=SMALL)
    found = replies(tmp_path / "repository", "half", {"x": np.array([2.0, 4.0], np.float32)})["y"]
    assert found.ravel().tolist() == [4.0, 5.0]


class Named(tf.Module):
    """One input and one output; TensorFlow gives them other names in the signature than a package may."""

    @tf.function(input_signature=[tf.TensorSpec([None, 2], tf.float32, name="age")])
    def score(self, age):
        return {"p:click": tf.reduce_sum(age, 1, keepdims=True)}


def test_names_of_a_signature_are_kept_beside_plain_ones(tmp_path):
    module = Named()
    folder = saved(module, tmp_path / "model", module.score)
    path = folder / "saved_model.pb"
    message = saved_model_pb2.SavedModel.FromString(path.read_bytes())
    inputs = message.meta_graphs[0].signature_def["serving_default"].inputs
    inputs["user:age in years"].CopyFrom(inputs["age"])
    del inputs["age"]
    path.write_bytes(message.SerializeToString())
    with open_source(folder) as source:
        importer = Importer(source, user=["user:age in years"])
        (signature,) = importer.signatures()
    assert (signature.outputs, own_names_of(source.inputs)) == (
        {"p:click": "p_click"}, {"user:age in years": "user_age_in_years"},
    )  # fmt: skip
