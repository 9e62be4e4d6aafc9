"""Clients that ask about kept users, one for each way to say it: all return the same kind of reply.

Changes of this story may be sent twice, so a request that is lost with a killed worker is sent again.
"""

from __future__ import annotations

import http.client
import json
import queue
from dataclasses import dataclass

import numpy as np

from freshet_serving import Client, Ragged, UserGone
from freshet_serving.processor.errors import Conflict, FreshetError
from tests.support.user_story import MODEL

TIMEOUT_S, ATTEMPTS = 60, 20
GONE, CONFLICT = "gone", "conflict"
LISTS = ("history.time", "history.item", "history.action")
TRANSIENT = {429, 503}


@dataclass(frozen=True)
class Asked:
    """A request.

    user: its sequence id, None for a request that is sent whole. change: "score", "prepare", "append", "replace" or
    "remove". key: the user's input, None to leave it out. events: None to leave the history out. items: candidates
    with their prices, none for a change alone. releases: whether the user is forgotten afterwards.
    """

    user: str | None
    change: str = "score"
    key: int | None = None
    events: list | None = None
    items: tuple = ()
    prices: tuple = ()
    version: int | None = None
    releases: bool = False

    def flat(self):
        """Return inputs as arrays; the history as one list a column, without its offsets."""
        inputs = {} if self.key is None else {"user": np.array([self.key], np.int64)}
        if self.events is not None:
            columns = np.array(self.events, np.int64).reshape(-1, len(LISTS)).T
            inputs |= {name: np.ascontiguousarray(column) for name, column in zip(LISTS, columns)}
        if len(self.items):
            inputs |= {"item": np.array(self.items, np.int64), "price": np.array(self.prices, np.float32)}
        return inputs

    def parameters(self):
        if self.user is None:
            return {}
        flags = {"prepare": "sequence_start", "replace": "sequence_replace", "remove": "sequence_remove"}
        said = {"sequence_id": self.user} | ({flags[self.change]: True} if self.change in flags else {})
        said |= {"sequence_end": True} if self.releases else {}
        return said | ({} if self.version is None else {"sequence_version": self.version})


@dataclass(frozen=True)
class Replied:
    """A reply: its step, the scores, and the user's version; or the error GONE or CONFLICT.

    state_step: the step of the user's part, if it is another.
    """

    step: int = 0
    scores: np.ndarray | None = None
    version: int = 0
    error: str = ""
    state_step: int | None = None


class Transient(Exception):
    """A request without an answer, which may be sent again."""


class OurClient:
    """The product's client, over HTTP or gRPC; it sends again by itself."""

    def __init__(self, live, scheme):
        self._address = f"{scheme}://127.0.0.1:{live.http_port if scheme == 'http' else live.grpc_port}"
        self.connect()

    def connect(self):
        self._client = Client(self._address, timeout_s=TIMEOUT_S)

    def close(self):
        self._client.close()

    def ask(self, asked):
        inputs = {n: Ragged(v, np.array([0, len(v)])) if n in LISTS else v for n, v in asked.flat().items()}
        try:
            reply = self._client.predict(MODEL, inputs, parameters=asked.parameters())
        except UserGone:
            return Replied(error=GONE)
        except Conflict:
            return Replied(error=CONFLICT)
        except FreshetError as error:
            if error.http_status in TRANSIENT or isinstance(error, OSError):
                raise Transient(str(error)) from error
            raise
        numbers, version = np.ravel(reply.outputs["score"]), reply.sequence_version
        return Replied(_step(reply.generation), numbers, version, state_step=_state_step(reply.state_generation))


class TensorFlowRest:
    """TensorFlow Serving's REST API, by plain HTTP."""

    def __init__(self, live):
        self._port = live.http_port
        self.connect()

    def connect(self):
        self._connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=TIMEOUT_S)

    def close(self):
        self._connection.close()

    def ask(self, asked):
        inputs = {n: [v.tolist()] if n in LISTS else v.tolist() for n, v in asked.flat().items()}
        signature = {} if asked.change == "score" else {"signature_name": asked.change}
        if asked.user is not None:
            inputs |= {"sequence_id": asked.user} | (
                {} if asked.version is None else {"sequence_version": asked.version}
            )
            signature |= {"signature_name": "release"} if asked.releases else {}
        try:
            body = json.dumps({"inputs": inputs, **signature})
            self._connection.request("POST", f"/v1/models/{MODEL}:predict", body)
            reply = self._connection.getresponse()
            data = reply.read()
        except (OSError, http.client.HTTPException) as error:
            raise Transient(f"{type(error).__name__}: {error}") from error
        return _of_http(reply.status, data, reply.headers, lambda: np.ravel(json.loads(data)["outputs"]))


