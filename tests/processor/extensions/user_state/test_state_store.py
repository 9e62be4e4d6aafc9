"""The store of user states against a dict, with torn words, taken-over segments, evictions, erasures and time."""

import os
import random
import subprocess
import sys
import time

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from freshet_serving.processor.clock import FakeClock
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.extensions.user_state import state_arena as arena
from freshet_serving.processor.extensions.user_state.state_names import StateNames
from freshet_serving.processor.extensions.user_state.state_store import (
    LONG_STAMPS,
    TTL_S,
    StateName,
    StateStore,
    arena_memory,
)
from freshet_serving.processor.kernels.row_stamps import UNKNOWN_STAMP
from freshet_serving.processor.memory import share

PAGES = 192
PROCESSES = 2
NBYTES = 8 * (
    arena.HEADER + PROCESSES * (arena.HEAD + arena.WAYS * arena.ENTRY + PAGES * (arena.PAGE + 1 + arena.ENTRY))
)
OWNERS = (b"one", b"two")


def memory():
    return arena_memory(NBYTES, PROCESSES)


def opened(memory, process=0, clock=None, **options):
    return StateStore(memory, PROCESSES, process, (clock or FakeClock()).now_s, **options)


def words_of(tag, count):
    """Words that only this tag has, none of them 0."""
    return np.random.default_rng(tag).integers(1 << 40, 1 << 62, count)


def name_of(store, user, owner=b"one"):
    return StateNames(store.secret).name(owner, b"m/1", str(user).encode(), str(user).encode())


def found(store, name, stamps, count, weights=7):
    """The outcome of a look, and the words if it is a hit."""
    words = np.full(count, -1)
    outcome, _ = store.find(name, weights, lambda: np.array(stamps, np.int64), words)
    return outcome, words if outcome == arena.HIT else None


def keep(store, name, stamps, words, weights=7):
    return store.keep(name, weights, np.array(stamps, np.int64), [words], store.erasures)


def test_states_that_are_not_valid_are_read_within_bounds_alone():
    clock = FakeClock()
    store = opened(memory(), clock=clock)
    name, words = name_of(store, 1), words_of(1, 700)
    clock.advance(10)
    assert store.keep(name, 7, np.array([1, 2]), [words], store.erasures, flip=5, step=3)
    clock.advance(10)

    def read(weights, stamps, **changes):
        """The outcome, and AS_OF."""
        bounds = np.array([5, 5, 3, 10_000, -1])
        for name_of_bound, value in changes.items():
            bounds[getattr(arena, name_of_bound)] = value
        read_words = np.zeros(700, np.int64)
        outcome, _ = store.find(name, weights, lambda: np.array(stamps), read_words, bounds)
        assert outcome != arena.HIT or (read_words == words).all()
        return outcome, bounds[arena.AS_OF]

    assert read(7, [1, 2]) == (arena.HIT, -1)
    for weights, stamps in ((8, [1, 2]), (7, [1, 3]), (7, [UNKNOWN_STAMP, 2]), (8, [9, 9])):
        cause = arena.OTHER_ROWS if weights == 7 else arena.OTHER_WEIGHTS
        assert read(weights, stamps) == (arena.HIT, 3)
        for bound, value in {"FROM_FLIP": 6, "TO_FLIP": 4, "FROM_STEP": 4, "FROM_MS": 10_001}.items():
            assert read(weights, stamps, **{bound: value}) == (cause, -1), bound
    assert arena.EXACT.tolist() == [1, 0, 0, 0, -1]
    assert store.find(name, 8, lambda: np.array([1, 2]), np.zeros(700, np.int64))[0] == arena.OTHER_WEIGHTS
    clock.advance(TTL_S)
    assert read(8, [1, 2], FROM_MS=0) == (arena.EXPIRED, -1)


