"""A small artefact as the compiler writes them, and what it computes, by hand."""

from __future__ import annotations

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="artefacts are made with the train extra")

WIDTH, HIDDEN = 12, 8
NAMES = ["mlp_0/kernel", "mlp_0/bias", "mlp_out/kernel"]
SHAPES = {"mlp_0/kernel": (WIDTH, HIDDEN), "mlp_0/bias": (HIDDEN,), "mlp_out/kernel": (HIDDEN, 1)}


def make_weights(seed: int = 0) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    return {name: random.standard_normal(shape, np.float32) for name, shape in SHAPES.items()}


def make_artefact(rows: int | str = "rows", location: str = "weights", width: int = WIDTH) -> bytes:
    """score = sigmoid(relu(x @ mlp_0/kernel + mlp_0/bias) @ mlp_out/kernel), weights left out."""
    helper, floats = onnx.helper, onnx.TensorProto.FLOAT
    weights = []
    for name, shape in SHAPES.items():
        tensor = onnx.TensorProto(name=f"weights/{name}", data_type=floats, dims=shape)
        tensor.data_location = onnx.TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value=location)
        weights.append(tensor)
    nodes = [
        helper.make_node("MatMul", ["x", "weights/mlp_0/kernel"], ["a"]),
        helper.make_node("Add", ["a", "weights/mlp_0/bias"], ["b"]),
        helper.make_node("Relu", ["b"], ["c"]),
        helper.make_node("MatMul", ["c", "weights/mlp_out/kernel"], ["d"]),
        helper.make_node("Sigmoid", ["d"], ["score"]),
    ]
    x = helper.make_tensor_value_info("x", floats, [rows, width])
    score = helper.make_tensor_value_info("score", floats, [rows, 1])
    graph = helper.make_graph(nodes, "dense", [x], [score], weights)
    opset = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, ir_version=8, opset_imports=opset).SerializeToString()


def make_onnx_origin() -> bytes:
    """The same graph with its weights as inputs."""
    model = onnx.load_from_string(make_artefact())
    for tensor in model.graph.initializer:
        model.graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims)))
    del model.graph.initializer[:]
    return model.SerializeToString()


def make_stablehlo(bucket: int) -> bytes:
    """The same graph as StableHLO, weights in the order of NAMES."""
    b, w, h = bucket, WIDTH, HIDDEN
    return f"""module @dense {{
  func.func @main(%x: tensor<{b}x{w}xf32>, %k: tensor<{w}x{h}xf32>, %c: tensor<{h}xf32>, %o: tensor<{h}x1xf32>)
      -> tensor<{b}x1xf32> {{
    %0 = stablehlo.dot %x, %k : (tensor<{b}x{w}xf32>, tensor<{w}x{h}xf32>) -> tensor<{b}x{h}xf32>
    %1 = stablehlo.broadcast_in_dim %c, dims = [1] : (tensor<{h}xf32>) -> tensor<{b}x{h}xf32>
    %2 = stablehlo.add %0, %1 : tensor<{b}x{h}xf32>
    %3 = stablehlo.constant dense<0.0> : tensor<{b}x{h}xf32>
    %4 = stablehlo.maximum %2, %3 : tensor<{b}x{h}xf32>
    %5 = stablehlo.dot %4, %o : (tensor<{b}x{h}xf32>, tensor<{h}x1xf32>) -> tensor<{b}x1xf32>
    %6 = stablehlo.logistic %5 : tensor<{b}x1xf32>
    return %6 : tensor<{b}x1xf32>
  }}
}}
""".encode()


def expected(x: np.ndarray, weights: dict[str, np.ndarray]) -> np.ndarray:
    hidden = np.maximum(x @ weights["mlp_0/kernel"] + weights["mlp_0/bias"], 0)
    return 1 / (1 + np.exp(-(hidden @ weights["mlp_out/kernel"])))
