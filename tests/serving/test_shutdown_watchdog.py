"""What is asked to end ends: by itself, or by the last resort."""

import subprocess
import sys
import threading

import pytest

from freshet_serving.serving import shutdown_watchdog as last_resort_module
from freshet_serving.serving.shutdown_watchdog import STATUS, WORDS, ShutdownWatchdog


@pytest.fixture
def ends(monkeypatch):
    """The exit codes it ends with, and an event for the first; what it says goes nowhere."""
    codes, ended, said = [], threading.Event(), []
    monkeypatch.setattr(last_resort_module.os, "write", lambda fd, words: said.append((fd, words)))

    def end(code):
        codes.append(code)
        ended.set()

    return codes, ended, said, end


def test_hanging_shutdown_is_killed(ends):
    codes, ended, said, end = ends
    resort = ShutdownWatchdog(0.0, end)
    resort.start()
    resort.arm()
    assert ended.wait(10)
    assert (codes, said) == ([STATUS], [(2, WORDS)])


def test_watchdog_kills_only_after_being_armed(ends):
    codes, ended, _, end = ends
    resort = ShutdownWatchdog(0.0, end)
    resort.start()
    assert not ended.wait(0.05)
    resort.arm()
    resort.arm()
    assert ended.wait(10)
    assert codes == [STATUS]


def test_process_that_ended_cleanly_exits_shortly_after(ends, monkeypatch):
    codes, ended, _, end = ends
    monkeypatch.setattr(last_resort_module, "LAST_S", 0.0)
    resort = ShutdownWatchdog(3600.0, end)
    resort.start()
    resort.ended()
    assert ended.wait(10)
    assert codes == [STATUS]


# A process of its own: the signals of a test runner may reach any thread of the libraries that it has loaded.
OVERHEARD = """
import os, signal, socket, threading
from freshet_serving.serving.shutdown_watchdog import ShutdownWatchdog

theirs, ours = socket.socketpair()
ours.setblocking(False)
signal.set_wakeup_fd(ours.fileno(), warn_on_full_buffer=False)
for number in (signal.SIGUSR1, signal.SIGUSR2):
    signal.signal(number, lambda *_: None)
ended = threading.Event()
resort = ShutdownWatchdog(0.0, lambda code: ended.set())
resort.start()
resort.arm_on_signals([signal.SIGUSR1])

os.kill(os.getpid(), signal.SIGUSR2)
print("heard", theirs.recv(1) == bytes([signal.SIGUSR2]), "armed", ended.is_set())
os.kill(os.getpid(), signal.SIGUSR1)
print("ended", ended.wait(10), "heard", theirs.recv(1) == bytes([signal.SIGUSR1]))
signal.set_wakeup_fd(-1)
(listener,) = [thread for thread in threading.enumerate() if thread.name == "freshet-signals"]
resort._signal_socket.close()
listener.join(10)
print("listens", listener.is_alive())
"""


def test_signal_arms_the_watchdog_before_the_event_loop_runs():
    done = subprocess.run([sys.executable, "-c", OVERHEARD], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines() == ["heard True armed False", "ended True heard True", "listens False"], done
    assert (done.returncode, done.stderr) == (0, WORDS.decode())
