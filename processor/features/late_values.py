"""Fill in, under the state of a batch, the values that a bound request leaves out.

A source without values has a stride below 0 (kernels.pool.LEFT_OUT) until it is filled. Three kinds fill sources:
records of entities (entity_records), a stage that reads rows (stage_rows), and extensions by sections of the manifest.
What they fill in lives as long as the call that reads it: nothing is kept between two batches, so every value belongs
to the generation of its batch.

What an extension fills is simpler than what an entity does: an input as the sparse graph reads it, with one row for all
rows of a request, and not counted among its ids. Inputs that are read before the batch (by transforms, by a stage), and
lists, which the limits of a request have to measure, cannot be filled so; late_inputs() refuses them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.columns import Column
from freshet_serving.processor.errors import BadInput, FreshetError
from freshet_serving.processor.features.stage import Limit
from freshet_serving.processor.kernels.pool import LEFT_OUT
from freshet_serving.processor.package import Manifest
from freshet_serving.processor.ports import ENGINE


class KeptRecords(Protocol):
    """Records that are kept for a request (entity_records.UsedRecords)."""

    @property
    def records(self) -> Mapping[Any, NDArray[np.int32]]: ...


class SentColumns(Protocol):
    """A bound request as far as what is filled in late depends on it (bound_request.BoundRequest)."""

    @property
    def rows(self) -> int: ...
    @property
    def columns(self) -> Mapping[str, Column] | None: ...
    @property
    def used(self) -> KeptRecords | None: ...
    @property
    def limit(self) -> Limit | None: ...


class LateFill(NamedTuple):
    """Values that one call has filled in.

    Attributes:
        kept: What holds the values; it must outlive their use.
        refusal: The error of a request whose values are refused, or were not computed in time: they are NaN; None
            without one.
    """

    kept: Sequence[Any] = ()
    refusal: FreshetError | None = None


class LateValues(Protocol):
    """Fills some of a plan's sources."""

    def feeds(self, sources: NDArray[np.int64]) -> bool:
        """Report whether it fills one of these sources."""

    def fill(
        self,
        tables: NDArray[np.int64],
        epoch: int,
        bound: Sequence[SentColumns],
        inputs: NDArray[np.int64],
        spans: NDArray[np.int64],
        counts: NDArray[np.int64],
    ) -> LateFill:
        """Replace left-out sources by values.

        Args:
            tables: Table descriptors, int64 [T, TABLE_FIELDS].
            epoch: The epoch to read rows at.
            bound: The requests.
            inputs: int64 [R, S, 4] (kernels.pool), to write to.
            spans: int64 [R, 2], first row and rows of each request.
            counts: Lookups and misses by table, int64 [T, 2], to add to.
        """


class LateInputs(LateValues, Protocol):
    """Fills inputs that a request leaves out, as an extension offers it (processor.ports.Extension.late_values)."""

    @property
    def inputs(self) -> Collection[str]:
        """The inputs; each gets one row for all rows of a request."""


def late_inputs(manifest: Manifest, sources: Mapping[tuple[str, int], int]) -> list[LateInputs]:
    """Return what extensions fill with each batch, by the sections of a manifest.

    Args:
        manifest: The manifest.
        sources: Numbers of the plan's sources, by name and seed.

    Raises:
        BadInput: An input is not one that can be filled so.
    """
    late: list[LateInputs] = []
    if not manifest.sections:
        return late
    before = {name for t in manifest.transforms for name in t.inputs}
    lists = {i.name for i in manifest.inputs if i.ragged}
    for key, make in ENGINE.offers("late_values").items():
        if key in manifest.sections:
            late.append(make(manifest.sections[key], sources))
            for name in late[-1].inputs:
                if manifest.stage is not None or name in before:
                    raise BadInput(f"manifest.{key}: {name[:64]!r} is read before a batch: expected another input")
                if name in lists:
                    raise BadInput(f"manifest.{key}: expected an input of one value a row, got the list {name[:64]!r}")
    return late


def fill_left_out(
    late: Sequence[LateValues],
    tables: NDArray[np.int64],
    epoch: int,
    bound: Sequence[SentColumns],
    inputs: NDArray[np.int64],
    spans: NDArray[np.int64],
    counts: NDArray[np.int64],
) -> LateFill:
    """Fill the left-out sources of requests; arguments as those of LateValues.fill()."""
    if not (inputs[:, :, 2] <= LEFT_OUT).any():
        return LateFill()
    found = [one.fill(tables, epoch, bound, inputs, spans, counts) for one in late]
    return LateFill(found, next((one.refusal for one in found if one.refusal is not None), None))
