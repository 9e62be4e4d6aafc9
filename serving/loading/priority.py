"""Writers that give way to requests: threads of the supervisor that the scheduler favours less than its workers, and
threads of workers that open a version.

A large delta is tens of milliseconds of a core, and every worker that shares that core is late by as much. Linux
schedules threads, not processes, so the thread that applies it can have a lower priority than everything else here.

Why this is safe, and only with worker processes
- Workers and the supervisor share no lock: a writer that is not scheduled holds up nobody's request. Workers read its
  memory through pins that they alone move (processor.versions.control).
- Inside the supervisor a thread that holds the GIL, or a model's lock, and is not scheduled holds up the others: new
  connections, /metrics, and the next delta of the same model, which had to wait for this one anyway. NICE bounds by how
  much: on a core that is full it leaves such a thread a quarter of its time. At 19 it would be a sixtieth.
- In a process that answers requests itself sessions and the event loop want the same GIL, and every request would wait
  behind a thread that is waiting for a core. So there nobody gives way but workers' threads that open a version: nearly
  all of that is without the GIL (sessions made, buckets priced, requests rehearsed), and it is a fifth of a second.
  The p99 of 9 s in which two versions came was 6.9 times that without them before, and was 4.1 and 5.3 times in two
  runs since (`make bench`, switchover: half load on two cores); another 5 of niceness changed nothing.
- A thread cannot take a higher priority again without privileges. So giving way is for threads that do nothing else.
- A small delta is over before it could be in anybody's way, and is wanted soon: it does not give way.

Refused: pauses between tables (twice the time until a delta is served, for no better tail), SCHED_IDLE (a saturated
machine would never take a delta).
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

from freshet_serving.processor.standby_thread import standing_pool

NICE = 5
BULK_NBYTES = 1 << 20
"""Uploads of more than this give way: about 10,000 rows of 16 floats."""
THREADS = 4


def lower_priority() -> None:
    """Lowers the priority of the calling thread, and of threads that it starts, for good; Linux only, else nothing."""
    if sys.platform == "linux":
        thread = threading.get_native_id()
        # A sandbox may forbid it: then the thread does the same work with the priority that it has.
        with contextlib.suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, thread, min(19, os.getpriority(os.PRIO_PROCESS, thread) + NICE))


def low_priority_pool() -> ThreadPoolExecutor:
    """Threads that give way; the caller shuts them down."""
    return standing_pool(THREADS, "freshet-bulk", lower_priority)
