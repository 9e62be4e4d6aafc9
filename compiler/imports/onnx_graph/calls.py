"""One operator of an ONNX graph as whoever translates it sees it: inputs, attributes, version."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from freshet_serving.compiler.frameworks import tf
from freshet_serving.compiler.imports.onnx_graph.onnx_reader import Array, OnnxNode
from freshet_serving.processor.errors import BadInput, TooLarge

MAX_MADE = 1 << 24
"""Numbers that an operator may make of constants alone."""

Translator = Callable[["Call"], Any]


@dataclass(frozen=True, slots=True, eq=False)
class BatchLast:
    """A tensor whose batch an exporter has moved behind all else. batch_first: the same with the batch in front, which
    is how requests can be computed side by side; it stays so until somebody needs it as it is written."""

    batch_first: Any

    def tensor(self) -> Any:
        rank = self.batch_first.shape.rank
        return tf.transpose(self.batch_first, [*range(1, rank), 0])


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """node with the values of its inputs: arrays where they are constants, else tensors; None where left out. flipped:
    of inputs that are transposed weights, the weight. raw: of inputs that are BatchLast, that. sizes: of inputs that
    are sizes, those that are known."""

    node: OnnxNode
    inputs: list[Any]
    opset: int
    flipped: Mapping[int, Any]
    raw: Mapping[int, BatchLast]
    sizes: Mapping[int, list[int | None]]

    def x(self, i: int = 0) -> Any:
        """An input that has to be there."""
        if i >= len(self.inputs) or self.inputs[i] is None:
            raise self.refused(f"input {i} is missing")
        return self.inputs[i]

    def has(self, i: int) -> bool:
        return i < len(self.inputs) and self.inputs[i] is not None

    def attr(self, name: str, default: Any = None) -> Any:
        value = self.node.attributes.get(name, default)
        return value.decode(errors="replace") if isinstance(value, bytes) else value

    def constant(self, i: int) -> Array:
        """The value of an input that has to be known before anything runs."""
        value = self.x(i)
        if not isinstance(value, np.ndarray):
            value = tf.get_static_value(value)
        if value is None:
            raise self.refused(f"input {i} has to be a constant")
        return np.asarray(value)

    def ints(self, name: str, i: int) -> list[int] | None:
        """Whole numbers that are an attribute in old versions and an input in new ones."""
        value = self.attr(name)
        if value is not None:
            return [int(v) for v in (value if isinstance(value, list) else [value])]
        return [int(v) for v in self.constant(i).ravel()] if self.has(i) else None

    def rank(self, i: int = 0) -> int:
        rank = np.ndim(self.x(i)) if isinstance(self.x(i), np.ndarray) else self.x(i).shape.rank
        if rank is None:
            raise self.refused(f"the dimensions of input {i} have to be known")
        return int(rank)

    def axis(self, value: int, rank: int | None = None) -> int:
        """An axis as counted from the front."""
        rank = self.rank() if rank is None else rank
        if not -rank <= value < rank:
            raise self.refused(f"axis {value} of {rank} dimensions")
        return value % rank

    def refused(self, why: str) -> BadInput:
        return BadInput(f"graph: {self.label}: {why}")

    @property
    def label(self) -> str:
        return f"{self.node.op[:64]} {self.node.name[:64]!r}"

    def bounded(self, count: Any) -> None:
        """Refuses to make more numbers of constants than anything needs."""
        if isinstance(count, int | np.integer) and int(count) > MAX_MADE:
            raise TooLarge(f"graph: {self.label}: at most {MAX_MADE} numbers wanted, got {int(count)}")


def length(value: Any, axis: int) -> Any:
    """The size of a dimension: a number where it is known, else a tensor."""
    known = value.shape[axis]
    return tf.shape(value, out_type=tf.int64)[axis] if known is None else int(known)


def sizes(value: Any) -> list[Any]:
    """The sizes of all dimensions."""
    return [length(value, axis) for axis in range(len(value.shape))]
