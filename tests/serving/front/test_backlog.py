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


def test_what_waits_is_accepted_in_its_order_and_does_not_block(listener):
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
def test_newcomers_get_no_answer_while_those_who_are_there_go_on_talking(listener):
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


def test_a_listener_that_has_gone_has_nobody_waiting():
    listener = socket.create_server(("127.0.0.1", 0))
    listener.close()
    refuse_new_connections(listener)
    assert list(waiting(listener)) == []
