import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="importing needs the train extra")

from freshet_serving.compiler.frameworks import tf
from freshet_serving.compiler.imports.importing import ImportOptions, import_model
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.repository.version import VersionReader
from tests.compiler.imports.foreign import saved

pytestmark = pytest.mark.tensorflow

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
        import_model(source, repository, "ids")
    samples = {"x": [[1.0, 0.5], [4.0, 0.25], [0.0, 1.0]]}
    found = import_model(source, repository, "ids", options=ImportOptions(samples=samples))

    assert [t.name for t in VersionReader(found.folder).manifest.tables] == ["items"]
