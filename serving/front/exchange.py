"""Handle one prediction from its headers to its encoded reply, the same over HTTP and gRPC.

A port creates an Exchange of its own subclass, whose read() is the port's codec, and calls it in this order, always on
the event loop:

    Exchange()  the request has arrived: its clock starts, and the Tracer decides whether it is traced
    select_replica()     find the replica that answers; most of an overload is refused here, before a byte is read
    submit()    read the request and submit it to the processor: at once, or on another thread if that would block the
                loop, because it is long, because its version has a stage (serving.front.offload_executor), or because
                online features have to be read from a store
    finish()    the Dispatcher has delivered the result: over HTTP in its callback, over gRPC in the waiting coroutine
    end()       the reply is encoded, or the error known, and about to be written

What is counted for a request, and where:

    refused before a replica is selected    nothing here, because a client may send any model name
    not read, submitted or computed         AnswerCounts.failed, of the selected version (submit, or finish)
    computed                                AnswerCounts.succeeded, Counts.predicted, of the answering version (finish)
    one in TIMED_EVERY                      Counts.phase, "parse" (submit) and, if a reply was encoded, "encode" (end)
    traced                                  Trace: model (select_replica), parsed (submit), computed (finish), end (end)

The ports also count every request of any kind that they answer (Counts.observe, access log), and an observer of the
predictor records requests (serving.extensions.recorder). If the client disconnects, the prediction is finished as usual
over HTTP; over gRPC its coroutine is cancelled and finishes nothing.

Costs: one object for each request and its bound method as the callback; no task, no closure. Neither the body nor the
inputs are kept until the reply.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from freshet_serving.processor.columns import Column
from freshet_serving.processor.engine import PredictReply, PredictRequest
from freshet_serving.processor.errors import Expired, FreshetError, NotFound
from freshet_serving.processor.features.limits import FREE_NBYTES
from freshet_serving.processor.package import Manifest
from freshet_serving.processor.sessions.request import Done
from freshet_serving.serving.access.access_guard import AccessGuard
from freshet_serving.serving.access.scopes import FEATURES
from freshet_serving.serving.codecs.tensor_types import as_declared
from freshet_serving.serving.codecs.user_calls import UserInputs
from freshet_serving.serving.codecs.wire import Headers
from freshet_serving.serving.front import queries
from freshet_serving.serving.front.dispatcher import Dispatcher
from freshet_serving.serving.front.example_text import looked_up_text
from freshet_serving.serving.front.offload_executor import Finish
from freshet_serving.serving.front_options import FrontendOptions
from freshet_serving.serving.lifecycle import Availability
from freshet_serving.serving.request_headers import (
    DROPPED_ROWS,
    FEATURES_MISSING,
    ITEM_GENERATION,
    LOOKED_UP,
    REQUEST_ID,
    RETURN_FEATURES,
    SEQUENCE_VERSION,
    STATE_GENERATION,
    STICKY_KEY,
    TIMED_EVERY,
    TOP_ITEMS,
    UNFILLED,
    UNKNOWN_ROWS,
    list_defaulted,
    list_rows,
    request_id_of,
    top_items_of,
)
from freshet_serving.serving.telemetry.metrics import PortMetrics

if TYPE_CHECKING:
    from freshet_serving.processor.features.user_calls import UserCall
    from freshet_serving.processor.sessions.predictor import Predictor
    from freshet_serving.serving.telemetry.tracing import Tracer

OK = 200
# Of looked-up values in a reply's header: clients and proxies accept 8 kB of headers.
MAX_RETURNED_NBYTES = 4096
# Bodies up to this size are read on the loop: a few hundred microseconds of JSON, which every other request waits for.
MAX_AT_ONCE_NBYTES = FREE_NBYTES

DecodedRequest = tuple[Mapping[str, Column], float | None]
"""A request's inputs, and its own timeout in seconds."""


class ServingContext:
    """State that the exchanges of one event loop share, over all of its ports.

    Args:
        tracer: Traces requests; None for no tracing.
        guard: Checks the scope of a request that wants looked-up features; None for no check.
    """

    def __init__(
        self,
        lifecycle: Availability[Predictor],
        metrics: PortMetrics,
        options: FrontendOptions,
        tracer: Tracer | None = None,
        guard: AccessGuard | None = None,
    ) -> None:
        self.lifecycle, self.metrics, self.options = lifecycle, metrics, options
        self.dispatcher, self.tracer, self.guard = Dispatcher(), tracer, guard
        self.default_timeout_s = options.default_timeout_s
        # Number of exchanges so far.
        self.begun = 0

    def left_s(self, announced_s: float | None, unread_s: float) -> float | None:
        """Return the seconds that a request which is read now may still take; None for no limit. Raises Expired.

        Args:
            announced_s: Its own timeout in seconds, as far as it is known; None for the default.
            unread_s: Seconds that it had waited here before it was read.
        """
        timeout_s = self.default_timeout_s if announced_s is None else announced_s
        if timeout_s is None:
            return None
        if timeout_s <= unread_s:
            raise Expired("deadline: passed before the request was read")
        return timeout_s - unread_s


