"""A worker is a fork of the nursery and a child of the supervisor; nobody waits for a nursery that has gone."""

import os
import signal
import threading

import pytest

from freshet_serving.serving.workers.channel import Channel, Gone
from freshet_serving.serving.workers.nursery import Nursery

WAIT_S = 60


@pytest.fixture(scope="module")
def nursery():
    nursery = Nursery()
    nursery.start()
    yield nursery
    nursery.close()


def born(nursery):
    """A worker that waits for its settings: (child, the supervisor's end of its channel)."""
    channel, there = Channel.pair()
    try:
        with there:
            return nursery.fork(there), channel
    except Gone:
        channel.close()
        raise


def parent_of(pid):
    with open(f"/proc/{pid}/stat") as file:
        return int(file.read().rpartition(")")[2].split()[1])


def test_a_worker_is_the_supervisors_child_and_its_end_is_certain(nursery):
    child, channel = born(nursery)
    assert parent_of(child.pid) == os.getpid()
    assert not child.wait(0.0)
    child.kill()
    assert child.wait(WAIT_S)
    assert not os.path.exists(f"/proc/{child.pid}")
    assert child.signal == "SIGKILL"
    child.kill()
    assert child.wait()
    channel.close()


def test_a_worker_whose_supervisor_has_gone_ends_by_itself(nursery):
    child, channel = born(nursery)
    channel.close()
    assert child.wait(WAIT_S)
    assert child.signal == ""


def test_the_signal_that_a_worker_died_of_is_known_though_it_is_killed_afterwards(nursery):
    child, channel = born(nursery)
    os.kill(child.pid, signal.SIGBUS)
    with pytest.raises(Gone):
        channel.receive()
    child.kill()
    assert child.wait(WAIT_S)
    assert child.signal == "SIGBUS"
    channel.close()


def test_signals_to_the_whole_group_reach_neither_nursery_nor_workers(nursery):
    child, channel = born(nursery)
    for pid in (child.pid, nursery._process.pid):
        os.kill(pid, signal.SIGINT)
        os.kill(pid, signal.SIGTERM)
    other, second = born(nursery)
    assert not child.wait(0.0)
    for each in (channel, second):
        each.close()
    assert child.wait(WAIT_S)
    assert other.wait(WAIT_S)


def test_workers_outlive_the_nursery_and_the_next_one_has_another(nursery):
    child, channel = born(nursery)
    nursery._process.kill()
    with pytest.raises(Gone):
        born(nursery)
    assert not child.wait(0.0)
    other, second = born(nursery)
    for each in (channel, second):
        each.close()
    assert child.wait(WAIT_S)
    assert other.wait(WAIT_S)


def test_closing_does_not_wait_for_a_nursery_that_is_still_being_born():
    nursery, gone = Nursery(), []

    def fork():
        with pytest.raises(Gone):
            born(nursery)
        gone.append(True)

    waiting = threading.Thread(target=fork)
    nursery.start()
    waiting.start()
    nursery.close()
    waiting.join(WAIT_S)
    assert gone == [True]
    with pytest.raises(Gone, match="closed"):
        nursery.start()
