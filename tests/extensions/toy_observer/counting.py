"""Count requests, and those that failed, by versions and in all."""

from collections import Counter

from freshet_serving.processor.counter_block import CounterBlock, Slot
from freshet_serving.processor.errors import FreshetError
from freshet_serving.processor.sessions.observers import Observer

REQUESTS, FAILURES = range(2)


class RequestCounter(Observer):
    """Counts the requests of a process."""

    def __init__(self):
        self._requests = Counter()
        self._counters = CounterBlock(
            [
                Slot("toy", "requests", "toy_requests", "Requests that the toy has seen."),
                Slot("toy", "failures", "toy_failures", "Those of them that failed."),
            ]
        )

    def __call__(self, request, replica, bound, done):
        self._requests[replica] += 1
        self._counters.cells[REQUESTS] += 1

        def counted(result):
            self._counters.cells[FAILURES] += isinstance(result, FreshetError)
            done(result)

        return counted

    def counted(self):
        return self._counters.snapshot()

    def evidence(self):
        return {(replica,): {"requests": count} for replica, count in self._requests.items()}
