"""Publish a trainer's state as a full version in the model repository."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.compiler.building.compile import BUCKETS
from freshet_serving.compiler.building.package_files import Arrays
from freshet_serving.compiler.building.packaging import LowPrecisionOptions, Progress, Review, publish
from freshet_serving.compiler.dense.dense_graph import DenseGraph
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.package import Manifest
from freshet_serving.processor.repository import Repository, VersionReader
from freshet_serving.processor.tables.table import packed

MOST_COUNTED = 2**32 - 1

Rows = tuple[NDArray[np.int64], NDArray[Any]]
Counts = Mapping[str, NDArray[np.int64]]


def publish_version(
    repository: Repository | Path,
    draft: Manifest,
    tables: Mapping[str, Rows],
    graph: DenseGraph,
    buckets: Sequence[int] = BUCKETS,
    progress: Progress | None = None,
    counts: Counts | None = None,
    lower: LowPrecisionOptions | None = None,
    review: Callable[[VersionReader], Review] | None = None,
) -> VersionReader:
    """Commit the draft's version of its model (compiler.building.packaging); raise Conflict if it exists.

    Args:
        tables: By name, keys int64 [n] and rows float32 [n, dim]; of entities int32 records.
        counts: By name, how often training met each key, int64 [n]: a server with a memory budget starts with the most
            frequent rows.
        review: The version's gate; None for none.
    """
    opened = Repository(repository) if isinstance(repository, Path) else repository
    with opened.writer(draft.model, draft.version) as writer:
        return publish(
            opened,
            writer,
            draft,
            _packed(draft, tables, counts or {}),
            graph,
            buckets,
            progress,
            lower=lower,
            review=review,
        )


def _packed(draft: Manifest, tables: Mapping[str, Rows], counts: Counts) -> Iterator[tuple[str, Arrays]]:
    for name, (keys, rows) in tables.items():
        met = counts.get(name)
        frequencies = None if met is None else np.minimum(met, MOST_COUNTED).astype(np.uint32)
        try:
            tensors = packed(keys, rows, draft.table(name).dtype, frequencies)
        except BadInput as error:
            remedy = f"choose another tables.{name}.dtype or lower train.learning_rate"
            raise BadInput(f"table {name!r}: {error}; {remedy}") from error
        yield name, tensors
