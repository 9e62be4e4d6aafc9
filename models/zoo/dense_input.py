"""Describe the columns of the dense input by feature: all that a network needs to know of the features."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from freshet_serving.processor.backends import Matrix
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.package import MATRIX, Feature, SequenceEntry


@dataclass(frozen=True, slots=True)
class ColumnSpan:
    """Columns [offset, offset + width) of the dense input, held by one feature.

    Attributes:
        length: For a feature without a combiner, the number of rows it holds, followed by as many mask columns
            (processor.package.manifest.Feature); 0 for any other.
        side: user | item | context.
        table: Its embedding table; "" for a float.
    """

    name: str
    offset: int
    width: int
    length: int = 0
    side: str = "context"
    table: str = ""

    @property
    def dim(self) -> int:
        return self.width // self.length - 1 if self.length else self.width


@dataclass(frozen=True, slots=True)
class SequenceSpan:
    """A sequence, an input [rows, width] of its own beside x (processor.package.sequences).

    Attributes:
        columns: Its columns, each max_length rows and as many mask columns, with offsets in the sequence's input; a
            column of floats, which has table "", has rows of width 0, and max_length values in place of a mask.
        timed: True if its last max_length columns are the seconds from each event to the newest.
    """

    name: str
    width: int
    max_length: int
    columns: tuple[ColumnSpan, ...]
    timed: bool = False


@dataclass(frozen=True, slots=True)
class DenseInput:
    """The dense input x [rows, width], and the sequences beside it; spans are ordered by offset.

    `embeddings` have the table's dim, or that of rows side by side; `floats` have width 1.
    """

    width: int
    embeddings: tuple[ColumnSpan, ...]
    floats: tuple[ColumnSpan, ...]
    sequences: tuple[SequenceSpan, ...] = ()

    @classmethod
    def from_features(cls, features: Iterable[Feature], sequences: Iterable[SequenceEntry] = ()) -> DenseInput:
        """Read kind, offset and width of every feature; raise BadInput unless they tile the input."""
        embeddings: list[ColumnSpan] = []
        floats: list[ColumnSpan] = []
        width = 0
        for feature in sorted(features, key=lambda f: f.offset):
            if feature.offset != width or feature.width < 1:
                raise BadInput(f"feature {feature.name!r}: expected offset {width}, got {feature.offset}")
            width += feature.width
            span = ColumnSpan(feature.name, feature.offset, feature.width, feature.length, feature.side, feature.table)
            (floats if feature.kind == "float" else embeddings).append(span)
        if not width:
            raise BadInput("features: expected at least one, got none")
        spans = tuple(
            SequenceSpan(
                s.name,
                s.width,
                s.max_length,
                tuple(ColumnSpan(c.name, c.offset, c.width, s.max_length, "user", c.table) for c in s.columns),
                bool(s.time),
            )
            for s in sequences
        )
        return cls(width, tuple(embeddings), tuple(floats), spans)

    def examples(self, rows: int) -> dict[str, Matrix]:
        """Return inputs as requests might have them: masks of 0 and 1, histories of every length, some of them full."""
        random = np.random.default_rng(rows)
        inputs = {MATRIX: random.standard_normal((rows, self.width), np.float32)}
        for s in self.sequences:
            inputs[s.name] = values = random.standard_normal((rows, s.width), np.float32)
            lengths = np.resize([s.max_length, 0, 1, *random.integers(0, s.max_length + 1, rows)], rows)
            mask = np.arange(s.max_length) < lengths[:, None]
            for c in s.columns:
                end = c.offset + c.dim * s.max_length
                values[:, c.offset : end] *= np.repeat(mask, c.dim, axis=1)
                last = values[:, end : c.offset + c.width]
                last[:] = mask if c.table else last * mask
            if s.timed:
                ages = np.abs(values[:, -s.max_length :]) * 1e5
                values[:, -s.max_length :] = np.sort(ages, axis=1)[:, ::-1] * mask
        return inputs

    @property
    def spans(self) -> tuple[ColumnSpan, ...]:
        return tuple(sorted((*self.embeddings, *self.floats), key=lambda span: span.offset))

    @property
    def dim(self) -> int:
        """The most common dim of the embeddings, the larger of equally common ones; 0 without any."""
        counts = Counter(span.dim for span in self.embeddings)
        return max(counts, key=lambda width: (counts[width], width), default=0)


def runs(spans: Iterable[ColumnSpan]) -> list[tuple[int, int]]:
    """Merge neighbouring spans into the fewest (start, stop) column ranges that cover them in order."""
    merged: list[tuple[int, int]] = []
    for span in spans:
        stop = span.offset + span.width
        if merged and merged[-1][1] == span.offset:
            merged[-1] = (merged[-1][0], stop)
        else:
            merged.append((span.offset, stop))
    return merged
