"""Load and run dense graphs with TensorFlow, as compiler/backends/tensorflow.py wrote them.

The engine reaches it as the entry point `tensorflow` of the group freshet.backends, and only for a package that has
executables for it: the engine itself never imports TensorFlow. Weights are arguments. A run copies x in and the outputs
out; TensorFlow's own threads compute.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import numpy as np

from freshet_serving.compiler.frameworks import tf
from freshet_serving.processor.backends import (
    Artefact,
    Executable,
    IoSpec,
    Matrix,
    Program,
    Weights,
    check_buffers,
    shapes_text,
)
from freshet_serving.processor.errors import BadInput, Corrupt, FreshetError

MAX_NBYTES = 256 << 20


class TensorFlow:
    name = "tensorflow"

    def __init__(self) -> None:
        self.library = f"tensorflow {tf.__version__}"

    def open_program(self, spec: IoSpec, threads: int = 1, runs: int = 1) -> Program:
        """Open a program; `threads` takes effect only before TensorFlow has computed anything, `runs` never."""
        with suppress(RuntimeError):
            tf.config.threading.set_intra_op_parallelism_threads(threads)
        return _Program(spec)


class _Program:
    """A program whose artefacts of equal bytes share one function."""

    def __init__(self, spec: IoSpec) -> None:
        self._spec = spec
        self._functions: dict[bytes, Any] = {}
        self._artefacts: dict[int, Artefact] = {}

    def add(self, artefact: Artefact) -> None:
        if artefact.data not in self._functions:
            self._functions[artefact.data] = self._function(artefact)
        self._artefacts[artefact.bucket] = artefact

    def with_weights(self, weights: Weights) -> dict[int, Executable]:
        placed: dict[str, Any] = {}
        loaded: dict[int, Executable] = {}
        for bucket, artefact in self._artefacts.items():
            function = self._functions[artefact.data]
            for name, spec in zip(artefact.weights, function.inputs[len(self._spec.inputs) :]):
                if name not in weights:
                    raise BadInput(f"dense weight {name[:64]!r} is missing")
                array = weights[name]
                if array.dtype != np.float32 or not spec.shape.is_compatible_with(array.shape):
                    got = f"{array.dtype} {list(array.shape)}"
                    raise BadInput(f"dense weight {name[:64]!r}: expected float32 {spec.shape.as_list()}, got {got}")
                if name not in placed:
                    placed[name] = tf.constant(array.copy())
            arguments = [placed[name] for name in artefact.weights]
            executable = _Executable(function, arguments, bucket, self._spec)
            executable.check()
            loaded[bucket] = executable
        return loaded

    def _function(self, artefact: Artefact) -> Any:
        where = f"executable b{artefact.bucket}"
        if len(artefact.data) > MAX_NBYTES:
            raise BadInput(f"{where}: expected at most {MAX_NBYTES} bytes, got {len(artefact.data)}")
        feeds = [*(f"{name}:0" for name in self._spec.inputs), *(f"weight_{i}:0" for i in range(len(artefact.weights)))]
        fetches = [f"output_{i}:0" for i in range(len(self._spec.outputs))]
        try:
            parsed = tf.compat.v1.GraphDef.FromString(artefact.data)
            wrapped = tf.compat.v1.wrap_function(lambda: tf.graph_util.import_graph_def(parsed, name=""), [])
            find = wrapped.graph.get_tensor_by_name
            function = wrapped.prune([find(name) for name in feeds], [find(name) for name in fetches])
        except Exception as error:
            raise Corrupt(f"{where}: refused by tensorflow {tf.__version__}") from error
        for placeholder, (name, dims) in zip(function.inputs, self._spec.inputs.items()):
            if placeholder.dtype != tf.float32 or placeholder.shape.as_list() != list(dims):
                shape = str(["rows" if n is None else n for n in dims]).replace("'", "")
                raise BadInput(f"{where}: expected input {name!r} float32 {shape}")
        return function


class _Executable:
    def __init__(self, function: Any, weights: list[Any], bucket: int, spec: IoSpec) -> None:
        self.bucket = bucket
        self._function, self._weights, self._spec = function, weights, spec

    def bind_buffers(self, inputs: Mapping[str, Matrix], outputs: Mapping[str, Matrix]) -> Callable[[], None]:
        check_buffers(self.bucket, self._spec, inputs, outputs)
        arrays = [inputs[name] for name in self._spec.inputs]
        ends = [outputs[name] for name in sorted(outputs)]

        def run() -> None:
            try:
                results = self._function(*[tf.constant(array) for array in arrays], *self._weights)
                for result, end in zip(results, ends):
                    np.copyto(end, result.numpy())
            except Exception as error:
                raise FreshetError(f"tensorflow failed on a batch of {self.bucket} rows") from error

        return run

    def check(self) -> None:
        zeros = [tf.zeros(shape) for shape in self._spec.input_shapes(self.bucket).values()]
        results = self._function(*zeros, *self._weights)
        got = [(result.dtype, tuple(result.shape)) for result in results]
        shapes = self._spec.output_shapes(self.bucket)
        if got != [(tf.float32, shape) for _, shape in sorted(shapes.items())]:
            raise BadInput(f"executable b{self.bucket}: expected outputs {shapes_text(shapes)}")
