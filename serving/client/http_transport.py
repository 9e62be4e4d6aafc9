"""Send predictions by KServe v2 over binary HTTP, with httpx."""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import httpx
import orjson

from freshet_serving.processor.errors import Expired, FreshetError
from freshet_serving.serving.client.prediction import ClientCall, Prediction, error_of, output, prediction_of
from freshet_serving.serving.client.retry import ConnectionLost

HEADER_LENGTH = "inference-header-content-length"
READY_PATH = "/v2/health/ready"


class HttpTransport:
    """A way to send calls to one server over HTTP, from any thread; a timeout of None is unlimited.

    Args:
        connections: Maximum number of open connections.
        verify: TLS context that checks the server's certificate; False for plain HTTP.
    """

    def __init__(self, address: str, connections: int, verify: ssl.SSLContext | bool) -> None:
        limits = _limits(connections)
        self._client = httpx.Client(base_url=address, limits=limits, timeout=None, trust_env=False, verify=verify)

    def send(self, call: ClientCall, timeout_s: float | None) -> Prediction:
        path, headers, body = encode(call, timeout_s)
        try:
            reply = self._client.post(path, content=body, headers=headers, timeout=timeout_s)
        except httpx.HTTPError as error:
            raise _error(error, self._client.base_url) from None
        return decode(reply.status_code, reply.headers, reply.content)

    def ready(self, timeout_s: float | None) -> bool:
        try:
            return self._client.get(READY_PATH, timeout=timeout_s).status_code == 200
        except httpx.HTTPError:
            return False

    def close(self) -> None:
        self._client.close()


class AsyncHttpTransport:
    """The same for coroutines of one event loop."""

    def __init__(self, address: str, connections: int, verify: ssl.SSLContext | bool) -> None:
        limits = _limits(connections)
        self._client = httpx.AsyncClient(base_url=address, limits=limits, timeout=None, trust_env=False, verify=verify)

    async def send(self, call: ClientCall, timeout_s: float | None) -> Prediction:
        path, headers, body = encode(call, timeout_s)
        try:
            reply = await self._client.post(path, content=body, headers=headers, timeout=timeout_s)
        except httpx.HTTPError as error:
            raise _error(error, self._client.base_url) from None
        return decode(reply.status_code, reply.headers, reply.content)

    async def ready(self, timeout_s: float | None) -> bool:
        try:
            return (await self._client.get(READY_PATH, timeout=timeout_s)).status_code == 200
        except httpx.HTTPError:
            return False

    async def close(self) -> None:
        await self._client.aclose()


def encode(call: ClientCall, timeout_s: float | None) -> tuple[str, dict[str, str], bytes]:
    """Return the path, headers and body of a call; the server gets the time limit, unless it is None."""
    path = f"/v2/models/{quote(call.model, safe='')}"
    if call.version is not None:
        path += f"/versions/{call.version}"
    inputs = [
        {"name": t.name, "datatype": t.datatype, "shape": t.shape, "parameters": {"binary_data_size": len(t.data)}}
        for t in call.tensors
    ]
    document: dict[str, Any] = {"inputs": inputs, "parameters": {"binary_data_output": True, **call.parameters}}
    if call.outputs:
        document["outputs"] = [{"name": name, "parameters": {"binary_data": True}} for name in call.outputs]
    header = orjson.dumps(document)
    headers = {"content-type": "application/octet-stream", HEADER_LENGTH: str(len(header)), **dict(call.headers)}
    if timeout_s is not None:
        headers["x-request-timeout-ms"] = f"{timeout_s * 1e3:.3f}"
    return f"{path}/infer", headers, b"".join([header, *(t.data for t in call.tensors)])


def decode(status: int, headers: Mapping[str, str], body: bytes) -> Prediction:
    """Decode a reply.

    Raises:
        FreshetError: The error that the server reports, or one that describes what is wrong with the reply.
    """
    if status != 200:
        raise error_of(status, _message(body), _seconds(headers.get("retry-after")))
    length = headers.get(HEADER_LENGTH, "")
    if not (length.isascii() and length.isdigit() and len(length) < 10 and int(length) <= len(body)):
        raise FreshetError("reply: expected binary tensors after a JSON header of the stated length")
    at = int(length)
    try:
        document = orjson.loads(memoryview(body)[:at])
        outputs = {}
        for tensor in document["outputs"]:
            nbytes = tensor["parameters"]["binary_data_size"]
            if type(nbytes) is not int or not 0 <= nbytes <= len(body) - at:
                raise FreshetError("reply: an output extends beyond the end of the body")
            outputs[tensor["name"]] = output(
                tensor["name"], tensor["datatype"], tensor["shape"], memoryview(body)[at : at + nbytes]
            )
            at += nbytes
        version = int(document.get("model_version", 0))
        return prediction_of(document["model_name"], version, outputs, lambda name: headers.get(name, ""))
    except (KeyError, TypeError, ValueError) as error:
        raise FreshetError(f"reply: not a valid KServe v2 reply ({type(error).__name__})") from None


def _limits(connections: int) -> httpx.Limits:
    return httpx.Limits(max_connections=connections, max_keepalive_connections=connections)


def _error(error: httpx.HTTPError, address: httpx.URL) -> FreshetError:
    if isinstance(error, httpx.TimeoutException):
        return Expired("deadline: passed before the reply arrived")
    where = str(address).rstrip("/")
    if isinstance(error, httpx.ConnectError):
        why = re.sub(r"^\[Errno -?\d+\] ", "", str(error)) or "cannot connect"
        return ConnectionLost(f"{where}: {why}; is freshet serve running there?")
    return ConnectionLost(f"{where}: the connection was lost ({type(error).__name__})")


def _message(body: bytes) -> str:
    try:
        message = orjson.loads(body)["error"]
    except (KeyError, TypeError, ValueError):
        return ""
    return message if isinstance(message, str) else ""


def _seconds(text: str | None) -> float | None:
    return float(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 10 else None
