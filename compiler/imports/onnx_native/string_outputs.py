"""Replace outputs of strings by positions in a list of labels, where an ONNX graph takes its strings from constants.

Such are the labels of classifiers of strings (LinearClassifier, SVMClassifier, TreeEnsembleClassifier), values that
LabelEncoder maps to, and strings gathered from an initialiser, as scikit-learn's converter writes them. These operators
are defined for integers too: each computes the same, with 0, 1, 2 in place of its strings. Replies hold the labels
again (processor.package.replies). Outputs of other strings are left out, with a note.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from freshet_serving.compiler.imports.onnx_graph.onnx_reader import refill
from freshet_serving.processor.package import labels_of

TENSOR = onnx.TensorProto
ML = "ai.onnx.ml"
# Of a classifier, the attribute of its labels as integers.
CLASSIFIERS = {
    "LinearClassifier": "classlabels_ints",
    "SVMClassifier": "classlabels_ints",
    "TreeEnsembleClassifier": "classlabels_int64s",
}
GATHERS = {"ArrayFeatureExtractor": ML, "Gather": ""}
SAME = frozenset({"Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Transpose"})


def number_strings(proto: Any) -> dict[str, list[str]]:
    """Replace, in place, the strings of a model's outputs by their positions; return the labels by output."""
    labels_by_output = {}
    for info in proto.graph.output:
        if info.type.tensor_type.elem_type == TENSOR.STRING:
            chain = _chain(proto.graph, info.name)
            labels = _replace(proto.graph, chain) if chain else None
            if labels is not None:
                info.type.tensor_type.elem_type = TENSOR.INT64
                labels_by_output[info.name] = labels
    if labels_by_output:
        # They may name types of before.
        del proto.graph.value_info[:]
    return labels_by_output


def _chain(graph: Any, name: str) -> list[Any]:
    """Return the nodes from an output up to the one that takes its strings from constants; [] if there is none.

    No value between them has another reader, because that would read strings.
    """
    makers = {output: node for node in graph.node for output in node.output}
    outputs = {info.name for info in graph.output} - {name}
    chain: list[Any] = []
    while name in makers:
        node = makers[name]
        readers = [reader for reader in graph.node if name in reader.input]
        if (chain and len(readers) > 1) or (not chain and readers) or name in outputs:
            return []
        chain.append(node)
        to = next((a.i for a in node.attribute if a.name == "to"), 0)
        if not (node.op_type in SAME and not node.domain) and not (node.op_type == "Cast" and to == TENSOR.STRING):
            return chain
        name = node.input[0]
    return []


def _replace(graph: Any, chain: list[Any]) -> list[str] | None:
    """Make the last node of a chain compute positions; return the labels, or None if it is no such node."""
    *between, node = chain
    if node.domain == ML and node.op_type in CLASSIFIERS:
        labels = _renamed(node, "classlabels_strings", CLASSIFIERS[node.op_type])
    elif node.domain == ML and node.op_type == "LabelEncoder":
        labels = _encoded(node)
    elif GATHERS.get(node.op_type) == node.domain:
        labels = _gathered(graph, node)
    else:
        labels = None
    if labels is not None:
        for inner in between:
            if inner.op_type == "Cast":
                inner.op_type = "Identity"
                del inner.attribute[:]
    return labels


def _renamed(node: Any, name: str, other: str) -> list[str] | None:
    strings = next((a for a in node.attribute if a.name == name and a.strings), None)
    labels = labels_of(np.array(list(strings.strings), object)) if strings is not None else None
    if strings is not None and labels is not None:
        attributes = [a for a in node.attribute if a.name not in (name, other)]
        attributes.append(onnx.helper.make_attribute(other, list(range(len(labels)))))
        refill(node.attribute, attributes)
    return labels


def _encoded(node: Any) -> list[str] | None:
    default = next((a.s.decode(errors="replace") for a in node.attribute if a.name == "default_string"), "_Unused")
    labels = _renamed(node, "values_strings", "values_int64s")
    if labels is None:
        return None
    others = [a for a in node.attribute if a.name not in ("default_string", "default_int64")]
    refill(node.attribute, [*others, onnx.helper.make_attribute("default_int64", len(labels))])
    return [*labels, default]


def _gathered(graph: Any, node: Any) -> list[str] | None:
    strings = next((t for t in graph.initializer if t.name == node.input[0] and t.data_type == TENSOR.STRING), None)
    constant = next((n for n in graph.node if n.op_type == "Constant" and node.input[0] in n.output), None)
    if strings is None and constant is not None:
        strings = next((a.t for a in constant.attribute if a.name == "value"), None)
    if strings is None or strings.data_location == TENSOR.EXTERNAL or strings.data_type != TENSOR.STRING:
        return None
    labels = labels_of(np.array(list(strings.string_data), object))
    if labels is None or len(labels) != int(np.prod(strings.dims, dtype=object)):
        return None
    taken = {t.name for t in graph.initializer} | {name for n in graph.node for name in (*n.input, *n.output)}
    fresh = next(name for k in range(len(taken) + 1) if (name := f"{node.input[0]}.positions{k or ''}") not in taken)
    positions = np.arange(len(labels), dtype=np.int64).reshape(list(strings.dims))
    graph.initializer.append(numpy_helper.from_array(positions, fresh))
    node.input[0] = fresh
    return labels
