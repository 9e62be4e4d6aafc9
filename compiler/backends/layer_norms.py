"""Fuse layer normalisations of a converted graph: the dozen nodes that Keras writes become one LayerNormalization.

    x * k + (-mean * k + beta),  k = gamma / sqrt(mean(d * d) + epsilon),  d = x - mean,  mean = mean(x)

ONNX Runtime fuses only (x - mean) / sqrt(...) * gamma + beta. Each node reads and writes a whole tensor, so one takes a
fraction of the time, for the same numbers up to rounding.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from onnx import helper, numpy_helper

Pattern = str | tuple[Any, ...]
Bound = Mapping[str, str]

# The converter writes the mean over the last of three axes as a pooling.
MEANS = ("ReduceMean", "GlobalAveragePool")

# A pattern is an operator and its operands, or the name of a value. BEHIND has the patterns of values named in ENDING.
ENDING: Pattern = ("Add", ("Mul", "x", "k"), ("Add", ("Mul", ("Neg", "mean"), "k"), ("Reshape", "beta", "beta shape")))
BEHIND: list[tuple[str, Pattern]] = [
    ("k", ("Mul", ("Reciprocal", ("Sqrt", ("Add", "variance", "epsilon"))), ("Reshape", "gamma", "gamma shape"))),
    ("variance", ("Mean", ("Mul", "d", "d"))),
    ("d", ("Sub", "x", "mean")),
    ("mean", ("Mean", "x")),
]


def fuse_layer_norms(model: Any) -> int:
    """Replace, in place, the last node of each layer normalisation over the last axis; return their number.

    The nodes before stay in the model, where others may read them.
    """
    matcher = _Matcher(model)
    norms = [(node, attributes) for node in model.graph.node if (attributes := matcher.layer_norm(node))]
    for node, (inputs, epsilon) in norms:
        fused = helper.make_node("LayerNormalization", inputs, node.output, node.name, axis=-1, epsilon=epsilon)
        node.CopyFrom(fused)
    return len(norms)


class _Matcher:
    def __init__(self, model: Any) -> None:
        graph = model.graph
        self._producers: Mapping[str, Any] = {out: node for node in graph.node for out in node.output}
        self._constants = {tensor.name: tensor for tensor in graph.initializer}
        self._vectors = {v.name for v in graph.input if len(v.type.tensor_type.shape.dim) == 1}
        self._vectors |= {name for name, tensor in self._constants.items() if len(tensor.dims) == 1}

    def layer_norm(self, node: Any) -> tuple[list[str], float] | None:
        """Return input, gamma and beta of the layer normalisation that ends in this node, and its epsilon, or None."""
        if node.op_type != "Add":
            return None
        bounds: list[Bound] = list(self._bind(ENDING, node.output[0], {}))
        for name, pattern in BEHIND:
            bounds = [more for bound in bounds for more in self._bind(pattern, bound[name], bound)]
        for bound in bounds:
            epsilon, shapes = (
                self._array(bound["epsilon"]),
                [self._array(bound[f"{w} shape"]) for w in ("gamma", "beta")],
            )
            rank = shapes[0].size if shapes[0] is not None else 0
            if (
                epsilon is not None
                and epsilon.size == 1
                and {bound["gamma"], bound["beta"]} <= self._vectors
                and all(s is not None and s.size == rank and (s[:-1] == 1).all() for s in shapes)
                and all(self._over_last(bound[name], rank) for name in ("mean", "variance"))
            ):
                return [bound[name] for name in ("x", "gamma", "beta")], float(epsilon.item())
        return None

    def _bind(self, pattern: Pattern, value: str, bound: Bound) -> Iterator[Bound]:
        """Yield, for every way to match a value, what is bound already and the pattern's names."""
        if isinstance(pattern, str):
            if bound.get(pattern, value) == value:
                yield {**bound, pattern: value}
            return
        operator, *operands = pattern
        node = self._producers.get(value)
        if node is None or not (node.op_type == operator or (operator == "Mean" and node.op_type in MEANS)):
            return
        for inputs in [list(node.input), list(node.input)[::-1]][: 2 if operator in ("Add", "Mul") else 1]:
            ways: list[Bound] = [bound] if len(inputs) == len(operands) else []
            for operand, input_name in zip(operands, inputs):
                ways = [more for way in ways for more in self._bind(operand, input_name, way)]
            yield from ways

    def _over_last(self, value: str, rank: int) -> bool:
        """Return True if a mean is over the last of `rank` axes, which is kept."""
        node = self._producers[value]
        attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        if node.op_type == "GlobalAveragePool":
            return rank == 3
        return attributes.get("axes") in ([rank - 1], [-1]) and attributes.get("keepdims", 1) == 1

    def _array(self, value: str) -> Any:
        return numpy_helper.to_array(self._constants[value]) if value in self._constants else None
