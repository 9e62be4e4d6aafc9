"""A listener's queue at its end, on real sockets."""

import socket
import sys

import pytest

from freshet_serving.serving.front.backlog import refuse_new_connections, waiting


@pytest.fixture
def listener():
    with socket.create_server(("127.0.0.1", 0)) as made:
        made.setblocking(False)
        yield made


def test_waiting_connections_are_accepted_in_order_and_nonblocking(listener):
    clients = [socket.create_connection(listener.getsockname()) for _ in range(3)]
    for n, client in enumerate(clients):
        client.sendall(b"%d" % n)
    found = list(waiting(listener))
    assert [each.recv(9) for each in found] == [b"0", b"1", b"2"]
    assert not any(each.getblocking() for each in found)
    assert list(waiting(listener)) == []
    for each in (*clients, *found):
        each.close()


@pytest.mark.skipif(sys.platform != "linux", reason="the filter is Linux's")
def test_new_connections_are_refused_while_existing_ones_continue(listener):
    address = listener.getsockname()
    with socket.create_connection(address) as queued:
        refuse_new_connections(listener)
        with socket.socket() as newcomer:
            newcomer.setblocking(False)
            with pytest.raises(BlockingIOError):
                newcomer.connect(address)
            (accepted,) = waiting(listener)
            with accepted:
                queued.sendall(b"asked")
                assert accepted.recv(9) == b"asked"
                accepted.sendall(b"told")
                assert queued.recv(9) == b"told"
            assert list(waiting(listener)) == [], "it has not got through"


def test_closed_listener_has_no_waiting_connections():
    listener = socket.create_server(("127.0.0.1", 0))
    listener.close()
    refuse_new_connections(listener)
    assert list(waiting(listener)) == []
