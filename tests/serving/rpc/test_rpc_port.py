"""What the gRPC port takes, where it listens and how it ends."""

import asyncio
import contextlib
import socket
import sys

import grpc
import pytest

from freshet_serving.serving.front.resource_limits import ConnectionLimits
from freshet_serving.serving.rpc import port_sockets, rpc_port
from freshet_serving.serving.rpc.rpc_port import MAX_METADATA_NBYTES
from tests.serving.fakes import FakeProcessor
from tests.serving.rpc.live import WAIT_S, Live, refused, request, scores
from tests.support.waiting import until


def test_message_over_the_limit_is_refused_by_its_length():
    with Live(max_body_bytes=1000) as live:
        error = refused(live.channel.unary_unary("/inference.GRPCInferenceService/ModelInfer"), bytes(100_000))
        assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED


def test_metadata_over_the_limit_is_refused():
    with Live() as live:
        fitting, beyond = ((("x-a", "y" * nbytes),) for nbytes in (MAX_METADATA_NBYTES // 2, 2 * MAX_METADATA_NBYTES))
        assert scores(live.infer(request(), timeout=WAIT_S, metadata=fitting)) == [4.0]
        error = refused(live.infer, request(), metadata=beyond)
        assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert scores(live.infer(request(), timeout=WAIT_S)) == [4.0]


def test_connection_that_never_sends_is_closed(monkeypatch):
    monkeypatch.setattr(rpc_port, "HANDSHAKE_MS", 100)
    with Live() as live:
        host, _, port = live.address.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=WAIT_S) as silent:
            while silent.recv(1 << 16):
                pass


def test_number_of_connections_per_port_is_limited(monkeypatch):
    monkeypatch.setattr(rpc_port.ConnectionLimits, "here", lambda: ConnectionLimits(2, 2, 2))
    with Live() as live:
        assert scores(live.infer(request(), timeout=WAIT_S)) == [4.0]
        host, _, port = live.address.rpartition(":")
        others = [socket.create_connection((host, int(port)), timeout=WAIT_S) for _ in range(4)]
        ended = 0
        for other in others[1:]:
            other.settimeout(10)
            with contextlib.suppress(ConnectionError):
                while other.recv(1 << 16):
                    pass
            ended += 1
        assert ended == 3
        assert scores(live.infer(request(), timeout=WAIT_S)) == [4.0]
        for other in others:
            other.close()


def test_end_waits_for_calls_in_flight():
    processor = FakeProcessor(hold=True)
    with Live(processor, shutdown_timeout_s=WAIT_S) as live:
        call = live.infer.future(request(), timeout=WAIT_S)
        until(lambda: processor.held)
        stopping = asyncio.run_coroutine_threadsafe(live.port.stop(), live.loop)
        processor.release()
        assert scores(call.result(WAIT_S)) == [4.0]
        stopping.result(WAIT_S)


def test_server_stops_after_handing_over_all_its_calls(monkeypatch):
    monkeypatch.setattr(port_sockets, "LOOK_S", 0)
    order = []
    with Live() as live:
        live.infer(request(), timeout=WAIT_S)
        serving_context, stop = live.port._serving_context, live.port._server.stop

        def begin(left):
            serving_context.begun += 1
            if left:
                live.loop.call_soon(begin, left - 1)
            else:
                order.append("all have begun")

        async def stopped(grace):
            order.append("stopped")
            await stop(grace)

        live.port._server.stop = stopped
        live.loop.call_soon_threadsafe(begin, 70)
        live.run(live.port.stop())
    assert order[:2] == ["all have begun", "stopped"]


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
