"""Choose the matrix products of a graph to compute in int8: as many as stay within the error bound together.

Ranges are measured on the graph's examples, computed by ONNX Runtime in float32. If the outputs with all products in
int8 exceed the bound, the product with the largest error on its own goes back to float32, and so on.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from freshet_serving.compiler.backends.int8 import (
    MatrixProduct,
    QuantParams,
    measured,
    products,
    quantised,
    with_extra_outputs,
)
from freshet_serving.compiler.dense.dense_graph import DenseGraph
from freshet_serving.processor.backends import Matrix
from freshet_serving.processor.backends.onnxruntime import WEIGHT_PREFIX, OnnxRuntime
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.running.bounded import typical_error

ROWS = 1024


def in_int8(model: bytes, weights: Sequence[str], graph: DenseGraph, bound: float) -> bytes:
    """Convert as many products of a graph's ONNX model to int8 as the error bound allows.

    Raise BadInput if none can be: the message has the error, or says that no product is large enough.
    """
    running = _ReferenceRunner(weights, graph)
    candidates = products(model)
    if not candidates:
        raise BadInput("int8: no matrix product is large enough to benefit from it")
    exact, ranges = running.outputs(model), _ranges(model, candidates, running)

    def error(chosen: Sequence[MatrixProduct]) -> float:
        return typical_error(running.outputs(quantised(model, chosen, ranges)), exact)

    chosen, off = candidates, error(candidates)
    if off > bound:
        alone = {product: error([product]) for product in candidates}
        while off > bound:
            chosen = [product for product in chosen if product is not max(chosen, key=alone.__getitem__)]
            if not chosen:
                raise BadInput(f"int8: scores change by at least {min(alone.values()):.2g}, expected at most {bound:g}")
            off = error(chosen)
    return quantised(model, chosen, ranges)


def _ranges(model: bytes, candidates: Sequence[MatrixProduct], running: _ReferenceRunner) -> dict[str, QuantParams]:
    results = {product.result for product in candidates}
    inside = [name for p in candidates for name in (p.value, p.result, p.weight)]
    values = running.values(model, inside)
    ranges = {name: measured(values[name]) for name in results}
    for product in candidates:
        if product.value not in ranges:
            ranges[product.value] = measured(values[product.value], values[product.weight])
    return ranges


class _ReferenceRunner:
    def __init__(self, weights: Sequence[str], graph: DenseGraph) -> None:
        self._library = OnnxRuntime().module
        self._values = {WEIGHT_PREFIX + name: np.asarray(graph.weights[name], order="C") for name in weights}
        self._names = [output.name for output in graph.outputs]
        rows = graph.examples
        self._inputs = graph.sample(ROWS) if rows is None else graph.resized(rows, min(ROWS, graph.rows(rows)))

    def outputs(self, model: bytes) -> dict[str, Matrix]:
        return self._run(model, self._names)

    def values(self, model: bytes, names: Sequence[str]) -> dict[str, Matrix]:
        values = {**self._inputs, **self._values}
        missing = [name for name in dict.fromkeys(names) if name not in values]
        return values | self._run(with_extra_outputs(model, missing), missing)

    def _run(self, model: bytes, names: Sequence[str]) -> dict[str, Matrix]:
        options = self._library.SessionOptions()
        options.log_severity_level = 4
        weights = [self._library.OrtValue.ortvalue_from_numpy(value) for value in self._values.values()]
        if weights:
            options.add_external_initializers(list(self._values), weights)
        session = self._library.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        return dict(zip(names, session.run(list(names), self._inputs)))
