"""Two towers (Huang et al., 2013; Covington et al., 2016; Yi et al., 2019): a user vector and an item vector.

It suits retrieval because the item vector does not depend on the user: the vectors of all items are computed beforehand
(`freshet vectors`) and searched for those nearest to the user's.

It learns to retrieve (models.training.retrieval_functions), or labels of rows with `loss = "log_loss"`.
"""

from __future__ import annotations

from typing import Literal

from freshet_serving.models.zoo.arch import ITEM_VECTOR, SCORE, USER_VECTOR, Arch, Towers
from freshet_serving.models.zoo.dense_input import DenseInput
from freshet_serving.models.zoo.layers import LayerFactory, Tensor, columns
from freshet_serving.models.zoo.option_types import Dropout, Hidden, MoreNegatives, Temperature, Units
from freshet_serving.processor.errors import BadInput

FIRST_COSINE_SCALE = 10.0
NORM_FLOOR = 1e-12
SCORE_LAYER = "score_out"
"""Name of the layer with scale and bias."""
NEGATIVES = 1024


def build(
    layout: DenseInput,
    hidden: Hidden = (256, 128),
    vector_dim: Units = 32,
    similarity: Literal["dot", "cosine"] = "dot",
    dropout: Dropout = 0.0,
    negatives: MoreNegatives = NEGATIVES,
    temperature: Temperature = 0.0,
    seed: int = 0,
) -> Arch:
    """Build the network over x [n, layout.width].

    Outputs: `score`; `user_vector` and `item_vector`, [n, vector_dim] each.

    logit = scale * <user_vector, item_vector> + bias

    The item's tower reads the features of side item, the user's all others. With similarity cosine, vectors have length
    1. scale is 1 / temperature: learned from 10 for cosines unless the file gives one, else 1. Neither it nor the bias
    changes the order of items. Weights: user_<i>, user_out, item_<i>, item_out, score_out.
    """
    from freshet_serving.compiler.frameworks import keras

    ops, layer_factory = keras.ops, LayerFactory(seed, dropout)
    x = keras.Input((layout.width,), name="x")
    vectors: dict[str, Tensor] = {}
    for side, name in (("user", USER_VECTOR), ("item", ITEM_VECTOR)):
        spans = [span for span in layout.spans if (span.side == "item") == (side == "item")]
        if not spans:
            raise BadInput(f"features: expected one of side {side!r} for two_tower, got none")
        top = layer_factory.tower(columns(x, spans), hidden, side)
        # Vectors of length 1 are not near zero, and a bias would make all of them begin alike.
        first_bias = [] if similarity == "cosine" else _halves(vector_dim, side)
        vector = layer_factory.dense(top, vector_dim, f"{side}_out", first_bias=first_bias)
        if similarity == "cosine":
            vector = vector * ops.rsqrt(ops.sum(vector * vector, axis=1, keepdims=True) + NORM_FLOOR)
        vectors[name] = vector
    nearness = ops.sum(vectors[USER_VECTOR] * vectors[ITEM_VECTOR], axis=1, keepdims=True)
    scale = 1 / temperature if temperature else FIRST_COSINE_SCALE if similarity == "cosine" else 1.0
    first = keras.initializers.Constant(scale)
    logit = keras.layers.Dense(1, kernel_initializer=first, name=SCORE_LAYER)(nearness)
    scores = {SCORE: ops.sigmoid(logit), **vectors}
    return Arch(
        keras.Model(x, logit, name="two_tower"),
        keras.Model(x, scores, name="two_tower_scores"),
        towers=Towers(
            keras.Model(x, vectors, name="two_tower_vectors"),
            negatives,
            temperature or (0.0 if similarity == "cosine" else 1.0),
        ),
    )


def _halves(vector_dim: int, side: str) -> list[float]:
    """Return a vector's initial bias: half of the user's numbers are 1, the others 0; the item's the other way round.

    Of two vectors that begin near zero, neither would learn before the other has: this way each learns at once what is
    true of it whatever the other is, and the inner product of the two begins at zero.
    """
    user = vector_dim // 2
    return [1.0 if (i < user) == (side == "user") else 0.0 for i in range(vector_dim)]
