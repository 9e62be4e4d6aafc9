"""A small model for tests that need no TensorFlow: packages on disk, deltas for it, and its scores by plain numpy.

user: id, table "user" (dim 4). tags: ragged strings, mean of the first 3, table "tag" (dim 4). f0..f3: floats packed
in one input. The dense graph is that of tests.processor.backends.artefacts.
"""

from __future__ import annotations

import io
import time
from pathlib import Path

import numpy as np

from freshet_serving.processor.clock import SystemClock
from freshet_serving.processor.columns import Ragged, Strings
from freshet_serving.processor.kernels.hashing import hash_strings
from freshet_serving.processor.package.delta import Delta, TableDelta, stream_delta
from freshet_serving.processor.package.manifest import Manifest
from freshet_serving.processor.package.manifest_entries import ExecutableEntry, Feature, Input, Output, TableEntry
from freshet_serving.processor.repository import DENSE, NO_KEYS, VersionReader, VersionWriter, table_file
from freshet_serving.processor.tables.table import packed
from freshet_serving.processor.versions.replica import Replica
from freshet_serving.processor.versions.served_version import ServedVersion
from tests.processor.backends.artefacts import SHAPES, WIDTH, expected, make_artefact, make_weights

DIM = 4
BUCKETS = (1, 4, 16)


def manifest(version=1, users=0, tags=0, model="small", dtype="float32"):
    features = [
        Feature("user", "id", "user", side="user", table="user", offset=0, width=DIM),
        Feature("tags", "strings", "tags", table="tag", combiner="mean", max_length=3, offset=DIM, width=DIM),
    ]
    features += [
        Feature(f"f{j}", "float", "floats", column=j, log1p=j == 1, mean=0.5, scale=2.0, offset=2 * DIM + j)
        for j in range(4)
    ]
    return Manifest(
        model=model,
        version=version,
        arch="test",
        created_at=time.time(),
        inputs=[Input("user", "int64"), Input("tags", "string", ragged=True), Input("floats", "float32", columns=4)],
        features=features,
        tables=[TableEntry("user", DIM, users, dtype), TableEntry("tag", DIM, tags, dtype, hash_seed=7)],
        outputs=[Output("score")],
        width=WIDTH,
        dense={name: list(shape) for name, shape in SHAPES.items()},
        files={},
        executables=executables(SHAPES),
    )


def executables(weights):
    """Entries of what write_executables() writes, with the names of its weights."""
    return [
        ExecutableEntry("onnxruntime", "cpu", b, f"compiled/onnxruntime-cpu/b{b}.onnx", "test", list(weights))
        for b in BUCKETS
    ]


def write_executables(writer, artefact):
    folder = writer.folder / "compiled" / "onnxruntime-cpu"
    folder.mkdir(parents=True)
    for bucket in BUCKETS:
        (folder / f"b{bucket}.onnx").write_bytes(artefact)


def tag_id(tag):
    return int(hash_strings(Strings.of([tag]), 7)[0])


def row_of(key, tag):
    """The row that content number `tag` gives an id: distinct, small and exact in float32."""
    return ((np.arange(DIM) + 1) * ((key % 97) + 1) / 1024 + tag / 16).astype(np.float32)


def rows_of(keys, tag):
    return np.array([row_of(k, tag) for k in keys], np.float32).reshape(len(keys), DIM)


def write_package(
    repository,
    version=1,
    users=range(20),
    tags=("a", "b", "c"),
    seed=0,
    model="small",
    dtype="float32",
    weights=make_weights,
    artefact=make_artefact,
    keyring=NO_KEYS,
):
    """Commits a version; returns its folder. weights: dense tensors by seed. artefact: its executable's bytes."""
    with VersionWriter(Path(repository), model, version, keyring=keyring) as writer:
        counts = write_contents(writer, users, tags, weights(seed), artefact(), dtype)
        return writer.commit(manifest(version, *counts, model, dtype))


def write_contents(writer, users, tags, weights, artefact, dtype="float32"):
    """Writes rows, dense tensors and executables; returns how many users and tags there are."""
    keys = {"user": np.array(list(users), np.int64), "tag": np.array([tag_id(t) for t in tags], np.int64)}
    for name, table_keys in keys.items():
        writer.tensors(table_file(name), packed(table_keys, rows_of(table_keys, 0), dtype))
    writer.tensors(DENSE, weights)
    write_executables(writer, artefact)
    return len(keys["user"]), len(keys["tag"])


def make_delta(step, users=(), removed=(), tags=(), parent=None, version=1, tag=None, dense_seed=None, **changes):
    """A delta whose rows have content number `tag` (default: the step)."""
    tag = step if tag is None else tag
    tables = {
        "user": TableDelta(np.array(users, np.int64), rows_of(users, tag), np.array(removed, np.int64)),
        "tag": TableDelta(
            np.array([tag_id(t) for t in tags], np.int64),
            rows_of([tag_id(t) for t in tags], tag),
            np.empty(0, np.int64),
        ),
    }
    dense = {} if dense_seed is None else make_weights(dense_seed)
    parent = step - 1 if parent is None else parent
    return Delta("small", version, step, parent, tables, dense, published_at=time.time(), **changes)


def delta_bytes(*arguments, **changes):
    """The file of a delta that make_delta() makes."""
    stream_delta(file := io.BytesIO(), make_delta(*arguments, **changes))
    return file.getvalue()


def make_inputs(users, tags=None, seed=0):
    """Inputs of one request: a row a user."""
    tags = [["a", "zz", "b", "c"][: u % 5] for u in range(len(users))] if tags is None else tags
    floats = np.random.default_rng(seed).standard_normal((len(users), 4)).astype(np.float32)
    return {
        "user": np.array(users, np.int64),
        "tags": Ragged(Strings.of([t for row in tags for t in row]), np.cumsum([0] + [len(r) for r in tags])),
        "floats": floats,
    }


def reference(model_users, model_tags, weights, users, tags, floats):
    """Scores [n] by plain numpy. model_users, model_tags: id -> content number; absent: zeros."""
    x = np.zeros((len(users), WIDTH), np.float32)
    for i, user in enumerate(users):
        if user in model_users:
            x[i, :DIM] = row_of(user, model_users[user])
        chosen = tags[i][:3]
        for t in chosen:
            if tag_id(t) in model_tags:
                x[i, DIM : 2 * DIM] += row_of(tag_id(t), model_tags[tag_id(t)])
        if len(chosen) > 1:
            x[i, DIM : 2 * DIM] /= np.float32(len(chosen))
        values = floats[i].copy()
        values[1] = np.sign(values[1]) * np.log1p(abs(values[1]))
        x[i, 2 * DIM :] = np.where(np.isnan(values), 0, (values - np.float32(0.5)) * np.float32(2.0))
    return expected(x, weights).reshape(-1)


def connect(version):
    """This process as the only reader of a version."""
    return Replica(version.files, version.control, 0, 1, SystemClock())


def open_version(folder, undo_depth=4):
    """A version as its folder has it, without deltas, read by this process."""
    version = ServedVersion(VersionReader(folder), undo_depth, SystemClock())
    version.attach_replicas(connect(version))
    return version
