"""Layouts that a network must cope with."""

from freshet_serving.models.zoo.dense_input import DenseInput
from freshet_serving.processor.package.manifest_entries import Feature


def make_layout(*widths: int) -> DenseInput:
    """One feature a width, in this order; width 0 stands for a float."""
    features, offset = [], 0
    for i, width in enumerate(widths):
        kind, table = ("id", f"f{i}") if width else ("float", "")
        features.append(Feature(name=f"f{i}", kind=kind, input=f"f{i}", table=table, offset=offset, width=width or 1))
        offset += width or 1
    return DenseInput.from_features(features)


LAYOUTS = {
    "embeddings then floats": make_layout(4, 4, 4, 0, 0),
    "mixed order": make_layout(0, 4, 0, 4, 4, 0, 0),
    "different dims": make_layout(4, 8, 4, 0, 2, 4),
    "no floats": make_layout(4, 4, 4),
    "no embeddings": make_layout(0, 0, 0),
    "one embedding": make_layout(4),
    "one float": make_layout(0),
    "one of each": make_layout(8, 0),
}
