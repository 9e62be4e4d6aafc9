"""Refuse graphs in which numbers of a request say how much is computed, or end the process.

A graph that is served as it is runs in the server's process, and ONNX Runtime allocates what the graph asks for. So
sizes and trip counts must follow from constants and shapes, which the server bounds, not from values: `Range(0, n)`
with n from an input is gigabytes for one small request. This is decided at import: a value is an input's, or is
computed from one by anything but Shape and Size. Constant sizes are bounded too, before ONNX Runtime computes them.

Two more traps: the smallest integer divided by -1 ends the process, so integers of a request are divided by constants
other than 0 and -1 alone; RoiAlign without a sampling ratio makes as many samples as the boxes of a request are large.
StringConcat doubles what it joins with itself.

What may depend on values: branches, indices, masks, lengths of sequences, and sizes that the input's own size bounds
(NonZero, Compress, Unique, and numbers that bounded_values finds). A loop may end early by a value if its trip count is
a small constant or follows from a shape; constants of loops in loops are multiplied.
"""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from freshet_serving.compiler.imports.error_reason import size_by_value
from freshet_serving.compiler.imports.onnx_graph.onnx_reader import OURS, bodies_of
from freshet_serving.compiler.imports.onnx_native.bounded_values import bound_of
from freshet_serving.processor.errors import BadInput, TooLarge

MAX_NOTED = 64
Constants = dict[str, list[int]]
Bounds = dict[str, int]
BY_SHAPE = frozenset({"Shape", "Size"})
MAX_TRIPS = 10_000
MAX_LOOKS = 2
"""Looks at a body before all that it carries counts as values."""
LOOPED = (
    "; nn.Embedding(max_norm=...) is exported as such a loop: scale its rows once, set max_norm = None and export again"
)
MAX_MADE = 1 << 24
"""Largest number of values that an operator may make of constants alone."""
MAX_JOINED = 64
"""Most strings that StringConcat may join into one, counted through the graph."""
DIVISIONS = frozenset({"Div", "Mod"})
INTEGERS = frozenset(getattr(onnx.TensorProto, f"{sign}INT{bits}") for sign in ("", "U") for bits in (8, 16, 32, 64))
RANDOM = ("RandomNormal", "RandomUniform")
# By operator, the inputs that say how large its output is.
SIZING = {
    **dict.fromkeys(("BlackmanWindow", "ConstantOfShape", "HammingWindow", "HannWindow"), (0,)),
    **dict.fromkeys(("AffineGrid", "CenterCropPad", "Col2Im", "DFT", "Expand", "GreedySearch", "OneHot"), (1,)),
    **dict.fromkeys(("Pad", "Sampling", "Tile", "Upsample"), (1,)),
    **dict.fromkeys(("BeamSearch", "WhisperBeamSearch"), (1, 2, 3, 4)),
    "MaxUnpool": (2,),
    "MelWeightMatrix": (0, 1),
    "Range": (0, 1, 2),
    "Resize": (1, 2, 3),
    "STFT": (1, 3),
}


def check_sizes(model: Any) -> None:
    """Raise BadInput if a size depends on a request's values or a division could trap, TooLarge for a huge size."""
    graph = model.graph
    constant = {tensor.name for tensor in graph.initializer}
    _check_joined(graph, {}, repeated=False)
    _Walk(_integers(model)).walk(graph, {info.name for info in graph.input} - constant, {}, {}, 1)


