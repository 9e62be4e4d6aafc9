"""Record a sample of the requests, for warming up versions, explanations, load tests and training.

request_recorder    records a sample of the requests, as Parquet
recorded_columns    converts requests to the columns of a recording, and back
recorded_request    finds a recorded request by its id
recording_erasure   takes the requests of a user out of recordings
recordings_command  recordings
"""

from __future__ import annotations

from typing import Any

from freshet_serving.processor.extras import needed
from freshet_serving.serving.ports import ServerExtension

__all__: list[str] = []


def _recorder(options: Any, process: str) -> Any:
    if not options.record:
        return None
    with needed("record", "record"):
        from freshet_serving.serving.extensions.recorder.request_recorder import RequestRecorder
    return RequestRecorder(options.record, options.record_share, options.record_max_bytes, process)


def _read(*arguments: Any) -> Any:
    from freshet_serving.serving.extensions.recorder.request_recorder import read_requests

    return read_requests(*arguments)


def _find(*arguments: Any) -> Any:
    with needed("request_id", "record"):
        from freshet_serving.serving.extensions.recorder.recorded_request import find_recorded
    return find_recorded(*arguments)


def _recordings() -> Any:
    from freshet_serving.serving.extensions.recorder.recordings_command import recordings_app

    return recordings_app


REQUIRES = ()
EXTENSION = ServerExtension(
    commands={"recordings": _recordings}, observers={"record": _recorder}, recordings={"read": _read, "find": _find}
)
