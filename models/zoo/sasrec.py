"""SASRec (Kang and McAuley, 2018): events attend to themselves and earlier ones; the newest one meets the candidate.

As in the research code of generative recommenders: keys and values are not normalised, and the feed-forward layer is as
wide as an event. All of it depends on the user alone; a candidate costs an MLP, in sasrec_next a product.
"""

from __future__ import annotations

import numpy as np

from freshet_serving.models.zoo.arch import Arch
from freshet_serving.models.zoo.dense_input import DenseInput
from freshet_serving.models.zoo.histories import (
    History,
    each_event,
    masked_softmax,
    newest_event,
    normed,
    over_histories,
    with_positions,
)
from freshet_serving.models.zoo.layers import LayerFactory, Tensor
from freshet_serving.models.zoo.next_item_network import next_item
from freshet_serving.models.zoo.option_types import Dropout, Hidden, Negatives, Successors, Units
from freshet_serving.processor.package.item_rows import SUCCESSORS


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
    mlp_out. `units` is the width of an event.
    """
    layer_factory = LayerFactory(seed, dropout)

    def read(h: History) -> list[Tensor]:
        user = _newest(layer_factory, h, units, layers, seed)
        item = layer_factory.dense(h.target, units, f"{h.name}_target", bias=False)
        return [user, item, user * item]

    return over_histories(layout, "sasrec", layer_factory, hidden, read)


def build_next(
    layout: DenseInput,
    layers: Units = 2,
    dropout: Dropout = 0.2,
    negatives: Negatives = 4096,
    popularity: bool = True,
    successors: Successors = SUCCESSORS,
    seed: int = 0,
) -> Arch:
    """Build the network that learns which item comes next, over the sequence.

    X = E * sqrt(d) + P, where E has the items' own rows of width d; other columns are added, projected. Then the layers
    of build(); u = LN(X) of the newest event, 0 without events; score = <u, the candidate's row>, and what counts add
    (processor.package.item_rows).
    """

    def states(layer_factory: LayerFactory, h: History, events: Tensor) -> Tensor:
        return _layers(layer_factory, h, events, layers)

    return next_item(layout, "sasrec_next", states, dropout, negatives, popularity, successors, seed)


def _newest(layer_factory: LayerFactory, h: History, units: int, layers: int, seed: int) -> Tensor:
    events = each_event(layer_factory, h.events, units, f"{h.name}_event", bias=False) * units**0.5
    return newest_event(h, _layers(layer_factory, h, with_positions(events, seed, f"{h.name}_position"), layers))


def _layers(layer_factory: LayerFactory, h: History, events: Tensor, layers: int) -> Tensor:
    """Return the events [n, length, units], given with their places, after all layers, normalised."""
    from freshet_serving.compiler.frameworks import keras

    ops, name, units = keras.ops, h.name, events.shape[2]
    scale = units**0.5
    earlier = np.tril(np.ones((1, h.length, h.length), np.float32))
    mask, valid = ops.expand_dims(h.mask, 1) * earlier, ops.expand_dims(h.mask, 2)
    for i in range(layers):
        normal = normed(events, f"{name}_norm_{i}_0")
        query = each_event(layer_factory, normal, units, f"{name}_query_{i}")
        keys = each_event(layer_factory, events, units, f"{name}_key_{i}")
        values = each_event(layer_factory, events, units, f"{name}_value_{i}")
        weights = masked_softmax(ops.matmul(query / scale, ops.transpose(keys, (0, 2, 1))), mask)
        attended = each_event(layer_factory, ops.matmul(weights, values), units, f"{name}_out_{i}")
        events = normed(normal + layer_factory.dropped(attended, f"{name}_out_{i}"), f"{name}_norm_{i}_1")
        between = each_event(layer_factory, events, units, f"{name}_first_{i}", activation="relu")
        further = each_event(layer_factory, between, units, f"{name}_second_{i}")
        events = (events + layer_factory.dropped(further, f"{name}_second_{i}")) * valid
    return normed(events, f"{name}_last")
