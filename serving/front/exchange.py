"""Exchanges: each one prediction between its headers and its encoded reply, the same over HTTP and gRPC.

A port makes an Exchange of its own kind, whose read() is the port's codec, and calls it in this order, always on the
event loop:

    Exchange()  the request is there: its clock starts, and the Tracer says whether it is traced
    select_replica()     what is to answer it is found; most of an overload is refused here, before a byte is read
    submit()    it is read, and submitted to the processor: at once, or on another thread where that would hold up the
                loop, because it is long or because its version has a stage (serving.front.offload_executor)
    finish()    the Submitter has given its result: over HTTP in the Submitter's callback, over gRPC in the waiting
                coroutine
    end()       its reply is encoded, or its error known, and about to be written

What is counted for a request, and where:

    refused until it is admitted        nothing here, for its model may be anything that a client wrote
    not read, submitted or computed     AnswerCounts.failed, of what was to answer it (submit, or finish)
    computed                            AnswerCounts.succeeded and Counts.predicted, of what answered it (finish)
    one in TIMED_EVERY                  Counts.phase, "parse" (submit) and "encode" where a reply was encoded (end)
    traced                              Trace: its model (admit), parsed (submit), computed (finish), ended (end)

Beside it the ports count every request of whatever kind that they answer (Counts.observe, access log), and a tap of
the predictor records (serving.telemetry.request_recorder). The prediction of a client that has left is finished over
HTTP like any other; over gRPC its coroutine is cancelled, and finishes nothing.

Costs: one object a request and its bound method for the Submitter, no task, no closure; what a body was read from is
not kept until the reply.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import partial
from typing import Any

from freshet_serving.processor.columns import Column
from freshet_serving.processor.engine import PredictReply, PredictRequest
from freshet_serving.processor.errors import Expired, FreshetError
from freshet_serving.processor.features.limits import FREE_NBYTES
from freshet_serving.processor.package import Manifest
from freshet_serving.processor.sessions.request import Done
from freshet_serving.serving.codecs.tensor_types import as_declared
from freshet_serving.serving.codecs.wire import Headers
from freshet_serving.serving.front import queries
from freshet_serving.serving.front.dispatcher import Dispatcher
from freshet_serving.serving.front.offload_executor import Finish
from freshet_serving.serving.front_options import FrontendOptions
from freshet_serving.serving.lifecycle import Availability
from freshet_serving.serving.request_headers import STICKY_KEY, TIMED_EVERY, caller_of, request_id_of
from freshet_serving.serving.telemetry.metrics import PortMetrics
from freshet_serving.serving.telemetry.tracing import Tracer

OK = 200
# What is read on the loop: a few hundred microseconds of JSON, as every other request waits for.
MAX_AT_ONCE_NBYTES = FREE_NBYTES

DecodedRequest = tuple[Mapping[str, Column], float | None]
"""A request's inputs, and the timeout in seconds that it names itself."""


class ServingContext:
    """What the exchanges of one event loop share, over all of its ports."""

    def __init__(
        self,
        lifecycle: Availability[queries.PredictionEngine],
        metrics: PortMetrics,
        options: FrontendOptions,
        tracer: Tracer | None = None,
    ) -> None:
        """tracer: where requests are traced; None for nowhere."""
        self.lifecycle, self.metrics, self.options = lifecycle, metrics, options
        self.dispatcher, self.tracer = Dispatcher(), tracer
        self.default_timeout_s = options.default_timeout_s
        # Exchanges so far.
        self.begun = 0


