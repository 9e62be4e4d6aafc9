"""A prediction from admission to reply, as the gRPC services ask for it: HTTP's DataApp.start, as a coroutine."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from processor.columns import Column
from processor.engine import PredictReply, PredictRequest
from processor.errors import Expired, FreshetError
from processor.package.manifest import Manifest
from processor.versions.replica import Replica
from serving.front import asking
from serving.front.desk import Desk
from serving.lifecycle import Lifecycle
from serving.request_headers import STICKY_KEY, caller_of, request_id_of
from serving.rpc.handlers import Call, reply_future, timeout_of
from serving.telemetry.metrics import Metrics


class Decoded(NamedTuple):
    """A request's inputs, and the timeout that it names itself."""

    inputs: Mapping[str, Column]
    timeout_s: float | None = None


class Predictions:
    """Those of one event loop."""

    def __init__(
        self, lifecycle: Lifecycle, metrics: Metrics, desk: Desk, default_timeout_s: float | None = None
    ) -> None:
        self._lifecycle, self._metrics, self._desk = lifecycle, metrics, desk
        self._default_timeout_s = default_timeout_s

    async def predict(
        self, who: asking.Who, call: Call, decode: Callable[[Manifest], Decoded], servable: bool
    ) -> PredictReply:
        """The outputs, about to be encoded. servable: in the words of TensorFlow Serving. Raises FreshetError."""
        started_s = time.perf_counter()
        processor, trace = self._lifecycle.processor(), call.trace
        timeout_s = timeout_of(call.context, self._default_timeout_s)
        if timeout_s is not None and timeout_s <= 0:
            raise Expired("deadline: it had passed when the request came")
        key = call.headers.get(STICKY_KEY)
        replica: Replica
        if servable:
            replica = asking.admit_servable(processor, who, timeout_s, key)
        else:
            replica = processor.admit(who.model, who.version, who.label, timeout_s, key)
        manifest, served = replica.manifest, self._desk.served
        call.model = manifest.model
        if trace is not None:
            trace.model = manifest.model
        future, finish = reply_future()
        try:
            decoded = decode(manifest)
            # The deadline of the call goes on while the request is read; a request's own begins with it.
            timeout_s = timeout_of(call.context, self._default_timeout_s, decoded.timeout_s)
            request = PredictRequest(
                who.model, decoded.inputs, who.version, who.label, timeout_s, caller_of(call.headers), key,
                request_id_of(call.headers),
            )  # fmt: skip
            self._desk.submit(processor, request, replica, finish)
            if trace is not None:
                trace.parsed_s = time.monotonic()
            if call.timed:
                self._metrics.stage(call.protocol, "parse", time.perf_counter() - call.began_s)
            result = await future
            if isinstance(result, FreshetError):
                raise result
        except FreshetError:
            served.failed(who.model, manifest.version, time.perf_counter() - started_s)
            raise
        rows = len(next(iter(result.outputs.values())))
        self._metrics.predicted(result.model, rows)
        call.encoding_s = time.perf_counter()
        served.succeeded(result.model, result.generation.version, rows, call.encoding_s - started_s)
        if trace is not None:
            trace.computed(result.generation, result.timing)
        return result
