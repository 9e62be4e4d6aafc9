"""What the services of the gRPC port share, seen by their clients."""

import logging
import threading

import grpc

from freshet_serving.processor.errors import Expired, Overloaded
from freshet_serving.processor.features.limits import RequestLimits
from freshet_serving.serving.codecs.messages import message
from freshet_serving.serving.telemetry.logs import AccessLog
from tests.serving.fakes import FakeProcessor, FakeTracer
from tests.serving.rpc.live import WAIT_S, Live, predict_request, refused, request, scores, tfs_predict
from tests.support.waiting import until


def test_shorter_of_call_and_request_deadline_applies():
    with Live(default_timeout_ms=20_000.0) as live:
        made = request()
        live.infer(made, timeout=10.0)
        live.infer(made)
        made.parameters["timeout"].int64_param = 5_000_000
        live.infer(made, timeout=10.0)
        told = [asked.timeout_s for asked in live.processor.requests]
        # gRPC sends a deadline rounded up to its next tenth of a second where it is longer than ten.
        assert 9 < told[0] <= 10.1
        assert 19 < told[1] <= 20
        assert told[2] == 5.0


def test_long_message_is_read_off_the_loop_without_a_template():
    with Live(max_body_bytes=8 << 20) as live:
        elsewhere, submit = [], live.processor.submit

        def submit_noting(asked, done, replica):
            elsewhere.append(threading.current_thread().name.startswith("freshet-reading"))
            submit(asked, done, replica)

        live.processor.submit = submit_noting
        for _ in range(2):
            assert len(scores(live.infer(request(rows=10_000)))) == 10_000
        typed = predict_request()
        typed.inputs["ids"].int64_val.extend([1] * 300_000)
        assert "expected 3 values" in refused(tfs_predict(live), typed).details()
        broken = refused(live.channel.unary_unary("/inference.GRPCInferenceService/ModelInfer"), b"\xff" * 300_000)
        assert broken.details() == "request: expected a ModelInferRequest"
        assert elsewhere == [True, False]


def test_message_over_a_limit_is_resource_exhausted():
    with Live(FakeProcessor(limit=RequestLimits(max_rows=2)), max_nodes=1000) as live:
        error = refused(live.infer, request(rows=3))
        assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert error.details().startswith("max_rows: expected at most 2 rows per request, got 3")
        error = refused(tfs_predict(live), message("tensorflow.serving.PredictRequest")(output_filter=["a"] * 501))
        assert error.details().startswith("max_nodes: expected at most 1000 fields and values, got 1002")


def test_errors_become_equivalent_statuses():
    with Live() as live:
        assert refused(live.infer, request("other")).code() == grpc.StatusCode.NOT_FOUND
        error = refused(live.infer, request(outputs=[{"name": "x"}]))
        assert (error.code(), error.details()) == (
            grpc.StatusCode.INVALID_ARGUMENT,
            "outputs[0]: expected one of score, each once, got 'x'",
        )
        live.processor.full = Overloaded("queue: no room", retry_after_s=1.5)
        shed = refused(live.infer, request())
        assert (shed.code(), shed.details()) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "queue: no room")
        assert ("grpc-retry-pushback-ms", "1500") in shed.trailing_metadata()
        assert ("retry-after", "2") in shed.trailing_metadata()
        live.processor.full, live.processor.fail = None, Expired("deadline: passed in the queue")
        assert refused(live.infer, request()).code() == grpc.StatusCode.DEADLINE_EXCEEDED
        live.processor.fail, live.processor.refuse = None, RuntimeError("a secret")
        broken = refused(live.infer, request())
        assert (broken.code(), broken.details()) == (grpc.StatusCode.INTERNAL, "internal error")
        assert refused(live.unary("/inference.GRPCInferenceService/TraceSetting", "inference.ModelConfig"),
                       request()).code() == grpc.StatusCode.UNIMPLEMENTED  # fmt: skip


def test_malformed_message_is_an_invalid_argument():
    with Live() as live:
        for method in (
            "inference.GRPCInferenceService/ModelInfer",
            "inference.GRPCInferenceService/ModelReady",
            "tensorflow.serving.PredictionService/Predict",
            "tensorflow.serving.PredictionService/Classify",
        ):
            error = refused(live.channel.unary_unary(f"/{method}"), b"\xff\xff")
            assert error.code() == grpc.StatusCode.INVALID_ARGUMENT, method
            assert error.details().startswith("request: expected ")


