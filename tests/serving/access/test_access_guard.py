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
def test_request_without_a_valid_key_is_refused(sent):
    _, guard, _ = guarded()
    with pytest.raises(Unauthenticated, match="expected a valid bearer token") as refused:
        guard.acquire("predict", sent, "10.0.0.1")
    assert (refused.value.http_status, refused.value.grpc_code) == (401, "UNAUTHENTICATED")


def test_key_allows_its_scopes_and_probes_need_none():
    _, guard, key = guarded()
    guard.acquire("predict", key, "10.0.0.1")
    guard.acquire("predict", key.replace(b"Bearer ", b"bearer   "), "10.0.0.1")
    guard.acquire("", None, "10.0.0.1")
    with pytest.raises(Forbidden, match="expected a key with the scope metrics, got 'web' without it") as refused:
        guard.acquire("metrics", key, "10.0.0.1")
    assert (refused.value.http_status, refused.value.grpc_code) == (403, "PERMISSION_DENIED")


def test_key_expires_at_its_time():
    clock, guard, key = guarded(expires_s=1_700_000_060.0)
    clock.advance(59.0)
    guard.acquire("predict", key, "")
    clock.advance(1.0)
    with pytest.raises(Unauthenticated):
        guard.acquire("predict", key, "")


def test_revoked_key_is_refused_while_its_running_requests_finish():
    _, guard, key = guarded(RateLimits(concurrency=1))
    admission = guard.acquire("predict", key, "")
    guard.keys = ApiKeys()
    with pytest.raises(Unauthenticated):
        guard.acquire("predict", key, "")
    admission.end()


def test_rate_limit_error_states_the_time_to_wait():
    clock, guard, key = guarded(RateLimits(rate=2.0))
    for _ in range(2):
        guard.acquire("predict", key, "")
    with pytest.raises(Overloaded, match="key 'web': expected at most 2 requests a second") as refused:
        guard.acquire("predict", key, "")
    clock.advance(refused.value.retry_after_s)
    guard.acquire("predict", key, "")


def test_guessing_keys_slows_down_only_that_address():
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


def test_missing_scope_does_not_use_up_the_rate_limit():
    _, guard, key = guarded(RateLimits(rate=1.0))
    for _ in range(3):
        with pytest.raises(Forbidden):
            guard.acquire("metrics", key, "")
    guard.acquire("predict", key, "")


@pytest.mark.parametrize("limits", [{"limits": RateLimits(concurrency=2)}, {"address": RateLimits(concurrency=2)}])
def test_concurrency_limit_is_enforced_and_released_once(limits):
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


def test_refusal_by_key_releases_the_slot_of_the_address():
    _, guard, key = guarded(RateLimits(concurrency=1), RateLimits(concurrency=2))
    held = guard.acquire("predict", key, "10.0.0.1")
    for _ in range(3):
        with pytest.raises(Overloaded, match="key 'web'"):
            guard.acquire("predict", key, "10.0.0.1")
    held.end()
    guard.acquire("predict", key, "10.0.0.1").end()
