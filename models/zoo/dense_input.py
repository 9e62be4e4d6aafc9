"""Describe the columns of the dense input by feature: all that a network needs to know of the features."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.package import Feature


@dataclass(frozen=True, slots=True)
class ColumnSpan:
    """Columns [offset, offset + width) of the dense input, held by one feature.

    Attributes:
        length: For a feature without a combiner, the number of rows it holds, followed by as many mask columns
            (processor.package.manifest.Feature); 0 for any other.
        side: user | item | context.
    """

    name: str
    offset: int
    width: int
    length: int = 0
    side: str = "context"

    @property
    def dim(self) -> int:
        """Width of one row."""
        return self.width // self.length - 1 if self.length else self.width


@dataclass(frozen=True, slots=True)
class DenseInput:
    """The dense input x [rows, width].

    Attributes:
        width: Columns of x.
        embeddings: Spans of the table's dim, or of rows side by side; ordered by offset.
        floats: Spans of width 1, ordered by offset.
    """

    width: int
    embeddings: tuple[ColumnSpan, ...]
    floats: tuple[ColumnSpan, ...]

    @classmethod
    def from_features(cls, features: Iterable[Feature]) -> DenseInput:
        """Read kind, offset and width of every feature; raise BadInput unless they tile the input."""
        embeddings: list[ColumnSpan] = []
        floats: list[ColumnSpan] = []
        width = 0
        for feature in sorted(features, key=lambda f: f.offset):
            if feature.offset != width or feature.width < 1:
                raise BadInput(f"feature {feature.name!r}: expected offset {width}, got {feature.offset}")
            width += feature.width
            span = ColumnSpan(feature.name, feature.offset, feature.width, feature.length, feature.side)
            (floats if feature.kind == "float" else embeddings).append(span)
        if not width:
            raise BadInput("features: expected at least one, got none")
        return cls(width, tuple(embeddings), tuple(floats))

    @property
    def spans(self) -> tuple[ColumnSpan, ...]:
        """All spans, ordered by offset."""
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
