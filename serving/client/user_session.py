"""One user whose inputs the server keeps: sent once, then changed event by event, and scored by candidates alone.

    user = client.user("ranker", "4711")
    user.prepare({"user": 4711, "history.item": [3, 5], "history.time": [100, 160]})
    user.append({"history.item": [9], "history.time": [220]})
    scores = user.score({"item": [12, 13, 14]})

A session holds no connection and no inputs: any program may make one for the same id. The server needs
--user-state-mb. A user that it no longer keeps is UserGone: prepare it again.

A change that was lost on its way is sent again, like a prediction. With times an event is never added twice; without
times give `version`, what the last reply named, and a change that had arrived is a Conflict.
"""

from __future__ import annotations

import operator
from collections.abc import Coroutine, Mapping
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.columns import Ragged
from freshet_serving.serving.client.arrays import Values
from freshet_serving.serving.client.prediction import Prediction, Recommendation

Options = dict[str, Any]
R = TypeVar("R")


class _BaseSession(Generic[R]):
    """Changes of one user, whose replies come at once or are awaited.

    Args:
        sequence_id: The user's id: at most 256 bytes of UTF-8, or a whole number; "" and 0 are none.
    """

    def __init__(self, client: Any, model: str, sequence_id: str | int) -> None:
        self._client, self._model, self._sequence_id = client, model, sequence_id

    def prepare(self, user: Mapping[str, Values], **options: Any) -> R:
        """Keep the inputs of the user in place of what is kept, and compute ahead what depends on them alone.

        Args:
            user: For each of the user's inputs one value; for a history the list of its values.
            **options: Options of Client.predict().
        """
        return self._ask(as_rows(user), options, sequence_start=True)

    def append(self, events: Mapping[str, Values], version: int | None = None, **options: Any) -> R:
        """Add events to the user's sequences, each at its place by time; other inputs take the place of what is kept.

        Args:
            events: For each column of a sequence the list of its values.
            version: The user's version (Prediction.sequence_version) before the change; None for any.
            **options: Options of Client.predict().
        """
        return self._ask(as_rows(events), options, version)

    def replace(self, events: Mapping[str, Values], version: int | None = None, **options: Any) -> R:
        """Put events in the place of those of the same times; of a sequence without times, in the place of all.

        Args:
            events: As append().
            version: As append().
            **options: Options of Client.predict().
        """
        return self._ask(as_rows(events), options, version, sequence_replace=True)

    def remove(self, events: Mapping[str, Values], version: int | None = None, **options: Any) -> R:
        """Take events back, sent as they were appended.

        Args:
            events: As append().
            version: As append().
            **options: Options of Client.predict().
        """
        return self._ask(as_rows(events), options, version, sequence_remove=True)

    def _ask(self, inputs: Mapping[str, Values], options: Options, version: int | None = None, **flags: bool) -> R:
        parameters = parameters_of(self._sequence_id, version, flags)
        reply: R = self._client.predict(self._model, inputs, parameters=parameters, **options)
        return reply


class UserSession(_BaseSession[Prediction]):
    """One user of a model, over a Client. Thread-safe."""

    def score(
        self,
        candidates: Mapping[str, Values],
        *,
        events: Mapping[str, Values] | None = None,
        output: str | None = None,
        **options: Any,
    ) -> NDArray[np.float32]:
        """Return the scores of N candidates, float32 [N].

        Args:
            candidates: For each input of the candidates an array [N] or [N, columns].
            events: Events to append first.
            output: Name of the output to return; may be None if the model has one output.
            **options: Options of Client.predict().

        Raises:
            UserGone: The server keeps nothing of the user.
        """
        inputs = {**as_rows(events or {}), **candidates}
        return self._ask(inputs, options).scores(output)

    def recommend(self, k: int = 10, **options: Any) -> Recommendation:
        """Return the best items of the whole table, best first: at most k.

        Args:
            k: Most items.
            **options: Options of Client.recommend(); filters, allow, block and seen among them.

        Raises:
            UserGone: The server keeps nothing of the user.
        """
        best: Recommendation = self._client.recommend(
            self._model, {}, k, parameters=parameters_of(self._sequence_id), **options
        )
        return best

    def release(self, **options: Any) -> None:
        """Have the user forgotten; nothing happens if nothing is kept.

        Args:
            **options: Options of Client.predict().
        """
        self._ask({}, options, sequence_end=True)


class AsyncUserSession(_BaseSession[Coroutine[Any, Any, Prediction]]):
    """One user of a model, over an AsyncClient. Methods are those of UserSession, and are awaited."""

    async def score(
        self,
        candidates: Mapping[str, Values],
        *,
        events: Mapping[str, Values] | None = None,
        output: str | None = None,
        **options: Any,
    ) -> NDArray[np.float32]:
        """Return the scores of N candidates, like UserSession.score."""
        inputs = {**as_rows(events or {}), **candidates}
        return (await self._ask(inputs, options)).scores(output)

    async def recommend(self, k: int = 10, **options: Any) -> Recommendation:
        """Return the best items, like UserSession.recommend."""
        best: Recommendation = await self._client.recommend(
            self._model, {}, k, parameters=parameters_of(self._sequence_id), **options
        )
        return best

    async def release(self, **options: Any) -> None:
        """Have the user forgotten, like UserSession.release."""
        await self._ask({}, options, sequence_end=True)


def parameters_of(
    sequence_id: str | int, version: int | None = None, flags: Mapping[str, bool] | None = None
) -> Options:
    """Return the parameters of a KServe request about a user; with a version, the user must have it."""
    if not isinstance(sequence_id, str):
        sequence_id = operator.index(sequence_id)
    expected = {} if version is None else {"sequence_version": version}
    return {"sequence_id": sequence_id, **expected, **(flags or {})}


def as_rows(user: Mapping[str, Values]) -> dict[str, Values]:
    """Return one user's values as inputs of one row: a plain list is that of a history."""
    return {name: _as_row(values) for name, values in user.items()}


def _as_row(values: Values) -> Values:
    if isinstance(values, Ragged) or np.ndim(values) > 1:
        return values
    return Ragged.of([list(values)]) if np.ndim(values) else [values]
