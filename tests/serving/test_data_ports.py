"""Connections that are asked to leave."""

from types import SimpleNamespace

import pytest

from freshet_serving.serving.data_ports import DataPorts


@pytest.fixture
def ports():
    """DataPorts with four connections, of which one is leaving."""
    connections = [SimpleNamespace(draining=number == 2) for number in range(4)]
    ports = object.__new__(DataPorts)
    ports.http = SimpleNamespace(server_state=SimpleNamespace(connections=connections))
    return ports


def draining(ports):
    return sum(connection.draining for connection in ports.http.server_state.connections)


@pytest.mark.parametrize(("count", "leave"), [(0, 1), (1, 1), (2, 2), (3, 3), (9, 4)])
def test_drain_target_includes_already_draining_connections(ports, count, leave):
    for _ in range(3):
        ports.drain_some(count)
        assert draining(ports) == leave


def test_drain_share_counts_only_remaining_connections(ports):
    ports.drain_share(0.5)
    assert draining(ports) == 3
    ports.drain_share(0.0)
    assert draining(ports) == 3
