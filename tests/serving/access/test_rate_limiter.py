"""Rates and concurrency: what a token bucket lets in whatever the arrivals, and that processes count together."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from freshet_serving.processor.clock import FakeClock
from freshet_serving.serving.access.rate_limiter import SLOTS, RateLimiter, clear_process, rate_limiter_memory, slots_of

WHO = slots_of(b"somebody")


def rate_limiter(places=1):
    clock, memory = FakeClock(1000.0), rate_limiter_memory(places)
    return clock, [RateLimiter(memory, place, clock) for place in range(places)]


@given(st.floats(0.01, 1000.0), st.lists(st.tuples(st.floats(0.0, 5.0), st.integers(1, 20)), max_size=60))
def test_any_window_admits_at_most_the_rate_and_one_burst(rate, arrivals):
    clock, (one,) = rate_limiter()
    let_in = []
    for pause_s, count in arrivals:
        clock.advance(pause_s)
        let_in += [clock.now_s() for _ in range(count) if not one.take_token(WHO, rate)]
    burst = max(1.0, rate)
    for first, begun_s in enumerate(let_in):
        for last in range(first, len(let_in)):
            assert last - first + 1 <= burst + rate * (let_in[last] - begun_s) + 1e-3


@given(st.floats(0.01, 1000.0), st.integers(1, 2000))
def test_request_is_admitted_exactly_after_the_announced_wait(rate, tries):
    clock, (one,) = rate_limiter()
    waits = [one.take_token(WHO, rate) for _ in range(tries)]
    wait_s = next((wait_s for wait_s in waits if wait_s), 0.0)
    if not wait_s:
        return
    early_s = min(1e-4, wait_s)
    clock.advance(wait_s - early_s)
    assert early_s < 1e-5 or one.take_token(WHO, rate) > 0.0
    clock.advance(early_s)
    assert one.take_token(WHO, rate) == 0.0


def test_full_bucket_holds_one_second_after_any_idle_time():
    clock, (one,) = rate_limiter()
    for rest_s in (0.0, 3600.0):
        clock.advance(rest_s)
        assert [bool(one.take_token(WHO, 5.0)) for _ in range(6)] == [False] * 5 + [True]


def test_rate_below_one_per_second_admits_one_at_a_time():
    _, (one,) = rate_limiter()
    assert one.take_token(WHO, 0.1) == 0.0
    assert round(one.take_token(WHO, 0.1), 6) == 10.0


def test_two_processes_share_one_rate():
    _, (one, other) = rate_limiter(2)
    assert [bool(each.take_token(WHO, 4.0)) for each in (one, other, one, other, one, other)] == [False] * 4 + [
        True
    ] * 2


def test_two_processes_share_one_concurrency_limit_without_dead_holders():
    memory = rate_limiter_memory(2)
    one, other = (RateLimiter(memory, place, FakeClock()) for place in range(2))
    assert [one.try_acquire(WHO, 2), other.try_acquire(WHO, 2), one.try_acquire(WHO, 2), other.try_acquire(WHO, 2)] == [
        True,
        True,
        False,
        False,
    ]
    one.release(WHO)
    assert other.try_acquire(WHO, 2)
    clear_process(memory, 1)
    assert [one.try_acquire(WHO, 2), one.try_acquire(WHO, 2), one.try_acquire(WHO, 2)] == [True, True, False]


def test_sharing_one_slot_with_a_busy_client_has_no_effect():
    _, (one,) = rate_limiter()
    busy, neighbour = (7, 8), (7, 9)
    while not one.take_token(busy, 3.0):
        pass
    assert one.try_acquire(busy, 1)
    assert one.take_token(neighbour, 3.0) == 0.0
    assert one.try_acquire(neighbour, 1)


def test_address_slots_are_equal_across_processes_and_change_per_start():
    _, (one, other) = rate_limiter(2)
    assert one.address_slots("10.0.0.1") == other.address_slots("10.0.0.1") != one.address_slots("10.0.0.2")
    _, (anew,) = rate_limiter()
    assert anew.address_slots("10.0.0.1") != one.address_slots("10.0.0.1")
    assert all(0 <= slot < SLOTS for slot in one.address_slots("10.0.0.1"))


def test_host_counts_as_one_for_all_addresses_of_its_network():
    _, (one,) = rate_limiter()
    assert one.address_slots("2001:db8:1:2:3::4") == one.address_slots("2001:db8:1:2::9")
    assert one.address_slots("2001:db8:1:3::4") != one.address_slots("2001:db8:1:2::9")
    assert one.address_slots("::ffff:10.0.0.1") == one.address_slots("10.0.0.1")
    assert one.address_slots("fe80::1%eth0") == one.address_slots("fe80::2%eth1")


def test_memory_starts_empty_and_scales_with_its_places():
    small, large = rate_limiter_memory(1), rate_limiter_memory(3)
    assert large.nbytes - small.nbytes == 2 * 2 * SLOTS * 4
    assert not np.any(small[64:])


def test_ended_requests_leave_no_count_in_either_slot():
    _, (one,) = rate_limiter()
    for _ in range(5):
        assert one.try_acquire((1, 2), 1)
        one.release((1, 2))
    # Another that shares the first slot fills it; the second must be free of those that have ended.
    assert one.try_acquire((1, 3), 1)
    assert one.try_acquire((1, 2), 1)
    assert not one.try_acquire((1, 2), 1)
