"""Write an ONNX file as a SavedModel, the form in which all imports continue.

Its inputs are the file's, except that ids and offsets of an EmbeddingBag become one ragged input named after the ids.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from freshet_serving.compiler.frameworks import quiet, saved_model_pb2, tf
from freshet_serving.compiler.imports.error_reason import reason_of
from freshet_serving.compiler.imports.onnx_graph.bags import Offsets, find_bags, splits_of
from freshet_serving.compiler.imports.onnx_graph.branches import decided
from freshet_serving.compiler.imports.onnx_graph.onnx_reader import OnnxBody, OnnxInput, OnnxModel, read_onnx
from freshet_serving.compiler.imports.onnx_graph.reference_check import OnnxReference
from freshet_serving.compiler.imports.onnx_graph.translation import Translation, weights_of
from freshet_serving.processor.errors import BadInput, FreshetError

SIGNATURE = "serving_default"


@dataclass(frozen=True, slots=True, eq=False)
class SavedOnnx:
    """An ONNX file that was written as a SavedModel, with groups of tensors as open_source() expects them."""

    ragged: dict[str, tuple[str, ...]]
    reference_check: OnnxReference


def save_onnx(path: Path, folder: Path) -> SavedOnnx:
    """Write an ONNX file as a SavedModel into the new `folder`; raise BadInput or TooLarge if it is refused."""
    model = read_onnx(path)
    model = OnnxModel(model.inputs, decided(model.body), model.opset)
    body, offsets = find_bags(model)
    try:
        with quiet(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            names = _save(model, body, offsets, folder)
    except FreshetError:
        raise
    except Exception as error:
        raise BadInput(f"source: TensorFlow cannot hold the graph: {reason_of(error)}") from None
    _rename(folder / "saved_model.pb", names)
    return SavedOnnx(
        {pair.ids: (pair.ids, splits_of(pair.ids)) for pair in offsets}, OnnxReference(path, model, offsets)
    )


def _save(model: OnnxModel, body: OnnxBody, offsets: list[Offsets], folder: Path) -> dict[str, str]:
    """Write the module; return the original names by name in the signature."""
    pairs = {pair.ids: pair for pair in offsets}
    offset_names = {pair.offsets for pair in offsets}
    kinds = {info.name: info.dtype for info in model.inputs}
    fed = [info for info in model.inputs if info.name not in offset_names]
    fed += [OnnxInput(splits_of(name), np.dtype(np.int64), (None,)) for name in pairs]
    weights = weights_of(body)

    def score(*tensors: Any) -> dict[str, Any]:
        tensor_of = {spec.name: tensor for spec, tensor in zip(fed, tensors)}
        for pair in pairs.values():
            splits = tensor_of[splits_of(pair.ids)]
            tensor_of.setdefault(pair.offsets, tf.cast(splits if pair.ends else splits[:-1], kinds[pair.offsets]))
        outputs = Translation(body, weights, model.opset, tensor_of).run()
        return {f"output{i}": outputs[name] for i, name in enumerate(body.outputs)}

    dtypes = [tf.string if spec.dtype.hasobject else tf.as_dtype(spec.dtype) for spec in fed]
    specs = [tf.TensorSpec(spec.dims, dtypes[i], name=f"input{i}") for i, spec in enumerate(fed)]
    module = tf.Module()
    module.held = list(weights.variables.values())
    module.score = tf.function(score, input_signature=specs, autograph=False)
    tf.saved_model.save(module, str(folder), signatures={SIGNATURE: module.score})
    names = {f"input{i}": spec.name for i, spec in enumerate(fed)}
    return names | {f"output{i}": name for i, name in enumerate(body.outputs)}


def _rename(path: Path, names: Mapping[str, str]) -> None:
    """Put the file's names into the signature, since TensorFlow accepts only some of them."""
    saved = saved_model_pb2.SavedModel.FromString(path.read_bytes())
    for meta in saved.meta_graphs:
        signature = meta.signature_def[SIGNATURE]
        for entries in (signature.inputs, signature.outputs):
            infos = {names[key]: info for key, info in entries.items()}
            copies = {name: type(info).FromString(info.SerializeToString()) for name, info in infos.items()}
            entries.clear()
            for name, info in copies.items():
                entries[name].CopyFrom(info)
    path.write_bytes(saved.SerializeToString())
