"""The breaker against a model of it."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from freshet_serving.processor.clock import FakeClock
from freshet_serving.processor.extensions.redis.circuit_breaker import CircuitBreaker


class BreakerAgainstModel(RuleBasedStateMachine):
    """Requests that are let through end later, in any order, as threads' do."""

    @initialize(open_after=st.integers(1, 4), pause_s=st.sampled_from([0.5, 2.0]))
    def begin(self, open_after, pause_s):
        self.clock = FakeClock()
        self.breaker = CircuitBreaker(self.clock, open_after, pause_s)
        self.open_after, self.pause_s = open_after, pause_s
        self.under_way = self.failures = 0
        self.next_s = 0.0

    @rule()
    def ask(self):
        expected = self.failures < self.open_after or self.clock.now_s() >= self.next_s
        assert self.breaker.allow() == expected
        if expected:
            self.under_way += 1
            if self.failures >= self.open_after:
                # Half open: the next one waits for this one, or for a pause.
                self.next_s = self.clock.now_s() + self.pause_s
                assert not self.breaker.allow()

    @precondition(lambda self: self.under_way)
    @rule(success=st.booleans())
    def end(self, success):
        self.under_way -= 1
        if success:
            self.breaker.succeeded()
            self.failures = 0
        else:
            self.breaker.failed()
            self.failures += 1
            self.next_s = self.clock.now_s() + self.pause_s

    @rule(seconds=st.sampled_from([0.1, 0.5, 2.5]))
    def wait(self, seconds):
        self.clock.advance(seconds)

    @invariant()
    def it_says_whether_it_is_open(self):
        assert self.breaker.is_open == (self.failures >= self.open_after)


BreakerAgainstModel.TestCase.settings = settings(max_examples=60, stateful_step_count=30)
TestBreakerAgainstModel = BreakerAgainstModel.TestCase
