"""Derive the inputs of a package from a signature: which tensors form one input, and its name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from freshet_serving.compiler.frameworks import tf
from freshet_serving.compiler.imports.feeds import COMPONENTS, DENSE, PADDED, RAGGED, SPARSE, FeedSpec, plain
from freshet_serving.processor.errors import BadInput, first_of

RAGGED_OPS = ("RaggedTensorToSparse", "RaggedTensorToTensor", "RaggedGather", "RaggedTensorToVariant")

Groups = Mapping[str, tuple[str, ...]]


def arrange(signature: Any, graph_def: Any, ragged: Groups, sparse: Groups) -> tuple[list[FeedSpec], dict[str, str]]:
    """Group a SignatureDef's inputs into the inputs of a package; raise BadInput for one that cannot be in a package.

    Groups that are not given are found by the way TensorFlow flattens them: a sparse X is X [?, 2], X_1 and X_2 [2]; a
    ragged X is X and X_1, if X_1 is used as row splits. Return the inputs by ascending name, and node -> tensor of the
    model for each of their nodes.
    """
    infos = dict(signature)
    fed: list[FeedSpec] = []
    tensors: dict[str, str] = {}

    def add(name: str, kind: str, parts: list[Any]) -> None:
        values = parts[0 if kind != SPARSE else 1]
        dims = () if kind != DENSE else _dims(name, values)
        spec = FeedSpec(plain(name), kind, _dtype(name, values), dims, "" if plain(name) == name else name)
        if spec.dtype.kind == "f" and kind != DENSE:
            raise BadInput(f"input {name[:64]!r}: expected floats of a fixed number of columns")
        if spec.name in {f.name for f in fed}:
            other = first_of(f.own or f.name for f in fed if f.name == spec.name)
            raise BadInput(
                f"input {name[:64]!r}: expected inputs whose names differ in letters and digits, got {other[:64]!r} too"
            )
        fed.append(spec)
        tensors.update(zip(spec.nodes, (part if isinstance(part, str) else part.name for part in parts)))

    for kind, groups in ((RAGGED, ragged), (SPARSE, sparse)):
        for name, members in groups.items():
            if len(members) != len(COMPONENTS[kind]) or not all(m in infos for m in members):
                raise BadInput(f"{kind} {name[:64]!r}: expected {len(COMPONENTS[kind])} tensors of the signature")
            add(name, kind, [infos.pop(m) for m in members])
    for name in sorted(infos):
        if name not in infos:
            continue
        info = infos[name]
        if info.WhichOneof("encoding") == "coo_sparse":
            coo = info.coo_sparse
            shaped = type(info)(name=coo.values_tensor_name, dtype=info.dtype)
            add(name, SPARSE, [coo.indices_tensor_name, shaped, coo.dense_shape_tensor_name])
        elif info.WhichOneof("encoding") == "composite_tensor":
            if len(info.composite_tensor.components) != 2:
                raise BadInput(
                    f"input {name[:64]!r}: expected a ragged tensor of one level, got another composite tensor"
                )
            add(name, RAGGED, list(info.composite_tensor.components))
        elif _shape(info) == [-1, 2] and _shape(infos.get(f"{name}_2")) == [2] and f"{name}_1" in infos:
            add(name, SPARSE, [info, infos.pop(f"{name}_1"), infos.pop(f"{name}_2")])
        elif _shape(info) == [-1] and _is_splits(infos.get(f"{name}_1"), graph_def):
            add(name, RAGGED, [info, infos.pop(f"{name}_1")])
        elif _shape(info) == [-1, -1]:
            add(name, PADDED, [info])
        else:
            add(name, DENSE, [info])
    if not fed:
        raise BadInput("signature: expected at least one input")
    return sorted(fed, key=lambda f: f.name), tensors


def _shape(info: Any) -> list[int] | None:
    if info is None or info.tensor_shape.unknown_rank:
        return None
    return [d.size for d in info.tensor_shape.dim]


def _dims(name: str, info: Any) -> tuple[int, ...]:
    shape = _shape(info)
    if not shape:
        # A scalar, or of unknown rank: one value a row, if samples of several rows show that the graph computes these.
        return ()
    if len(shape) == 1 and shape[0] > 1:
        raise BadInput(f"input {name[:64]!r}: expected a first dimension of rows, got shape {shape}")
    if any(d < 1 for d in shape[1:]) or np.prod(shape[1:], dtype=np.int64) > 65536:
        raise BadInput(f"input {name[:64]!r}: expected a fixed number of columns up to 65536, got shape {shape}")
    return tuple(int(d) for d in shape[1:])


def _dtype(name: str, info: Any) -> np.dtype[Any]:
    dtype = tf.as_dtype(info.dtype)
    if dtype == tf.string:
        return np.dtype(object)
    if dtype in (tf.float16, tf.float32, tf.float64, tf.bool) or dtype.is_integer:
        kind: np.dtype[Any] = np.dtype(dtype.as_numpy_dtype)
        return kind
    raise BadInput(f"input {name[:64]!r}: expected strings or numbers, got {dtype.name}")


def _is_splits(info: Any, graph_def: Any) -> bool:
    """Return whether an int64 vector is row splits: its tail and head are sliced, or a ragged operation reads it."""
    if _shape(info) != [-1] or info.dtype != tf.int64.as_datatype_enum:
        return False
    nodes = [(graph_def.node, {info.name.partition(":")[0]})]
    functions = {f.signature.name: f for f in graph_def.library.function}
    seen: set[tuple[str, int]] = set()
    slices = 0
    while nodes:
        body, names = nodes.pop()
        for node in body:
            for i, source in enumerate(node.input):
                if source.partition(":")[0] not in names:
                    continue
                if node.op in ("Identity", "Cast"):
                    names.add(node.name)
                elif node.op in RAGGED_OPS:
                    return True
                elif node.op == "StridedSlice" and i == 0:
                    slices += 1
                elif "f" in node.attr and node.attr["f"].func.name in functions:
                    function = functions[node.attr["f"].func.name]
                    place = (function.signature.name, i)
                    if i < len(function.signature.input_arg) and place not in seen:
                        seen.add(place)
                        nodes.append((function.node_def, {function.signature.input_arg[i].name}))
    return slices >= 2
