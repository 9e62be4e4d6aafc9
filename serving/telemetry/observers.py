"""Create the observers of one process as its options say (access log, tracer, extensions), and close them in order."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from freshet_serving.processor.sessions.observers import Observer
from freshet_serving.processor.sessions.predictor import Predictor
from freshet_serving.serving.front_options import FrontendOptions
from freshet_serving.serving.ports import SERVER
from freshet_serving.serving.telemetry.logs import AccessLog
from freshet_serving.serving.telemetry.metrics import Counts

if TYPE_CHECKING:
    from freshet_serving.serving.telemetry.tracing import Tracer


class Observers:
    """The observers of one process; the access log and the tracer are None if they are off."""

    def __init__(self, options: FrontendOptions, slot: int) -> None:
        """Create the access log and the tracer of the process of this number. Raises BadInput."""
        self.access = AccessLog(options.access_log_share) if options.access_log_share else None
        self.tracer = _tracer(options.trace_endpoint, options.trace_share, slot)
        self._options, self._name = options, f"w{slot}"
        self._closers: list[Callable[[], None]] = []

    def count(self, counts: Counts) -> None:
        if self.tracer is not None:
            counts.source(self.tracer.counted)

    def observe(self, predictor: Predictor, counts: Counts) -> None:
        """Have the requests of a predictor observed, and the observers' counters added to `counts`.

        Raises BadInput if an option cannot be followed, such as a folder that cannot be written.
        """
        for create in SERVER.offers("observers").values():
            observer: Observer | None = create(self._options, self._name)
            if observer is not None:
                self._closers.append(observer.close)
                predictor.observers.add(observer)
        counts.source(predictor.observers.counted)

    def close(self) -> None:
        """Close the observers, once no request is being answered: queued data is written and sent."""
        for close in self._closers:
            close()
        if self.tracer is not None:
            self.tracer.close()


def _tracer(endpoint: str, share: float, slot: int) -> Tracer | None:
    if not endpoint:
        return None
    # Loaded where traces are asked for.
    from freshet_serving.serving.telemetry.otel import OtlpExporter
    from freshet_serving.serving.telemetry.tracing import Tracer

    return Tracer(share, OtlpExporter(endpoint, str(slot)))
