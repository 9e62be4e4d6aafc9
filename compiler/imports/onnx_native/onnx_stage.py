"""Run a whole ONNX graph as a package's stage: where an input is of strings, or has rows of any length.

The engine hands such columns to no dense graph, so the graph is computed once a request, before the sparse graph, and
its outputs are the columns of x, which the dense graph passes on. Nothing in it is a weight: what is no table is
constant.

A stage is one ONNX model whose inputs are "input/<name>" and whose outputs "output/<name>". Rows of tables that the
engine looks up (processor.package.stage_lookups) are inputs "rows/<name>", and the model picks the rows that its own
tensors have by the number of each value (staged_lookups). It reads no other file: one that names external data is
refused before ONNX Runtime sees it. Thread-safe: a session is, and there is no other state.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from freshet_serving.compiler.imports.feeds import DENSE, PADDED, FeedSpec, feeds_of
from freshet_serving.processor.backends.onnxfile import external_weights
from freshet_serving.processor.columns import Column
from freshet_serving.processor.errors import BadInput, Corrupt
from freshet_serving.processor.features.stage import NONE
from freshet_serving.processor.package import Input, StageLookup

RUNTIME, STAGE_FILE = "onnxruntime", "stage/graph.onnx"
FATAL = 4
ROWS = "rows/"
RECURRENT_KEY = "freshet.recurrent"
"""Metadata of a graph with recurrent layers: ONNX Runtime ends the process if one of them has no steps."""
TYPES = {"tensor(string)": np.dtype(object), "tensor(float)": np.dtype(np.float32), "tensor(double)": np.dtype(float)}


def load(
    data: bytes, inputs: Sequence[Input], outputs: Sequence[Input], lookups: Sequence[StageLookup] = ()
) -> OnnxStage:
    """Load a stage, as a processor.features.stage.StageRuntime.

    Args:
        data: The ONNX model.
        inputs: The package's inputs.
        outputs: The stage's outputs.
        lookups: Rows that it reads.
    """
    return OnnxStage(data, inputs, outputs, lookups)


class OnnxStage:
    """A processor.features.stage.Stage in a session of ONNX Runtime."""

    def __init__(
        self, data: bytes, inputs: Sequence[Input], outputs: Sequence[Input], lookups: Sequence[StageLookup] = ()
    ) -> None:
        if external_weights(data):
            raise Corrupt("stage: expected all values inside the ONNX model, got external data")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = FATAL
        try:
            self._session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
        except Exception:
            raise Corrupt("stage: refused by ONNX Runtime") from None
        given = {node.name: node for node in self._session.get_inputs()}
        self._recurrent = RECURRENT_KEY in self._session.get_modelmeta().custom_metadata_map
        self._fed = {i.name: _fed(i, given[f"input/{i.name}"]) for i in inputs if f"input/{i.name}" in given}
        self._outputs, self._rows = list(outputs), [lookup.name for lookup in lookups]
        named = {f"input/{name}" for name in self._fed} | {ROWS + name for name in self._rows}
        made = {node.name for node in self._session.get_outputs()}
        if named != given.keys() or not made.issuperset(f"output/{o.name}" for o in outputs):
            raise Corrupt("stage: an input or output that the manifest names is missing")

    @property
    def reads(self) -> Collection[str]:
        return self._fed.keys()

    def check(self, inputs: Mapping[str, Column]) -> None:
        for name, fed in self._fed.items():
            fed.check(inputs[name])

    def run(
        self, inputs: Mapping[str, Column], rows: int, found: Mapping[str, NDArray[np.float32]] = NONE
    ) -> dict[str, Column]:
        feeds = {name: text_of(array) for name, array in feeds_of(self._fed, inputs, rows).items()}
        empty = [name for name, fed in self._fed.items() if fed.kind == PADDED and not feeds[f"input/{name}"].size]
        if self._recurrent and empty:
            raise BadInput(f"input {empty[0]!r}: expected at least one value a row: the model has recurrent layers")
        feeds |= {ROWS + name: found[name] for name in self._rows}
        options = onnxruntime.RunOptions()
        options.log_severity_level = FATAL
        try:
            made = self._session.run([f"output/{o.name}" for o in self._outputs], feeds, options)
        except Exception:
            raise BadInput("the model refuses these inputs: ONNX Runtime computes nothing for them") from None
        return {o.name: self._column(o, values, rows) for o, values in zip(self._outputs, made)}

    def _column(self, output: Input, values: Any, rows: int) -> Column:
        column = np.ascontiguousarray(values, np.float32)
        if column.size != rows * (output.columns or 1):
            raise BadInput(
                f"the model returned {column.size} numbers as {output.name!r} for {rows} rows of inputs, expected "
                f"{rows * (output.columns or 1)}"
            )
        return column.reshape((rows, output.columns) if output.columns else rows)


def _fed(spec: Input, node: Any) -> FeedSpec:
    """Return how an input is fed, by its place in the session."""
    dtype = TYPES.get(node.type)
    if dtype is None:
        dtype = np.dtype(node.type.removeprefix("tensor(").removesuffix(")"))
    dims = tuple(n for n in node.shape[1:] if isinstance(n, int))
    return FeedSpec(spec.name, PADDED if spec.ragged else DENSE, dtype, () if spec.ragged else dims)


def text_of(array: Any) -> Any:
    """Return an array as ONNX Runtime takes it: strings are Python's own.

    Args:
        array: Numbers, or bytes.

    Raises:
        BadInput: A string is not UTF-8.
    """
    if not array.dtype.hasobject:
        return array
    try:
        found = np.empty(array.shape, object)
        found.ravel()[:] = [value.decode() for value in array.ravel().tolist()]
    except UnicodeDecodeError:
        raise BadInput("inputs: expected strings in UTF-8") from None
    return found
