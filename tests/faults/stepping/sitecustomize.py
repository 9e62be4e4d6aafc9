"""Imported by every Python that has this folder in its PYTHONPATH: its wall clock is off by as much as a file says.

Not libfaketime: it moves what clock_nanosleep() sleeps until too, even where it leaves the monotonic clock alone, and
by a step beyond the machine's uptime every sleep fails. What the kernel notes of files is not moved.

gRPC's core reads the system's clock itself, so what it says of a call's deadline is compared with that clock. Where the
system's clock steps, both step.
"""

import os
import sys
import time
from types import SimpleNamespace

_file, _time, _time_ns = os.environ["FRESHET_FAULTS_CLOCK"], time.time, time.time_ns


def _off_s():
    try:
        with open(_file) as file:
            return int(file.read() or 0)
    except (OSError, ValueError):
        return 0


def _stepping_s():
    core = sys.modules.get("grpc._cython.cygrpc")
    if core is not None and getattr(core, "time", None) is time:
        core.time = SimpleNamespace(time=_time)
    return _time() + _off_s()


time.time = _stepping_s
time.time_ns = lambda: _time_ns() + _off_s() * 1_000_000_000
