"""Parse paths of the data port into routes.

A path is split before its names are URL-decoded. Names are case sensitive, and so are the fixed words, except
TensorFlow Serving's `models`, `versions`, `labels` and `v1`, which it accepts in any case.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import unquote_to_bytes

from freshet_serving.processor.errors import BadInput, NotFound
from freshet_serving.serving.http.dialects import DIALECTS

MAX_PATH_NBYTES = 2048
PLAIN = {
    b"/": "root",
    b"/docs": "docs",
    b"/healthz": "up",
    b"/metrics": "metrics",
    b"/monitoring/prometheus/metrics": "metrics",
    b"/openapi.json": "openapi",
    b"/v1/rerank": "rerank",
    b"/v2": "server",
    b"/v2/": "server",
    b"/v2/health/live": "live",
    b"/v2/health/ready": "ready",
    b"/v2/models/stats": "stats",
    b"/v2/repository/index": "index",
    b"/v2/rerank": "rerank",
    b"/v2/systemsharedmemory/status": "shm_status",
    b"/v2/systemsharedmemory/unregister": "shm_unregister",
}
VERBS = {d.name.encode(): d.name for d in DIALECTS.values() if d.servable}
OF_MODELS = {b"ready": "model_ready", b"config": "config", b"stats": "stats"} | {
    d.name.encode(): d.name for d in DIALECTS.values() if not d.servable
}
ENCODED_VERB = re.compile(rb"%3[aA](" + b"|".join(VERBS) + rb")$")
WORDS = {b"v1", b"v2", b"models", b"versions", b"labels", b"metadata", b"repository", b"index", b"load", b"unload"}
WORDS |= OF_MODELS.keys()
UNSERVED = {
    b"cudasharedmemory": "cudasharedmemory: CUDA shared memory is not supported; use system shared memory",
    b"logging": "logging: log settings cannot be changed over this port; set them with the option log_level",
    b"trace": "trace: Triton's trace settings are not supported; requests with a traceparent are traced",
}
"""Triton's extensions that clients request, and the alternative."""
POSTED = DIALECTS.keys() | {"index", "load", "unload", "shm_register", "shm_unregister"}


@dataclass(frozen=True, slots=True)
class Route:
    """The route of a path.

    Attributes:
        action: A dialect's name (serving.http.dialects); status | metadata (v1); model | model_ready | config | stats |
            index | load | unload | shm_... (v2); up | live | ready | server | metrics | openapi | root | docs.
        region: Name of the shared-memory region.
    """

    action: str
    model: str = ""
    version: int | None = None
    label: str | None = None
    region: str = ""

    @property
    def method(self) -> str:
        return "POST" if self.action in POSTED else "GET"


@lru_cache(maxsize=1024)
def parse(path: bytes, method: str | None = None) -> Route:
    """Return the route of a raw path without its query; raise NotFound, or BadInput below /v1."""
    if len(path) > MAX_PATH_NBYTES:
        raise BadInput(f"path: expected at most {MAX_PATH_NBYTES} bytes, got {len(path)}")
    if path in PLAIN:
        return Route(PLAIN[path])
    _, _, rest = path.partition(b"/")
    parts = rest.split(b"/")
    if b"%" in path:
        parts = [_plain(part) for part in parts]
    if parts[0].lower() == b"v1":
        route = _tensorflow(parts)
        if route is None:
            raise BadInput(f"Malformed request: {(method or '')[:16]} {_text(path)}")
        return route
    if parts[:2] == [b"api", b"predict"] and len(parts) == 3 and parts[2]:
        # Path of PAI-EAS's clients of a DeepRec Processor.
        return Route("processor", _text(parts[2]))
    route = _kserve(parts) if parts[0] == b"v2" else None
    if route is None:
        raise NotFound(_unserved(parts) or "path: is not a route of this server")
    return route


