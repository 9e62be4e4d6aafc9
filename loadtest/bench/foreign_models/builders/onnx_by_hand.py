"""ONNX graphs written node by node; ONNX Runtime gives what is expected."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from loadtest.bench.foreign_models.built import ROWS, TableUse, write_built

ITEMS, DIM, STEPS = 50, 8, 6
FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
node = helper.make_node


def weight(seed, *shape):
    return (np.random.default_rng(seed).standard_normal(shape) * 0.5).astype(np.float32)


def floats(**arrays):
    return {name.replace("__", "."): np.asarray(array, np.float32) for name, array in arrays.items()}


def ids(*shape, low=1):
    return np.random.default_rng(7).integers(low, ITEMS, shape)


def value_info(name, kind, *shape):
    return helper.make_tensor_value_info(name, kind, list(shape))


def save(folder, nodes, inputs, weights, given, uses=(), opset=17, microsoft=False):
    """Write the graph, and what ONNX Runtime makes of the rows. given: by input, 200 rows."""
    outputs = [value_info("score", FLOAT, "batch", 1)]
    initialisers = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "by_hand", inputs, outputs, initialisers)
    opsets = [helper.make_opsetid("", opset)] + [helper.make_opsetid("com.microsoft", 1)] * microsoft
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    path = Path(folder) / "model.onnx"
    path.write_bytes(model.SerializeToString())
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    write_built(Path(folder), given, {"score": session.run(None, given)[0]}, uses)


def head(x, width):
    """The last layer of every graph here: a sum with weights, squashed."""
    nodes = [node("MatMul", [x, "out.weight"], ["logit"]), node("Sigmoid", ["logit"], ["score"])]
    return nodes, {"out.weight": weight(9, width, 1)}


def history_use(name="history", column=0):
    return TableUse("item", name, column)


def onnx_one_hot(folder):
    last, weights = head("gelu", DIM)
    weights |= {"item.weight": weight(1, ITEMS, DIM)} | floats(scale=np.ones(DIM), shift=np.zeros(DIM))
    weights |= {"depth": np.int64(ITEMS), "values": np.array([0, 1], np.float32)}
    nodes = [
        node("OneHot", ["item", "depth", "values"], ["hot"]),
        node("MatMul", ["hot", "item.weight"], ["row"]),
        node("LayerNormalization", ["row", "scale", "shift"], ["normal"]),
        node("Gelu", ["normal"], ["gelu"]),
    ]
    inputs = [value_info("item", INT64, "batch")]
    save(folder, nodes + last, inputs, weights, {"item": ids(ROWS)}, [TableUse("item", "item")], opset=20)


def onnx_masked_mean(folder):
    last, weights = head("x", 2 * DIM)
    weights |= {"item.weight": weight(1, ITEMS, DIM), "zero": np.int64(0), "axis": np.array([1])}
    weights |= {"last": np.array([-1]), "least": np.float32(1)}
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
    inputs = [value_info("item", INT64, "batch"), value_info("history", INT64, "batch", "length")]
    history = ids(ROWS, STEPS)
    history[:, 3:] *= np.random.default_rng(2).integers(0, 2, (ROWS, STEPS - 3))
    given = {"item": ids(ROWS), "history": history}
    save(folder, nodes + last, inputs, weights, given, [TableUse("item", "item"), history_use()])


def onnx_gru(folder):
    hidden = 8
    last, weights = head("state", hidden)
    weights |= {"item.weight": weight(1, ITEMS, DIM), "w": weight(2, 1, 3 * hidden, DIM), "axis": np.array([0])}
    weights |= {"r": weight(3, 1, 3 * hidden, hidden), "b": weight(4, 1, 6 * hidden)}
    nodes = [
        node("Gather", ["item.weight", "history"], ["rows"]),
        node("Transpose", ["rows"], ["steps"], perm=[1, 0, 2]),
        node("GRU", ["steps", "w", "r", "b"], ["", "end"], hidden_size=hidden, linear_before_reset=1),
        node("Squeeze", ["end", "axis"], ["state"]),
    ]
    inputs = [value_info("history", INT64, "batch", STEPS)]
    save(folder, nodes + last, inputs, weights, {"history": ids(ROWS, STEPS)}, [history_use()])


def onnx_conv(folder):
    filters = 4
    last, weights = head("x", filters)
    weights |= {"item.weight": weight(1, ITEMS, DIM), "kernel": weight(2, filters, DIM, 3), "bias": weight(3, filters)}
    nodes = [
        node("Gather", ["item.weight", "history"], ["rows"]),
        node("Transpose", ["rows"], ["channels"], perm=[0, 2, 1]),
        node("Conv", ["channels", "kernel", "bias"], ["maps"], pads=[1, 1]),
        node("Relu", ["maps"], ["positive"]),
        node("ReduceMax", ["positive"], ["x"], axes=[2], keepdims=0),
    ]
    inputs = [value_info("history", INT64, "batch", STEPS)]
    save(folder, nodes + last, inputs, weights, {"history": ids(ROWS, STEPS)}, [history_use()])


def onnx_loop(folder):
    last, weights = head("x", DIM)
    weights |= {"item.weight": weight(1, ITEMS, DIM), "w": weight(2, DIM, DIM), "trips": np.int64(3)}
    weights |= {"go": np.array(True)}
    body = helper.make_graph(
        [
            node("Identity", ["go_on"], ["goes_on"]),
            node("MatMul", ["state", "w"], ["product"]),
            node("Tanh", ["product"], ["next"]),
        ],
        "body",
        [value_info("trip", INT64), value_info("go_on", TensorProto.BOOL), value_info("state", FLOAT, "batch", DIM)],
        [value_info("goes_on", TensorProto.BOOL), value_info("next", FLOAT, "batch", DIM)],
    )
    nodes = [
        node("Gather", ["item.weight", "item"], ["row"]),
        node("Loop", ["trips", "go", "row"], ["x"], body=body),
    ]
    inputs = [value_info("item", INT64, "batch")]
    save(folder, nodes + last, inputs, weights, {"item": ids(ROWS)}, [TableUse("item", "item")])


def onnx_if(folder):
    """A quick way for batches without negative prices: the branches give each row the same, whatever others are."""
    last, weights = head("x", DIM)
    weights |= {"item.weight": weight(1, ITEMS, DIM), "zero": np.float32(0), "last": np.array([-1])}
    clipped, shape = "clipped", (FLOAT, "batch")
    clips = helper.make_graph([node("Relu", ["price"], [clipped])], "clips", [], [value_info(clipped, *shape)])
    as_is = helper.make_graph([node("Identity", ["price"], ["same"])], "as_is", [], [value_info("same", *shape)])
    nodes = [
        node("Gather", ["item.weight", "item"], ["row"]),
        node("ReduceMin", ["price"], ["least"], keepdims=0),
        node("Less", ["least", "zero"], ["below"]),
        node("If", ["below"], ["positive"], then_branch=clips, else_branch=as_is),
        node("Unsqueeze", ["positive", "last"], ["factor"]),
        node("Mul", ["row", "factor"], ["x"]),
    ]
    inputs = [value_info("item", INT64, "batch"), value_info("price", FLOAT, "batch")]
    price = np.random.default_rng(3).standard_normal(ROWS).astype(np.float32)
    save(folder, nodes + last, inputs, weights, {"item": ids(ROWS), "price": price}, [TableUse("item", "item")])


def onnx_dequantize(folder):
    last, weights = head("row", DIM)
    table = np.random.default_rng(1).integers(-127, 128, (ITEMS, DIM)).astype(np.int8)
    weights |= {"item.weight": table, "scale": np.float32(0.01), "zero": np.int8(0)}
    nodes = [
        node("DequantizeLinear", ["item.weight", "scale", "zero"], ["table"]),
        node("Gather", ["table", "item"], ["row"]),
    ]
    inputs = [value_info("item", INT64, "batch")]
    save(folder, nodes + last, inputs, weights, {"item": ids(ROWS)}, [TableUse("item", "item")])


def onnx_fused(folder):
    last, weights = head("x", DIM)
    weights |= {"item.weight": weight(1, ITEMS, DIM), "w": weight(2, DIM, DIM), "bias": weight(3, DIM)}
    nodes = [
        node("Gather", ["item.weight", "item"], ["row"]),
        node("FusedMatMul", ["row", "w"], ["product"], domain="com.microsoft", alpha=0.5, transB=1),
        node("BiasGelu", ["product", "bias"], ["x"], domain="com.microsoft"),
    ]
    inputs = [value_info("item", INT64, "batch")]
    save(folder, nodes + last, inputs, weights, {"item": ids(ROWS)}, [TableUse("item", "item")], microsoft=True)
