"""DLRM (Naumov et al., 2019): a bottom MLP over floats, inner products of all pairs of vectors, a top MLP."""

from __future__ import annotations

from freshet_serving.models.zoo.arch import Arch
from freshet_serving.models.zoo.dense_input import DenseInput
from freshet_serving.models.zoo.layers import LayerFactory, columns, embedding_columns, pairwise_dots, side_by_side
from freshet_serving.models.zoo.option_types import Dropout, Hidden


def build(
    layout: DenseInput,
    hidden: Hidden = (256, 128, 64),
    bottom: Hidden = (64,),
    dropout: Dropout = 0.0,
    seed: int = 0,
) -> Arch:
    """Build the network over x [n, layout.width].

    The bottom MLP ends in a vector of the embeddings' dim, which joins the embeddings in the inner products and is an
    input of the top MLP (`hidden`) together with them. Without floats the embeddings themselves take its place; without
    embeddings there are no products and the bottom MLP ends in its last hidden layer. Weights: bottom_<i>, bottom_out,
    top_<i>, top_out, and project_<feature> where embedding dims differ.
    """
    from freshet_serving.compiler.frameworks import keras

    ops, layer_factory = keras.ops, LayerFactory(seed, dropout)
    x = keras.Input((layout.width,), name="x")
    beside = []
    if layout.floats:
        beside.append(layer_factory.tower(columns(x, layout.floats), bottom, "bottom"))
    if layout.floats and layout.embeddings:
        beside = [layer_factory.dense(beside[0], layout.dim, "bottom_out", "relu")]
    joined = beside
    if layout.embeddings:
        vectors = [*beside, embedding_columns(x, layout, layer_factory)]
        count = len(layout.embeddings) + len(beside)
        joined = vectors[:1]
        if count > 1:
            joined.append(pairwise_dots(ops.reshape(side_by_side(vectors), (-1, count, layout.dim))))
    top = layer_factory.tower(side_by_side(joined), hidden, "top")
    logit = layer_factory.dense(top, 1, "top_out")
    return Arch.of(keras.Model(x, logit, name="dlrm"))
