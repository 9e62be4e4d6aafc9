"""Define the scopes of API keys, and the scope that each route and each gRPC method requires.

This is the only such table. With API keys, a route that is not listed requires an admin scope. A test walks every route
of every port and fails for a missing one, so a new route must be added here.

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
    "live": OPEN,
    "up": OPEN,
    "ready": OPEN,
    "predict": PREDICT,
    "classify": PREDICT,
    "regress": PREDICT,
    "processor": PREDICT,
    "rerank": PREDICT,
    "infer": PREDICT,
    "root": PREDICT,
    "docs": PREDICT,
    "openapi": PREDICT,
    "server": PREDICT,
    "status": PREDICT,
    "metadata": PREDICT,
    "model": PREDICT,
    "model_ready": PREDICT,
    "config": PREDICT,
    "index": PREDICT,
    "shm_status": PREDICT,
    "shm_register": PREDICT,
    "shm_unregister": PREDICT,
    "metrics": METRICS,
    "stats": METRICS,
    "load": ADMIN_WRITE,
    "unload": ADMIN_WRITE,
}

# gRPC, by the name of a method; no two services use one name for different methods.
RPC_SCOPES = {
    "Check": OPEN,
    "Watch": OPEN,
    "ServerLive": OPEN,
    "ServerReady": OPEN,
    "ServerReflectionInfo": PREDICT,
    "Predict": PREDICT,
    "Classify": PREDICT,
    "Regress": PREDICT,
    "MultiInference": PREDICT,
    "GetModelMetadata": PREDICT,
    "GetModelStatus": PREDICT,
    "ModelInfer": PREDICT,
    "ModelStreamInfer": PREDICT,
    "ModelReady": PREDICT,
    "ModelMetadata": PREDICT,
    "ModelConfig": PREDICT,
    "ServerMetadata": PREDICT,
    "RepositoryIndex": PREDICT,
    "SystemSharedMemoryStatus": PREDICT,
    "SystemSharedMemoryRegister": PREDICT,
    "SystemSharedMemoryUnregister": PREDICT,
    # Not served; the error names the alternative.
    "CudaSharedMemoryStatus": PREDICT,
    "CudaSharedMemoryRegister": PREDICT,
    "CudaSharedMemoryUnregister": PREDICT,
    "TraceSetting": PREDICT,
    "LogSettings": PREDICT,
    "ModelStatistics": METRICS,
    "HandleReloadConfigRequest": ADMIN_WRITE,
    "RepositoryModelLoad": ADMIN_WRITE,
    "RepositoryModelUnload": ADMIN_WRITE,
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
    "PUT /admin/groups/{group}": ADMIN_WRITE,
    "PUT /admin/models/{name}/labels/{label}": ADMIN_WRITE,
    "PUT /admin/models/{name}/policy": ADMIN_WRITE,
    "PUT /admin/sessions": ADMIN_WRITE,
}


def admin_scope(method: str, path: str) -> str:
    """Return the scope of a request of the admin port.

    Unknown paths require admin:read for GET and HEAD and admin:write otherwise; holders of that scope then get 404.

    Args:
        method: HTTP method.
    """
    method = "GET" if method == "HEAD" else method
    for wanted, pattern, scope in _ADMIN_PATTERNS:
        if wanted == method and pattern.fullmatch(path):
            return scope
    return ADMIN_READ if method == "GET" else ADMIN_WRITE


def _pattern(route: str) -> tuple[str, re.Pattern[str], str]:
    method, _, path = route.partition(" ")
    return method, re.compile(re.sub(r"\\\{\w+\\\}", "[^/]+", re.escape(path))), ADMIN_SCOPES[route]


_ADMIN_PATTERNS = [_pattern(route) for route in ADMIN_SCOPES]
