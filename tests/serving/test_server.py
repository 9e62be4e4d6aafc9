import io
import json
import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest
import tritonclient.http as triton

from freshet_serving.processor.errors import BadInput
from freshet_serving.serving.front import catalog
from freshet_serving.serving.serve_config import ServeConfig
from freshet_serving.serving.server import DRAIN_STEPS, Server, warn_of_unused
from tests.serving.fakes import FakeProcessor
from tests.support.extensions import needs, there
from tests.support.waiting import until

pytestmark = pytest.mark.e2e

BODY = json.dumps({"instances": [{"ids": [1, 2, 3], "floats": [0.5, 1]}]}).encode()
ADMIN = {"admin_port": 0} if there("admin") else {}
FREE = {"http_port": 0, "grpc_port": 0, **ADMIN, "shutdown_timeout_s": 10.0, "workers": 1}
WAIT_S = 30


def fetch(address, path, body=None, headers=None):
    """(status, JSON) of one request to (host, port)."""
    request = urllib.request.Request(f"http://{address[0]}:{address[1]}{path}", data=body, headers=headers or {})
    try:
        with urllib.request.urlopen(request, timeout=WAIT_S) as reply:
            return reply.status, json.loads(reply.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


@contextmanager
def running(open_processor, **options):
    """A server in a thread: (server, what it printed, exit codes). Stopped at the end."""
    out, codes, before = io.StringIO(), [], set(threading.enumerate())
    config = ServeConfig(**{"repository": "fake", **FREE, **options})
    server = Server(config, version="9", open_processor=lambda config, layout: open_processor(config), out=out)
    thread = threading.Thread(target=lambda: codes.append(server.run()))
    thread.start()
    try:
        yield server, out, codes
    finally:
        server.stop()
        thread.join(WAIT_S)
        assert not thread.is_alive()
        # Other tests of this process may have left some; a handshake that was under way ends by itself.
        until(lambda: not any(t.name.startswith("freshet") for t in set(threading.enumerate()) - before))


@needs("admin")
def test_ports_answer_503_while_loading_and_then_predict():
    gate, processor = threading.Event(), FakeProcessor()

    def load(config):
        assert gate.wait(WAIT_S)
        return processor

    with running(load) as (server, out, codes):
        until(lambda: fetch(server.http_address, "/healthz") == (200, {"live": True, "ready": False}))
        assert fetch(server.http_address, "/v1/models/ctr:predict", BODY)[0] == 503
        assert fetch(server.http_address, "/v2/health/ready")[0] == 503
        gate.set()
        until(lambda: fetch(server.http_address, "/v2/health/ready")[0] == 200)
        assert fetch(server.http_address, "/v1/models/ctr:predict", BODY) == (200, {"predictions": [[7.5]]})
        assert fetch(server.admin_address, "/admin/models")[1]["models"]["ctr"]["requests"] == 1
        until(lambda: out.getvalue().endswith("\n"))
        http, admin = (f"127.0.0.1:{a[1]}" for a in (server.http_address, server.admin_address))
        assert re.fullmatch(
            rf"freshet: ready in \d+\.\d\d s http={http} grpc={server.grpc_address} admin={admin} workers=1 "
            r"models=ctr@3\.17 compute=(inline|threads) \(as configured\)\n",
            out.getvalue(),
        )
        polls = processor.polls
        until(lambda: processor.polls > polls + 2)
    assert codes == [0]
    assert processor.closed


@needs("user_state")
def test_bounds_of_users_without_memory_for_users_are_reported(caplog):
    model = {"a": {"user_state": {"dtype": "float16"}}, "b": {"user_state": "exact"}, "c": {}}
    warn_of_unused(ServeConfig("fake", model=model, user_state_mb=64))
    assert not caplog.text
    warn_of_unused(ServeConfig("fake", model=model))
    (line,) = caplog.messages
    assert line.startswith("model.a.user_state: nothing of users is kept")


def test_processor_that_fails_to_open_ends_the_server_with_1(caplog):
    def fail(config):
        raise BadInput("repository: not a folder")

    with running(fail) as (_, out, codes):
        until(lambda: codes)
    assert codes == [1]
    assert "cannot serve the repository: repository: not a folder" in caplog.text
    assert out.getvalue() == ""


def test_server_without_the_admin_extension_has_no_admin_port(without_extensions):
    without_extensions("admin", "explaining")
    own = {"admin_port": 8502, "admin_token": "t", "model_control": "explicit"}
    with running(lambda config: FakeProcessor(), **own) as (server, out, _):
        until(lambda: out.getvalue().endswith("\n"))
        assert fetch(server.http_address, "/v1/models/ctr:predict", BODY) == (200, {"predictions": [[7.5]]})
        assert server.admin_address is None
        assert "admin" not in out.getvalue()


@needs("admin")
def test_option_of_a_missing_extension_stops_the_server(without_extensions):
    without_extensions("admin", "explaining")
    with pytest.raises(BadInput, match="admin_port needs the extension 'admin': "):
        Server(ServeConfig("fake", **FREE))


def test_stop_during_model_loading_still_closes_the_models():
    gate, processor = threading.Event(), FakeProcessor()
    with running(lambda config: gate.wait(WAIT_S) and processor) as (server, _, codes):
        until(lambda: fetch(server.http_address, "/healthz")[0] == 200)
        server.stop()
        gate.set()
        until(lambda: codes)
    assert codes == [0]
    assert processor.closed


def test_busy_port_gives_a_one_line_error():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(BadInput, match=f"127.0.0.1:{port}: cannot listen on this address"):
            Server(ServeConfig("fake", http_port=port, grpc_port=0, **ADMIN))


def test_first_delta_that_makes_a_model_ready_is_logged():
    processor = FakeProcessor(ready=False)
    with running(lambda config: processor) as (_, out, _):
        until(lambda: processor.polls > 1)
        assert out.getvalue() == ""
        processor.ready, processor.changes = True, ["ctr: version 3 serves"]
        until(lambda: "freshet: ready in" in out.getvalue())


@needs("auto_import")
def test_readiness_waits_for_pending_imports_at_start(tmp_path):
    (tmp_path / "keras" / "1").mkdir(parents=True)
    (tmp_path / "keras" / "1" / "model.keras").write_text("zip")
    processor = FakeProcessor(repository=SimpleNamespace(root=tmp_path))
    with running(lambda config: processor, repository=str(tmp_path)) as (server, _, _):
        until(lambda: fetch(server.http_address, "/v2/health/ready")[0] == 200)
    assert processor.expected == ["keras"]


def test_disconnecting_clients_do_not_break_the_server():
    processor = FakeProcessor()
    with running(lambda config: processor) as (server, _, _):
        until(lambda: fetch(server.http_address, "/v2/health/ready")[0] == 200)
        head = b"POST /v1/models/ctr:predict HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(BODY)
        processor.hold = True
        for part in (head[:20], head, head + BODY[:9], head + BODY, b"\x16\x03\x01nonsense\r\n\r\n"):
            for _ in range(5):
                with socket.create_connection(server.http_address) as client:
                    client.sendall(part)
        processor.hold = False
        processor.release()
        assert fetch(server.http_address, "/v1/models/ctr:predict", BODY)[0] == 200
        processor.release()


def test_tritonclient_predicts_with_binary_tensors():
    with (
        running(lambda config: FakeProcessor()) as (server, _, _),
        triton.InferenceServerClient(f"127.0.0.1:{server.http_address[1]}") as client,
    ):
        until(client.is_server_ready)
        assert client.is_server_live()
        assert client.is_model_ready("ctr")
        assert client.get_server_metadata()["extensions"] == list(catalog.EXTENSIONS)
        assert client.get_model_metadata("ctr")["inputs"][0] == {"name": "ids", "datatype": "INT64", "shape": [-1, 3]}
        inputs = [triton.InferInput("ids", [1, 3], "INT64"), triton.InferInput("floats", [2, 2], "FP32")]
        inputs[0].set_data_from_numpy(np.array([[1, 2, 3]]))
        inputs[1].set_data_from_numpy(np.array([[0, 0], [0, 1]], np.float32))
        for outputs in (None, [triton.InferRequestedOutput("score", binary_data=False)]):
            for coding in (None, "gzip", "deflate"):
                result = client.infer("ctr", inputs, outputs=outputs, request_compression_algorithm=coding)
                assert result.as_numpy("score").ravel().tolist() == [6.0, 7.0]
        with pytest.raises(triton.InferenceServerException, match="not in the repository"):
            client.infer("other", inputs)


class Process:
    """A server process over a fake processor, once it has said that it is ready."""

    def __init__(self, *before, **options):
        # Whoever runs the tests may have been told to outlive its terminal, which children inherit.
        command = [
            *(before or ("env", "--default-signal=HUP")),
            sys.executable,
            "-m",
            "tests.serving.server_process",
            "http_port=0",
            "grpc_port=0",
        ]
        command += [f"{key}={value}" for key, value in {**ADMIN, **options}.items()]
        self.popen = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        found = re.search(r"http=(\S+):(\d+) ", self.read())
        self.address = found[1], int(found[2])
        self.pool = ThreadPoolExecutor(2)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.popen.kill()
        self.popen.communicate()
        self.pool.shutdown()

    def read(self):
        return self.popen.stdout.readline()

    def predict(self):
        """A request that has reached the processor and waits there."""
        future = self.pool.submit(fetch, self.address, "/v1/models/ctr:predict", BODY)
        assert self.read() == "submitted\n"
        return future

    def answer(self):
        self.popen.stdin.write("\n")
        self.popen.stdin.flush()

    def refuses(self):
        try:
            socket.create_connection(self.address, timeout=1).close()
        except OSError:
            return True
        return False

    def end(self):
        """The exit code and the last line."""
        return self.popen.wait(WAIT_S), self.read()


ENDED = (0, "closed=True left=[]\n")


def test_ignored_sighup_does_nothing_and_sigterm_turns_off_readiness_first():
    with Process("nohup", drain_s="600") as process:
        process.popen.send_signal(signal.SIGHUP)
        late = process.predict()
        process.answer()
        assert late.result(WAIT_S)[0] == 200
        assert fetch(process.address, "/v2/health/ready")[0] == 200
        process.popen.send_signal(signal.SIGTERM)
        until(lambda: fetch(process.address, "/v2/health/ready") == (503, {"error": "server: draining"}))
        late = process.predict()
        process.answer()
        assert late.result(WAIT_S)[0] == 200
        process.popen.send_signal(signal.SIGTERM)
        assert process.end() == ENDED


def test_request_in_flight_is_answered_after_the_port_closes():
    with Process() as process:
        late = process.predict()
        process.popen.send_signal(signal.SIGHUP)
        until(process.refuses)
        process.answer()
        assert late.result(WAIT_S) == (200, {"predictions": [[7.5]]})
        assert process.end() == ENDED


def test_endless_request_does_not_keep_the_process():
    with Process(shutdown_timeout_s="0.2") as process:
        stuck = process.predict()
        process.popen.send_signal(signal.SIGINT)
        assert process.end() == ENDED
        assert stuck.result(WAIT_S) == (503, {"error": "server: draining"})


def test_second_signal_cancels_requests_in_flight():
    with Process(shutdown_timeout_s="600") as process:
        stuck = process.predict()
        process.popen.send_signal(signal.SIGTERM)
        until(process.refuses)
        process.popen.send_signal(signal.SIGTERM)
        assert process.end() == ENDED
        assert stuck.exception(WAIT_S) is not None or stuck.result()[0] == 503


def test_connections_are_drained_gradually(monkeypatch):
    told = []
    with running(lambda config: FakeProcessor(), drain_s=0.01) as (server, _, _):
        monkeypatch.setattr(server._front, "drain_share", told.append)
        until(lambda: fetch(server.http_address, "/v2/health/ready")[0] == 200)
    assert told == pytest.approx([1 / left for left in range(DRAIN_STEPS, 0, -1)])
