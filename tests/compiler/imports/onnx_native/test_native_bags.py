"""nn.EmbeddingBag in ONNX files that are imported natively: what the engine pools, and what stays in the graph."""

import numpy as np
import pytest

from freshet_serving.compiler.imports.onnx_native.native_import import NativeImporter
from freshet_serving.compiler.imports.onnx_native.native_reader import read_native
from freshet_serving.compiler.imports.onnx_native.served_lookups import find_lookups
from freshet_serving.models.publishing.publisher import Publisher
from freshet_serving.processor.columns import Ragged
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.repository import open_repository
from tests.compiler.imports.onnx_graph.spelled import (
    NUMPY,
    PADDED,
    SPELLINGS,
    SUM,
    TABLE,
    bags_of,
    dynamo_bag,
    pooled,
    torchscript_bag,
    written,
)
from tests.compiler.imports.replies import replies

POOLED = [spelling for spelling in SPELLINGS if spelling[3] != "max"]
LENGTHS = [2, 0, 3, 4, 1]
# PyTorch's bag over a matrix, whose ids and offsets dynamo computes.
PADDED_MATRIX = (
    PADDED.replace("int64[n] ids, int64[batch] off", "int64[batch, 5] matrix")
    .replace("int64 count =", "int64 zero_at = {0}, int64 five = {5}, int64 count =")
    .replace(
        "shape = Shape <start: int = 0> (ids)",
        """ids = Reshape (matrix, neg_1)
    entries = Size (ids)
    off = Range (zero_at, entries, five)
    shape = Shape <start: int = 0> (ids)""",
    )
)


def imported(path, folder):
    """Import a file natively as model "m"; return the manifest."""
    repository = open_repository(folder / "models", create=True)
    with repository.writer("m", 1) as writer:
        return NativeImporter(path, "").publish(repository, writer, (1, 8)).manifest


def scores(folder, inputs):
    return replies(folder / "models", "m", inputs)["y"]


def ragged(fed):
    return {"ids": Ragged(fed["ids"], fed["ids/row_splits"])}


@pytest.mark.parametrize(("text", "opset", "mode"), [s[1:] for s in POOLED], ids=[s[0] for s in POOLED])
def test_bags_of_ids_and_offsets_are_pooled_by_the_engine(text, opset, mode, tmp_path):
    manifest = imported(written(tmp_path / "bag.onnx", text, opset, emb__weight=TABLE), tmp_path)

    assert [(i.name, i.ragged) for i in manifest.inputs] == [("ids", True)]
    assert [(f.kind, f.combiner, f.table) for f in manifest.features] == [("ids", mode, "emb.weight")]
    fed = bags_of(LENGTHS)
    np.testing.assert_allclose(scores(tmp_path, ragged(fed)), pooled(mode, fed), rtol=1e-5, atol=1e-6)


def test_delta_of_a_pooled_table_is_served(tmp_path):
    imported(written(tmp_path / "bag.onnx", dynamo_bag(SUM), 20, emb__weight=TABLE), tmp_path)
    Publisher(tmp_path / "models", "m").publish({"emb.weight": (np.array([3]), np.ones((1, 4), np.float32))})
    np.testing.assert_array_equal(scores(tmp_path, {"ids": Ragged.of([[3, 3], [3]])}), [[2] * 4, [1] * 4])


@pytest.mark.parametrize("opset", [11, 13, 18])
@pytest.mark.parametrize(("reduce", "mode"), [("ReduceSum", "sum"), ("ReduceMean", "mean"), ("ReduceMax", "max")])
def test_bags_of_a_matrix_of_ids_have_no_loop(reduce, mode, opset, tmp_path):
    path = written(tmp_path / "bag.onnx", torchscript_bag(reduce, matrix=5, opset=opset), opset, emb__weight=TABLE)
    manifest = imported(path, tmp_path)

    assert [(f.kind, f.input, f.column) for f in manifest.features] == [("id", "ids", n) for n in range(5)]
    assert "Loop" not in manifest.notes["import"]["sides"]["dense"]
    ids = np.random.default_rng(0).integers(0, 20, (6, 5))
    np.testing.assert_allclose(scores(tmp_path, {"ids": ids}), NUMPY[mode](TABLE[ids], axis=1), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("reduce", "mode"), [("ReduceSum", "sum"), ("ReduceMean", "mean"), ("ReduceMax", "max")])
def test_padding_of_a_matrix_of_ids_is_ignored(reduce, mode, tmp_path):
    text = PADDED_MATRIX.replace("REDUCE", reduce)
    manifest = imported(written(tmp_path / "bag.onnx", text, 20, emb__weight=TABLE), tmp_path)

    assert [t.name for t in manifest.tables] == ["emb.weight"]
    ids = np.array([[3, 5, 3, 7, 7], [3, 3, 3, 3, 3], [0, 1, 2, 4, 5]])
    fed = {"ids": ids.ravel(), "ids/row_splits": np.arange(4) * 5}
    got = scores(tmp_path, {"matrix": ids})
    np.testing.assert_allclose(got, pooled(mode, fed, padding=3), rtol=1e-5, atol=1e-6)


