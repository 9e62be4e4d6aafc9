"""Run a file of an untrusted source for the first time: for a few seconds at most, in bounded memory.

Sessions of a trial share one arena of the process, which refuses to grow beyond its limit. Sessions that serve have
arenas of their own.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import onnxruntime

from freshet_serving.compiler.imports.onnx_native.onnx_stage import FATAL
from freshet_serving.processor.errors import BadInput

MAX_S = 5.0
MAX_NBYTES = 2 << 30
BEYOND = "smaller than requested bytes"


def run_bounded(session: Any, names: Sequence[str], fed: Mapping[str, Any], max_s: float = MAX_S) -> list[Any]:
    """Return outputs of a session for arrays by input; raise BadInput if it takes too long or too much memory."""
    inputs = {info.name for info in session.get_inputs()}
    options = onnxruntime.RunOptions()
    options.log_severity_level = FATAL
    late = threading.Event()

    def end() -> None:
        late.set()
        options.terminate = True

    timer = threading.Timer(max_s, end)
    timer.start()
    try:
        outputs: list[Any] = session.run(list(names), {n: a for n, a in fed.items() if n in inputs}, options)
        return outputs
    except Exception as error:
        if BEYOND in str(error):
            raise BadInput(f"source: expected a graph that computes samples in {MAX_NBYTES} bytes") from None
        if late.is_set():
            raise BadInput(f"source: expected a graph that computes samples within {max_s:g} s") from None
        raise
    finally:
        timer.cancel()
