"""The control words: whoever has pinned a flip reads what that flip stands for, however the two sides interleave."""

import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from freshet_serving.processor.generation import Generation
from freshet_serving.processor.kernels.pointers import exchange
from freshet_serving.processor.versions import control as control_module
from freshet_serving.processor.versions.control import (
    ENTRIES,
    IDLE,
    PINS,
    READERS,
    WORDS,
    ControlEntry,
    ControlWords,
    Pins,
)

ROOT = Path(__file__).parents[3]
FLIPS = 2_000


def entry_of(publish_seq):
    """What tests publish under a flip: every number tells the flip, and no two flips agree in any."""
    return ControlEntry(
        3 * publish_seq + 1, 5 * publish_seq + 2, 7 * publish_seq + 3, 11 * publish_seq + 4, -13 * publish_seq - 5
    )


def publish(control):
    publish_seq = control.publish_seq + 1
    control.publish(publish_seq, entry_of(publish_seq))


def test_control_words_start_at_flip_0_without_pins():
    control = ControlWords.reserve(3)
    assert len(control.words) == PINS + 3 * WORDS
    assert (control.publish_seq, control.entry(0)) == (0, (0, 0, 0, 0, 0))
    assert (control.words[PINS:] == IDLE).all()
    assert control.oldest_pin() == IDLE
    assert control.words.ctypes.data % 64 == PINS * 8 % 64 == 0, "what readers write shares no line with what they read"


def test_each_load_has_a_number_that_stays():
    some = [ControlWords.reserve(1) for _ in range(3)]
    loads = {control.load for control in some}
    assert len(loads) == 3
    some[0].publish(1, ControlEntry(1, 2, 3))
    assert ControlWords(some[0].words).load == some[0].load in loads


def test_entry_contains_the_digest_of_its_generation():
    control = ControlWords.reserve(1)
    for digest in ("ff" * 16, "00" * 16, "0123456789abcdef" * 2, "80" + "00" * 15):
        control.publish(control.publish_seq + 1, ControlEntry.of(1, 2, Generation(3, 4, digest)))
        assert control.entry(control.publish_seq).digest == digest
        assert control.entry(control.publish_seq)[:3] == (1, 4, 2)
    assert ControlEntry.of(0, 0, Generation(1, 0)).digest == "00" * 16


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 2)), min_size=1, max_size=40))
def test_flips_since_the_newest_turn_continue_each_other(states):
    """states: step and content of each flip."""
    control, served = ControlWords.reserve(1), [(0, 0)]
    for step, content in states:
        control.publish(control.publish_seq + 1, ControlEntry(7, step, 7, content))
        served.append((step, content))
        since = served[control.turn :]
        assert all(a[0] < b[0] or a == b for a, b in zip(since, since[1:]))
        if control.turn:
            before, at = served[control.turn - 1 : control.turn + 1]
            assert at[0] < before[0] or (at[0] == before[0] and at != before), "a turn is a rollback or another content"
        assert ControlWords(control.words).turn == control.turn


def test_each_process_pins_in_own_words_and_is_cleared_separately():
    control = ControlWords.reserve(3)
    for process in range(3):
        for reader in (0, READERS - 1, Pins.ASKING):
            Pins(control, process).pin(reader)
    at = np.flatnonzero(control.words[PINS:] != IDLE)
    assert at.tolist() == [p * WORDS + r for p in range(3) for r in (0, READERS - 1, READERS)]
    control.clear(1)
    assert np.flatnonzero(control.words[PINS:] != IDLE).tolist() == [a for a in at.tolist() if a // WORDS != 1]


def test_flip_has_room_until_it_would_overwrite_a_pinned_entry():
    control = ControlWords.reserve(1)
    pins = Pins(control, 0)
    pins.pin(0)
    for _ in range(ENTRIES - 1):
        assert control.has_room(1)
        publish(control)
    assert not control.has_room(1)
    assert control.entry(0) == (0, 0, 0, 0, 0)
    pins.unpin(0)
    assert control.has_room(ENTRIES)


class Machine(RuleBasedStateMachine):
    """A writer, readers of two processes that pin, read and let go, and processes that die with their pins."""

    @initialize()
    def start(self):
        self.control = ControlWords.reserve(2)
        self.pins = [Pins(self.control, process) for process in range(2)]
        self.held = {}
        self.published = 0

    @rule(count=st.integers(1, ENTRIES))
    def publishes(self, count):
        for _ in range(count):
            if not self.control.has_room(1):
                oldest = min(self.held.values())
                assert self.published - oldest == ENTRIES - 1, "a change is refused only for an entry that is read"
                return
            publish(self.control)
            self.published += 1

    @rule(process=st.integers(0, 1), reader=st.sampled_from([0, 1, READERS - 1, Pins.ASKING]))
    def pins_or_lets_go(self, process, reader):
        if self.held.pop((process, reader), None) is not None:
            self.pins[process].unpin(reader)
        else:
            self.held[process, reader] = self.pins[process].pin(reader)
            assert self.held[process, reader] == self.published

    @precondition(lambda self: self.held)
    @rule(process=st.integers(0, 1))
    def dies_and_is_replaced(self, process):
        self.held = {who: publish_seq for who, publish_seq in self.held.items() if who[0] != process}
        self.control.clear(process)
        self.pins[process] = Pins(ControlWords(self.control.words), process)

    @invariant()
    def every_pin_reads_its_own_entry(self):
        assert self.control.publish_seq == self.published
        for publish_seq in self.held.values():
            assert self.control.entry(publish_seq) == (entry_of(publish_seq) if publish_seq else (0, 0, 0, 0, 0))
        assert self.control.oldest_pin() == min(self.held.values(), default=IDLE)


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)


