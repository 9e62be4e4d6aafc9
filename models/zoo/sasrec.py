"""SASRec (Kang and McAuley, 2018): events attend to themselves and earlier ones; the newest one meets the candidate.

As in the research code of generative recommenders: keys and values are not normalised, and the feed-forward layer is as
wide as an event. All of it depends on the user alone; a candidate costs an MLP.
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
    with_positions,
)
from freshet_serving.models.zoo.layers import LayerFactory, Tensor
from freshet_serving.models.zoo.option_types import Dropout, Hidden, Units


def build(
    layout: DenseInput,
    hidden: Hidden = (128, 64),
    units: Units = 32,
    layers: Units = 2,
    dropout: Dropout = 0.0,
    seed: int = 0,
) -> Arch:
    """Build the network over x [n, layout.width] and the sequences.

    For each sequence, with events E: X = E We * sqrt(units) + P, where P has a row for each place from the oldest event
    on. Each layer, of one head, has

    Q = LN(X), Y = LN(Q + softmax((Q Wq)(X Wk)' / sqrt(units), earlier events and itself)(X Wv) Wo)
    X = (Y + relu(Y W1) W2) * mask

    u = LN(X) of the newest event, 0 without events, v = t Wt; logit = MLP([x, u, v, u * v]). All products but We and Wt
    have a bias. Weights: <sequence>_<event|position|target|last|query|key|value|out|norm|first|second>[_<i>], mlp_<i>,
    mlp_out.

    Args:
        layout: The dense input and the sequences.
        hidden: Units of the MLP's layers.
        units: Width of an event.
        layers: Number of layers.
        dropout: Dropout of the MLP.
        seed: Seed of the first weights.
    """
    layer_factory = LayerFactory(seed, dropout)

    def read(h: History) -> list[Tensor]:
        user = _newest(layer_factory, h, units, layers, seed)
        item = layer_factory.dense(h.target, units, f"{h.name}_target", bias=False)
        return [user, item, user * item]

    return over_histories(layout, "sasrec", layer_factory, hidden, read)


def _newest(layer_factory: LayerFactory, h: History, units: int, layers: int, seed: int) -> Tensor:
    """Return the newest event of a history after all layers, [n, units]."""
    from freshet_serving.compiler.frameworks import keras

    ops, name = keras.ops, h.name
    scale = units**0.5
    events = each_event(layer_factory, h.events, units, f"{name}_event", bias=False) * scale
    events = with_positions(events, seed, f"{name}_position")
    earlier = np.tril(np.ones((1, h.length, h.length), np.float32))
    mask, valid = ops.expand_dims(h.mask, 1) * earlier, ops.expand_dims(h.mask, 2)
    for i in range(layers):
        own = normed(events, f"{name}_norm_{i}_0")
        query = each_event(layer_factory, own, units, f"{name}_query_{i}")
        keys = each_event(layer_factory, events, units, f"{name}_key_{i}")
        values = each_event(layer_factory, events, units, f"{name}_value_{i}")
        weights = masked_softmax(ops.matmul(query / scale, ops.transpose(keys, (0, 2, 1))), mask)
        attended = each_event(layer_factory, ops.matmul(weights, values), units, f"{name}_out_{i}")
        events = normed(own + attended, f"{name}_norm_{i}_1")
        between = each_event(layer_factory, events, units, f"{name}_first_{i}", activation="relu")
        events = (events + each_event(layer_factory, between, units, f"{name}_second_{i}")) * valid
    # 1 at the newest event: the next place has none.
    after = ops.concatenate([h.mask[:, 1:], ops.zeros_like(h.mask[:, :1])], axis=1)
    newest = ops.expand_dims(h.mask * (1.0 - after), 1)
    return ops.squeeze(ops.matmul(newest, normed(events, f"{name}_last")), 1)
