"""Graphs of shorter histories: each zoo network scores short histories alike, at every length; others are refused."""

from dataclasses import replace

import numpy as np
import pytest

from freshet_serving.compiler.dense.dense_graph import DenseGraph, signature
from freshet_serving.compiler.frameworks import tf
from freshet_serving.compiler.passes.decompose import decompose
from freshet_serving.compiler.passes.optimise import optimise
from freshet_serving.compiler.passes.shorter_histories import kept_columns, shortened, shortened_rows
from freshet_serving.processor.package import Output
from freshet_serving.processor.package.sequences import SequenceColumn
from tests.compiler.passes.histories import NETWORK_LENGTH, history, optimised

LENGTH, DIM = NETWORK_LENGTH, 3
HISTORY = history(LENGTH, DIM)


def test_first_places_of_every_column_are_kept():
    assert kept_columns(HISTORY, 2) == [0, 1, 2, 3, 4, 5, 27, 28, 36, 37]
    assert kept_columns(HISTORY, LENGTH + 5) == list(range(45))
    assert HISTORY.columns_of(2) == 10
    assert HISTORY.columns_of(LENGTH + 5) == 45


def test_first_floats_are_kept_too():
    floats = SequenceColumn("history.paid", "floats", "history.paid", "", (DIM + 1) * LENGTH, LENGTH)
    entry = replace(HISTORY, columns=[*HISTORY.columns, floats], width=(DIM + 3) * LENGTH)
    assert kept_columns(entry, 2) == [0, 1, 2, 3, 4, 5, 27, 28, 36, 37, 45, 46]


@pytest.mark.parametrize("arch", ["din", "stca", "sasrec", "hstu"])
def test_networks_score_short_histories_alike_at_every_length(arch):
    graph, manifest = optimised(arch)
    sequences = manifest.sequences
    for length in (2, LENGTH - 1):
        kept = {"history": kept_columns(sequences[0], length)}
        found = shortened(graph, sequences, length)
        assert found.inputs["history"] == (None, len(kept["history"]))
        rows = graph.sample(32)
        short = np.zeros_like(rows["history"])
        short[:, kept["history"]] = rows["history"][:, kept["history"]]
        given = {**rows, "history": short}
        for name, wanted in graph.run(given).items():
            np.testing.assert_allclose(found.run(shortened_rows(given, kept))[name], wanted, atol=1e-6)


def network(function, **weights):
    """Return the graph of a function of the events [n, LENGTH, DIM], the mask and the weights, which returns [n, 1]."""
    random = np.random.default_rng(3)
    arrays = {name: random.standard_normal(shape, np.float32) for name, shape in weights.items()}
    inputs = {"history": (None, HISTORY.width), "x": (None, 2)}

    def dense(given, values):
        history = given["history"]
        events = tf.reshape(history[:, : DIM * LENGTH], (-1, LENGTH, DIM))
        found = function(events, history[:, DIM * LENGTH : (DIM + 1) * LENGTH], values)
        return {"score": found + tf.reduce_sum(given["x"], 1, keepdims=True)}

    made = tf.function(dense, input_signature=signature(inputs, arrays), autograph=False)
    made.get_concrete_function()
    return optimise(decompose(DenseGraph(made, inputs, [Output("score")], arrays))).graph


def total(tensor):
    return tf.reduce_sum(tensor, axis=list(range(1, len(tensor.shape))))[:, None]


@pytest.mark.parametrize(
    "function",
    [
        lambda e, m, w: total(e * m[:, :, None]),
        lambda e, m, w: total(tf.transpose(e, (0, 2, 1)) @ e),
        lambda e, m, w: total(tf.einsum("bld,lb->bd", e, tf.transpose(m))),
        lambda e, m, w: total(tf.reshape(e, (-1, LENGTH * DIM)) @ w["flat"]),
        lambda e, m, w: total(tf.where(m[:, :, None] > 0, e * w["places"], 0.0)),
        lambda e, m, w: total(tf.gather(w["of_place"], np.arange(LENGTH)[::-1].copy()) * m),
        lambda e, m, w: total(tf.matmul(tf.stop_gradient(m[:, None]), e)),
    ],
    ids=["masked", "gram", "einsum", "flat", "weights of places", "gathered weights", "product with mask"],
)
def test_other_networks_are_cut_along_their_places(function):
    graph = network(function, flat=(LENGTH * DIM, 4), places=(LENGTH, DIM), of_place=(LENGTH,))
    found = shortened(graph, [HISTORY], 4)
    assert found.inputs == {"history": (None, 20), "x": (None, 2)}


@pytest.mark.parametrize(
    "function",
    [
        lambda e, m, w: total(tf.reduce_mean(e, axis=1)),
        lambda e, m, w: total(tf.math.cumsum(e, axis=1)),
        lambda e, m, w: total(tf.exp(e)),
        lambda e, m, w: total(tf.reshape(e, (-1, DIM, LENGTH))),
        lambda e, m, w: total(e[:, LENGTH - 2 :]),
        lambda e, m, w: m[:, 5:6] * m[:, :1],
    ],
    ids=["mean over padding", "unknown operation", "padding counts", "places mixed", "last places", "fixed place"],
)
def test_networks_that_need_all_places_are_not_shortened(function):
    assert shortened(network(function), [HISTORY], 4) is None


def test_divisor_of_hstu_is_that_of_the_longest_history():
    graph, manifest = optimised("hstu")
    found = shortened(graph, manifest.sequences, 2)
    constants = [n.attr["value"].tensor for n in found.concrete.graph.as_graph_def().node if n.op == "Const"]
    scalars = {
        float(tf.make_ndarray(c))
        for c in constants
        if not c.tensor_shape.dim and c.dtype == tf.float32.as_datatype_enum
    }
    assert LENGTH + 1.0 in scalars
    assert 3.0 not in scalars
