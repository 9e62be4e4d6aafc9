"""Count requests, and those that failed, by versions and in all."""

from collections import Counter

from freshet_serving.processor.errors import FreshetError
from freshet_serving.processor.sessions.observers import Observer


class RequestCounter(Observer):
    """Counts the requests of a process."""

    def __init__(self):
        self._requests, self._failures = Counter(), 0

    def __call__(self, request, replica, bound, done):
        self._requests[replica] += 1

        def counted(result):
            self._failures += isinstance(result, FreshetError)
            done(result)

        return counted

    def counters(self):
        return {"toy_requests": self._requests.total(), "toy_failures": self._failures}

    def evidence(self):
        return {(replica,): {"requests": count} for replica, count in self._requests.items()}
