"""Examples of requests: a recorded one where there is any, else one that is made up of ids that the tables have.

Values are given as JSON text, input by input: an int64 does not survive a browser's numbers.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from processor.columns import Column, Ragged, Strings
from processor.errors import FreshetError
from processor.package.manifest import Input, Manifest
from processor.package.warmup import WARMUP, parse_warmup
from processor.versions.served_version import ServedVersion

MOST_ROWS, MOST_VALUES = 3, 24
MAX_WARMUP_NBYTES = 16 << 20
RECORDED, WARM, MADE_UP = "recorded", "warm-up", "made up"


class ExampleRequests:
    """Examples for one server's models. recordings: the folder of --record, "" for none."""

    def __init__(self, recordings: str = "") -> None:
        self._recordings = recordings

    def signature(self, version: ServedVersion) -> dict[str, Any]:
        """What a version takes and gives, JSON-able, with an example."""
        manifest = version.manifest
        source, example = self._example(version)
        features: dict[str, list[dict[str, str]]] = {}
        for feature in manifest.features:
            told = {"name": feature.name, "kind": feature.kind, "table": feature.table}
            features.setdefault(feature.input, []).append(told)
        return {
            "model": manifest.model,
            "version": manifest.version,
            "generation": str(version.generation),
            "source": source,
            "inputs": [
                {
                    "name": spec.name,
                    "dtype": spec.dtype,
                    "columns": spec.columns,
                    "ragged": spec.ragged,
                    "features": features.get(spec.name, [])[:64],
                    "example": _text(example[spec.name], spec),
                }
                for spec in manifest.inputs
            ],
            "outputs": [{"name": output.name, "columns": output.columns} for output in manifest.outputs],
        }

    def _example(self, version: ServedVersion) -> tuple[str, dict[str, Column]]:
        for source, found in ((RECORDED, self._recorded), (WARM, _warm)):
            # What cannot be read is an example less.
            with contextlib.suppress(FreshetError, OSError, ImportError, ValueError, KeyError):
                if (example := found(version)) is not None:
                    return source, example
        return MADE_UP, _made_up(version)

    def _recorded(self, version: ServedVersion) -> dict[str, Column] | None:
        """The first request of the newest file of the model's."""
        manifest = version.manifest
        if not self._recordings:
            return None
        files = [path for path in Path(self._recordings).glob("*.parquet") if path.name.startswith(manifest.model)]
        if not files:
            return None
        from serving.telemetry.recorder import read_requests

        newest = max(files, key=lambda path: path.stat().st_mtime_ns)
        return read_requests(str(newest), manifest.model, manifest.inputs, 1)[0]


def _warm(version: ServedVersion) -> dict[str, Column] | None:
    manifest = version.manifest
    entry = manifest.files.get(WARMUP)
    if entry is None or entry.nbytes > MAX_WARMUP_NBYTES:
        return None
    return parse_warmup(version.files.file(WARMUP), manifest.inputs)[0]


def _made_up(version: ServedVersion) -> dict[str, Column]:
    return {spec.name: _made_up_input(spec, version) for spec in version.manifest.inputs}


def _made_up_input(spec: Input, version: ServedVersion) -> Column:
    columns = spec.columns or 1
    if spec.ragged:
        splits = np.arange(0, 2 * MOST_ROWS + 1, 2, dtype=np.int64)
        values = Strings.of(["a", "b"] * MOST_ROWS) if spec.dtype == "string" else _ids(spec, 0, version, 2 * MOST_ROWS)
        return Ragged(values, splits)
    if spec.dtype == "string":
        return Strings.of([f"example-{n}" for n in range(MOST_ROWS * columns)])
    if spec.dtype == "float32":
        values = np.full((MOST_ROWS, columns), 0.5, np.float32)
    else:
        values = np.stack([_ids(spec, column, version, MOST_ROWS) for column in range(columns)], axis=1)
    return values if spec.columns else values[:, 0]


def _ids(spec: Input, column: int, version: ServedVersion, count: int) -> np.ndarray[Any, Any]:
    """Ids that have a row, where the input's column is looked up as it is; else the first numbers."""
    table = _table(version.manifest, spec, column)
    known = version.tables[table].some_keys(count) if table else np.empty(0, np.int64)
    return np.resize(known, count) if len(known) else np.arange(1, count + 1, dtype=np.int64)


def _table(manifest: Manifest, spec: Input, column: int) -> str:
    wanted = (-1, column) if spec.columns else (-1,)
    for feature in manifest.features:
        if feature.input == spec.name and feature.column in wanted and feature.kind in ("id", "ids"):
            return feature.table
    return ""


def _text(column: Column, spec: Input) -> str:
    """The first rows of a column, as a predict request would have them."""
    if isinstance(column, Ragged):
        ends = column.row_splits[: MOST_ROWS + 1].tolist()
        flat = column.values.tolist()
        rows: list[Any] = [_readable(flat[a:b][:MOST_VALUES]) for a, b in zip(ends, ends[1:])]
    elif isinstance(column, Strings):
        width, strings = spec.columns or 1, _readable(column.tolist()[: MOST_ROWS * (spec.columns or 1)])
        rows = strings if not spec.columns else [strings[n : n + width] for n in range(0, len(strings), width)]
    else:
        rows = np.asarray(column)[:MOST_ROWS].tolist()
    if spec.dtype == "float32":
        rows = [[_short(v) for v in row] if isinstance(row, list) else _short(row) for row in rows]
    return orjson.dumps(rows).decode()


def _readable(values: list[Any]) -> list[Any]:
    """Strings as JSON has them; those that are no text as base64."""
    return [_letters(value) if isinstance(value, bytes) else value for value in values]


def _letters(value: bytes) -> Any:
    try:
        return value.decode()
    except UnicodeDecodeError:
        import base64

        return {"b64": base64.b64encode(value).decode()}


def _short(value: float) -> float:
    """A float32 by the digits that it has."""
    return float(np.format_float_positional(np.float32(value), unique=True)) if np.isfinite(value) else 0.0
