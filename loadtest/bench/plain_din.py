"""DIN as its paper writes it, for `make -C loadtest bench-sequences`: the candidate is copied beside every event."""

from __future__ import annotations

from freshet_serving.models.zoo.arch import Arch
from freshet_serving.models.zoo.dense_input import DenseInput
from freshet_serving.models.zoo.histories import History, each_event, over_histories
from freshet_serving.models.zoo.layers import LayerFactory, Tensor
from freshet_serving.models.zoo.option_types import Dropout, Hidden


def build(
    layout: DenseInput, hidden: Hidden = (64,), attention: Hidden = (64,), dropout: Dropout = 0.0, seed: int = 0
) -> Arch:
    """Build the network: a(t, h) = MLP([t, h, t - h, t * h]), and pooled = sum over events of a(t, h) * h.

    Args:
        layout: The dense input and the sequences.
        hidden: Units of the MLP's layers.
        attention: Units of the layers of a.
        dropout: Dropout of the MLP.
        seed: Seed of the first weights.
    """
    from freshet_serving.compiler.frameworks import keras

    ops, layer_factory = keras.ops, LayerFactory(seed, dropout)

    def read(h: History) -> list[Tensor]:
        events = h.matched
        target = ops.repeat(ops.expand_dims(h.target, 1), h.length, 1)
        unit: Tensor = ops.concatenate([target, events, target - events, target * events], 2)
        for i, units in enumerate(attention):
            unit = each_event(layer_factory, unit, units, f"{h.name}_attention_{i}", activation="relu")
        weight = ops.reshape(each_event(layer_factory, unit, 1, f"{h.name}_attention_out"), (-1, 1, h.length))
        return [ops.squeeze(ops.matmul(weight * ops.expand_dims(h.mask, 1), h.events), 1)]

    return over_histories(layout, "plain_din", layer_factory, hidden, read)