class TritonHttp:
    """Triton's own client, with its arguments of sequences."""

    def __init__(self, live):
        import tritonclient.http as triton

        class Remembering(triton.InferenceServerClient):
            """Its results have no headers, which name the generation."""

            def _post(self, *arguments, **named):
                self.reply = super()._post(*arguments, **named)
                return self.reply

        self._triton, self._client_of, self._port = triton, Remembering, live.http_port
        self.connect()

    def connect(self):
        address = f"127.0.0.1:{self._port}"
        self._client = self._client_of(address, connection_timeout=TIMEOUT_S, network_timeout=TIMEOUT_S)

    def close(self):
        self._client.close()

    def ask(self, asked):
        from tritonclient.utils import InferenceServerException

        tensors, said = triton_request(self._triton, asked)
        sequence = {n: said.pop(n) for n in ("sequence_id", "sequence_start", "sequence_end") if n in said}
        try:
            result = self._client.infer(MODEL, tensors, parameters=said, **sequence)
        except InferenceServerException as error:
            return _of_http(int(error.status() or 503), str(error).encode(), {}, None)
        # What its transport raises differs by release.
        except Exception as error:
            raise Transient(f"{type(error).__name__}: {error}") from error
        headers = self._client.reply
        return _of_http(200, b"", headers, lambda: np.ravel(result.as_numpy("score")))


class TritonGrpc:
    """Triton's own client over gRPC. Its results name no generation."""

    def __init__(self, live):
        import tritonclient.grpc as triton

        self._triton, self._port = triton, live.grpc_port
        self.connect()

    def connect(self):
        self._client = self._triton.InferenceServerClient(f"127.0.0.1:{self._port}")

    def close(self):
        self._client.close()

    def ask(self, asked):
        from tritonclient.utils import InferenceServerException

        tensors, sequence = triton_request(self._triton, asked)
        try:
            result = self._infer(tensors, sequence)
        except InferenceServerException as error:
            if "nothing is kept under it" in str(error):
                return Replied(error=GONE)
            raise
        return Replied(0, np.ravel(result.as_numpy("score")))

    def _infer(self, tensors, sequence):
        return self._client.infer(MODEL, tensors, client_timeout=TIMEOUT_S, **sequence)


class TritonStream(TritonGrpc):
    """The same over a stream, each request after the reply to the one before."""

    def connect(self):
        super().connect()
        self._replies = queue.Queue()
        self._client.start_stream(callback=lambda result, error: self._replies.put((result, error)))

    def close(self):
        self._client.stop_stream()
        super().close()

    def _infer(self, tensors, sequence):
        self._client.async_stream_infer(MODEL, tensors, **sequence)
        result, error = self._replies.get(timeout=TIMEOUT_S)
        if error is not None:
            raise error
        return result


def triton_request(triton, asked):
    """Return a request's tensors as a module of Triton's client has them, and its parameters of sequences."""
    flat, tensors = asked.flat(), []
    if LISTS[0] in flat:
        flat["history.row_splits"] = np.array([0, len(flat[LISTS[0]])], np.int64)
    for name, values in flat.items():
        tensor = triton.InferInput(name, list(values.shape), "FP32" if name == "price" else "INT64")
        tensors.append(tensor.set_data_from_numpy(values))
    return tensors, asked.parameters()


def _of_http(status, data, headers, scores):
    if status in TRANSIENT:
        raise Transient(f"status {status}: {data[:200]!r}")
    if status in (409, 410):
        return Replied(error=GONE if status == 410 else CONFLICT)
    if status != 200:
        raise RuntimeError(f"status {status}: {data[:300]!r}")
    version, state = (headers.get(f"x-{name}") for name in ("sequence-version", "state-generation"))
    step = _step(headers.get("x-model-generation"))
    return Replied(step, scores(), int(version or 0), state_step=_state_step(state))


def _step(generation):
    return int(generation.partition(".")[2])


def _state_step(generation):
    return _step(generation) if generation else None


CLIENTS = {
    "tritonclient over HTTP": TritonHttp,
    "our client over gRPC": lambda live: OurClient(live, "grpc"),
    "TensorFlow Serving over REST": TensorFlowRest,
    "our client over HTTP": lambda live: OurClient(live, "http"),
}
