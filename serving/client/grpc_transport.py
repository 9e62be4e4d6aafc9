"""Send predictions by KServe v2 over gRPC."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import grpc
import grpc.aio

from freshet_serving.processor.errors import BadInput, FreshetError, Overloaded, TooLarge
from freshet_serving.serving.client.prediction import ERRORS, ClientCall, Prediction, error_of, output, prediction_of
from freshet_serving.serving.client.retry import ConnectionLost
from freshet_serving.serving.codecs.messages import message

SERVICE = "/inference.GRPCInferenceService/"
OPTIONS = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # A channel fails all requests until it connects again, and would wait for a second: a worker that was killed
    # resets connections while others serve. This is the least that gRPC takes.
    ("grpc.initial_reconnect_backoff_ms", 100),
]
STATUSES = {error.grpc_code: status for status, error in ERRORS.items()}
Request, Response = message("inference.ModelInferRequest"), message("inference.ModelInferResponse")


class RpcTransport:
    """A way to send calls to host:port over gRPC, from any thread; credentials of None are for plain text."""

    def __init__(self, target: str, credentials: grpc.ChannelCredentials | None) -> None:
        if credentials is None:
            self._channel = grpc.insecure_channel(target, OPTIONS)
        else:
            self._channel = grpc.secure_channel(target, credentials, OPTIONS)
        self._target = target
        self._infer = self._channel.unary_unary(SERVICE + "ModelInfer")
        self._ready = self._channel.unary_unary(SERVICE + "ServerReady")

    def send(self, call: ClientCall, timeout_s: float | None) -> Prediction:
        try:
            reply, grpc_call = self._infer.with_call(encode(call), timeout_s, call.headers)
        except grpc.RpcError as error:
            raise _error(self._target, error.code(), error.details(), error.trailing_metadata()) from None
        return decode(reply, grpc_call.trailing_metadata())

    def ready(self, timeout_s: float | None) -> bool:
        try:
            return _is_ready(self._ready(b"", timeout_s))
        except grpc.RpcError:
            return False

    def close(self) -> None:
        self._channel.close()


class AsyncRpcTransport:
    """The same for coroutines of one event loop."""

    def __init__(self, target: str, credentials: grpc.ChannelCredentials | None) -> None:
        if credentials is None:
            self._channel = grpc.aio.insecure_channel(target, OPTIONS)
        else:
            self._channel = grpc.aio.secure_channel(target, credentials, OPTIONS)
        self._target = target
        self._infer = self._channel.unary_unary(SERVICE + "ModelInfer")
        self._ready = self._channel.unary_unary(SERVICE + "ServerReady")

    async def send(self, call: ClientCall, timeout_s: float | None) -> Prediction:
        running = self._infer(encode(call), timeout=timeout_s, metadata=call.headers)
        try:
            return decode(await running, await running.trailing_metadata())
        except grpc.aio.AioRpcError as error:
            raise _error(self._target, error.code(), error.details(), error.trailing_metadata()) from None

    async def ready(self, timeout_s: float | None) -> bool:
        try:
            return _is_ready(await self._ready(b"", timeout=timeout_s))
        except grpc.aio.AioRpcError:
            return False

    async def close(self) -> None:
        await self._channel.close()


def encode(call: ClientCall) -> bytes:
    request = Request(model_name=call.model)
    if call.version is not None:
        request.model_version = str(call.version)
    for tensor in call.tensors:
        request.inputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
    for name in call.outputs:
        request.outputs.add(name=name)
    for name, value in call.parameters.items():
        setattr(request.parameters[name], _choice(name, value), value)
    request.raw_input_contents.extend(tensor.data for tensor in call.tensors)
    return bytes(request.SerializeToString())


def _choice(name: str, value: str | int | bool) -> str:
    """Return the field of an InferParameter that holds a value. Raises BadInput."""
    if isinstance(value, bool):
        return "bool_param"
    if isinstance(value, str):
        return "string_param"
    if not isinstance(value, int) or not -(2**63) <= value < 2**64:
        raise BadInput(
            f"parameters[{name[:64]}]: expected text, a boolean or a whole number of 64 bits, got another value"
        )
    return "int64_param" if value < 2**63 else "uint64_param"


def decode(data: bytes, metadata: Any) -> Prediction:
    """Decode a ModelInferResponse; `metadata` is the trailing metadata of the reply.

    Raises:
        FreshetError: Not a ModelInferResponse, or its parts are inconsistent.
    """
    try:
        reply = Response.FromString(data)
    except Exception:
        raise FreshetError("reply: expected a ModelInferResponse") from None
    raw = reply.raw_output_contents
    if len(raw) != len(reply.outputs):
        raise FreshetError(f"reply: expected {len(reply.outputs)} raw tensors, got {len(raw)}")
    outputs = {t.name: output(t.name, t.datatype, t.shape, data) for t, data in zip(reply.outputs, raw)}
    version = int(reply.model_version) if reply.model_version.isdigit() else 0
    try:
        return prediction_of(reply.model_name, version, outputs, partial(_text, metadata))
    except ValueError:
        raise FreshetError("reply: expected rows as numbers and features as JSON in its metadata") from None


def _error(target: str, code: grpc.StatusCode, details: str | None, metadata: Any) -> FreshetError:
    text = details or ""
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        pushback = _text(metadata, "grpc-retry-pushback-ms")
        # Without pushback the server did not shed load: the message was too large.
        if not pushback.isdigit():
            return TooLarge(text)
        return error_of(Overloaded.http_status, text, int(pushback) / 1e3)
    if code is grpc.StatusCode.UNAVAILABLE and not any(True for _ in metadata or ()):
        return ConnectionLost(f"{target}: {text[:200]}; is freshet serve running there?")
    return error_of(STATUSES.get(code.name, 500), text)


def _text(metadata: Iterable[tuple[str, str | bytes]] | None, name: str) -> str:
    return next((str(value) for key, value in metadata or () if key == name), "")


def _is_ready(data: bytes) -> bool:
    return bool(message("inference.ServerReadyResponse").FromString(data).ready)
