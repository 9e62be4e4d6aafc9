"""Client and AsyncClient: predictions from one server.

A Client may be used from many threads, an AsyncClient from the coroutines of one event loop.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.columns import Ragged
from freshet_serving.processor.errors import BadInput, FreshetError
from freshet_serving.processor.extras import needed
from freshet_serving.serving.client.arrays import Values, of_user, tensors
from freshet_serving.serving.client.client_credentials import ClientCredentials
from freshet_serving.serving.client.prediction import ClientCall, Prediction, Recommendation
from freshet_serving.serving.client.retry import Retry, RetryState
from freshet_serving.serving.client.user_session import AsyncUserSession, UserSession, as_rows

if TYPE_CHECKING:
    from freshet_serving.serving.client.grpc_transport import AsyncRpcTransport, RpcTransport
    from freshet_serving.serving.client.http_transport import AsyncHttpTransport, HttpTransport

TOP_ITEMS = "x-top-items"
SCHEMES = ("http", "https", "grpc", "grpcs")


class _BaseClient:
    """The part that both clients share; Client documents the arguments."""

    _is_async = False
    _transport: Any

    def __init__(
        self,
        address: str,
        *,
        timeout_s: float | None = 1.0,
        retry: Retry | None = None,
        connections: int = 64,
        key: str = "",
        ca: str = "",
        certificate: str = "",
        private_key: str = "",
    ) -> None:
        scheme, target = _target(address)
        self._client_credentials = client_credentials = ClientCredentials(key, ca, certificate, private_key)
        self._timeout_s, self._retry = timeout_s, retry or Retry()
        if scheme.startswith("http"):
            with needed("a client over HTTP"):
                from freshet_serving.serving.client.http_transport import AsyncHttpTransport, HttpTransport

            context = client_credentials.context() if scheme == "https" else False
            over_http = AsyncHttpTransport if self._is_async else HttpTransport
            self._transport = over_http(address, connections, context)
        else:
            from freshet_serving.serving.client.grpc_transport import AsyncRpcTransport, RpcTransport

            credentials = client_credentials.channel_credentials() if scheme == "grpcs" else None
            over_rpc = AsyncRpcTransport if self._is_async else RpcTransport
            self._transport = over_rpc(target, credentials)

    def _start(
        self,
        model: str,
        inputs: Mapping[str, Values],
        version: int | None,
        outputs: Sequence[str],
        top_items: int | None,
        timeout_s: float | None,
        headers: Mapping[str, str] | None,
        parameters: Mapping[str, str | int | bool] | None,
    ) -> tuple[ClientCall, RetryState]:
        ranking = () if top_items is None else ((TOP_ITEMS, str(top_items)),)
        all_headers = (*self._client_credentials.headers, *(headers or {}).items(), *ranking)
        call = ClientCall(model, version, tensors(inputs), tuple(outputs), all_headers, parameters or {})
        return call, RetryState(self._retry, self._timeout_s if timeout_s is None else timeout_s)


class Client(_BaseClient):
    """Predictions from one server. Thread-safe.

        >>> inputs = {"user": [1, 2], "tags": Ragged.of([["a"], []]), "floats": np.zeros((2, 4), np.float32)}
        >>> with Client("http://127.0.0.1:8080", timeout_s=5.0) as client:
        ...     prediction = client.predict("ctr", inputs)
        >>> prediction.outputs["score"].shape
        (2, 1)

    Args:
        address: http://host:port, https://host:port, grpc://host:port or grpcs://host:port.
        timeout_s: Default time limit of a prediction, all attempts included; None for no limit.
        retry: Retry policy; the default of Retry if None.
        connections: Maximum number of open connections, over HTTP.
        key: API key made by `freshet key create`, for servers that require one.
        ca: PEM file of the authorities to trust for the server's certificate; the system's if empty.
        certificate: PEM file of the client's own certificate, for servers that require one.
        private_key: PEM file of its private key.
    """

    _transport: HttpTransport | RpcTransport

    def predict(
        self,
        model: str,
        inputs: Mapping[str, Values],
        *,
        version: int | None = None,
        outputs: Sequence[str] = (),
        top_items: int | None = None,
        timeout_s: float | None = None,
        headers: Mapping[str, str] | None = None,
        parameters: Mapping[str, str | int | bool] | None = None,
    ) -> Prediction:
        """Score n rows: arrays [n] or [n, columns]. An input with one row is broadcast to all rows.

        Args:
            model: Name of the model.
            inputs: Values by input name.
            version: Version number; if None the server chooses, by the model's traffic split.
            outputs: Names of the outputs to return; all if empty.
            top_items: Number of the best items of the whole table to return for each user, from a model that ranks
                items: `item_ids` int64 and `scores` float32 [users, items], best first. The candidates are left out.
            timeout_s: Time limit, all attempts included; the client's default if None.
            headers: Extra headers such as x-sticky-key, x-request-id or traceparent; sent as metadata over gRPC.
            parameters: Parameters of KServe's request, such as those of user().

        Raises:
            FreshetError: The error of the last attempt: BadInput, NotFound, Overloaded, NotReady, Expired,
                ConnectionLost or another.
        """
        call, attempts = self._start(model, inputs, version, outputs, top_items, timeout_s, headers, parameters)
        while True:
            left_s = attempts.begin()
            try:
                return self._transport.send(call, left_s)
            except FreshetError as error:
                wait_s = attempts.wait_s(error)
            time.sleep(wait_s)

    def rank(
        self,
        model: str,
        user: Mapping[str, Values],
        candidates: Mapping[str, Values],
        *,
        output: str | None = None,
        **options: Any,
    ) -> NDArray[np.float32]:
        """Return the scores of N candidates for one user, float32 [N]. The user's inputs are sent and looked up once.

        Args:
            model: Name of the model.
            user: For each input of the user one value, or the columns of one row.
            candidates: For each input of the candidates an array [N] or [N, columns].
            output: Name of the output to return; may be None if the model has one output.
            **options: Options of predict().
        """
        return self.predict(model, _ranking(user, candidates), **options).scores(output)

    def recommend(
        self,
        model: str,
        user: Mapping[str, Values],
        k: int = 10,
        *,
        filters: Mapping[str, Any] | None = None,
        allow: Values = None,
        block: Values = None,
        seen: Values = None,
        like: int | str | None = None,
        source: str | None = None,
        **options: Any,
    ) -> Recommendation:
        """Return the best items of the whole table for one user, best first: at most k, fewer if fewer are left.

        Args:
            model: Name of a model that ranks items.
            user: For each of the user's inputs one value; for a history the list of its values. {} for a user of whom
                nothing is known.
            k: Most items.
            filters: Conditions on the items' columns, such as {"price": [None, 20], "category": ["a", "b"],
                "brand": {"not": ["x"]}, "in_stock": True}.
            allow: Ids of the only items that may be returned.
            block: Ids of items that may not be returned.
            seen: Ids of items that the user has had; those of the history are left out anyway.
            like: Id of the item that others are to be like; the list is empty if the model does not know it.
            source: What ranks the items: "model" (the default), "popular" (lately), "new" (newest first), or "like".
                For all but the model, `user` may be {}.
            **options: Options of predict().

        Raises:
            FreshetError: As predict().
        """
        lists, headers = (allow, block, seen), options.pop("headers", None)
        inputs, headers = _recommending(user, k, filters, lists, like, source, headers)
        return Recommendation.of(self.predict(model, inputs, headers=headers, **options))

    def user(self, model: str, sequence_id: str | int) -> UserSession:
        """Return one user of a model whose inputs the server keeps; asks nobody.

        Args:
            model: Name of the model.
            sequence_id: The user's id: at most 256 bytes of UTF-8, or a whole number; "" and 0 are none.
        """
        return UserSession(self, model, sequence_id)

    def ready(self, timeout_s: float | None = 1.0) -> bool:
        """Return whether the server answers and its models are ready."""
        return self._transport.ready(timeout_s)

    def close(self) -> None:
        self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class AsyncClient(_BaseClient):
    """Predictions from one server, with asyncio. Takes the arguments of Client."""

    _is_async = True
    _transport: AsyncHttpTransport | AsyncRpcTransport

    async def predict(
        self,
        model: str,
        inputs: Mapping[str, Values],
        *,
        version: int | None = None,
        outputs: Sequence[str] = (),
        top_items: int | None = None,
        timeout_s: float | None = None,
        headers: Mapping[str, str] | None = None,
        parameters: Mapping[str, str | int | bool] | None = None,
    ) -> Prediction:
        """Score n rows, like Client.predict."""
        call, attempts = self._start(model, inputs, version, outputs, top_items, timeout_s, headers, parameters)
        while True:
            left_s = attempts.begin()
            try:
                return await self._transport.send(call, left_s)
            except FreshetError as error:
                wait_s = attempts.wait_s(error)
            await asyncio.sleep(wait_s)

    async def rank(
        self,
        model: str,
        user: Mapping[str, Values],
        candidates: Mapping[str, Values],
        *,
        output: str | None = None,
        **options: Any,
    ) -> NDArray[np.float32]:
        """Return the scores of N candidates for one user, like Client.rank."""
        return (await self.predict(model, _ranking(user, candidates), **options)).scores(output)

    async def recommend(
        self,
        model: str,
        user: Mapping[str, Values],
        k: int = 10,
        *,
        filters: Mapping[str, Any] | None = None,
        allow: Values = None,
        block: Values = None,
        seen: Values = None,
        like: int | str | None = None,
        source: str | None = None,
        **options: Any,
    ) -> Recommendation:
        """Return the best items of the whole table for one user, like Client.recommend."""
        lists, headers = (allow, block, seen), options.pop("headers", None)
        inputs, headers = _recommending(user, k, filters, lists, like, source, headers)
        return Recommendation.of(await self.predict(model, inputs, headers=headers, **options))

    def user(self, model: str, sequence_id: str | int) -> AsyncUserSession:
        """Return one user of a model, like Client.user."""
        return AsyncUserSession(self, model, sequence_id)

    async def ready(self, timeout_s: float | None = 1.0) -> bool:
        """Return whether the server answers and its models are ready."""
        return await self._transport.ready(timeout_s)

    async def close(self) -> None:
        await self._transport.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()


def _target(address: str) -> tuple[str, str]:
    """Return the scheme, and the host with its port. Raises BadInput."""
    parts = urlsplit(address)
    if parts.scheme not in SCHEMES or not parts.netloc or parts.path not in ("", "/"):
        raise BadInput(f"address: expected {', '.join(f'{s}://host:port' for s in SCHEMES)}, got {address[:64]!r}")
    return parts.scheme, parts.netloc


def _ranking(user: Mapping[str, Values], candidates: Mapping[str, Values]) -> dict[str, Values]:
    if shared := set(user) & set(candidates):
        raise BadInput(f"inputs[{sorted(shared)[0]}]: expected in either user or candidates, got both")
    return {**of_user(user), **candidates}


def _recommending(
    user: Mapping[str, Values],
    k: int,
    filters: Mapping[str, Any] | None,
    lists: tuple[Values, Values, Values],
    like: int | str | None,
    source: str | None,
    headers: Mapping[str, str] | None,
) -> tuple[dict[str, Values], dict[str, str]]:
    chosen: dict[str, Values] = {
        name: items if isinstance(items, Ragged) else Ragged.of([items])
        for name, items in zip(("allow", "block", "seen"), lists)
        if items is not None
    }
    chosen |= {name: [value] for name, value in (("like", like), ("source", source)) if value is not None}
    if filters is not None:
        chosen["filter"] = [_json(filters)]
    if shared := user.keys() & chosen.keys():
        name = min(shared)
        raise BadInput(f"{name}: expected either in user or as an option, got both")
    return {**as_rows(user), **chosen}, {**(headers or {}), TOP_ITEMS: str(k)}


def _json(filters: Mapping[str, Any]) -> str:
    try:
        return json.dumps(filters, allow_nan=False, default=_plain)
    except (TypeError, ValueError) as error:
        raise BadInput(f"filters: expected what JSON can hold, got another value: {error}") from None


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise TypeError(f"expected numbers, text, lists and objects, got {type(value).__name__}")
