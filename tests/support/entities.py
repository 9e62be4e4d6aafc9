"""The small model of tests.support.packages with an entity: the key `user` leads to tags and floats."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from freshet_serving.models.publishing.entity_rows import entity_rows
from freshet_serving.processor.package import RECORD, EntityEntry, Manifest, TableEntry, record_layout
from freshet_serving.processor.repository import NO_KEYS, VersionWriter, table_file
from freshet_serving.processor.tables.table import packed
from tests.processor.backends.artefacts import make_artefact, make_weights
from tests.support import packages

ENTITY = EntityEntry("profile", "user", ["tags", "floats"], {"tags": 3})
TABLE = ENTITY.table
KNOWN = range(8)
WORDS = ["a", "b", "c", "zz"]


def manifest(version=1, users=0, tags=0, records=0, entity=ENTITY, model="small") -> Manifest:
    small = replace(packages.manifest(version, users, tags, model), entities=[entity])
    words = record_layout(small, entity).words
    return replace(small, tables=[*small.tables, TableEntry(TABLE, words, records, RECORD)])


def columns(users, content=0):
    """Columns of users: what content number `content` gives each."""
    tags, floats = [], []
    for user in users:
        random = np.random.default_rng((content, int(user)))
        tags.append([WORDS[n] for n in random.integers(0, 4, random.integers(0, 5))])
        floats.append(random.normal(size=4))
    return {"tags": tags, "floats": np.array(floats, np.float32).reshape(len(tags), 4)}


def sent(users, contents):
    """A request with every column: of content number contents[user], or missing without one."""
    rows = [columns([u], contents[u]) if u in contents else None for u in users]
    tags = [[] if row is None else row["tags"][0] for row in rows]
    floats = [np.full(4, np.nan) if row is None else row["floats"][0] for row in rows]
    inputs = packages.make_inputs(users, tags)
    return inputs | {"floats": np.array(floats, np.float32).reshape(len(rows), 4)}


def write_package(
    repository, version=1, users=range(20), tags=("a", "b", "c"), keyring=NO_KEYS, entity=ENTITY, model="small"
):
    """Commits a version; returns its folder."""
    with VersionWriter(Path(repository), model, version, keyring=keyring) as writer:
        counts = packages.write_contents(writer, users, tags, make_weights(0), make_artefact())
        described = manifest(version, *counts, len(KNOWN), entity, model)
        inputs = {name: column for name, column in columns(KNOWN).items() if name in entity.inputs}
        records = entity_rows(described, entity, inputs, len(KNOWN))
        writer.tensors(table_file(TABLE), packed(np.array(KNOWN), records, RECORD))
        return writer.commit(described)
