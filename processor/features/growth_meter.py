"""Measure how much a stage computes, by rows and by the longest list (processor.package.stage_entries).

A traced run counts the bytes that operators write. Tensors' sizes are products of sizes, so their sum is a polynomial,
which a few small runs fix. Two larger ones check it: what grows faster than any polynomial of these powers (a loop that
doubles what it carries) is refused, because a small request could ask for any memory.

Rejected: measuring memory or time. Both depend on the machine and what else runs, and a bound that differs between two
replicas makes a request that one of them refuses.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.columns import Column, Ragged, Strings
from freshet_serving.processor.errors import BadInput, TooLarge
from freshet_serving.processor.features.input_reader import shaped
from freshet_serving.processor.features.stage import Stage, TracedStage, load_stage
from freshet_serving.processor.package import GrowthTerm, Input, Manifest, StageGrowth, StageLookup

log = logging.getLogger("freshet.stage")

CELL_NBYTES = 4
ROWS, LENGTHS = (1, 2, 4), (4, 8, 16, 24)
CHECKS = ((2, 40), (8, 8))
"""Rows and lengths of the runs that check the polynomial."""
POWERS = ((1, 1), (1, 2), (2, 1), (2, 2), (1, 3), (2, 3))
"""Highest powers of rows and of the length, the simplest polynomial first."""
CLOSE, CHECKED, FASTER = 1.25, 1.02, 1.5

UNKNOWN_FACTOR, UNKNOWN_PAIRS = 16.0, 0.25
"""Cells for each that is fed to a graph that was not measured, and for each pair of a list's values."""
LENGTH = -1
IDS = (0, 1, LENGTH)
"""Integers to measure with, in turn until the model takes them: some refuse 0, or lengths that are not their lists'."""


def growth_of(manifest: Manifest, stage: Stage, data: bytes) -> StageGrowth:
    """Return a loaded stage's growth: the manifest's, else measured (see `measured`), else assumed."""
    assert manifest.stage is not None, "the manifest has a stage"
    return manifest.stage.growth or _measured(manifest, stage, data) or assumed(manifest)


def with_growth(manifest: Manifest, data: bytes) -> Manifest:
    """Return a manifest whose stage, if it has one, says how much it computes (see `measured`)."""
    if manifest.stage is None:
        return manifest
    growth = _measured(manifest, load_stage(manifest, data), data)
    return replace(manifest, stage=replace(manifest.stage, growth=growth))


def _measured(manifest: Manifest, stage: Stage, data: bytes) -> StageGrowth | None:
    """Return a loaded stage's growth; None, and a log line, where it cannot be measured."""
    twin: Callable[[bytes], TracedStage] | None = getattr(stage, "traced", None)
    if twin is None:
        return None
    why = ""
    for value in IDS:
        try:
            traced = twin(data)
            try:
                return measured(manifest, traced, value)
            finally:
                traced.close()
        except BadInput as error:
            why = why or f"the model refuses blank inputs: {error}"
        except OSError:
            why = "no temporary folder to measure it in"
            break
    log.info("%s version %d: what it computes for a request is assumed: %s", manifest.model, manifest.version, why)
    return None