class Store(RuleBasedStateMachine):
    """Two processes of one arena, whose words may be torn at any time."""

    users, processes = st.integers(0, 9), st.integers(0, PROCESSES - 1)

    def __init__(self):
        super().__init__()
        self.clock, self.memory = FakeClock(), memory()
        self.stores = [opened(self.memory, n, self.clock) for n in range(PROCESSES)]
        self.kept, self.tags, self.torn, self.erased = {}, 0, False, []

    @rule(
        process=processes,
        user=users,
        owner=st.sampled_from(OWNERS),
        version=st.integers(0, 2),
        weights=st.integers(0, 1),
        pages=st.sampled_from([0, 1, 2, 9, 30]),
    )
    def keep(self, process, user, owner, version, weights, pages):
        self.tags += 1
        store, stamps = self.stores[process], [version, user, 5]
        words = words_of(self.tags, 40 + arena.PAGE * pages if pages else 3)
        before = store.figures
        if keep(store, name_of(store, user, owner), stamps, words, weights):
            self.kept[process, user, owner] = (self.clock.now_s(), weights, stamps, words)
        else:
            assert store.figures.refused > before.refused

    @rule(
        process=processes,
        user=users,
        owner=st.sampled_from(OWNERS),
        version=st.integers(0, 2),
        weights=st.integers(0, 1),
    )
    def find(self, process, user, owner, version, weights):
        store, stamps = self.stores[process], [version, user, 5]
        states = [self.kept.get((n, user, owner)) for n in range(PROCESSES)]
        valid = [s[3] for s in states if s and s[0] > self.clock.now_s() - TTL_S and s[1:3] == (weights, stamps)]
        for count in {len(words) for words in valid} or {3}:
            outcome, words = found(store, name_of(store, user, owner), stamps, count, weights)
            if outcome == arena.HIT:
                assert any(np.array_equal(words, expected) for expected in valid)
            elif not self.torn and not any(s.figures.evicted for s in self.stores):
                assert not [w for w in valid if len(w) == count]

    @rule(seconds=st.sampled_from([1.0, TTL_S / 2, TTL_S]))
    def wait(self, seconds):
        self.clock.advance(seconds)

    @rule(owner=st.sampled_from(OWNERS), user=users, whole=st.booleans())
    def erase(self, owner, user, whole):
        names = StateNames(self.stores[0].secret)
        self.stores[1].erase(names.owner(owner), arena.NOBODY if whole else names.subject(str(user).encode()))
        gone = [key for key in self.kept if key[2] == owner and (whole or key[1] == user)]
        self.erased = [self.kept.pop(key)[3] for key in gone]
        if not self.torn:
            everything = set(self.memory.tolist())
            assert all(everything.isdisjoint(words.tolist()) for words in self.erased)

    @rule(process=processes)
    def die_and_take_over(self, process):
        self.stores[process] = opened(self.memory, process, self.clock)

    @rule(place=st.floats(0, 1, exclude_max=True), word=st.sampled_from([0, 1, -1, 3, 1 << 50]))
    def tear(self, place, word):
        self.torn = True
        self.memory[arena.HEADER + int(place * (len(self.memory) - arena.HEADER))] = word

    @rule(process=processes, entry=st.integers(0, PAGES - 1), field=st.integers(0, arena.SUM), word=st.integers(-1, 3))
    def tear_entry(self, process, entry, field, word):
        self.torn = True
        segment = (len(self.memory) - arena.HEADER) // PROCESSES
        self.memory[arena.HEADER + process * segment + arena.HEAD + arena.ENTRY * entry + field] = word

    @invariant()
    def free_pages_and_held_pages_are_all(self):
        for store in self.stores:
            fresh = store.own.pages - int(store._books[arena.FRESH])
            assert int(store._books[arena.FREE]) + fresh + int(store._counts.sum()) == store.own.pages
            free = store._free[: store._books[arena.FREE]].tolist()
            assert len(set(free)) == len(free)


Store.TestCase.settings = settings(max_examples=30, stateful_step_count=40, deadline=None)
TestStore = Store.TestCase


def test_state_is_found_by_every_process_while_all_is_the_same():
    shared = memory()
    one, two = opened(shared), opened(shared, 1)
    name, words = name_of(one, 1), words_of(1, 2 * arena.PAGE)
    assert keep(one, name, range(600), words)
    for store in (one, two):
        np.testing.assert_array_equal(found(store, name, range(600), len(words))[1], words)
        assert found(store, name, range(600), len(words), weights=8)[0] == arena.OTHER_WEIGHTS
        assert found(store, name, [*range(599), 0], len(words))[0] == arena.OTHER_ROWS
        assert found(store, name, range(599), len(words))[0] == arena.TORN
        assert found(store, name_of(one, 2), range(600), len(words))[0] == arena.ABSENT


def test_row_whose_epoch_is_unknown_is_never_the_same():
    store = opened(memory())
    assert keep(store, name_of(store, 1), [UNKNOWN_STAMP], words_of(1, 3))
    assert found(store, name_of(store, 1), [UNKNOWN_STAMP], 3)[0] == arena.OTHER_ROWS


