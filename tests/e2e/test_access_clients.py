"""Clients as they are: curl, Triton's over HTTP and gRPC, with and without asyncio, and ours, against a server with two
workers that asks for keys and speaks TLS; and certificates and keys that change under their load."""

import asyncio
import concurrent.futures
import http.client
import importlib.util
import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import grpc
import numpy as np
import pytest

from freshet_serving import Client, Ragged
from tests.e2e.servers import LiveServer, free_port
from tests.e2e.test_deltas_live import USERS
from tests.serving.access.certified import Authority
from tests.serving.access.keyed import Keyed
from tests.support.packages import write_package
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.long]

READY_S = 90.0
CLIENTS = Path(__file__).parent / "clients"


class SecureServer(LiveServer):
    """A LiveServer that is asked over TLS. authority, keyed: its certificates and keys."""

    def __init__(self, folder, *options, authority=None):
        self.authority, self.keyed = authority or Authority(folder), Keyed(folder)
        chain, key = map(str, self.authority.write())
        own = ("--tls-cert", chain, "--tls-key", key, "--api-keys", str(self.keyed.path))
        super().__init__(folder / "repository", *own, *options, log=folder / "serve.log")

    def wait_ready(self):
        deadline_s = time.monotonic() + READY_S
        while time.monotonic() < deadline_s:
            assert self.process.poll() is None, self._log_path.read_text()
            try:
                if self.fetch("/v2/health/ready")[0] == 200:
                    return
            except OSError:
                time.sleep(0.05)
        raise AssertionError("not ready: " + self._log_path.read_text())

    def fetch(self, path, name=None, body=None, admin=False):
        """(status, body) of one request on a connection of its own, with the key of that name."""
        port = self.admin_port if admin else self.http_port
        headers = {} if name is None else self.keyed.headers(name)
        request = urllib.request.Request(f"https://localhost:{port}{path}", data=body, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=30, context=self.authority.client()) as reply:
                return reply.status, reply.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()


@pytest.fixture(scope="module")
def live(tmp_path_factory):
    folder = tmp_path_factory.mktemp("clients")
    write_package(folder / "repository", users=USERS)
    with SecureServer(folder, "--workers", "2") as server:
        yield server


TENSORS = {
    "user": (np.array([3], np.int64), "INT64"),
    "tags": (np.array([b"a"], object), "BYTES"),
    "tags.row_splits": (np.array([0, 1], np.int64), "INT64"),
    "floats": (np.full((1, 4), 0.5, np.float32), "FP32"),
}
ARRAYS = {"user": [3], "tags": Ragged.of([["a"]]), "floats": TENSORS["floats"][0]}


