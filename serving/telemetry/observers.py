"""The observers of one process, as its options say: recorder, access log, traces; and their orderly end."""

from __future__ import annotations

from collections.abc import Callable

from freshet_serving.processor.extras import needed
from freshet_serving.processor.sessions.predictor import Predictor
from freshet_serving.serving.front_options import FrontendOptions
from freshet_serving.serving.telemetry.logs import AccessLog
from freshet_serving.serving.telemetry.metrics import Counts
from freshet_serving.serving.telemetry.otel import OtlpExporter
from freshet_serving.serving.telemetry.tracing import Tracer


class Observers:
    """The observers of one process. access, tracer: None where they are off."""

    def __init__(self, options: FrontendOptions, slot: int) -> None:
        """seat: this process's number. Raises BadInput."""
        self.access = AccessLog(options.access_log_share) if options.access_log_share else None
        self.tracer = _tracer(options.trace_endpoint, options.trace_share, slot)
        self._options, self._name = options, f"w{slot}"
        self._closers: list[Callable[[], None]] = []

    def count(self, counts: Counts) -> None:
        """Adds the tracer's counters, if there is a tracer, to `counts`."""
        if self.tracer is not None:
            counts.source(self.tracer.counters)

    def record(self, predictor: Predictor, counts: Counts) -> None:
        """Has the requests of a predictor recorded, if that is wanted. Raises BadInput."""
        if not self._options.record:
            return
        with needed("record", "record"):
            from freshet_serving.serving.telemetry.request_recorder import RequestRecorder
        options = self._options
        recorder = RequestRecorder(options.record, options.record_share, options.record_max_bytes, self._name)
        counts.source(recorder.counters)
        self._closers.append(recorder.close)
        predictor.intercept(recorder)

    def close(self) -> None:
        """Closes the observers once nothing is answered any more: what is queued is written and sent."""
        for close in self._closers:
            close()
        if self.tracer is not None:
            self.tracer.close()


def _tracer(endpoint: str, share: float, slot: int) -> Tracer | None:
    if not endpoint:
        return None
    return Tracer(share, OtlpExporter(endpoint, str(slot)))