class Exchange(ABC):
    """One prediction, asked and answered. A port's subclass reads its requests; the module says who calls what when."""

    __slots__ = (
        "_announced_s", "_encoding_s", "_key", "_processor", "_protocol", "_replica", "_timed", "_unread_s", "_who",
        "began_s", "headers", "limits", "shared", "trace",
    )  # fmt: skip

    def __init__(self, shared: ServingContext, protocol: str, headers: Headers) -> None:
        """The request is there. protocol: its name in metrics."""
        self.shared, self._protocol, self.headers = shared, protocol, headers
        self.trace = None if shared.tracer is None else shared.tracer.begin(headers, protocol)
        self.began_s = time.perf_counter()
        # How long it takes to read and to print is noted of one request in some: noting all costs more than it tells.
        shared.begun = begun = shared.begun + 1
        self._timed = not begun % TIMED_EVERY

    @property
    def computes_inputs(self) -> bool:
        """Whether submitting takes as long as the request is: values are hashed, or others computed of them."""
        manifest = self._replica.manifest
        return bool(manifest.transforms) or any(i.dtype == "string" for i in manifest.inputs)

    @abstractmethod
    def read(self, source: Any, manifest: Manifest) -> DecodedRequest:
        """The request as the manifest describes it, within self.limits; raises FreshetError. source: what submit() was
        given. Called by another thread for what is weighed above 0."""

    def offload_nbytes(self, source: Any) -> int:
        """Bytes that wait with the request if reading it is to be done elsewhere, 0 where it is not; raises
        FreshetError. source: see read()."""
        return 0

    def remaining_s(self, own_s: float | None, waited_s: float = 0.0) -> float | None:
        """Seconds that the request may still take; None for any time. own_s: the timeout that it names itself.
        waited_s: since it was there."""
        timeout_s = self.shared.default_timeout_s if own_s is None else own_s
        return None if timeout_s is None else timeout_s - waited_s - self._unread_s

    def select_replica(
        self, who: queries.ModelSpec, servable: bool, timeout_s: float | None, unread_s: float = 0.0
    ) -> Manifest:
        """Find what is to answer, and refuse what would be answered too late.

        Args:
            who: The model, version or label that is asked for.
            servable: Whether it is asked for in the words of TensorFlow Serving.
            timeout_s: The request's timeout, as far as it is known before the body is read; None for the default.
            unread_s: How long the request had been here before it was read, in seconds.

        Returns:
            The manifest of the version that is to answer.

        Raises:
            FreshetError: The model is unknown or not ready, or the request comes too late.
        """
        shared = self.shared
        self._processor = processor = shared.lifecycle.processor()
        self._announced_s, self._unread_s = timeout_s, unread_s
        if timeout_s is None:
            timeout_s = shared.default_timeout_s
        if timeout_s is not None:
            timeout_s -= unread_s
            if timeout_s <= 0:
                raise Expired("deadline: it had passed when the request was read")
        key = self.headers.get(STICKY_KEY)
        if servable:
            replica = queries.select_servable(processor, who, timeout_s, key, unread_s)
        else:
            replica = processor.select_replica(who.model, who.version, who.label, timeout_s, key, unread_s)
        self._who, self._key, self._replica = who, key, replica
        self.limits = processor.limits(who.model)
        manifest: Manifest = replica.manifest
        if self.trace is not None:
            self.trace.model = manifest.model
        return manifest

    def submit(self, source: Any, done: Finish) -> None:
        """Reads the request and submits it: done() is called once, later, on the running loop. Raises FreshetError,
        which is counted then."""
        shared = self.shared
        try:
            nbytes = self.offload_nbytes(source)
            deliver = shared.dispatcher.deliver(self._processor, done)
            if nbytes or self._replica.manifest.stage is not None:
                shared.dispatcher.offload(partial(self._enter_late, source, deliver), nbytes, done)
                return
            self._enter(source, deliver)
        except FreshetError as error:
            self.finish(error)
            raise
        self._note_read()

    def _enter_late(self, source: Any, deliver: Done, waited_s: float) -> None:
        """Reads and submits, on another thread, what has waited for it."""
        remaining_s = self.remaining_s(self._announced_s, waited_s)
        if remaining_s is not None and remaining_s <= 0:
            raise Expired("deadline: passed while the request waited to be read")
        self._enter(source, deliver, waited_s)

    def _enter(self, source: Any, deliver: Done, waited_s: float | None = None) -> None:
        """Reads and submits. waited_s: None on the loop."""
        who, headers, replica = self._who, self.headers, self._replica
        inputs, own_s = self.read(source, replica.manifest)
        timeout_s = self.remaining_s(own_s, waited_s or 0.0)
        request = PredictRequest(
            who.model, inputs, who.version, who.label, timeout_s, caller_of(headers), self._key,
            request_id_of(headers),
        )  # fmt: skip
        if waited_s is not None:
            # Its reply may be there before submit() returns.
            self._note_read()
        self._processor.submit(request, deliver, replica)

    def _note_read(self) -> None:
        if self._timed:
            self.shared.metrics.phase(self._protocol, "parse", time.perf_counter() - self.began_s)
        if self.trace is not None:
            self.trace.parsed_s = time.monotonic()

    def finish(self, result: PredictReply | FreshetError) -> None:
        """Counts what came of it; a reply is about to be encoded."""
        shared, now_s = self.shared, time.perf_counter()
        if isinstance(result, FreshetError):
            shared.dispatcher.served.failed(self._who.model, self._replica.manifest.version, now_s - self.began_s)
            return
        rows = len(next(iter(result.outputs.values())))
        shared.metrics.predicted(result.model, rows)
        shared.dispatcher.served.succeeded(
            result.model, result.generation.version, rows, now_s - self.began_s, result.timing
        )
        self._encoding_s = now_s
        if self.trace is not None:
            self.trace.computed(result.generation, result.timing)

    def declared(self, reply: PredictReply) -> PredictReply:
        """Return the reply with its outputs in the shapes and types that the model declared."""
        outputs = as_declared(reply.outputs, self._replica.manifest)
        return reply if outputs is reply.outputs else reply._replace(outputs=outputs)

    def end(self, status: int) -> None:
        """Ends the exchange, which is answered. status: as HTTP's; OK for a reply that was encoded."""
        if self._timed and status == OK:
            self.shared.metrics.phase(self._protocol, "encode", time.perf_counter() - self._encoding_s)
        if self.trace is not None:
            assert self.shared.tracer is not None, "it began the trace"
            self.shared.tracer.end(self.trace, status)
