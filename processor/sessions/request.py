"""Requests and replies, as they travel through a Predictor and its SessionGroups: a request in, bound to a replica as
work, a reply or an error out."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.columns import Column
from freshet_serving.processor.errors import FreshetError
from freshet_serving.processor.features.plan import BoundRequest
from freshet_serving.processor.generation import Generation
from freshet_serving.processor.sessions.batcher import Ticket
from freshet_serving.processor.versions.replica import Replica

log = logging.getLogger("freshet.sessions")

Outputs = dict[str, NDArray[np.float32]]


class Timing(NamedTuple):
    """The timing of a batch, on the group's clock; one object for all its replies. sparse_s, dense_s: how long each
    took, of all its buckets together."""

    began_s: float
    ended_s: float
    sparse_s: float
    dense_s: float
    requests: int
    rows: int


@dataclass(slots=True)
class PredictRequest:
    """One client's request. inputs: by the manifest's names; rows of 1 are broadcast. version or label: which version,
    else as traffic is routed. timeout_s: an answer later than that is worth nothing. caller: who asks, for the policy
    "mod". key: requests of one are answered by one version of a split. request_id: the client's, or ""."""

    model: str
    inputs: Mapping[str, Column]
    version: int | None = None
    label: str | None = None
    timeout_s: float | None = None
    caller: int | None = None
    key: bytes | None = None
    request_id: str = ""


class PredictReply(NamedTuple):
    """The answer to a PredictRequest. outputs: float32 [rows, columns] by name, all of one generation. timing: of its
    batch; None where several sessions have shared the request."""

    outputs: Outputs
    generation: Generation
    model: str
    timing: Timing | None = None


Done = Callable[[PredictReply | FreshetError], None]


@dataclass(slots=True, eq=False, kw_only=True)
class Work(Ticket):
    """Rows of one bound request, from row `first` on. replica: what computes them. caller: who asks, for the policy
    "mod"."""

    replica: Replica
    bound: BoundRequest
    done: Done
    caller: int | None = None
    first: int = field(default=0)


def answer(done: Done, result: PredictReply | FreshetError) -> None:
    """Calls done(); what a callback raises is the caller's fault and must not end the session."""
    try:
        done(result)
    except Exception:
        log.exception("a reply could not be handed over")
