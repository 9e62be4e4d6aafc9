"""Paths of the data port. A path is split first and its names are URL-decoded after; names are case
sensitive."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import unquote_to_bytes

from processor.errors import BadInput, NotFound

MAX_PATH_NBYTES = 2048
PLAIN = {
    b"/healthz": "live",
    b"/metrics": "metrics",
    b"/v2": "server",
    b"/v2/": "server",
    b"/v2/health/live": "live",
    b"/v2/health/ready": "ready",
}
POSTED = ("predict", "infer")


@dataclass(frozen=True, slots=True)
class Route:
    """action: predict | status | metadata (v1); infer | model | model_ready (v2); live | ready | server |
    metrics."""

    action: str
    model: str = ""
    version: int | None = None
    label: str | None = None

    @property
    def method(self) -> str:
        return "POST" if self.action in POSTED else "GET"


@lru_cache(maxsize=1024)
def parse(path: bytes) -> Route:
    """The route of a raw path, without its query; raises NotFound, or BadInput below /v1 as TensorFlow
    Serving does."""
    if len(path) > MAX_PATH_NBYTES:
        raise BadInput(f"path: at most {MAX_PATH_NBYTES} bytes wanted, got {len(path)}")
    if path in PLAIN:
        return Route(PLAIN[path])
    _, _, rest = path.partition(b"/")
    parts = rest.split(b"/")
    if parts[0] == b"v1":
        route = _tensorflow(parts)
        if route is None:
            raise BadInput(f"Malformed request: {_text(path)}")
        return route
    route = _kserve(parts) if parts[0] == b"v2" else None
    if route is None:
        raise NotFound("path: not a route of this server")
    return route


def _tensorflow(parts: list[bytes]) -> Route | None:
    """v1/models/{name}[/versions/{v}|/labels/{label}][:verb|/metadata]"""
    if len(parts) < 3 or parts[1] != b"models":
        return None
    last, colon, verb = parts[-1].partition(b":")
    parts = [*parts[:-1], last]
    if colon:
        if verb in (b"classify", b"regress"):
            raise BadInput(f"method: predict wanted, got {verb.decode()}, which is not served")
        action = "predict" if verb == b"predict" else ""
    elif len(parts) in (4, 6) and last == b"metadata":
        parts, action = parts[:-1], "metadata"
    else:
        action = "status"
    if not action or not parts[2]:
        return None
    if len(parts) == 3:
        return Route(action, _text(parts[2]))
    if len(parts) == 5 and parts[3] == b"versions" and (version := _version(parts[4])):
        return Route(action, _text(parts[2]), version=version)
    if len(parts) == 5 and parts[3] == b"labels" and parts[4]:
        return Route(action, _text(parts[2]), label=_text(parts[4]))
    return None


def _kserve(parts: list[bytes]) -> Route | None:
    """v2/models/{name}[/versions/{v}][/ready|/infer]"""
    if len(parts) < 3 or parts[1] != b"models" or not parts[2]:
        return None
    action = {b"infer": "infer", b"ready": "model_ready"}.get(parts[-1], "")
    if action and len(parts) in (4, 6):
        parts = parts[:-1]
    else:
        action = "model"
    if len(parts) == 3:
        return Route(action, _text(parts[2]))
    if len(parts) == 5 and parts[3] == b"versions" and (version := _version(parts[4])):
        return Route(action, _text(parts[2]), version=version)
    return None


def _version(digits: bytes) -> int | None:
    return int(digits) if digits.isdigit() and len(digits) <= 18 and int(digits) > 0 else None


def _text(quoted: bytes) -> str:
    try:
        return unquote_to_bytes(quoted).decode()
    except UnicodeDecodeError:
        raise BadInput("path: UTF-8 wanted") from None
