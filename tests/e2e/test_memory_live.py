"""A server whose workers may have hardly any more memory: what is large is refused in words, the rest is answered."""

import http.client
import json
import resource

import pytest

from tests.e2e.servers import LiveServer
from tests.support.packages import write_package

pytestmark = [pytest.mark.e2e, pytest.mark.long]

ROW = {"user": 3, "tags": ["a"], "floats": [0.5] * 4}
MIB = 1 << 20


def predict(server, rows):
    connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=60)
    try:
        connection.request("POST", "/v1/models/small:predict", json.dumps({"instances": [ROW] * rows}))
        reply = connection.getresponse()
        return reply.status, reply.read()
    finally:
        connection.close()


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="limits of another process are Linux's")
@pytest.mark.parametrize("more_mib", [2, 6, 20])
def test_large_requests_are_503_while_small_ones_are_answered(more_mib, tmp_path):
    write_package(tmp_path / "repository")
    with LiveServer(tmp_path / "repository", "--workers", "2", log=tmp_path / "serve.log") as server:
        workers = [w["pid"] for w in json.loads(server.get("/admin/models", admin=True)[2])["workers"]]
        for pid in workers:
            with open(f"/proc/{pid}/status") as status:
                (line,) = (line for line in status if line.startswith("VmData"))
            most = int(line.split()[1]) * 1024 + more_mib * MIB
            resource.prlimit(pid, resource.RLIMIT_DATA, (most, most))
        for _ in range(4):
            status, body = predict(server, 60_000)
            assert (status, b"memory" in body) == (503, True)
            assert predict(server, 1)[0] == 200
        assert [w["pid"] for w in json.loads(server.get("/admin/models", admin=True)[2])["workers"]] == workers
