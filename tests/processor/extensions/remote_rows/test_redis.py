"""Against real redis-servers: single and in a cluster, down and up again."""

import logging
import os
import signal
import time

import numpy as np
import pytest
from redis.exceptions import RedisError

from freshet_serving.processor.clock import FakeClock
from freshet_serving.processor.engine import PredictRequest, Processor, ProcessorConfig
from freshet_serving.processor.errors import BadInput, NotReady
from freshet_serving.processor.extensions.redis.circuit_breaker import OPEN_AFTER, PAUSE_S
from freshet_serving.processor.extensions.remote_rows.push import drop, push
from freshet_serving.processor.extensions.remote_rows.redis import ReplyLimits
from freshet_serving.processor.tables.remote_rows import RemoteConfig
from tests.processor.extensions.remote_rows.fakes import Impostor, RedisServer, cluster_nodes, needs_redis
from tests.processor.extensions.remote_rows.processors import (
    PROBE,
    TIMEOUT_S,
    USERS,
    assert_scores,
    opened,
    processor,
    scores,
)
from tests.support.counters import counted
from tests.support.descriptors import few_descriptors
from tests.support.packages import make_delta, make_inputs, make_weights, reference
from tests.support.waiting import until

pytestmark = needs_redis


@pytest.fixture(scope="module")
def cluster():
    with cluster_nodes() as nodes:
        yield nodes


def cluster_url(nodes):
    return f"redis+cluster://127.0.0.1:{nodes[0].port}"


def test_pushed_version_is_served_with_deltas_and_rollbacks(root, reader, server):
    store = opened(server.url)
    calls = []
    pushed = push(reader, [], store, lambda *call: calls.append(call))
    assert [t.name for t in pushed] == ["small/1/user", "small/1/tag"]
    assert calls == [("user", 250, 250), ("tag", 1, 1)]
    with processor(root, server.url) as engine:
        assert_scores(engine, PROBE)
        version = engine.host.catalogue["small"].pick()
        version.apply(make_delta(1, [0, 2000], [7]))
        changed = {u: 0 for u in USERS if u != 7} | {0: 1, 2000: 1}
        assert_scores(engine, PROBE, changed)
        version.rollback(0)
        assert_scores(engine, PROBE)
        assert engine.info()["models"]["small"]["served"]["1"]["remote"]["lost"] == 0


@pytest.mark.parametrize("policy", ["default", "fail"])
def test_error_policy_applies_only_while_redis_is_down(root, reader, server, policy):
    push(reader, [], opened(server.url))
    clock = FakeClock()
    with processor(root, server.url, clock, on_error=policy) as engine:
        assert_scores(engine, PROBE)
        server.kill()
        for _ in range(OPEN_AFTER + 2):
            if policy == "default":
                reply = engine.process(PredictRequest("small", make_inputs([7], tags=[[]])))
                wanted = reference({}, {}, make_weights(0), [7], [[]], make_inputs([7])["floats"])
                np.testing.assert_allclose(reply.outputs["score"][:, 0], wanted, atol=1e-5)
            else:
                with pytest.raises(NotReady, match=r"could not fetch \d+ embedding rows: the row store"):
                    engine.process(PredictRequest("small", make_inputs([7])))
        server.start()
        clock.advance(PAUSE_S)
        assert_scores(engine, PROBE)


def test_hanging_redis_is_left_alone_after_a_few_timeouts(reader, server):
    clock = FakeClock()
    store = opened(server.url, 0.05, clock)
    push(reader, [], opened(server.url))
    key = b"freshet:{small/1/user}"
    assert store.fetch([key], 1 << 16).problem == ""
    os.kill(server.pid, signal.SIGSTOP)
    try:
        problems = [store.fetch([key], 1 << 16).problem for _ in range(OPEN_AFTER + 2)]
        assert (
            problems
            == ["did not answer in time"] * OPEN_AFTER
            + ["is not contacted after repeated failures (circuit breaker)"] * 2
        )
        clock.advance(PAUSE_S)
        assert [store.fetch([key], 1 << 16).problem for _ in range(2)] == [problems[0], problems[-1]]
    finally:
        os.kill(server.pid, signal.SIGCONT)
    clock.advance(PAUSE_S)
    assert store.fetch([key], 1 << 16).values == [opened(server.url).read(key, 1 << 16)]


def test_redis_that_restarts_empty_is_a_failure_not_unseen_ids(root, reader, server):
    push(reader, [], opened(server.url))
    with processor(root, server.url, on_error="fail") as engine:
        assert_scores(engine, PROBE)
        with server.client() as client:
            client.flushall()
        with pytest.raises(NotReady, match="the row store has lost some of its buckets"):
            engine.process(PredictRequest("small", make_inputs([7])))


def test_unanswerable_request_does_not_fail_the_rest_of_its_batch(root, reader, server):
    push(reader, [], opened(server.url))
    with processor(root, server.url, cache_rows=100, on_error="fail") as engine:
        warm, cold = (PredictRequest("small", make_inputs([u], tags=[[]])) for u in (1, 2))
        engine.process(warm)
        server.kill()
        replies = engine.batch_process([warm, cold] * 8)
    assert [isinstance(r, NotReady) for r in replies] == [False, True] * 8


