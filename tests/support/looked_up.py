"""The small model of tests.support.packages with a user's features in an online store.

user: the item's id, always sent. tags, f0 and f1: filled by the key user_id, which the model does not read. f2 and f3:
always sent.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from freshet_serving.processor.extensions.online_features.group_sections import parse_group
from freshet_serving.processor.extensions.online_features.section import ONLINE_FEATURES
from freshet_serving.processor.package.manifest_entries import Input
from freshet_serving.processor.repository.version_writer import VersionWriter
from tests.processor.backends.artefacts import make_artefact, make_weights
from tests.support import packages

HASHES = {
    "key": "user_id",
    "format": "hash",
    "features": ["tags", "f0", "f1"],
    "types": {"tags": "string_list", "f0": "double", "f1": "int64"},
    "timeout_ms": 400,
}
FEAST = {
    "key": "user_id",
    "project": "shop",
    "features": ["profile:tags", "profile:f0", "profile:f1"],
    "types": {"profile:tags": "string_list", "profile:f0": "double", "profile:f1": "int64"},
    "timeout_ms": 400,
}
FILLED, SENT = ("tags", "f0", "f1"), ("user", "f2", "f3")


def manifest(version=1, users=0, tags=0, model="small", section=HASHES, sections=None):
    small = packages.manifest(version, users, tags, model)
    features = [replace(f, input=f.name, column=-1) if f.kind == "float" else f for f in small.features]
    inputs = [*small.inputs[:2], *(Input(f"f{j}", "float32") for j in range(4)), Input("user_id", "int64")]
    sections = {ONLINE_FEATURES: [parse_group("user", section)]} if sections is None else sections
    return replace(small, inputs=inputs, features=features, sections=sections)


def write_package(repository, version=1, users=range(20), tags=("a", "b", "c"), section=HASHES, sections=None):
    """Commits a version; returns its folder."""
    with VersionWriter(Path(repository), "small", version) as writer:
        counts = packages.write_contents(writer, users, tags, make_weights(0), make_artefact())
        return writer.commit(manifest(version, *counts, section=section, sections=sections))


def reference(items, f2, f3, tags=(), f0=np.nan, f1=np.nan):
    """Scores [n] of one user by plain numpy; what is not given is missing, as in training."""
    n = len(items)
    floats = np.array([[f0, f1, a, b] for a, b in zip(f2, f3)], np.float32)
    rows_of_users, rows_of_tags = dict.fromkeys(range(20), 0), {packages.tag_id(t): 0 for t in ("a", "b", "c")}
    return packages.reference(rows_of_users, rows_of_tags, make_weights(0), items, [list(tags)] * n, floats)
