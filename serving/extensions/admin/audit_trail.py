"""Keep an audit trail of changes made through this admin port: time, client, change and outcome.

The log has a line for every change; the newest entries are kept in memory for the console.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import Response

from freshet_serving.processor.errors import FreshetError
from freshet_serving.serving.codecs.wire import show
from freshet_serving.serving.extensions.admin.admin_bodies import json_reply
from freshet_serving.serving.extensions.admin.authorization import KEY_NAME
from freshet_serving.serving.front.offload_executor import in_thread

log = logging.getLogger("freshet.admin")

MOST_ENTRIES, MOST_LETTERS = 100, 500


class AuditTrail:
    def __init__(self) -> None:
        self._entries: deque[dict[str, Any]] = deque(maxlen=MOST_ENTRIES)

    def add_to(self, app: FastAPI) -> None:
        app.get("/admin/audit")(self.audit)

    async def audit(self) -> Response:
        """Return the newest 100 changes made through this port since it was opened, the newest first."""
        return json_reply({"entries": list(self._entries)[::-1]})

    async def run(self, request: Request, change: str, act: Callable[[], Any], executor: Executor | None = None) -> Any:
        """Run a change, named in words, in a worker thread, and log its outcome; return the result of act()."""
        client = request.client.host if request.client else "?"
        if key := request.scope.get(KEY_NAME):
            client = f"{client} ({key})"
        began_s = time.monotonic()

        def note(outcome: str) -> None:
            took_ms = round((time.monotonic() - began_s) * 1e3, 1)
            entry = {"at": time.time(), "client": client, "what": change, "outcome": outcome, "took_ms": took_ms}
            self._entries.append({k: v[:MOST_LETTERS] if isinstance(v, str) else v for k, v in entry.items()})

        try:
            result = await in_thread(executor, act)
        except FreshetError as error:
            log.warning("%s: %s: refused: %s", client, change, show(str(error)))
            note(f"refused: {error}")
            raise
        except Exception:
            log.warning("%s: %s: failed", client, change)
            note("failed")
            raise
        log.info("%s: %s: done", client, change)
        note("done")
        return result
