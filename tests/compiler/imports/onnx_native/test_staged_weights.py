"""Weights of graphs that ONNX Runtime computes as a stage: deltas make them a trainer's, a rollback the file's."""

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from freshet_serving.compiler.imports.importing import ImportOptions, import_model
from freshet_serving.compiler.imports.onnx_native.native_reader import read_native
from freshet_serving.compiler.imports.onnx_native.staged_weights import staged_weights
from freshet_serving.models.publishing.publisher import Publisher
from freshet_serving.processor.columns import Ragged
from freshet_serving.processor.engine import PredictRequest
from freshet_serving.processor.repository.log.change_log import ChangeLog
from freshet_serving.processor.repository.model_repository import Repository
from tests.compiler.imports.onnx_native import native_models
from tests.compiler.imports.onnx_native.native_models import ITEMS, normal, own_scores, spelled
from tests.compiler.imports.replies import started

MODELS = {
    "gru": (native_models.FREE_GRU, native_models.GRU_WEIGHTS, 0),
    "attention": (native_models.FREE_ATTENTION, native_models.FREE_ATTENTION_WEIGHTS, 1),
}


def retrained(path, into):
    """Write the file with every trained weight moved; return the weights by name."""
    proto, moved = onnx.load(path), {}
    random = np.random.default_rng(4)
    for tensor in proto.graph.initializer:
        array = numpy_helper.to_array(tensor)
        if array.dtype == np.float32:
            moved[tensor.name] = array + random.normal(scale=0.1, size=array.shape).astype(np.float32)
            tensor.CopyFrom(numpy_helper.from_array(moved[tensor.name], tensor.name))
    onnx.save(proto, into)
    return moved


@pytest.mark.parametrize("name", MODELS)
def test_published_weights_score_as_the_retrained_file_until_rolled_back(tmp_path, name):
    text, weights, microsoft = MODELS[name]
    path = spelled(tmp_path / "first.onnx", text, microsoft=microsoft, **weights)
    import_model(path, tmp_path / "models", name, options=ImportOptions(buckets=(1, 8)))
    moved = retrained(path, tmp_path / "second.onnx")
    random = np.random.default_rng(1)
    history, target = random.integers(0, ITEMS, (9, 6)), random.integers(0, ITEMS, 9)
    inputs = {"history": Ragged(history.ravel(), np.arange(10) * 6), "target": target}
    publisher = Publisher(tmp_path / "models", name)
    tables = {table.name: table for table in publisher.manifest.tables}
    assert tables.keys() == moved.keys()

    with started(tmp_path / "models") as processor:
        scores = [processor.process(PredictRequest(name, inputs)).outputs["score"]]
        publisher.publish(
            {name: (np.arange(tables[name].rows), w.reshape(-1, tables[name].dim)) for name, w in moved.items()}
        )
        processor.poll()
        scores.append(processor.process(PredictRequest(name, inputs)).outputs["score"])
        ChangeLog.of(Repository(tmp_path / "models").version(name)).rollback(0)
        processor.poll()
        scores.append(processor.process(PredictRequest(name, inputs)).outputs["score"])

    fed = {"history": history, "target": target}
    for got, file in zip(scores, ("first", "second", "first")):
        wanted = own_scores(tmp_path / f"{file}.onnx", fed)["score"]
        np.testing.assert_allclose(got.reshape(wanted.shape), wanted, rtol=1e-5, atol=1e-5)
    assert np.abs(scores[0] - scores[1]).max() > 1e-3
    assert np.array_equal(scores[0], scores[2])


def test_what_is_no_weight_by_name_stays_a_constant(tmp_path):
    text = """g (float[n, any] a) => (float[n, 1] score) {
        most = ReduceMax <axes = [1]> (a)
        wide = MatMul (most, "first.weight")
        turned = MatMul (wide, folded)
        widened = Cast <to: int = 11> (turned)
        shifted = Add (widened, "shift")
        score = Cast <to: int = 1> (shifted)
    }"""
    arrays = {"first__weight": normal(1, 3), "folded": normal(3, 1), "shift": np.zeros(1)}
    path = spelled(tmp_path / "g.onnx", text, **arrays)
    proto = onnx.load(path)
    for node in proto.graph.node:
        node.input[:] = ["onnx::MatMul_7" if name == "folded" else name for name in node.input]
    for tensor in proto.graph.initializer:
        tensor.name = "onnx::MatMul_7" if tensor.name == "folded" else tensor.name
    onnx.save(proto, path)

    weights, constants, merged = staged_weights(read_native(path), ())

    assert [(one.name, one.rows.shape) for one in weights] == [("first.weight", (1, 3))]
    assert (constants, merged) == (["shift"], ["onnx::MatMul_7"])
