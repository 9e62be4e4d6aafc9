"""Histograms of the inputs that a version was trained on, for its notes, and how far requests are from them. Pure.

    numbers      parts of about equal mass of the training rows, with a part of their own for NaN
    ids, words   parts by a hash, so that no value of the training data is written into a package
    lengths      of lists, by powers of two

The index is the population stability index of values or of lengths, whichever is worse: 0 for equal distributions,
above 0.25 a significant shift. A few hundred values differ by 0.1 by chance. Ids of another kind fall into the same
parts: lookups without a row tell of them (freshet_model_lookup_misses_total).

Costs: notes of about 300 bytes for each of at most MOST_INPUTS inputs.

Rejected: the most frequent values (they would publish ids of people); quantile sketches that merge (the trainer writes
its newest rows' parts once).
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.columns import Column, Ragged, Strings

NOTE_OF_INPUTS = "inputs"
"""Key of the notes in a manifest."""
PARTS = 10
MOST_INPUTS = 512
LEAST_VALUES = 64
LENGTHS: NDArray[np.int64] = 1 << np.arange(16)
"""Edges of the parts of lengths: 0, 1, 2 to 3, 4 to 7, and so on."""
SPREADING = np.uint64(0x9E3779B97F4A7C15)
"""2^64 divided by the golden ratio, which spreads ids that follow one another (Knuth, volume 3, 6.4)."""

Float64s = NDArray[np.float64]
Int64s = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class InputHistogram:
    """Values of one input in training, counted.

    Attributes:
        edges: float64 [n], ascending edges of numbers; None for ids and words.
        shares: Share of the values in each part, [n + 2] of numbers, the last one of NaN; [PARTS] of others.
        lengths: Share of the lists of each length [len(LENGTHS) + 1]; empty for an input without lists.
    """

    edges: Float64s | None
    shares: Float64s
    lengths: Float64s

    def to_notes(self) -> dict[str, list[float]]:
        notes = {"shares": _rounded(self.shares), "lengths": _rounded(self.lengths)}
        return notes if self.edges is None else {"edges": [float(f"{edge:.6g}") for edge in self.edges], **notes}

    @classmethod
    def from_notes(cls, raw: Any) -> InputHistogram | None:
        """Parse the result of to_notes(); None for anything else."""
        try:
            edges = np.array(raw["edges"], np.float64) if "edges" in raw else None
            shares, lengths = (np.array(raw[name], np.float64) for name in ("shares", "lengths"))
        except (KeyError, TypeError, ValueError, OverflowError, RecursionError):
            return None
        if edges is None:
            parts = PARTS
        elif edges.ndim != 1 or len(edges) >= PARTS or not np.isfinite(edges).all() or (np.diff(edges) <= 0).any():
            return None
        else:
            parts = len(edges) + 2
        sound = shares.shape == (parts,) and lengths.shape in ((0,), (len(LENGTHS) + 1,))
        return cls(edges, shares, lengths) if sound and _are_shares(shares) and _are_shares(lengths) else None

    def shift(self, columns: Sequence[Column]) -> float:
        """Return the index of an input's recent values, one column per request; NaN if too few, or of another type."""
        values, lengths = _joined(columns), _lengths(columns)
        if len(values) < LEAST_VALUES or _is_numeric(values) != (self.edges is not None):
            return math.nan
        index = _index(self.shares, _counts(values, self.edges))
        if len(self.lengths) and len(lengths):
            index = max(index, _index(self.lengths, _length_counts(lengths)))
        return index


def input_histograms(requests: Sequence[Mapping[str, Column]]) -> dict[str, Any]:
    """Return the notes on the inputs of training rows, by name; without those that have too few values."""
    notes = dict[str, Any]()
    for name in sorted(requests[0] if requests else ())[:MOST_INPUTS]:
        columns = [request[name] for request in requests]
        values, lengths = _joined(columns), _lengths(columns)
        if len(values) < LEAST_VALUES:
            continue
        edges = None
        if _is_numeric(values):
            finite = values[np.isfinite(values)].astype(np.float64)
            edges = np.unique(np.quantile(finite, np.arange(1, PARTS) / PARTS)) if len(finite) else np.empty(0)
            # Rounded as notes have them, so that a value on an edge falls into the same part when it is read.
            edges = np.unique([float(f"{edge:.6g}") for edge in edges])
        shares, of_lengths = _counts(values, edges) / len(values), np.empty(0)
        if len(lengths):
            of_lengths = _length_counts(lengths) / len(lengths)
        notes[name] = InputHistogram(edges, shares, of_lengths).to_notes()
    return notes


def training_shifts(notes: Any, requests: Sequence[Mapping[str, Column]]) -> dict[str, float]:
    """Return the index of each input of recent requests, by name; none for notes without histograms."""
    shifts = dict[str, float]()
    for name, raw in list(notes.items())[:MOST_INPUTS] if isinstance(notes, Mapping) else ():
        histogram = InputHistogram.from_notes(raw)
        columns = [request[name] for request in requests if name in request]
        if histogram is not None and columns and not math.isnan(shift := histogram.shift(columns)):
            shifts[name] = shift
    return shifts


def _joined(columns: Sequence[Column]) -> NDArray[Any]:
    """Return all values: float, integers, or hashes of words as integers."""
    return np.concatenate([_values(column) for column in columns]) if columns else np.empty(0)


def _values(column: Column) -> NDArray[Any]:
    if isinstance(column, Ragged):
        return _values(column.values)
    if isinstance(column, Strings):
        return np.array([zlib.crc32(word) for word in column.tolist()], np.int64)
    return column.reshape(-1)


def _lengths(columns: Sequence[Column]) -> Int64s:
    """Return the lengths of all lists; none of an input without lists."""
    lists = [np.diff(column.row_splits) for column in columns if isinstance(column, Ragged)]
    return np.concatenate(lists) if lists else np.empty(0, np.int64)


def _is_numeric(values: NDArray[Any]) -> bool:
    return values.dtype.kind == "f"


def _counts(values: NDArray[Any], edges: Float64s | None) -> Int64s:
    """Return the number of values in each part, as InputHistogram.shares has them."""
    if edges is None:
        spread = (values.astype(np.int64).view(np.uint64) * SPREADING) >> np.uint64(32)
        return np.bincount((spread % np.uint64(PARTS)).astype(np.int64), minlength=PARTS)
    part = np.where(np.isnan(values), len(edges) + 1, np.searchsorted(edges, values))
    return np.bincount(part, minlength=len(edges) + 2)


def _length_counts(lengths: Int64s) -> Int64s:
    return np.bincount(np.searchsorted(LENGTHS, lengths, "right"), minlength=len(LENGTHS) + 1)


def _index(shares: Float64s, counts: Int64s) -> float:
    """Return the stability index of counts against shares; half a value more in each part keeps it finite."""
    total = int(counts.sum())
    occupied = (shares > 0) | (counts > 0)
    p, q = ((part[occupied] + 0.5) / (total + 0.5 * occupied.sum()) for part in (shares * total, counts))
    return float(((p - q) * np.log(p / q)).sum())


def _are_shares(shares: Float64s) -> bool:
    return bool(np.isfinite(shares).all()) and (not len(shares) or (shares.min() >= 0 and abs(shares.sum() - 1) < 0.01))


def _rounded(shares: Float64s) -> list[float]:
    return [round(float(share), 5) for share in shares]
