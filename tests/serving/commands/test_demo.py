import socket

import pytest

from freshet_serving.processor.errors import BadInput
from freshet_serving.serving.commands.demo import free_ports


@pytest.fixture
def listening():
    """A port on which another server listens, with free ones above it."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield server.getsockname()[1]


def test_busy_ports_are_replaced_by_distinct_free_ones(listening):
    data, admin = free_ports(listening, listening)
    assert listening < data < admin


def test_free_ports_are_used_unchanged(listening):
    (port,) = free_ports(listening + 1) if listening < 65000 else free_ports(listening - 500)
    assert free_ports(port) == [port]


def test_ports_beyond_the_last_are_refused():
    with pytest.raises(BadInput, match="ports: expected a free port from 65536"):
        free_ports(1 << 16)
