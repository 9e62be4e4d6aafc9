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
