"""The guard: who is let in, what is said to the others, and that everything that was entered is left."""

import pytest

from freshet_serving.processor.clock import FakeClock
from freshet_serving.processor.errors import Overloaded
from freshet_serving.serving.access.access_guard import AccessGuard, Forbidden, Unauthenticated
from freshet_serving.serving.access.key_file import ApiKeys, RateLimits
from freshet_serving.serving.access.rate_limiter import RateLimiter, rate_limiter_memory

ANY = RateLimits()


def guarded(limits=ANY, address=ANY, expires_s=float("inf"), scopes=("predict",)):
    clock = FakeClock(1000.0)
    keys, secret = ApiKeys((), address).added("web", scopes, expires_s, limits)
    guard = AccessGuard(keys, RateLimiter(rate_limiter_memory(1), 0, clock), clock)
    return clock, guard, b"Bearer " + secret.encode()


@pytest.mark.parametrize("sent", [None, b"", b"Bearer", b"Bearer x", b"Basic abc", b"bearer  "])
def test_without_a_valid_key_nothing_is_let_in(sent):
    _, guard, _ = guarded()
    with pytest.raises(Unauthenticated, match="expected a valid bearer token"):
        guard.acquire("predict", sent, "10.0.0.1")


def test_a_key_opens_what_its_scopes_say_and_probes_need_none():
    _, guard, key = guarded()
    guard.acquire("predict", key, "10.0.0.1")
    guard.acquire("predict", key.replace(b"Bearer ", b"bearer   "), "10.0.0.1")
    guard.acquire("", None, "10.0.0.1")
    with pytest.raises(Forbidden, match="expected a key with the scope metrics, got 'web' without it"):
        guard.acquire("metrics", key, "10.0.0.1")


def test_a_key_ends_at_its_time():
    clock, guard, key = guarded(expires_s=1_700_000_060.0)
    clock.advance(59.0)
    guard.acquire("predict", key, "")
    clock.advance(1.0)
    with pytest.raises(Unauthenticated):
        guard.acquire("predict", key, "")


def test_a_key_that_is_taken_away_is_refused_at_once_and_what_it_began_goes_on():
    _, guard, key = guarded(RateLimits(concurrency=1))
    admission = guard.acquire("predict", key, "")
    guard.keys = ApiKeys()
    with pytest.raises(Unauthenticated):
        guard.acquire("predict", key, "")
    admission.end()


def test_beyond_the_rate_of_a_key_the_time_to_wait_is_told():
    clock, guard, key = guarded(RateLimits(rate=2.0))
    for _ in range(2):
        guard.acquire("predict", key, "")
    with pytest.raises(Overloaded, match="key 'web': expected at most 2 requests a second") as refused:
        guard.acquire("predict", key, "")
    clock.advance(refused.value.retry_after_s)
    guard.acquire("predict", key, "")


def test_whoever_guesses_keys_is_slowed_down_by_address_and_nobody_else_is():
    _, guard, key = guarded(address=RateLimits(rate=3.0))
    for _ in range(3):
        with pytest.raises(Unauthenticated):
            guard.acquire("predict", b"Bearer guess", "10.0.0.9")
    with pytest.raises(Overloaded, match="address: expected at most 3 requests a second"):
        guard.acquire("predict", key, "10.0.0.9")
    guard.acquire("predict", key, "10.0.0.1")
    # Of a socket without addresses.
    for _ in range(5):
        guard.acquire("predict", key, "")


def test_what_is_refused_for_want_of_a_scope_takes_nothing_of_the_keys_rate():
    _, guard, key = guarded(RateLimits(rate=1.0))
    for _ in range(3):
        with pytest.raises(Forbidden):
            guard.acquire("metrics", key, "")
    guard.acquire("predict", key, "")


@pytest.mark.parametrize("limits", [{"limits": RateLimits(concurrency=2)}, {"address": RateLimits(concurrency=2)}])
def test_as_many_are_in_flight_as_may_be_and_each_leaves_once(limits):
    _, guard, key = guarded(**limits)
    one, other = guard.acquire("predict", key, "10.0.0.1"), guard.acquire("predict", key, "10.0.0.1")
    with pytest.raises(Overloaded, match="expected at most 2 requests in flight"):
        guard.acquire("predict", key, "10.0.0.1")
    one.end()
    one.end()
    third = guard.acquire("predict", key, "10.0.0.1")
    with pytest.raises(Overloaded):
        guard.acquire("predict", key, "10.0.0.1")
    other.end()
    third.end()


def test_who_is_refused_for_the_key_leaves_the_place_of_the_address():
    _, guard, key = guarded(RateLimits(concurrency=1), RateLimits(concurrency=2))
    held = guard.acquire("predict", key, "10.0.0.1")
    for _ in range(3):
        with pytest.raises(Overloaded, match="key 'web'"):
            guard.acquire("predict", key, "10.0.0.1")
    held.end()
    guard.acquire("predict", key, "10.0.0.1").end()
