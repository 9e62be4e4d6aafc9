"""Cores that a server lends, and a trainer that follows."""

import json
import os
import subprocess
import sys
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from freshet_serving.processor.clock import FakeClock
from freshet_serving.processor.cores import available
from freshet_serving.processor.extensions.core_planner import lent_cores
from freshet_serving.processor.extensions.core_planner.lent_cores import (
    NICE,
    STALE_S,
    Borrower,
    Lender,
    Loan,
    loan_file,
    read_loan,
)

FIELDS = ["server", "written_s", "lent", "kept"]
MISSING = 7999
two_cores = pytest.mark.skipif(len(available()) < 2, reason="needs two cores")


@settings(max_examples=40)
@given(server=st.text(), written_s=st.floats(0, 1e9), lent=st.frozensets(st.integers(0, 8000)), kept=st.integers(0, 99))
def test_loan_is_read_as_it_was_written(server, written_s, lent, kept):
    loan = Loan(server, written_s, lent, kept)
    assert Loan.parse(loan.dump()) == loan


@settings(max_examples=40)
@given(
    st.binary(max_size=64)
    | st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(FIELDS), inner),
    ).map(lambda value: json.dumps(value).encode())
)
def test_bytes_that_are_no_loan_say_nothing(text):
    loan = Loan.parse(text)
    assert loan is None or Loan.parse(loan.dump()).lent == loan.lent


@pytest.mark.parametrize(
    "changed",
    [{"lent": [True]}, {"lent": ["1"]}, {"lent": [1.5]}, {"lent": list(range(9000))}, {"kept": None}, {"server": 3}],
)
def test_loan_with_odd_values_is_none(changed):
    fields = {"server": "a", "written_s": 1.0, "lent": [1], "kept": 0}
    assert Loan.parse(json.dumps(fields | changed).encode()) is None


def test_loan_is_stale_after_a_while_and_gone_with_its_server(tmp_path):
    clock = FakeClock(100.0)
    lender, path = Lender(tmp_path, clock.now_s), loan_file(tmp_path)
    lender.write(frozenset({1}), 0)
    assert read_loan(path, clock.now_s()).lent == {1}
    clock.advance(STALE_S)
    assert read_loan(path, clock.now_s()) is None
    lender.write(frozenset({1}), 0)
    lender.close()
    assert not path.exists()


def test_second_server_lends_nothing_until_the_first_has_gone(tmp_path):
    clock = FakeClock(100.0)
    first, second = Lender(tmp_path, clock.now_s), Lender(tmp_path, clock.now_s)
    first.write(frozenset({1}), 0)
    second.write(frozenset({2}), 0)
    second.close()
    assert read_loan(loan_file(tmp_path), clock.now_s()).lent == {1}
    clock.advance(STALE_S)
    second.write(frozenset({2}), 0)
    assert read_loan(loan_file(tmp_path), clock.now_s()).lent == {2}


def test_folder_that_cannot_be_written_lends_nothing(tmp_path, caplog):
    (tmp_path / ".cores").write_text("a file")
    lender = Lender(tmp_path)
    lender.write(frozenset({1}), 0)
    lender.write(frozenset({1}), 0)
    lender.close()
    assert caplog.text.count("no cores are lent") == 1


@pytest.mark.parametrize("kind", ["pipe", "folder", "large"])
def test_odd_file_in_place_of_a_loan_says_nothing(tmp_path, kind):
    path = tmp_path / "loan"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.write_bytes(b" " * (1 << 17))
    assert read_loan(path, 0.0) is None


@pytest.fixture
def moved(monkeypatch):
    """Where a borrower has moved, instead of the threads of the tests; niceness too."""
    moves = []
    monkeypatch.setattr(lent_cores.os, "sched_setaffinity", lambda thread, cores: moves.append(frozenset(cores)))
    monkeypatch.setattr(lent_cores.os, "setpriority", lambda kind, thread, nice: moves.append(nice))
    return moves


@two_cores
def test_trainer_goes_where_the_server_says_and_home_when_it_has_gone(tmp_path, moved):
    clock, home = FakeClock(100.0), available()
    low, high = min(home), max(home)
    learning = False
    lender, borrower = Lender(tmp_path, clock.now_s), Borrower(str(tmp_path), lambda: learning, clock.now_s)
    borrower.look()
    assert moved == []
    lender.write(frozenset({high}), low)
    borrower.look()
    assert min(moved) >= NICE, "it goes nowhere before it has learned: libraries count its cores"
    learning = True
    borrower.look()
    assert moved[-1] == {high}
    lender.write(frozenset(), low)
    borrower.look()
    assert moved[-1] == {low}, "with none lent it keeps one"
    moved.clear()
    lender.write(frozenset({MISSING}), MISSING)
    borrower.look()
    assert moved[-1] == home, "its own cores, where it may run on none of those"
    assert moved[0] == home, "its priority is lowered once"
    lender.write(frozenset({high}), low)
    borrower.look()
    clock.advance(STALE_S)
    borrower.look()
    assert moved[-1] == home


def test_object_store_lends_nothing(moved):
    with Borrower("s3://models/prod", lambda: True) as borrower:
        borrower.look()
    assert moved == []


FOLLOWER = """
import os, subprocess, sys, threading
from freshet_serving.processor.extensions.core_planner import lent_cores
from freshet_serving.processor.extensions.core_planner.lent_cores import Borrower, own_threads
lent_cores.LOOK_S = 60.0  # Its own thread would move what look() here has just moved.
threading.Thread(target=threading.Event().wait, daemon=True).start()
child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
def cores():
    threads = list(own_threads())
    assert {os.getpid(), child.pid} < set(threads)
    return sorted({tuple(sorted(os.sched_getaffinity(thread))) for thread in threads})
with Borrower(sys.argv[1], lambda: True) as borrower:
    for line in sys.stdin:
        borrower.look()
        print(cores(), os.getpriority(os.PRIO_PROCESS, 0), flush=True)
print(cores())
child.kill()
"""


@two_cores
def test_all_threads_and_children_of_a_trainer_move(tmp_path):
    home, lender = sorted(available()), Lender(tmp_path)
    last = home[-1]
    lender.write(frozenset({last}), home[0])
    command = [sys.executable, "-c", FOLLOWER, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as trainer:

        def look():
            trainer.stdin.write("look\n")
            trainer.stdin.flush()
            return trainer.stdout.readline().strip()

        nice = max(NICE, os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
        assert look() == f"[({last},)] {nice}"
        lender.close()
        assert look() == f"[{tuple(home)}] {nice}"
        lender.write(frozenset({last}), home[0])
        assert look() == f"[({last},)] {nice}"
        trainer.stdin.close()
        assert trainer.stdout.read().strip() == f"[{tuple(home)}]"
