"""Packages of bad nights: the training was good, and what is published of it is not.

Each fault takes the arguments of models.training.publication.publish_version and returns those of a damaged version.
The trainer's gate judges the damaged package, as it judges any.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np

from freshet_serving.compiler.dense.dense_graph import DenseGraph
from freshet_serving.models.training import publication
from freshet_serving.processor.package import Manifest
from freshet_serving.processor.tables.table import packed

INT8_MOST = 127
RAISED = 1.1

Tables = Mapping[str, tuple[Any, Any]]
Parts = tuple[Manifest, Tables, DenseGraph]


def zeroed(draft: Manifest, tables: Tables, graph: DenseGraph) -> Parts:
    """Return a version whose largest table is all zeros."""
    largest = max(tables, key=lambda name: len(tables[name][0]))
    return draft, {name: (keys, 0 * rows if name == largest else rows) for name, (keys, rows) in tables.items()}, graph


def in_int8(draft: Manifest, tables: Tables, graph: DenseGraph) -> Parts:
    """Return a version with tables in int8; see wrong_scales()."""
    return (
        dataclasses.replace(draft, tables=[dataclasses.replace(t, dtype="int8") for t in draft.tables]),
        tables,
        graph,
    )


def raised(draft: Manifest, tables: Tables, graph: DenseGraph) -> Parts:
    """Return a version whose small scores are RAISED times as high."""
    name = next(name for name, weight in reversed(graph.weights.items()) if weight.shape == (1,))
    higher = graph.weights[name] + np.float32(math.log(RAISED))
    return draft, tables, dataclasses.replace(graph, weights={**graph.weights, name: higher})


PACKAGE_FAULTS: Mapping[str, Callable[[Manifest, Tables, DenseGraph], Parts]] = {
    "a table zeroed": zeroed,
    "int8 gone wrong": in_int8,
    "score x 1.1": raised,
}


@contextmanager
def wrong_scales(number: int) -> Iterator[None]:
    """Pack int8 tables with wrong scales meanwhile: left out one night, applied twice the next.

    Args:
        number: The night's number.
    """

    def wrong(keys: Any, rows: Any, dtype: str, frequencies: Any) -> dict[str, Any]:
        made = packed(keys, rows, dtype, frequencies)
        if "scales" in made:
            made["scales"] = np.ones_like(made["scales"]) if number % 2 else made["scales"] / np.float32(INT8_MOST)
        return made

    with mock.patch.object(publication, "packed", wrong):
        yield
