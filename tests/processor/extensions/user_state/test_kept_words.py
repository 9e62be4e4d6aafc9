"""Words under a name: locks of processes and threads, holders that die, no two copies, and none that others lose."""

import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from freshet_serving.processor.errors import NotReady
from freshet_serving.processor.extensions.user_state import kept_words, state_store
from freshet_serving.processor.extensions.user_state import state_arena as arena
from freshet_serving.processor.extensions.user_state.arena_locks import NAMES
from freshet_serving.processor.extensions.user_state.kept_words import KeptWords
from freshet_serving.processor.extensions.user_state.state_names import StateNames
from freshet_serving.processor.extensions.user_state.state_store import StateStore, arena_memory
from freshet_serving.processor.memory import share
from tests.support.waiting import held_elsewhere

PAGES, PROCESSES = 256, 2
NBYTES = 8 * (
    arena.HEADER + PROCESSES * (arena.HEAD + arena.WAYS * arena.ENTRY + PAGES * (arena.PAGE + 1 + arena.ENTRY))
)


class Opened:
    def __init__(self):
        self.memory = arena_memory(NBYTES, PROCESSES)
        self.stores = [StateStore(self.memory, PROCESSES, n, time.monotonic) for n in range(PROCESSES)]
        self.words = [KeptWords(store) for store in self.stores]
        self.name = StateNames(self.stores[0].secret).name(b"", b"kept/m", b"u", b"u")

    def replace(self, process, version, count=700):
        words = np.arange(version, version + count)
        with self.words[process].locked(self.name):
            return self.words[process].replace(self.name, words, self.stores[process].erasures)


@pytest.fixture
def opened():
    return Opened()


def test_newest_words_are_read_by_every_process_and_older_ones_are_zeroed(opened):
    for version in range(1, 9):
        assert opened.replace(version % 2, version)
        for words in opened.words:
            assert words.read(opened.name)[0] == version
    found = [
        segment
        for store in opened.stores
        for segment in [store.own]
        if opened.words[0]._find(segment, opened.name, -1) >= 0
    ]
    assert len(found) == 1
    for words in opened.words:
        with words.locked(opened.name):
            words.forget(opened.name)
    shape = opened.stores[0].own
    segment = (len(opened.memory) - arena.HEADER) // PROCESSES
    for n in range(PROCESSES):
        start = arena.HEADER + n * segment + arena.HEAD + arena.ENTRY * shape.entries + shape.pages
        assert not opened.memory[start : start + arena.PAGE * shape.pages].any()
    assert opened.words[0].read(opened.name) is None


