"""Layers that the zoo's networks share, chosen for how cheaply they run once compiled.

Every layer with weights has a unique name, so that weight paths ("mlp_0/kernel") are the same in every process:
dense.safetensors and deltas are keyed by them. Every initial value follows from the seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any

from freshet_serving.models.zoo.dense_input import ColumnSpan, DenseInput, runs

Tensor = Any  # keras.KerasTensor


class LayerFactory:
    """Makes the dense layers of one network, each with the next seed."""

    def __init__(self, seed: int, dropout: float = 0.0) -> None:
        """Start the sequence of seeds; dropout applies after each layer of a tower and in dropped()."""
        self._seeds, self._dropout = count(seed * 1_000_003), dropout
        # A separate range of seeds, so that the first weights are the same with and without dropout.
        self._dropout_seeds = count(seed * 1_000_003 + 500_000)

    def dense(
        self,
        x: Tensor,
        units: int,
        name: str,
        activation: str | None = None,
        bias: bool = True,
        first_bias: Sequence[float] = (),
        zero: bool = False,
    ) -> Tensor:
        """Add a dense layer, x [n, m] -> [n, units]; first_bias is [units] or zeros; `zero` starts weights at 0."""
        from freshet_serving.compiler.frameworks import keras

        initial = "zeros" if zero else keras.initializers.GlorotUniform(seed=next(self._seeds))
        layer = keras.layers.Dense(units, activation, use_bias=bias, kernel_initializer=initial, name=name)
        output = layer(x)
        if first_bias:
            layer.bias.assign(first_bias)
        return output

    def tower(self, x: Tensor, hidden: Sequence[int], name: str) -> Tensor:
        """Add ReLU layers <name>_0, <name>_1, ...: x [n, m] -> [n, hidden[-1]]."""
        for i, units in enumerate(hidden):
            x = self.dropped(self.dense(x, units, f"{name}_{i}", "relu"), f"{name}_{i}")
        return x

    def dropped(self, x: Tensor, name: str) -> Tensor:
        """Leave out a share of numbers in each training step, in a layer <name>_dropout; x itself without dropout."""
        from freshet_serving.compiler.frameworks import keras

        if not self._dropout:
            return x
        return keras.layers.Dropout(self._dropout, seed=next(self._dropout_seeds), name=f"{name}_dropout")(x)


def side_by_side(parts: Sequence[Tensor]) -> Tensor:
    """Concatenate matrices [n, a], [n, b], ... to [n, a + b + ...]."""
    from freshet_serving.compiler.frameworks import keras

    return parts[0] if len(parts) == 1 else keras.ops.concatenate(parts, axis=1)


def columns(x: Tensor, spans: Sequence[ColumnSpan]) -> Tensor:
    """Return the columns of `spans` side by side: one slice for each run of neighbours, x itself if that is all."""
    parts = [x if (start, stop) == (0, x.shape[1]) else x[:, start:stop] for start, stop in runs(spans)]
    return side_by_side(parts)


def embedding_columns(x: Tensor, layout: DenseInput, layer_factory: LayerFactory) -> Tensor:
    """Return all embeddings side by side as [n, embeddings * dim].

    An embedding with a width other than the layout's dim, and one of several rows with its mask, is projected to it by
    "project_<feature>", without a bias so that the zero vector of an unseen id stays zero.
    """
    parts: list[Tensor] = []
    same: list[ColumnSpan] = []
    for span in layout.embeddings:
        if span.width == layout.dim and not span.length:
            same.append(span)
            continue
        if same:
            parts.append(columns(x, same))
            same = []
        parts.append(layer_factory.dense(columns(x, [span]), layout.dim, f"project_{span.name}", bias=False))
    if same:
        parts.append(columns(x, same))
    return side_by_side(parts)


def pairwise_dots(vectors: Tensor) -> Tensor:
    """Return inner products of all pairs of vectors: [n, f, k] -> [n, f * (f - 1) / 2].

    One batched product gives all of them twice; the upper triangle is then picked by rows of the transposed result.
    Picking columns copies float by float: ONNX Runtime takes 630 us for 64 rows of 27 vectors, 60 us this way.
    """
    from freshet_serving.compiler.frameworks import keras

    f = vectors.shape[1]
    upper = [i * f + j for i in range(f) for j in range(i + 1, f)]
    ops = keras.ops
    products = ops.matmul(vectors, ops.transpose(vectors, (0, 2, 1)))
    by_pair = ops.transpose(ops.reshape(products, (-1, f * f)), (1, 0))
    return ops.transpose(ops.take(by_pair, upper, axis=0), (1, 0))