def _tensorflow(parts: list[bytes]) -> Route | None:
    """Parse v1/models/{name}[/versions/{v}|/labels/{label}][:verb|/metadata]."""
    if len(parts) < 3 or parts[1].lower() != b"models":
        return None
    last, colon, verb = parts[-1].partition(b":")
    if not colon and (ending := ENCODED_VERB.search(last)):
        # Some clients encode the colon, too.
        last, colon, verb = last[: ending.start()], b":", ending[1]
    parts = [*parts[:-1], last]
    if colon:
        action = VERBS.get(verb, "")
    elif len(parts) in (4, 6) and last == b"metadata":
        parts, action = parts[:-1], "metadata"
    else:
        action = "status"
    if not action or not parts[2]:
        return None
    if len(parts) == 3:
        return Route(action, _text(parts[2]))
    if len(parts) == 5 and parts[3].lower() == b"versions" and parts[4].isdigit():
        version = _version(parts[4])
        if version is None:
            raise BadInput(f"Failed to convert version: {_text(parts[4])[:64]} to numeric.")
        # Clients that always name a version send 0 for the newest; our versions begin at 1.
        return Route(action, _text(parts[2]), version=version or None)
    if len(parts) == 5 and parts[3].lower() == b"labels" and parts[4]:
        return Route(action, _text(parts[2]), label=_text(parts[4]))
    return None


def _kserve(parts: list[bytes]) -> Route | None:
    """Parse v2/models/{name}[/versions/{v}][/ready|/infer|/config|/stats] and the other paths below v2."""
    if len(parts) < 3 or not parts[2]:
        return None
    if parts[1] == b"repository":
        return _repository(parts)
    if parts[1] == b"systemsharedmemory":
        return _shared_memory(parts)
    if parts[1] != b"models":
        return None
    action = OF_MODELS.get(parts[-1], "")
    if action and len(parts) in (4, 6):
        parts = parts[:-1]
    else:
        action = "model"
    if len(parts) == 3:
        return Route(action, _text(parts[2]))
    if len(parts) == 5 and parts[3] == b"versions" and parts[4].isdigit() and (version := _version(parts[4])):
        return Route(action, _text(parts[2]), version=version)
    return None


def _repository(parts: list[bytes]) -> Route | None:
    """Parse v2/repository/{repository}/index and v2/repository/models/{name}/load|unload."""
    if len(parts) == 4 and parts[3] == b"index":
        return Route("index")
    if len(parts) == 5 and parts[2] == b"models" and parts[3] and parts[4] in (b"load", b"unload"):
        return Route(parts[4].decode(), _text(parts[3]))
    return None


def _shared_memory(parts: list[bytes]) -> Route | None:
    """Parse v2/systemsharedmemory/region/{name}/status|register|unregister."""
    if len(parts) == 5 and parts[2] == b"region" and parts[3] and parts[4] in (b"status", b"register", b"unregister"):
        return Route(f"shm_{parts[4].decode()}", region=_text(parts[3]))
    return None


def _unserved(parts: list[bytes]) -> str:
    """Return the message for a v2 path that Triton would serve; "" for any other."""
    if parts[0] != b"v2" or len(parts) < 2:
        return ""
    if parts[1:2] == [b"models"] and parts[-2:-1] == [b"trace"]:
        return UNSERVED[b"trace"]
    return UNSERVED.get(parts[1], "") if len(parts) > 2 or parts[1] == b"logging" else ""


def _version(digits: bytes) -> int | None:
    return int(digits) if len(digits) <= 18 else None


def _plain(part: bytes) -> bytes:
    """Return a part of a path without its percent-encoding, if that makes it a fixed word."""
    decoded = unquote_to_bytes(part)
    return decoded if decoded.lower() in WORDS else part


def _text(quoted: bytes) -> str:
    try:
        return unquote_to_bytes(quoted).decode()
    except UnicodeDecodeError:
        raise BadInput("path: expected UTF-8") from None
