"""One operator call of an ONNX graph as its translator sees it: inputs, attributes, version."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from freshet_serving.compiler.frameworks import tf
from freshet_serving.compiler.imports.onnx_graph.onnx_reader import Array, OnnxNode
from freshet_serving.processor.errors import BadInput, TooLarge

MAX_MADE = 1 << 24
"""Largest number of values that an operator may produce from constants alone."""

Translator = Callable[["Call"], Any]


@dataclass(frozen=True, slots=True, eq=False)
class BatchLast:
    """A tensor whose batch dimension an exporter has moved to the end.

    It is kept in front, so that requests can be computed side by side, until an operator needs the original form.
    """

    batch_first: Any

    def tensor(self) -> Any:
        rank = self.batch_first.shape.rank
        return tf.transpose(self.batch_first, [*range(1, rank), 0])


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """A node with the values of its inputs.

    Attributes:
        inputs: Arrays for constants, else tensors; None for inputs left out.
        opset: Version of the operators.
        flipped: By input that is a transposed weight, the weight.
        raw: By input that is BatchLast, that object.
        sizes: By input that is a list of sizes, the known ones.
    """

    node: OnnxNode
    inputs: list[Any]
    opset: int
    flipped: Mapping[int, Any]
    raw: Mapping[int, BatchLast]
    sizes: Mapping[int, list[int | None]]

    def x(self, i: int = 0) -> Any:
        if i >= len(self.inputs) or self.inputs[i] is None:
            raise self.refused(f"input {i} is missing")
        return self.inputs[i]

    def has(self, i: int) -> bool:
        return i < len(self.inputs) and self.inputs[i] is not None

    def attr(self, name: str, default: Any = None) -> Any:
        value = self.node.attributes.get(name, default)
        return value.decode(errors="replace") if isinstance(value, bytes) else value

    def constant(self, i: int) -> Array:
        value = self.x(i)
        if not isinstance(value, np.ndarray):
            value = tf.get_static_value(value)
        if value is None:
            raise self.refused(f"input {i} must be a constant")
        return np.asarray(value)

    def ints(self, name: str, i: int) -> list[int] | None:
        """Return integers that are an attribute in old versions and input i in new ones."""
        value = self.attr(name)
        if value is not None:
            return [int(v) for v in (value if isinstance(value, list) else [value])]
        return [int(v) for v in self.constant(i).ravel()] if self.has(i) else None

    def rank(self, i: int = 0) -> int:
        rank = np.ndim(self.x(i)) if isinstance(self.x(i), np.ndarray) else self.x(i).shape.rank
        if rank is None:
            raise self.refused(f"the dimensions of input {i} must be known")
        return int(rank)

    def axis(self, value: int, rank: int | None = None) -> int:
        """Return an axis counted from the front, of input 0 by default."""
        rank = self.rank() if rank is None else rank
        if not -rank <= value < rank:
            raise self.refused(f"axis {value} does not exist in {rank} dimensions")
        return value % rank

    def refused(self, why: str) -> BadInput:
        return BadInput(f"graph: {self.label}: {why}")

    @property
    def label(self) -> str:
        return f"{self.node.op[:64]} {self.node.name[:64]!r}"

    def bounded(self, count: Any) -> None:
        if isinstance(count, int | np.integer) and int(count) > MAX_MADE:
            raise TooLarge(f"graph: {self.label}: expected at most {MAX_MADE} numbers, got {int(count)}")


def length(value: Any, axis: int) -> Any:
    """Return the size of a dimension: a number if it is known, else a tensor."""
    size = value.shape[axis]
    return tf.shape(value, out_type=tf.int64)[axis] if size is None else int(size)


def sizes(value: Any) -> list[Any]:
    return [length(value, axis) for axis in range(len(value.shape))]
