"""Find the weights of an ONNX graph that is a stage, and make them inputs of it, so that deltas change them.

A weight [..., n] is a table of rows of n numbers (processor.package.stage_entries), which has the weight's name. The
graph brings the rows into the weight's shape, and turns what an exporter stored transposed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from freshet_serving.compiler.imports.fed_stage import ROWS
from freshet_serving.compiler.imports.onnx_graph.linear_weights import ANONYMOUS
from freshet_serving.compiler.imports.onnx_graph.onnx_reader import every_node, taken
from freshet_serving.compiler.imports.onnx_native.native_reader import NativeModel
from freshet_serving.compiler.imports.onnx_native.served_graph import SHAPED_BY_VALUE, package_name
from freshet_serving.compiler.imports.package_draft import MAX_DIM
from freshet_serving.processor.backends import Matrix
from freshet_serving.processor.package import weight_rows

WEIGHT = "weight/"


@dataclass(frozen=True, slots=True, eq=False)
class StagedWeight:
    """A weight that is an input of the stage: an initialiser (tensor) whose table and input have a name.

    Attributes:
        value: As a trainer has it, float32.
        turned: Whether the graph reads it transposed.
    """

    tensor: str
    name: str
    value: Matrix
    turned: bool

    @property
    def rows(self) -> Matrix:
        return self.value.reshape(weight_rows(self.value.shape))


def staged_weights(model: NativeModel, tables: Collection[str]) -> tuple[list[StagedWeight], list[str], list[str]]:
    """Return the weights that can be inputs, other constants by their trainer's name, and those that have lost it."""
    every = list(every_node(model.proto.graph))
    read = {name for node in every for name in taken(node)}
    opening = {name for node in every if node.op_type in SHAPED_BY_VALUE for name in node.input[1:]}
    inputs = {info.name for info in model.inputs}
    taken_names = {package_name(name).lower() for name in tables}
    weights: list[StagedWeight] = []
    constants: list[str] = []
    merged: list[str] = []
    for tensor, array in model.weights.items():
        if tensor not in read or tensor in tables or tensor in inputs or array.dtype.kind != "f" or not array.size:
            continue
        original = model.linear.get(tensor)
        if original is None and ANONYMOUS.fullmatch(tensor):
            merged += [tensor] if array.size > 1 else []
            continue
        name = package_name(original or tensor)
        value = array if original is None else array.T
        fits = array.dtype == np.float32 and weight_rows(value.shape)[1] <= MAX_DIM
        if not fits or tensor in opening or name.lower() in taken_names:
            constants.append(original or tensor)
            continue
        taken_names.add(name.lower())
        weights.append(StagedWeight(tensor, name, np.array(value, order="C"), original is not None))
    return weights, constants, merged


def weight_input(weight: StagedWeight) -> Any:
    return helper.make_tensor_value_info(ROWS + weight.name, TensorProto.FLOAT, list(weight.rows.shape))


def weight_nodes(weight: StagedWeight, rename: Callable[[str], str]) -> list[Any]:
    shape, shaped = f"{WEIGHT}{weight.name}/shape", f"{WEIGHT}{weight.name}"
    target = rename(weight.tensor)
    dims = numpy_helper.from_array(np.array(weight.value.shape, np.int64))
    nodes = [
        helper.make_node("Constant", [], [shape], value=dims),
        helper.make_node("Reshape", [ROWS + weight.name, shape], [shaped if weight.turned else target]),
    ]
    if weight.turned:
        nodes.append(helper.make_node("Transpose", [shaped], [target], perm=[1, 0]))
    return nodes
