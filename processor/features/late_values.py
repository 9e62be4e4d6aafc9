"""Fill in, under the state of a batch, the values that a bound request leaves out.

A source without values has a stride below 0 (kernels.records.LEFT_OUT) until it is filled. Two kinds fill sources:
records of entities (entity_records), and a stage that reads rows (stage_rows). What they fill in lives as long as the
call that reads it: nothing is kept between two batches, so every value belongs to the generation of its batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.columns import Column
from freshet_serving.processor.errors import FreshetError
from freshet_serving.processor.features.stage import Limit
from freshet_serving.processor.kernels.records import LEFT_OUT


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
