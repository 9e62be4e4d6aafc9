"""Both exporters' spellings of nn.EmbeddingBag are found, and pool as PyTorch does."""

import numpy as np
import pytest

from freshet_serving.compiler.imports.onnx_graph.bags import BAG, find_bags
from freshet_serving.compiler.imports.onnx_graph.branches import decided
from freshet_serving.compiler.imports.onnx_graph.onnx_reader import read_onnx
from freshet_serving.processor.errors import BadInput
from tests.compiler.imports.onnx_graph.spelled import (
    PADDED,
    SPELLINGS,
    SUM,
    TABLE,
    bags_of,
    check_same,
    dynamo_bag,
    pooled,
    torchscript_bag,
    translated,
    translator,
    written,
)


def found(path):
    model = read_onnx(path)
    body, pairs = find_bags(type(model)(model.inputs, decided(model.body), model.opset))
    return [node for node in body.nodes if node.op == BAG], pairs


@pytest.mark.parametrize(("text", "opset", "mode"), [s[1:] for s in SPELLINGS], ids=[s[0] for s in SPELLINGS])
def test_each_embedding_bag_spelling_is_recognised_and_pools_like_pytorch(text, opset, mode, tmp_path):
    path = written(tmp_path / "bag.onnx", text, opset, emb__weight=TABLE)
    last = ("size" in text and "bags = Sub (size" in text) or "same = Identity (off)" in text

    (bag,), (pair,) = found(path)
    assert (bag.attributes["mode"], bag.inputs[0]) == (mode, "emb.weight")
    assert (pair.ids, pair.offsets, pair.ends) == ("ids", "off", last)
    translation = translator(path)
    for lengths in ([2, 1, 3, 4, 1], [0, 2, 0, 3, 0], [1]):
        fed = bags_of(lengths)
        (got,) = translation(fed)
        np.testing.assert_allclose(got, pooled(mode, fed), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("reduce", "mode"), [("ReduceSum", "sum"), ("ReduceMean", "mean"), ("ReduceMax", "max")])
def test_padding_id_of_a_bag_is_ignored(reduce, mode, tmp_path):
    path = written(tmp_path / "bag.onnx", PADDED.replace("REDUCE", reduce), 20, emb__weight=TABLE)
    (bag,), _ = found(path)
    assert bag.attributes["padding"] == 3
    fed = bags_of([3, 0, 2, 1])
    fed["ids"][:] = [3, 5, 3, 3, 3, 7]

    np.testing.assert_allclose(translated(path, fed)[0], pooled(mode, fed, padding=3), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("opset", [11, 13, 18])
@pytest.mark.parametrize("reduce", ["ReduceSum", "ReduceMean", "ReduceMax"])
def test_flattened_id_matrix_is_recognised_as_a_matrix(opset, reduce, tmp_path):
    path = written(tmp_path / "bag.onnx", torchscript_bag(reduce, matrix=5, opset=opset), opset, emb__weight=TABLE)
    (bag,), pairs = found(path)

    assert (bag.inputs[1:3], pairs) == (("ids", ""), [])
    check_same(path, {"ids": np.random.default_rng(0).integers(0, 20, (6, 5))})


def test_offsets_used_elsewhere_are_kept(tmp_path):
    one = torchscript_bag()
    twice = (
        one[: one.rindex("}")].replace("y = Loop", "y1 = Loop")
        + """
        table = Identity ("emb.weight")
        y2 = Gather <axis: int = 0> (table, off)
        y = Add (y1, y2)
    }"""
    )
    path = written(tmp_path / "bag.onnx", twice, emb__weight=TABLE)
    fed = bags_of([2, 2, 1])

    (got,) = translated(path, fed)
    np.testing.assert_allclose(got, pooled("sum", fed) + TABLE[fed["off"]], rtol=1e-5)


def test_inputs_that_weigh_or_count_the_entries_of_another_are_refused_with_advice(tmp_path):
    """Weights of each entry; the lengths of TorchRec's KeyedJaggedTensor, whose splits are summed from an input."""
    weights = (
        dynamo_bag(SUM)
        .replace("int64[batch] off)", "int64[batch] off, float[n] w)")
        .replace("Unsqueeze (spread, column)", "Unsqueeze (w, column)")
    )
    lengths = torchscript_bag(last=True).replace("int64[batch] off)", "int64[batch] lengths)")
    summed = """axis = Constant <value: tensor = int64 {0}> ()
        summed = CumSum (lengths, axis)
        off = Concat <axis: int = 0> (zero, summed)"""
    lengths = lengths.replace("same = Identity (off)", summed)
    for text, opset, message in (
        (weights, 20, "input 'w': it weighs the entries of 'ids'"),
        (lengths, 17, "input 'lengths': it says how many values of another input each row has"),
    ):
        with pytest.raises(BadInput, match=message):
            found(written(tmp_path / "bag.onnx", text, opset, emb__weight=TABLE))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("mine = Slice (ids, begins, ends, zero)", "mine = Slice (ids, ends, begins, zero)"),
        ("begin = Gather <axis: int = 0> (splits, i)", "begin = Gather <axis: int = 0> (splits, trip)"),
        ("row = ReduceSum <keepdims: int = 0> (rows, zero)", "row = ReduceSum <keepdims: int = 0> (rows, one)"),
        ("row = ReduceSum <keepdims: int = 0> (rows, zero)", "row = ReduceL2 <keepdims: int = 0> (rows, zero)"),
    ],
)
def test_loop_that_is_not_a_bag_is_left_unchanged(old, new, tmp_path):
    text = torchscript_bag()
    assert old in text
    assert found(written(tmp_path / "bag.onnx", text.replace(old, new), 18, emb__weight=TABLE)) == ([], [])