class Exchange(ABC):
    """One prediction; a port's subclass reads its requests. The module's docstring gives the order of calls."""

    __slots__ = (
        "_announced_s", "_encoding_s", "_key", "_processor", "_protocol", "_reads", "_replica", "_sender", "_timed",
        "_unread_s", "_who", "began_s", "call", "headers", "limits", "request", "shared", "trace",
    )  # fmt: skip

    def __init__(self, shared: ServingContext, protocol: str, headers: Headers) -> None:
        self.shared, self._protocol, self.headers = shared, protocol, headers
        # Kept for the reply only where inputs may be filled in: the inputs of a long request are tens of megabytes.
        self.request: PredictRequest | None = None
        # What the request says about a kept user.
        self.call: UserCall | None = None
        self.trace = None if shared.tracer is None else shared.tracer.begin(headers, protocol)
        self.began_s = time.perf_counter()
        # Time only one request in TIMED_EVERY: timing each costs more than it is worth.
        shared.begun = begun = shared.begun + 1
        self._timed = not begun % TIMED_EVERY

    @property
    def computes_inputs(self) -> bool:
        """True if the cost of submitting grows with the request: values are hashed, or others computed from them."""
        manifest = self._replica.manifest
        return bool(manifest.transforms) or any(i.dtype == "string" for i in manifest.inputs)

    @abstractmethod
    def read(self, source: Any, manifest: Manifest) -> DecodedRequest:
        """Decode what submit() was given within self.limits; raise FreshetError.

        Called on another thread if offload_nbytes() is above 0.
        """

    def offload_nbytes(self, source: Any) -> int:
        """Return how many bytes to read on another thread; 0 to read on the loop. Raises FreshetError."""
        return 0

    def remaining_s(self, own_s: float | None, waited_s: float = 0.0) -> float | None:
        """Return the seconds that the request may still take; None for no limit.

        Args:
            own_s: The request's own timeout in seconds.
            waited_s: Seconds since it arrived.
        """
        timeout_s = self.shared.default_timeout_s if own_s is None else own_s
        return None if timeout_s is None else timeout_s - waited_s - self._unread_s

    def select_replica(
        self, who: queries.ModelSpec, servable: bool, timeout_s: float | None, unread_s: float = 0.0
    ) -> Manifest:
        """Select the replica that answers, and refuse a request that would be answered too late.

        Args:
            servable: Whether the client expects TensorFlow Serving's error messages.
            timeout_s: The request's timeout, as far as it is known before the body is read; None for the default.
            unread_s: Seconds that the request had waited here before it was read.

        Returns:
            The manifest of the version that answers.

        Raises:
            FreshetError: The model is unknown or not ready, or the request comes too late.
        """
        shared = self.shared
        self._processor = processor = shared.lifecycle.processor()
        self._announced_s, self._unread_s = timeout_s, unread_s
        timeout_s = shared.left_s(timeout_s, unread_s)
        key = self.headers.get(STICKY_KEY)
        sender = "" if shared.guard is None else shared.guard.name_of(self.headers.get(b"authorization"))
        more = (timeout_s, key, unread_s, sender)
        try:
            replica = processor.select_replica(who.model, who.version, who.label, *more)
        except NotFound as error:
            if not servable:
                raise
            replica = queries.found_by_number(error, who, processor.select_replica, *more)
        self._who, self._key, self._sender, self._replica = who, key, sender, replica
        self.limits = processor.limits(who.model)
        # As the request is read and its outputs are declared.
        self._reads = manifest = replica.manifest
        if self.trace is not None:
            self.trace.model = manifest.model
        return manifest

    def submit(self, source: Any, done: Finish) -> None:
        """Read the request and submit it.

        Args:
            source: What read() decodes.
            done: Called once, later, on the running loop.

        Raises:
            FreshetError: The request is refused; it is already counted.
        """
        shared = self.shared
        try:
            nbytes = self.offload_nbytes(source)
            deliver = shared.dispatcher.deliver(self._processor, done)
            if nbytes or self._replica.manifest.stage is not None:
                shared.dispatcher.offload(partial(self._enter_late, [source], deliver, done), nbytes, done)
                return
            self._submit_filled(self._decode(source), deliver, done)
        except FreshetError as error:
            self.finish(error)
            raise
        self._note_read()

    def _enter_late(self, source_box: list[Any], deliver: Done, done: Finish, waited_s: float) -> None:
        """Read and submit a request that has waited for another thread, on that thread.

        Args:
            source_box: The only reference to what read() decodes, so that a long body is freed once it is decoded.
        """
        remaining_s = self.remaining_s(self._announced_s, waited_s)
        if remaining_s is not None and remaining_s <= 0:
            raise Expired("deadline: passed while the request waited to be read")
        request = self._decode(source_box.pop(), waited_s)
        # The reply may arrive before submit() returns.
        self._note_read()
        self._submit_filled(request, deliver, done)

    def _submit_filled(self, request: PredictRequest, deliver: Done, done: Finish) -> None:
        """Submit a request: at once, or on a thread that may wait for an online store if one has to be asked."""
        if self._replica.manifest.fillers:
            # The reply tells what was looked up.
            self.request = request
            if not self._processor.fill_from_memory(request, self._replica):
                self.shared.dispatcher.look_up(partial(self._look_up, request, deliver), done)
                return
        self._processor.submit(request, deliver, self._replica)

    def _look_up(self, request: PredictRequest, deliver: Done, waited_s: float) -> None:
        """Submit a request whose features have to be read from an online store, on a thread that may wait for it."""
        if request.timeout_s is not None:
            request.timeout_s -= waited_s
            if request.timeout_s <= 0:
                raise Expired("deadline: passed while the request waited for online features")
        self._processor.submit(request, deliver, self._replica)

    def _decode(self, source: Any, waited_s: float = 0.0) -> PredictRequest:
        spec, headers, guard = self._who, self.headers, self.shared.guard
        if RETURN_FEATURES in headers and guard is not None:
            guard.authorize(FEATURES, headers.get(b"authorization"))
        top_items = top_items_of(headers) if TOP_ITEMS in headers else 0
        if top_items:
            self._reads = self._processor.answerer("top_items", "x-top-items").read_as(self._replica)
        inputs, own_s = self.read(source, self._reads)
        if isinstance(inputs, UserInputs):
            self.call = inputs.call
            self.call.owner = self._sender.encode()
        timeout_s = self.remaining_s(own_s, waited_s)
        request_id = request_id_of(headers) if REQUEST_ID in headers else ""
        return PredictRequest(
            spec.model, inputs, spec.version, spec.label, timeout_s, self._key, request_id,
            shows_features=RETURN_FEATURES in headers, top_items=top_items, user_call=self.call,
            sender=self._sender,
        )  # fmt: skip

    def feature_headers(self, reply: PredictReply) -> tuple[tuple[bytes, bytes], ...]:
        """Return the headers about items' vectors and features that were looked up, as far as the reply needs them."""
        headers, request = self.row_headers(reply), self.request
        if reply.item_generation is not None:
            headers += ((ITEM_GENERATION, str(reply.item_generation).encode()),)
        if reply.state_generation is not None:
            headers += ((STATE_GENERATION, str(reply.state_generation).encode()),)
        if self.call is not None and self.call.version:
            headers += ((SEQUENCE_VERSION, b"%d" % self.call.version),)
        if request is None:
            return headers
        filled, used = request.filled, request.used
        if filled is not None and filled.defaulted:
            headers += ((FEATURES_MISSING, list_defaulted(filled.defaulted)),)
        if request.shows_features:
            looked_up: dict[str, Column | None] = {**filled.looked_up} if filled is not None else {}
            if used is not None:
                looked_up |= {**dict.fromkeys(used.names), **used.columns()}
            if looked_up:
                text = looked_up_text(looked_up, self._replica.manifest.inputs, MAX_RETURNED_NBYTES)
                headers += ((LOOKED_UP, text.encode()),)
        return headers

    def row_headers(self, reply: PredictReply) -> tuple[tuple[bytes, bytes], ...]:
        """Return x-unknown-rows, x-dropped-rows and x-unfilled, as far as the reply needs them; raises TooLarge."""
        if reply.unfilled:
            return ((UNFILLED, b"%d" % reply.unfilled),)
        if not reply.unknown_rows and not reply.dropped_rows:
            return ()
        listed = ((UNKNOWN_ROWS, reply.unknown_rows), (DROPPED_ROWS, reply.dropped_rows))
        return tuple([(name, list_rows(rows)) for name, rows in listed if rows])

    def _note_read(self) -> None:
        if self._timed:
            self.shared.metrics.phase(self._protocol, "parse", time.perf_counter() - self.began_s)
        if self.trace is not None:
            self.trace.parsed_s = time.monotonic()

    def finish(self, result: PredictReply | FreshetError) -> None:
        shared, now_s = self.shared, time.perf_counter()
        if isinstance(result, FreshetError):
            shared.dispatcher.served.failed(self._who.model, self._replica.manifest.version, now_s - self.began_s)
            return
        rows = max(map(len, result.outputs.values()))
        shared.metrics.predicted(result.model, rows)
        shared.dispatcher.served.succeeded(
            result.model, result.generation.version, rows, now_s - self.began_s, result.timing
        )
        self._encoding_s = now_s
        if self.trace is not None:
            self.trace.computed(result.generation, result.timing)

    def declared(self, reply: PredictReply, signature: str = "", asked: Collection[str] = ()) -> PredictReply:
        """Return the reply with the `asked` outputs of a signature, in the shapes and types that the model declared."""
        if self._reads.plain:
            return reply
        return reply._replace(outputs=as_declared(reply.outputs, self._reads, signature, asked))

    def end(self, status: int) -> None:
        """End the exchange when its answer is about to be written; `status` is OK for an encoded reply."""
        if self._timed and status == OK:
            self.shared.metrics.phase(self._protocol, "encode", time.perf_counter() - self._encoding_s)
        if self.trace is not None:
            assert self.shared.tracer is not None, "it started the trace"
            self.shared.tracer.end(self.trace, status)
