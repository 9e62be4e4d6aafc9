"""The port of what scores sampled rows under a state that is not served, or under another version, for judges.

An extension offers a scorer (processor.ports.Extension.scorer), one for each replica. Without one, judges have no
evidence by scores. Scores travel between processes as bytes.
"""

from __future__ import annotations

import io
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.backends import Executable
from freshet_serving.processor.package import parse_tensors, write_tensors
from freshet_serving.processor.watching import PreviewResult, RequestScores


class PreviewState(NamedTuple):
    """A state to preview: tables int64 [T, TABLE_FIELDS] (kernels.rows), the undivided subgraph's executables."""

    digest: str
    epoch: int
    tables: NDArray[np.int64]
    executables: Mapping[int, Executable]


class RowScorer(Protocol):
    """The scorer of one replica, which calls compare() and score() from one thread at a time."""

    def compare(
        self, before: PreviewState, after: PreviewState, costs: Mapping[int, float], max_rows: int, max_s: float
    ) -> PreviewResult | None:
        """Compare the scores of a new state with the served, pinned one; None while there are too few rows.

        Costs are seconds of a run by bucket; at most max_rows are scored, within max_s.
        """

    def kept(self, names: Collection[str]) -> bytes:
        """Return the sample as bytes that score() of any version reads, with the named inputs; b"" for none."""

    def remember(self, requests: bytes) -> None:
        """Add requests to the sample; those that the version cannot read are left out."""

    def score(self, requests: bytes, state: PreviewState, costs: Mapping[int, float], max_s: float) -> RequestScores:
        """Return the scores of requests (kept() of any version) under a pinned state; arguments as in compare()."""


def dump_scores(scores: RequestScores) -> bytes:
    file = io.BytesIO()
    tensors: dict[str, NDArray[Any]] = {f"output.{name}": array for name, array in scores.outputs.items()}
    tensors |= {"lookups": np.array(scores.lookups, np.int64)}
    tensors |= {"scored": scores.scored.astype(np.uint8), "refused": scores.refused.astype(np.uint8)}
    write_tensors(file, tensors, {})
    return file.getvalue()


def parse_scores(data: bytes) -> RequestScores:
    """Parse what dump_scores() wrote in another process of this server."""
    arrays = dict(parse_tensors(np.frombuffer(data, np.uint8), "scores").arrays)
    scored, refused = (arrays.pop(name).astype(bool) for name in ("scored", "refused"))
    asked, missed = arrays.pop("lookups").tolist()
    outputs = {name.removeprefix("output."): array for name, array in arrays.items()}
    return RequestScores(scored, refused, outputs, (asked, missed))
