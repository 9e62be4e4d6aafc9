"""DIN (Zhou et al., 2018): a user's events weighed by how each goes with the candidate, then summed."""

from __future__ import annotations

from typing import Any

from freshet_serving.models.zoo.arch import Arch
from freshet_serving.models.zoo.dense_input import DenseInput
from freshet_serving.models.zoo.histories import History, each_event, over_histories
from freshet_serving.models.zoo.layers import LayerFactory, Tensor
from freshet_serving.models.zoo.option_types import Dropout, Hidden


def build(
    layout: DenseInput, hidden: Hidden = (128, 64), attention: Hidden = (64,), dropout: Dropout = 0.0, seed: int = 0
) -> Arch:
    """Build the network over x [n, layout.width] and the sequences.

    For each sequence, with events h and the candidate's rows t of the same tables:

    a(t, h) = MLP([t, h, t - h, t * h]), and pooled = sum over events of a(t, h) * h

    The weights a are not normalised. Columns of a sequence that the candidate has no row of are part of h in the sum
    alone. logit = MLP([x, pooled, ...]). Weights: <sequence>_pair, <sequence>_attention_<i>, <sequence>_attention_out,
    mlp_<i>, mlp_out.

    The first layer's weights W = [Wt, Wh, Wd, Wp] act as (Wt + Wd) t + (Wh - Wd) h + Wp (t * h), which is the same: its
    second term is computed once a request, and the last is all that is left for each pair.

    Args:
        attention: Units of the layers of a.
    """
    from freshet_serving.compiler.frameworks import keras

    ops, layer_factory = keras.ops, LayerFactory(seed, dropout)

    def read(h: History) -> list[Tensor]:
        unit: Tensor = _pair_layer(attention[0], seed, f"{h.name}_pair")(h.target, h.matched)
        for i, units in enumerate(attention[1:], 1):
            unit = each_event(layer_factory, unit, units, f"{h.name}_attention_{i}", activation="relu")
        weight = ops.reshape(each_event(layer_factory, unit, 1, f"{h.name}_attention_out"), (-1, 1, h.length))
        return [ops.squeeze(ops.matmul(weight * ops.expand_dims(h.mask, 1), h.events), 1)]

    return over_histories(layout, "din", layer_factory, hidden, read)


def _pair_layer(units: int, seed: int, name: str) -> Any:
    """Return the first layer of a(t, h): t [n, d], h [n, L, d] -> relu([t, h, t - h, t * h] W + b) [n, L, units]."""
    from freshet_serving.compiler.frameworks import keras

    ops = keras.ops

    class PairLayer(keras.layers.Layer):  # type: ignore[misc]
        def build(self, target_shape: Any, events_shape: Any) -> None:
            initial = keras.initializers.GlorotUniform(seed=seed * 1_000_003 + 250_000)
            self.kernel = self.add_weight(shape=(4 * target_shape[-1], units), initializer=initial, name="kernel")
            self.bias = self.add_weight(shape=(units,), initializer="zeros", name="bias")

        def call(self, target: Tensor, events: Tensor) -> Tensor:
            length, d = events.shape[1:]
            of_t, of_h, of_difference, of_product = (self.kernel[i * d : (i + 1) * d] for i in range(4))

            def times(vectors: Tensor, weights: Tensor) -> Tensor:
                return ops.reshape(ops.matmul(ops.reshape(vectors, (-1, d)), weights), (-1, length, units))

            of_target = ops.expand_dims(ops.matmul(target, of_t + of_difference), 1)
            history = times(events, of_h - of_difference) + self.bias
            return ops.relu(history + of_target + times(ops.expand_dims(target, 1) * events, of_product))

    return PairLayer(name=name)
