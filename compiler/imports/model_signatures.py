"""Find the signatures of a SavedModel that one version can serve together.

A version has one set of inputs, those of the signature that was chosen. Further signatures are served with it if what
they compute needs exactly these: the same tensors, as in TensorFlow 1's exports, where a signature that parses
tf.Example reads the tensors that another one is fed; or inputs of the same name, type and shape, as TensorFlow 2 saves
them. What several signatures compute is computed once: outputs of one place in the graph, and outputs of one function
that two signatures call, as Keras saves a model under two names.
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
CALLS = ("PartitionedCall", "StatefulPartitionedCall")
MAX_IDENTITIES = 8
Origin = tuple[str, str, tuple[str, ...], tuple[str, ...]]


def other_outputs(meta: Any, chosen: str) -> dict[str, dict[str, str]]:
    """Return the tensors of each other signature that could be served too, by the names of its outputs."""
    tensors_of: dict[str, dict[str, str]] = {}
    for name, signature in sorted(meta.signature_def.items()):
        tensors = {output: info.name for output, info in sorted(signature.outputs.items())}
        other = name not in (chosen, DEFAULT_SIGNATURE) and not name.startswith(HIDDEN)
        if other and tensors and all(tensors.values()) and len(tensors_of) < MAX_SIGNATURES - 1:
            tensors_of[name] = tensors
    return tensors_of


def shared_inputs(meta: Any, chosen: str, fed: Mapping[str, str]) -> dict[str, str]:
    """Return tensor -> node for inputs of other signatures that are fed what one of the chosen signature's is."""
    nodes = {tensor: node for node, tensor in fed.items()}
    chosen_inputs = meta.signature_def[chosen].inputs
    nodes_by_tensor = {}
    for signature in meta.signature_def.values():
        for name, info in signature.inputs.items():
            chosen_info = chosen_inputs.get(name)
            if chosen_info is None or not info.name or info.name == chosen_info.name or chosen_info.name not in nodes:
                continue
            if (info.dtype, info.tensor_shape) == (chosen_info.dtype, chosen_info.tensor_shape):
                nodes_by_tensor[info.name] = nodes[chosen_info.name]
    return nodes_by_tensor


class Origins:
    """Tells which function computes the tensors of signatures, below the wrapper that each signature has."""

    def __init__(self, meta: Any) -> None:
        self._nodes = {node.name: node for node in meta.graph_def.node}
        self._functions = {f.signature.name: f for f in meta.graph_def.library.function}

    def of(self, tensor: str) -> Origin | None:
        """Return the function, its output and its arguments, equal for tensors that are the same; None if unknown."""
        name, _, number = tensor.partition(":")
        call = self._nodes.get(name)
        wrapper = self._functions.get(call.attr["f"].func.name) if call is not None and call.op in CALLS else None
        if call is None or wrapper is None or not number.isdecimal():
            return None
        results, inside = list(wrapper.signature.output_arg), {node.name: node for node in wrapper.node_def}
        if int(number) >= len(results):
            return None
        place = wrapper.ret[results[int(number)].name]
        for _ in range(MAX_IDENTITIES):
            node, _, output = place.partition(":")
            inner = inside.get(node)
            if inner is None or inner.op not in ("Identity", *CALLS):
                return None
            if inner.op in CALLS:
                # Placeholders are the signature's own inputs, which the wrapper knows by their names.
                nodes = [self._nodes.get(i.partition(":")[0]) for i in call.input]
                sources = ["" if n is not None and n.op == "Placeholder" else i for n, i in zip(nodes, call.input)]
                arguments = [arg.name for arg in wrapper.signature.input_arg]
                return inner.attr["f"].func.name, output, tuple(inner.input), (*sources, *arguments)
            place = inner.input[0]
        return None


def signatures_of(
    meta: Any, chosen: str, outputs: Mapping[str, Ref], found: Mapping[str, Ref], others: Mapping[str, dict[str, str]]
) -> tuple[list[ServingSignature], dict[str, Ref]]:
    """Return the signatures that are served, and the outputs that they need besides those of the chosen, default one.

    `found` has the places in the graph of the model's tensors, `others` is what other_outputs() returned.
    """
    by_place = {ref: name for name, ref in outputs.items()}
    origins = Origins(meta)
    by_origin: dict[Origin, str] = {}
    for name in outputs:
        info = meta.signature_def[chosen].outputs.get(name)
        if info is not None and (origin := origins.of(info.name)) is not None:
            by_origin.setdefault(origin, name)
    more: dict[str, Ref] = {}
    served = [_signature(meta, chosen, DEFAULT_SIGNATURE, {name: name for name in outputs})]
    for name, tensors in others.items():
        if not all(tensor in found for tensor in tensors.values()):
            continue
        outputs_of = {}
        for output, tensor in tensors.items():
            ref, origin = found[tensor], origins.of(tensor)
            if ref not in by_place and origin in by_origin:
                by_place[ref] = by_origin[origin]
            if ref not in by_place:
                by_place[ref] = f"{name}.{output}"
                more[by_place[ref]] = ref
            outputs_of[output] = by_place[ref]
        served.append(_signature(meta, name, name, outputs_of))
    return served if len(served) > 1 else [], more


def _signature(meta: Any, source: str, name: str, outputs: dict[str, str]) -> ServingSignature:
    method = meta.signature_def[source].method_name
    return ServingSignature(name, method if method in (CLASSIFY, REGRESS) else PREDICT, outputs)
