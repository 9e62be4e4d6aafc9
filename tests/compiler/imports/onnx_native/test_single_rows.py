"""Inputs of a stage that are sent once: not repeated where the graph broadcasts, copied where it does not."""

import numpy as np
import pytest

from freshet_serving.compiler.imports.importing import ImportOptions, import_model
from freshet_serving.compiler.imports.onnx_native.onnx_stage import OnnxStage
from freshet_serving.processor.columns import Ragged
from freshet_serving.processor.engine import PredictRequest
from freshet_serving.processor.repository.version import VersionReader
from tests.compiler.imports.onnx_native.native_models import normal, spelled
from tests.compiler.imports.replies import started

HEAD = """g (int64[n, any] past, int64[n, 1] item) => (float[n] score) {
    one = Constant <value: tensor = int64[1] {1}> ()
    rows = Gather (t, past)
    user = ReduceMean <axes = [1], keepdims: int = 0> (rows)
    other = Gather (t, item)
    own = Squeeze (other, one)
"""
PRODUCT = "both = Mul (user, own) sum = ReduceSum <keepdims: int = 0> (both, one)"
JOINED = "both = Concat <axis = 1> (user, own) sum = ReduceSum <keepdims: int = 0> (both, one)"
ROWS = 40


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    folder = tmp_path_factory.mktemp("single")
    for name, graph in (("product", PRODUCT), ("joined", JOINED)):
        text = f"{HEAD} {graph} score = Shrink <lambd: float = 0.0> (sum) }}"
        path = spelled(folder / f"{name}.onnx", text, t=normal(30, 4))
        import_model(path, folder / "models", name, options=ImportOptions(buckets=(1, 64)))
    return folder / "models"


def stage_of(repository, name):
    reader = VersionReader(repository / name / "1")
    spec = reader.manifest.stage
    data = reader.file(spec.file)
    return data, OnnxStage(data, reader.manifest.inputs, spec.outputs, spec.lookups)


def test_inputs_that_broadcast_are_marked(repository):
    assert stage_of(repository, "product")[1].single == {"past", "item"}


def test_inputs_that_are_joined_to_others_are_not(repository):
    assert stage_of(repository, "joined")[1].single == frozenset()


@pytest.mark.parametrize("name", ["product", "joined"])
def test_list_that_is_sent_once_scores_as_its_copies(repository, name):
    random = np.random.default_rng(0)
    past, items = random.integers(0, 30, 9).tolist(), random.integers(0, 30, (ROWS, 1))
    with started(repository) as processor:
        once = processor.process(PredictRequest(name, {"past": Ragged.of([past]), "item": items})).outputs["score"]
        copies = PredictRequest(name, {"past": Ragged.of([past] * ROWS), "item": items})
        np.testing.assert_allclose(processor.process(copies).outputs["score"], once, rtol=1e-5, atol=1e-6)
        single = PredictRequest(name, {"past": Ragged.of([past, past]), "item": items[:1]})
        both = processor.process(single).outputs["score"]
    np.testing.assert_allclose(both, [once[0]] * 2, rtol=1e-5, atol=1e-6)


def test_list_that_is_sent_once_is_computed_once(repository):
    data, stage = stage_of(repository, "product")
    lookups = VersionReader(repository / "product" / "1").manifest.stage_lookups
    names = {one.input: one.name for one in lookups}
    traced = stage.traced(data)
    for rows in (1, ROWS):
        inputs = {"past": Ragged(np.zeros(200, np.int64), np.array([0, 200])), "item": np.zeros((rows, 1), np.int64)}
        found = {names["past"]: np.zeros((200, 4), np.float32), names["item"]: np.zeros((rows, 4), np.float32)}
        traced.run(inputs, rows, found)
    alone, many = traced.made()
    traced.close()
    assert many < 2 * alone
