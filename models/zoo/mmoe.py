"""MMoE (Ma et al., 2018, "Modeling Task Relationships"): several labels over shared experts, each by its own gate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from freshet_serving.models.zoo.arch import Arch, output_names
from freshet_serving.models.zoo.dense_input import DenseInput
from freshet_serving.models.zoo.layers import LayerFactory, side_by_side
from freshet_serving.models.zoo.option_types import ClosedInterval, Dropout, Hidden


def build(
    layout: DenseInput,
    hidden: Hidden = (256, 128),
    experts: Annotated[int, ClosedInterval(1, 64)] = 4,
    tower: Hidden = (64,),
    dropout: Dropout = 0.0,
    labels: Sequence[str] = ("label",),
    seed: int = 0,
) -> Arch:
    """Build the network over x [n, layout.width], with a logit and an output of the same name for each label.

    logit_k = tower_k(sum over experts e of softmax(gate_k x)_e * expert_e(x))

    Weights: expert_<e>_<i>, gate_<label>, tower_<label>_<i> and tower_<label>_out.

    `hidden` are the units of an expert, `tower` those of a label's own tower.
    """
    from freshet_serving.compiler.frameworks import keras

    layer_factory = LayerFactory(seed, dropout)
    x = keras.Input((layout.width,), name="x")
    mixed = [layer_factory.tower(x, hidden, f"expert_{e}") for e in range(experts)]
    names, logits = output_names(labels), []
    for name in names:
        gate = layer_factory.dense(x, experts, f"gate_{name}", "softmax")
        mixture = gate[:, :1] * mixed[0]
        for e in range(1, experts):
            mixture = mixture + gate[:, e : e + 1] * mixed[e]
        logits.append(layer_factory.dense(layer_factory.tower(mixture, tower, f"tower_{name}"), 1, f"tower_{name}_out"))
    scores = {name: keras.ops.sigmoid(logit) for name, logit in zip(names, logits)}
    return Arch(keras.Model(x, side_by_side(logits), name="mmoe"), keras.Model(x, scores, name="mmoe_scores"), names)
