"""Serve documents for people: a data port's root, and the page that renders a port's OpenAPI document.

The page is one self-contained file for both ports: no script, font or style from another host.
"""

from __future__ import annotations

from functools import lru_cache
from importlib import resources
from typing import Any

OPENAPI_URL = "OPENAPI_URL"
PAGE_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}
WHAT = "Freshet's data port: predictions over TensorFlow Serving's REST and KServe v2. Change models on the admin port."
WHERE = {
    "docs": "GET /docs",
    "openapi": "GET /openapi.json",
    "ready": "GET /v2/health/ready",
    "metrics": "GET /metrics",
    "models": "POST /v2/repository/index",
    "inputs of a model": "GET /v2/models/{model}",
    "predict": "POST /v1/models/{model}:predict",
    "infer": "POST /v2/models/{model}/infer",
}


@lru_cache(maxsize=4)
def reference(openapi_url: str) -> str:
    """Return the page that renders the OpenAPI document at this path of its own port."""
    page = resources.files("freshet_serving.serving.http").joinpath("reference.html").read_text("utf-8")
    return page.replace(OPENAPI_URL, openapi_url)


def root(version: str, ready: bool) -> dict[str, Any]:
    return {"name": "freshet", "version": version, "status": "alive", "what": WHAT, "ready": ready, "where": WHERE}
