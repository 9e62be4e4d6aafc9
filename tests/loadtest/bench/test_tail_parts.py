import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.bench.stamped_server import NAP, REQUEST, STAMP, TICK
from loadtest.bench.tail_parts import PARTS, RequestParts, lock_late_ms, loop_late_ms, request_parts, thread_sums
from loadtest.load.openloop import REPLY


def request(number=0, read=(100, 40, 5), submitted=110, began=130, ended=180, answered=190, written=(200, 120, 15)):
    return (REQUEST, 7, 5000, number, *read, submitted, began, ended, answered, *written)


def tick(due, at, ran=0, waited=0):
    return (TICK, 7, 0, 0, due, 0, 0, 0, 0, 0, 0, at, ran, waited)


def of(parts):
    return dict(zip(PARTS, parts.parts_ns[0].tolist()))


def test_parts_of_a_request_that_waited_for_all():
    replies = np.array([(5000, 0, 50, 210, 200)], REPLY)
    stamps = np.array([tick(45, 48, ran=20, waited=2), request()], STAMP)
    parts = request_parts(replies, stamps)
    # 50 ns unread: 20 run for others, 3 without a core, 27 neither. 100 inside: 80 run, 10 without a core, 10 neither.
    assert of(parts) == pytest.approx(
        {
            "waits for a core": 13,
            "waits for the loop": 20,
            "waits for a lock, a page or the network": 37,
            "is read": 8,
            "waits in the batch queue": 16,
            "is computed": 40,
            "is answered": 16,
            "reply on its way": 10,
        }
    )
    assert parts.latency_ns.tolist() == [160]
    assert sum(parts.shares().values()) == pytest.approx(1)


def test_reply_without_stamps_is_left_out():
    replies = np.array([(5000, 0, 50, 210, 200), (5000, 1, 60, 220, 200), (6000, 0, 60, 220, 200)], REPLY)
    assert len(request_parts(replies, np.array([request()], STAMP)).latency_ns) == 1
    assert len(request_parts(replies, np.zeros(0, STAMP)).latency_ns) == 0
    assert RequestParts(np.zeros(0, np.int64), np.zeros((0, len(PARTS)))).mean_ms() == 0


INSTANTS = st.lists(st.integers(1, 10_000), min_size=8, max_size=8).map(sorted)
COUNTS = st.lists(st.integers(0, 20_000), min_size=2, max_size=2).map(sorted)


@given(INSTANTS, COUNTS, COUNTS)
def test_parts_add_up_to_the_latency_whatever_was_counted(instants, ran, waited):
    sent, read, submitted, began, ended, answered, written, came = instants
    stamp = request(0, (read, ran[0], waited[0]), submitted, began, ended, answered, (written, ran[1], waited[1]))
    parts = request_parts(np.array([(5000, 0, sent, came, 200)], REPLY), np.array([stamp], STAMP))
    assert (parts.parts_ns >= 0).all()
    assert parts.parts_ns.sum() == pytest.approx(came - sent, abs=2)


def test_waits_for_a_core_are_left_out():
    parts = np.arange(2.0 * len(PARTS)).reshape(2, len(PARTS))
    own = RequestParts(parts.sum(axis=1).astype(np.int64), parts).with_a_core()
    assert own.parts_ns[:, 0].tolist() == [0, 0]
    assert own.latency_ns.tolist() == own.parts_ns.sum(axis=1).tolist()


def test_tail_has_the_slowest_hundredth():
    parts = RequestParts(np.arange(1, 1001), np.ones((1000, len(PARTS))))
    assert parts.tail().latency_ns.min() == 990


def test_loop_is_late_by_its_ticks_with_and_without_a_core():
    stamps = np.array([tick(0, 500_000, waited=1), tick(1_000_000, 3_000_000, waited=1_500_001), request()], STAMP)
    assert loop_late_ms(stamps).tolist() == [[0.5, 0.5], [2.0, 0.5]]


def test_nap_is_late_by_the_lock_alone():
    nap = (NAP, 7, 0, 0, 0, 0, 1_000_000, 5_000_000, 0, 0, 0, 9_000_000, 0, 2_000_000)
    assert lock_late_ms(np.array([nap, request()], STAMP)).tolist() == [3.0]


def test_threads_are_summed_by_role(tmp_path):
    for pid, thread in ((10, 10), (10, 11), (20, 20)):
        task = tmp_path / str(pid) / "task" / str(thread)
        task.mkdir(parents=True)
        (task / "schedstat").write_text("2000000000 500000000 9\n")
        (task / "status").write_text("Name:\tx\nnonvoluntary_ctxt_switches:\t4\n")
    sums = thread_sums([10, 20, 30], {10, 20}, tmp_path)
    assert (sums["loops"].ran_s, sums["loops"].waited_s, sums["loops"].preempted) == (4, 1, 8)
    assert sums["others"].ran_s == 2
    spent = sums["loops"] - sums["others"]
    assert (spent.ran_s, spent.preempted) == (2, 4)
    assert (sums["others"] - sums["loops"]).ran_s == 0