def measured(manifest: Manifest, traced: TracedStage, value: int = 0) -> StageGrowth:
    """Return the growth of a manifest's traced stage, which is used up; `value` is what integers are, perhaps LENGTH.

    Raises:
        BadInput: The model refuses the values that it is measured with.
        TooLarge: It grows faster than a product of small powers of rows and length.
    """
    assert manifest.stage is not None, "the manifest has a stage"
    points = [(rows, length) for length in LENGTHS for rows in ROWS] + list(CHECKS)
    keyed = [lookup for lookup in manifest.stage_lookups if not lookup.whole]
    fed = []
    for rows, length in points:
        sizing, integer = traced.sized_by, length if value == LENGTH else value
        columns = {i.name: _column(i, rows, length, i.name in sizing, integer) for i in manifest.inputs}
        looked_up = _rows(manifest, rows, length)
        fed.append(sum(map(_cells, columns.values())) + sum(looked_up[lookup.name].size for lookup in keyed))
        traced.run(columns, rows, looked_up)
    sized_by = sorted(traced.sized_by)
    cells = [count + nbytes // CELL_NBYTES for count, nbytes in zip(fed, traced.made())]
    terms = _polynomial(np.array(points, float), np.array(cells, float))
    if terms is None:
        raise TooLarge(
            "stage: expected a graph whose tensors grow with a small power of the rows and the longest list, got one "
            f"that makes {cells[-2]} values for lists of {CHECKS[0][1]} after {cells[len(ROWS) * 3 + 1]} for lists of "
            f"{LENGTHS[-1]}: one request could take any memory"
        )
    return StageGrowth(terms, sized_by)


def assumed(manifest: Manifest) -> StageGrowth:
    """Return a growth for a stage that cannot be measured: of each cell that is fed, and of all pairs of a list."""
    lists = [i for i in manifest.inputs if i.ragged]
    width = sum(i.columns or 1 for i in manifest.inputs if not i.ragged)
    terms = [GrowthTerm(1, 0, UNKNOWN_FACTOR * max(1, width))]
    if lists:
        dims = sum(manifest.table(lookup.table).dim for lookup in manifest.stage_lookups if not lookup.whole)
        terms += [GrowthTerm(1, 1, UNKNOWN_FACTOR * (len(lists) + dims)), GrowthTerm(1, 2, UNKNOWN_PAIRS)]
    return StageGrowth(terms)


def _column(spec: Input, rows: int, length: int, sizing: bool, value: int) -> Column:
    """Return a column of one value and short words; of values that stand for the length if these say a size."""
    count = rows * (length if spec.ragged else spec.columns or 1)
    values: Any
    if spec.dtype == "string":
        values = Strings.of([b"a " * (length // 2) if sizing else b"a"] * count)
    else:
        dtype = np.float32 if spec.dtype == "float32" else np.int64
        values = np.full(count, length if sizing else value if dtype is np.int64 else 0, dtype)
    return shaped(spec, values, rows, length)


def fed_shape(manifest: Manifest, lookup: StageLookup, rows: int, length: int) -> tuple[int, int]:
    """Return the shape of what a stage is fed for a lookup: rows for each key (`length` a list), or a whole table."""
    table = manifest.table(lookup.table)
    if lookup.whole:
        return table.rows, table.dim
    each = length if manifest.shapes[lookup.input].ragged else max(1, len(lookup.columns))
    return rows * each, table.dim


def _rows(manifest: Manifest, rows: int, length: int) -> dict[str, NDArray[np.float32]]:
    lookups = manifest.stage_lookups
    return {lookup.name: np.zeros(fed_shape(manifest, lookup, rows, length), np.float32) for lookup in lookups}


def _cells(column: Column) -> int:
    if isinstance(column, Ragged):
        return _cells(column.values) + len(column)
    return len(column) if isinstance(column, Strings) else int(column.size)


def _polynomial(points: NDArray[np.float64], cells: NDArray[np.float64]) -> list[GrowthTerm] | None:
    """Return the terms of the simplest polynomial that no point exceeds by much; None if none is near the last ones."""
    fitted = len(points) - len(CHECKS)
    for highest in POWERS:
        powers = [(a, b) for a in range(highest[0] + 1) for b in range(highest[1] + 1)]
        design = np.stack([points[:, 0] ** a * points[:, 1] ** b for a, b in powers], 1)
        scale = design[:fitted].max(axis=0)
        factors = np.linalg.lstsq(design[:fitted] / scale, cells[:fitted], rcond=None)[0] / scale
        # Sizes such as (n - 1) * n have negative terms: without them the polynomial is above, which is allowed.
        factors = np.where(factors * scale > 0.5, factors, 0.0)
        expected = design @ factors
        if not factors.any() or (expected <= 0).any():
            continue
        factors = factors * max(1.0, float((cells[:fitted] / expected[:fitted]).max()))
        expected = design @ factors
        near = (expected[:fitted] <= CLOSE * cells[:fitted] + len(powers)).all()
        last = highest == POWERS[-1]
        above = float((cells[fitted:] / expected[fitted:]).max())
        if (near or last) and above <= (FASTER if last else CHECKED):
            # Rounded up, and never below what was measured.
            rounded = [math.ceil(factor * max(1.0, above) * 1e3 - 1e-3) / 1e3 for factor in factors.tolist()]
            return [GrowthTerm(a, b, factor) for (a, b), factor in zip(powers, rounded) if factor > 0]
    return None
