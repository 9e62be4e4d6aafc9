"""What a backend has no words for is left to the stage, and the rest of the network is compiled."""

import numpy as np
import pytest

from freshet_serving.compiler.frameworks import tf
from freshet_serving.compiler.imports import importer
from freshet_serving.compiler.imports.importing import ImportOptions, import_model
from tests.compiler.imports.foreign import saved, variable
from tests.compiler.imports.replies import replies


class Spread(tf.Module):
    """A float whose square matrix no backend makes: TensorFlow's first MatrixDiag, unlike its later ones."""

    def __init__(self):
        self.rows = variable(1, 10, 3, name="rows")
        self.first = variable(2, 6, 3, name="first")
        self.last = variable(3, 3, 1, name="last")

    @tf.function(
        input_signature=[tf.TensorSpec([None], tf.int64, name="item"), tf.TensorSpec([None, 3], name="values")]
    )
    def score(self, item, values):
        spread = tf.reduce_sum(tf.raw_ops.MatrixDiag(diagonal=values), 1)
        hidden = tf.nn.relu(tf.concat([tf.gather(self.rows, item), spread], 1) @ self.first)
        return {"score": hidden @ self.last}


@pytest.fixture(scope="module")
def spread(tmp_path_factory):
    module = Spread()
    return module, saved(module, tmp_path_factory.mktemp("spread") / "model", module.score)


def imported(source, folder):
    return import_model(source, folder, "spread", options=ImportOptions(buckets=(1, 8)))


def test_uncompilable_node_becomes_a_stage_without_its_neighbours(spread, tmp_path):
    module, source = spread
    report = imported(source, tmp_path).report

    assert report["sides"]["stage"] == {"MatrixDiag": 1}
    assert {"MatMul", "Relu", "ConcatV2", "Sum"} <= report["sides"]["dense"].keys()
    assert report["reasons"]["MatrixDiag"] == "no backend has an operator for it"
    assert [pair["sender"] for pair in report["boundary"]].count("table rows") == 1
    item, values = np.array([1, 7, 9, 2]), np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)
    outputs = replies(tmp_path, "spread", {"item": item, "values": values})
    np.testing.assert_allclose(outputs["score"], module.score(item, values)["score"], rtol=1e-5, atol=1e-5)


def test_graph_failing_as_a_whole_runs_in_tensorflow(spread, tmp_path, monkeypatch):
    monkeypatch.setattr(importer, "unsupported_ops", lambda cut, shapes: {})
    report = imported(spread[1], tmp_path).report

    assert report["sides"]["dense"] == {}
    assert any("the whole model runs in TensorFlow" in note for note in report["notes"])
