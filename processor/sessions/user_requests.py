"""Requests about kept users (processor.features.user_calls) on their way through a predictor.

Such a request is completed once, before anything else looks at its inputs. One that only changes or forgets what is
cached is answered without a batch. One that prepares is computed with blank candidates, which nobody else sees, so that
the user's part is cached where it can be (processor.running.user_states). A reply that may be of an older or rounded
user's part names the generation of that part.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from freshet_serving.processor.columns import Column, Strings, take_rows
from freshet_serving.processor.errors import FreshetError
from freshet_serving.processor.features.input_reader import blank_inputs
from freshet_serving.processor.features.user_bounds import UserBounds
from freshet_serving.processor.features.user_calls import CompletedInputs, KeptUsers, not_kept, roles_of
from freshet_serving.processor.generation import Generation
from freshet_serving.processor.sessions.request import Done, PredictReply, PredictRequest
from freshet_serving.processor.versions.replica import Replica


def complete(request: PredictRequest, replica: Replica, users: KeptUsers | None) -> CompletedInputs | None:
    """Complete the inputs of a request about a kept user, once (KeptUsers.complete); return None if there is none."""
    call = request.user_call
    if call is None or request.completed is not None:
        return request.completed
    ranks = bool(request.top_items)
    if users is None:
        if (error := not_kept(replica.manifest, request.inputs, ranks)) is not None:
            raise error
        request.user_call = None
        return None
    request.completed = users.complete(call, replica.manifest, request.inputs, ranks)
    request.inputs = request.completed.inputs
    return request.completed


def released_before(request: PredictRequest, users: KeptUsers | None, done: Done) -> Done:
    """Return a callback that answers a request after its user is forgotten, if the request asks for that."""
    call = request.user_call
    if call is None or users is None or not call.releases:
        return done

    def answer_last(result: PredictReply | FreshetError) -> None:
        if not isinstance(result, FreshetError):
            try:
                users.release(call, request.model)
            except FreshetError as error:
                result = error
        done(result)

    return answer_last


def with_blank_candidates(replica: Replica, inputs: Mapping[str, Column]) -> dict[str, Column]:
    """Return a user's inputs with blank candidates: the fewest with which the user's part is computed by itself."""
    manifest, rows = replica.manifest, replica.graphs.fewest_divided
    # Late values fill what else the user leaves out.
    filled = roles_of(manifest).user & manifest.fillers.keys()
    blank = {n: c for n, c in blank_inputs(manifest).items() if n not in inputs and n not in filled}
    # A row of strings is several of them.
    sizes = {name: rows * (len(column) if isinstance(column, Strings) else 1) for name, column in blank.items()}
    return {**{name: take_rows(blank[name], np.zeros(size, np.int64)) for name, size in sizes.items()}, **inputs}


def empty_reply(replica: Replica, model: str) -> PredictReply:
    outputs = {name: np.empty((0, columns), np.float32) for name, columns in replica.outputs.items()}
    return PredictReply(outputs, replica.generation, model)


def with_user_step(bounds: UserBounds, done: Done) -> Done:
    """Return a callback that answers a request with the generation of an older user's part."""

    def answer_named(result: PredictReply | FreshetError) -> None:
        if bounds.step is not None and not isinstance(result, FreshetError):
            result = result._replace(state_generation=Generation(result.generation.version, bounds.step))
        done(result)

    return answer_named
