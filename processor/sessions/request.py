"""Define requests and replies as they travel through a Predictor and its SessionGroups.

A request becomes a work item once it is bound to a replica, and ends as a reply or an error.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.columns import Column
from freshet_serving.processor.errors import FreshetError
from freshet_serving.processor.features.bound_request import BoundRequest, UsedRecords
from freshet_serving.processor.features.input_lookup import FilledInputs
from freshet_serving.processor.generation import Generation
from freshet_serving.processor.package import DROP
from freshet_serving.processor.sessions.batcher import Ticket
from freshet_serving.processor.versions.replica import Replica

if TYPE_CHECKING:
    from freshet_serving.processor.features.user_calls import CompletedInputs, UserCall

log = logging.getLogger("freshet.sessions")

Outputs = dict[str, NDArray[np.float32]]
MAX_TOP_ITEMS = 10_000
"""Most items that a request may ask for, for each of its users."""


class Timing(NamedTuple):
    """The timing of a batch on the group's clock, in all its buckets; one object for all its replies."""

    began_s: float
    ended_s: float
    sparse_s: float
    dense_s: float
    requests: int
    rows: int


@dataclass(slots=True)
class PredictRequest:
    """One client's request.

    Attributes:
        model: The model's name.
        inputs: Columns by the manifest's names; inputs of one row are broadcast.
        version: The requested version; None to route by label or traffic.
        label: The requested label; None to route by version or traffic.
        timeout_s: Seconds after which an answer is worthless; None for no deadline.
        key: Sticky key: requests with the same key are answered by one version of a split.
        request_id: The client's id, or "".
        filled: What was looked up of the inputs that it left out; set when it is submitted.
        left_out: What it leaves out (InputLookup.find), if a store has to be asked for it; else None.
        shows_features: True to keep the values that entities fill in, in `used`, for the reply.
        used: These values, complete once there is a reply; None if there are none.
        top_items: Number of the best items to reply with instead of the scores of candidates: of all items, or of the
            candidates if there are any; 0 to score candidates.
        user_call: What it says about a user whose inputs are kept; None for nothing.
        completed: Its inputs with those of the user, once they are known.
        sender: Name of the API key that sent it, whose fair share it counts to; "" where there are none.
    """

    model: str
    inputs: Mapping[str, Column]
    version: int | None = None
    label: str | None = None
    timeout_s: float | None = None
    key: bytes | None = None
    request_id: str = ""
    filled: FilledInputs | None = None
    left_out: Any = None
    shows_features: bool = False
    used: UsedRecords | None = None
    top_items: int = 0
    user_call: UserCall | None = None
    completed: CompletedInputs | None = None
    sender: str = ""


class PredictReply(NamedTuple):
    """The answer to a PredictRequest.

    Attributes:
        outputs: float32 [rows, columns] by name, all of one generation; for the best items `item_ids`, int64 or objects
            (str), and `scores` float32, [users, items] each.
        generation: The generation that computed them.
        model: The model's name.
        timing: Timing of its batch; None if several sessions shared the request.
        unknown_rows: Rows of the request that have outputs although the model knows no features for their key, where
            the model marks them.
        dropped_rows: Rows of the request that have no outputs for that reason, where the model drops them.
        item_generation: For the best items, the generation that their vectors are of, where they lag.
        unfilled: Of the best items, how many fewer there are for each user than the request asks for.
        state_generation: The generation that the user's part is of, if kept and older or rounded; None else.
    """

    outputs: dict[str, NDArray[Any]]
    generation: Generation
    model: str
    timing: Timing | None = None
    unknown_rows: tuple[int, ...] = ()
    dropped_rows: tuple[int, ...] = ()
    item_generation: Generation | None = None
    unfilled: int = 0
    state_generation: Generation | None = None


Done = Callable[[PredictReply | FreshetError], None]


def without_unknown(bound: BoundRequest, done: Done) -> Done:
    """Return a callback that answers a request as the model treats unknown keys; its flags are final with the reply."""

    def answer_known(result: PredictReply | FreshetError) -> None:
        done(result if isinstance(result, FreshetError) else _with_missing_rows(bound, result))

    return answer_known


def without_rows(done: Done) -> Done:
    """Return a callback that answers a request with no rows."""

    def answer_none(result: PredictReply | FreshetError) -> None:
        if not isinstance(result, FreshetError):
            result = result._replace(outputs={name: array[:0] for name, array in result.outputs.items()})
        done(result)

    return answer_none


def _with_missing_rows(bound: BoundRequest, reply: PredictReply) -> PredictReply:
    marked, dropped = np.zeros(bound.rows, np.bool_), np.zeros(bound.rows, np.bool_)
    for policy, flags in bound.unknown:
        into = dropped if policy == DROP else marked
        # One key for all rows has one flag.
        into |= flags != 0
    unknown, dropped_rows = (tuple(np.flatnonzero(rows).tolist()) for rows in (marked & ~dropped, dropped))
    outputs = reply.outputs
    if dropped_rows:
        outputs = {name: np.ascontiguousarray(array[~dropped]) for name, array in outputs.items()}
    return reply._replace(outputs=outputs, unknown_rows=unknown, dropped_rows=dropped_rows)


@dataclass(slots=True, eq=False, kw_only=True)
class Work(Ticket):
    """A work item: rows of one bound request, from row `first` on."""

    replica: Replica
    bound: BoundRequest
    done: Done
    first: int = field(default=0)


def answer(done: Done, result: PredictReply | FreshetError) -> None:
    """Call done(); an exception of the callback is logged and must not end the session."""
    try:
        done(result)
    except Exception:
        log.exception("could not deliver a reply")
