"""The dense graph: a function of named inputs and the weights, with no weight inside.

Weights are arguments so that a delta can replace them: the graph is compiled once, and any weights of the same names
and shapes fit the compiled result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from freshet_serving.compiler.dense.op_allowlist import check_allowed_ops
from freshet_serving.compiler.frameworks import tf
from freshet_serving.processor.backends import MATRIX, Dims, IoSpec, Matrix
from freshet_serving.processor.errors import BadInput, first_of
from freshet_serving.processor.package import NAME, Output

if TYPE_CHECKING:
    from freshet_serving.compiler.frameworks import keras

Tensors = Mapping[str, Matrix]


@dataclass(frozen=True, slots=True, eq=False)
class DenseGraph:
    """Named inputs and weights -> named outputs float32 [rows, columns].

    Attributes:
        function: A tf.function of exactly that, ({name: input}, {name: weight}) -> {output: matrix}; rows are symbolic.
        inputs: Dimensions by name, None for the rows; "x" [rows, width] holds the features.
        outputs: By ascending name.
        weights: name -> float32, in the model's order.
        examples: Realistic inputs, if others might be meaningless (a mask that is neither 0 nor 1); else None.
    """

    function: Callable[..., Any]
    inputs: dict[str, Dims]
    outputs: list[Output]
    weights: dict[str, Matrix]
    examples: Tensors | None = None

    @property
    def width(self) -> int:
        return self.inputs.get(MATRIX, (None, 0))[1] or 0

    @property
    def spec(self) -> IoSpec:
        return IoSpec(self.inputs, {o.name: (None, o.columns) for o in self.outputs})

    @classmethod
    def from_keras(cls, model: keras.Model) -> DenseGraph:
        """Convert a functional model of named inputs [n, ...], with its inference behaviour and current weights.

        The first is called x. Outputs are the entries of a dict by their keys, or a single tensor as "score".
        Weights keep their Keras paths. State of other types (counters, seeds of dropout) is frozen into the graph;
        BadInput is raised if that could go wrong.
        """
        names = [MATRIX, *(i.name for i in model.inputs[1:])]
        shapes = [tuple(i.shape) for i in model.inputs]
        if len(set(names)) < len(names) or any(len(shape) < 2 or None in shape[1:] for shape in shapes):
            raise BadInput("dense graph: expected inputs [n, ...] of a known size, each with a name of its own")
        trainable, other = model.trainable_variables, model.non_trainable_variables
        weights, frozen = {}, {}
        for variable in (*trainable, *other):
            if variable.dtype == "float32":
                if variable.path in weights:
                    raise BadInput(f"dense graph: two weights are called {variable.path[:80]!r}: name the layers")
                weights[variable.path] = np.ascontiguousarray(variable.numpy(), np.float32).reshape(variable.shape)
            elif variable.trainable or "float" in variable.dtype:
                raise BadInput(f"dense graph: weight {variable.path[:80]!r}: expected float32, got {variable.dtype}")
            else:
                frozen[variable.path] = variable.numpy()

        def take(values: Mapping[str, Any], variables: list[Any]) -> list[Any]:
            return [values[v.path] if v.path in values else tf.constant(frozen[v.path]) for v in variables]

        def dense(inputs: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
            arguments = inputs[MATRIX] if len(names) == 1 else [inputs[name] for name in names]
            result, _ = model.stateless_call(take(values, trainable), take(values, other), arguments, training=False)
            return dict(result) if isinstance(result, Mapping) else {"score": result}

        # x, then the others by name: the order of an executable's arguments.
        named = sorted(zip(names, shapes), key=lambda pair: (pair[0] != MATRIX, pair[0]))
        inputs: dict[str, Dims] = {name: (None, *(int(n) for n in shape[1:])) for name, shape in named}
        function = tf.function(dense, input_signature=signature(inputs, weights), autograph=False)
        return cls(function, inputs, _outputs(function, inputs), weights)

    @classmethod
    def of_matrix(
        cls, function: Any, width: int, outputs: list[Output], weights: dict[str, Matrix], examples: Any = None
    ) -> DenseGraph:
        """Return the graph of a tf.function of x [n, width] alone: (x, {name: weight}) -> {output: matrix}."""

        def dense(inputs: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
            return dict(function(inputs[MATRIX], values))

        inputs: dict[str, Dims] = {MATRIX: (None, width)}
        named = tf.function(dense, input_signature=signature(inputs, weights), autograph=False)
        return cls(named, inputs, outputs, weights, None if examples is None else {MATRIX: examples})

    @classmethod
    def load(cls, path: Path, weights: Mapping[str, Matrix]) -> DenseGraph:
        """Load a graph that save() wrote; raise BadInput if the weights do not fit, or it does more than compute."""
        try:
            check_allowed_ops(path)
            module = tf.saved_model.load(str(path))
            function = module.dense
            (first, expected), _ = function.concrete_functions[0].structured_input_signature
            shapes = {name: tuple(spec.shape) for name, spec in expected.items()}
            # Releases that wrote packages of format 1 saved functions of x alone.
            alone = not isinstance(first, Mapping)
            named = {MATRIX: first} if alone else {n: first[n] for n in sorted(first, key=lambda n: (n != MATRIX, n))}
            inputs = {name: tuple(spec.shape) for name, spec in named.items()}
            outputs = _outputs(function, inputs)
        except (OSError, AttributeError, ValueError, TypeError, IndexError, KeyError):
            raise BadInput("graph: expected a dense graph's SavedModel") from None
        for name in shapes.keys() | weights.keys():
            got = weights[name].shape if name in weights else "none"
            if got != shapes.get(name):
                raise BadInput(f"graph: weight {name[:80]!r}: expected shape {shapes.get(name, 'none')}, got {got}")
        examples = getattr(module, "examples", None)
        if alone:
            rows = None if examples is None else examples.numpy()
            return cls.of_matrix(function, inputs[MATRIX][1], outputs, dict(weights), rows)
        rows_by_name = None if examples is None else {name: examples[name].numpy() for name in inputs}
        return cls(function, inputs, outputs, dict(weights), rows_by_name)

    def save(self, path: Path) -> None:
        """Write the graph without its weights as a TensorFlow SavedModel: a folder at `path`."""
        module = tf.Module()
        module.dense = self.function
        if self.examples is not None:
            module.examples = {name: tf.Variable(rows, trainable=False) for name, rows in self.examples.items()}
        tf.saved_model.save(module, str(path))

    def sample(self, rows: int) -> dict[str, Matrix]:
        """Return inputs of that many rows to try the graph on: its examples, repeated, or else random numbers."""
        if self.examples is not None:
            return self.resized(self.examples, rows)
        random = np.random.default_rng(rows)
        return {n: random.standard_normal(shape, np.float32) for n, shape in self.spec.input_shapes(rows).items()}

    def resized(self, inputs: Tensors, rows: int) -> dict[str, Matrix]:
        """Return inputs of that many rows: the given ones, repeated or cut."""
        arrays = {}
        for name, dims in self.inputs.items():
            array = np.asarray(inputs[name], np.float32)
            arrays[name] = np.ascontiguousarray(array[np.arange(rows) % len(array)] if None in dims else array)
        return arrays

    def rows(self, inputs: Tensors) -> int:
        return first_of(len(inputs[name]) for name, dims in self.inputs.items() if None in dims)

    def run(self, inputs: Tensors, weights: Tensors | None = None) -> dict[str, Matrix]:
        """Return the outputs that TensorFlow computes, the reference; with the graph's own weights by default."""
        chosen = self.weights if weights is None else weights
        values = {name: tf.constant(array) for name, array in chosen.items()}
        tensors = {name: tf.constant(inputs[name]) for name in self.inputs}
        return {name: value.numpy() for name, value in self.function(tensors, values).items()}

    @property
    def concrete(self) -> Any:
        return _concrete(self.function)

    @property
    def signature(self) -> list[Any]:
        """TensorSpecs of the function's arguments; weight i of weight_names is called "weight_<i>"."""
        return signature(self.inputs, self.weights)

    @property
    def weight_names(self) -> list[str]:
        """Names of the weights in the order in which TensorFlow flattens them."""
        return sorted(self.weights)


