"""LoadGen at small servers on loopback."""

import http.server
import threading

import pytest

from loadtest.bench.verdict.loadgen_side import LoadGenJob, Queries, Senders, judge, read_summary

pytest.importorskip("mlperf_loadgen", reason="the loadtest extra has mlcommons-loadgen")

SERVER = """\
================================================
MLPerf Results Summary
================================================
SUT name : PySUT
Scenario : Server
Mode     : PerformanceOnly
Completed samples per second    : 41.93
Result is : INVALID
  Performance constraints satisfied : NO
  Min duration satisfied : Yes
Recommendations:
 * Reduce target QPS to improve latency.
 * Increase the target QPS.
50.00 percentile latency (ns)   : 21000000
99.00 percentile latency (ns)   : 61500000
"""


class Scorer(http.server.BaseHTTPRequestHandler):
    """Answers with as many scores as its server says."""

    protocol_version = "HTTP/1.1"
    wbufsize = -1

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        body = b"\0" * 4 * self.server.scores
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    made = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Scorer)
    made.daemon_threads, made.scores = True, 8
    thread = threading.Thread(target=made.serve_forever)
    thread.start()
    yield made
    made.shutdown()
    thread.join()
    made.server_close()


@pytest.fixture
def queries(tmp_path):
    message = b"POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nok"
    Queries([message] * 4, [b"-"] * 4, [8] * 4).save(tmp_path / "queries")
    return tmp_path / "queries"


def job(port, queries, tmp_path, **changes):
    given = {"scenario": "Server", "protocol": "http", "rate": 100.0, "seconds": 0.3, "senders": 2, **changes}
    return LoadGenJob(port=port, folder=str(queries), logs=str(tmp_path / "logs"), **given)


def test_saved_queries_round_trip(tmp_path):
    made = Queries([b"a", b"b"], [b"c", b"d"], [1, 2])
    made.save(tmp_path)
    assert Queries.load(tmp_path) == made


def test_verdict_is_parsed_from_the_summary():
    found = read_summary(SERVER, "Server", 4000, 0.1, [])
    assert (found.valid, found.rate, found.p50_ms, found.p99_ms, found.queries) == (False, 41.93, 21.0, 61.5, 4000)
    assert found.why.startswith("Reduce target QPS")


def test_run_with_a_failed_query_is_never_valid():
    valid = SERVER.replace("INVALID", "VALID")
    assert read_summary(valid, "Server", 4000, 0.1, []).valid
    found = read_summary(valid, "Server", 4000, 0.1, ["ValueError: status 500"])
    assert (found.valid, found.failed, found.why) == (False, 1, "ValueError: status 500")


@pytest.mark.parametrize("scenario", ["Server", "Offline"])
def test_loadgen_counts_server_replies(server, queries, tmp_path, scenario):
    found = judge(job(server.server_address[1], queries, tmp_path, scenario=scenario))
    assert (found.failed, found.why if found.failed else "") == (0, "")
    assert found.queries > 10
    assert found.rate > 0
    assert (found.p99_ms > 0) == (scenario == "Server")
    assert (tmp_path / "logs" / "mlperf_log_detail.txt").exists()


def test_reply_with_too_few_scores_fails(server, queries, tmp_path):
    server.scores = 7
    found = judge(job(server.server_address[1], queries, tmp_path))
    assert found.failed == found.queries
    assert not found.valid
    assert "28 bytes for 8 pairs" in found.why


def test_failed_query_is_still_completed():
    completed, closed = [], []

    class Broken:
        def send(self, number):
            raise OSError(f"query {number}")

        def close(self):
            closed.append(self)

    senders = Senders(Broken, 2, completed.append)
    for identity in range(6):
        senders.put(identity, identity % 3)
    senders.close()
    assert sorted(completed) == list(range(6))
    assert (len(senders.failed), len(closed)) == (6, 2)
