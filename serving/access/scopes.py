"""Define the scopes of API keys, and the scope that each route and each gRPC method requires.

With API keys, a route that is not listed requires an admin scope. A test walks every route of every port and fails for
a missing one, so a new route must be added here.

Rejected: scopes for single models. Labels and aliases would have to be resolved before a request may be refused.
"""

from __future__ import annotations

import re

PREDICT, FEATURES, METRICS = "predict", "features", "metrics"
ADMIN_READ, ADMIN_WRITE = "admin:read", "admin:write"
SCOPES = (PREDICT, FEATURES, METRICS, ADMIN_READ, ADMIN_WRITE)
OPEN = ""
"""Needs no key: for probes, which have none, and pages without data."""

# HTTP, by the action of a route (serving.http.paths).
HTTP_SCOPES = {
    **dict.fromkeys(("live", "up", "ready"), OPEN),
    **dict.fromkeys(("predict", "classify", "regress", "processor", "rerank", "infer"), PREDICT),
    **dict.fromkeys(("root", "docs", "openapi", "server"), PREDICT),
    **dict.fromkeys(("status", "metadata", "model", "model_ready", "config", "index"), PREDICT),
    **dict.fromkeys(("shm_status", "shm_register", "shm_unregister"), PREDICT),
    **dict.fromkeys(("metrics", "stats"), METRICS),
    **dict.fromkeys(("load", "unload"), ADMIN_WRITE),
}

# gRPC, by the name of a method; no two services use one name for different methods.
RPC_SCOPES = {
    **dict.fromkeys(("Check", "Watch", "ServerLive", "ServerReady"), OPEN),
    **dict.fromkeys(("Predict", "Classify", "Regress", "MultiInference", "ModelInfer", "ModelStreamInfer"), PREDICT),
    **dict.fromkeys(("GetModelMetadata", "GetModelStatus", "ServerReflectionInfo", "ServerMetadata"), PREDICT),
    **dict.fromkeys(("ModelReady", "ModelMetadata", "ModelConfig", "RepositoryIndex"), PREDICT),
    **{
        f"{kind}SharedMemory{act}": PREDICT
        for kind in ("System", "Cuda")
        for act in ("Status", "Register", "Unregister")
    },
    # Not served, as Cuda's: the error names the alternative.
    **dict.fromkeys(("TraceSetting", "LogSettings"), PREDICT),
    "ModelStatistics": METRICS,
    **dict.fromkeys(("HandleReloadConfigRequest", "RepositoryModelLoad", "RepositoryModelUnload"), ADMIN_WRITE),
}

# The admin port, by method and path.
ADMIN_SCOPES = {
    "GET /": OPEN,
    "GET /docs": OPEN,
    "GET /console/{name}": OPEN,
    "GET /admin/health": OPEN,
    "GET /admin/openapi.json": ADMIN_READ,
    "GET /admin/audit": ADMIN_READ,
    "GET /admin/live": ADMIN_READ,
    "GET /admin/models": ADMIN_READ,
    "GET /admin/models/{name}/canaries": ADMIN_READ,
    "GET /admin/models/{name}/signature": ADMIN_READ,
    "GET /admin/models/{name}/tables": ADMIN_READ,
    "GET /admin/models/{name}/timeline": ADMIN_READ,
    "GET /admin/models/{name}/user_state": ADMIN_READ,
    "GET /admin/models/{name}/versions": ADMIN_READ,
    "POST /admin/models/{name}/explain": ADMIN_READ,
    # The data port also requires the scope predict: the key is forwarded to it.
    "POST /admin/models/{name}/try": ADMIN_READ,
    "POST /admin/models/{name}/calibration": ADMIN_WRITE,
    "POST /admin/models/{name}/deltas": ADMIN_WRITE,
    "POST /admin/models/{name}/erase": ADMIN_WRITE,
    "POST /admin/models/{name}/reject": ADMIN_WRITE,
    "POST /admin/models/{name}/release": ADMIN_WRITE,
    "POST /admin/models/{name}/rollback": ADMIN_WRITE,
    "POST /admin/models/{name}/versions/{version}/load": ADMIN_WRITE,
    "POST /admin/models/{name}/versions/{version}/readmit": ADMIN_WRITE,
    "POST /admin/models/{name}/versions/{version}/reject": ADMIN_WRITE,
    "POST /admin/models/{name}/versions/{version}/release": ADMIN_WRITE,
    "POST /admin/models/{name}/versions/{version}/unload": ADMIN_WRITE,
    "DELETE /admin/models/{name}/labels/{label}": ADMIN_WRITE,
    "PUT /admin/groups/{group}": ADMIN_WRITE,
    "PUT /admin/models/{name}/labels/{label}": ADMIN_WRITE,
    "PUT /admin/models/{name}/policy": ADMIN_WRITE,
    "PUT /admin/sessions": ADMIN_WRITE,
}


def admin_scope(method: str, path: str) -> str:
    """Return the scope of a request of the admin port.

    Unknown paths require admin:read for GET and HEAD and admin:write otherwise; holders of that scope then get 404.
    """
    method = "GET" if method == "HEAD" else method
    for route_method, pattern, scope in _ADMIN_PATTERNS:
        if route_method == method and pattern.fullmatch(path):
            return scope
    return ADMIN_READ if method == "GET" else ADMIN_WRITE


def _pattern(route: str) -> tuple[str, re.Pattern[str], str]:
    method, _, path = route.partition(" ")
    return method, re.compile(re.sub(r"\\\{\w+\\\}", "[^/]+", re.escape(path))), ADMIN_SCOPES[route]


_ADMIN_PATTERNS = [_pattern(route) for route in ADMIN_SCOPES]
