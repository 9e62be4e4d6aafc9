"""Generate inputs to try an ONNX file on that ONNX Runtime runs as it is.

Integers are drawn below the number of rows of the tables that they are looked up in, or among the values that encoders
of the file list; where neither is known, below smaller and smaller limits until the file accepts them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.compiler.imports.feeds import FeedSpec, feeds_of, repeated_rows
from freshet_serving.compiler.imports.onnx_graph.onnx_reader import every_node
from freshet_serving.compiler.imports.onnx_native.native_reader import NativeModel, reason
from freshet_serving.compiler.imports.onnx_native.served_lookups import ServedLookup
from freshet_serving.compiler.imports.onnx_native.trial import run_bounded
from freshet_serving.processor.errors import BadInput

SIZES = (200, 7)
"""Rows of the samples: enough for parity, and another number to see what follows the rows."""
SCALES = (1000, 50, 10, 2, 1)
MAX_LISTED = 10_000
LISTS = ("cats_int64s", "keys_int64s", "int64_vocabulary")

Outputs = dict[str, NDArray[Any]]


class NativeSamples:
    """Samples and what the file gives for them.

    Attributes:
        columns: A request for each of SIZES.
        outputs: The outputs of each, by the file's names.
    """

    def __init__(
        self,
        model: NativeModel,
        inputs: Sequence[FeedSpec],
        lookups: Sequence[ServedLookup],
        given: Mapping[str, Any] | None,
    ) -> None:
        """Find inputs that the file accepts.

        Args:
            model: The file.
            inputs: Its inputs.
            lookups: Its lookups.
            given: Rows of every input to repeat instead, as in a JSON request.

        Raises:
            BadInput: The file accepts none.
        """
        self._model, self._inputs = model, {fed.name: fed for fed in inputs}
        self._names = {fed.name: one.name for fed, one in zip(inputs, model.inputs)}
        refused: Exception | None = None
        for scale in SCALES if given is None else SCALES[:1]:
            if given is None:
                self.columns = [self._made(lookups, scale, rows) for rows in SIZES]
            else:
                self.columns = [{n: _rows(f, given.get(n), rows) for n, f in self._inputs.items()} for rows in SIZES]
            try:
                self.outputs = [self.run(columns, rows) for columns, rows in zip(self.columns, SIZES)]
                return
            except BadInput:
                raise
            except Exception as error:
                refused = error
        assert refused is not None
        advice = "give some with --samples" if given is None else "expected --samples that it accepts"
        raise BadInput(f"source: ONNX Runtime runs the model on no inputs tried: {advice}: {reason(refused)}")

    def run(self, columns: Mapping[str, NDArray[Any]], rows: int) -> Outputs:
        """Return the file's own outputs.

        Args:
            columns: A request.
            rows: Its rows.
        """
        feeds = feeds_of(self._inputs, columns, rows)
        fed = {self._names[name]: feeds[f"input/{name}"] for name in self._inputs}
        names = list(self._model.outputs)
        return dict(zip(names, run_bounded(self._model.session, names, fed)))

    def _made(self, lookups: Sequence[ServedLookup], scale: int, rows: int) -> dict[str, NDArray[Any]]:
        random = np.random.default_rng(scale)
        limits: dict[str, int] = {}
        for one in lookups:
            for name, _ in one.columns:
                limits[name] = min(limits.get(name, scale), len(self._model.weights[one.table]))
        numbers = _listed(self._model)
        made: dict[str, NDArray[Any]] = {}
        for name, fed in self._inputs.items():
            count = rows * int(np.prod(fed.dims, dtype=np.int64))
            columns = fed.input.columns
            shape = (rows, columns) if columns else (rows,)
            if fed.dtype.kind == "f":
                made[name] = random.standard_normal(count, np.float32).reshape(shape)
            else:
                below = 2 if fed.dtype.kind == "b" else limits.get(self._names[name], scale)
                drawn = random.integers(0, below, count)
                if numbers and self._names[name] not in limits and fed.dtype.kind != "b":
                    drawn = np.array(numbers, np.int64)[random.integers(0, len(numbers), count)]
                made[name] = drawn.reshape(shape)
        return made


def _rows(fed: FeedSpec, values: Any, rows: int) -> NDArray[Any]:
    column = repeated_rows(fed, values, rows)
    assert isinstance(column, np.ndarray), "inputs of numbers have a fixed size"
    return column


def _listed(model: NativeModel) -> list[int]:
    """Return the integers that encoders list."""
    return [
        number
        for node in every_node(model.proto.graph)
        for attribute in node.attribute
        if attribute.name in LISTS
        for number in attribute.ints[:MAX_LISTED]
    ]
