"""A worker is a fork of the nursery and a child of the supervisor; nobody waits for a nursery that has gone."""

import os
import signal
import threading

import pytest

from freshet_serving.serving.workers.channel import Channel, ChannelClosed
from freshet_serving.serving.workers.fork_server import ForkServer

WAIT_S = 60


@pytest.fixture(scope="module")
def fork_server():
    fork_server = ForkServer()
    fork_server.start()
    yield fork_server
    fork_server.close()


def born(fork_server):
    """A worker that waits for its settings: (child, the supervisor's end of its channel)."""
    channel, there = Channel.pair()
    try:
        with there:
            return fork_server.fork(there), channel
    except ChannelClosed:
        channel.close()
        raise


def parent_of(pid):
    with open(f"/proc/{pid}/stat") as file:
        return int(file.read().rpartition(")")[2].split()[1])


def test_worker_is_a_killable_child_of_the_supervisor(fork_server):
    child, channel = born(fork_server)
    assert parent_of(child.pid) == os.getpid()
    assert not child.wait(0.0)
    child.kill()
    assert child.wait(WAIT_S)
    assert not os.path.exists(f"/proc/{child.pid}")
    assert child.signal == "SIGKILL"
    child.kill()
    assert child.wait()
    channel.close()


def test_worker_ends_when_its_supervisor_dies(fork_server):
    child, channel = born(fork_server)
    channel.close()
    assert child.wait(WAIT_S)
    assert child.signal == ""


def test_first_fatal_signal_of_a_worker_is_reported(fork_server):
    child, channel = born(fork_server)
    os.kill(child.pid, signal.SIGBUS)
    with pytest.raises(ChannelClosed):
        channel.receive()
    child.kill()
    assert child.wait(WAIT_S)
    assert child.signal == "SIGBUS"
    channel.close()


def test_group_signals_reach_neither_fork_server_nor_workers(fork_server):
    child, channel = born(fork_server)
    for pid in (child.pid, fork_server._process.pid):
        os.kill(pid, signal.SIGINT)
        os.kill(pid, signal.SIGTERM)
    other, second = born(fork_server)
    assert not child.wait(0.0)
    for each in (channel, second):
        each.close()
    assert child.wait(WAIT_S)
    assert other.wait(WAIT_S)


def test_workers_survive_their_fork_server_and_new_ones_get_another(fork_server):
    child, channel = born(fork_server)
    fork_server._process.kill()
    with pytest.raises(ChannelClosed):
        born(fork_server)
    assert not child.wait(0.0)
    other, second = born(fork_server)
    for each in (channel, second):
        each.close()
    assert child.wait(WAIT_S)
    assert other.wait(WAIT_S)


def test_closing_does_not_wait_for_a_starting_fork_server():
    fork_server, gone = ForkServer(), []

    def fork():
        with pytest.raises(ChannelClosed):
            born(fork_server)
        gone.append(True)

    waiting = threading.Thread(target=fork)
    fork_server.start()
    waiting.start()
    fork_server.close()
    waiting.join(WAIT_S)
    assert gone == [True]
    with pytest.raises(ChannelClosed, match="closed"):
        fork_server.start()