@settings(max_examples=50, deadline=None)
@given(
    before=st.lists(st.integers(0, 2 * ENTRIES), min_size=1, max_size=4),
    after=st.lists(st.integers(0, 2 * ENTRIES), min_size=1, max_size=4),
    behind=st.integers(0, ENTRIES),
)
def test_pinned_entry_survives_flips_between_any_steps_of_the_pin(before, after, behind):
    """before, after: flips that the writer makes before the reader's announcement is visible and just after, at each of
    its tries. behind: flips made before."""
    control, pins = ControlWords.reserve(1), None
    for _ in range(behind):
        publish(control)
    pins = Pins(control, 0)
    publishes = {"before": iter(before), "after": iter(after)}

    def write(when):
        # The writer asks for room as it always does: an announcement that is not confirmed yet may hold it up.
        for _ in range(next(publishes[when], 0)):
            if control.has_room(1):
                publish(control)

    def interleaved(address, value):
        if address == control.words.ctypes.data:
            return exchange(address, value)
        write("before")
        was = exchange(address, value)
        write("after")
        return was

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(control_module, "exchange", interleaved)
        publish_seq = pins.pin(0)
    assert publish_seq == control.publish_seq, "nothing was published after the last look"
    while control.has_room(1):
        publish(control)
        assert control.entry(publish_seq) == (entry_of(publish_seq) if publish_seq else (0, 0, 0, 0, 0))
    assert control.publish_seq == publish_seq + ENTRIES - 1


def read(control, process, reader, flips):
    """Pins and reads until there were so many flips; returns how often, and the first entry that was not its flip's."""
    pins, reads = Pins(control, process), 0
    while reads == 0 or control.publish_seq < flips:
        for _ in range(100):
            publish_seq = pins.pin(reader)
            first, second = control.entry(publish_seq), control.entry(publish_seq)
            if first != second or first != (entry_of(publish_seq) if publish_seq else (0, 0, 0, 0, 0)):
                return reads, f"flip {publish_seq}: {first}, {second}"
            pins.unpin(reader)
            reads += 1
    return reads, ""


CHILD = """
import mmap, sys
import numpy as np
from freshet_serving.processor.versions.control import ControlWords
from freshet_serving.processor.memory import attach
from tests.processor.versions.test_control import read
fd, nbytes, flips = map(int, sys.argv[1:])
words = attach(np.frombuffer(mmap.mmap(fd, nbytes), np.uint8), 0, "<i8", [nbytes // 8])
print("up", flush=True)
print(*read(ControlWords(words), 1, 0, flips), flush=True)
"""


def test_concurrent_readers_see_whole_entries_during_flips():
    control = ControlWords.reserve(2)
    mapping = control.words.base
    while not hasattr(mapping, "fd"):
        mapping = mapping.base if isinstance(mapping, np.ndarray) else mapping.obj
    nbytes = control.words.nbytes
    command = [sys.executable, "-c", CHILD, str(mapping.fd), str(nbytes), str(FLIPS)]
    child = subprocess.Popen(command, cwd=ROOT, pass_fds=(mapping.fd,), stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout.readline() == "up\n"
        found = []
        threads = [threading.Thread(target=lambda n=n: found.append(read(control, 0, n, FLIPS))) for n in range(2)]
        for thread in threads:
            thread.start()
        while control.publish_seq < FLIPS:
            for _ in range(100):
                if control.has_room(1):
                    publish(control)
        for thread in threads:
            thread.join()
        reads, _, problem = child.communicate()[0].strip().partition(" ")
        found.append((int(reads), problem))
    finally:
        child.kill()
        child.wait()
    assert not [problem for _, problem in found if problem]
    assert all(reads >= 100 for reads, _ in found), found
    assert control.oldest_pin() == IDLE
