"""Fill in, under the state of a batch, the values that a bound request leaves out.

A source names what fills it (kernels.pool: FILLED_BY): records of entities (entity_records), a stage that reads rows
(stage_rows), or an extension by a section of the manifest. Values live as long as the call that reads them, so each
belongs to the generation of its batch.

An extension fills an input with one row for all rows of a request, not counted among its ids. Inputs that are read
before the batch, and lists, which limits have to measure, cannot be filled so: late_inputs() refuses them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.errors import BadInput, FreshetError
from freshet_serving.processor.features.bound_request import BatchView, left_out
from freshet_serving.processor.package import Manifest
from freshet_serving.processor.ports import ENGINE


class LateFill(NamedTuple):
    """Values that one call has filled in.

    Attributes:
        kept: What holds the values; it must outlive their use.
        refusal: The error of a request whose values were refused, or not computed in time: they are NaN.
    """

    kept: Sequence[Any] = ()
    refusal: FreshetError | None = None


class LateValues(Protocol):
    """Fills some of a plan's sources."""

    def feeds(self, sources: NDArray[np.int64]) -> bool:
        """Report whether it fills one of these sources."""

    def fill(self, view: BatchView, inputs: NDArray[np.int64]) -> LateFill:
        """Replace left-out sources of the view's `inputs`, int64 [R, S, INPUT_FIELDS]; they become SENT."""


class LateInputs(LateValues, Protocol):
    """Fills inputs that a request leaves out, as an extension offers it (processor.ports.Extension.late_values)."""

    @property
    def inputs(self) -> Collection[str]:
        """The inputs; each gets one row for all rows of a request."""


def late_inputs(manifest: Manifest, sources: Mapping[tuple[str, int], int]) -> list[LateInputs]:
    """Return what extensions fill with each batch, by the sections of a manifest; BadInput for an unfit input."""
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


def fill_left_out(late: Sequence[LateValues], view: BatchView, inputs: NDArray[np.int64]) -> LateFill:
    """Fill the left-out sources of a view's requests; `inputs` are the view's, to write to."""
    if not left_out(inputs).any():
        return LateFill()
    fills = [values.fill(view, inputs) for values in late]
    return LateFill(fills, next((fill.refusal for fill in fills if fill.refusal is not None), None))