def _integers(model: Any) -> set[str]:
    """Return the names of integers in a model's graphs, as far as ONNX knows their types."""
    skeleton = onnx.ModelProto(ir_version=model.ir_version, opset_import=model.opset_import)
    skeleton.graph.name = "g"
    skeleton.graph.node.extend(model.graph.node)
    inputs = {info.name for info in model.graph.input}
    skeleton.graph.input.extend(model.graph.input)
    skeleton.graph.input.extend(
        onnx.helper.make_tensor_value_info(t.name, t.data_type, list(t.dims))
        for t in model.graph.initializer
        if t.name not in inputs
    )
    # Where it fails, ONNX Runtime, which opens the graph next, says what is wrong.
    with suppress(onnx.shape_inference.InferenceError, ValueError, RuntimeError):
        skeleton = onnx.shape_inference.infer_shapes(skeleton)
    names: set[str] = set()
    graphs = [skeleton.graph]
    while graphs:
        graph = graphs.pop()
        for info in (*graph.input, *graph.value_info, *graph.output):
            if info.type.tensor_type.elem_type in INTEGERS:
                names.add(info.name)
        names.update(t.name for t in graph.initializer if t.data_type in INTEGERS)
        for node in graph.node:
            graphs += bodies_of(node)
            for attribute in node.attribute:
                # A type that ONNX does not infer where it knows too little of the input.
                if attribute.name == "to" and node.op_type == "Cast" and attribute.i in INTEGERS:
                    names.update(node.output)
    return names


def _check_joined(graph: Any, joined: dict[str, int], repeated: bool) -> None:
    """Raise BadInput if StringConcat joins a string with itself too often; `joined` counts strings in each value."""
    joined = dict(joined)
    for node in graph.node:
        counts = [joined.get(name, 1) for name in node.input]
        count = sum(counts) if node.op_type == "StringConcat" else max(counts, default=1)
        if count > MAX_JOINED or (repeated and node.op_type == "StringConcat"):
            raise BadInput(
                f"graph: StringConcat {node.name[:64]!r}: expected at most {MAX_JOINED} strings joined into one, and "
                "none in a loop"
            )
        for body in bodies_of(node):
            _check_joined(body, joined, repeated or node.op_type in ("Loop", "Scan", "SequenceMap"))
        joined |= dict.fromkeys(node.output, count)