def signature(inputs: Mapping[str, Dims], weights: Tensors) -> list[Any]:
    """Return [{name: input}, {name: weight}] as TensorSpecs. Weights are named by position: paths are not allowed."""
    position = {name: i for i, name in enumerate(sorted(weights))}
    specs = {n: tf.TensorSpec(w.shape, tf.float32, f"weight_{position[n]}") for n, w in weights.items()}
    return [{name: tf.TensorSpec(dims, tf.float32, name) for name, dims in inputs.items()}, specs]


def _outputs(function: Any, inputs: Mapping[str, Dims]) -> list[Output]:
    """Return the outputs of a tf.function with one signature; raise BadInput unless all are float32 [n, columns]."""
    outputs = []
    for name, spec in sorted(_concrete(function).structured_outputs.items()):
        if spec.dtype != tf.float32 or spec.shape.rank != 2 or spec.shape[1] is None:
            raise BadInput(f"dense graph: output {name[:80]!r}: expected float32 [n, columns], got {spec.shape}")
        if NAME.fullmatch(name) is None or name in inputs:
            raise BadInput(f"dense graph: output {name[:80]!r}: expected a plain name other than an input's")
        outputs.append(Output(name, int(spec.shape[1])))
    return outputs


def _concrete(function: Any) -> Any:
    concrete = getattr(function, "concrete_functions", None)
    return concrete[0] if concrete else function.get_concrete_function()
