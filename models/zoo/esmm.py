"""ESMM (Ma et al., 2018, "Entire Space Multi-Task Model"): click and conversion, learned over all impressions."""

from __future__ import annotations

import math
from collections.abc import Sequence

from freshet_serving.models.zoo.arch import Arch
from freshet_serving.models.zoo.dense_input import DenseInput
from freshet_serving.models.zoo.layers import LayerFactory, side_by_side
from freshet_serving.models.zoo.option_types import Dropout, Hidden
from freshet_serving.processor.errors import BadInput

LEAST = 1e-6


def build(
    layout: DenseInput,
    hidden: Hidden = (256, 128, 64),
    dropout: Dropout = 0.0,
    labels: Sequence[str] = ("click", "conversion"),
    seed: int = 0,
) -> Arch:
    """Build the network over x [n, layout.width].

    There are two labels: clicked; clicked and converted, so 1 only where the first is. Outputs: `ctr` and `ctcvr`,
    their probabilities, and `cvr`, that of a conversion once clicked.

    ctcvr = ctr * cvr

    A conversion is unknown without a click, so `cvr` has no loss of its own: it is what makes `ctcvr` right on all
    rows, without a selection of rows. With a and b the logits of ctr and cvr, that of ctcvr is

    -log(e^-a + e^-b + e^(-a-b))

    which avoids probabilities that could round to 0 or 1. Weights: ctr_<i>, ctr_out, cvr_<i>, cvr_out.

    """
    from freshet_serving.compiler.frameworks import keras

    if len(labels) != 2:
        raise BadInput(f"data.label: expected two columns for esmm, clicked and converted, got {len(labels)}")
    ops, layer_factory = keras.ops, LayerFactory(seed, dropout)
    x = keras.Input((layout.width,), name="x")
    ctr, cvr = (layer_factory.dense(layer_factory.tower(x, hidden, name), 1, f"{name}_out") for name in ("ctr", "cvr"))
    ctcvr = -ops.logsumexp(side_by_side([-ctr, -cvr, -ctr - cvr]), axis=1, keepdims=True)
    scores = {"ctr": ops.sigmoid(ctr), "cvr": ops.sigmoid(cvr)}
    scores["ctcvr"] = scores["ctr"] * scores["cvr"]
    logits = keras.Model(x, side_by_side([ctr, ctcvr]), name="esmm")

    def begin(log_odds: Sequence[float]) -> None:
        clicked, converted = (1 / (1 + math.exp(-odds)) for odds in log_odds)
        if converted > clicked:
            raise BadInput(
                f"data.label: esmm requires {labels[1]!r} to be 1 only where {labels[0]!r} is 1, but it is 1 more often"
            )
        rate = min(max(converted / clicked, LEAST), 1 - LEAST)
        logits.get_layer("ctr_out").bias.assign([log_odds[0]])
        logits.get_layer("cvr_out").bias.assign([math.log(rate / (1 - rate))])

    return Arch(logits, keras.Model(x, scores, name="esmm_scores"), ("ctr", "ctcvr"), begin)
