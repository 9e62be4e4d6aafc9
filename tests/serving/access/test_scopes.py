"""The one table of scopes: every route of every port stands in it, and nothing that is no route any more."""

import pytest

from freshet_serving.serving.access.scopes import (
    ADMIN_READ,
    ADMIN_SCOPES,
    ADMIN_WRITE,
    HTTP_SCOPES,
    OPEN,
    RPC_SCOPES,
    SCOPES,
    admin_scope,
)
from freshet_serving.serving.extensions.admin.api import create_admin
from freshet_serving.serving.extensions.explaining.explain_route import ExplainRoute
from freshet_serving.serving.http.paths import OF_MODELS, PLAIN, POSTED, VERBS
from freshet_serving.serving.lifecycle import Lifecycle
from freshet_serving.serving.telemetry.metrics import Metrics
from tests.serving.rpc.live import rpc_services


def test_every_scope_can_be_given_to_a_key():
    assert set(HTTP_SCOPES.values()) | set(RPC_SCOPES.values()) | set(ADMIN_SCOPES.values()) <= {OPEN, *SCOPES}


def test_every_route_of_the_data_port_has_a_scope():
    actions = {
        *PLAIN.values(),
        *VERBS.values(),
        *OF_MODELS.values(),
        *POSTED,
        "processor",
        "status",
        "metadata",
        "model",
    }
    assert actions == set(HTTP_SCOPES)


def test_every_method_of_the_grpc_port_has_a_scope():
    methods = {method for handlers in rpc_services().values() for method in handlers}
    assert methods == set(RPC_SCOPES)


def test_every_route_of_the_admin_port_has_a_scope():
    lifecycle = Lifecycle()
    app = create_admin(lifecycle, Metrics(lifecycle), routes={"explain": ExplainRoute(lifecycle)}).app
    routes = {f"{method} {route.path}" for route in app.routes for method in route.methods - {"HEAD"}}
    assert routes == set(ADMIN_SCOPES)


@pytest.mark.parametrize("route", ADMIN_SCOPES)
def test_path_has_the_scope_of_its_route(route):
    method, _, path = route.partition(" ")
    filled = path.replace("{name}", "m.x-1").replace("{version}", "3").replace("{label}", "l").replace("{group}", "g")
    assert admin_scope(method, filled) == ADMIN_SCOPES[route]


@pytest.mark.parametrize(
    ("method", "path", "scope"),
    [
        ("HEAD", "/admin/models", ADMIN_READ),
        ("GET", "/admin/health/", ADMIN_READ),
        ("GET", "/console/a/b", ADMIN_READ),
        ("GET", "/consolex", ADMIN_READ),
        ("POST", "/admin/health", ADMIN_WRITE),
        ("POST", "/", ADMIN_WRITE),
        ("DELETE", "/admin/models", ADMIN_WRITE),
        ("POST", "/admin/models/a/b/explain", ADMIN_WRITE),
    ],
)
def test_unknown_route_is_never_open(method, path, scope):
    assert admin_scope(method, path) == scope
