"""DeepFM (Guo et al., 2017): the sum of a linear model, a factorisation machine and an MLP over one input."""

from __future__ import annotations

from freshet_serving.models.zoo.arch import Arch
from freshet_serving.models.zoo.dense_input import DenseInput
from freshet_serving.models.zoo.layers import LayerFactory, embedding_columns
from freshet_serving.models.zoo.option_types import Dropout, Hidden


def build(layout: DenseInput, hidden: Hidden = (256, 128, 64), dropout: Dropout = 0.0, seed: int = 0) -> Arch:
    """Build the network over x [n, layout.width].

    logit = linear(x) + sum over pairs of embeddings of their inner product + MLP(x)

    The pairs are computed as (|sum of vectors|^2 - sum of |vector|^2) / 2, linear in the number of embeddings. Weights:
    linear, mlp_<i>, mlp_out, and project_<feature> where embedding dims differ.
    """
    from freshet_serving.compiler.frameworks import keras

    ops, layer_factory = keras.ops, LayerFactory(seed, dropout)
    x = keras.Input((layout.width,), name="x")
    terms = [
        layer_factory.dense(x, 1, "linear"),
        layer_factory.dense(layer_factory.tower(x, hidden, "mlp"), 1, "mlp_out", bias=False),
    ]
    if len(layout.embeddings) > 1:
        flat = embedding_columns(x, layout, layer_factory)
        total = ops.sum(ops.reshape(flat, (-1, len(layout.embeddings), layout.dim)), axis=1)
        squared_total = ops.sum(total * total, axis=1, keepdims=True)
        total_squares = ops.sum(flat * flat, axis=1, keepdims=True)
        terms.append((squared_total - total_squares) * 0.5)
    logit = terms[0]
    for term in terms[1:]:
        logit = logit + term
    return Arch.of(keras.Model(x, logit, name="deepfm"))
