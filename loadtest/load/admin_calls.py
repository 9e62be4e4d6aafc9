"""The calls of the admin API that measurements need, timed to the byte."""

from __future__ import annotations

import http.client
import time

from loadtest.load.launch import HOST, CommandFailed

TIMEOUT_S = 120.0


def post_delta(port: int, model: str, file: bytes) -> float:
    """Uploads a delta; returns seconds from the last byte sent to the answer, which comes when every session serves it.

    Raises CommandFailed when it is refused.
    """
    headers = {"Content-Type": "application/octet-stream"}
    return _send(port, "POST", f"/admin/models/{model}/deltas", file, headers)


def change_version(port: int, model: str, version: int, action: str) -> float:
    """Loads or unloads a version; returns seconds until it is done. action: load | unload."""
    return _send(port, "POST", f"/admin/models/{model}/versions/{version}/{action}", b"", {})


def _send(port: int, method: str, path: str, body: bytes, headers: dict[str, str]) -> float:
    connection = http.client.HTTPConnection(HOST, port, timeout=TIMEOUT_S)
    try:
        connection.request(method, path, body, headers)
        sent_s = time.monotonic()
        reply = connection.getresponse()
        text = reply.read()
        taken_s = time.monotonic() - sent_s
    except (OSError, http.client.HTTPException) as error:
        raise CommandFailed(f"{method} {path}: {type(error).__name__}: {error}") from None
    finally:
        connection.close()
    if reply.status != 200:
        raise CommandFailed(f"{method} {path}: {reply.status}: {text[:500].decode(errors='replace')}")
    return taken_s
