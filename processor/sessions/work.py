"""What travels through a SessionGroup: a bound request in, a reply or an error out."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from processor.errors import FreshetError
from processor.features.plan import Bound
from processor.generation import Generation
from processor.sessions.batcher import Ticket
from processor.versions.replica import Replica

log = logging.getLogger("freshet.sessions")

Outputs = dict[str, NDArray[np.float32]]


class Timing(NamedTuple):
    """How a batch went, on the group's clock; one object for all its replies. sparse_s, dense_s: how long each took, of
    all its buckets together."""

    began_s: float
    ended_s: float
    sparse_s: float
    dense_s: float
    requests: int
    rows: int


class PredictReply(NamedTuple):
    """outputs: float32 [rows, columns] by name, all of one generation. timing: of its batch; None where several
    sessions have shared the request."""

    outputs: Outputs
    generation: Generation
    model: str
    timing: Timing | None = None


Done = Callable[[PredictReply | FreshetError], None]


@dataclass(slots=True, eq=False, kw_only=True)
class Work(Ticket):
    """Rows of one bound request of one version, from row `first` on. caller: who asks, for the policy "mod"."""

    version: Replica
    bound: Bound
    done: Done
    caller: int | None = None
    first: int = field(default=0)


def answer(done: Done, result: PredictReply | FreshetError) -> None:
    """Calls done(); what a callback raises is the caller's fault and must not end the session."""
    try:
        done(result)
    except Exception:
        log.exception("a reply could not be handed over")