def test_full_store_admits_words_at_once_and_its_process_uses_pages_of_others_again(opened):
    names = StateNames(opened.stores[0].secret)
    for turn in range(200):
        opened.name = names.name(b"", b"kept/m", b"%d" % (turn // 2))
        assert opened.replace(turn % 2, turn + 1)
        assert opened.words[0].read(opened.name)[0] == turn + 1


def test_words_that_are_damaged_are_none(opened):
    opened.replace(0, 5)
    own = opened.stores[0].own
    first = (own.address - opened.memory.ctypes.data) // 8 + arena.HEAD + arena.ENTRY * own.entries + own.pages
    opened.memory[first + int(np.flatnonzero(opened.memory[first : first + arena.PAGE])[0])] ^= 1
    assert opened.words[1].read(opened.name) is None


def test_thread_waits_for_another_and_gives_up_after_a_while(opened, monkeypatch):
    monkeypatch.setattr(kept_words, "PATIENCE_S", 0.01)
    with (
        held_elsewhere(opened.words[0].locked(opened.name)),
        pytest.raises(NotReady, match="sequence_id: other requests are changing this user"),
        opened.words[0].locked(opened.name),
    ):
        pass
    with opened.words[0].locked(opened.name):
        pass


HOLDER = """
import sys, time
import numpy as np
from freshet_serving.processor.memory import SharedMap
from freshet_serving.processor.extensions.user_state.kept_words import KeptWords
from freshet_serving.processor.extensions.user_state.state_names import StateNames
from freshet_serving.processor.extensions.user_state.state_store import StateStore
fd, nbytes = map(int, sys.argv[1:])
memory = np.frombuffer(SharedMap.of(fd, nbytes, True), np.int64)
store = StateStore(memory, 2, 1, time.monotonic)
words = KeptWords(store)
name = StateNames(store.secret).name(b"", b"kept/m", b"u", b"u")
"""
HOLD = """
with words.locked(name):
    print("held", flush=True)
    sys.stdin.readline()
"""
COUNT = """
print("begun", flush=True)
for _ in range(1000):
    while True:
        try:
            with words.locked(name):
                kept = words.read_held(name)
                words.replace(name, kept + 1, store.erasures)
            break
        except Exception as error:
            assert "send it again" in str(error), error
print("done", flush=True)
"""


def started(memory, text):
    fd = share([memory], "states")[0].mapping.fd
    command = [sys.executable, "-c", HOLDER + text, str(fd), str(memory.nbytes)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=[fd], text=True)


def test_lock_of_a_process_that_is_killed_is_free(opened):
    with started(opened.memory, HOLD) as holder:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(NotReady), opened.words[0].locked(opened.name):
            pass
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        with opened.words[0].locked(opened.name):
            pass
        holder.stdin.close()


def test_changes_of_two_processes_at_once_are_all_made(opened):
    assert opened.replace(0, 0)
    with started(opened.memory, COUNT) as other:
        store, words = opened.stores[0], opened.words[0]
        made = 0
        # It starts for longer than all changes take.
        assert other.stdout.readline() == "begun\n"
        while made < 1000:
            try:
                with words.locked(opened.name):
                    words.replace(opened.name, words.read_held(opened.name) + 1, store.erasures)
                made += 1
            except NotReady:
                continue
        assert other.stdout.readline() == "done\n"
        other.stdin.close()
    assert words.read(opened.name)[0] == 2000


KEEP = """
users = StateNames(store.secret)
for turn in range(1, 400):
    name = users.name(b"", b"kept/m", b"mine%d" % (turn % 5), b"mine%d" % (turn % 5))
    with words.locked(name):
        while not words.replace(name, np.arange(turn, turn + 70 * (turn % 20) + 2), store.erasures):
            pass
        assert words.read_held(name)[0] == turn, turn
    # Others erase it.
    name = users.name(b"", b"kept/m", b"u%d" % (turn % 7), b"theirs")
    with words.locked(name):
        words.replace(name, np.arange(turn, turn + 700), store.erasures)
print("done", flush=True)
"""


def test_what_is_acknowledged_is_lost_to_nobodys_erasure(opened):
    """One process writes all the while, and evicts; the other erases others' states and takes over names."""
    names = StateNames(opened.stores[0].secret)
    store, words = opened.stores[0], opened.words[0]
    with started(opened.memory, KEEP) as other:
        turn = 0
        while other.poll() is None:
            turn += 1
            name = names.name(b"", b"kept/m", b"u%d" % (turn % 7), b"theirs")
            try:
                with words.locked(name):
                    words.forget(name)
                store.erase(subject=names.subject(b"theirs"))
            except NotReady:
                continue
        assert other.stdout.read() == "done\n"
        other.stdin.close()


DIE = """
import os, signal
from freshet_serving.processor.extensions.user_state import state_arena as arena
from freshet_serving.processor.extensions.user_state.state_store import _held
own = store.own
with words.locked(name):
    words.replace(name, np.arange(1 << 50, (1 << 50) + 700), store.erasures)
with _held(store.locks, memory, own, 1.0):
    segment = memory[(own.address - memory.ctypes.data) // 8 :]
    segment[arena.HEAD :][: own.entries * arena.ENTRY : arena.ENTRY] = 0
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_dead_writer_left_is_zeroed_by_the_next_erasure_of_anybody(opened):
    assert opened.replace(0, 7)
    own = opened.stores[0].own
    names = StateNames(opened.stores[0].secret)
    other = names.name(b"", b"kept/m", b"other", b"other")
    with opened.words[0].locked(other):
        assert opened.words[0].replace(other, np.arange(3, 90), opened.stores[0].erasures)
    with started(opened.memory, DIE) as writer:
        assert writer.wait() == -signal.SIGKILL
        writer.stdin.close()
    assert (opened.memory >= 1 << 50).any()
    opened.stores[0].erase(subject=names.subject(b"nobody"))
    segment = opened.memory[arena.HEADER :][len(opened.memory[arena.HEADER :]) // PROCESSES :]
    assert not segment[arena.HEAD + own.entries * arena.ENTRY + own.pages :].any()
    assert opened.words[0].read(other)[0] == 3


def test_segment_whose_holder_was_stopped_refuses_changes_and_fails_erasures(opened, monkeypatch):
    monkeypatch.setattr(state_store, "PATIENCE_S", 0.01)
    monkeypatch.setattr(state_store, "LONG_PATIENCE_S", 0.01)
    assert opened.replace(0, 7)
    locks = opened.stores[0].locks
    assert opened.stores[1].locks is locks
    assert locks.acquire(NAMES, 0.01)
    with pytest.raises(NotReady, match="another process writes to it"):
        opened.replace(1, 8)
    with pytest.raises(NotReady, match="another process writes to it"):
        opened.stores[1].erase()
    assert not opened.stores[0].keep(opened.name, 0, np.arange(3), [np.arange(9)], opened.stores[0].erasures)
    assert opened.words[1].read(opened.name)[0] == 7
    locks.release(NAMES)
    assert opened.replace(1, 8)
