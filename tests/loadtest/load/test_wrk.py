import shutil

import pytest

from loadtest.load import wrk
from loadtest.load.launch import CommandFailed
from loadtest.load.payload import Payload
from tests.loadtest.load.test_openloop import Server, reply

LINE = (
    '@wrk {"requests":900,"duration_us":3000000,"status":0,"connect":0,"read":0,"write":0,"timeout":0,'
    '"p50_us":510,"p90_us":800,"p99_us":1200,"max_us":5000}'
)
PAGE = f"""Running 3s test @ http://127.0.0.1:8501/v2/models/bench/infer
  1 threads and 16 connections
  Thread Stats   Avg      Stdev     Max   +/- Stdev
    Latency     1.21ms  801.00us  12.00ms   80.00%
Requests/sec:  13124.11
{LINE}
"""


def test_figures_are_parsed_from_the_script_output():
    run = wrk.parse(PAGE)
    assert (run.requests, run.seconds, run.per_s, run.errors) == (900, 3.0, 300.0, {})
    assert run.latency_ms == {"p50": 0.51, "p90": 0.8, "p99": 1.2, "max": 5.0}


def test_errors_are_named_by_kind():
    assert wrk.parse(PAGE.replace('"status":0', '"status":7')).errors == {"status": 7}


@pytest.mark.parametrize("text", ["", "Requests/sec: 13", "@wrk {", "@wrk {}", "@wrk []", "@wrk null"])
def test_output_without_figures_is_a_failure(text):
    with pytest.raises(CommandFailed, match="no figures"):
        wrk.parse(text)


def test_missing_wrk_gives_one_line_on_what_to_install(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(CommandFailed, match="apt-get install wrk") as error:
        wrk.available()
    assert "\n" not in str(error.value)


@pytest.mark.skipif(shutil.which("wrk") is None, reason="wrk is not installed")
def test_wrk_sends_every_body_unchanged_and_refusals_fail_the_run(tmp_path):
    bodies = tuple(bytes([n, 0, 255, 13, 10]) * (n + 1) for n in range(5))
    folder = Payload("/predict", bodies, {"X-Length": "3"}).save(tmp_path / "a folder")
    with Server(lambda n: reply()) as server:
        run = wrk.saturate(server.port, folder, 1, connections=4)
    assert run.requests > 0
    assert {body for _, body in server.requests} == set(bodies)
    assert {headers["X-Length"] for headers, _ in server.requests} == {"3"}
    with Server(lambda n: reply(429 if n % 100 == 0 else 200)) as server, pytest.raises(CommandFailed, match="status"):
        wrk.saturate(server.port, folder, 1, connections=4)
