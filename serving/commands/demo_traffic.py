"""Generate the demo's traffic: send one request after another on a keep-alive connection, and report once a second.

`python -m freshet_serving.serving.commands.demo_traffic URL FILE`: FILE is JSON {"path": ..., "bodies": [...]}. Each
line of output is JSON: requests_per_s, p50_ms, p99_ms, failed, of the last second.
"""

from __future__ import annotations

import http.client
import itertools
import json
import signal
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np

PAUSE_S = 0.001


def main(url: str, file: str) -> None:
    work = json.loads(Path(file).read_text())
    bodies = itertools.cycle([body.encode() for body in work["bodies"]])
    address = urlsplit(url)
    connection = http.client.HTTPConnection(address.hostname or "127.0.0.1", address.port, timeout=10)
    latencies_ms: list[float] = []
    failed, reported_s = 0, time.monotonic()
    while True:
        started_s = time.monotonic()
        try:
            connection.request("POST", work["path"], next(bodies))
            reply = connection.getresponse()
            reply.read()
            failed += reply.status != 200
        except (OSError, http.client.HTTPException):
            connection.close()
            failed += 1
        now_s = time.monotonic()
        latencies_ms.append((now_s - started_s) * 1e3)
        if now_s - reported_s >= 1:
            p50, p99 = np.percentile(latencies_ms, [50, 99])
            rate = len(latencies_ms) / (now_s - reported_s)
            print(json.dumps({"requests_per_s": rate, "p50_ms": p50, "p99_ms": p99, "failed": failed}), flush=True)
            latencies_ms, failed, reported_s = [], 0, now_s
        time.sleep(PAUSE_S)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    main(sys.argv[1], sys.argv[2])
