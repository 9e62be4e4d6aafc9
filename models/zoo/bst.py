"""BST (Chen et al., 2019): the candidate is one more event, and all events attend to it and to each other.

What an event becomes depends on the candidate from the first layer on, so nothing of the history can be computed once
for several candidates: the compiler refuses the division, and each candidate costs the whole history. `stca`, `sasrec`
and `hstu` keep the history apart for that reason.
"""

from __future__ import annotations

import numpy as np

from freshet_serving.models.zoo.arch import Arch
from freshet_serving.models.zoo.dense_input import DenseInput
from freshet_serving.models.zoo.histories import (
    History,
    each_event,
    masked_softmax,
    normed,
    over_histories,
    with_rows_of_places,
)
from freshet_serving.models.zoo.layers import LayerFactory, Tensor
from freshet_serving.models.zoo.option_types import Dropout, Hidden, Units

LEAK = 0.01
"""Slope of the feed-forward layer's activation below zero."""


def build(
    layout: DenseInput,
    hidden: Hidden = (128, 64),
    units: Units = 32,
    layers: Units = 1,
    dropout: Dropout = 0.0,
    seed: int = 0,
) -> Arch:
    """Build the network over x [n, layout.width] and the sequences.

    For each sequence, X = [E; t] We + P has the events and, as one more, the candidate, which is zero in columns that
    it has no row of. P has a row for each number of places before the candidate. Each layer, of one head, has

    Y = LN(X + softmax((X Wq)(X Wk)' / sqrt(units))(X Wv) Wo)
    X = LN(Y + leaky_relu(Y W1) W2)

    logit = MLP([x, the candidate's X, the mean of all X]). All products but We have a bias. Weights:
    <sequence>_<event|position|query|key|value|out|norm|first|second>[_<i>], mlp_<i>, mlp_out.

    """
    layer_factory = LayerFactory(seed, dropout)
    return over_histories(layout, "bst", layer_factory, hidden, lambda h: _read(layer_factory, h, units, layers, seed))


def _read(layer_factory: LayerFactory, h: History, units: int, layers: int, seed: int) -> list[Tensor]:
    """Return the candidate after all layers and the mean of all events and it, [n, units] each."""
    from freshet_serving.compiler.frameworks import keras

    ops, name, length = keras.ops, h.name, h.length
    candidate = ops.pad(h.target, ((0, 0), (0, h.events.shape[2] - h.target.shape[1])))
    every = ops.concatenate([h.events, ops.expand_dims(candidate, 1)], axis=1)
    mask = ops.concatenate([h.mask, ops.ones_like(h.mask[:, :1])], axis=1)
    count = ops.sum(h.mask, axis=1, keepdims=True)
    before = ops.maximum(count - np.arange(length, dtype=np.float32), 0.0)
    before = ops.concatenate([before, ops.zeros_like(before[:, :1])], axis=1)
    x = each_event(layer_factory, every, units, f"{name}_event", bias=False)
    x = with_rows_of_places(x, before, seed, f"{name}_position")
    seen = ops.expand_dims(mask, 1)
    for i in range(layers):
        query, keys, values = (
            each_event(layer_factory, x, units, f"{name}_{n}_{i}") for n in ("query", "key", "value")
        )
        weights = masked_softmax(ops.matmul(query * units**-0.5, ops.transpose(keys, (0, 2, 1))), seen)
        attended = each_event(layer_factory, ops.matmul(weights, values), units, f"{name}_out_{i}")
        y = normed(x + attended, f"{name}_norm_{i}_0")
        between = each_event(layer_factory, y, units, f"{name}_first_{i}")
        between = ops.maximum(between, LEAK * between)
        x = normed(y + each_event(layer_factory, between, units, f"{name}_second_{i}"), f"{name}_norm_{i}_1")
    mean = ops.squeeze(ops.matmul(seen, x), 1) / (count + 1.0)
    return [x[:, length], mean]
