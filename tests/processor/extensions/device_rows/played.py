"""A version on a played GPU, and the same version on the processor."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from freshet_serving.processor.columns import Ragged, Strings
from freshet_serving.processor.features.entity_records import make_records
from freshet_serving.processor.package import RECORD, EntityEntry, TableEntry, record_layout
from freshet_serving.processor.package.delta import Delta, TableDelta
from freshet_serving.processor.package.manifest_entries import File
from freshet_serving.processor.package.tensors import crc32, write_tensors
from freshet_serving.processor.repository.version import MANIFEST, VersionReader, table_file
from freshet_serving.processor.tables.table import packed
from tests.corpus.entry import FROZEN, read_entry
from tests.gpu.package import ELSEWHERE, folder_of, relist

MODEL = "clicks"
ENTITIES = [
    EntityEntry("profile", "user", ["city", "history", "age"], {"history": 5}),
    EntityEntry("goods", "item", ["tags", "price"], {"tags": 3}),
]
RECORDS = 30
"""Keys that have a record."""


def repositories(folder: Path) -> tuple[Path, Path]:
    """A repository whose version a GPU runs, and one whose version the processor does."""
    entry, made = read_entry(FROZEN / "xla"), []
    for name, target in (("device", "cuda-sm_90"), ("host", "")):
        repository = folder / name
        version = folder_of(entry.lay_out(repository, entry.moments[0]), MODEL)
        executables = VersionReader(version).manifest.executables
        # The corpus has no machine code: it is compiled from the portable form.
        anew = {"features": [], "library": ELSEWHERE, "sha256": ""}
        relist(version, [replace(e, target=target or e.target, file=e.origin, **anew) for e in executables])
        made.append(repository)
    return made[0], made[1]


def request(random: np.random.Generator, rows: int, users: int = 1) -> dict:
    """Inputs of one request, some ids of which have no row."""
    counts = random.integers(0, 9, users)
    tags = random.integers(0, 5, rows)
    return {
        "user": random.integers(0, 70, users),
        "item": random.integers(0, 50, rows),
        "city": Strings.of([f"city-{random.integers(0, 8)}" for _ in range(users)]),
        "history": Ragged(random.integers(0, 50, counts.sum()), np.cumsum([0, *counts])),
        "tags": Ragged(
            Strings.of([str(random.choice(["new", "sale", "gone"])) for _ in range(tags.sum())]), np.cumsum([0, *tags])
        ),
        "price": random.normal(size=rows).astype(np.float32),
        "age": random.normal(size=users).astype(np.float32),
    }


def delta(random: np.random.Generator, manifest, step: int, dense=None, parent=None) -> Delta:
    """Some rows of every table, one removed, and dense weights if given; on the step before, or on `parent`."""
    tables = {}
    for table in manifest.tables:
        keys = random.permutation(60)[: random.integers(1, 12)].astype(np.int64)
        if table.dtype == RECORD:
            entity = next(e for e in manifest.entities if e.table == table.name)
            rows = records(manifest, entity, random, len(keys))
        else:
            rows = random.normal(size=(len(keys), table.dim)).astype(np.float32)
        tables[table.name] = TableDelta(keys[1:], rows[1:], keys[:1])
    return Delta(
        MODEL,
        manifest.version,
        step,
        step - 1 if parent is None else parent,
        tables,
        dense or {},
        published_at=float(step),
    )


def add_entities(version: Path) -> None:
    """Give a version entities of users and of items, each key with a record of what a request may leave out."""
    manifest = VersionReader(version).manifest
    named = replace(manifest, entities=ENTITIES)
    tables = [TableEntry(e.table, record_layout(named, e).words, RECORDS, RECORD) for e in ENTITIES]
    named = replace(named, tables=[*manifest.tables, *tables])
    files = dict(manifest.files)
    for entity in ENTITIES:
        path = version / table_file(entity.table)
        with open(path, "wb") as file:
            content = packed(np.arange(RECORDS), records(named, entity, np.random.default_rng(0), RECORDS), RECORD)
            write_tensors(file, content, {})
        data = path.read_bytes()
        files[table_file(entity.table)] = File(len(data), crc32(data))
    (version / MANIFEST).write_bytes(replace(named, files=files).to_json())


def records(manifest, entity: EntityEntry, random: np.random.Generator, rows: int) -> np.ndarray:
    """Records of so many keys of an entity."""
    columns = request(random, rows, rows)
    return make_records(manifest, entity, {name: columns[name] for name in entity.inputs}, rows)
