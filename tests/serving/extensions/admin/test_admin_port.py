"""The admin port answers on a thread of its own, and ends when it is told to."""

import http.client

import pytest

from freshet_serving.serving.access.credentials import ADMIN_PLACE, AccessControl
from freshet_serving.serving.access.rate_limiter import rate_limiter_memory
from freshet_serving.serving.extensions.admin.admin_port import AdminPort
from freshet_serving.serving.http.port import listen
from freshet_serving.serving.lifecycle import Lifecycle
from freshet_serving.serving.serve_config import ServeConfig
from freshet_serving.serving.server_parts import ServerParts
from freshet_serving.serving.telemetry.metrics import Metrics


def test_port_answers_while_models_load_and_ends(tmp_path):
    lifecycle = Lifecycle()
    metrics = Metrics(lifecycle)
    access = AccessControl("", rate_limiter_memory(ADMIN_PLACE + 1))
    config = ServeConfig(repository=str(tmp_path))
    listening = listen("127.0.0.1", 0)
    address = listening.getsockname()
    port = AdminPort(ServerParts(config, 1, lifecycle, metrics, access, ("127.0.0.1", 1), None), listening)
    port.start()
    try:
        client = http.client.HTTPConnection(*address, timeout=30)
        client.request("GET", "/admin/models")
        assert client.getresponse().status == 503
        client.close()
    finally:
        port.end()
    with pytest.raises(OSError, match="refused"):
        http.client.HTTPConnection(*address, timeout=30).connect()
