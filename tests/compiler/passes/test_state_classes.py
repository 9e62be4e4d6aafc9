"""Classes of users' states: those of the zoo's networks, and of graphs that mix events in one place."""

from dataclasses import replace

import numpy as np
import pytest

from freshet_serving.compiler.dense.dense_graph import DenseGraph, signature
from freshet_serving.compiler.frameworks import tf
from freshet_serving.compiler.passes.state_classes import (
    CAUSAL,
    EXACT,
    NO_APPEND,
    TOKEN_LOCAL,
    WHOLE_STATE,
    state_class,
)
from freshet_serving.compiler.passes.user_candidate_split import split_user_candidate
from freshet_serving.processor.package import Output, columns, user_features
from tests.compiler.passes.histories import history, optimised

LENGTH, DIM = 6, 3
HISTORY = history(LENGTH, DIM)
WIDTH = HISTORY.width


@pytest.mark.parametrize(
    ("arch", "name", "append"),
    [
        ("din", TOKEN_LOCAL, EXACT),
        ("stca", TOKEN_LOCAL, EXACT),
        ("sasrec", WHOLE_STATE, NO_APPEND),
        ("hstu", CAUSAL, NO_APPEND),
    ],
)
def test_networks_have_their_classes_whatever_they_have_learned(arch, name, append):
    network, manifest = optimised(arch)
    split = split_user_candidate(network, columns(user_features(manifest.features)), ["history"])
    found = state_class(split.user, manifest.sequences)
    assert (found.name, found.append) == (name, append), found
    if arch == "sasrec":
        # The candidates read the newest event alone.
        assert "has no columns for each" in found.why
    if arch == "hstu":
        # Biases to the candidate count places and seconds from the newest event; keys and values stay.
        assert "an appended event changes" in found.why


def graph(function, outputs):
    """A graph of the user: history -> u0."""
    weights = {"w": np.ones((DIM, DIM), np.float32)}

    def dense(inputs, values):
        rows = tf.reshape(inputs["history"][:, : DIM * LENGTH], (-1, LENGTH, DIM))
        mask = inputs["history"][:, DIM * LENGTH : (DIM + 1) * LENGTH]
        seconds = inputs["history"][:, (DIM + 1) * LENGTH :]
        return {"u0": tf.reshape(function(tf.matmul(rows, values["w"]), mask, seconds), (-1, outputs))}

    inputs = {"history": (None, WIDTH)}
    traced = tf.function(dense, input_signature=signature(inputs, weights), autograph=False)
    return DenseGraph(traced, inputs, [Output("u0", outputs)], weights)


def earlier(rows):
    return tf.cumsum(rows, axis=1)


SHIFTED = tf.constant(np.eye(LENGTH, k=1, dtype=np.float32))
PLACES = np.arange(LENGTH, dtype=np.float32)[None, :, None]
GRAPHS = {
    "each event": (lambda rows, mask, seconds: rows, LENGTH * DIM, TOKEN_LOCAL, EXACT),
    "columns first": (lambda rows, mask, seconds: tf.transpose(rows, (0, 2, 1)), LENGTH * DIM, TOKEN_LOCAL, EXACT),
    "masks": (lambda rows, mask, seconds: mask, LENGTH, TOKEN_LOCAL, EXACT),
    "seconds to the newest": (
        lambda rows, mask, seconds: rows * seconds[:, :, None], LENGTH * DIM, TOKEN_LOCAL, NO_APPEND,
    ),
    "places": (lambda rows, mask, seconds: rows * PLACES, LENGTH * DIM, CAUSAL, EXACT),
    "sums": (lambda rows, mask, seconds: earlier(rows), LENGTH * DIM, CAUSAL, EXACT),
    "pooled": (lambda rows, mask, seconds: tf.reduce_sum(rows, 1), DIM, WHOLE_STATE, NO_APPEND),
    "pooled to as many columns": (
        lambda rows, mask, seconds: tf.tile(tf.reduce_sum(rows, 1), (1, 2)), LENGTH, WHOLE_STATE, NO_APPEND,
    ),
    "an odd number of columns": (lambda rows, mask, seconds: tf.reduce_sum(rows, 1)[:, :1], 1, WHOLE_STATE, NO_APPEND),
    "the mean of all": (
        lambda rows, mask, seconds: rows - tf.reduce_mean(rows, 1, keepdims=True), LENGTH * DIM, WHOLE_STATE, NO_APPEND,
    ),
    "the next event": (
        lambda rows, mask, seconds: rows + tf.einsum("ij,njd->nid", SHIFTED, rows),
        LENGTH * DIM, WHOLE_STATE, NO_APPEND,
    ),
    "the number of events": (
        lambda rows, mask, seconds: rows / tf.reduce_sum(mask, 1)[:, None, None], LENGTH * DIM, TOKEN_LOCAL, NO_APPEND,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", GRAPHS)
def test_class_is_that_of_what_reaches_each_event(case):
    function, outputs, name, append = GRAPHS[case]
    found = state_class(graph(function, outputs), [HISTORY])
    assert (found.name, found.append) == (name, append), found


def test_graph_for_shorter_histories_has_a_class_and_one_without_a_history_has_none():
    user = graph(*GRAPHS["each event"][:2])
    assert state_class(user, []).name == WHOLE_STATE
    short = replace(HISTORY, max_length=3 * LENGTH, width=3 * WIDTH)
    assert (
        state_class(user, [replace(short, columns=[replace(c, width=3 * c.width) for c in short.columns])]).name
        == TOKEN_LOCAL
    )
