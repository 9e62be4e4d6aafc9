"""What one process is watched by, as its options say: recorder, access log, traces; and their orderly end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from processor.errors import BadInput
from processor.sessions.predictor import Predictor
from serving.telemetry.logs import AccessLog
from serving.telemetry.metrics import Counts
from serving.telemetry.otel import OtlpExporter
from serving.telemetry.trail import Trail


class Watching:
    """Of one process. access, trail: None where they are off."""

    def __init__(self, settings: Mapping[str, Any], recording: Mapping[str, Any] | None, slot: int) -> None:
        """settings: ServeConfig.watching(). recording: ServeConfig.recording(). slot: this process's number. Raises
        BadInput."""
        share = settings["access_log_share"]
        self.access = AccessLog(share) if share else None
        self.trail = _trail(settings["trace_endpoint"], settings["trace_share"], slot)
        self._recording, self._name = recording, f"w{slot}"
        self._closers: list[Callable[[], None]] = []

    def count(self, counts: Counts) -> None:
        """Has what is traced counted there."""
        if self.trail is not None:
            counts.source(self.trail.counters)

    def record(self, predictor: Predictor, counts: Counts) -> None:
        """Has the requests of a predictor recorded, if that is wanted. Raises BadInput."""
        if self._recording is None:
            return
        try:
            from serving.telemetry.recorder import Recorder
        except ImportError:
            raise BadInput("record: needs pyarrow: pip install 'freshet[record]'") from None
        recorder = Recorder(**self._recording, name=self._name)
        counts.source(recorder.counters)
        self._closers.append(recorder.close)
        predictor.tap(recorder)

    def close(self) -> None:
        """Nothing is answered any more: what is queued is written and sent."""
        for close in self._closers:
            close()
        if self.trail is not None:
            self.trail.close()


def _trail(endpoint: str, share: float, slot: int) -> Trail | None:
    if not endpoint:
        return None
    return Trail(share, OtlpExporter(endpoint, str(slot)))
