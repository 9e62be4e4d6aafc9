"""The HTTP ports with keys: what each route says without one, without its scope, beyond a rate; and what goes on."""

import json
import socket
import threading

import pytest

from freshet_serving.serving.access.key_file import RateLimits
from freshet_serving.serving.access.scopes import ADMIN_SCOPES, HTTP_SCOPES, OPEN
from tests.serving.access.keyed import Keyed
from tests.serving.fakes import FakeProcessor
from tests.serving.http.test_protocol import BODY, SCORED, read_reply
from tests.serving.test_server import running
from tests.support.extensions import needs
from tests.support.waiting import until

pytestmark = pytest.mark.e2e

# A path of each action; a body goes with what is posted.
PATHS = {
    "live": "GET /v2/health/live",
    "up": "GET /healthz",
    "ready": "GET /v2/health/ready",
    "predict": "POST /v1/models/ctr:predict",
    "classify": "POST /v1/models/ctr/versions/3:classify",
    "regress": "POST /v1/models/ctr/labels/stable:regress",
    "processor": "POST /api/predict/ctr",
    "rerank": "POST /v1/models/ctr:rerank",
    "infer": "POST /v2/models/ctr/infer",
    "root": "GET /",
    "docs": "GET /docs",
    "openapi": "GET /openapi.json",
    "server": "GET /v2",
    "status": "GET /v1/models/ctr",
    "metadata": "GET /v1/models/ctr/metadata",
    "model": "GET /v2/models/ctr",
    "model_ready": "GET /v2/models/ctr/ready",
    "config": "GET /v2/models/ctr/config",
    "index": "POST /v2/repository/index",
    "shm_status": "GET /v2/systemsharedmemory/status",
    "shm_register": "POST /v2/systemsharedmemory/region/r/register",
    "shm_unregister": "POST /v2/systemsharedmemory/unregister",
    "metrics": "GET /metrics",
    "stats": "GET /v2/models/stats",
    "load": "POST /v2/repository/models/ctr/load",
    "unload": "POST /v2/repository/models/ctr/unload",
}
ADMIN_FILLED = {"{name}": "ctr", "{version}": "3", "{label}": "l", "{group}": "default"}


def asked(route):
    """Method and path of a route of the admin port."""
    method, _, path = route.partition(" ")
    for slot, value in ADMIN_FILLED.items():
        path = path.replace(slot, value)
    return method, path


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """(server, its keys, one key without any rate left)."""
    keyed = Keyed(tmp_path_factory.mktemp("keys"))
    keyed.spent = keyed.add(
        "spent", [scope for scope in {*HTTP_SCOPES.values(), *ADMIN_SCOPES.values()} if scope], ONCE
    )
    processor = FakeProcessor()
    with running(lambda config: processor, api_keys=str(keyed.path), model_control="explicit") as (server, _, _):
        until(lambda: call(server.http_address, "GET /v2/health/ready")[0] == 200)
        call(server.http_address, "GET /v2", keyed.spent)
        keyed.processor = processor
        yield server, keyed


ONCE = RateLimits(rate=0.001)


def call(address, route, headers=None, body=BODY):
    with socket.create_connection(address, timeout=30) as connection:
        return call_on(connection, route, headers, body)


def call_on(connection, route, headers=None, body=BODY):
    method, _, path = route.partition(" ")
    sent = {"host": "localhost", **(headers or {}), "content-length": len(body) if method == "POST" else 0}
    lines = "".join(f"{name}: {value}\r\n" for name, value in sent.items())
    connection.sendall(f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode() + (body if method == "POST" else b""))
    file = connection.makefile("rb")
    status, headers = int(file.readline().split()[1]), {}
    while (line := file.readline()) not in (b"\r\n", b""):
        name, _, value = line.decode().strip().partition(": ")
        headers[name] = value
    if headers.get("transfer-encoding") == "chunked":
        return status, headers, None
    text = file.read(int(headers.get("content-length", 0)))
    try:
        return status, headers, json.loads(text)
    except ValueError:
        return status, headers, text


def test_every_action_has_a_test_path():
    assert set(PATHS) == set(HTTP_SCOPES)


@pytest.mark.parametrize("action", HTTP_SCOPES)
def test_data_port_route_requires_key_scope_and_rate(served, action):
    server, keyed = served
    check(server.http_address, PATHS[action], HTTP_SCOPES[action], keyed)


@needs("admin")
@pytest.mark.parametrize("route", ADMIN_SCOPES)
def test_admin_port_route_requires_key_scope_and_rate(served, route):
    server, keyed = served
    check(server.admin_address, " ".join(asked(route)), ADMIN_SCOPES[route], keyed)


def check(address, route, scope, keyed):
    if scope == OPEN:
        assert call(address, route)[0] not in (401, 403, 429)
        return
    before = len(keyed.processor.requests), list(keyed.processor.calls)
    status, headers, _ = call(address, route)
    assert (status, headers["www-authenticate"]) == (401, "Bearer")
    assert call(address, route, {"authorization": "Bearer guess"})[0] == 401
    assert call(address, route, keyed.headers(lacking(scope)))[0] == 403
    status, headers, told = call(address, route, keyed.spent)
    assert (status, int(headers["retry-after"]) > 1) == (429, True)
    assert told["error"] == "key 'spent': expected at most 0.001 requests a second, got more"
    assert (len(keyed.processor.requests), keyed.processor.calls) == before
    assert call(address, route, keyed.headers("all"))[0] not in (401, 403, 429)


