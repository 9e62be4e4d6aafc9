"""Replace an If on a constant by the branch that it takes.

Without optimisation, the dynamo exporter writes what PyTorch knew at export (the mode of an EmbeddingBag, whether its
offsets have an end) as branches on constants.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from freshet_serving.compiler.imports.onnx_graph.onnx_reader import Array, OnnxBody, OnnxNode

MAX_SIZE = 1024
CODES: dict[int, Any] = {1: np.float32, 6: np.int32, 7: np.int64, 9: np.bool_}
FOLDS: dict[str, Callable[[Array, Array], Any]] = {
    "Equal": np.equal,
    "Less": np.less,
    "Greater": np.greater,
    "Add": np.add,
    "Sub": np.subtract,
    "CastLike": lambda value, like: value.astype(like.dtype),
}


def decided(body: OnnxBody, known: Mapping[str, Array] | None = None) -> OnnxBody:
    """Return a body without branches on constants, its own or `known` ones around it, also in loops and branches."""
    values = {**(known or {}), **body.constants}
    values.update((name, array) for name, array in body.weights.items() if array.size <= MAX_SIZE)
    nodes: list[OnnxNode] = []
    constants, weights = dict(body.constants), dict(body.weights)
    renamed: dict[str, str] = {}
    waiting = list(reversed(body.nodes))
    while waiting:
        node = _with(waiting.pop(), renamed)
        chosen = chosen_branch(node, values)
        if chosen is not None:
            inner = _prefixed(chosen, f"{node.outputs[0]}/")
            values |= inner.constants | inner.weights
            constants |= inner.constants | inner.weights
            # From here on, the results of the branch have the names of the If's results.
            renamed.update(zip(node.outputs, inner.outputs))
            waiting.extend(reversed(inner.nodes))
            continue
        folded = _folded(node, values)
        if folded is not None:
            values[node.outputs[0]] = constants[node.outputs[0]] = folded
            continue
        bodies = {n: decided(v, values) for n, v in node.attributes.items() if isinstance(v, OnnxBody)}
        nodes.append(replace(node, attributes={**node.attributes, **bodies}) if bodies else node)
    outputs = [_now(name, renamed) for name in body.outputs]
    return OnnxBody(body.inputs, outputs, nodes, weights, constants)


def chosen_branch(node: OnnxNode, values: Mapping[str, Any]) -> OnnxBody | None:
    """Return the branch that an If takes, if its condition is one of the arrays among the values."""
    if node.op != "If" or node.domain or len(node.inputs) != 1:
        return None
    condition = values.get(node.inputs[0])
    if not isinstance(condition, np.ndarray) or condition.size != 1:
        return None
    branch = node.attributes.get("then_branch" if condition.ravel()[0] else "else_branch")
    return branch if isinstance(branch, OnnxBody) and len(branch.outputs) == len(node.outputs) else None


def _folded(node: OnnxNode, values: Mapping[str, Array]) -> Array | None:
    inputs = [values.get(name) for name in node.inputs]
    constants = [v for v in inputs if v is not None and v.size <= MAX_SIZE and v.dtype.kind in "iub"]
    if node.domain or len(constants) != len(inputs) or not constants or len(node.outputs) != 1:
        return None
    if node.op == "Cast" and node.attributes.get("to") in CODES:
        return constants[0].astype(CODES[node.attributes["to"]])
    if node.op == "Identity":
        return constants[0]
    if node.op == "Not" and constants[0].dtype.kind == "b":
        return np.asarray(np.logical_not(constants[0]))
    if node.op not in FOLDS or len(constants) != 2:
        return None
    try:
        return np.asarray(FOLDS[node.op](*constants))
    except ValueError:
        return None


def _with(node: OnnxNode, renamed: Mapping[str, str], outputs: Mapping[str, str] | None = None) -> OnnxNode:
    if not renamed:
        return node
    bodies = {n: _renamed(v, renamed) for n, v in node.attributes.items() if isinstance(v, OnnxBody)}
    inputs = tuple(_now(name, renamed) for name in node.inputs)
    results = tuple((outputs or {}).get(name, name) for name in node.outputs)
    return replace(node, inputs=inputs, outputs=results, attributes={**node.attributes, **bodies})


def _now(name: str, renamed: Mapping[str, str]) -> str:
    """Return the current name of a value, which nested branches may have renamed more than once."""
    while name in renamed:
        name = renamed[name]
    return name


def _renamed(body: OnnxBody, renamed: Mapping[str, str]) -> OnnxBody:
    nodes = [_with(node, renamed) for node in body.nodes]
    outputs = [_now(name, renamed) for name in body.outputs]
    return OnnxBody(body.inputs, outputs, nodes, body.weights, body.constants)


def _prefixed(body: OnnxBody, prefix: str) -> OnnxBody:
    """Return a branch as part of the graph around it, with unique names for its values."""
    results = [name for node in body.nodes for name in node.outputs if name]
    names = {name: f"{prefix}{name}" for name in (*results, *body.weights, *body.constants)}
    nodes = [_with(node, names, names) for node in body.nodes]
    outputs = [names.get(name, name) for name in body.outputs]
    weights = {names[name]: value for name, value in body.weights.items()}
    return OnnxBody([], outputs, nodes, weights, {names[name]: value for name, value in body.constants.items()})
