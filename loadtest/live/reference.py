"""The scores that a package must give for some rows, computed anew in numpy from its files.

Written against the files alone, so that a mistake of the engine cannot repeat itself here: model.json for the
layout, tables/<table>.safetensors and dense.safetensors for the weights, deltas one after another. It knows
the DeepFM network and features of one id or one float; that is what `freshet bench model` writes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open

Matrix = NDArray[np.float32]


class Reference:
    """Scores of fixed rows as of one generation; apply() moves it to the next.

    folder: a version's folder. inputs: name -> [rows] or [rows, columns]. scores: float32 [rows].
    Only the rows' own embeddings are kept, so a table of any size costs one reading of it.
    Raises ValueError for a package of another kind.
    """

    def __init__(self, folder: Path, inputs: Mapping[str, NDArray[Any]]) -> None:
        manifest = json.loads((folder / "model.json").read_bytes())
        if manifest["arch"] != "deepfm":
            raise ValueError(f"arch: 'deepfm' wanted, got {manifest['arch'][:40]!r}")
        self.version, self.step = int(manifest["version"]), 0
        self._dense = _tensors(folder / "dense.safetensors")
        self._embeddings: list[tuple[str, str, int, int]] = []  # feature, table, offset, width
        self._ids: list[NDArray[np.int64]] = []
        self._defaults = {
            t["name"]: np.asarray(t["default"] or [0.0] * t["dim"], np.float32) for t in manifest["tables"]
        }
        rows = len(next(iter(inputs.values())))
        self._x = np.zeros((rows, manifest["width"]), np.float32)
        for feature in manifest["features"]:
            values = inputs[feature["input"]]
            values = values[:, feature["column"]] if feature["column"] >= 0 else values
            offset = feature["offset"]
            if feature["kind"] == "float":
                self._x[:, offset] = _transformed(values, feature)
            elif feature["kind"] == "id":
                self._embeddings.append((feature["name"], feature["table"], offset, feature["width"]))
                self._ids.append(np.asarray(values, np.int64))
            else:
                raise ValueError(f"feature {feature['name']!r}: kind id or float wanted")
        for table in {e[1] for e in self._embeddings}:
            tensors = _tensors(folder / "tables" / f"{table}.safetensors", ("keys", "rows"))
            self._replace(table, tensors["keys"], tensors["rows"], missing=self._defaults[table])
        self.scores = self._score(self._x)

    def apply(self, path: Path) -> None:
        """Applies the next delta of the chain; raises ValueError when it is not the next."""
        with safe_open(path, "numpy") as file:
            metadata = file.metadata()
        if (int(metadata["version"]), int(metadata["parent_step"])) != (self.version, self.step):
            raise ValueError(f"delta {metadata['step']}: one on {self.version}.{self.step} wanted")
        tensors = _tensors(path)
        changed = np.zeros(len(self._x), bool)
        for table in {name.split("/")[1] for name in tensors if name.startswith("tables/")}:
            keys, rows, removed = (tensors[f"tables/{table}/{part}"] for part in ("keys", "rows", "removed"))
            changed |= self._replace(table, keys, rows)
            gone = np.broadcast_to(self._defaults[table], (len(removed), len(self._defaults[table])))
            changed |= self._replace(table, removed, gone)
        dense = {n.removeprefix("dense/"): a for n, a in tensors.items() if n.startswith("dense/")}
        if dense:
            self._dense |= dense
            changed[:] = True
        self.scores = self.scores.copy()
        self.scores[changed] = self._score(self._x[changed])
        self.step = int(metadata["step"])

    def _replace(
        self, table: str, keys: NDArray[np.int64], rows: Matrix, missing: Matrix | None = None
    ) -> NDArray[np.bool_]:
        """Writes the embeddings of `keys` wherever they occur in x; returns which rows of x that touched.
        missing: what ids that are not among the keys get; None leaves theirs as they are."""
        touched = np.zeros(len(self._x), bool)
        order = np.argsort(keys, kind="stable")
        for (_, owner, offset, width), ids in zip(self._embeddings, self._ids):
            if owner != table:
                continue
            part = self._x[:, offset : offset + width]
            if missing is not None:
                part[:] = missing
            if len(keys):
                at = order[np.minimum(np.searchsorted(keys, ids, sorter=order), len(keys) - 1)]
                found = keys[at] == ids
                part[found] = rows[at[found]]
                touched |= found
        return touched

    def _score(self, x: Matrix) -> Matrix:
        """x [n, width] -> [n]: sigmoid of linear + inner products of all pairs of embeddings + MLP."""
        w = self._dense
        logit = x @ w["linear/kernel"] + w["linear/bias"]
        hidden, layer = x, 0
        while f"mlp_{layer}/kernel" in w:
            hidden = np.maximum(hidden @ w[f"mlp_{layer}/kernel"] + w[f"mlp_{layer}/bias"], 0.0)
            layer += 1
        logit = logit + hidden @ w["mlp_out/kernel"]
        if len(self._embeddings) > 1:
            vectors = []
            for name, _, offset, width in self._embeddings:
                vector = x[:, offset : offset + width]
                projection = w.get(f"project_{name}/kernel")
                vectors.append(vector if projection is None else vector @ projection)
            total = np.sum(vectors, axis=0)
            squares = np.sum([v * v for v in vectors], axis=0)
            logit = logit + 0.5 * np.sum(total * total - squares, axis=1, keepdims=True)
        scores: Matrix = 1.0 / (1.0 + np.exp(-logit[:, 0]))
        return scores.astype(np.float32)


def delta_keys(path: Path) -> dict[str, NDArray[np.int64]]:
    """Table -> the ids whose rows a delta file changes."""
    with safe_open(path, "numpy") as file:
        names = [name for name in file.keys() if name.startswith("tables/") and name.endswith("/keys")]  # noqa: SIM118
        return {name.split("/")[1]: file.get_tensor(name) for name in names}


def _tensors(path: Path, names: tuple[str, ...] = ()) -> dict[str, NDArray[Any]]:
    with safe_open(path, "numpy") as file:
        return {name: file.get_tensor(name) for name in names or file.keys()}


def _transformed(values: NDArray[np.float32], feature: Mapping[str, Any]) -> Matrix:
    """A float feature as the manifest says: signed log1p if asked, standardised, 0 where missing."""
    y = np.asarray(values, np.float32)
    if feature["log1p"]:
        y = np.sign(y) * np.log1p(np.abs(y))
    y = (y - np.float32(feature["mean"])) * np.float32(feature["scale"])
    return np.where(np.isnan(values), np.float32(0.0), y).astype(np.float32)
