"""The note of a version with two towers: its items are ranked by vectors (processor.extensions.top_items)."""

from __future__ import annotations

from typing import Any

from freshet_serving.models.zoo.arch import SCORE, USER_VECTOR, Arch
from freshet_serving.processor.extensions.top_items.section import vector_ranking_note

TWO_TOWER, VECTORS, HEAD = "two_tower", "item_vector", "score_out"
"""The architecture, its output with items' vectors, and its layer that makes a score of a product."""


def vector_note(arch: Arch) -> dict[str, Any]:
    """Return the notes of two towers whose score is the sigmoid of the layer HEAD of a product; {} for others."""
    from freshet_serving.compiler.frameworks import keras

    outputs = arch.scores.output
    if not isinstance(outputs, dict) or not {SCORE, USER_VECTOR, VECTORS} <= outputs.keys():
        return {}
    tower = keras.Model(arch.scores.inputs, outputs[VECTORS])
    weights = sorted({weight.path for weight in tower.weights})
    scale, bias = f"{HEAD}/kernel", f"{HEAD}/bias"
    return vector_ranking_note(USER_VECTOR, VECTORS, weights, scale, bias)
