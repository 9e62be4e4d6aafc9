"""Compare a retrained model's export with the served version: all but rows and weights must be the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.compiler.imports.package_draft import Arrays, Graph, PackageDraft
from freshet_serving.processor.backends import Matrix
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.package import Manifest, TableEntry
from freshet_serving.processor.repository import VersionReader


@dataclass(frozen=True, slots=True)
class RetrainedExport:
    """Contents of an export: weights by name, and differences that cannot be published.

    Attributes:
        tables: By name, keys int64 [n] (hashes of strings) and rows float32 [n, dim].
    """

    tables: dict[str, tuple[NDArray[np.int64], Matrix]]
    dense: dict[str, Matrix]
    notes: list[str]


def other_model(why: str) -> BadInput:
    return BadInput(f"export: {why}; import it as a new version: freshet import")


def table_pairs(served: Manifest, new: Manifest) -> list[tuple[Any, Any]]:
    return [(served.table(table.name), table) for table in new.tables]


def check_same(served: Manifest, new: Manifest) -> None:
    for part_name, old_names, new_names in (
        ("tables", [t.name for t in served.tables], [t.name for t in new.tables]),
        ("dense weights", [*served.dense], [*new.dense]),
    ):
        if sorted(old_names) != sorted(new_names):
            differing = ", ".join(sorted(set(old_names) ^ set(new_names)))[:200]
            raise other_model(f"expected the {part_name} of the served version, found on one side only: {differing}")
    for old, table in table_pairs(served, new):
        for part in ("dim", "hash_seed"):
            if getattr(old, part) != getattr(table, part):
                raise other_model(
                    f"table {old.name!r}: expected {part} {getattr(old, part)} as served, got {getattr(table, part)}"
                )
    for name, shape in served.dense.items():
        if new.dense[name] != shape:
            raise other_model(f"dense weight {name!r}: expected shape {shape} as served, got {new.dense[name]}")
    for part_name in ("inputs", "outputs", "width"):
        if getattr(served, part_name) != getattr(new, part_name):
            raise other_model(f"its {part_name} differ from those of the served version")
    # The side of a feature was chosen at import; an export need not repeat it.
    features = [{f.name: replace(f, side="") for f in manifest.features} for manifest in (served, new)]
    if features[0] != features[1]:
        names = sorted(
            name for name in {**features[0], **features[1]} if features[0].get(name) != features[1].get(name)
        )
        raise other_model(f"expected the features of the served version, these differ: {', '.join(names)[:200]}")
    if served.transforms != new.transforms:
        raise other_model("the transforms of its inputs before the tables differ")
    if (served.stage and served.stage.outputs) != (new.stage and new.stage.outputs):
        raise other_model("the stage before the tables differs")
    if served.stage_lookups != new.stage_lookups:
        raise other_model("the rows that its stage reads differ")


def checked_export(
    draft: PackageDraft[Graph],
    version: VersionReader,
    same_stage: Callable[[bytes, bytes], bool],
    encoders: str,
    check_graph: Callable[[VersionReader, Graph], None],
) -> RetrainedExport:
    """Return tables and weights of an export for a committed version; raise BadInput if it does not fit.

    `encoders` names what a stage holds besides weights, for the message; `check_graph` raises BadInput unless the
    version's dense graph is that of the export.
    """
    served = version.root_manifest
    manifest = draft.manifest(served.model, served.version)
    check_same(served, manifest)
    if served.stage is not None and not same_stage(version.file(served.stage.file), draft.stage_data):
        raise other_model(f"the stage before the tables differs ({encoders}, or weights in it)")
    check_graph(version, draft.graph)
    tables = {name: _with_unknown(served.table(name), *table) for name, table in draft.tables.items()}
    notes = [
        f"table {new.name!r}: the row of unknown keys differs; it stays as it was imported"
        for old, new in table_pairs(served, manifest)
        if old.unknown_key is None and [*old.default] != [*new.default]
    ]
    return RetrainedExport(tables, draft.graph.weights, notes)


def _with_unknown(served: TableEntry, new: TableEntry, arrays: Arrays) -> tuple[NDArray[np.int64], Matrix]:
    """Return a table's keys and rows, with the row of unknown keys if deltas of the served table can bring it."""
    keys, rows = arrays["keys"], np.asarray(arrays["rows"])
    if served.unknown_key is None:
        return keys, rows
    default = np.array(new.default or [0.0] * new.dim, np.float32)
    return np.append(keys, served.unknown_key), np.concatenate([rows, default[None]])
