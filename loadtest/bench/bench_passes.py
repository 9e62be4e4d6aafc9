"""Measures what the compiler's passes gain on ONNX Runtime: the graph as it comes against the graph that they leave.

`python -m loadtest.bench.bench_passes [--rows 64] [--rounds 201]`: each pattern that a pass knows, once as its users
write it, compiled with and without the passes and run in turn on one thread. ONNX Runtime folds constants,
normalisations and biases by itself; what is left over for the passes is seen here.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from freshet_serving.compiler.building.compile import compile_graph, load
from freshet_serving.compiler.dense.dense_graph import DenseGraph, signature
from freshet_serving.compiler.frameworks import keras, tf
from freshet_serving.compiler.passes.optimise import optimise
from freshet_serving.models.bench import DIM, FLOATS, HIDDEN, TABLES
from freshet_serving.models.zoo import deepfm, dlrm
from freshet_serving.models.zoo.dense_input import ColumnSpan, DenseInput
from freshet_serving.processor.package.manifest_entries import Output
from loadtest.bench.pairs import Pair, compare

WIDTH = TABLES * DIM
UPPER = np.triu(np.ones((TABLES, TABLES), np.float32), 1)

# (x [rows, WIDTH], weights by name) -> [rows, columns]: TensorFlow's tensors, which have no types.
Dense = Callable[[Any, Mapping[str, Any]], Any]


def graphs() -> dict[str, DenseGraph]:
    """The dense graphs to measure, by what is in them."""
    embeddings = tuple(ColumnSpan(f"c{i}", i * DIM, DIM) for i in range(TABLES))
    floats = tuple(ColumnSpan(f"i{i}", WIDTH + i, 1) for i in range(FLOATS))
    layout = DenseInput(WIDTH + FLOATS, embeddings, floats)
    return {
        "the benchmark's DeepFM": DenseGraph.from_keras(deepfm.build(layout, HIDDEN).scores),
        "DLRM of the zoo": DenseGraph.from_keras(dlrm.build(layout, HIDDEN).scores),
        "factorisation machine, as in its paper": _dense(_machine),
        "factorisation machine, all pairs": _dense(_pairs),
        "three cross layers": _dense(_crossed(False), **_cross_weights()),
        "three cross layers, outer products": _dense(_crossed(True), **_cross_weights()),
        "tower 512-256 with batch normalisation": _normalised(),
    }


def _dense(function: Dense, **shapes: tuple[int, ...]) -> DenseGraph:
    random = np.random.default_rng(0)
    weights = {name: 0.1 * random.standard_normal(shape, np.float32) for name, shape in shapes.items()}
    inputs: dict[str, tuple[int | None, ...]] = {"x": (None, WIDTH)}
    specs = signature(inputs, weights)
    made = tf.function(lambda i, w: {"y": function(i["x"], w)}, input_signature=specs, autograph=False)
    columns = int(made.get_concrete_function().structured_outputs["y"].shape[1])
    return DenseGraph(made, inputs, [Output("y", columns)], weights)


def _machine(x: Any, w: Mapping[str, Any]) -> Any:
    v = tf.reshape(x, (-1, TABLES, DIM))
    squares = tf.square(tf.reduce_sum(v, 1)) - tf.reduce_sum(tf.square(v), 1)
    return 0.5 * tf.reduce_sum(squares, 1, keepdims=True)


def _pairs(x: Any, w: Mapping[str, Any]) -> Any:
    v = tf.reshape(x, (-1, TABLES, DIM))
    return tf.reshape(tf.reduce_sum(tf.matmul(v, v, transpose_b=True) * UPPER, (1, 2)), (-1, 1))


def _cross_weights() -> dict[str, tuple[int, ...]]:
    return {f"w{i}": (WIDTH, 1) for i in range(3)} | {f"b{i}": (WIDTH,) for i in range(3)}


def _crossed(outer: bool) -> Dense:
    def crossed(x: Any, w: Mapping[str, Any]) -> Any:
        h = x
        for i in range(3):
            if outer:
                product = tf.matmul(tf.expand_dims(x, 2), tf.expand_dims(h, 1))
                h = tf.reshape(tf.tensordot(product, w[f"w{i}"], 1), (-1, WIDTH)) + w[f"b{i}"] + h
            else:
                h = x * (h @ w[f"w{i}"]) + w[f"b{i}"] + h
        return h

    return crossed


def _normalised() -> DenseGraph:
    x = h = keras.Input((WIDTH,))
    for units in (512, 256):
        h = keras.layers.Dense(units, use_bias=False)(h)
        h = keras.layers.Activation("relu")(keras.layers.BatchNormalization()(h))
    return DenseGraph.from_keras(keras.Model(x, {"y": keras.layers.Dense(1)(h)}))


def runner(graph: DenseGraph, rows: int, folder: Path) -> Callable[[], None]:
    """A function that runs the graph once on ONNX Runtime."""
    (entry,) = compile_graph(graph, folder, (rows,))
    (program,) = load(graph, folder, [entry]).programs
    loaded = program.with_weights(graph.weights)[rows]
    inputs = graph.spec.allocate_inputs(rows)
    inputs["x"][...] = np.random.default_rng(1).standard_normal((rows, graph.width), np.float32)
    return loaded.bind_buffers(inputs, graph.spec.allocate_outputs(rows))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m loadtest.bench.bench_passes", description=__doc__)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=201)
    arguments = parser.parse_args()
    for name, graph in graphs().items():
        done = optimise(graph)
        with tempfile.TemporaryDirectory(prefix="freshet-passes-") as folder:
            before = runner(graph, arguments.rows, Path(folder) / "before")
            after = runner(done.graph, arguments.rows, Path(folder) / "after")
            found = compare(Pair(name, before, after, 1, "run"), arguments.rounds)
        print(
            f"{name}: {found.median:.2f} ({found.low:.2f} to {found.high:.2f}), "
            f"{found.a_ns / 1e3:.0f} -> {found.b_ns / 1e3:.0f} us for {arguments.rows} rows"
        )
        for effect in done.effects:
            print(f"    {effect}")


if __name__ == "__main__":
    main()