def lacking(scope):
    """A key of the file that has another scope alone."""
    return "metrics" if scope != "metrics" else "features"


@pytest.mark.parametrize(
    "route", ["GET /nowhere", "POST /v2/models/ctr/explode", "GET /V2/HEALTH/READY", "GET //healthz"]
)
def test_unknown_route_is_401_without_a_key(served, route):
    server, keyed = served
    assert call(server.http_address, route)[0] == 401
    assert call(server.http_address, route, keyed.headers("predict"))[0] in (400, 404)


def test_cached_head_does_not_admit_a_revoked_key(tmp_path, monkeypatch):
    monkeypatch.setattr("freshet_serving.serving.access.credentials.LOOK_S", 0.01)
    keyed = Keyed(tmp_path)
    with running(lambda config: FakeProcessor(), api_keys=str(keyed.path)) as (server, _, _):
        until(lambda: call(server.http_address, "GET /v2/health/ready")[0] == 200)
        with socket.create_connection(server.http_address, timeout=30) as connection:
            for _ in range(3):
                assert call_on(connection, PATHS["predict"], keyed.headers("predict"))[2] == SCORED
            keyed.revoke("predict")
            until(lambda: call_on(connection, PATHS["predict"], keyed.headers("predict"))[0] == 401)
            # On the same connection: who is refused is not thrown out.
            assert call_on(connection, PATHS["predict"], keyed.headers("all"))[2] == SCORED


def test_refused_short_body_is_dropped_and_the_connection_kept(served):
    server, keyed = served
    before = len(keyed.processor.requests)
    with socket.create_connection(server.http_address, timeout=30) as connection:
        for size in (0, 10, 1 << 20):
            assert call_on(connection, PATHS["predict"], keyed.spent, b"x" * size)[0] == 429
        head = f"POST /v1/models/ctr:predict HTTP/1.1\r\nhost: x\r\ncontent-length: {(1 << 20) + 1}\r\n\r\n"
        connection.sendall(head.encode())
        status, headers, _ = read_reply(connection.makefile("rb"))
        assert (status, headers["connection"]) == (401, "close")
    assert len(keyed.processor.requests) == before


def test_unauthenticated_chunked_body_is_not_read(served):
    server, _ = served
    with socket.create_connection(server.http_address, timeout=30) as connection:
        connection.sendall(b"POST /v2/repository/index HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n5\r\n")
        status, headers, _ = read_reply(connection.makefile("rb"))
    assert (status, headers["connection"]) == (401, "close")


def test_concurrency_counts_disconnected_requests_until_they_finish(tmp_path):
    keyed = Keyed(tmp_path)
    two = keyed.add("two", ["predict"], RateLimits(concurrency=2))
    processor = FakeProcessor(hold=True)
    with running(lambda config: processor, api_keys=str(keyed.path)) as (server, _, _):
        until(lambda: call(server.http_address, "GET /v2/health/ready")[0] == 200)
        replies = []
        asking = [
            threading.Thread(target=lambda: replies.append(call(server.http_address, PATHS["predict"], two)[0]))
            for _ in range(2)
        ]
        asking[0].start()
        until(lambda: len(processor.requests) == 1)
        with socket.create_connection(server.http_address, timeout=30) as leaving:
            head = f"POST /v1/models/ctr:predict HTTP/1.1\r\nhost: x\r\ncontent-length: {len(BODY)}\r\n"
            leaving.sendall(head.encode() + f"authorization: {two['authorization']}\r\n\r\n".encode() + BODY)
            until(lambda: len(processor.requests) == 2)
        status, headers, told = call(server.http_address, PATHS["predict"], two)
        assert (status, headers["retry-after"]) == (429, "1")
        assert told["error"] == "key 'two': expected at most 2 requests in flight, got more"
        processor.release()
        asking[0].join(30)
        # A body that never comes whole holds its place no longer than its connection.
        for _ in range(3):
            with socket.create_connection(server.http_address, timeout=30) as half:
                half.sendall(head.encode() + f"authorization: {two['authorization']}\r\n\r\n".encode() + BODY[:5])
        processor.hold = False
        until(lambda: call(server.http_address, PATHS["predict"], two)[0] == 200)
        assert call(server.http_address, "GET /v2/models/ctr", two)[0] == 200
        assert replies == [200]


@needs("admin")
def test_admin_token_is_valid_on_every_port(tmp_path):
    keyed = Keyed(tmp_path)
    token = {"authorization": "Bearer t0ken"}
    options = {"api_keys": str(keyed.path), "admin_token": "t0ken", "model_control": "explicit"}
    with running(lambda config: FakeProcessor(), **options) as (server, _, _):
        until(lambda: call(server.http_address, "GET /v2/health/ready")[0] == 200)
        assert call(server.admin_address, "GET /admin/models", token)[0] == 200
        assert call(server.http_address, PATHS["predict"], token)[0] == 403
        assert call(server.http_address, PATHS["load"], token)[0] not in (401, 403)
        assert call(server.http_address, PATHS["load"], keyed.headers("admin-write"))[0] not in (401, 403)
