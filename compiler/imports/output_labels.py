"""Find outputs of strings that are taken from constants: the engine computes positions, replies hold the strings.

Such are the ids that a retrieval model answers with (tf.gather of its identifiers at the positions of the best scores),
and the names of classes (tf.gather of a vocabulary, or a lookup table of a vocabulary file by whole numbers).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from freshet_serving.compiler.imports.foreign_graph import VARIABLE, Ref
from freshet_serving.compiler.imports.runner import Runner
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.package import MAX_LABELS, labels_of

SHAPING = ("ExpandDims", "Identity", "Reshape", "Squeeze")
"""Operations that change neither strings nor their order."""


class LabelledOutput(NamedTuple):
    """An output of strings, their positions, maybe in another shape, the label at each, and at unknown ones."""

    strings: Ref
    positions: Ref
    labels: list[str]
    unknown: str = ""


def labelled_output(runner: Runner, ref: Ref) -> LabelledOutput | None:
    """Return what an output of strings is computed from; None if it is not taken from constants."""
    node = runner.graph.nodes[ref[0]]
    while node.op in SHAPING:
        node = runner.graph.nodes[node.inputs[0][0]]
    if node.op == "LookupTableFindV2":
        return _looked_up(runner, ref, *node.inputs)
    if node.op not in ("GatherV2", "Gather"):
        return None
    above = runner.graph.ancestors(node.inputs[:1])
    if any(n.op != VARIABLE and n.op != "Const" for n in above):
        return None
    if node.op == "GatherV2" and (node.definition.attr["batch_dims"].i or _constant(runner, node.inputs[2]) != 0):
        return None
    labels = labels_of(np.asarray(runner.run([node.inputs[0]], {})[0], object))
    return None if labels is None else LabelledOutput(ref, node.inputs[1], labels)


def _looked_up(runner: Runner, ref: Ref, table: Ref, positions: Ref, default: Ref) -> LabelledOutput | None:
    """Return the labels of a lookup table by whole numbers; None for other keys, and for too large ones."""
    if not runner.tensor(positions).dtype.is_integer:
        return None
    keys, values = runner.table(table)
    if not 0 < len(keys) <= MAX_LABELS or keys.min() < 0 or keys.max() >= MAX_LABELS:
        return None
    unknown = labels_of(np.reshape(np.asarray(runner.constant(default), object), -1))
    if unknown is None:
        return None
    strings = np.full(int(keys.max()) + 1, unknown[0], object)
    strings[keys] = values
    labels = labels_of(strings)
    return None if labels is None else LabelledOutput(ref, positions, labels, unknown[0])


def _constant(runner: Runner, ref: Ref) -> int | None:
    try:
        return int(runner.constant(ref))
    except (BadInput, TypeError, ValueError):
        return None
