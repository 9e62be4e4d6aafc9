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
    """Return a stage's bytes, with the names of the inputs that may have one row.

    Args:
        manifest: The manifest of the version that is being written; its stage is this one.
        data: The stage's bytes.
    """
    spec = manifest.stage
    assert spec is not None, "the manifest has a stage"
    stage = OnnxStage(data, manifest.inputs, spec.outputs, spec.lookups)
    names = [name for name in stage.reads if _alike(manifest, stage, {name})]
    if not names or (len(names) > 1 and not _alike(manifest, stage, set(names) - {_last(stage, names)})):
        return data
    model = onnx.load_from_string(data)
    model.metadata_props.add(key=SINGLE_KEY, value=SEPARATOR.join(names))
    marked: bytes = model.SerializeToString(deterministic=True)
    return marked


def without_marks(data: bytes) -> bytes:
    """Return a stage's bytes without the names of the inputs that may have one row.

    Args:
        data: The stage's bytes, marked or not.
    """
    model = onnx.load_from_string(data)
    others = [entry for entry in model.metadata_props if entry.key != SINGLE_KEY]
    del model.metadata_props[:]
    model.metadata_props.extend(others)
    plain: bytes = model.SerializeToString(deterministic=True)
    return plain


def _last(stage: OnnxStage, names: Collection[str]) -> str:
    """Return an input that keeps its rows, so that there are rows to broadcast to; "" if one is left already."""
    return next(iter(names)) if set(names) == set(stage.reads) else ""


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
        found = _rows(manifest, rows, length, single, random)
        try:
            wanted = stage.run(copies, rows, found)
            got = stage.run(inputs, rows, found, single=frozenset(single))
        except FreshetError:
            return False
        for name, values in wanted.items():
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
    for one in manifest.stage_lookups:
        own = rows if one.whole or one.input not in single else 1
        values = random.standard_normal(fed_shape(manifest, one, own, length)).astype(np.float32)
        # A weight above 0, as a variance has to be: results that are no numbers would all be alike.
        looked_up[one.name] = np.abs(values) if one.whole else np.tile(values, (rows // own, 1))
    return looked_up
