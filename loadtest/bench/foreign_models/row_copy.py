"""The row-copy check: does a delta of a table reach every place where the model looks that table up?

For each table, two of its rows are published as equal: row `one` as a copy of row `other`. Then inputs with `one` and
inputs with `other` have to score alike, in each place by itself (TableUse); before the delta they have to differ, or
the place would be checked in vain. All other places look up rows that the delta leaves as they are, so that what
changes is due to this place. The check knows nothing of how the package divides the model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.models.publishing.key_ids import as_ids, takes_strings
from freshet_serving.models.publishing.publisher import Publisher
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.repository import open_repository, table_file
from loadtest.bench.foreign_models.built import Arrays, TableUse, with_value

FOLLOWS, REFUSED, CONSTANT, HALF, UNTOLD = "follows", "refused", "constant", "half served", "not told apart"
DIFFER, ALIKE = 1e-5, 2e-6

Ask = Callable[[Mapping[str, NDArray[Any]]], NDArray[np.float32]]


@dataclass(frozen=True, slots=True)
class CopiedRow:
    """The outcome for one table of a model.

    Attributes:
        table: Its name, as the builder gives it.
        verdict: FOLLOWS if `one` and `other` score alike in every use. Otherwise REFUSED if a delta of these rows is
            refused, so that nothing is served by halves; CONSTANT if the delta changed no use; HALF if it changed some,
            or some only in part. UNTOLD if a use did not tell them apart before.
        uses: The inputs that do not follow.
    """

    table: str
    verdict: str
    uses: list[str]


def check_rows(
    ask: Ask, publish: Callable[[], Mapping[str, str]], inputs: Arrays, uses: Sequence[TableUse]
) -> list[CopiedRow]:
    """Run the check.

    Args:
        ask: Scores inputs, float32 [rows, columns], by the newest generation.
        publish: Publishes copied rows, and returns when they are served: by table of the package that refuses them, the
            reason.
        inputs: Rows of every input.
        uses: Where the model looks up which table.
    """

    base = untouched(inputs, uses)

    def scores() -> list[tuple[NDArray[np.float32], NDArray[np.float32]]]:
        both = [(with_value(base, use, use.one), with_value(base, use, use.other)) for use in uses]
        return [(ask(one), ask(other)) for one, other in both]

    before = scores()
    refused = publish()
    after = scores()
    found: dict[str, list[tuple[TableUse, bool, bool, bool]]] = {}
    for use, (one, other), (now, target) in zip(uses, before, after):
        told, changed = _distance(one, other) > DIFFER, _distance(one, now) > ALIKE
        found.setdefault(use.table, []).append((use, told, changed, _distance(now, target) <= ALIKE))
    return [_verdict(table, places, bool(refused)) for table, places in found.items()]


def untouched(inputs: Arrays, uses: Sequence[TableUse]) -> Arrays:
    """Return the inputs without any `one`: `other` in every place, and wherever else its input had `one`."""
    for use in uses:
        array = inputs[use.input]
        inputs = with_value(inputs | {use.input: np.where(array == use.one, use.other, array)}, use, use.other)
    return inputs


def _distance(one: NDArray[np.float32], other: NDArray[np.float32]) -> float:
    """Return the largest difference, relative to scores above 1."""
    return float((np.abs(one - other) / np.maximum(1, np.abs(other))).max())


def _verdict(table: str, places: Sequence[tuple[TableUse, bool, bool, bool]], refused: bool) -> CopiedRow:
    if not all(told for _, told, _, _ in places):
        return CopiedRow(table, UNTOLD, [use.input for use, told, _, _ in places if not told])
    left = [use.input for use, _, _, alike in places if not alike]
    if not left:
        return CopiedRow(table, FOLLOWS, [])
    reached = any(changed or alike for _, _, changed, alike in places)
    return CopiedRow(table, REFUSED if refused else HALF if reached else CONSTANT, left)


def publish_copies(repository: str, model: str, uses: Sequence[TableUse]) -> dict[str, str]:
    """Publish row `one` as a copy of row `other`, in every table of the package that has both.

    Returns:
        By table that refuses deltas, the reason.
    """
    version = open_repository(repository).version(model, None)
    numbers = {use.row_of_one: use.row_of_other for use in uses}
    texts = {use.one: use.other for use in uses if isinstance(use.one, str)}
    rows: dict[str, tuple[Any, Any]] = {}
    refused: dict[str, str] = {}
    for table in version.manifest.tables:
        stored = version.tensors(table_file(table.name))
        at = {int(key): i for i, key in enumerate(stored["keys"])}
        pairs = numbers
        if takes_strings(version.manifest, table.name):
            # Its keys are hashes.
            ones, others = (as_ids(version.manifest, table.name, list(side)) for side in (texts, texts.values()))
            pairs = dict(zip(ones.tolist(), others.tolist()))
        both = [(one, other) for one, other in pairs.items() if one in at and other in at]
        if not both:
            continue
        copied = stored["rows"][[at[other] for _, other in both]]
        change = {table.name: (np.array([one for one, _ in both]), np.asarray(copied, np.float32))}
        try:
            version.manifest.check_reachable(table.name)
        except BadInput as error:
            refused[table.name] = str(error)
            continue
        rows |= change
    if rows:
        Publisher(repository, model).publish(rows=rows, hashed=True)
    return refused
