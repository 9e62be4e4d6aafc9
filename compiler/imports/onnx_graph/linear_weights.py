"""Find the weights of nn.Linear that TorchScript's exporter stores transposed and without a name."""

from __future__ import annotations

import re

from freshet_serving.compiler.imports.onnx_graph.onnx_reader import OnnxBody, OnnxNode, values_read

ANONYMOUS = re.compile(r"(onnx::\w+|_?val_\d+|\d+)")
"""Names that exporters give to values without a name in PyTorch."""


def linear_names(body: OnnxBody) -> dict[str, str]:
    """Return the original PyTorch name by initialiser, for weights of nn.Linear that an exporter has transposed.

    It follows from the bias that is added to the product, which has the name of the module.
    """
    uses: dict[str, int] = {}
    adds: dict[str, OnnxNode] = {}
    for node in body.nodes:
        for name in values_read(node):
            uses[name] = uses.get(name, 0) + 1
        if node.op == "Add" and len(node.inputs) == 2:
            adds.update((name, node) for name in node.inputs)
    names: dict[str, str] = {}
    for node in body.nodes:
        if node.op != "MatMul" or len(node.inputs) != 2:
            continue
        weight, add = body.weights.get(node.inputs[1]), adds.get(node.outputs[0])
        if weight is None or weight.ndim != 2 or add is None or not ANONYMOUS.fullmatch(node.inputs[1]):
            continue
        bias = next(name for name in add.inputs if name != node.outputs[0] or add.inputs[0] == add.inputs[1])
        module = bias.removesuffix(".bias")
        label = f"{module}.weight"
        fits = bias in body.weights and body.weights[bias].shape == weight.shape[1:] and module != bias
        scoped = _scope(node.name) in (module, "") and _scope(add.name) in (module, "")
        if fits and scoped and uses[node.inputs[1]] == 1 and label not in body.weights and label not in names.values():
            names[node.inputs[1]] = label
    return names


def _scope(name: str) -> str:
    """Return the module that TorchScript's exporter gives for a node ("/tower/tower.0/MatMul"); "" if it gives none."""
    parts = name.split("/")[1:-1] if name.startswith("/") else []
    module = ""
    for part in parts:
        module = part if not module or part.startswith(f"{module}.") else f"{module}.{part}"
    return module
