"""A server whose workers may have hardly any more memory: what is large is refused in words, the rest is answered."""

import json
import resource

import pytest

from tests.e2e.servers import LiveServer
from tests.support.packages import write_package

pytestmark = [pytest.mark.e2e, pytest.mark.long]

ROW = {"user": 3, "tags": ["a"], "floats": [0.5] * 4}
MIB = 1 << 20


def predict(server, rows):
    status, _, body = server.request("POST", "/v1/models/small:predict", json.dumps({"instances": [ROW] * rows}))
    return status, body


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="limits of another process are Linux's")
def test_large_requests_are_503_while_small_ones_are_answered(tmp_path):
    write_package(tmp_path / "repository")
    with LiveServer(tmp_path / "repository", "--workers", "2", log=tmp_path / "serve.log") as server:
        workers = [worker["pid"] for worker in server.about()["workers"]]
        for more_mib in (20, 6, 2):
            for pid in workers:
                with open(f"/proc/{pid}/status") as status:
                    (line,) = (line for line in status if line.startswith("VmData"))
                most = int(line.split()[1]) * 1024 + more_mib * MIB
                resource.prlimit(pid, resource.RLIMIT_DATA, (most, resource.RLIM_INFINITY))
            for _ in range(4):
                status, body = predict(server, 60_000)
                assert (status, b"memory" in body) == (503, True), more_mib
                assert predict(server, 1)[0] == 200
        assert [worker["pid"] for worker in server.about()["workers"]] == workers
