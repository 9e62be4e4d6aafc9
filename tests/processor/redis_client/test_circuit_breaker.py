from freshet_serving.processor.clock import FakeClock
from freshet_serving.processor.redis_client.circuit_breaker import OPEN_AFTER, PAUSE_S, CircuitBreaker


def failing(breaker, times):
    for _ in range(times):
        assert breaker.allow()
        breaker.failed()


def test_a_closed_breaker_lets_everybody_ask():
    breaker = CircuitBreaker(FakeClock())
    failing(breaker, OPEN_AFTER - 1)
    assert breaker.allow()
    breaker.succeeded()
    failing(breaker, OPEN_AFTER - 1)
    assert breaker.allow()


def test_failures_in_a_row_open_it_for_a_while():
    clock = FakeClock()
    breaker = CircuitBreaker(clock)
    failing(breaker, OPEN_AFTER)
    assert not breaker.allow()
    clock.advance(PAUSE_S * 0.99)
    assert not breaker.allow()


def test_after_the_pause_one_caller_asks_at_a_time():
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


def test_a_caller_that_never_answers_does_not_keep_it_open_for_ever():
    clock = FakeClock()
    breaker = CircuitBreaker(clock)
    failing(breaker, OPEN_AFTER)
    for _ in range(3):
        clock.advance(PAUSE_S)
        assert breaker.allow()


def test_a_breaker_of_its_own_limits_opens_and_tries_again_by_them():
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
