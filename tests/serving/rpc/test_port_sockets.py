"""Sockets of a port among the process's descriptors, and what the kernel tells of them."""

import contextlib
import socket
import sys

import pytest

from freshet_serving.serving.rpc import port_sockets
from freshet_serving.serving.rpc.port_sockets import FRAME, descriptors, idle_s, send_goaway, sockets_of, unread_nbytes
from tests.support.waiting import until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="descriptors are listed on Linux only")


@pytest.fixture
def pair():
    """A listener's port, the end of a client, and the end that was accepted."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as client,
        listener.accept()[0] as accepted,
    ):
        yield listener.getsockname()[1], client, accepted


def peers(port):
    """The clients' ports of the sockets that were found."""
    found = []
    for each in sockets_of(port):
        with each, contextlib.suppress(OSError):
            found.append(each.getpeername()[1])
    return found


def test_sockets_of_a_port_are_found_as_duplicates(pair):
    port, client, accepted = pair
    before = descriptors()
    assert peers(port) == [client.getsockname()[1]]
    # What earlier tests have left may be closed meanwhile.
    assert descriptors() <= before
    accepted.sendall(b"still open")
    assert client.recv(100) == b"still open"


def test_unread_bytes_and_idle_time_are_reported(pair):
    _, client, accepted = pair
    assert unread_nbytes(accepted) == 0
    client.sendall(b"abc")
    until(lambda: unread_nbytes(accepted) == 3)
    until(lambda: idle_s(accepted) > 0.05)
    client.sendall(b"d")
    until(lambda: unread_nbytes(accepted) == 4)
    assert idle_s(accepted) < 30


def test_goaway_frame_names_no_last_stream(pair):
    _, client, accepted = pair
    send_goaway(accepted)
    assert client.recv(100) == FRAME
    assert FRAME[9:] == b"\x7f\xff\xff\xff" + bytes(4)


def test_missing_descriptor_listing_gives_no_sockets(pair, monkeypatch):
    monkeypatch.setattr(port_sockets, "DESCRIPTORS", "/nowhere/at/all")
    assert descriptors() == 0
    assert peers(pair[0]) == []
