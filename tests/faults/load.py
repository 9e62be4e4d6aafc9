"""Checked load: clients over HTTP and gRPC on kept connections, each reply recomputed for the generation it names.

What is lost. A request that was sent and got no reply, or a refusal, is held against the server unless something that
was done to it excuses that: a process that had it was killed, say. An excuse is a span of time of the whole field.
Nobody is excused for a reply that is wrong.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
import time
from collections import Counter

import grpc
import numpy as np

from freshet_serving.serving.codecs.messages import message
from tests.e2e.asking import INFER, http_bodies, rpc_messages
from tests.faults.truth import QUESTIONS

TIMEOUT_S = 40
PAUSE_S = 0.01
MAX_FAULTS = 50


class Excuses:
    """Spans of time in which requests may be lost. Thread-safe."""

    def __init__(self):
        self._lock = threading.Lock()
        self._spans = []

    @contextlib.contextmanager
    def span(self, cause, requests=True):
        """The block does something for which changes of the repository are lost, and with `requests` requests too."""
        entry = [time.monotonic(), float("inf"), cause, requests]
        with self._lock:
            self._spans.append(entry)
        try:
            yield
        finally:
            entry[1] = time.monotonic()

    def excused(self, from_s, until_s, request=True):
        """What a request, or a change, that was under way in that time was lost to; "" for nothing."""
        with self._lock:
            meets = (
                cause
                for first, last, cause, requests in self._spans
                if first <= until_s and last >= from_s and (requests or not request)
            )
            return next(meets, "")


class Tally:
    """What came of all requests. Thread-safe."""

    def __init__(self):
        self._lock = threading.Lock()
        self.counts = Counter()
        self.faults = []

    def note(self, kind):
        with self._lock:
            self.counts[kind] += 1

    def fault(self, kind, text):
        """Something that must not happen."""
        with self._lock:
            self.counts[kind] += 1
            if len(self.faults) < MAX_FAULTS:
                self.faults.append(f"{kind}: {text}")
        print(f"FAULT {kind}: {text}", flush=True)


class Refused(Exception):
    """An answer that is no 200."""


class Unsent(Exception):
    """Nobody listens: nothing was sent."""


class HttpSide:
    """One kept connection. dialect: kserve | tfs."""

    def __init__(self, dialect):
        self._bodies = [http_bodies(q.users, q.tags, q.floats)[dialect] for q in QUESTIONS]
        self._dialect = dialect
        self._connection = None

    def ask(self, server, number):
        if self._connection is None:
            self._connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=TIMEOUT_S)
            try:
                self._connection.connect()
            except OSError as error:
                raise Unsent from error
        path, headers, body = self._bodies[number]
        self._connection.request("POST", path, body, headers)
        reply = self._connection.getresponse()
        data = reply.read()
        if reply.status != 200:
            raise Refused(f"{reply.status} {data[:200].decode(errors='replace')}")
        if reply.will_close:
            self.close()
        if self._dialect == "tfs":
            scores = json.loads(data)["predictions"]
        else:
            length = reply.headers.get("inference-header-content-length")
            if length is None:
                scores = json.loads(data)["outputs"][0]["data"]
            else:
                scores = np.frombuffer(data[int(length) :], np.float32)
        return reply.headers["x-model-generation"], np.asarray(scores, np.float32)

    def close(self):
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class RpcSide:
    def __init__(self):
        self._requests = [rpc_messages(q.users, q.tags, q.floats)[INFER] for q in QUESTIONS]
        self._channel = None

    def ask(self, server, number):
        if self._channel is None:
            options = [("grpc.use_local_subchannel_pool", 1), ("grpc.initial_reconnect_backoff_ms", 100)]
            self._channel = grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}", options)
            try:
                grpc.channel_ready_future(self._channel).result(timeout=5)
            except grpc.FutureTimeoutError as error:
                self.close()
                raise Unsent from error
        try:
            reply, call = self._channel.unary_unary(INFER).with_call(self._requests[number], timeout=TIMEOUT_S)
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.UNAVAILABLE and "onnect" in (error.details() or ""):
                raise Unsent from error
            raise Refused(f"{error.code().name} {error.details()}") from None
        document = message("inference.ModelInferResponse").FromString(reply)
        scores = np.frombuffer(document.raw_output_contents[0], np.float32) if document.raw_output_contents else (
            document.outputs[0].contents.fp32_contents
        )  # fmt: skip
        return dict(call.trailing_metadata())["x-model-generation"], np.asarray(scores, np.float32)

    def close(self):
        if self._channel is not None:
            self._channel.close()
            self._channel = None


class Asker(threading.Thread):
    """One client: asks, checks, counts, until it is stopped."""

    def __init__(self, side, server, truth, excuses, tally, seed):
        """server: () -> the one to ask now, None while it is down."""
        super().__init__(daemon=True)
        self._side, self._server = side, server
        self._truth, self._excuses, self._tally = truth, excuses, tally
        self._number = seed
        self.stopped = threading.Event()

    def run(self):
        while not self.stopped.wait(PAUSE_S):
            server = self._server()
            if server is None:
                self._side.close()
                continue
            self._number = (self._number + 1) % len(QUESTIONS)
            sent_s = time.monotonic()
            try:
                generation, scores = self._side.ask(server, self._number)
            except Unsent:
                self._side.close()
                self._tally.note("found nobody")
            except Refused as error:
                self._side.close()
                self._lost("refused", sent_s, str(error))
            except (OSError, http.client.HTTPException) as error:
                self._side.close()
                self._lost("lost reply", sent_s, f"{type(error).__name__}: {error}")
            except Exception as error:
                self._side.close()
                self._tally.fault("unreadable", repr(error))
            else:
                wrong = self._truth.fault(generation, self._number, scores)
                if wrong:
                    self._tally.fault("wrong", wrong)
                else:
                    self._tally.note("checked")
        self._side.close()

    def _lost(self, kind, sent_s, text):
        excuse = self._excuses.excused(sent_s, time.monotonic())
        if excuse:
            self._tally.note(f"{kind}, excused")
            self._tally.note(f"{kind} by {excuse}")
        elif text.startswith(("429", "RESOURCE_EXHAUSTED")):
            self._tally.note("shed")
        else:
            self._tally.fault(kind, text)
