"""Locks of the arena: one holder among threads and processes, and none that is dead."""

import signal
import subprocess
import sys
import threading

import numpy as np

from freshet_serving.processor.extensions.user_state.arena_locks import ArenaLocks
from freshet_serving.processor.memory import reserve, share

HOLDER = """
import sys
import numpy as np
from freshet_serving.processor.memory import SharedMap
from freshet_serving.processor.extensions.user_state.arena_locks import ArenaLocks
memory = np.frombuffer(SharedMap.of(int(sys.argv[1]), 4096, True), np.int64)
locks = ArenaLocks.of(memory)
assert locks.acquire(3, 1.0)
print("held", flush=True)
sys.stdin.readline()
locks.release(3)
print("free", flush=True)
sys.stdin.readline()
"""


def memory():
    return reserve(4096, "locks").view(np.int64)


def started(shared):
    fd = share([shared], "locks")[0].mapping.fd
    command = [sys.executable, "-c", HOLDER, str(fd)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=[fd], text=True)


def test_one_process_holds_a_lock_and_others_are_free():
    shared = memory()
    locks = ArenaLocks.of(shared)
    with started(shared) as holder:
        assert holder.stdout.readline() == "held\n"
        assert not locks.acquire(3, 0.01)
        assert locks.acquire(4, 0.01)
        locks.release(4)
        holder.stdin.write("\n")
        holder.stdin.flush()
        assert holder.stdout.readline() == "free\n"
        assert locks.acquire(3, 1.0)
        locks.release(3)
        holder.stdin.close()


def test_lock_of_a_killed_process_is_free():
    shared = memory()
    with started(shared) as holder:
        assert holder.stdout.readline() == "held\n"
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        assert ArenaLocks.of(shared).acquire(3, 1.0)
        holder.stdin.close()


def test_all_that_opens_a_memory_in_one_process_shares_the_locks_of_its_threads():
    shared = memory()
    locks = ArenaLocks.of(shared)
    assert ArenaLocks.of(shared) is locks
    assert ArenaLocks.of(memory()) is not locks
    assert locks.acquire(0, 0.01)
    outcomes = []
    thread = threading.Thread(target=lambda: outcomes.append(ArenaLocks.of(shared).acquire(0, 0.01)))
    thread.start()
    thread.join()
    assert outcomes == [False]
    locks.release(0)
    assert locks.acquire(0, 0.01)
    locks.release(0)


def test_memory_without_a_file_is_locked_among_threads():
    locks = ArenaLocks.of(np.zeros(8, np.int64))
    assert locks.acquire(1, 0.01)
    assert not locks.acquire(1, 0.01)
    locks.release(1)
