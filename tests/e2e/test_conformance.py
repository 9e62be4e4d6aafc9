"""Live servers driven by the real clients, each in a process of its own (tests.e2e.clients)."""

import functools
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.servers import LiveServer
from tests.e2e.test_deltas_live import FLOATS, PROBE, TAGS, USERS, expected
from tests.support.packages import write_package

pytestmark = [pytest.mark.e2e, pytest.mark.long]

ROOT = Path(__file__).parents[2]
CLIENT_TIMEOUT_S = 300
SERVERS = {
    "one process": ("--shared-memory", "on"),
    "inline": ("--shared-memory", "on", "--compute", "inline"),
    "two workers": ("--workers", "2"),
}


def probe_of(server, folder, shared_memory):
    """The file that client programs read."""
    given = {
        "http": f"127.0.0.1:{server.http_port}",
        "grpc": f"127.0.0.1:{server.grpc_port}",
        "generation": "1.0",
        "shared_memory": shared_memory,
        "user": PROBE,
        "tags": TAGS,
        "floats": FLOATS.tolist(),
        "scores": expected(0).tolist(),
    }
    path = folder / "probe.json"
    path.write_text(json.dumps(given))
    return path


@pytest.fixture(scope="module", params=SERVERS)
def live(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("conformance")
    write_package(folder / "repository", users=USERS)
    options = ("--model-control", "explicit", *SERVERS[request.param])
    with LiveServer(folder / "repository", *options, log=folder / "serve.log") as server:
        server.probe = probe_of(server, folder, "--shared-memory" in options)
        yield server


def run(client, probe):
    command = [sys.executable, "-m", f"tests.e2e.clients.{client}", str(probe)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=CLIENT_TIMEOUT_S)
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.strip().endswith("done")


@pytest.mark.parametrize("client", ["triton_http", "triton_grpc"])
def test_tritonclient_covers_everything_served(live, client):
    run(client, live.probe)


def test_freshet_client_covers_everything_served(live):
    run("own", live.probe)


@pytest.mark.skipif(
    importlib.util.find_spec("tensorflow_serving") is None, reason="tensorflow-serving-api is not installed"
)
def test_tensorflow_serving_stubs_cover_everything_served(live):
    run("tensorflow_serving", live.probe)


TENSORFLOW = ("--service-kind", "tfserving", "-i", "grpc", "-b", "1", "--shape", "ids:4,26", "--shape", "floats:4,13")


@functools.cache
def perf_analyzer():
    """Where it is; None when it is not there, or lacks a library."""
    found = os.environ.get("FRESHET_PERF_ANALYZER") or shutil.which("perf_analyzer")
    if not found:
        return None
    try:
        asked = subprocess.run([found, "--version"], capture_output=True, timeout=60)
    except OSError:
        return None
    return found if asked.returncode == 0 else None


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    """A server of the benchmark's model, whose inputs a load generator can make up."""
    folder = tmp_path_factory.mktemp("perf")
    command = [sys.executable, "-m", "freshet_serving", "bench", "model", "--rows", "500", "--repository", "repository"]
    subprocess.run(command, cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True, capture_output=True)
    with LiveServer(folder / "repository", "--shared-memory", "on", log=folder / "serve.log") as server:
        yield server


@pytest.mark.skipif(perf_analyzer() is None, reason="no perf_analyzer (make conformance)")
@pytest.mark.parametrize(
    "options",
    [
        ("-i", "http", "-b", "4"),
        ("-i", "http", "-b", "4", "--async"),
        ("-i", "http", "-b", "4", "--shared-memory", "system", "--output-shared-memory-size", "64"),
        ("-i", "grpc", "-b", "4"),
        ("-i", "grpc", "-b", "4", "--streaming"),
        ("-i", "grpc", "-b", "4", "--grpc-compression-algorithm", "gzip"),
        ("-i", "grpc", "-b", "4", "--shared-memory", "system", "--output-shared-memory-size", "64"),
        (*TENSORFLOW,),
        (*TENSORFLOW, "-x", "1"),
    ],
    ids=" ".join,
)  # fmt: skip
def test_perf_analyzer_measures_both_service_kinds(bench, options):
    port = bench.http_port if "http" in options else bench.grpc_port
    command = [perf_analyzer(), "-m", "bench", "-u", f"127.0.0.1:{port}", *options]
    command += ["-p", "500", "-r", "10", "-s", "1000", "--concurrency-range", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert "Throughput" in done.stdout
    assert "Failed" not in done.stdout
