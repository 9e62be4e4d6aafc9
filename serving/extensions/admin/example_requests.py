"""Find an example request for a model version.

In order of preference: a recorded request, a recent one (from the rows that the guard keeps), one from the version's
warm-up file, one generated from ids that the tables have.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from freshet_serving.processor.columns import Column, Ragged, Strings
from freshet_serving.processor.errors import BadInput, FreshetError
from freshet_serving.processor.package import Input, Manifest
from freshet_serving.processor.repository import WARMUP, parse_warmup
from freshet_serving.processor.versions.served_version import ServedVersion
from freshet_serving.serving.extensions.admin.item_features import ranked_items
from freshet_serving.serving.front.example_text import MOST_ROWS, texts
from freshet_serving.serving.ports import SERVER

MAX_WARMUP_NBYTES = 16 << 20
MAX_RECORDINGS = 16
RECORDED, ASKED, WARM, MADE_UP = "recorded", "asked lately", "warm-up", "made up"


class ExampleRequests:
    """Examples for one server's models; `recordings` is the folder of --record, "" for none."""

    def __init__(self, recordings: str = "") -> None:
        self._recordings = recordings

    def signature(self, version: ServedVersion) -> dict[str, Any]:
        """Return a version's inputs and outputs as a JSON-compatible object; an example too long to show is ""."""
        manifest = version.manifest
        source, example = self._example(version)
        ranks = ranked_items(manifest)
        features: dict[str, list[dict[str, str]]] = {}
        for feature in manifest.features:
            described = {"name": feature.name, "kind": feature.kind, "table": feature.table}
            features.setdefault(feature.input, []).append(described)
        inputs: list[dict[str, Any]] = [
            {
                "name": spec.name,
                "dtype": spec.dtype,
                "columns": spec.columns,
                "ragged": spec.ragged,
                "features": features.get(spec.name, [])[:64],
                "example": example.get(spec.name, ""),
            }
            for spec in manifest.read_inputs
        ]
        if ranks is not None:
            # A list is one user's.
            ranks["inputs"] = [{**i, "example": _first(i["example"])} for i in inputs if i["name"] in ranks["inputs"]]
        return {
            "model": manifest.model,
            "version": manifest.version,
            "generation": str(version.generation),
            "source": source,
            "inputs": inputs,
            "outputs": [{"name": output.name, "columns": output.columns} for output in manifest.outputs],
            "ranks": ranks,
        }

    def _example(self, version: ServedVersion) -> tuple[str, dict[str, str]]:
        """Return the example's source, and each input as JSON text; those are left out that are too long to show."""
        inputs, filled = version.manifest.read_inputs, version.manifest.filled
        made_up = {i.name: _made_up_input(i, version) for i in inputs}
        # What the server looks up of a person is shown to nobody who asks for an example.
        hidden = {name: made_up[name] for name in filled if name in made_up}
        for source, find in ((RECORDED, self._recorded), (ASKED, _asked), (WARM, _warm)):
            # An unreadable source is skipped.
            with contextlib.suppress(FreshetError, OSError, ImportError, ValueError, KeyError):
                if (example := find(version)) is not None and (
                    # A request may leave out what the server fills: records of entities, and keys that are not read.
                    shown := texts({**made_up, **example, **hidden}, inputs)
                ):
                    return source, shown
        return MADE_UP, texts(made_up, inputs)

    def _recorded(self, version: ServedVersion) -> dict[str, Column] | None:
        """Return the first request of the model's newest recording."""
        read = SERVER.get("recordings", "read")
        if not self._recordings or read is None:
            return None
        manifest = version.manifest
        # Names of other models may begin alike: read() knows whose a file is.
        files = Path(self._recordings).glob(f"{manifest.model}-*.parquet")
        for path in sorted(files, key=lambda path: path.stat().st_mtime_ns, reverse=True)[:MAX_RECORDINGS]:
            with contextlib.suppress(BadInput):
                inputs: dict[str, Column] = read(str(path), manifest.model, manifest.inputs, 1)[0]
                return inputs
        return None


def _first(example: str) -> str:
    return orjson.dumps(orjson.loads(example)[:1]).decode() if example else ""


def _asked(version: ServedVersion) -> Mapping[str, Column | str] | None:
    return version.replicas.example()


def _warm(version: ServedVersion) -> dict[str, Column] | None:
    manifest = version.manifest
    entry = manifest.files.get(WARMUP)
    if entry is None or entry.nbytes > MAX_WARMUP_NBYTES:
        return None
    return parse_warmup(version.files.file(WARMUP), manifest.inputs)[0]


def _made_up_input(spec: Input, version: ServedVersion) -> Column:
    columns = spec.columns or 1
    if spec.ragged:
        splits = np.arange(0, 2 * MOST_ROWS + 1, 2, dtype=np.int64)
        if spec.dtype == "float32":
            return Ragged(np.full(2 * MOST_ROWS, 0.5, np.float32), splits)
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
    """Return ids that have a row if the input's column is looked up unchanged; else the first numbers."""
    table = _table(version.manifest, spec, column)
    keys = version.tables[table].some_keys(count) if table else np.empty(0, np.int64)
    return np.resize(keys, count) if len(keys) else np.arange(1, count + 1, dtype=np.int64)


def _table(manifest: Manifest, spec: Input, column: int) -> str:
    places = (-1, column) if spec.columns else (-1,)
    for feature in manifest.features:
        if feature.input == spec.name and feature.column in places and feature.kind in ("id", "ids"):
            return feature.table
    return ""
