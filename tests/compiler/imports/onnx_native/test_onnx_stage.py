"""ONNX files with strings or rows of any length: a stage of ONNX Runtime computes them, without TensorFlow."""

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from freshet_serving.compiler.imports.importing import ImportOptions, import_model
from freshet_serving.compiler.imports.onnx_native.onnx_stage import OnnxStage
from freshet_serving.processor.backends import EndedRun
from freshet_serving.processor.clock import FakeClock
from freshet_serving.processor.columns import Ragged, Strings
from freshet_serving.processor.engine import PredictRequest, Processor, ProcessorConfig
from freshet_serving.processor.errors import BadInput, Corrupt, TooLarge
from freshet_serving.processor.features.limits import RequestLimits
from freshet_serving.processor.package.manifest_entries import Input
from freshet_serving.processor.repository.version import VersionReader
from freshet_serving.processor.running.cost import CostTable
from freshet_serving.processor.running.run_limit import RunEnds, TimeLimit
from tests.compiler.imports.onnx_native.native_models import ML, normal, own_scores, spelled
from tests.compiler.imports.replies import replies, started

WORDS = ["red", "green", "blue"]
ROWS = 200


def encoded(path):
    """scikit-learn's ColumnTransformer of a OneHotEncoder and numbers, and a LinearRegressor."""
    nodes = [
        helper.make_node("OneHotEncoder", ["colour"], ["places"], domain=ML, cats_strings=WORDS, zeros=1),
        helper.make_node("Reshape", ["places", "flat"], ["wide"]),
        helper.make_node("Concat", ["wide", "size"], ["features"], axis=1),
        helper.make_node(
            "LinearRegressor", ["features"], ["price"], domain=ML, coefficients=[1.0, 2.0, 4.0, 0.5, 0.25], targets=1
        ),
    ]
    given = [helper.make_tensor_value_info("colour", 8, ["n", 1]), helper.make_tensor_value_info("size", 1, ["n", 2])]
    out = [helper.make_tensor_value_info("price", 1, ["n", 1])]
    flat = helper.make_tensor("flat", 7, [2], [-1, 3])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(ML, 1)]
    graph = helper.make_graph(nodes, "g", given, out, [flat])
    path.write_bytes(helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString())
    return path


POOLED = """g (int64[n, any] history) => (float[n, 4] score) {
    rows = Gather (t, history)
    mean = ReduceMean <axes = [1], keepdims: int = 0> (rows)
    score = Shrink <lambd: float = 0.1> (mean)
}"""


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """The repository with both models, and their files."""
    folder = tmp_path_factory.mktemp("staged")
    files = {
        "encoded": encoded(folder / "encoded.onnx"),
        "pooled": spelled(folder / "pooled.onnx", POOLED, t=normal(30, 4)),
    }
    for name, path in files.items():
        import_model(path, folder / "models", name, options=ImportOptions(buckets=(1, 64)))
    return folder / "models", files


def scores(repository, name, inputs):
    return replies(repository, name, inputs)


def test_encoder_of_strings_is_served_by_a_stage(models):
    repository, files = models
    manifest = VersionReader(repository / "encoded" / "1").manifest
    random = np.random.default_rng(1)
    words = [[*WORDS, "new"][i] for i in random.integers(0, 4, ROWS)]
    size = random.standard_normal((ROWS, 2)).astype(np.float32)

    assert manifest.stage.runtime == "onnxruntime"
    assert [(i.name, i.dtype) for i in manifest.inputs] == [("colour", "string"), ("size", "float32")]
    got = scores(repository, "encoded", {"colour": Strings.of(words), "size": size})["price"]
    wanted = own_scores(files["encoded"], {"colour": np.array(words, object).reshape(-1, 1), "size": size})["price"]
    np.testing.assert_allclose(got.reshape(ROWS, -1), wanted, rtol=1e-5, atol=1e-5)


def test_rows_of_any_length_are_served_by_a_stage(models):
    repository, files = models
    manifest = VersionReader(repository / "pooled" / "1").manifest
    ids = np.random.default_rng(2).integers(0, 30, (ROWS, 9))

    assert [(i.name, i.ragged) for i in manifest.inputs] == [("history", True)]
    note = "strings or rows of any length in history"
    assert any(note in line for line in manifest.notes["import"]["notes"])
    ragged = Ragged(ids.ravel(), np.arange(ROWS + 1) * 9)
    got = scores(repository, "pooled", {"history": ragged})["score"]
    np.testing.assert_allclose(got, own_scores(files["pooled"], {"history": ids})["score"], rtol=1e-5, atol=1e-5)


ATTENTION = """g (float[n, any] past) => (float[n, any] score) {
    row = Unsqueeze (past, two)
    column = Unsqueeze (past, one)
    pairs = Mul (row, column)
    score = ReduceSum <keepdims: int = 0> (pairs, two)
}"""
"""Every value of a list times all of it: as large as the square of its length."""


def attention_stage():
    two, one = np.array([2], np.int64), np.array([1], np.int64)
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]>{ATTENTION}')
    model.graph.initializer.extend([numpy_helper.from_array(two, "two"), numpy_helper.from_array(one, "one")])
    names = {"past": "input/past", "score": "output/score"}
    for node in model.graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
    for info in (*model.graph.input, *model.graph.output):
        info.name = names[info.name]
    return model.SerializeToString()


def lists_of(rows, length):
    return {"past": Ragged(np.ones(rows * length, np.float32), np.arange(rows + 1, dtype=np.int64) * length)}


