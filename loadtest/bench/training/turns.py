"""A side's end of the line: the race writes how many steps to learn, the side answers with what they took.

Standard library alone: sides run in environments of their own. One JSON object a line, both ways.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable


def serve(learn: Callable[[int], float]) -> None:
    """Answers until the other end closes. learn(steps): learns so many more; returns the mean loss of the last."""
    # Whatever a library prints goes to stderr.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    for line in sys.stdin:
        steps = json.loads(line)["steps"]
        wall_s, cpu_s = time.perf_counter(), time.process_time()
        loss = learn(steps)
        spent = {"wall_s": time.perf_counter() - wall_s, "cpu_s": time.process_time() - cpu_s, "loss": loss}
        answers.write(json.dumps(spent) + "\n")