def test_disconnecting_client_cancels_only_its_own_prediction():
    processor = FakeProcessor(hold=True)
    with Live(processor) as live:
        calls = [live.infer.future(request(), timeout=WAIT_S) for _ in range(3)]
        stream = live.stream(iter([request()] * 3), timeout=WAIT_S)
        until(lambda: len(processor.held) == 6)
        for call in (*calls, stream):
            call.cancel()
        processor.hold = False
        processor.release()
        assert scores(live.infer(request(), timeout=WAIT_S)) == [4.0]


def test_sticky_key_and_request_id_reach_the_processor_by_grpc():
    with Live() as live:
        metadata = [("x-sticky-key", "user-7"), ("x-request-id", "abc")]
        live.infer(request(), metadata=metadata, timeout=WAIT_S)
        tfs_predict(live)(predict_request(), metadata=metadata, timeout=WAIT_S)
        list(live.stream(iter([request()] * 2), metadata=metadata, timeout=WAIT_S))
        assert [(asked.key, asked.request_id) for asked in live.processor.requests] == [(b"user-7", "abc")] * 4
        assert live.processor.keys == [b"user-7"] * 4


def test_request_id_is_returned_with_replies_errors_and_streams():
    with Live() as live:
        metadata, sent = [("x-request-id", "abc")], ("x-request-id", "abc")
        for call, made in ((live.infer, request()), (tfs_predict(live), predict_request())):
            assert sent in call.with_call(made, metadata=metadata, timeout=WAIT_S)[1].trailing_metadata()
        assert sent in refused(live.infer, request("other"), metadata=metadata).trailing_metadata()
        stream = live.stream(iter([request()]), metadata=metadata, timeout=WAIT_S)
        list(stream)
        assert sent in stream.trailing_metadata()
        long = live.infer.with_call(request(), metadata=[("x-request-id", "x" * 500)], timeout=WAIT_S)[1]
        assert ("x-request-id", "x" * 128) in long.trailing_metadata()
        without = live.infer.with_call(request(), timeout=WAIT_S)[1]
        assert "x-request-id" not in dict(without.trailing_metadata())


def test_traced_call_is_followed_to_any_outcome():
    tracer, metadata = FakeTracer(), [("traceparent", "x")]
    with Live(tracer=tracer) as live:
        live.infer(request(), timeout=WAIT_S)
        assert tracer.ended == []
        live.infer(request(), metadata=metadata, timeout=WAIT_S)
        tfs_predict(live)(predict_request(), metadata=metadata, timeout=WAIT_S)
        for (trace, status), protocol in zip(tracer.ended, ("kserve_grpc", "tfs_grpc"), strict=True):
            assert (status, trace.protocol, trace.model) == (200, protocol, "ctr")
            assert trace.generation == live.processor.generation
            assert trace.began_s < trace.parsed_s <= trace.encoding_s
        refused(live.infer, request("other"), metadata=metadata)
        live.processor.fail = Expired("late")
        refused(live.infer, request(), metadata=metadata)
        assert [status for _, status in tracer.ended[2:]] == [404, 504]
        live.processor.fail = None
        list(live.stream(iter([request(), request("other")]), metadata=metadata, timeout=WAIT_S))
        assert sorted(status for _, status in tracer.ended[4:]) == [200, 404]
        ready = live.unary("/inference.GRPCInferenceService/ServerReady", "inference.ServerReadyResponse")
        ready(message("inference.ServerReadyRequest")(), metadata=metadata, timeout=WAIT_S)
        assert len(tracer.ended) == 6


def test_every_call_can_be_logged_in_the_access_log(caplog):
    caplog.set_level(logging.INFO, "freshet.access")
    with Live(access=AccessLog(1.0)) as live:
        live.infer(request(), metadata=[("x-request-id", "abc")], timeout=WAIT_S)
        refused(live.infer, request("other"))
        list(live.stream(iter([request()]), timeout=WAIT_S))
        lines = [r.fields for r in caplog.records if r.name == "freshet.access"]
        assert [(f["path"], f["status"], f["request_id"]) for f in lines] == [
            ("ctr:ModelInfer", 200, "abc"),
            ("ModelInfer", 404, ""),
            ("ModelStreamInfer", 200, ""),
        ]


def test_parse_and_encode_times_are_sampled():
    with Live() as live:
        for _ in range(32):
            live.infer(request(), timeout=WAIT_S)
        until(lambda: {(p, s, sum(counts)) for p, s, counts, _ in live.metrics.own.phases()} == {
            ("kserve_grpc", "parse", 2), ("kserve_grpc", "encode", 2)
        })  # fmt: skip
