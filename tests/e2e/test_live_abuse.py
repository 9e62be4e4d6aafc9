"""What strangers to good manners do to the admin port's live stream: hundreds of them, and readers that never read."""

import contextlib
import json
import socket

import pytest

from freshet_serving.serving.extensions.admin.live_stream import MOST_STREAMS
from tests.e2e.servers import ALONE, LiveServer
from tests.support.packages import write_package
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.long]
MANY, CROWD = 300, 100
"""How many come one after another, and stay together: fewer than the admin port takes connections."""
ASKED = b"GET /admin/live HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"


@pytest.fixture(scope="module", params=[ALONE, ("--workers", "2")], ids=["one process", "workers"])
def server(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("abuse")
    write_package(folder / "repository")
    with LiveServer(folder / "repository", *request.param, log=folder / "serve.log") as one:
        one.log = folder / "serve.log"
        yield one


def connected(server):
    opened = socket.create_connection(("127.0.0.1", server.admin_port), timeout=20)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    opened.sendall(ASKED)
    return opened


def status(connection):
    with contextlib.suppress(OSError):
        return int(connection.recv(64).split(b" ")[1])


def streams(server):
    """Whether another stream may be opened."""
    with contextlib.closing(connected(server)) as connection:
        return status(connection)


def test_excess_streams_are_refused_while_requests_are_answered(server):
    with contextlib.ExitStack() as stack:
        readers = [stack.enter_context(contextlib.closing(connected(server))) for _ in range(MOST_STREAMS)]
        assert [status(reader) for reader in readers] == [200] * MOST_STREAMS
        for _ in range(MANY):
            assert streams(server) == 429
        assert server.get("/admin/models", admin=True)[0] == 200
        assert server.predict("small", {"user": [1], "tags": [["a"]], "floats": [[0.1, 0.2, 0.3, 0.4]]})
    until(lambda: streams(server) == 200)


def test_many_open_connections_do_not_block_changes(server):
    with contextlib.ExitStack() as stack:
        for _ in range(CROWD):
            stack.enter_context(contextlib.closing(connected(server)))
        answered = server.post_json("/admin/models/small/labels/stable", {"version": 1}, method="PUT")
        assert answered[0] == 200
    until(lambda: streams(server) == 200)


def test_overlong_names_and_queries_are_refused_in_one_line(server):
    for path in ("m" * 10_000, "%00", "%ff%fe", "..%2f..%2fetc%2fpasswd", "a" * 129):
        for view in ("timeline", "tables", "canaries", "signature"):
            code, _, body = server.get(f"/admin/models/{path}/{view}", admin=True)
            assert code in (400, 404, 414, 431), (path[:40], view, code, body[:200])
            assert list(json.loads(body)) == ["error"]
            assert len(body) < 1000
        code, _, body = server.request("POST", f"/admin/models/{path}/try", b"{}", admin=True)
        assert code in (400, 404, 414, 431), (path[:40], code, body[:200])
    code, _, body = server.request("POST", "/admin/models/small/try", b"[" * 500_000, admin=True)
    assert code in (400, 413), body[:200]


# The last one: it ends the server.
def test_shutdown_does_not_wait_for_stream_readers(server):
    with contextlib.ExitStack() as stack:
        readers = [stack.enter_context(contextlib.closing(connected(server))) for _ in range(4)]
        assert [status(reader) for reader in readers] == [200] * 4
        server.process.terminate()
        assert server.process.wait(timeout=30) == 0
    assert "ERROR" not in server.log.read_text()
