"""Check replies against the generations that they name, from the files of a version alone.

Written against the files and not against the engine, so that a mistake of the engine cannot repeat itself here: the
model of tests.support.entities, whose tables, records, dense weights and deltas are read with safetensors' own library.
A record of its entity has twelve words: the number of tags and room for three hashes, 64 bits each, then four floats.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors import safe_open

USER, TAG, PROFILE = "user", "tag", "entities.profile"
DIM, TAGS, FLOATS = 4, 3, 4
TOLERANCE = 1e-5


@dataclass(frozen=True)
class Contents:
    """What one generation holds: rows by table and key, and the dense weights."""

    tables: dict
    dense: dict


def read_delta(path):
    """(parent's step, tensors) of a delta's file."""
    with safe_open(path, "numpy") as file:
        return int(file.metadata()["parent_step"]), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def _tensors(path):
    with safe_open(path, "numpy") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


class GenerationChecker:
    """Expected scores of requests of keys alone, by generation. Not thread-safe."""

    def __init__(self, folder, requests):
        """folder: the version's. requests: the users of each request."""
        self._folder, self._requests = Path(folder), requests
        tables = {}
        for name in (USER, TAG, PROFILE):
            file = _tensors(self._folder / "tables" / f"{name}.safetensors")
            tables[name] = dict(zip(file["keys"].tolist(), file["rows"]))
        self._contents = {0: Contents(tables, _tensors(self._folder / "dense.safetensors"))}
        self._scores = {}

    def contents(self, step):
        """Contents of a step; reads its delta and those that it stands on, which no rollback takes away."""
        missing = []
        while step not in self._contents:
            parent, tensors = read_delta(self._folder / "deltas" / f"{step}.safetensors")
            missing.append((step, parent, tensors))
            step = parent
        for at, parent, tensors in reversed(missing):
            self._contents[at] = _applied(self._contents[parent], tensors)
        return self._contents[missing[0][0] if missing else step]

    def expected(self, step, request):
        """Scores of a request under a step."""
        if step not in self._scores:
            contents = self.contents(step)
            self._scores[step] = [_scores(contents, users) for users in self._requests]
        return self._scores[step][request]

    def problem(self, generation, request, scores):
        """What is wrong with scores, and which generations have them; "" if the named one has them."""
        step = int(generation.partition(".")[2])
        if _same(scores, self.expected(step, request)):
            return ""
        others = [other for other in self._scores if _same(scores, self.expected(other, request))]
        return f"request {request}: a reply that names {generation} has the scores of {others or 'no generation'}"


def _same(scores, expected):
    return len(scores) == len(expected) and np.allclose(scores, expected, rtol=0, atol=TOLERANCE)


def _applied(before, tensors):
    tables = dict(before.tables)
    for name in {key.split("/")[1] for key in tensors if key.startswith("tables/")}:
        rows = dict(tables[name])
        rows.update(zip(tensors[f"tables/{name}/keys"].tolist(), tensors[f"tables/{name}/rows"]))
        for key in tensors[f"tables/{name}/removed"].tolist():
            rows.pop(key, None)
        tables[name] = rows
    dense = {name.removeprefix("dense/"): value for name, value in tensors.items() if name.startswith("dense/")}
    return Contents(tables, {**before.dense, **dense})


def _scores(contents, users):
    nothing = np.zeros(DIM, np.float32)
    x = np.zeros((len(users), 2 * DIM + FLOATS), np.float32)
    for row, user in zip(x, users):
        row[:DIM] = contents.tables[USER].get(user, nothing)
        record = contents.tables[PROFILE].get(user)
        if record is None:
            continue
        count, *tags = np.ascontiguousarray(record[: 2 + 2 * TAGS]).view(np.int64).tolist()
        if count:
            row[DIM : 2 * DIM] = sum((contents.tables[TAG].get(tag, nothing) for tag in tags[:count]), nothing) / count
        floats = np.ascontiguousarray(record[2 + 2 * TAGS :]).view(np.float32).copy()
        floats[1] = np.sign(floats[1]) * np.log1p(abs(floats[1]))
        row[2 * DIM :] = (floats - np.float32(0.5)) * np.float32(2.0)
    w = contents.dense
    logit = np.maximum(x @ w["mlp_0/kernel"] + w["mlp_0/bias"], 0) @ w["mlp_out/kernel"]
    return (1 / (1 + np.exp(-logit[:, 0]))).astype(np.float32)
