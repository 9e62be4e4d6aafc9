"""Check a package's dense graph before TensorFlow loads it: it may only compute numbers.

A package may come from an untrusted source, and its graph is a program: some operations read files or run code. A dense
graph maps floats to floats, so nothing in it uses strings (file names are strings), resources (tables, variables) or
state; called functions are checked too. The check covers every function of the SavedModel's objects, since loading may
run any of them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from freshet_serving.compiler.frameworks import op_def_registry, saved_model_pb2, tf
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.package import read_file

MAX_GRAPH_NBYTES = 2 << 30
NO_NUMBERS = {tf.string.as_datatype_enum, tf.resource.as_datatype_enum}
# Stateful by registration, but allowed: they call functions, which are checked, or check their arguments.
CALLING = frozenset({"StatefulPartitionedCall", "If", "While", "Case", "Assert", "CheckNumerics", "CheckNumericsV2"})
# Python code under a stateless name.
CODE = frozenset({"PyFuncStateless"})


def check_allowed_ops(folder: Path) -> None:
    """Check the SavedModel of a dense graph; raise BadInput if an operation does more than compute numbers."""
    saved = saved_model_pb2.SavedModel()
    try:
        saved.ParseFromString(read_file(folder / "saved_model.pb", MAX_GRAPH_NBYTES).tobytes())
    except (OSError, BadInput):
        raise
    except Exception:
        raise BadInput("graph: expected a dense graph's SavedModel") from None
    for meta in saved.meta_graphs:
        functions = {function.signature.name: function for function in meta.graph_def.library.function}
        pending = [name for node in meta.object_graph_def.nodes for name in node.function.concrete_functions]
        seen: set[str] = set()
        while pending:
            name = pending.pop()
            if name in seen or name not in functions:
                continue
            seen.add(name)
            for node in functions[name].node_def:
                pending += [node.op, *(v.func.name for v in node.attr.values() if v.HasField("func"))]
                pending += [f.name for v in node.attr.values() for f in v.list.func]
                if node.op not in functions and not _is_allowed(node.op):
                    raise BadInput(f"graph: operation {node.op[:64]} is not allowed in a dense graph")


def _is_allowed(op: str) -> bool:
    definition: Any = op_def_registry.get(op)
    if definition is None or op in CODE:
        return False
    kinds = {argument.type for argument in (*definition.input_arg, *definition.output_arg)}
    return op in CALLING or not (definition.is_stateful or kinds & NO_NUMBERS)
