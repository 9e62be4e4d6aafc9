from freshet_serving.processor.clock import FakeClock
from freshet_serving.processor.extensions.redis.circuit_breaker import OPEN_AFTER, PAUSE_S, CircuitBreaker


def failing(breaker, times):
    for _ in range(times):
        assert breaker.allow()
        breaker.failed()


def test_closed_breaker_allows_every_caller():
    breaker = CircuitBreaker(FakeClock())
    failing(breaker, OPEN_AFTER - 1)
    assert breaker.allow()
    breaker.succeeded()
    failing(breaker, OPEN_AFTER - 1)
    assert breaker.allow()


def test_consecutive_failures_open_the_breaker_for_a_while():
    clock = FakeClock()
    breaker = CircuitBreaker(clock)
    failing(breaker, OPEN_AFTER)
    assert not breaker.allow()
    clock.advance(PAUSE_S * 0.99)
    assert not breaker.allow()


def test_half_open_breaker_allows_one_caller_at_a_time():
    clock = FakeClock()
    breaker = CircuitBreaker(clock)
    failing(breaker, OPEN_AFTER)
    clock.advance(PAUSE_S)
    assert breaker.allow()
    assert not breaker.allow()
    breaker.failed()
    assert not breaker.allow()
    clock.advance(PAUSE_S)
    assert breaker.allow()
    breaker.succeeded()
    assert all(breaker.allow() for _ in range(5))


def test_lost_caller_does_not_keep_the_breaker_open_forever():
    clock = FakeClock()
    breaker = CircuitBreaker(clock)
    failing(breaker, OPEN_AFTER)
    for _ in range(3):
        clock.advance(PAUSE_S)
        assert breaker.allow()


def test_custom_limits_decide_when_it_opens_and_retries():
    clock = FakeClock()
    breaker = CircuitBreaker(clock, open_after=1, pause_s=0.1)
    failing(breaker, 1)
    assert breaker.is_open
    clock.advance(0.05)
    assert not breaker.allow()
    clock.advance(0.06)
    assert breaker.allow()
    breaker.succeeded()
    assert not breaker.is_open
