"""Exchanges: each one prediction between its headers and its encoded reply, the same over HTTP and gRPC.

A port makes an Exchange of its own kind, whose read() is the port's codec, and calls it in this order, always on the
event loop:

    Exchange()  the request is there: its clock starts, and the Tracer says whether it is traced
    admit()     what is to answer it is found; most of an overload is refused here, before a byte is read
    submit()    it is read, and submitted by the Submitter
    finish()    the Submitter has given its result: over HTTP in the Submitter's callback, over gRPC in the waiting
                coroutine
    end()       its reply is encoded, or its error known, and about to be written

What is counted for a request, and where:

    refused until it is admitted        nothing here, for its model may be anything that a client wrote
    not read, submitted or computed     AnswerCounts.failed, of what was to answer it (submit, finish)
    computed                            AnswerCounts.succeeded and Counts.predicted, of what answered it (finish)
    one in TIMED_EVERY                  Counts.phase, "parse" (submit) and "encode" where a reply was encoded (end)
    traced                              Trace: its model (admit), parsed (submit), computed (finish), ended (end)

Beside it the ports count every request of whatever kind that they answer (Counts.observe, access log), and a tap of
the predictor records (serving.telemetry.recorder). The prediction of a client that has left is finished over HTTP like
any other; over gRPC its coroutine is cancelled, and finishes nothing.

Costs: one object a request and its bound method for the Submitter, no task, no closure; what a body was read from is
not kept until the reply.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from processor.columns import Column
from processor.engine import PredictReply, PredictRequest
from processor.errors import Expired, FreshetError
from processor.package.manifest import Manifest
from serving.codecs.wire import Headers
from serving.front import queries
from serving.front.submitter import Finish, Submitter
from serving.front_options import FrontOptions
from serving.lifecycle import Availability
from serving.request_headers import STICKY_KEY, TIMED_EVERY, caller_of, request_id_of
from serving.telemetry.metrics import PortMetrics
from serving.telemetry.tracing import Tracer

OK = 200

Read = tuple[Mapping[str, Column], float | None]
"""A request's inputs, and the timeout in seconds that it names itself."""


class Exchanges:
    """What the exchanges of one event loop share, over all of its ports."""

    def __init__(
        self,
        lifecycle: Availability[queries.Answering],
        metrics: PortMetrics,
        options: FrontOptions,
        tracer: Tracer | None = None,
    ) -> None:
        """tracer: where requests are traced; None for nowhere."""
        self.lifecycle, self.metrics, self.options = lifecycle, metrics, options
        self.submitter, self.tracer = Submitter(), tracer
        self.default_timeout_s = options.default_timeout_s
        # Exchanges so far.
        self.begun = 0


class Exchange(ABC):
    """One prediction, asked and answered. A port's subclass reads its requests; the module says who calls what when."""

    __slots__ = (
        "_encoding_s", "_key", "_processor", "_protocol", "_replica", "_timed", "_who", "began_s", "headers", "shared",
        "trace",
    )  # fmt: skip

    def __init__(self, shared: Exchanges, protocol: str, headers: Headers) -> None:
        """The request is there. protocol: its name in metrics."""
        self.shared, self._protocol, self.headers = shared, protocol, headers
        self.trace = None if shared.tracer is None else shared.tracer.begin(headers, protocol)
        self.began_s = time.perf_counter()
        # How long it takes to read and to print is noted of one request in some: noting all costs more than it tells.
        shared.begun = begun = shared.begun + 1
        self._timed = not begun % TIMED_EVERY

    @abstractmethod
    def read(self, source: Any, manifest: Manifest) -> Read:
        """The request as the manifest describes it; raises FreshetError. source: what submit() was given."""

    def admit(self, who: queries.Who, servable: bool, timeout_s: float | None) -> Manifest:
        """The manifest of what is to answer. servable: asked for in the words of TensorFlow Serving. timeout_s: as far
        as it is known before the request is read; None for the default. Raises FreshetError."""
        shared = self.shared
        self._processor = processor = shared.lifecycle.processor()
        if timeout_s is None:
            timeout_s = shared.default_timeout_s
        elif timeout_s <= 0:
            raise Expired("deadline: it had passed when the request came")
        key = self.headers.get(STICKY_KEY)
        if servable:
            replica = queries.admit_servable(processor, who, timeout_s, key)
        else:
            replica = processor.admit(who.model, who.version, who.label, timeout_s, key)
        self._who, self._key, self._replica = who, key, replica
        manifest: Manifest = replica.manifest
        if self.trace is not None:
            self.trace.model = manifest.model
        return manifest

    def submit(self, source: Any, done: Finish) -> None:
        """Reads the request and submits it: done() is called once, later, on the running loop. Raises FreshetError,
        which is counted then."""
        shared, who, headers, replica = self.shared, self._who, self.headers, self._replica
        try:
            inputs, timeout_s = self.read(source, replica.manifest)
            if timeout_s is None:
                timeout_s = shared.default_timeout_s
            request = PredictRequest(
                who.model, inputs, who.version, who.label, timeout_s, caller_of(headers), self._key,
                request_id_of(headers),
            )  # fmt: skip
            shared.submitter.submit(self._processor, request, replica, done)
        except FreshetError as error:
            self.finish(error)
            raise
        if self._timed:
            shared.metrics.phase(self._protocol, "parse", time.perf_counter() - self.began_s)
        if self.trace is not None:
            self.trace.parsed_s = time.monotonic()

    def finish(self, result: PredictReply | FreshetError) -> None:
        """Counts what came of it; a reply is about to be encoded."""
        shared, now_s = self.shared, time.perf_counter()
        if isinstance(result, FreshetError):
            shared.submitter.served.failed(self._who.model, self._replica.manifest.version, now_s - self.began_s)
            return
        rows = len(next(iter(result.outputs.values())))
        shared.metrics.predicted(result.model, rows)
        shared.submitter.served.succeeded(result.model, result.generation.version, rows, now_s - self.began_s)
        self._encoding_s = now_s
        if self.trace is not None:
            self.trace.computed(result.generation, result.timing)

    def end(self, status: int) -> None:
        """Ends the exchange, which is answered. status: as HTTP's; OK for a reply that was encoded."""
        if self._timed and status == OK:
            self.shared.metrics.phase(self._protocol, "encode", time.perf_counter() - self._encoding_s)
        if self.trace is not None:
            assert self.shared.tracer is not None, "it began the trace"
            self.shared.tracer.end(self.trace, status)