def test_version_is_loaded_once_its_tables_have_been_pushed(root, reader, server):
    remote = RemoteConfig(server.url, ["small/*"], timeout_s=TIMEOUT_S)
    with Processor(ProcessorConfig(str(root), sessions=1, remote=remote)) as engine:
        (event,) = engine.poll()
        assert "small version 1 waits: table small/1/user is not in the row store" in event
        assert engine.poll() == []
        push(reader, [], opened(server.url))
        until(lambda: engine.poll() == ["small 1.0 loaded"])


def test_exhausted_descriptors_fail_the_connection_until_some_are_free(server):
    node = opened(server.url)._seed
    with few_descriptors(), pytest.raises(RedisError):
        node.send_commands([(b"PING",)], ReplyLimits(time.monotonic() + 10, 1 << 16))
    assert node.ask((b"PING",), ReplyLimits(time.monotonic() + 10, 1 << 16)) == b"PONG"
    node.pool.disconnect()


@pytest.mark.parametrize(
    "reply",
    [b":abc\r\n", b"$abc\r\n", b"*abc\r\n", b"-MOVED abc\r\n", b"*1\r\n" * 20_000, b"$9999999999999\r\n", b"!\r\n"],
)
def test_malformed_reply_counts_as_lost_and_opens_the_breaker(reply):
    with Impostor(reply) as impostor:
        store = opened(impostor.url, 5.0, FakeClock())
        problems = [store.fetch([b"a", b"b"], 1 << 10) for _ in range(OPEN_AFTER + 1)]
    assert [one.values for one in problems] == [[None, None]] * (OPEN_AFTER + 1)
    assert all(one.problem for one in problems)
    if not reply.startswith(b"-"):
        assert problems[-1].problem == "is not contacted after repeated failures (circuit breaker)"


def test_value_larger_than_requested_is_lost(server):
    store = opened(server.url)
    store.write({b"large": b"x" * 100_000, b"small": b"y"})
    assert store.fetch([b"small"], 1 << 10).values == [b"y"]
    reply = store.fetch([b"small", b"large"], 1 << 10)
    assert (reply.values, reply.problem) == ([None, None], "sent a malformed reply")
    assert store.fetch([b"large"], 1 << 17).values == [b"x" * 100_000]


def test_password_is_used_and_never_logged(root, reader, caplog):
    server = RedisServer(password="s3cr3t-pw").start()
    try:
        push(reader, [], opened(server.url))
        with processor(root, server.url) as engine:
            assert_scores(engine, PROBE)
        wrong = server.url.replace("s3cr3t-pw", "wr0ng-pw")
        with caplog.at_level(logging.DEBUG), pytest.raises(NotReady) as refused:
            opened(wrong).read(b"x", 1 << 16)
        assert "credentials" in str(refused.value) or "error" in str(refused.value)
        with pytest.raises(BadInput) as bad:
            opened("redis://user:s3cr3t-pw@host:port/0")
        remote = RemoteConfig(server.url, ["small/*"])
        config = ProcessorConfig("r", remote=remote)
        shown = caplog.text + str(refused.value) + str(bad.value) + repr(remote) + repr(config)
        assert "s3cr3t" not in shown
        assert "wr0ng" not in shown
    finally:
        server.close()


def test_cluster_serves_like_a_single_server(root, reader, cluster):
    url = cluster_url(cluster)
    push(reader, [], opened(url))
    held = [node.client().dbsize() for node in cluster]
    assert sum(held) == 250 + 1 + 2
    assert min(held) > 30
    with processor(root, url) as engine:
        assert_scores(engine, PROBE)
        assert_scores(engine, list(USERS)[:250])
    drop("small", 1, ["user", "tag"], opened(url))
    assert [node.client().dbsize() for node in cluster] == [0, 0, 0]


def test_cluster_missing_a_node_still_serves_rows_of_the_others(root, reader, cluster):
    url = cluster_url(cluster)
    store = opened(url)
    push(reader, [], store)
    clock = FakeClock()
    users = list(range(250))
    with processor(root, url, clock) as engine:
        assert_scores(engine, users)
        cluster[2].kill()
        reply = engine.process(PredictRequest("small", make_inputs(users)))
        good = np.isclose(reply.outputs["score"][:, 0], scores(users), atol=1e-5)
        assert 20 < good.sum() < 250
        cluster[2].start()
        clock.advance(PAUSE_S)

        def whole():
            clock.advance(PAUSE_S)
            lost = counted(engine.host.catalogue["small"].pick().replicas.remote)["lost"]
            engine.process(PredictRequest("small", make_inputs(users)))
            return counted(engine.host.catalogue["small"].pick().replicas.remote)["lost"] == lost

        until(whole)
        assert_scores(engine, users)
    drop("small", 1, ["user", "tag"], store)


def test_slots_moved_to_a_different_node_are_found_again(reader, cluster):
    store = opened(cluster_url(cluster))
    store.read(b"x", 1 << 16)
    store._slots = store._slots[::-1]
    store.write({b"{a}": b"1", b"{b}": b"2", b"{c}": b"3"})
    store._slots = store._slots[::-1]
    assert store.fetch([b"{a}", b"{b}", b"{c}", b"{d}"], 1 << 16).values == [b"1", b"2", b"3", None]
    store.delete([b"{a}", b"{b}", b"{c}"])
