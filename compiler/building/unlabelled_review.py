"""Review a version that comes without labelled rows, against the version before: an import, or a model dropped in.

No gate can compare its scores. What it has data for is compared: the inputs that requests send, and the tables' rows
and ids. A difference is reported and not refused, because a model may change on purpose; the server's gate holds a
version that cannot read the requests, knows few of their ids, or scores all of them alike (docs/extensions/guard.md).

Costs: the ids of each table are read once, and SAMPLED_IDS of those of the version before are looked for; not where the
version before is in an object store, from where its tables would have to be fetched.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from freshet_serving.compiler.building.finite_check import NOT_JUDGED
from freshet_serving.processor.errors import FreshetError
from freshet_serving.processor.package import Manifest, TableEntry
from freshet_serving.processor.repository import Repository, VersionReader, table_file

SAMPLED_IDS, CHUNK_IDS = 1 << 14, 1 << 20
LEAST_SHARE = 0.5
"""Share of the rows, or of the ids, of the version before under which a table is reported."""
MOST_LINES = 20


def unlabelled_notes(repository: Repository, version: VersionReader) -> dict[str, Any]:
    gate = dict(NOT_JUDGED["gate"])
    model = version.manifest.model
    try:
        before = repository.version(model) if repository.versions(model) else None
        if before is None:
            gate["unjudged"] = [*gate["unjudged"], "no version to compare with"]
        else:
            lines = [*_lost_inputs(before.manifest, version.manifest), *_lost_rows(before, version, repository.remote)]
            gate["reported"] = lines[:MOST_LINES]
            if repository.remote:
                gate["unjudged"] = [*gate["unjudged"], "ids are not compared: the version before is in an object store"]
    except (FreshetError, OSError):
        gate["unjudged"] = [*gate["unjudged"], "the version before cannot be read"]
    return {"gate": gate}


def _lost_inputs(before: Manifest, after: Manifest) -> list[str]:
    types = {spec.name: spec.dtype for spec in after.inputs}
    lines = []
    for spec in before.inputs:
        if spec.name not in types:
            lines.append(f"input {spec.name!r} is missing, which version {before.version} reads")
        elif types[spec.name] != spec.dtype:
            lines.append(
                f"input {spec.name!r} is {types[spec.name]}, and version {before.version} reads it as {spec.dtype}"
            )
    return lines


def _lost_rows(before: VersionReader, after: VersionReader, remote: bool) -> list[str]:
    tables = {entry.name: entry for entry in after.manifest.tables}
    named = f"version {before.manifest.version}"
    lines = []
    for entry in before.manifest.tables:
        if entry.name not in tables:
            lines.append(f"table {entry.name!r} is missing, which {named} has")
        elif (rows := tables[entry.name].rows) < LEAST_SHARE * entry.rows:
            lines.append(f"table {entry.name!r} has {rows:,} rows, {named} has {entry.rows:,}")
        elif not remote and (share := _known_ids(before, after, entry)) < LEAST_SHARE:
            lines.append(f"table {entry.name!r} has a row for {share:.1%} of the ids of {named}")
    return lines


def _known_ids(before: VersionReader, after: VersionReader, entry: TableEntry) -> float:
    """Return the share of a sample of the old version's ids in a table that have a row in the new version."""
    old, new = (version.tensors(table_file(entry.name))["keys"] for version in (before, after))
    sample = np.sort(old[:: max(1, len(old) // SAMPLED_IDS)])
    is_known = np.zeros(len(sample), bool)
    for first in range(0, len(new) if len(sample) else 0, CHUNK_IDS):
        chunk = new[first : first + CHUNK_IDS]
        place = np.minimum(np.searchsorted(sample, chunk), len(sample) - 1)
        is_known[place[sample[place] == chunk]] = True
    return float(is_known.mean()) if len(sample) else 1.0
