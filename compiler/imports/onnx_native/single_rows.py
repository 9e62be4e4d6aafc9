"""Find the inputs of a stage that may have one row beside the many of the others, and say so in its graph.

A request sends a user's lists once for all candidates. A graph that only adds, multiplies or attends may take them as
they are, because its operators broadcast; one that joins them to the candidates' columns may not, and gets a copy for
each row. Which it is, is tried: with each input alone, then with all that passed, on random values, in two shapes. The
results must be those of copies.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import onnx

from freshet_serving.compiler.imports.onnx_native.onnx_stage import SEPARATOR, SINGLE_KEY, OnnxStage
from freshet_serving.processor.columns import Column, Strings, join_columns
from freshet_serving.processor.errors import FreshetError
from freshet_serving.processor.features.growth_meter import fed_shape
from freshet_serving.processor.features.input_reader import shaped
from freshet_serving.processor.package import Input, Manifest

SHAPES = ((3, 4), (5, 2))
"""Rows and lengths to try."""
IDS = 3
CLOSE = 1e-5


def with_single_rows(manifest: Manifest, data: bytes) -> bytes:
    """Return a stage's bytes, with the names of the inputs that may have one row; it is the stage of the manifest."""
    spec = manifest.stage
    assert spec is not None, "the manifest has a stage"
    stage = OnnxStage(data, manifest.inputs, spec.outputs, spec.lookups)
    names = [name for name in stage.reads if _alike(manifest, stage, {name})]
    # One input keeps its rows, so that there are rows to broadcast to.
    last = set(names[:1]) if set(names) == set(stage.reads) else set()
    if not names or (len(names) > 1 and not _alike(manifest, stage, set(names) - last)):
        return data
    model = onnx.load_from_string(data)
    model.metadata_props.add(key=SINGLE_KEY, value=SEPARATOR.join(names))
    return bytes(model.SerializeToString(deterministic=True))


def without_marks(data: bytes) -> bytes:
    model = onnx.load_from_string(data)
    others = [entry for entry in model.metadata_props if entry.key != SINGLE_KEY]
    del model.metadata_props[:]
    model.metadata_props.extend(others)
    return bytes(model.SerializeToString(deterministic=True))


def _alike(manifest: Manifest, stage: OnnxStage, single: Collection[str]) -> bool:
    """Report whether one row of these inputs gives what copies of it give."""
    if set(single) == set(stage.reads):
        return False
    random = np.random.default_rng(0)
    for rows, length in SHAPES:
        inputs: dict[str, Column] = {}
        for spec in manifest.inputs:
            inputs[spec.name] = _column(spec, 1 if spec.name in single else rows, length, random)
        copies = {name: join_columns([c] * rows) if name in single else c for name, c in inputs.items()}
        looked_up = _rows(manifest, rows, length, single, random)
        try:
            expected = stage.run(copies, rows, looked_up)
            got = stage.run(inputs, rows, looked_up, single=frozenset(single))
        except FreshetError:
            return False
        for name, values in expected.items():
            if not np.allclose(np.asarray(got[name]), np.asarray(values), CLOSE, CLOSE, equal_nan=True):
                return False
    return True


def _column(spec: Input, rows: int, length: int, random: np.random.Generator) -> Column:
    count = rows * (length if spec.ragged else spec.columns or 1)
    values: Any = random.integers(0, IDS, count)
    if spec.dtype == "string":
        values = Strings.of([str(value) for value in values.tolist()])
    elif spec.dtype == "float32":
        values = random.standard_normal(count).astype(np.float32)
    return shaped(spec, values, rows, length)


def _rows(
    manifest: Manifest, rows: int, length: int, single: Collection[str], random: np.random.Generator
) -> Mapping[str, Any]:
    """Return random values of all that the stage looks up; rows are the same for each copy of an input of one row."""
    looked_up = {}
    for lookup in manifest.stage_lookups:
        count = rows if lookup.whole or lookup.input not in single else 1
        values = random.standard_normal(fed_shape(manifest, lookup, count, length)).astype(np.float32)
        # A weight above 0, as a variance has to be: results that are no numbers would all be alike.
        looked_up[lookup.name] = np.abs(values) if lookup.whole else np.tile(values, (rows // count, 1))
    return looked_up
