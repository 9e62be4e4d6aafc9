"""Describe the server and its models to clients, as JSON documents that are the same over HTTP and gRPC.

Keys are named as in KServe v2, Triton's extensions and TensorFlow Serving, whose clients read them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from freshet_serving.processor.package import DEFAULT_SIGNATURE, Input, Manifest, ServingSignature
from freshet_serving.processor.versions.routes import AVAILABLE, LOADING, VersionStatus
from freshet_serving.serving.codecs.sequence_tensors import ROW_SPLITS, list_tensors
from freshet_serving.serving.codecs.tensor_types import declared, dims_of, row_of

SERVER_NAME = "freshet"
# The Open Inference Protocol prescribes <project>_<format>.
PLATFORM = "freshet_package"
MAX_BATCH_ROWS = 4096
# Clients branch on this list, so it names only what is served.
EXTENSIONS = ("binary_tensor_data", "model_configuration", "parameters", "statistics")
MODEL_CONTROL, SHARED_MEMORY = "model_repository", "system_shared_memory"


def server_metadata(version: str, extensions: Iterable[str]) -> dict[str, Any]:
    return {"name": SERVER_NAME, "version": version, "extensions": list(extensions)}


def model_metadata(manifest: Manifest, model: str, versions: Iterable[int]) -> dict[str, Any]:
    """Return KServe's metadata of a model; list a ragged input as its two tensors, a sequence with one row_splits."""
    inputs: list[dict[str, Any]] = []
    splits = _splits(manifest)
    for i in manifest.inputs:
        shape = [-1, *row_of(i)]
        inputs.append({"name": manifest.own_name(i.name), "datatype": declared(i).datatype, "shape": shape})
        inputs += [{"name": name, "datatype": "INT64", "shape": [-1]} for name in splits.get(i.name, ())]
    outputs = [
        {"name": name, "datatype": declared(o).datatype, "shape": [-1, *dims_of(o)]}
        for name, o in manifest.replies().items()
    ]
    return {
        "name": model,
        "versions": [str(v) for v in versions],
        "platform": PLATFORM,
        "inputs": inputs,
        "outputs": outputs,
    }


def _splits(manifest: Manifest) -> dict[str, list[str]]:
    """Return the row_splits to list behind an input, by its name: its own, or its sequence's behind the last column."""
    lists = list_tensors(manifest)
    single = {name: [manifest.own_name(name) + ROW_SPLITS] for name in lists.own if name not in lists.sequence}
    return single | {columns[-1]: [name + ROW_SPLITS] for name, columns in lists.columns.items()}


def model_config(manifest: Manifest, model: str) -> dict[str, Any]:
    """Return Triton's configuration of a model, as far as it applies here.

    If the rows of every input come first, they are the batch, and dims omit them; max_batch_size is a bound for load
    generators and no limit of ours. Otherwise it is 0, and dims are complete.
    """
    batched = all(i.columns and not i.ragged for i in manifest.inputs)
    first = [] if batched else [-1]
    inputs: list[dict[str, Any]] = []
    splits = _splits(manifest)
    for i in manifest.inputs:
        dims = [*first, *row_of(i)] if i.columns else [-1, *row_of(i)]
        inputs.append({"name": manifest.own_name(i.name), "data_type": declared(i).config, "dims": dims})
        inputs += [{"name": name, "data_type": "TYPE_INT64", "dims": [-1]} for name in splits.get(i.name, ())]
    outputs = [
        {"name": name, "data_type": declared(o).config, "dims": [*first, *dims_of(o)]}
        for name, o in manifest.replies().items()
    ]
    return {
        "name": model,
        "platform": PLATFORM,
        "backend": SERVER_NAME,
        "max_batch_size": MAX_BATCH_ROWS if batched else 0,
        "input": inputs,
        "output": outputs,
        "dynamic_batching": {},
        "model_transaction_policy": {"decoupled": False},
        "response_cache": {"enable": False},
    }


def repository_index(models: Iterable[tuple[str, Iterable[VersionStatus]]], ready: bool) -> list[dict[str, str]]:
    """Return Triton's repository index of models and their versions; if `ready`, of those that answer alone."""
    index = []
    for model, versions in models:
        for status in versions:
            state = {AVAILABLE: "READY", LOADING: "LOADING"}.get(status.state, "UNAVAILABLE")
            if state == "READY" or not ready:
                reason = "" if state == "READY" else status.error or ("" if state == "LOADING" else "unloaded")
                index.append({"name": model, "version": str(status.version), "state": state, "reason": reason})
    return index


def signatures(manifest: Manifest) -> dict[str, Any]:
    inputs = {manifest.own_name(i.name): _tensor_info(i.name, declared(i).dt, _dims(i)) for i in manifest.inputs}
    definitions = {}
    for signature in manifest.signatures or [ServingSignature(DEFAULT_SIGNATURE)]:
        outputs = {
            name: _tensor_info(o.name, declared(o).dt, [-1, *dims_of(o)])
            for name, o in manifest.replies(signature.name).items()
        }
        definitions[signature.name] = {"inputs": inputs, "outputs": outputs, "method_name": signature.method}
    return {"signature_def": definitions}


def version_status(versions: Iterable[VersionStatus]) -> dict[str, Any]:
    statuses = [
        {
            "version": str(v.version),
            "state": v.state,
            "status": {"error_code": "UNKNOWN" if v.error else "OK", "error_message": v.error},
        }
        for v in versions
    ]
    return {"model_version_status": statuses}


def _dims(spec: Input) -> list[int]:
    if spec.ragged:
        return [-1, -1]
    return [-1, *row_of(spec)]


def _tensor_info(name: str, dtype: str, dims: list[int]) -> dict[str, Any]:
    shape = {"dim": [{"size": str(d), "name": ""} for d in dims], "unknown_rank": False}
    return {"dtype": dtype, "tensor_shape": shape, "name": name}
