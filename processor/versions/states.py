"""States of a version as its writer keeps them: the one to publish, those that can be restored, and how."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.generation import Generation
from freshet_serving.processor.tables.table import RowVersions
from freshet_serving.processor.versions.replica import Dense, Frame


@dataclass(frozen=True, slots=True, eq=False)
class StateChange:
    """A change of a version: what one flip publishes.

    Attributes:
        publish_seq: The flip.
        epoch: Epoch of the table rows.
        generation: The generation that is served under the flip.
        frame: Buffers and dense weights.
    """

    publish_seq: int
    epoch: int
    generation: Generation
    frame: Frame


@dataclass(slots=True)
class UndoEntry:
    """An entry of the undo log: everything needed to go back over one delta.

    Attributes:
        epoch: Epoch before the delta.
        versions: Row versions that the delta staged, by table.
        dense: Dense tensors that it replaced.
        published_at: `published_at` before the delta.
        event_time: `event_time` before the delta.
        digest: Digest of the generation before the delta.
    """

    epoch: int
    versions: dict[str, RowVersions]
    dense: dict[str, NDArray[np.float32]]
    published_at: float
    event_time: tuple[float, float] | None
    digest: str


@dataclass(frozen=True, slots=True, eq=False)
class PastState:
    """The state of a generation.

    Attributes:
        generation: The generation.
        epoch: Epoch of its rows.
        dense: Its dense tensors.
    """

    generation: Generation
    epoch: int
    dense: Dense