def curl(live, *arguments):
    """(status, body)."""
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    command = ["curl", "-sS", "--cacert", str(live.authority.path), "-w", "\n%{http_code}", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    body, _, status = done.stdout.rpartition("\n")
    return int(status), body, done


def test_curl_gets_scores(live):
    url = f"https://localhost:{live.http_port}/v2/models/small"
    key = live.keyed.headers("predict")["authorization"]
    assert curl(live, "-H", f"Authorization: {key}", url)[0] == 200
    assert curl(live, url)[0] == 401
    assert curl(live, "-H", f"Authorization: {key}", f"https://localhost:{live.http_port}/metrics")[0] == 403
    status, body, _ = curl(live, "-H", f"Authorization: {live.keyed.headers('metrics')['authorization']}",
                           f"https://localhost:{live.http_port}/metrics")  # fmt: skip
    assert (status, "freshet_ready 1.0" in body) == (200, True)
    admin = live.keyed.headers("admin-read")["authorization"]
    assert curl(live, "-H", f"Authorization: {admin}", f"https://localhost:{live.admin_port}/admin/models")[0] == 200
    # Nobody who speaks an old version, or without TLS, gets an answer.
    assert curl(live, "--tls-max", "1.1", url)[2].returncode != 0
    assert curl(live, url.replace("https", "http"))[2].returncode != 0


def tensors(kind):
    made = []
    for name, (array, datatype) in TENSORS.items():
        made.append(kind.InferInput(name, list(array.shape), datatype))
        made[-1].set_data_from_numpy(array)
    return made


def test_triton_http_client_gets_scores(live):
    triton = pytest.importorskip("tritonclient.http", reason="tritonclient is not installed")
    options = {"ssl": True, "ssl_context_factory": live.authority.client}
    client = triton.InferenceServerClient(f"localhost:{live.http_port}", **options)
    key = live.keyed.headers("predict")
    assert client.is_server_ready()
    assert client.infer("small", tensors(triton), headers=key).get_response()["model_name"] == "small"
    with pytest.raises(Exception, match="expected a valid bearer token"):
        client.infer("small", tensors(triton))
    client.close()


def test_triton_asyncio_http_client_gets_scores(live):
    triton = pytest.importorskip("tritonclient.http.aio", reason="tritonclient's asyncio extra is not installed")

    async def ask():
        options = {"ssl": True, "ssl_context": live.authority.client()}
        async with triton.InferenceServerClient(f"localhost:{live.http_port}", **options) as client:
            assert await client.is_server_ready()
            reply = await client.infer("small", tensors(triton), headers=live.keyed.headers("predict"))
            assert reply.get_response()["model_name"] == "small"
            with pytest.raises(Exception, match="expected a valid bearer token"):
                await client.infer("small", tensors(triton))

    asyncio.run(ask())


def test_triton_grpc_client_gets_scores(live):
    triton = pytest.importorskip("tritonclient.grpc", reason="tritonclient is not installed")
    options = {"ssl": True, "root_certificates": str(live.authority.path)}
    client = triton.InferenceServerClient(f"localhost:{live.grpc_port}", **options)
    assert client.is_server_ready()
    key = live.keyed.headers("predict")
    assert client.infer("small", tensors(triton), headers=key).get_response().model_name == "small"
    with pytest.raises(Exception, match="expected a valid bearer token"):
        client.infer("small", tensors(triton))
    with pytest.raises(Exception, match="expected a key with the scope metrics"):
        client.get_inference_statistics("small", headers=key)
    client.close()


def test_triton_asyncio_grpc_client_gets_scores(live):
    triton = pytest.importorskip("tritonclient.grpc.aio", reason="tritonclient is not installed")

    async def ask():
        options = {"ssl": True, "root_certificates": str(live.authority.path)}
        async with triton.InferenceServerClient(f"localhost:{live.grpc_port}", **options) as client:
            reply = await client.infer("small", tensors(triton), headers=live.keyed.headers("predict"))
            assert reply.get_response().model_name == "small"
            with pytest.raises(Exception, match="expected a valid bearer token"):
                await client.infer("small", tensors(triton))

    asyncio.run(ask())


def run(live, folder, client, python=sys.executable):
    """Runs a client that has a process of its own, perhaps in an environment of its own."""
    given = {
        "https": f"https://localhost:{live.http_port}",
        "grpc": f"localhost:{live.grpc_port}",
        "ca": str(live.authority.path),
        "predict": live.keyed.headers("predict")["authorization"],
        "metrics": live.keyed.headers("metrics")["authorization"],
    }
    (folder / "given.json").write_text(json.dumps(given))
    # By its file, not as a module: these need nothing of this repository.
    command = [python, "-P", str(CLIENTS / f"{client}.py"), str(folder / "given.json")]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.stdout.strip().endswith("done"), done.stderr[-4000:]


@pytest.mark.skipif(
    importlib.util.find_spec("tensorflow_serving") is None,
    reason="tensorflow-serving-api is not installed: make conformance",
)
def test_tensorflow_serving_stubs_get_scores(live, tmp_path):
    run(live, tmp_path, "access_tensorflow_serving")


@pytest.mark.skipif(
    "FRESHET_KSERVE_PYTHON" not in os.environ, reason="kserve has no environment of its own: make conformance"
)
def test_kserve_clients_get_scores(live, tmp_path):
    run(live, tmp_path, "access_kserve", os.environ["FRESHET_KSERVE_PYTHON"])


def test_certificates_and_keys_change_under_load_without_failed_requests(live):
    ca, ended, failed, answered = str(live.authority.path), threading.Event(), [], [0]

    def load(address, anew):
        while not ended.is_set():
            try:
                with Client(address, ca=ca, key=live.keyed.secrets["all"], timeout_s=30.0) as client:
                    for _ in range(1 if anew else 50):
                        client.predict("small", ARRAYS)
                        answered[0] += 1
            except Exception as error:
                failed.append(error)

    http, rpc = f"https://localhost:{live.http_port}", f"grpcs://localhost:{live.grpc_port}"
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        loads = [pool.submit(load, address, anew) for address in (http, rpc) for anew in (False, True)]
        try:
            for number in range(4):
                before = {shown(live, live.http_port), shown(live, live.grpc_port), shown(live, live.admin_port)}
                live.authority.write()
                live.keyed.add(f"rotation-{number}", ["predict"])
                until(lambda: fresh(live, before))  # noqa: B023
                until(lambda: live.fetch("/v2", f"rotation-{number}")[0] == 200)  # noqa: B023
        finally:
            ended.set()
        for each in loads:
            each.result(60)
    assert failed == []
    assert answered[0] > 100


def shown(live, port):
    """The serial number of the certificate that a newcomer sees."""
    with (
        socket.create_connection(("127.0.0.1", port), timeout=30) as raw,
        live.authority.client().wrap_socket(raw, server_hostname="localhost") as connection,
    ):
        return connection.getpeercert()["serialNumber"]


def fresh(live, before):
    return all(shown(live, port) not in before for port in (live.http_port, live.grpc_port, live.admin_port))


def test_broken_certificate_pair_keeps_the_old_one_and_is_logged(live):
    before = shown(live, live.http_port)
    chain = live.authority.folder / "server.crt"
    whole = chain.read_bytes()
    chain.write_bytes(live.authority.issue("another")[0])
    until(lambda: "keeping the old ones: tls_cert, tls_key" in live._log_path.read_text())
    assert shown(live, live.http_port) == before
    text = live.fetch("/metrics", "metrics")[1].decode()
    assert "freshet_access_reload_failures_total 1.0" in text
    chain.write_bytes(whole)


def test_grpc_without_tls_gets_nothing(live):
    with grpc.insecure_channel(f"localhost:{live.grpc_port}") as channel, pytest.raises(grpc.RpcError):
        channel.unary_unary("/inference.GRPCInferenceService/ServerLive")(b"", timeout=5)


PROMETHEUS = """
global: {{scrape_interval: 200ms}}
scrape_configs:
  - job_name: freshet
    scheme: https
    tls_config: {{ca_file: {ca}, server_name: localhost}}
    authorization: {{credentials_file: {key}}}
    static_configs: [{{targets: ["127.0.0.1:{port}"]}}]
"""


def test_prometheus_scrapes_the_secured_port(live, tmp_path):
    if shutil.which("prometheus") is None:
        pytest.skip("prometheus is not installed")
    (tmp_path / "key").write_text(live.keyed.secrets["metrics"])
    config, port = tmp_path / "prometheus.yml", free_port()
    config.write_text(PROMETHEUS.format(ca=live.authority.path, key=tmp_path / "key", port=live.http_port))
    command = ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={tmp_path / 'data'}"]
    with open(tmp_path / "log", "w") as log:
        scraping = subprocess.Popen([*command, f"--web.listen-address=127.0.0.1:{port}"], stdout=log, stderr=log)
    try:
        until(lambda: up(port))
    finally:
        scraping.terminate()
        scraping.wait(30)


def up(port):
    """Whether Prometheus has scraped the server."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/query?query=freshet_ready", timeout=5) as reply:
            return json.loads(reply.read())["data"]["result"] != []
    except OSError:
        return False


@pytest.mark.parametrize("workers", ["1", "2"])
def test_shutdown_announces_close_and_cuts_no_client_off(tmp_path, workers):
    write_package(tmp_path / "repository", users=USERS)
    with SecureServer(tmp_path, "--workers", workers, "--drain-s", "1") as server:
        last, begun = [], threading.Barrier(5)

        def ask():
            connection = http.client.HTTPSConnection(
                "localhost", server.http_port, timeout=30, context=server.authority.client()
            )
            for number in itertools.count():
                connection.request("GET", "/v2", headers=server.keyed.headers("predict"))
                reply = connection.getresponse()
                reply.read()
                if number == 5:
                    begun.wait(30)
                if reply.headers.get("connection") == "close":
                    last.append(reply.status)
                    return

        asking = [threading.Thread(target=ask) for _ in range(4)]
        for thread in asking:
            thread.start()
        begun.wait(30)
        server.process.send_signal(signal.SIGTERM)
        for thread in asking:
            thread.join(60)
        assert last == [200] * 4
        assert server.process.wait(60) == 0
