"""Score rows by a version as it was published, as a server at step 0, to measure what its deltas are worth.

Its files are mapped, never copied, so it costs only the pages that the scored rows touch.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from freshet_serving.models.training.batch_part import write_rows
from freshet_serving.models.training.dense_step import DenseStep
from freshet_serving.processor.columns import Column
from freshet_serving.processor.features.plan import SparsePlan
from freshet_serving.processor.package import TableEntry
from freshet_serving.processor.repository import VersionReader, table_file
from freshet_serving.processor.running.graph_run import GraphRun
from freshet_serving.processor.tables.table import descriptor, descriptors

NOTHING: NDArray[np.float32] = np.empty(0, np.float32)


class PublishedBaseline:
    """Scorer with step 0 of a version."""

    def __init__(self, version: VersionReader, dense: DenseStep) -> None:
        """Map the version's tables for the model's network; raise Corrupt if the files do not fit."""
        self.version = version.manifest.version
        self._dense, self._weights = dense, dense.with_weights(version.dense())
        self._plan = SparsePlan(version.manifest)
        self._run = GraphRun(version.manifest, self._plan).undivided
        # Keep the arrays alive: descriptors contain their addresses.
        self._arrays = {table.name: _mapped(version, table) for table in version.manifest.tables}
        self._tables = descriptors([descriptor(t, self._arrays[t.name]) for t in version.manifest.tables])

    def score(self, columns: Mapping[str, Column]) -> NDArray[np.float32]:
        """Return scores [n], or [n, labels]."""
        bound = self._plan.bind_inputs(columns)
        return self._dense.score(bound.rows, write_rows(self._run, self._tables, bound), self._weights)


def _mapped(version: VersionReader, table: TableEntry) -> dict[str, NDArray[np.generic]]:
    """Return a table's buffers for kernels: all rows of epoch 0, no arena."""
    file = version.tensors(table_file(table.name))
    default = np.full(table.dim, table.default or 0.0, np.float32)
    arrays: dict[str, NDArray[np.generic]] = dict.fromkeys(("arena", "meta", "arena_scales"), NOTHING)
    return arrays | {
        "index": file["index"],
        "base": file["rows"],
        "scales": file.get("scales", NOTHING),
        "default": default,
    }
