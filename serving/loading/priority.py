"""Lower the scheduling priority of background threads: writers in the supervisor, and workers' version loading.

Applying a large delta takes tens of milliseconds of a core, and delays every worker on that core by as much. Linux
schedules threads, not processes, so the thread that applies it can have a lower priority than all others here.

Why this is safe, and only with worker processes
- Workers and the supervisor share no lock: a writer that is not scheduled delays no request. Workers read its memory
  through pins that only they move (processor.versions.control).
- In the supervisor, a thread that holds the GIL or a model's lock and is not scheduled delays the others: new
  connections, /metrics, and the next delta of the same model, which had to wait anyway. NICE bounds the delay: on a
  full core it leaves such a thread a quarter of the time; 19 would leave a sixtieth.
- In a process that answers requests itself, sessions and the event loop need the same GIL: every request would wait
  behind a thread that waits for a core. So there only the workers' threads that open a version yield: nearly all of
  their work is without the GIL (creating sessions, pricing buckets, rehearsing requests), and it takes a fifth of a
  second. The p99 of 9 s in which two versions arrived was 6.9 times that without them before, and 4.1 and 5.3 times in
  two runs since (`make bench`, switchover: half load on two cores); another 5 of niceness changed nothing.
- A thread cannot raise its priority again without privileges. So only threads that do nothing else are lowered.
- A small delta is applied too quickly to delay anything: it is not lowered.

Rejected: pauses between tables (twice the time until a delta is served, without a better tail latency), SCHED_IDLE (a
saturated machine would never apply a delta).
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
"""Uploads above this size are applied at low priority: about 10,000 rows of 16 floats."""
THREADS = 4


def lower_priority() -> None:
    """Lower the priority of the calling thread, and of threads that it starts, for good; on Linux only."""
    if sys.platform == "linux":
        thread = threading.get_native_id()
        # A sandbox may forbid it; the thread then works at its normal priority.
        with contextlib.suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, thread, min(19, os.getpriority(os.PRIO_PROCESS, thread) + NICE))


def low_priority_pool() -> ThreadPoolExecutor:
    """Return a pool of low-priority threads; the caller shuts it down."""
    return standing_pool(THREADS, "freshet-bulk", lower_priority)
