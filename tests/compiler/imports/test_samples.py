import numpy as np
import pytest

from freshet_serving.compiler.frameworks import tf
from freshet_serving.compiler.imports import importer
from freshet_serving.compiler.imports.importing import ImportOptions, import_model
from freshet_serving.compiler.imports.package_proof import prove
from freshet_serving.processor.columns import Ragged, Strings
from freshet_serving.processor.engine import PredictRequest
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.repository.version import VersionReader
from tests.compiler.imports.foreign import saved, variable
from tests.compiler.imports.replies import replies, started

WORDS = tf.TensorSpec([None], tf.string, name="words")


def test_given_samples_replace_generated_ones_that_the_model_refuses(tmp_path):
    class Model(tf.Module):
        @tf.function(input_signature=[WORDS])
        def score(self, words):
            return {"score": tf.strings.to_number(tf.strings.regex_replace(words, "EUR", ""))}

    module = Model()
    source, repository = saved(module, tmp_path / "model", module.score), tmp_path / "repository"
    with pytest.raises(BadInput, match="the model accepts no generated inputs: give some with --samples"):
        import_model(source, repository, "prices")
    with pytest.raises(BadInput, match="expected a list of rows for input 'words'"):
        import_model(source, repository, "prices", options=ImportOptions(samples={"word": ["1"]}))

    import_model(source, repository, "prices", options=ImportOptions(samples={"words": ["1EUR", "2.5EUR"]}))


def test_onnx_file_that_lacks_samples_gets_its_tables_with_them(tmp_path):
    """Ids in columns of floats: generated floats are none. Without tables it would take no deltas."""
    helper = pytest.importorskip("onnx.helper")
    rows = np.arange(20, dtype=np.float32).reshape(5, 4)
    nodes = [
        helper.make_node("Slice", ["x", "first", "second", "columns"], ["column"]),
        helper.make_node("Cast", ["column"], ["ids"], to=7),
        helper.make_node("Gather", ["items", "ids"], ["found"]),
        helper.make_node("ReduceSum", ["found", "both"], ["score"], keepdims=0),
    ]
    numbers = {"first": [0], "second": [1], "columns": [1], "both": [1, 2]}
    weights = [helper.make_tensor(name, 7, [len(value)], value) for name, value in numbers.items()]
    weights.append(helper.make_tensor("items", 1, rows.shape, rows.ravel()))
    ends = [helper.make_tensor_value_info(n, 1, d) for n, d in (("x", ["n", 2]), ("score", ["n"]))]
    graph = helper.make_graph(nodes, "ids", ends[:1], ends[1:], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    source, repository = tmp_path / "ids.onnx", tmp_path / "repository"
    source.write_bytes(model.SerializeToString())
    with pytest.raises(BadInput, match="the model accepts no generated inputs: give some with --samples"):
        import_model(source, repository, "ids", options=ImportOptions(translate=True))
    samples = {"x": [[1.0, 0.5], [4.0, 0.25], [0.0, 1.0]]}
    found = import_model(source, repository, "ids", options=ImportOptions(samples=samples, translate=True))

    assert [t.name for t in VersionReader(found.folder).manifest.embeddings] == ["items"]


def test_model_that_gives_nan_for_empty_lists_is_imported(tmp_path, monkeypatch):
    """What is computed of NaN is no promise of any library: lists with values are compared alone."""

    class Mean(tf.Module):
        def __init__(self):
            self.items = variable(1, 20, 4, name="items")

        @tf.function(input_signature=[tf.TensorSpec([None], tf.int64, n) for n in ("values", "splits")])
        def score(self, values, splits):
            rows = tf.RaggedTensor.from_row_splits(tf.gather(self.items, values), splits, validate=False)
            return {"score": tf.reduce_sum(tf.reduce_mean(rows, 1), 1)}

    seen = []

    def with_another_nan(model, *arguments):
        seen.append([bool(np.diff(sample["history"].row_splits).all()) for sample in model.samples])
        if not all(seen[-1]):
            raise BadInput("output 'score' differs by 0 from TensorFlow's")
        return prove(model, *arguments)

    monkeypatch.setattr(importer, "prove", with_another_nan)
    module = Mean()
    source, repository = saved(module, tmp_path / "model", module.score), tmp_path / "repository"
    together, empty = {"history": ("values", "splits")}, {"history": [[1, 2], []]}
    with pytest.raises(BadInput, match="differs by 0 from"):
        import_model(source, repository, "mean", options=ImportOptions(ragged=together, samples=empty))
    imported = import_model(source, repository, "mean", options=ImportOptions(ragged=together, buckets=(1, 16)))
    assert all(seen[-1])
    assert any("the model gives NaN for them" in note for note in imported.report["notes"])
    values, splits = np.arange(9), np.array([0, 1, 4, 9])
    got = replies(repository, "mean", {"history": Ragged(values, splits)})["score"]
    np.testing.assert_allclose(got.reshape(-1), module.score(values, splits)["score"], atol=1e-5)


def test_assertion_inside_a_branch_is_kept_in_the_stage(tmp_path):
    class Checked(tf.Module):
        def __init__(self):
            self.rows = variable(1, 8, 4, name="rows")

        @tf.function(input_signature=[WORDS])
        def score(self, words):
            def hashed():
                tf.debugging.assert_less(tf.reduce_max(tf.strings.length(words)), 5, "a long word")
                return tf.strings.to_hash_bucket_fast(tf.strings.regex_replace(words, "x", ""), 8)

            ids = tf.cond(tf.size(words) > 1, hashed, lambda: tf.strings.to_hash_bucket_fast(words, 8))
            return {"score": tf.reduce_sum(tf.gather(self.rows, ids), 1)}

    module = Checked()
    source, repository = saved(module, tmp_path / "model", module.score), tmp_path / "repository"
    import_model(source, repository, "checked", options=ImportOptions(buckets=(1, 16)))
    words = [b"ax", b"b", b"cx"]
    with started(repository) as processor:
        got = processor.process(PredictRequest("checked", {"words": Strings.of(words)})).outputs["score"]
        np.testing.assert_allclose(got.reshape(-1), module.score(tf.constant(words))["score"], atol=1e-5)
        with pytest.raises(BadInput, match="the model refuses these inputs"):
            processor.process(PredictRequest("checked", {"words": Strings.of([b"a", b"abcdef"])}))
