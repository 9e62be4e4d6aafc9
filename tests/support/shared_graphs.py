"""Equal networks share the parts of their graph and its conversion, within a process that runs tests.

The passes and the converter see names and shapes of weights, never values. So both are made once for each function that
tests.support.shared_steps shares, and the parts get the weights of the graph that they are asked for. What else is
computed in tests of the graph (that it scores as TensorFlow does, its loss in int8) is computed for each.
"""

import sys
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace
from functools import wraps
from importlib import import_module

from tests.support.run_store import stored_conversion

PACKAGING = "freshet_serving.compiler.building.packaging"
CONVERTER = "freshet_serving.compiler.backends.onnxruntime"
_storing = False


def mark_as_shared(graph):
    """Let what is made of a graph's function be kept as long as the function."""
    graph.function.results = {}


def columns_of(features):
    """Return features as the passes see them: columns, whatever is read and however it is scaled."""
    return [replace(f, kind="", input="", log1p=False, mean=0.0, scale=1.0) for f in features]


@contextmanager
def store_conversions():
    """Keep what the converter makes of any graph, meanwhile, and read it for an equal one: for tests of what follows.

    Each result is still compared with TensorFlow's, by what compiles the graph.
    """
    global _storing
    before, _storing = _storing, True
    try:
        yield
    finally:
        _storing = before


def share_graphs():
    """Let versions share from now on; does nothing before the first test that imports what makes them."""
    if PACKAGING in sys.modules and not hasattr(sys.modules[PACKAGING].parts, "shared"):
        sys.modules[PACKAGING].parts = _shared_parts(sys.modules[PACKAGING].parts)
    if CONVERTER in sys.modules and not hasattr(sys.modules[CONVERTER].to_onnx, "shared"):
        sys.modules[CONVERTER].to_onnx = _shared_conversion(sys.modules[CONVERTER].to_onnx)


def _results(graph):
    return getattr(getattr(graph, "function", None), "results", None)


def _shared_parts(parts):
    @wraps(parts)
    def shared(graph, features, buckets, sequences=()):
        results = _results(graph)
        if results is None:
            return parts(graph, features, buckets, sequences)
        key = repr((columns_of(features), list(buckets), sequences, graph.outputs, graph.examples is None))
        if key not in results:
            # The first test that converts a graph imports it, which was not there when the test began.
            import_module(CONVERTER)
            share_graphs()
            results[key] = first = parts(graph, features, buckets, sequences)
            for part in first.by_subgraph.values():
                if _results(part.graph) is None:
                    mark_as_shared(part.graph)
            return first
        return _with_weights(results[key], graph.weights)

    shared.shared = True
    return shared


def _with_weights(value, weights):
    """Return parts, or what they hold, with other weights of the same names."""
    if hasattr(value, "function") and hasattr(value, "weights"):
        return replace(value, weights={name: weights[name] for name in value.weights})
    if isinstance(value, dict):
        return {key: _with_weights(each, weights) for key, each in value.items()}
    if isinstance(value, list):
        return [*value]
    if is_dataclass(value) and type(value).__module__.startswith("freshet_serving.compiler."):
        return replace(value, **{f.name: _with_weights(getattr(value, f.name), weights) for f in fields(value)})
    return value


def _shared_conversion(to_onnx):
    stored = stored_conversion(to_onnx)

    @wraps(to_onnx)
    def shared(graph):
        results = _results(graph)
        if results is None:
            return (stored if _storing else to_onnx)(graph)
        if to_onnx not in results:
            results[to_onnx] = stored(graph)
        model, weights = results[to_onnx]
        return model, [*weights]

    shared.shared = True
    return shared
