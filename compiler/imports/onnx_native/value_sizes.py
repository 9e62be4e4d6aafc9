"""Refuse graphs in which numbers of a request say how much is computed.

A graph that is served as it is runs in the server's process, and ONNX Runtime allocates what the graph asks for. So
sizes and trip counts must follow from constants and shapes, which the server bounds, and not from values: `Range(0, n)`
with n from an input is gigabytes for one small request. This is decided once, at import: a value is an input's, or is
computed from one by anything but Shape and Size.

A size that is a constant is bounded too, before ONNX Runtime computes it while it opens the graph.

What may depend on values: branches, indices, masks, lengths of sequences, and sizes that the input's own size bounds
(NonZero, Compress, Unique). A loop may end early by a value if its trip count is a small constant or follows from a
shape.
"""

from __future__ import annotations

import math
from typing import Any

from onnx import numpy_helper

from freshet_serving.compiler.imports.onnx_graph.onnx_reader import OURS
from freshet_serving.processor.errors import BadInput, TooLarge

MAX_NOTED = 64
Constants = dict[str, list[int]]
BY_SHAPE = frozenset({"Shape", "Size"})
MAX_TRIPS = 10_000
MAX_MADE = 1 << 24
"""Largest number of values that an operator may make of constants alone."""
RANDOM = ("RandomNormal", "RandomUniform")
# By operator, the inputs that say how large its output is.
SIZING = {
    "AffineGrid": (1,),
    "BlackmanWindow": (0,),
    "CenterCropPad": (1,),
    "Col2Im": (1,),
    "ConstantOfShape": (0,),
    "DFT": (1,),
    "Expand": (1,),
    "HammingWindow": (0,),
    "HannWindow": (0,),
    "MaxUnpool": (2,),
    "MelWeightMatrix": (0, 1),
    "OneHot": (1,),
    "Pad": (1,),
    "Range": (0, 1, 2),
    "Resize": (1, 2, 3),
    "STFT": (1, 3),
    "Tile": (1,),
    "Upsample": (1,),
    "BeamSearch": (1, 2, 3, 4),
    "GreedySearch": (1,),
    "Sampling": (1,),
    "WhisperBeamSearch": (1, 2, 3, 4),
}


def check_sizes(graph: Any) -> None:
    """Raise BadInput if a size or a trip count depends on values of a request, TooLarge if a constant one is huge.

    Args:
        graph: The graph's message.
    """
    constant = {tensor.name for tensor in graph.initializer}
    _walk(graph, {info.name for info in graph.input} - constant, {})


def _walk(graph: Any, values: set[str], known: Constants) -> set[str]:
    """Return the names that depend on values, those of the graphs around it included.

    Args:
        graph: A graph or a body.
        values: Names that do, before it.
        known: Short constants, by name.
    """
    values, known = set(values), dict(known)
    for tensor in graph.initializer:
        _note(known, tensor.name, tensor)
    for node in graph.node:
        if node.op_type == "Constant" and node.domain in OURS:
            for attribute in node.attribute:
                if attribute.name == "value":
                    _note(known, node.output[0], attribute.t)
                elif attribute.name in ("value_int", "value_ints"):
                    known[node.output[0]] = [attribute.i, *attribute.ints][-max(1, len(attribute.ints)) :]
        _check_constant(node, known)
        for i in SIZING.get(node.op_type, ()):
            if i < len(node.input) and node.input[i] in values:
                raise _by_value(node, "a size")
        touched = not values.isdisjoint(node.input)
        for body in _bodies(node):
            touched |= _body(node, body, values, known, touched)
        if touched and node.op_type not in BY_SHAPE:
            values.update(node.output)
    return values


def _body(node: Any, body: Any, values: set[str], known: Constants, touched: bool) -> bool:
    """Check a body; return whether one of its results depends on values."""
    names = [info.name for info in body.input]
    loop = node.op_type == "Loop"
    # The number of the trip is bounded; the other inputs are what the node is given, or its own results.
    inner = values | set(names[2:] if loop else names) if touched else values
    after = _walk(body, inner, known)
    results = [info.name for info in body.output]
    if loop:
        if node.input[0] in values:
            raise _by_value(node, "a trip count")
        ends = results[0] in after or (len(node.input) > 1 and node.input[1] in values)
        trips = known.get(node.input[0], [0])
        if ends and (not node.input[0] or max(trips, default=0) > MAX_TRIPS):
            raise _by_value(node, "a number of trips")
        # A second look, now that results of one trip are inputs of the next.
        if not touched and not after.isdisjoint(results):
            return _body(node, body, values, known, True)
    return touched or not after.isdisjoint(results)


def _bodies(node: Any) -> list[Any]:
    return [g for a in node.attribute for g in (*([a.g] if a.HasField("g") else []), *a.graphs)]


def _note(known: Constants, name: str, tensor: Any) -> None:
    """Remember a tensor's numbers if it holds a few integers of its own."""
    if len(tensor.dims) <= 1 and math.prod(tensor.dims) <= MAX_NOTED and tensor.data_location == 0:
        array = numpy_helper.to_array(tensor)
        if array.dtype.kind in "iu":
            known[name] = array.ravel().tolist()


def _check_constant(node: Any, known: Constants) -> None:
    """Raise TooLarge if an operator makes too many values of constants."""
    given = [known.get(name) for name in node.input]
    made = 0
    if node.op_type in RANDOM:
        made = math.prod(next((list(a.ints) for a in node.attribute if a.name == "shape"), []))
    elif node.op_type == "Range" and len(given) == 3 and None not in given:
        first, last, step = (max(numbers or [0]) for numbers in given)
        made = (last - first) // (step or 1)
    else:
        sizes = [given[i] or [] for i in SIZING.get(node.op_type, ()) if i < len(given)]
        # Each padding adds to another dimension, by itself.
        count = max if node.op_type == "Pad" else math.prod
        made = max((count([abs(size) for size in one]) for one in sizes if one), default=0)
    if made > MAX_MADE:
        raise TooLarge(
            f"graph: {node.op_type[:64]} {node.name[:64]!r}: expected at most {MAX_MADE} numbers from constants, "
            f"got {made}"
        )


def _by_value(node: Any, what: str) -> BadInput:
    return BadInput(
        f"graph: {node.op_type[:64]} {node.name[:64]!r}: expected {what} that follows from shapes, got one that "
        "follows from numbers of the request, which could ask for any"
    )