def test_weighted_bag_of_a_matrix_is_a_table(tmp_path):
    text = (
        torchscript_bag(matrix=5)
        .replace("int64[batch, 5] ids", "int64[batch, 5] ids, float[batch, 5] w")
        .replace("flat = Reshape (ids, whole)", "flat = Reshape (ids, whole)\n weights = Reshape (w, whole)")
        .replace(
            "row = ReduceSum <keepdims: int = 0> (rows, zero)",
            """of_it = Slice (weights, begins, ends, zero)
            column = Unsqueeze (of_it, from)
            weighed = Mul (rows, column)
            row = ReduceSum <keepdims: int = 0> (weighed, zero)""",
        )
    )
    imported(written(tmp_path / "bag.onnx", text, emb__weight=TABLE), tmp_path)
    random = np.random.default_rng(0)
    ids, weights = random.integers(0, 20, (6, 5)), random.standard_normal((6, 5)).astype(np.float32)
    expected = (TABLE[ids] * weights[:, :, None]).sum(1)
    np.testing.assert_allclose(scores(tmp_path, {"ids": ids, "w": weights}), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("text", "opset"),
    [(torchscript_bag("ReduceMax"), 17), (PADDED.replace("REDUCE", "ReduceSum"), 20)],
    ids=["largest", "padding"],
)
def test_bags_that_the_engine_does_not_pool_are_refused(text, opset, tmp_path):
    with pytest.raises(BadInput, match="of ids and offsets: expected a sum or mean, without padding and weights"):
        NativeImporter(written(tmp_path / "bag.onnx", text, opset, emb__weight=TABLE), "")


def test_offsets_that_something_else_reads_are_refused(tmp_path):
    one = torchscript_bag()
    twice = one[: one.rindex("}")].replace("y = Loop", "y1 = Loop") + (
        'y2 = Gather <axis: int = 0> ("other.weight", off) y = Add (y1, y2) }'
    )
    path = written(tmp_path / "bag.onnx", twice, emb__weight=TABLE, other__weight=TABLE)
    with pytest.raises(BadInput, match="input 'off': expected ids or offsets of bags that nothing else reads"):
        NativeImporter(path, "")


def test_another_loop_of_the_graph_stays(tmp_path):
    text = torchscript_bag(matrix=5).replace("y = Loop", "z = Loop")
    text = text[: text.rindex("}")] + (
        """two = Constant <value: tensor = int64 {2}> ()
        y = Loop (two, true, z) <body: graph = c (int64 j, bool d, float[m, 4] v) => (bool more, float[m, 4] v2) {
            more = Identity (d)
            v2 = Add (v, v)
        }>
    }"""
    )
    model = read_native(written(tmp_path / "bag.onnx", text, emb__weight=TABLE))
    assert [node.op_type for node in model.proto.graph.node].count("Loop") == 1
    assert [lookup.columns for lookup in find_lookups(model)] == [tuple(("ids", n) for n in range(5))]


def test_bag_of_values_under_a_mask_stays_a_loop(tmp_path):
    """A jagged tensor that the model makes of a matrix and lengths: ONNX Runtime computes it as it is."""
    text = torchscript_bag(last=True).replace(
        "int64[n] ids, int64[batch] off", "int64[batch, 5] m, int64[batch] lengths"
    )
    jagged = """axis = Constant <value: tensor = int64 {0}> ()
        all = Constant <value: tensor = int64[1] {-1}> ()
        places = Constant <value: tensor = int64[1, 5] {0, 1, 2, 3, 4}> ()
        column = Constant <value: tensor = int64[1] {1}> ()
        five = Constant <value: tensor = int64 {5}> ()
        bounded = Min (lengths, five)
        upright = Unsqueeze (bounded, column)
        inside = Less (places, upright)
        kept = Reshape (inside, all)
        every = Reshape (m, all)
        ids = Compress (every, kept)
        summed = CumSum (bounded, axis)
        off = Concat <axis: int = 0> (zero, summed)"""
    path = written(tmp_path / "bag.onnx", text.replace("same = Identity (off)", jagged), 17, emb__weight=TABLE)
    imported(path, tmp_path)
    random = np.random.default_rng(0)
    fed = {"m": random.integers(0, 20, (6, 5)), "lengths": random.integers(0, 6, 6)}
    expected = np.stack([TABLE[ids[:length]].sum(0) for ids, length in zip(*fed.values())])
    np.testing.assert_allclose(scores(tmp_path, fed), expected, rtol=1e-5, atol=1e-5)


def test_cast_to_the_type_of_the_table_is_no_lookup(tmp_path):
    """As dynamo ends a bag."""
    text = dynamo_bag(SUM).replace("y = Cast <to: int = 1> (stacked)", 'y = CastLike (stacked, "emb.weight")')
    manifest = imported(written(tmp_path / "bag.onnx", text, 20, emb__weight=TABLE), tmp_path)
    assert [(f.kind, f.combiner) for f in manifest.features] == [("ids", "sum")]


def test_loop_that_reads_a_decided_branch_keeps_the_bag_a_loop(tmp_path):
    text = torchscript_bag(matrix=5).replace("y = Loop", "z = Loop")
    text = text[: text.rindex("}")] + (
        """scale = If (true) <then_branch: graph = t () => (a) {
            a = Constant <value: tensor = float {2}> ()
        }, else_branch: graph = e () => (b) { b = Constant <value: tensor = float {3}> () }>
        two = Constant <value: tensor = int64 {2}> ()
        y = Loop (two, true, z) <body: graph = c (int64 j, bool d, float[m, 4] v) => (bool more, float[m, 4] v2) {
            more = Identity (d)
            v2 = Mul (v, scale)
        }>
    }"""
    )
    model = read_native(written(tmp_path / "bag.onnx", text, emb__weight=TABLE))
    assert [node.op_type for node in model.proto.graph.node].count("Loop") == 2
