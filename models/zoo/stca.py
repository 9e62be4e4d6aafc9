"""STCA (arXiv 2511.06077): layers of attention from the candidate to a user's events, which attend to nothing.

Keys and values of an event depend on that event alone, so a request's history costs O(length) once, and a candidate
O(length) multiplications a layer: the cheapest network over a long history, and the default choice.

Values are read from the events as they are, not normalised as in the paper. The length of a row says how much has been
learned of its item; normalised, an item that was met once counts as much as any other, and the MLP memorises single
items. On the first 100,000 rows of MovieLens-1M, three seeds, AUC rises from 0.7224 to 0.7250.
"""

from __future__ import annotations

from freshet_serving.models.zoo.arch import Arch
from freshet_serving.models.zoo.dense_input import DenseInput
from freshet_serving.models.zoo.histories import (
    History,
    each_event,
    masked_softmax,
    normed,
    over_histories,
    silu,
)
from freshet_serving.models.zoo.layers import LayerFactory, Tensor, side_by_side
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

    For each sequence, with events X(0) and the candidate's rows t, layer i = 1, 2, ... has

    X(i) = LN((SiLU(X(i-1) Wg) * X(i-1) Wu) Wd), K = X(i) Wk, V = X(0) Wv
    o(i) = softmax(q(i) K' / sqrt(units)) V, with q(i) = [o(1), ..., o(i-1), t] Wq

    logit = MLP([x, o(1), o(2), ...]). A user without events has o = 0. Weights: <sequence>_<gate|up|down|norm|key|
    value|query>_<i>, mlp_<i>, mlp_out.

    `units` is the width of events, keys and values.
    """
    layer_factory = LayerFactory(seed, dropout)
    return over_histories(layout, "stca", layer_factory, hidden, lambda h: _read(layer_factory, h, units, layers))


def _read(layer_factory: LayerFactory, h: History, units: int, layers: int) -> list[Tensor]:
    from freshet_serving.compiler.frameworks import keras

    ops, events, read = keras.ops, h.events, list[Tensor]()
    mask = ops.expand_dims(h.mask, 1)
    for i in range(layers):
        gate = silu(each_event(layer_factory, events, units, f"{h.name}_gate_{i}", bias=False))
        up = each_event(layer_factory, events, units, f"{h.name}_up_{i}", bias=False)
        down = each_event(layer_factory, gate * up, units, f"{h.name}_down_{i}", bias=False)
        events = normed(down, f"{h.name}_norm_{i}")
        keys = each_event(layer_factory, events, units, f"{h.name}_key_{i}", bias=False)
        values = each_event(layer_factory, h.events, units, f"{h.name}_value_{i}", bias=False)
        query = layer_factory.dense(side_by_side([*read, h.target]), units, f"{h.name}_query_{i}", bias=False)
        keys = ops.transpose(keys * units**-0.5, (0, 2, 1))
        weights = masked_softmax(ops.matmul(ops.expand_dims(query, 1), keys), mask)
        read.append(ops.squeeze(ops.matmul(weights, values), 1))
    return read
