"""Wide & Deep (Cheng et al., 2016): the sum of a linear model and an MLP over one input."""

from __future__ import annotations

from freshet_serving.models.zoo.arch import Arch
from freshet_serving.models.zoo.dense_input import DenseInput
from freshet_serving.models.zoo.layers import LayerFactory, columns
from freshet_serving.models.zoo.option_types import Dropout, Hidden


def build(layout: DenseInput, hidden: Hidden = (256, 128, 64), dropout: Dropout = 0.0, seed: int = 0) -> Arch:
    """Build the network over x [n, layout.width].

    logit = wide(x) + MLP(deep columns)

    The wide part reads every column, so that each id has a weight of its own by its row. An embedding of dim 1 is only
    that weight, as a cross of two columns should be: the deep part (`hidden`) does not read it, unless there is nothing
    else to read. Weights: wide, deep_<i> and deep_out.
    """
    from freshet_serving.compiler.frameworks import keras

    layer_factory = LayerFactory(seed, dropout)
    x = keras.Input((layout.width,), name="x")
    narrow = {span.offset for span in layout.embeddings if span.width == 1}
    deep = [span for span in layout.spans if span.offset not in narrow] or list(layout.spans)
    logit = layer_factory.dense(x, 1, "wide") + layer_factory.dense(
        layer_factory.tower(columns(x, deep), hidden, "deep"), 1, "deep_out", bias=False
    )
    return Arch.of(keras.Model(x, logit, name="wide_deep"))
