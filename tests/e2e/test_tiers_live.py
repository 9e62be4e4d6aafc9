"""A live server whose tables have a memory budget: the scores of one without, from every worker, while rows move."""

import http.client
import re
import threading

import numpy as np
import pytest

from tests.e2e.servers import LiveServer
from tests.e2e.test_deltas_live import delta_bytes
from tests.support.packages import make_weights, reference, tag_id, write_package
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.long]

USERS = range(200_000)
STEPS = 12
PER_REQUEST = 50


def touched(step):
    """The users that delta `step` changes: another slice each time, which overlaps the last."""
    return [(step * 3_000 + n) % len(USERS) for n in range(5_000)]


def contents():
    """By step: the number of what each user's row holds."""
    states = np.zeros((STEPS + 1, len(USERS)), np.int64)
    for step in range(1, STEPS + 1):
        states[step] = states[step - 1]
        states[step, touched(step)] = step
    return states


class Client(threading.Thread):
    """Asks for users all over the table, favourites more often, and checks every score."""

    def __init__(self, server, states, seed):
        super().__init__()
        self.server, self.states, self.stopped = server, states, threading.Event()
        self.random = np.random.default_rng(seed)
        self.answered, self.wrong, self.failure = 0, [], None
        self.start()

    def run(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.server.http_port, timeout=60)
        floats = np.zeros((PER_REQUEST, 4), np.float32)
        tags = {tag_id(t): 0 for t in "abc"}
        try:
            while not self.stopped.is_set():
                users = (self.random.zipf(1.3, PER_REQUEST) * 7919 % len(USERS)).tolist()
                inputs = {"user": users, "tags": [["a"]] * PER_REQUEST, "floats": floats.tolist()}
                scores, generation = self.server.predict("small", inputs, connection)
                state = dict(zip(users, self.states[int(generation.split(".")[1]), users].tolist()))
                wanted = reference(state, tags, make_weights(0), users, [["a"]] * PER_REQUEST, floats)
                if not np.allclose(np.ravel(scores), wanted, atol=1e-5):
                    self.wrong.append(generation)
                self.answered += 1
        except Exception as error:
            self.failure = error
        finally:
            connection.close()


def total(server, name):
    """The sum of a metric over its labels."""
    text = server.get("/metrics")[2].decode()
    return sum(float(value) for value in re.findall(rf"^{name}(?:\{{[^}}]*\}})? ([0-9.e+]+)$", text, re.M))


def test_budgeted_workers_answer_like_unbudgeted_ones_during_deltas(tmp_path):
    write_package(tmp_path / "repository", users=USERS)
    options = ("--workers", "2", "--undo-depth", "1", "--table-memory", "small/user=1M", "--scratch", str(tmp_path))
    states = contents()
    with LiveServer(tmp_path / "repository", *options, log=tmp_path / "serve.log") as server:
        clients = [Client(server, states, seed) for seed in range(4)]
        try:
            until(lambda: all(c.answered or c.failure for c in clients))
            for step in range(1, STEPS + 1):
                status, reply = server.upload("small", delta_bytes(tmp_path, step, touched(step), dense_seed=False))
                assert (status, reply.get("generation")) == (200, f"1.{step}"), reply
                seen = [c.answered for c in clients]
                until(lambda seen=seen: all(c.answered > n or c.failure for c, n in zip(clients, seen)))
            # The table does not fit: most rows are cold, some of those that changed in the log.
            until(lambda: 0 < total(server, "freshet_table_hot_rows") < len(USERS) // 2)
            assert total(server, "freshet_table_log_bytes") > 0
        finally:
            for client in clients:
                client.stopped.set()
            for client in clients:
                client.join()
        assert [(c.failure, c.wrong) for c in clients] == [(None, [])] * 4