def test_write_that_ends_anywhere_leaves_the_old_state_or_none():
    """Any one word is missing or ahead, and any number of the first or last words is there."""
    shared = memory()
    store = opened(shared)
    name, other = name_of(store, 1), name_of(store, 2)
    olds, news, others = words_of(1, 700), words_of(2, 700), words_of(3, 700)
    assert keep(store, name, range(9), olds)
    assert keep(store, other, range(9), others)
    before = shared.copy()
    assert keep(store, name, range(9), news)
    after = shared.copy()
    places = np.flatnonzero(before != after)
    assert len(places) > 700
    for base, ahead in ((before, after), (after, before)):
        for n, place in enumerate(places.tolist()):
            for some in ([place], places[:n], places[n:]):
                torn = base.copy()
                torn[some] = ahead[some]
                # The one takes the torn segment over, the other reads it.
                _, words = found(opened(torn, n % 2), name, range(9), 700)
                assert words is None or np.array_equal(words, olds) or np.array_equal(words, news)
                assert n % 50 or np.array_equal(found(opened(torn, 1), other, range(9), 700)[1], others)


def test_pages_that_a_dead_writer_left_are_zeroed_when_its_segment_is_taken_over():
    shared = memory()
    words = words_of(1, 700)
    store = opened(shared)
    assert keep(store, name_of(store, 1), range(9), words)
    segment = shared[arena.HEADER :]
    entries = segment[arena.HEAD :][: arena.ENTRY * PAGES].reshape(PAGES, arena.ENTRY)
    entries[:, arena.SEQ] = 0
    assert set(words.tolist()) <= set(shared.tolist())
    opened(shared)
    assert set(words.tolist()).isdisjoint(shared.tolist())


def test_erasing_one_subject_leaves_the_owners_others_and_other_owners():
    shared = memory()
    store, eraser = opened(shared), opened(shared, 1)
    asked = [(user, owner) for user in (1, 2) for owner in OWNERS]
    for n, (user, owner) in enumerate(asked):
        assert keep(store, name_of(store, user, owner), [1], words_of(n, 9))
    names = StateNames(store.secret)
    assert eraser.erase(names.owner(b"one"), names.subject(b"2")) == 1
    assert [found(store, name_of(store, *who), [1], 9)[0] == arena.HIT for who in asked] == [True, True, False, True]
    assert eraser.erase(names.owner(b"one")) == 1
    assert [found(store, name_of(store, *who), [1], 9)[0] == arena.HIT for who in asked] == [False, True, False, True]


def test_state_is_not_used_beyond_its_time_and_swept_to_zeros():
    clock, shared = FakeClock(1000.0), memory()
    store, words = opened(shared, clock=clock), words_of(1, 700)
    assert keep(store, name_of(store, 1), [1], words)
    clock.advance(TTL_S)
    outcome, age_s = store.find(name_of(store, 1), 7, lambda: np.array([1]), np.empty(700, np.int64))
    assert (outcome, age_s) == (arena.HIT, TTL_S)
    clock.advance(0.01)
    assert found(store, name_of(store, 1), [1], 700)[0] == arena.EXPIRED
    store._sweep(PAGES)
    assert store.figures.expired == 1
    assert set(words.tolist()).isdisjoint(shared.tolist())
    # The cause outlives the state.
    assert found(store, name_of(store, 1), [1], 700)[0] == arena.EXPIRED
    assert found(store, name_of(store, 2), [1], 700)[0] == arena.ABSENT


def filled(store):
    """States of four pages in all pages of a segment or most of them; their users."""
    users = []
    for user in range(100, 400):
        if keep(store, name_of(store, user), [1], words_of(user, 200)):
            users.append(user)
        if store._books[arena.FREE] + PAGES - store._books[arena.FRESH] < 4:
            break
    return users


def test_full_store_admits_what_is_long_or_comes_again():
    store = opened(memory())
    filled(store)
    few, many = name_of(store, 1), name_of(store, 2)
    assert not keep(store, few, [1], words_of(1, 200))
    assert keep(store, few, [1], words_of(1, 200))
    # What was kept first may be what has to go for the second.
    assert found(store, few, [1], 200)[0] == arena.HIT
    assert keep(store, many, range(LONG_STAMPS), words_of(2, 200))
    assert found(store, many, range(LONG_STAMPS), 200)[0] == arena.HIT


def test_eviction_spares_what_was_read_and_its_cause_is_known():
    store = opened(memory())
    users = [user for user in filled(store) if found(store, name_of(store, user), [1], 200)[0] == arena.HIT]
    for entry in range(store.own.entries):
        store.memory[arena.HEADER + arena.HEAD + arena.ENTRY * entry + arena.TOUCHED] = 0
    read, others = users[::3], [user for n, user in enumerate(users) if n % 3]
    for user in read:
        found(store, name_of(store, user), [1], 200)
    assert keep(store, name_of(store, 1), range(LONG_STAMPS), words_of(1, 4 * arena.PAGE))
    lost = {user for user in users if found(store, name_of(store, user), [1], 200)[0] != arena.HIT}
    assert lost
    # The entries that the name may be in are few: one of them may have been read.
    assert len(lost - set(others)) <= 1
    assert {found(store, name_of(store, user), [1], 200)[0] for user in lost} == {arena.EVICTED}