class _Walk:
    def __init__(self, integers: set[str]) -> None:
        self._integers = integers
        self._divisors: dict[str, Any] = {}

    def walk(self, graph: Any, values: set[str], bounds: Bounds, known: Constants, trips: int) -> set[str]:
        """Return the names that depend on values after a graph or body, those of the graphs around it included.

        Args:
            bounds: Bounds of those that are no larger than the request, by name.
            known: Short constants, by name.
            trips: How often the body may run, by constants.
        """
        values, known = set(values), dict(known)
        inputs = {info.name for info in graph.input}
        bounds = {name: bound for name, bound in bounds.items() if name not in inputs}
        for tensor in graph.initializer:
            self._note(known, tensor.name, tensor)
        for node in graph.node:
            if node.op_type == "Constant" and node.domain in OURS:
                for attribute in node.attribute:
                    if attribute.name == "value":
                        self._note(known, node.output[0], attribute.t)
                    elif attribute.name in ("value_int", "value_ints"):
                        known[node.output[0]] = [attribute.i, *attribute.ints][-max(1, len(attribute.ints)) :]
                        self._divisors[node.output[0]] = known[node.output[0]]
            _check_constant(node, known)
            self._check_division(node, values)
            for i in SIZING.get(node.op_type, ()):
                if i < len(node.input) and node.input[i] in values and node.input[i] not in bounds:
                    raise size_by_value(node.op_type, node.name, "a size")
            ratio = any(a.i for a in node.attribute if a.name == "sampling_ratio")
            if node.op_type == "RoiAlign" and node.input[1] in values and not ratio:
                raise size_by_value(node.op_type, node.name, "a number of samples (sampling_ratio)")
            touched = not values.isdisjoint(node.input)
            for body in bodies_of(node):
                touched |= self._body(node, body, values, bounds, known, touched, trips)
            if touched and node.op_type not in BY_SHAPE:
                bound = bound_of(node, values, bounds)
                values.update(node.output)
                bounds |= {} if bound is None else dict.fromkeys(node.output, bound)
        return values

    def _body(
        self, node: Any, body: Any, values: set[str], bounds: Bounds, constants: Constants, touched: bool, trips: int
    ) -> bool:
        names, results = [info.name for info in body.input], [info.name for info in body.output]
        loop = node.op_type == "Loop"
        # The number of the trip is bounded; the other inputs are what the node is given, or its own results.
        carried = names[2:] if loop else names
        inner = (
            {n for n, outer in zip(carried, node.input[2:]) if outer in values}
            if loop
            else set(carried if touched else ())
        )
        own_trips = max(constants.get(node.input[0], [1]), default=1) if loop else 1
        for _ in range(MAX_LOOKS):
            after = self.walk(body, values | inner, bounds, constants, trips * max(own_trips, 1))
            # Results of one trip are inputs of the next.
            dependent = {name for name, result in zip(carried, results[loop:]) if result in after}
            if dependent <= inner:
                break
            inner |= dependent
        else:
            after = self.walk(body, values | set(carried), bounds, constants, trips * max(own_trips, 1))
        if loop:
            if node.input[0] in values and node.input[0] not in bounds:
                raise size_by_value(node.op_type, node.name, "a trip count")
            ends = results[0] in after or (len(node.input) > 1 and node.input[1] in values)
            if ends and (not node.input[0] or trips * own_trips > MAX_TRIPS):
                raise size_by_value(node.op_type, node.name, "a number of trips", LOOPED)
        return touched or not after.isdisjoint(results)

    def _note(self, constants: Constants, name: str, tensor: Any) -> None:
        """Remember a tensor if it holds integers of its own, and its numbers if these are a few."""
        if tensor.data_type not in INTEGERS or tensor.data_location != 0:
            return
        self._divisors[name] = tensor
        if len(tensor.dims) <= 1 and math.prod(tensor.dims) <= MAX_NOTED:
            constants[name] = numpy_helper.to_array(tensor).ravel().tolist()

    def _check_division(self, node: Any, values: set[str]) -> None:
        """Raise BadInput for integers of a request that are divided by something that may be 0 or -1."""
        if node.op_type not in DIVISIONS or node.domain not in OURS or values.isdisjoint(node.input):
            return
        whole = not self._integers.isdisjoint((*node.input, *node.output))
        if whole and not _divides(self._divisors.get(node.input[1])):
            raise BadInput(
                f"graph: {node.op_type} {node.name[:64]!r}: expected integers of a request to be divided by constants "
                "other than 0 and -1: ONNX Runtime ends the process for some others; divide floats"
            )


def _divides(constant: Any) -> bool:
    """Return whether any integer may be divided by a constant: a tensor, numbers, or None for no constant."""
    if constant is None:
        return False
    numbers = np.asarray(constant) if isinstance(constant, list) else numpy_helper.to_array(constant)
    return not ((numbers == 0) | (numbers == -1)).any()


def _check_constant(node: Any, by_name: Constants) -> None:
    """Raise TooLarge if an operator makes too many values of constants."""
    constants = [by_name.get(name) for name in node.input]
    values = 0
    if node.op_type in RANDOM:
        values = math.prod(next((list(a.ints) for a in node.attribute if a.name == "shape"), []))
    elif node.op_type == "Range" and len(constants) == 3 and None not in constants:
        first, last, step = (max(numbers or [0]) for numbers in constants)
        values = (last - first) // (step or 1)
    else:
        sizes = [constants[i] or [] for i in SIZING.get(node.op_type, ()) if i < len(constants)]
        # Each padding adds to another dimension, by itself.
        count = max if node.op_type == "Pad" else math.prod
        values = max((count([abs(size) for size in numbers_of]) for numbers_of in sizes if numbers_of), default=0)
    if values > MAX_MADE:
        raise TooLarge(
            f"graph: {node.op_type[:64]} {node.name[:64]!r}: expected at most {MAX_MADE} numbers from constants, "
            f"got {values}"
        )
