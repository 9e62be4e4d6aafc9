import pytest
from hypothesis import given
from hypothesis import strategies as st

from freshet_serving.processor.errors import BadInput, Expired, FreshetError, NotFound, NotReady, Overloaded
from freshet_serving.serving.client.retry import ConnectionLost, Retry, RetryState


class Clock:
    def __init__(self):
        self.now_s = 0.0

    def __call__(self):
        return self.now_s


def attempts(timeout_s=10.0, jitter=1.0, clock=None, **retry):
    return RetryState(Retry(**retry), timeout_s, clock or Clock(), lambda: jitter)


@pytest.mark.parametrize("error", [Overloaded("full", 0.5), NotReady("loading"), ConnectionLost("gone")])
def test_retryable_error_is_retried(error):
    tries = attempts()
    tries.begin()
    assert tries.wait_s(error) >= 0


@pytest.mark.parametrize("error", [BadInput("no"), NotFound("no"), Expired("late"), FreshetError("broken")])
def test_permanent_error_is_raised(error):
    tries = attempts()
    tries.begin()
    with pytest.raises(type(error)):
        tries.wait_s(error)


def test_retry_waits_at_least_as_long_as_the_server_asks():
    tries = attempts(jitter=0.0)
    tries.begin()
    assert tries.wait_s(Overloaded("full", 1.5)) == 1.5


def test_waits_double():
    tries = attempts(attempts=4, wait_s=0.1)
    waits = []
    for _ in range(3):
        tries.begin()
        waits.append(tries.wait_s(ConnectionLost("gone")))
    assert waits == pytest.approx([0.1, 0.2, 0.4])


def test_error_of_the_last_attempt_is_raised():
    tries = attempts(attempts=2)
    tries.begin()
    tries.wait_s(ConnectionLost("first"))
    tries.begin()
    with pytest.raises(ConnectionLost, match="second"):
        tries.wait_s(ConnectionLost("second"))


def test_overlong_retry_after_is_not_waited_for():
    tries = attempts(max_wait_s=2.0)
    tries.begin()
    with pytest.raises(Overloaded):
        tries.wait_s(Overloaded("full", 3.0))


def test_attempt_that_cannot_finish_in_time_is_not_made():
    clock = Clock()
    tries = attempts(timeout_s=1.0, clock=clock)
    assert tries.begin() == 1.0
    with pytest.raises(Overloaded):
        tries.wait_s(Overloaded("full", 1.0))
    clock.now_s += 1.0
    with pytest.raises(Expired):
        tries.begin()


def test_attempt_without_a_deadline_has_no_time_limit():
    assert attempts(timeout_s=None).begin() is None


@given(
    timeout_s=st.floats(0.01, 5),
    errors=st.lists(st.one_of(st.floats(0, 3), st.none()), max_size=20),
    jitter=st.floats(0, 1),
    most=st.integers(1, 6),
)
def test_all_attempts_end_before_the_deadline(timeout_s, errors, jitter, most):
    clock = Clock()
    tries = attempts(timeout_s, jitter, clock, attempts=most)
    made = 0
    for retry_after_s in errors:
        left_s = tries.begin()
        made += 1
        assert 0 < left_s <= timeout_s
        error = ConnectionLost("gone") if retry_after_s is None else Overloaded("full", retry_after_s)
        try:
            wait_s = tries.wait_s(error)
        except FreshetError:
            break
        clock.now_s += wait_s
        assert retry_after_s is None or wait_s >= retry_after_s
        assert clock.now_s < timeout_s
    assert made <= most
