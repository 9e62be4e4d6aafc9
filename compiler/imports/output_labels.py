"""Find outputs of strings that are gathered from constants: the engine computes positions, replies hold the strings.

Such are the ids that a retrieval model answers with (tf.gather of its identifiers at the positions of the best scores),
and the names of classes (tf.gather of a vocabulary). The strings become the output's labels.
"""

from __future__ import annotations

import numpy as np

from freshet_serving.compiler.imports.foreign_graph import VARIABLE, Ref
from freshet_serving.compiler.imports.runner import Runner
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.package import labels_of


def labelled_output(runner: Runner, ref: Ref) -> tuple[Ref, list[str]] | None:
    """Return the tensor of positions of an output of strings, and the labels; None if it is not gathered from labels.

    Args:
        runner: Runs the model.
        ref: The output.
    """
    node = runner.graph.nodes[ref[0]]
    if node.op not in ("GatherV2", "Gather"):
        return None
    above = runner.graph.ancestors(node.inputs[:1])
    if any(n.op != VARIABLE and n.op != "Const" for n in above):
        return None
    if node.op == "GatherV2" and (node.definition.attr["batch_dims"].i or _constant(runner, node.inputs[2]) != 0):
        return None
    labels = labels_of(np.asarray(runner.run([node.inputs[0]], {})[0], object))
    return None if labels is None else (node.inputs[1], labels)


def _constant(runner: Runner, ref: Ref) -> int | None:
    try:
        return int(runner.constant(ref))
    except (BadInput, TypeError, ValueError):
        return None