@pytest.fixture(scope="module")
def attention():
    data = attention_stage()
    spec = [Input("past", "float32", ragged=True)]
    return data, OnnxStage(data, spec, [Input("score", "float32", columns=4)])


def test_run_beyond_the_arena_is_refused_and_the_next_one_answered(attention):
    _, stage = attention
    with pytest.raises(TooLarge, match="max_cells: the model needs more than 192 MB at once"):
        stage.run(lists_of(1, 8_000), 1)
    np.testing.assert_array_equal(stage.run(lists_of(2, 4), 2)["score"], np.full((2, 4), 4.0))


def test_run_ends_at_its_limit(attention):
    _, stage = attention
    ends = RunEnds(FakeClock(now_s=10.0))
    with pytest.raises(EndedRun, match="did not finish in time"):
        # Ended before it begins to compute, as a limit that has passed ends it.
        stage.run(lists_of(1, 4), 1, limit=Passed())
    np.testing.assert_array_equal(stage.run(lists_of(1, 4), 1, limit=TimeLimit(ends, 1e9))["score"], [[4.0] * 4])


class Passed:
    """A limit that a run has reached as it begins."""

    def run(self, call):
        call.end(True)
        call()


def test_traced_runs_tell_what_operators_write(attention):
    data, stage = attention
    traced = stage.traced(data)
    for rows, length in ((1, 4), (3, 4)):
        traced.run(lists_of(rows, length), rows)
    # Two views of the list, all pairs, and their sums, of four bytes each.
    assert traced.made() == [4 * (4 + 4 + 16 + 4), 3 * 4 * (4 + 4 + 16 + 4)]
    traced.close()


def test_package_says_how_much_its_stage_computes(models):
    growth = VersionReader(models[0] / "pooled" / "1").manifest.stage.growth
    # The rows looked up of each id, and the mean of them.
    assert growth.cells(100, 50) == pytest.approx(100 * (50 * 13 + 9), rel=0.01)
    with Processor.initialize(
        ProcessorConfig(repository=str(models[0]), sessions=1, limits=RequestLimits(max_cells=growth.cells(10, 50)))
    ) as processor:
        inputs = {"history": Ragged(np.zeros(500, np.int64), np.arange(11) * 50)}
        processor.process(PredictRequest("pooled", inputs))
        inputs = {"history": Ragged(np.zeros(550, np.int64), np.arange(12) * 50)}
        with pytest.raises(TooLarge, match=r"max_cells: expected at most \d+ values .* for 11 rows with up to 50"):
            processor.process(PredictRequest("pooled", inputs))


def test_ids_without_a_row_have_zeros(models):
    (got,) = scores(models[0], "pooled", {"history": Ragged.of([[1, 99]])})["score"]
    (half,) = scores(models[0], "pooled", {"history": Ragged.of([[99, 1]])})["score"]
    np.testing.assert_array_equal(got, half)


def test_values_that_the_model_refuses_are_the_client_s_mistake(models):
    with pytest.raises(BadInput, match="expected rows of equal length"):
        scores(models[0], "pooled", {"history": Ragged.of([[1], [1, 2]])})


def test_rows_of_unequal_length_are_refused_however_rows_are_divided(models, monkeypatch):
    """The cost table may cover rows one by one, of which each has a length that the model takes."""
    monkeypatch.setattr(CostTable, "bucket_plan", lambda table, rows: (1,) * rows)
    uneven, even = Ragged.of([[1], [1, 2]]), Ragged.of([[1, 2], [3, 4]])
    with started(models[0]) as processor:
        with pytest.raises(BadInput, match="expected rows of equal length"):
            processor.process(PredictRequest("pooled", {"history": uneven}))
        assert len(processor.process(PredictRequest("pooled", {"history": even})).outputs["score"]) == 2


def test_bytes_that_are_no_text_are_refused(models):
    inputs = {"colour": Strings.of([b"\xff"]), "size": np.zeros((1, 2), np.float32)}
    with pytest.raises(BadInput, match="expected strings in UTF-8"):
        scores(models[0], "encoded", inputs)


def test_damaged_stage_is_refused(models):
    repository, _ = models
    reader = VersionReader(repository / "pooled" / "1")
    data, inputs, stage = reader.file("stage/graph.onnx"), reader.manifest.inputs, reader.manifest.stage
    with pytest.raises(Corrupt):
        OnnxStage(data[: len(data) // 2], inputs, stage.outputs, stage.lookups)
    for broken in (
        ([], stage.outputs, stage.lookups),
        (inputs, [Input("other", "float32")], stage.lookups),
        (inputs, stage.outputs, []),
    ):
        with pytest.raises(Corrupt, match="an input or output that the manifest names is missing"):
            OnnxStage(data, *broken)


def test_refusal_gives_the_reason_of_the_runtime(models):
    reader = VersionReader(models[0] / "pooled" / "1")
    proto = onnx.load_from_string(reader.file("stage/graph.onnx"))
    for node in proto.graph.node:
        node.name = "same"
    with pytest.raises(Corrupt, match=r"stage: refused by ONNX Runtime: .*two nodes with same node name"):
        OnnxStage(proto.SerializeToString(), reader.manifest.inputs, reader.manifest.stage.outputs)


def test_stage_with_data_elsewhere_is_refused(models):
    proto = onnx.load_from_string(VersionReader(models[0] / "encoded" / "1").file("stage/graph.onnx"))
    tensor = proto.graph.initializer.add()
    tensor.CopyFrom(numpy_helper.from_array(normal(30, 4), "rows"))
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="/etc/passwd")
    with pytest.raises(Corrupt, match="expected all values inside the ONNX model"):
        OnnxStage(proto.SerializeToString(), [], [])
