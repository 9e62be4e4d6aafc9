"""Explained rows pooled by plain numpy: what the dense graph was fed, without a kernel of ours."""

from __future__ import annotations

import numpy as np

from freshet_serving.processor.package import undivided_name
from freshet_serving.processor.package.subgraphs import subgraphs
from freshet_serving.processor.running.given_rows import outputs_of
from freshet_serving.processor.running.opening import io_spec, open_programs


def fed_by_hand(manifest, inputs):
    """The dense graph's input, float32 [width], from the `inputs` of one side of an explanation with its vectors."""
    x = np.full(manifest.width, np.nan, np.float32)
    for f in manifest.features:
        explained = inputs[f.name]
        assert explained["kind"] == f.kind
        x[f.offset : f.offset + f.width] = _columns(f, explained)
    assert not np.isnan(x).any()
    return x


def _columns(f, explained):
    if f.kind == "float":
        value = np.float32(np.nan if explained["value"] is None else explained["value"])
        if f.log1p:
            value = np.sign(value) * np.log1p(abs(value))
        return np.nan_to_num((np.float32(value) - np.float32(f.mean)) * np.float32(f.scale), nan=0.0)
    if f.kind == "floats":
        return np.array(explained["fed"], np.float32)
    rows = np.array([each["vector"] for each in explained["ids"]], np.float32).reshape(-1, explained["dim"])
    for each, row in zip(explained["ids"], rows):
        np.testing.assert_allclose(each["norm"], np.sqrt((row.astype(np.float64) ** 2).sum()), rtol=1e-5)
    rows = rows.reshape(-1, explained.get("codes", 1), explained["dim"]).sum(axis=1)
    if f.combiner == "none":
        out, mask = np.zeros((f.max_length, explained["dim"]), np.float32), np.zeros(f.max_length, np.float32)
        out[: len(rows)], mask[: len(rows)] = rows, 1
        return np.concatenate([out.reshape(-1), mask])
    share = {"sum": 1, "mean": max(1, len(rows)), "sqrtn": np.sqrt(max(1, len(rows)))}[f.combiner]
    return (rows.sum(axis=0) / np.float32(share)).astype(np.float32)


def scores_by_hand(version, dense, side):
    """Outputs by name, float32 [columns], of one side of an explanation: its rows by plain numpy, then an executable of
    the version's files, with these dense weights."""
    manifest = version.manifest
    name, executables = undivided_name(manifest), {}
    spec = io_spec(name, subgraphs(manifest)[name])
    for program in open_programs(version, spec, subgraph=name).programs:
        executables |= program.with_weights(dense)
    x = fed_by_hand(manifest, side["inputs"])
    # Of a version in two parts, buckets of candidates are others.
    bucket = side["executable"]["bucket"]
    scores = outputs_of(executables.get(bucket) or executables[max(executables)], {"x": x[None]}, spec)
    return {name: values[0] for name, values in scores.items()}
