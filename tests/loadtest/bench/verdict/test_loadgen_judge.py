import numpy as np

from freshet_serving.serving.codecs.messages import message
from loadtest.bench.verdict import dcnv2_shape as shape
from loadtest.bench.verdict.loadgen_judge import page, prepared, verdicts


def run(valid, due, scenario="Server", **more):
    return {
        "valid": valid, "rate": due, "p50_ms": 20.0, "p99_ms": 55.0, "queries": 1000, "cores": 0.04, "failed": 0,
        "why": "" if valid else "Reduce target QPS to improve latency.", "scenario": scenario, "due": due,
        "seconds": 60.0, "server_cores": 0.5, **more,
    }  # fmt: skip


def results(runs):
    return {
        "machine": {"cores": 2, "cpu": "a processor"},
        "origin": {"date": "2026-11-23", "command": "make -C loadtest verdict-loadgen"},
        "latency_ms": 60.0,
        "most_rows": 200_000,
        "precision": "auto",
        "chosen": "256: onnxruntime int8",
        "layout": "workers=2",
        "pairs": [200, 400],
        "service_s": {"200": 0.01, "700": 0.04},
        "possible": 10.0,
        "most": 40.0,
        "runs": runs,
    }


DELTAS = {"deltas": 60, "delta_ms": 80.0}


def test_queries_are_equal_over_http_and_grpc():
    queries = prepared(50, 2)
    for http, grpc, pairs in zip(queries.http, queries.grpc, queries.pairs):
        infer = message("inference.ModelInferRequest").FromString(grpc)
        named = dict(zip([tensor.name for tensor in infer.inputs], infer.raw_input_contents))
        assert set(named) == {*shape.NAMES, *(f"{name}.row_splits" for name in shape.NAMES), "floats"}
        assert len(np.frombuffer(named["c20"], "<i8")) == 100 * pairs
        assert http.startswith(b"POST /v2/models/dcnv2/infer HTTP/1.1\r\n")
        for name in ("c0", "c20", "c20.row_splits", "floats"):
            assert named[name] in http


def test_verdict_needs_loadgen_approval_and_a_rate_near_the_possible():
    good = {"http-server": run(True, 9.2), "http-server-deltas": run(True, 8.9, **DELTAS)}
    (said,) = verdicts(results(good))
    assert (
        "VALID at 9.2 queries a second (p99 55 ms), 0.92 of the possible rate; at least 0.9 was aimed at: met." in said
    )
    assert "VALID at 0.97 of that, at least 0.93 was aimed at: met" in said
    slow = {"http-server": run(True, 8.0), "http-server-deltas": run(True, 7.0, **DELTAS)}
    (said,) = verdicts(results(slow))
    assert said.count("**missed**") == 2
    late = {"http-server": run(False, 9.2), "http-server-deltas": run(False, 8.9, **DELTAS)}
    (said,) = verdicts(results(late))
    assert "INVALID at 9.2" in said
    assert said.count("**missed**") == 2


def test_page_has_a_line_per_run_and_names_scaled_settings():
    runs = {
        "http-offline": run(True, 36.0, "Offline"),
        "http-server": run(False, 9.0),
        "http-server-deltas": run(False, 8.7, **DELTAS),
    }
    text = page(results(runs))
    assert "| http-offline | VALID | 36.0 | 0.90 |" in text
    assert "| http-server | INVALID: Reduce target QPS to improve latency. | 9.0 | 0.90 |" in text
    assert "40,000,000" in text
    assert "no MLPerf result" in text
