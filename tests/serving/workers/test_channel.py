"""What the supervisor and a worker speak through: nothing mixed, nothing leaked, nothing unbounded."""

import os
import socket
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from freshet_serving.processor.errors import Conflict, FreshetError
from freshet_serving.serving.workers import channel as channel_module
from freshet_serving.serving.workers.channel import Channel, ChannelClosed, DescriptorsExhausted, refusal
from tests.serving.workers import channel_ends
from tests.serving.workers.channel_ends import memfd
from tests.support.descriptors import few_descriptors, open_fds, settled_fds


@pytest.fixture
def ends():
    with channel_ends.ends() as both:
        yield both


@settings(max_examples=15, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 600), st.sampled_from([0, 10, 40_000, 300_000])), max_size=5))
def test_messages_arrive_whole_in_order_with_their_descriptors(sizes):
    here, there = Channel.pair()
    other = Channel(there)
    before = settled_fds()
    fds = [memfd(b"%d" % n) for n in range(max((count for count, _ in sizes), default=0))]

    def send():
        for number, (count, nbytes) in enumerate(sizes):
            here.send({"number": number, "text": "x" * nbytes}, fds[:count])

    sender = threading.Thread(target=send)
    sender.start()
    for number, (count, nbytes) in enumerate(sizes):
        message, got = other.receive()
        assert message == {"number": number, "text": "x" * nbytes}
        assert [os.pread(fd, 10, 0) for fd in got] == [b"%d" % n for n in range(count)]
        for fd in got:
            assert not os.get_inheritable(fd)
            os.close(fd)
    sender.join()
    for fd in fds:
        os.close(fd)
    assert open_fds() == before
    here.close()
    other.close()


def test_messages_of_many_threads_do_not_mix(ends):
    here, other = ends
    fd = memfd(b"x")

    def send(name):
        for number in range(50):
            here.send({"name": name, "number": number, "fds": 300}, [fd] * 300)

    threads = [threading.Thread(target=send, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    seen = {"a": [], "b": [], "c": []}
    for _ in range(150):
        message, fds = other.receive()
        assert len(fds) == message["fds"]
        seen[message["name"]].append(message["number"])
        for got in fds:
            os.close(got)
    for thread in threads:
        thread.join()
    os.close(fd)
    assert all(numbers == list(range(50)) for numbers in seen.values())


def test_empty_channel_returns_none_and_a_closed_one_raises(ends):
    here, other = ends
    assert other.receive(wait=False) is None
    here.close()
    with pytest.raises(ChannelClosed):
        other.receive()
    with pytest.raises(ChannelClosed):
        other.send({})
    with pytest.raises(ChannelClosed):
        other.send_nowait({})


def test_close_wakes_a_waiting_receiver(ends):
    here, _ = ends
    gone = threading.Event()

    def wait():
        with pytest.raises(ChannelClosed):
            here.receive()
        gone.set()

    thread = threading.Thread(target=wait)
    thread.start()
    here.close()
    assert gone.wait(10)
    thread.join()


def test_full_socket_does_not_block_the_sender(ends):
    here, _ = ends
    sent = 0
    while here.send_nowait({"n": sent}):
        sent += 1
    assert sent > 0


@pytest.mark.parametrize("packet", [b"?", b"J", b"J[1]", b"J{", b"M", b"Jx" * 40_000])
def test_malformed_message_closes_the_channel_without_leaking_descriptors(packet):
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    other, fd = Channel(right), memfd(b"not json")
    before = settled_fds()
    socket.send_fds(left, [packet], [fd])
    with pytest.raises(ChannelClosed):
        other.receive()
    assert open_fds() == before
    os.close(fd)
    left.close()
    other.close()


def test_oversized_message_is_never_sent_or_read(ends, monkeypatch):
    here, other = ends
    monkeypatch.setattr(channel_module, "MAX_MESSAGE_NBYTES", 50_000)
    with pytest.raises(ValueError, match="too large"):
        here.send({"text": "x" * 60_000})
    monkeypatch.setattr(channel_module, "MAX_MESSAGE_NBYTES", 70_000)
    here.send({"text": "x" * 60_000})
    monkeypatch.setattr(channel_module, "MAX_MESSAGE_NBYTES", 50_000)
    with pytest.raises(ChannelClosed):
        other.receive()


@pytest.mark.parametrize(
    ("count", "nbytes", "room"), [(1, 10, 0), (5, 10, 3), (600, 10, 3), (5, 40_000, 3), (600, 40_000, 300)]
)
def test_message_exceeding_free_descriptors_arrives_without_them(ends, count, nbytes, room):
    here, other = ends
    fd = memfd(b"x")
    message = {"op": "frame", "text": "x" * nbytes}
    sender = threading.Thread(target=lambda: (here.send(message, [fd] * count), here.send({"op": "next"}, [fd])))
    before = settled_fds()
    # A memfd that carries the JSON is made before.
    with few_descriptors(room + (nbytes > 1000)):
        sender.start()
        with pytest.raises(DescriptorsExhausted) as caught:
            other.receive()
    assert caught.value.message == message
    assert open_fds() <= before + 1
    following, fds = other.receive()
    assert (following, len(fds)) == ({"op": "next"}, 1)
    sender.join()
    for each in (fd, *fds):
        os.close(each)


@pytest.mark.parametrize(
    ("name", "kind"), [("Conflict", Conflict), ("KeyError", FreshetError), ("annotations", FreshetError)]
)
def test_worker_error_is_raised_with_its_type(name, kind):
    error = refusal(name, "why")
    assert type(error) is kind
    assert str(error) == "why"


def test_channel_end_duplicated_elsewhere_can_be_released():
    with channel_ends.ends() as (here, other):
        copy = Channel(other._sock.dup())
        copy.disown()
        here.send({"op": "x"})
        assert other.receive() == ({"op": "x"}, [])
