"""`python -m tests.serving.server_process KEY=VALUE...`: freshet serve over a FakeProcessor, in a process of its own.

It prints `submitted` for each request that reaches the processor, and answers all that wait for each line that it
reads. At the end it prints whether the processor was closed, and which of the server's threads are left.
"""

from __future__ import annotations

import sys
import threading
from typing import Any

from freshet_serving.serving.serve_config import load_config
from freshet_serving.serving.server import Server
from tests.serving.fakes import PACKED, FakeProcessor

WAIT_S = 10.0


class Announcing(FakeProcessor):
    def submit(self, request: Any, done: Any, replica: Any) -> None:
        super().submit(request, done, replica)
        print("submitted", flush=True)


def main() -> int:
    options = dict(option.split("=", 1) for option in sys.argv[1:])
    environ = {f"FRESHET_{key.upper()}": value for key, value in ({"workers": "1"} | options).items()}
    processor = Announcing({"ctr": PACKED}, hold=True)

    def release() -> None:
        for _ in sys.stdin:
            processor.release()

    threading.Thread(target=release, daemon=True).start()
    code = Server(load_config({"repository": "fake"}, environ), open_processor=lambda config, layout: processor).run()
    ours = [thread for thread in threading.enumerate() if thread.name.startswith("freshet")]
    for thread in ours:
        # A second signal waits for none of them: they end by themselves.
        thread.join(WAIT_S)
    left = [thread.name for thread in ours if thread.is_alive()]
    print(f"closed={processor.closed} left={left}", flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