def test_state_larger_than_half_of_a_segment_is_not_kept():
    store = opened(memory())
    assert not keep(store, name_of(store, 1), range(LONG_STAMPS), words_of(1, (PAGES // 2) * arena.PAGE))
    assert not keep(store, name_of(store, 1), [], words_of(1, 0))


def test_states_and_bytes_are_counted_by_scope():
    store = opened(memory())
    store.keep(name_of(store, 1), 7, np.arange(3), [words_of(1, 700)], store.erasures, scope=1)
    store.keep(name_of(store, 2), 7, np.arange(3), [words_of(1, 70)], store.erasures, scope=2)
    assert [store.usage(scope) for scope in range(4)] == [
        (0, 0),
        (1, 11 * 8 * arena.PAGE),
        (1, 2 * 8 * arena.PAGE),
        (0, 0),
    ]
    store.erase()
    store._sweep(PAGES)
    assert [store.usage(scope) for scope in range(4)] == [(0, 0)] * 4


def test_arena_that_holds_next_to_nothing_is_refused():
    with pytest.raises(BadInput, match=r"user_state_mb: expected at least 2 for 16 processes, got 1"):
        arena_memory(1 << 20, 16)


WRITERS = """
import os, signal, sys, time
import numpy as np
from freshet_serving.processor.memory import SharedMap
from freshet_serving.processor.extensions.user_state.state_store import StateStore, StateName
fd, nbytes = map(int, sys.argv[1:])
memory = np.frombuffer(SharedMap.of(fd, nbytes, True), np.int64)

def write(process):
    store = StateStore(memory, 3, process, time.monotonic)
    tag = 0
    while True:
        tag += 1
        user = tag % 7
        words = np.arange(1, 1500) * (tag * 1000 + user * 10 + process)
        store.keep(StateName(user, user, 1, user + 1), 0, np.array([user, tag % 3]), [words], store.erasures)

pids = {}
for line in sys.stdin:
    process = int(line)
    if process in pids:
        os.kill(pids[process], signal.SIGKILL)
        os.waitpid(pids[process], 0)
    pids[process] = os.fork()
    if not pids[process]:
        write(process)
    print("up", flush=True)
for pid in pids.values():
    os.kill(pid, signal.SIGKILL)
"""
"""Runs a writer of each process that it reads the number of, in place of the one before, which it kills."""


@pytest.mark.kills
@pytest.mark.long
def test_killed_writers_leave_whole_states_or_none():
    """Somebody looks all the while; whoever is killed is replaced, and takes its segment over."""
    shared = arena_memory(NBYTES // 2 * 3, 3)
    reader, dice, hits = StateStore(shared, 3, 2, time.monotonic), random.Random(1), 0
    fd = share([shared], "states")[0].mapping.fd
    command = [sys.executable, "-c", WRITERS, str(fd), str(shared.nbytes)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=[fd], text=True, bufsize=1
    ) as writers:

        def replace(process):
            writers.stdin.write(f"{process}\n")
            assert writers.stdout.readline() == "up\n"

        for process in (0, 1):
            replace(process)
        for _ in range(int(os.environ.get("FRESHET_KILL_ROUNDS", "200"))):
            for _ in range(dice.randrange(4, 400)):
                user, turn = dice.randrange(7), dice.randrange(3)
                outcome, words = found(reader, StateName(user, user, 1, user + 1), [user, turn], 1499, 0)
                if outcome == arena.HIT:
                    hits += 1
                    assert (words == np.arange(1, 1500) * words[0]).all()
                    tag, rest = divmod(int(words[0]), 1000)
                    assert (tag % 7, tag % 3, rest // 10) == (user, turn, user)
            if dice.randrange(4) == 0:
                reader.erase(1, dice.randrange(7) + 1)
            replace(dice.randrange(2))
        writers.stdin.close()
    assert hits
    reader.erase()
    words = (len(shared) - arena.HEADER) // 3
    entries, pages = arena.segment_shape(words)
    for segment in shared[arena.HEADER :][: 3 * words].reshape(3, words):
        assert not segment[arena.HEAD + arena.ENTRY * entries + pages :].any()
