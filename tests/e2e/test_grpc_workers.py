"""gRPC with several worker processes: they share the port, and one that dies takes nothing but its own connections."""

import itertools
import os
import signal
import threading

import grpc
import numpy as np
import pytest

from freshet_serving import Ragged
from freshet_serving.serving.codecs.messages import message
from tests.e2e.asking import INFER
from tests.e2e.dialects import kserve_request
from tests.e2e.servers import LiveServer
from tests.e2e.test_deltas_live import FLOATS, PROBE, TAGS, USERS, delta_bytes, expected
from tests.e2e.test_workers_live import workers
from tests.support.packages import write_package
from tests.support.waiting import until

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.long,
    pytest.mark.unguarded("every row gets a value that tells the delta, so all scores move"),
]

WAIT_S = 30
INPUTS = {"user": np.array(PROBE), "tags": Ragged.of(TAGS), "floats": FLOATS}
REQUEST = kserve_request("small", INPUTS).SerializeToString()


def channel(server):
    """A connection of its own; it connects again by itself."""
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.initial_reconnect_backoff_ms", 100)]
    return grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}", options)


def predict(connection):
    """(scores, generation)."""
    reply, call = connection.unary_unary(INFER).with_call(REQUEST, timeout=WAIT_S, wait_for_ready=True)
    reply = message("inference.ModelInferResponse").FromString(reply)
    return np.frombuffer(reply.raw_output_contents[0], np.float32), dict(call.trailing_metadata())["x-model-generation"]


@pytest.fixture(scope="module")
def live(tmp_path_factory):
    folder = tmp_path_factory.mktemp("grpc")
    write_package(folder / "repository", users=USERS)
    options = ("--workers", "2", "--delta-guard", "off")
    with LiveServer(folder / "repository", *options, log=folder / "serve.log") as server:
        yield server


def test_every_worker_answers_and_follows_the_deltas(live, tmp_path):
    channels = [channel(live) for _ in range(12)]
    for step in range(3):
        if step:
            assert live.upload("small", delta_bytes(tmp_path, step))[0] == 200
        for each in channels:
            scores, generation = predict(each)
            assert generation == f"1.{step}"
            np.testing.assert_allclose(scores, expected(step), atol=1e-5)
    for each in channels:
        each.close()
    text = live.get("/metrics")[2].decode()
    (line,) = [x for x in text.splitlines() if x.startswith("freshet_http_requests_total") and "kserve_grpc" in x]
    assert float(line.split()[-1]) == 36


def test_killed_worker_loses_only_its_own_connections(live):
    generation, stop, failed, answered = live.generation("small"), threading.Event(), [], []
    # By client: whether each of its calls was answered.
    calls = [[] for _ in range(6)]

    def client(mine):
        with channel(live) as connection:
            while not stop.is_set():
                try:
                    answered.append(predict(connection)[1])
                    mine.append(True)
                except grpc.RpcError as error:
                    failed.append((error.code(), error.details()))
                    mine.append(False)

    clients = [threading.Thread(target=client, args=(mine,)) for mine in calls]
    for thread in clients:
        thread.start()
    try:
        for number in (0, 1):
            until(lambda: all(w["up"] for w in workers(live)))
            before = len(answered)
            victim = workers(live)[number]["pid"]
            os.kill(victim, signal.SIGKILL)
            until(lambda number=number, victim=victim: workers(live)[number]["pid"] not in (victim, None))
            until(lambda before=before: len(answered) > before + 50)
        until(lambda: all(w["up"] for w in workers(live)))
    finally:
        stop.set()
        for thread in clients:
            thread.join(WAIT_S)
    # A kill interrupts a client once, where it had its connection there. How many calls fail then is the client's: gRPC
    # gives one that comes at once to the very connection that is breaking.
    for mine in calls:
        assert sum(before and not now for before, now in itertools.pairwise([True, *mine])) <= 2
        assert mine[-1]
    assert {code for code, _ in failed} <= {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.UNKNOWN,
    }
    # Nobody was refused by a worker that was not there yet: what failed was in flight.
    assert [words for _, words in failed if "server:" in words or "model" in words] == []
    assert set(answered) == {generation}
