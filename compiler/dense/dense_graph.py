"""The dense graph: a function of the dense input and the weights, with no weight inside.

Weights are arguments so that a delta can replace them: the graph is compiled once, and any weights of the same names
and shapes fit the compiled result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.compiler.dense.op_allowlist import check_allowed_ops
from freshet_serving.compiler.frameworks import keras, tf
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.package import NAME, Output

Matrix = NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class DenseGraph:
    """x float32 [rows, width] and weights -> named outputs float32 [rows, columns].

    Attributes:
        function: A tf.function of exactly that, (x, {name: weight}) -> {output: matrix}; rows are symbolic.
        width: Columns of x.
        outputs: By ascending name.
        weights: name -> float32, in the model's order.
        examples: float32 [n, width], realistic rows of x, if others might be meaningless (a mask that is neither 0 nor
            1); None if any will do.
    """

    function: Callable[..., Any]
    width: int
    outputs: list[Output]
    weights: dict[str, Matrix]
    examples: Matrix | None = None

    @classmethod
    def from_keras(cls, model: keras.Model) -> DenseGraph:
        """Convert a functional model of one input [n, width], with its inference behaviour and current weights.

        Outputs are the entries of a dict by their keys, or a single tensor as "score". Weights keep their Keras paths.
        State of other types (counters, seeds of dropout) is frozen into the graph; BadInput is raised if that could go
        wrong.
        """
        if len(model.inputs) != 1 or len(model.inputs[0].shape) != 2 or model.inputs[0].shape[1] is None:
            raise BadInput("dense graph: expected a model of one input [n, width]")
        trainable, other = model.trainable_variables, model.non_trainable_variables
        weights, frozen = {}, {}
        for variable in (*trainable, *other):
            if variable.dtype == "float32":
                if variable.path in weights:
                    raise BadInput(f"dense graph: two weights are called {variable.path[:80]!r}: name the layers")
                weights[variable.path] = _array(variable)
            elif variable.trainable or "float" in variable.dtype:
                raise BadInput(f"dense graph: weight {variable.path[:80]!r}: expected float32, got {variable.dtype}")
            else:
                frozen[variable.path] = variable.numpy()

        def take(values: Mapping[str, Any], variables: list[Any]) -> list[Any]:
            return [values[v.path] if v.path in values else tf.constant(frozen[v.path]) for v in variables]

        def dense(x: Any, values: Mapping[str, Any]) -> dict[str, Any]:
            result, _ = model.stateless_call(take(values, trainable), take(values, other), x, training=False)
            return dict(result) if isinstance(result, Mapping) else {"score": result}

        width = int(model.inputs[0].shape[1])
        function = tf.function(dense, input_signature=signature(width, weights), autograph=False)
        return cls(function, width, _outputs(function), weights)

    @classmethod
    def load(cls, path: Path, weights: Mapping[str, Matrix]) -> DenseGraph:
        """Load a graph that save() wrote.

        Args:
            path: The folder.
            weights: Weights for the graph.

        Raises:
            BadInput: The weights do not fit, or the graph does more than compute.
        """
        try:
            check_allowed_ops(path)
            module = tf.saved_model.load(str(path))
            function = module.dense
            (x, wanted), _ = function.concrete_functions[0].structured_input_signature
            shapes = {name: tuple(spec.shape) for name, spec in wanted.items()}
            width = int(x.shape[1])
        except (OSError, AttributeError, ValueError, TypeError, IndexError):
            raise BadInput("graph: expected a dense graph's SavedModel") from None
        for name in shapes.keys() | weights.keys():
            got = weights[name].shape if name in weights else "none"
            if got != shapes.get(name):
                raise BadInput(f"graph: weight {name[:80]!r}: expected shape {shapes.get(name, 'none')}, got {got}")
        examples = module.examples.numpy() if hasattr(module, "examples") else None
        return cls(function, width, _outputs(function), dict(weights), examples)

    def save(self, path: Path) -> None:
        """Write the graph without its weights as a TensorFlow SavedModel: a folder at `path`."""
        module = tf.Module()
        module.dense = self.function
        if self.examples is not None:
            module.examples = tf.Variable(self.examples, trainable=False)
        tf.saved_model.save(module, str(path))

    def sample(self, rows: int) -> Matrix:
        """Return x [rows, width] to try the graph on: its examples, repeated, or else random numbers."""
        if self.examples is not None:
            return np.ascontiguousarray(self.examples[np.arange(rows) % len(self.examples)])
        return np.random.default_rng(rows).standard_normal((rows, self.width), np.float32)

    def run(self, x: Matrix, weights: Mapping[str, Matrix] | None = None) -> dict[str, Matrix]:
        """Return the outputs that TensorFlow computes, the reference.

        Args:
            x: float32 [rows, width].
            weights: Weights; None for the graph's own.
        """
        chosen = self.weights if weights is None else weights
        values = {name: tf.constant(array) for name, array in chosen.items()}
        return {name: value.numpy() for name, value in self.function(tf.constant(x), values).items()}

    @property
    def concrete(self) -> Any:
        """The concrete function of its only signature, as TensorFlow traced it."""
        return _concrete(self.function)

    @property
    def signature(self) -> list[Any]:
        """TensorSpecs of the function's arguments; weight i of weight_names is called "weight_<i>"."""
        return signature(self.width, self.weights)

    @property
    def weight_names(self) -> list[str]:
        """Names of the weights in the order in which TensorFlow flattens them."""
        return sorted(self.weights)


def signature(width: int, weights: Mapping[str, Matrix]) -> list[Any]:
    """Return [x, {name: weight}] as TensorSpecs.

    Arguments are named by position, since weight paths are not valid names.

    Args:
        width: Columns of x.
        weights: The weights.
    """
    position = {name: i for i, name in enumerate(sorted(weights))}
    specs = {n: tf.TensorSpec(w.shape, tf.float32, f"weight_{position[n]}") for n, w in weights.items()}
    return [tf.TensorSpec((None, width), tf.float32, "x"), specs]


def _outputs(function: Any) -> list[Output]:
    """Return the outputs of a tf.function with one signature; raise BadInput unless all are float32 [n, columns]."""
    outputs = []
    for name, spec in sorted(_concrete(function).structured_outputs.items()):
        if spec.dtype != tf.float32 or spec.shape.rank != 2 or spec.shape[1] is None:
            raise BadInput(f"dense graph: output {name[:80]!r}: expected float32 [n, columns], got {spec.shape}")
        if NAME.fullmatch(name) is None or name == "x":
            raise BadInput(f"dense graph: output {name[:80]!r}: expected a plain name other than 'x'")
        outputs.append(Output(name, int(spec.shape[1])))
    return outputs


def _concrete(function: Any) -> Any:
    """Return a tf.function's concrete function, whether it was traced here or read from a SavedModel."""
    concrete = getattr(function, "concrete_functions", None)
    return concrete[0] if concrete else function.get_concrete_function()


def _array(variable: Any) -> Matrix:
    return np.ascontiguousarray(variable.numpy(), np.float32).reshape(variable.shape)
