"""Load and run dense graphs with TensorFlow, as compiler/backends/tensorflow.py wrote them.

The engine reaches it as the entry point `tensorflow` of the group freshet.backends, and only for a package that has
executables for it: the engine itself never imports TensorFlow. Weights are arguments. A run copies x in and the outputs
out; TensorFlow's own threads compute.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from freshet_serving.compiler.frameworks import tf
from freshet_serving.processor.backends import Artefact, Executable, Matrix, Program, Weights, check_buffers
from freshet_serving.processor.errors import BadInput, Corrupt, FreshetError

MAX_NBYTES = 256 << 20


class TensorFlow:
    """TensorFlow as a processor.backends.base.Backend."""

    name = "tensorflow"

    def __init__(self) -> None:
        self.library = f"tensorflow {tf.__version__}"

    def open_program(self, width: int, outputs: Mapping[str, int], threads: int = 1, runs: int = 1) -> Program:
        """Open a program as Backend.open_program does.

        Args:
            width: Columns of the dense input.
            outputs: Columns by output.
            threads: Takes effect only before TensorFlow has computed anything.
            runs: Ignored.
        """
        with suppress(RuntimeError):
            tf.config.threading.set_intra_op_parallelism_threads(threads)
        return _Program(width, dict(outputs))


class _Program:
    """A processor.backends.base.Program; artefacts of equal bytes share one function."""

    def __init__(self, width: int, columns: dict[str, int]) -> None:
        self._width, self._columns = width, columns
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
            for name, spec in zip(artefact.weights, function.inputs[1:]):
                if name not in weights:
                    raise BadInput(f"dense weight {name[:64]!r} is missing")
                array = weights[name]
                if array.dtype != np.float32 or not spec.shape.is_compatible_with(array.shape):
                    got = f"{array.dtype} {list(array.shape)}"
                    raise BadInput(f"dense weight {name[:64]!r}: expected float32 {spec.shape.as_list()}, got {got}")
                if name not in placed:
                    placed[name] = tf.constant(array.copy())
            arguments = [placed[name] for name in artefact.weights]
            made = _Executable(function, arguments, bucket, self._width, self._columns)
            made.check()
            loaded[bucket] = made
        return loaded

    def _function(self, artefact: Artefact) -> Any:
        what = f"executable b{artefact.bucket}"
        if len(artefact.data) > MAX_NBYTES:
            raise BadInput(f"{what}: expected at most {MAX_NBYTES} bytes, got {len(artefact.data)}")
        feeds = ["x:0", *(f"weight_{i}:0" for i in range(len(artefact.weights)))]
        fetches = [f"output_{i}:0" for i in range(len(self._columns))]
        try:
            parsed = tf.compat.v1.GraphDef.FromString(artefact.data)
            wrapped = tf.compat.v1.wrap_function(lambda: tf.graph_util.import_graph_def(parsed, name=""), [])
            find = wrapped.graph.get_tensor_by_name
            function = wrapped.prune([find(name) for name in feeds], [find(name) for name in fetches])
        except Exception as error:
            raise Corrupt(f"{what}: refused by tensorflow {tf.__version__}") from error
        x = function.inputs[0]
        if x.dtype != tf.float32 or x.shape.as_list() != [None, self._width]:
            raise BadInput(f"{what}: expected one input 'x' float32 [rows, {self._width}]")
        return function


class _Executable:
    """A processor.backends.base.Executable: a function with its weights in place."""

    def __init__(self, function: Any, weights: list[Any], bucket: int, width: int, columns: dict[str, int]) -> None:
        self.bucket = bucket
        self._function, self._weights = function, weights
        self._width, self._columns = width, columns

    def bind_buffers(self, x: Matrix, outputs: Mapping[str, Matrix]) -> Callable[[], None]:
        check_buffers(self.bucket, self._width, self._columns, x, outputs)
        return _Run(self._function, self._weights, x, [outputs[name] for name in sorted(outputs)])

    def check(self) -> None:
        """Run once; raise BadInput unless the outputs have the expected shapes."""
        results = self._function(tf.zeros((self.bucket, self._width)), *self._weights)
        got = [(result.dtype, tuple(result.shape)) for result in results]
        if got != [(tf.float32, (self.bucket, self._columns[name])) for name in sorted(self._columns)]:
            raise BadInput(f"executable b{self.bucket}: expected outputs of {sorted(self._columns.values())} columns")


@dataclass(frozen=True, slots=True)
class _Run:
    """One prepared run."""

    function: Any
    weights: list[Any]
    x: Matrix
    ends: list[Matrix]

    def __call__(self) -> None:
        try:
            results = self.function(tf.constant(self.x), *self.weights)
            for result, end in zip(results, self.ends):
                np.copyto(end, result.numpy())
        except Exception as error:
            raise FreshetError(f"tensorflow failed on a batch of {len(self.x)} rows") from error
