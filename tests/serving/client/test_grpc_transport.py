import socket
import time

import grpc

from freshet_serving.serving.client.grpc_transport import OPTIONS


def reconnect_s(options):
    """The seconds from a connection that is closed at once to the next one."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(60)
        channel = grpc.insecure_channel(f"127.0.0.1:{server.getsockname()[1]}", options)
        channel.subscribe(lambda _: None, try_to_connect=True)
        times_s = []
        for _ in range(2):
            server.accept()[0].close()
            times_s.append(time.monotonic())
        channel.close()
    return times_s[1] - times_s[0]


def test_connects_again_sooner_than_grpc_by_itself():
    assert min(reconnect_s(OPTIONS) for _ in range(2)) < reconnect_s([]) / 2
