"""The gRPC port over a FakeProcessor, called by a client of the same process with the private messages."""

import asyncio
import logging
import socket
import sys
import threading

import grpc
import numpy as np
import pytest

from processor.errors import BadInput, Expired, Overloaded
from serving.codecs.messages import message
from serving.front.model_control import nothing_to_control
from serving.front.submitter import Submitter
from serving.front_options import FrontOptions
from serving.http.port import reserve
from serving.lifecycle import Lifecycle
from serving.rpc.rpc_port import RpcPort
from serving.telemetry.logs import AccessLog
from serving.telemetry.metrics import Metrics
from serving.telemetry.tracing import Trace
from tests.serving.fakes import FakeProcessor

WAIT_S = 30


class Live:
    """A port on an event loop in a thread of its own."""

    def __init__(self, processor=None, *, opened=True, access=None, tracer=None, **options):
        self.processor, self.lifecycle = processor or FakeProcessor(), Lifecycle()
        if opened:
            self.lifecycle.open(self.processor)
        self.metrics = Metrics(self.lifecycle)
        self.reserved, self.address = reserve("127.0.0.1", 0)
        self.port = RpcPort(
            self.lifecycle, self.metrics, FrontOptions(**{"max_body_bytes": 1 << 20, "version": "9", **options}),
            address=self.address, submitter=Submitter(), control=nothing_to_control, access=access, tracer=tracer,
        )  # fmt: skip
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)

    def __enter__(self):
        self.thread.start()
        self.run(self.port.start())
        self.channel = grpc.insecure_channel(self.address)
        return self

    def __exit__(self, *_):
        self.channel.close()
        self.run(self.port.stop(hurry=True))
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(WAIT_S)
        self.loop.close()
        self.reserved.close()

    def run(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(WAIT_S)

    def unary(self, method, reply):
        return self.channel.unary_unary(method, lambda m: m.SerializeToString(), message(reply).FromString)

    @property
    def infer(self):
        return self.unary("/inference.GRPCInferenceService/ModelInfer", "inference.ModelInferResponse")

    @property
    def stream(self):
        return self.channel.stream_stream(
            "/inference.GRPCInferenceService/ModelStreamInfer",
            lambda m: m.SerializeToString(),
            message("inference.ModelStreamInferResponse").FromString,
        )


def request(model="ctr", rows=1, **more):
    made = message("inference.ModelInferRequest")(model_name=model, **more)
    made.inputs.add(name="ids", datatype="INT64", shape=[rows, 3])
    made.inputs.add(name="floats", datatype="FP32", shape=[rows, 2])
    ids, floats = np.ones((rows, 3), np.int64), np.full((rows, 2), 0.5, np.float32)
    made.raw_input_contents.extend([ids.tobytes(), floats.tobytes()])
    return made


def refused(call, *arguments, **options):
    with pytest.raises(grpc.RpcError) as caught:
        call(*arguments, timeout=WAIT_S, **options)
    return caught.value


def scores(reply):
    return np.frombuffer(reply.raw_output_contents[0], np.float32).tolist()


def until(condition):
    pause = threading.Event()
    for _ in range(WAIT_S * 200):
        if condition():
            return
        pause.wait(0.005)
    raise AssertionError("waited too long")


def test_a_prediction_names_what_answered_it():
    with Live() as live:
        for rows in (1, 2, 2, 2):
            reply, call = live.infer.with_call(request(rows=rows), metadata=[("x-caller-id", "me")], timeout=WAIT_S)
            assert scores(reply) == [4.0] * rows
            assert ("x-model-generation", "3.17") in call.trailing_metadata()
            assert ("x-model-version", "3") in call.trailing_metadata()
        callers = {asked.caller for asked in live.processor.requests}
        assert len(callers) == 1
        assert callers != {None}
        assert live.metrics.counts().snapshot()["predicted"] == {"ctr": [4, 7]}


def test_a_deadline_of_the_call_and_one_of_the_request_become_the_shorter():
    with Live(default_timeout_ms=20_000.0) as live:
        made = request()
        live.infer(made, timeout=10.0)
        live.infer(made)
        made.parameters["timeout"].int64_param = 5_000_000
        live.infer(made, timeout=10.0)
        told = [asked.timeout_s for asked in live.processor.requests]
        assert 9 < told[0] <= 10
        assert 19 < told[1] <= 20
        assert told[2] == 5.0


def test_errors_become_statuses_of_the_same_meaning():
    with Live() as live:
        assert refused(live.infer, request("other")).code() == grpc.StatusCode.NOT_FOUND
        error = refused(live.infer, request(outputs=[{"name": "x"}]))
        assert (error.code(), error.details()) == (
            grpc.StatusCode.INVALID_ARGUMENT,
            "outputs[0]: one of score, each once, wanted, got 'x'",
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


def test_bytes_that_are_no_message_are_a_wrong_request():
    with Live() as live:
        for method in (
            "inference.GRPCInferenceService/ModelInfer",
            "inference.GRPCInferenceService/ModelReady",
            "tensorflow.serving.PredictionService/Predict",
            "tensorflow.serving.PredictionService/Classify",
        ):
            error = refused(live.channel.unary_unary(f"/{method}"), b"\xff\xff")
            assert error.code() == grpc.StatusCode.INVALID_ARGUMENT, method
            assert "wanted" in error.details()


def test_a_message_beyond_the_limit_is_refused_by_its_length():
    with Live(max_body_bytes=1000) as live:
        error = refused(live.channel.unary_unary("/inference.GRPCInferenceService/ModelInfer"), bytes(100_000))
        assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED


def test_while_models_load_calls_are_unavailable_and_health_says_so():
    with Live(opened=False) as live:
        check = live.unary("/grpc.health.v1.Health/Check", "grpc.health.v1.HealthCheckResponse")
        asked = message("grpc.health.v1.HealthCheckRequest")()
        assert refused(live.infer, request()).code() == grpc.StatusCode.UNAVAILABLE
        assert check(asked, timeout=WAIT_S).status == 2
        live.lifecycle.open(live.processor)
        assert check(asked, timeout=WAIT_S).status == 1
        live.lifecycle.drain()
        assert check(asked, timeout=WAIT_S).status == 2
        assert scores(live.infer(request(), timeout=WAIT_S)) == [4.0]


def test_who_watches_health_is_told_of_changes():
    with Live() as live:
        watch = live.channel.unary_stream(
            "/grpc.health.v1.Health/Watch",
            lambda m: m.SerializeToString(),
            message("grpc.health.v1.HealthCheckResponse").FromString,
        )
        told = watch(message("grpc.health.v1.HealthCheckRequest")(), timeout=WAIT_S)
        assert next(told).status == 1
        live.lifecycle.drain()
        assert next(told).status == 2
        told.cancel()
        unknown = watch(message("grpc.health.v1.HealthCheckRequest")(service="other"), timeout=WAIT_S)
        assert next(unknown).status == 3
        unknown.cancel()


def test_a_stream_keeps_the_order_of_its_requests_and_its_errors_in_it():
    with Live() as live:
        made = [request(rows=1 + n % 3, model="ctr" if n != 3 else "other", id=str(n)) for n in range(9)]
        replies = list(live.stream(iter(made), timeout=WAIT_S))
        assert [r.infer_response.id for r in replies] == ["0", "1", "2", "", "4", "5", "6", "7", "8"]
        assert replies[3].error_message == "model 'other' is not in the repository"
        assert [len(scores(r.infer_response)) for r in replies[:3]] == [1, 2, 3]
        stream = live.stream(iter(made), metadata=[("triton_grpc_error", "true")], timeout=WAIT_S)
        with pytest.raises(grpc.RpcError) as caught:
            list(stream)
        assert caught.value.code() == grpc.StatusCode.NOT_FOUND


def test_a_client_that_leaves_costs_nothing_but_its_own_prediction():
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


def test_an_end_waits_for_what_is_in_flight():
    processor = FakeProcessor(hold=True)
    with Live(processor, shutdown_timeout_s=WAIT_S) as live:
        call = live.infer.future(request(), timeout=WAIT_S)
        until(lambda: processor.held)
        stopping = asyncio.run_coroutine_threadsafe(live.port.stop(), live.loop)
        processor.release()
        assert scores(call.result(WAIT_S)) == [4.0]
        stopping.result(WAIT_S)


def test_reflection_names_the_services_and_gives_their_files():
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

    with Live() as live:
        for version in ("v1", "v1alpha"):
            kind = f"grpc.reflection.{version}.ServerReflectionRe"
            asked = message(f"{kind}quest")
            made = [
                asked(list_services=""),
                asked(file_containing_symbol="inference.GRPCInferenceService"),
                asked(file_by_filename="tensorflow_serving.proto"),
                asked(file_containing_symbol="no.such"),
                asked(all_extension_numbers_of_type="x"),
            ]
            ask = live.channel.stream_stream(
                f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
                lambda m: m.SerializeToString(),
                message(f"{kind}sponse").FromString,
            )
            replies = list(ask(iter(made), timeout=WAIT_S))
            names = {s.name for s in replies[0].list_services_response.service}
            assert {"grpc.health.v1.Health", "tensorflow.serving.PredictionService"} < names
            first = replies[1].file_descriptor_response.file_descriptor_proto[0]
            assert FileDescriptorProto.FromString(first).package == "inference"
            assert len(replies[2].file_descriptor_response.file_descriptor_proto) == 5
            assert [r.error_response.error_code for r in replies[3:]] == [5, 12]


def test_a_port_that_is_taken_is_one_clear_line():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(BadInput, match=f"127.0.0.1:{port}: cannot listen there"):
            reserve("127.0.0.1", port)


@pytest.mark.skipif(sys.platform != "linux", reason="SO_REUSEPORT spreads connections on Linux")
def test_several_processes_may_listen_on_a_reserved_port():
    with Live() as first:
        second = Live()
        second.reserved.close()
        second.port._address = first.address
        with second:
            channels = [
                grpc.insecure_channel(first.address, [("grpc.use_local_subchannel_pool", 1)]) for _ in range(32)
            ]
            for channel in channels:
                with channel:
                    channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")(
                        request().SerializeToString(), timeout=WAIT_S
                    )
            counts = [len(live.processor.requests) for live in (first, second)]
        assert sum(counts) == 32
        assert all(counts)
        assert scores(first.infer(request(), timeout=WAIT_S)) == [4.0]


def predict_request():
    made = message("tensorflow.serving.PredictRequest")()
    made.model_spec.name = "ctr"
    ids, floats = made.inputs["ids"], made.inputs["floats"]
    ids.dtype, floats.dtype = 9, 1
    for tensor, columns in ((ids, 3), (floats, 2)):
        tensor.tensor_shape.dim.add(size=1)
        tensor.tensor_shape.dim.add(size=columns)
    ids.int64_val.extend([1, 1, 1])
    floats.float_val.extend([0.5, 0.5])
    return made


def tfs_predict(live):
    return live.unary("/tensorflow.serving.PredictionService/Predict", "tensorflow.serving.PredictResponse")


def test_a_sticky_key_and_a_request_id_reach_the_processor_by_either_service():
    with Live() as live:
        metadata = [("x-sticky-key", "user-7"), ("x-request-id", "abc")]
        live.infer(request(), metadata=metadata, timeout=WAIT_S)
        tfs_predict(live)(predict_request(), metadata=metadata, timeout=WAIT_S)
        list(live.stream(iter([request()] * 2), metadata=metadata, timeout=WAIT_S))
        assert [(asked.key, asked.request_id) for asked in live.processor.requests] == [(b"user-7", "abc")] * 4
        assert live.processor.keys == [b"user-7"] * 4


def test_a_request_id_comes_back_with_replies_errors_and_streams():
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


class FakeTrail:
    """serving.telemetry.tracing.Tracer: traces whatever has a traceparent."""

    def __init__(self):
        self.ended = []

    def begin(self, headers, protocol):
        return Trace(1, 2, 3, 0.5, protocol) if b"traceparent" in headers else None

    def end(self, trace, status):
        self.ended.append((trace, status))


def test_a_traced_call_is_followed_to_its_end_whatever_that_is():
    tracer, metadata = FakeTrail(), [("traceparent", "x")]
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


def test_every_call_can_have_its_line_in_the_access_log(caplog):
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


def test_reading_and_printing_are_timed_of_one_prediction_in_some():
    with Live() as live:
        for _ in range(32):
            live.infer(request(), timeout=WAIT_S)
        until(lambda: {(p, s, sum(counts)) for p, s, counts, _ in live.metrics.own.phases()} == {
            ("kserve_grpc", "parse", 2), ("kserve_grpc", "encode", 2)
        })  # fmt: skip
