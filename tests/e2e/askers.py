"""Clients that predict without a pause while something happens to a server."""

from __future__ import annotations

import contextlib
import http.client
import threading

import numpy as np

from tests.support.waiting import until


class Asker(threading.Thread):
    """Predicts on one keep-alive connection until stopped; connects anew after a failure.

    expected: the scores of a generation; None where any are right. answered: replies. failed: errors, of connections
    and of replies that are no 200. wrong: replies with other scores. generations: each time that it changed.
    """

    def __init__(self, server, inputs, expected=None, model="small"):
        super().__init__()
        self._asked, self._server, self._expected, self.stopped = (model, inputs), server, expected, threading.Event()
        self.answered, self.failed, self.wrong, self.generations = 0, [], [], []
        self.start()

    def run(self):
        connection = http.client.HTTPConnection("127.0.0.1", self._server.http_port, timeout=60)
        while not self.stopped.is_set():
            try:
                scores, generation = self._server.predict(*self._asked, connection)
            except (OSError, http.client.HTTPException, AssertionError) as error:
                self.failed.append(error)
                connection.close()
                self.stopped.wait(0.01)
                continue
            self.answered += 1
            if self.generations[-1:] != [generation]:
                self.generations.append(generation)
            if self._expected is not None and not np.allclose(np.ravel(scores), self._expected(generation), atol=1e-5):
                self.wrong.append((generation, scores))
        connection.close()


@contextlib.contextmanager
def askers(server, inputs, expected=None, count=4):
    """So many askers, each answered at least once."""
    running = [Asker(server, inputs, expected) for _ in range(count)]
    try:
        until(lambda: all(asker.answered for asker in running))
        yield running
    finally:
        for asker in running:
            asker.stopped.set()
        for asker in running:
            asker.join()


def problems(running):
    """All that failed or was wrong."""
    return [problem for asker in running for problem in (*asker.failed, *asker.wrong)]
