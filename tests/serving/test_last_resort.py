"""What is asked to end ends: by itself, or by the last resort."""

import os
import signal
import socket
import threading

import pytest

from serving import last_resort as last_resort_module
from serving.last_resort import STATUS, WORDS, LastResort


@pytest.fixture
def ends(monkeypatch):
    """The exit codes it ends with, and an event for the first; what it says goes nowhere."""
    codes, ended, said = [], threading.Event(), []
    monkeypatch.setattr(last_resort_module.os, "write", lambda fd, words: said.append((fd, words)))

    def end(code):
        codes.append(code)
        ended.set()

    return codes, ended, said, end


def test_an_end_that_hangs_is_ended(ends):
    codes, ended, said, end = ends
    resort = LastResort(0.0, end)
    resort.start()
    resort.arm()
    assert ended.wait(10)
    assert (codes, said) == ([STATUS], [(2, WORDS)])


def test_nothing_is_ended_that_was_not_asked_to(ends):
    codes, ended, _, end = ends
    resort = LastResort(0.0, end)
    resort.start()
    assert not ended.wait(0.05)
    resort.arm()
    resort.arm()
    assert ended.wait(10)
    assert codes == [STATUS]


def test_once_it_has_ended_in_order_a_process_has_a_moment_left(ends, monkeypatch):
    codes, ended, _, end = ends
    monkeypatch.setattr(last_resort_module, "LAST_S", 0.0)
    resort = LastResort(3600.0, end)
    resort.start()
    resort.ended()
    assert ended.wait(10)
    assert codes == [STATUS]


@pytest.fixture
def loop_end():
    """What an event loop has: its end of a socket pair is where the interpreter writes signals. The other end."""
    theirs, ours = socket.socketpair()
    ours.setblocking(False)
    before = signal.set_wakeup_fd(ours.fileno(), warn_on_full_buffer=False)
    handlers = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGUSR1, signal.SIGUSR2)}
    yield theirs
    for number, handler in handlers.items():
        signal.signal(number, handler)
    signal.set_wakeup_fd(before)
    for one in (theirs, ours):
        one.close()


def test_a_signal_arms_before_the_event_loop_hears_of_it(loop_end):
    ended = threading.Event()
    resort = LastResort(0.0, lambda code: ended.set())
    resort.start()
    resort.overhear([signal.SIGUSR1])

    os.kill(os.getpid(), signal.SIGUSR2)
    assert loop_end.recv(1) == bytes([signal.SIGUSR2])
    assert not ended.is_set()
    os.kill(os.getpid(), signal.SIGUSR1)
    assert ended.wait(10)
    assert loop_end.recv(1) == bytes([signal.SIGUSR1])
