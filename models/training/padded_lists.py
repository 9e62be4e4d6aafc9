"""Detect lists that are padded to one length: their padding would be learned as an event.

Exports of TensorFlow and pandas pad lists with 0 or an empty string, before or after the values. Such lists end, or
begin, with the same value twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.models.config.feature_sections import RAGGED, FeatureConfig
from freshet_serving.models.data.source import Source
from freshet_serving.models.training.spec import first_rows
from freshet_serving.processor.columns import Column, Ragged, Strings

MOST = 0.5
"""A value at the ends of more than this share of the lists of two and more is considered padding."""


def padding_lines(source: Source, features: Sequence[FeatureConfig]) -> list[str]:
    """Return a line for each feature or sequence whose lists seem padded although its section does not say so."""
    sections: dict[str, str] = {}
    for f in features:
        sequence = f.sequence
        declared = f.padding if sequence is None else sequence.padding
        derived = bool(f.cross or f.window) if sequence is None else bool(sequence.from_events)
        if f.kind in RAGGED and not derived and declared is None:
            section = f"features.{f.name}" if sequence is None else f"sequences.{sequence.name}"
            sections.setdefault(section, f.column if sequence is None else f.name)
    batch = first_rows(source) if sections else None
    lines = []
    for section, name in sections.items():
        padding, share = _padding(batch.columns[name]) if batch is not None else (0, 0.0)
        if share > MOST:
            lines.append(
                f"{section}: {share:.0%} of the lists end or begin with {padding!r} twice, which looks like padding and"
                f" is learned as a value: {section}.padding = {_toml(padding)} leaves it out"
            )
    return lines


def _padding(column: Column) -> tuple[Any, float]:
    """Return the value that most lists of two or more end or begin with twice, and the share of these lists."""
    if not isinstance(column, Ragged):
        return 0, 0.0
    ends = column.row_splits
    long = np.flatnonzero(np.diff(ends) > 1)
    best: tuple[Any, float] = (0, 0.0)
    for first, second in ((ends[1:][long] - 1, ends[1:][long] - 2), (ends[:-1][long], ends[:-1][long] + 1)):
        values, others = _taken(column.values, first), _taken(column.values, second)
        alike, counts = np.unique(values[values == others], return_counts=True)
        if len(alike) and counts.max() / len(long) > best[1]:
            best = alike[counts.argmax()].item(), float(counts.max() / len(long))
    padding, share = best
    return padding.decode(errors="replace") if isinstance(padding, bytes) else padding, share


def _taken(values: Any, at: NDArray[np.int64]) -> NDArray[Any]:
    """Return values at places, strings as bytes."""
    if not isinstance(values, Strings):
        chosen: NDArray[Any] = np.asarray(values)[at]
        return chosen
    data, offsets = values.data, values.offsets
    return np.array([data[offsets[i] : offsets[i + 1]].tobytes() for i in at.tolist()], np.bytes_)


def _toml(value: Any) -> str:
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"' if isinstance(value, str) else str(value)
