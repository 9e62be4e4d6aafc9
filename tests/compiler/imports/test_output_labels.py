"""Strings that a SavedModel gathers from constants are served: ids of a retrieval model, names of classes."""

import numpy as np
import pytest

from freshet_serving.compiler.frameworks import tf
from freshet_serving.compiler.imports.importing import ImportOptions, import_model
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.repository.version import VersionReader
from tests.compiler.imports.foreign import saved, variable
from tests.compiler.imports.replies import declared_replies

DIM, USERS, CANDIDATES, BEST = 8, 20, 30, 4


class BruteForce(tf.Module):
    """Retrieval as TensorFlow Recommenders' BruteForce computes it: identifiers in a variable of strings."""

    def __init__(self):
        self.users = variable(1, USERS, DIM, name="users")
        self.candidates = variable(2, CANDIDATES, DIM, name="candidates")
        self.identifiers = tf.Variable([f"item {i}".encode() for i in range(CANDIDATES)], name="identifiers")

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64, name="user")])
    def retrieve(self, user):
        scores = tf.matmul(tf.gather(self.users, user), self.candidates, transpose_b=True)
        values, places = tf.math.top_k(scores, BEST)
        return {"output_1": values, "output_2": tf.gather(self.identifiers, places)}


class Echo(tf.Module):
    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="x")])
    def serve(self, x):
        return {"y": tf.strings.lower(x)}


def test_identifiers_of_a_retrieval_model_are_served(tmp_path):
    module = BruteForce()
    source = saved(module, tmp_path / "model", module.retrieve)
    imported = import_model(source, tmp_path / "repository", "retrieve", options=ImportOptions(buckets=(32,)))
    outputs = {o.name: o for o in VersionReader(imported.folder).manifest.outputs}
    assert (outputs["output_2"].dtype, len(outputs["output_2"].labels)) == ("string", CANDIDATES)
    user = np.arange(USERS)
    found = declared_replies(tmp_path / "repository", "retrieve", {"user": user})["output_2"]
    own = module.retrieve(tf.constant(user))["output_2"].numpy()
    assert found.tolist() == [[t.decode() for t in row] for row in own]


def test_strings_that_follow_from_inputs_are_refused_with_the_reason(tmp_path):
    module = Echo()
    with pytest.raises(BadInput, match="at least one output of numbers or labels"):
        import_model(saved(module, tmp_path / "model", module.serve), tmp_path / "repository", "echo")


class Classifier(tf.Module):
    """The best class and the class of an id, by tables of a vocabulary file and of pairs."""

    def __init__(self, vocabulary):
        by_line = tf.lookup.TextFileInitializer(
            str(vocabulary),
            tf.int64,
            tf.lookup.TextFileIndex.LINE_NUMBER,
            tf.string,
            tf.lookup.TextFileIndex.WHOLE_LINE,
        )
        self.names = tf.lookup.StaticHashTable(by_line, "other")
        pairs = tf.lookup.KeyValueTensorInitializer(tf.constant([2, 5], tf.int64), ["two", "five"])
        self.pairs = tf.lookup.StaticHashTable(pairs, "none")

    @tf.function(
        input_signature=[tf.TensorSpec([None, 3], tf.float32, name="x"), tf.TensorSpec([None], tf.int64, name="id")]
    )
    def classify(self, x, id):
        scores, places = tf.math.top_k(x, 2)
        names = self.names.lookup(tf.cast(places, tf.int64))
        best = tf.expand_dims(self.names.lookup(tf.argmax(x, 1)), 1)
        return {"scores": scores, "classes": names, "best": best, "name": self.pairs.lookup(id)}


def test_labels_of_lookup_tables_are_served(tmp_path):
    vocabulary = tmp_path / "vocabulary.txt"
    vocabulary.write_text("red\ngreen\n")
    module = Classifier(vocabulary)
    source = saved(module, tmp_path / "model", module.classify)
    import_model(source, tmp_path / "repository", "m", options=ImportOptions(buckets=(4,)))
    x, ids = np.array([[1, 2, 3], [3, 2, 1]], np.float32), np.array([2**40 + 2, 5])
    found = declared_replies(tmp_path / "repository", "m", {"x": x, "id": ids})
    assert found["classes"].tolist() == [["other", "green"], ["red", "green"]]
    assert found["best"].tolist() == [["other"], ["red"]]
    assert found["name"].tolist() == ["none", "five"]
