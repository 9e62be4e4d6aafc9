"""ONNX graphs written node by node; ONNX Runtime gives what is expected."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from loadtest.bench.foreign_models.builders.rows import DIM, ITEMS, STEPS, floats, ids, padded
from loadtest.bench.foreign_models.built import ROWS, TableUse, write_built

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
ITEM = [TableUse("item", "item")]
HISTORY = [TableUse("item", "history", 0)]
node, value_info = helper.make_node, helper.make_tensor_value_info


def weight(seed, *shape):
    return (np.random.default_rng(seed).standard_normal(shape) * 0.5).astype(np.float32)


def save(folder, last, nodes, weights, given, uses=ITEM, opset=17, microsoft=False, free=()):
    """Write the graph, and what ONNX Runtime makes of the rows.

    last: the last layer. given: by input, 200 rows. free: inputs with rows of any length.
    """
    last_nodes, last_weights = last
    weights = {"item.weight": weight(1, ITEMS, DIM)} | last_weights | weights
    inputs = []
    for name, array in given.items():
        kind, columns = INT64 if array.dtype == np.int64 else FLOAT, ["length"] if name in free else array.shape[1:]
        inputs.append(value_info(name, kind, ["batch", *columns]))
    initialisers = [numpy_helper.from_array(np.asarray(array), name) for name, array in weights.items()]
    outputs = [value_info("score", FLOAT, ["batch", 1])]
    graph = helper.make_graph(nodes + last_nodes, "by_hand", inputs, outputs, initialisers)
    opsets = [helper.make_opsetid("", opset)] + [helper.make_opsetid("com.microsoft", 1)] * microsoft
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    path = Path(folder) / "model.onnx"
    path.write_bytes(model.SerializeToString())
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    write_built(Path(folder), given, {"score": session.run(None, given)[0]}, uses)


def head(x, width=DIM):
    """The last layer of every graph here: a sum with weights, squashed."""
    nodes = [node("MatMul", [x, "out.weight"], ["logit"]), node("Sigmoid", ["logit"], ["score"])]
    return nodes, {"out.weight": weight(9, width, 1)}


def onnx_one_hot(folder):
    weights = {"scale": np.ones(DIM, np.float32), "shift": np.zeros(DIM, np.float32)}
    weights |= {"depth": np.int64(ITEMS), "values": np.array([0, 1], np.float32)}
    nodes = [
        node("OneHot", ["item", "depth", "values"], ["hot"]),
        node("MatMul", ["hot", "item.weight"], ["row"]),
        node("LayerNormalization", ["row", "scale", "shift"], ["normal"]),
        node("Gelu", ["normal"], ["gelu"]),
    ]
    save(folder, head("gelu"), nodes, weights, {"item": ids(ROWS)}, opset=20)


def onnx_masked_mean(folder):
    weights = {"zero": np.int64(0), "axis": np.array([1]), "last": np.array([-1]), "least": np.float32(1)}
    nodes = [
        node("Gather", ["item.weight", "history"], ["rows"]),
        node("Equal", ["history", "zero"], ["padding"]),
        node("Not", ["padding"], ["there"]),
        node("Cast", ["there"], ["mask"], to=FLOAT),
        node("Unsqueeze", ["mask", "last"], ["mask3"]),
        node("Mul", ["rows", "mask3"], ["masked"]),
        node("ReduceSum", ["masked", "axis"], ["sum"], keepdims=0),
        node("ReduceSum", ["mask", "axis"], ["length"], keepdims=1),
        node("Max", ["length", "least"], ["divisor"]),
        node("Div", ["sum", "divisor"], ["mean"]),
        node("Gather", ["item.weight", "item"], ["row"]),
        node("Concat", ["row", "mean"], ["x"], axis=1),
    ]
    given = {"item": ids(ROWS), "history": padded(ROWS, STEPS)}
    save(folder, head("x", 2 * DIM), nodes, weights, given, ITEM + HISTORY, free=("history",))


def onnx_gru(folder):
    hidden = 8
    weights = {"w": weight(2, 1, 3 * hidden, DIM), "axis": np.array([0])}
    weights |= {"r": weight(3, 1, 3 * hidden, hidden), "b": weight(4, 1, 6 * hidden)}
    nodes = [
        node("Gather", ["item.weight", "history"], ["rows"]),
        node("Transpose", ["rows"], ["steps"], perm=[1, 0, 2]),
        node("GRU", ["steps", "w", "r", "b"], ["", "end"], hidden_size=hidden, linear_before_reset=1),
        node("Squeeze", ["end", "axis"], ["state"]),
    ]
    save(folder, head("state", hidden), nodes, weights, {"history": ids(ROWS, STEPS)}, HISTORY)


def onnx_conv(folder):
    filters = 4
    weights = {"kernel": weight(2, filters, DIM, 3), "bias": weight(3, filters)}
    nodes = [
        node("Gather", ["item.weight", "history"], ["rows"]),
        node("Transpose", ["rows"], ["channels"], perm=[0, 2, 1]),
        node("Conv", ["channels", "kernel", "bias"], ["maps"], pads=[1, 1]),
        node("Relu", ["maps"], ["positive"]),
        node("ReduceMax", ["positive"], ["x"], axes=[2], keepdims=0),
    ]
    save(folder, head("x", filters), nodes, weights, {"history": ids(ROWS, STEPS)}, HISTORY)


def onnx_loop(folder):
    weights = {"w": weight(2, DIM, DIM), "trips": np.int64(3), "go": np.array(True)}
    body = helper.make_graph(
        [
            node("Identity", ["go_on"], ["goes_on"]),
            node("MatMul", ["state", "w"], ["product"]),
            node("Tanh", ["product"], ["next"]),
        ],
        "body",
        [
            value_info("trip", INT64, []),
            value_info("go_on", TensorProto.BOOL, []),
            value_info("state", FLOAT, ["batch", DIM]),
        ],
        [value_info("goes_on", TensorProto.BOOL, []), value_info("next", FLOAT, ["batch", DIM])],
    )
    nodes = [
        node("Gather", ["item.weight", "item"], ["row"]),
        node("Loop", ["trips", "go", "row"], ["x"], body=body),
    ]
    save(folder, head("x"), nodes, weights, {"item": ids(ROWS)})


def onnx_if(folder):
    """A quick way for batches without negative prices: the branches give each row the same, whatever others are."""
    ways = [
        helper.make_graph([node(kind, ["price"], [name])], name, [], [value_info(name, FLOAT, ["batch"])])
        for kind, name in (("Relu", "clipped"), ("Identity", "same"))
    ]
    nodes = [
        node("Gather", ["item.weight", "item"], ["row"]),
        node("ReduceMin", ["price"], ["least"], keepdims=0),
        node("Less", ["least", "zero"], ["below"]),
        node("If", ["below"], ["positive"], then_branch=ways[0], else_branch=ways[1]),
        node("Unsqueeze", ["positive", "last"], ["factor"]),
        node("Mul", ["row", "factor"], ["x"]),
    ]
    weights = {"zero": np.float32(0), "last": np.array([-1])}
    save(folder, head("x"), nodes, weights, {"item": ids(ROWS), "price": floats(ROWS)})


def onnx_dequantize(folder):
    table = np.random.default_rng(1).integers(-127, 128, (ITEMS, DIM)).astype(np.int8)
    weights = {"item.weight": table, "scale": np.float32(0.01), "zero": np.int8(0)}
    nodes = [
        node("DequantizeLinear", ["item.weight", "scale", "zero"], ["table"]),
        node("Gather", ["table", "item"], ["row"]),
    ]
    save(folder, head("row"), nodes, weights, {"item": ids(ROWS)})


def onnx_fused(folder):
    weights = {"w": weight(2, DIM, DIM), "bias": weight(3, DIM)}
    nodes = [
        node("Gather", ["item.weight", "item"], ["row"]),
        node("FusedMatMul", ["row", "w"], ["product"], domain="com.microsoft", alpha=0.5, transB=1),
        node("BiasGelu", ["product", "bias"], ["x"], domain="com.microsoft"),
    ]
    save(folder, head("x"), nodes, weights, {"item": ids(ROWS)}, microsoft=True)
