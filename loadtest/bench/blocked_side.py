"""`python -m loadtest.bench.blocked_side OPTIONS`: a server whose event loop tells how late it came to what was due.

OPTIONS is one JSON object of `freshet serve`'s options. Standard input is a pipe of instants, int64 nanoseconds of the
monotonic clock, written by another process when they have come: the loop reads it as it reads connections, and notes
how long each had waited. So a loop that stands still for 50 ms is met by all who come meanwhile, as clients meet it. A
0 asks for what was noted since the last 0: one line of JSON, in microseconds.
"""

from __future__ import annotations

import asyncio
import json
import os
import struct
import sys
import time

from freshet_serving.serving.serve_config import load_config
from freshet_serving.serving.server import Server

READ_NBYTES = 1 << 16
INSTANT = struct.Struct("=q")


class LoopProbe:
    """Notes how long instants waited in a pipe until the event loop read them."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._waited_us: list[int] = []

    def read(self) -> None:
        instants, now_ns = os.read(self._fd, READ_NBYTES), time.monotonic_ns()
        for (instant_ns,) in INSTANT.iter_unpack(instants):
            if instant_ns:
                self._waited_us.append((now_ns - instant_ns) // 1000)
            else:
                print(json.dumps(self._waited_us), flush=True)
                self._waited_us.clear()


class ProbedServer(Server):
    """A server that is probed as long as its loop runs."""

    async def _main(self) -> None:
        fd = sys.stdin.fileno()
        asyncio.get_running_loop().add_reader(fd, LoopProbe(fd).read)
        try:
            await super()._main()
        finally:
            asyncio.get_running_loop().remove_reader(fd)


def main() -> int:
    options = json.loads(sys.argv[1])
    return ProbedServer(load_config(options, {}), out=sys.stderr).run()


if __name__ == "__main__":
    sys.exit(main())
