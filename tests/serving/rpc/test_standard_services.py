import grpc

from freshet_serving.serving.codecs.messages import message
from tests.serving.rpc.live import WAIT_S, Live, refused, request, scores


def test_calls_are_unavailable_while_models_load_and_health_agrees():
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


def test_health_watcher_is_notified_of_changes():
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


def test_health_watch_ends_with_its_port_after_the_last_status():
    with Live(shutdown_timeout_s=2 * WAIT_S) as live:
        watch = live.channel.unary_stream(
            "/grpc.health.v1.Health/Watch",
            lambda m: m.SerializeToString(),
            message("grpc.health.v1.HealthCheckResponse").FromString,
        )
        told = watch(message("grpc.health.v1.HealthCheckRequest")(), timeout=WAIT_S)
        assert next(told).status == 1
        live.lifecycle.drain()
        live.run(live.port.stop())
        assert [each.status for each in told] == [2]


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
