"""Find the signatures of a SavedModel that one version can serve together.

A version has one set of inputs, those of the signature that was chosen. Further signatures are served with it if what
they compute needs exactly these: the same tensors, as in TensorFlow 1's exports, where a signature that parses
tf.Example reads the tensors that another one is fed; or inputs of the same name, type and shape, as TensorFlow 2 saves
them. What several signatures compute is computed once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from freshet_serving.compiler.imports.foreign_graph import Ref
from freshet_serving.processor.package import (
    CLASSIFY,
    DEFAULT_SIGNATURE,
    MAX_SIGNATURES,
    PREDICT,
    REGRESS,
    ServingSignature,
)

HIDDEN = "__"


def other_outputs(meta: Any, chosen: str) -> dict[str, dict[str, str]]:
    """Return the tensors of each other signature that could be served too, by the names of its outputs.

    Args:
        meta: The MetaGraphDef.
        chosen: The signature that was chosen.
    """
    found: dict[str, dict[str, str]] = {}
    for name, signature in sorted(meta.signature_def.items()):
        tensors = {given: info.name for given, info in sorted(signature.outputs.items())}
        other = name not in (chosen, DEFAULT_SIGNATURE) and not name.startswith(HIDDEN)
        if other and tensors and all(tensors.values()) and len(found) < MAX_SIGNATURES - 1:
            found[name] = tensors
    return found


def shared_inputs(meta: Any, chosen: str, fed: Mapping[str, str]) -> dict[str, str]:
    """Return the input tensors of other signatures that are fed what one of the chosen signature's is.

    Args:
        meta: The MetaGraphDef.
        chosen: The signature that was chosen.
        fed: Node -> tensor that is fed.

    Returns:
        Tensor -> node.
    """
    nodes = {tensor: node for node, tensor in fed.items()}
    ours = meta.signature_def[chosen].inputs
    found = {}
    for signature in meta.signature_def.values():
        for name, info in signature.inputs.items():
            own = ours.get(name)
            if own is None or not info.name or info.name == own.name or own.name not in nodes:
                continue
            if (info.dtype, info.tensor_shape) == (own.dtype, own.tensor_shape):
                found[info.name] = nodes[own.name]
    return found


def signatures_of(
    meta: Any, chosen: str, outputs: Mapping[str, Ref], found: Mapping[str, Ref], others: Mapping[str, dict[str, str]]
) -> tuple[list[ServingSignature], dict[str, Ref]]:
    """Return the signatures that are served, and the outputs that they need besides those of the chosen one.

    Args:
        meta: The MetaGraphDef.
        chosen: The signature that was chosen; it is served as the default one.
        outputs: Its outputs in the graph.
        found: Tensors of the model in the graph.
        others: What other_outputs() returned.
    """
    by_place = {ref: name for name, ref in outputs.items()}
    more: dict[str, Ref] = {}
    served = [_signature(meta, chosen, DEFAULT_SIGNATURE, {name: name for name in outputs})]
    for name, tensors in others.items():
        if not all(tensor in found for tensor in tensors.values()):
            continue
        named = {}
        for given, tensor in tensors.items():
            ref = found[tensor]
            if ref not in by_place:
                by_place[ref] = f"{name}.{given}"
                more[by_place[ref]] = ref
            named[given] = by_place[ref]
        served.append(_signature(meta, name, name, named))
    return served if len(served) > 1 else [], more


def _signature(meta: Any, source: str, name: str, outputs: dict[str, str]) -> ServingSignature:
    method = meta.signature_def[source].method_name
    return ServingSignature(name, method if method in (CLASSIFY, REGRESS) else PREDICT, outputs)
