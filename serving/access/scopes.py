"""Scopes: what a key may ask for, and which scope each route and each gRPC method asks for.

The one table of them. A route that stands in none is refused where keys are asked for, and a test that walks every
route of every port fails: whoever adds one says here who may use it.
"""

from __future__ import annotations

import re

PREDICT, FEATURES, METRICS = "predict", "features", "metrics"
ADMIN_READ, ADMIN_WRITE = "admin:read", "admin:write"
SCOPES = (PREDICT, FEATURES, METRICS, ADMIN_READ, ADMIN_WRITE)
OPEN = ""
"""Asks for no key: what probes ask, which have none, and pages that hold no data."""

# HTTP, by the action of a route (serving.http.paths).
HTTP_SCOPES = {
    "live": OPEN,
    "up": OPEN,
    "ready": OPEN,
    "predict": PREDICT,
    "classify": PREDICT,
    "regress": PREDICT,
    "processor": PREDICT,
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

# gRPC, by the name of a method; no two services have one name for two things.
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
    # Not served; whoever asks hears what is instead.
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
    "POST /admin/models/{name}/explain": ADMIN_READ,
    # The data port asks for the scope predict besides: the key goes on to it.
    "POST /admin/models/{name}/try": ADMIN_READ,
    "POST /admin/models/{name}/calibration": ADMIN_WRITE,
    "POST /admin/models/{name}/deltas": ADMIN_WRITE,
    "POST /admin/models/{name}/reject": ADMIN_WRITE,
    "POST /admin/models/{name}/release": ADMIN_WRITE,
    "POST /admin/models/{name}/rollback": ADMIN_WRITE,
    "POST /admin/models/{name}/versions/{version}/load": ADMIN_WRITE,
    "POST /admin/models/{name}/versions/{version}/readmit": ADMIN_WRITE,
    "POST /admin/models/{name}/versions/{version}/unload": ADMIN_WRITE,
    "PUT /admin/groups/{group}": ADMIN_WRITE,
    "PUT /admin/models/{name}/labels/{label}": ADMIN_WRITE,
    "PUT /admin/models/{name}/policy": ADMIN_WRITE,
    "PUT /admin/sessions": ADMIN_WRITE,
}


def admin_scope(method: str, path: str) -> str:
    """The scope of a request of the admin port. What is no route reads with GET and HEAD and changes else: whoever may
    do that hears that there is none."""
    method = "GET" if method == "HEAD" else method
    for wanted, pattern, scope in _ADMIN_PATTERNS:
        if wanted == method and pattern.fullmatch(path):
            return scope
    return ADMIN_READ if method == "GET" else ADMIN_WRITE


def _pattern(route: str) -> tuple[str, re.Pattern[str], str]:
    method, _, path = route.partition(" ")
    return method, re.compile(re.sub(r"\\\{\w+\\\}", "[^/]+", re.escape(path))), ADMIN_SCOPES[route]


_ADMIN_PATTERNS = [_pattern(route) for route in ADMIN_SCOPES]
