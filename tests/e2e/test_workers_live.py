"""Real servers with two worker processes: one state of the model, one set of tables, and processes that may die."""

import contextlib
import http.client
import json
import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from freshet_serving.processor.package.delta import write_delta
from tests.e2e.askers import askers, problems
from tests.e2e.servers import LiveServer
from tests.e2e.test_deltas_live import INPUTS, USERS, delta_bytes, expected, expected_of
from tests.support.packages import make_delta, write_package
from tests.support.waiting import until

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.long,
    pytest.mark.unguarded("every row gets a value that tells the delta, so all scores move"),
]

MANY = range(30_000)


@pytest.fixture(scope="module")
def live(tmp_path_factory):
    folder = tmp_path_factory.mktemp("workers")
    write_package(folder / "repository", users=USERS)
    options = ("--workers", "2", "--undo-depth", "64", "--delta-guard", "off")
    with LiveServer(folder / "repository", *options, log=folder / "serve.log") as server:
        server.repository = folder / "repository"
        yield server


def workers(server):
    """What the admin port says of the workers."""
    return server.about()["workers"]


def replaced(server, number, victim):
    """Whether another process than `victim` answers in that worker's place."""
    worker = workers(server)[number]
    return worker["up"] and worker["pid"] != victim


def pids(server):
    return [w["pid"] for w in workers(server)]


def step_of(server):
    return int(server.generation("small").split(".")[1])


def gone(pid):
    with contextlib.suppress(OSError):
        os.kill(pid, 0)
        return False
    return True


def whole(reply):
    """Whether the scores are those of the generation that the reply names."""
    scores, generation = reply
    return np.allclose(np.ravel(scores), expected_of(generation), atol=1e-5)


def clients(server, count=4):
    return askers(server, INPUTS, expected_of, count)


def test_connections_are_spread_evenly_and_answer_like_one_process(live):
    step = step_of(live)
    with clients(live):
        assert [w["connections"] for w in workers(live)] == [2, 2]
        scores, generation = live.predict("small", INPUTS)
        assert generation == f"1.{step}"
        np.testing.assert_allclose(np.ravel(scores), expected(step), atol=1e-5)
    until(lambda: [w["connections"] for w in workers(live)] == [0, 0])
    for _ in range(4):
        assert live.get("/v1/models/none")[0] == 404
    until(lambda: [w["connections"] for w in workers(live)] == [0, 0])
    assert live.request("POST", "/v1/models/small/versions/9:predict", b"{}")[0] == 404


def test_uploaded_and_dropped_deltas_reach_every_worker_unmixed(live, tmp_path):
    first = step_of(live)
    with clients(live) as running:
        for step in range(first + 1, first + 11):
            if step % 2:
                status, reply = live.upload("small", delta_bytes(tmp_path, step))
                assert (status, reply.get("generation")) == (200, f"1.{step}"), reply
            else:
                delta = make_delta(step, USERS, dense_seed=step)
                write_delta(live.repository / "small/1/deltas" / f"{step}.safetensors", delta)
                until(lambda step=step: live.generation("small") == f"1.{step}")
            # Once a delta is acknowledged, no worker answers by an older one.
            assert {live.predict("small", INPUTS)[1] for _ in range(3)} == {f"1.{step}"}
        status, reply = live.upload("small", delta_bytes(tmp_path, step + 5))
        assert status == 409, reply
        status, reply = live.post_json("/admin/models/small/rollback", {"generation": f"1.{step - 3}"})
        assert status == 200, reply
        assert {live.predict("small", INPUTS)[1] for _ in range(3)} == {f"1.{step - 3}"}
    assert problems(running) == []
    assert all(len(set(c.generations)) > 3 for c in running)


def test_killed_worker_loses_only_its_connections_and_is_replaced(live, tmp_path):
    victim = workers(live)[0]
    with clients(live) as running:
        os.kill(victim["pid"], signal.SIGKILL)
        for _ in range(3):
            step = live.next_step("small")
            status, reply = live.upload("small", delta_bytes(tmp_path, step, parent=step_of(live)))
            assert (status, reply.get("generation")) == (200, f"1.{step}"), reply
        until(lambda: replaced(live, 0, victim["pid"]))
        # The victim's two clients may be handed to it once more while the kernel takes it down; nobody else notices.
        lost = sorted(len(c.failed) for c in running)
        assert lost[:2] == [0, 0]
        assert set(lost[2:]) <= {1, 2}
        assert not [c.wrong for c in running if c.wrong]
        # The survivor's connections had become four; it gives two up, and their clients connect again.
        until(lambda: [w["connections"] for w in workers(live)] == [2, 2])
        failed = sum(len(c.failed) for c in running)
        with clients(live) as later:
            until(lambda: all(f"1.{step}" in c.generations for c in later))
            assert live.upload("small", delta_bytes(tmp_path, step + 1))[0] == 200
            until(lambda: all(f"1.{step + 1}" in c.generations for c in (*running, *later)))
        assert sum(len(c.failed) for c in (*running, *later)) == failed
        assert not [c.wrong for c in (*running, *later) if c.wrong]
    assert workers(live)[0]["restarts"] == victim["restarts"] + 1


def samples(live, name):
    status, _, text = live.get("/metrics")
    assert status == 200, text
    lines = [line for line in text.decode().splitlines() if line.startswith(name)]
    return {line.rpartition(" ")[0]: float(line.split()[-1]) for line in lines}


def test_metrics_cover_all_workers_and_never_decrease(live):
    name = 'freshet_model_requests_total{model="small"}'
    with clients(live):
        until(lambda: samples(live, name)[name] > 50)
    before = samples(live, name)[name]
    assert before >= 50
    assert {samples(live, name)[name] for _ in range(4)} == {before}, "whichever worker is asked"
    assert live.about()["models"]["small"]["requests"] == before
    # A worker reports once a second of its own accord: then it has nothing left to take with it.
    victim = workers(live)[1]["pid"]
    os.kill(victim, signal.SIGKILL)
    until(lambda: replaced(live, 1, victim))
    assert samples(live, name)[name] >= before
    assert sum(samples(live, "freshet_worker_up").values()) == 2


def test_requests_wait_for_new_workers_when_all_are_dead(live, tmp_path):
    step, following = step_of(live), live.next_step("small")
    before = pids(live)
    for pid in before:
        os.kill(pid, signal.SIGKILL)
    status, reply = live.upload("small", delta_bytes(tmp_path, following, parent=step))
    assert status in (200, 503), reply
    assert live.predict("small", INPUTS)[1] == f"1.{following if status == 200 else step}"
    until(lambda: all(replaced(live, n, pid) for n, pid in enumerate(before)))
    if status == 503:
        assert live.upload("small", delta_bytes(tmp_path, following, parent=step))[0] == 200
    with clients(live) as running:
        until(lambda: all(c.generations == [f"1.{following}"] for c in running))
    assert not [c.wrong for c in running if c.wrong]


def test_versions_and_labels_reach_every_worker_at_once(live):
    model = live.repository / "small"
    with clients(live, 2) as running:
        write_package(live.repository, version=2, users=USERS, seed=0)
        until(lambda: live.generation("small") == "2.0")
        assert live.post_json("/admin/models/small/versions/1/load", {})[0] == 200
        assert live.post_json("/admin/models/small/labels/stable", {"version": 1}, "PUT")[0] == 200
        body = json.dumps({"inputs": INPUTS}).encode()
        for _ in range(4):
            status, headers, _ = live.request("POST", "/v1/models/small/labels/stable:predict", body)
            assert (status, headers["x-model-version"]) == (200, "1")
            status, headers, _ = live.request("POST", "/v1/models/small/versions/2:predict", body)
            assert (status, headers["x-model-version"]) == (200, "2")
        status, reply = live.post_json("/admin/models/small/versions/1/unload", {})
        assert status == 409, reply
        assert live.request("DELETE", "/admin/models/small/labels/stable", admin=True)[0] == 200
        assert {live.request("POST", "/v1/models/small/labels/stable:predict", body)[0] for _ in range(4)} == {400}
        status, reply = live.post_json("/admin/models/small/versions/1/unload", {})
        assert status == 200, reply
        assert {live.request("POST", "/v1/models/small/versions/1:predict", body)[0] for _ in range(4)} == {404}
    assert [c.failed for c in running] == [[], []]
    assert model.is_dir()


def pss_of(pids, name):
    """(bytes that the mappings of that name cost all processes together, bytes of the largest)."""
    pss_kb, rss_kb, inside = 0, 0, False
    for pid in pids:
        for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
            field, _, value = line.partition(":")
            if " " in field:
                inside = name in line
            elif inside and field == "Pss":
                pss_kb += int(value.split()[0])
            elif inside and field == "Rss":
                rss_kb = max(rss_kb, int(value.split()[0]))
    return pss_kb << 10, rss_kb << 10


def test_resize_applies_to_all_workers_and_their_replacements(live):
    put = lambda path, sessions: live.post_json(path, {"sessions": sessions}, "PUT")  # noqa: E731
    assert put("/admin/sessions", 3) == (200, {"groups": {"default": 6}})
    assert whole(live.predict("small", INPUTS))
    victim = workers(live)[0]
    os.kill(victim["pid"], signal.SIGKILL)
    until(lambda: all(w["up"] and w["pid"] != victim["pid"] for w in workers(live)))
    assert live.about()["sessions"] == 6
    assert put("/admin/groups/default", 1) == (200, {"groups": {"default": 2}})
    status, reply = put("/admin/groups/nope", 1)
    assert (status, reply) == (404, {"error": "group does not exist: 'nope'; expected one of default"})
    assert put("/admin/sessions", 0)[0] == 400
    assert whole(live.predict("small", INPUTS))


def test_stopped_worker_makes_the_server_unready_without_new_connections(live):
    seen = lambda: [worker["up"] for worker in workers(live)]  # noqa: E731
    ready = lambda: live.get("/v2/health/ready")[::2]  # noqa: E731
    until(lambda: all(seen()))
    stopped = workers(live)[1]["pid"]
    os.kill(stopped, signal.SIGSTOP)
    try:
        until(lambda: seen() == [True, False])
        until(lambda: ready() == (503, b'{"error":"server: worker 1 does not answer"}'))
        for _ in range(4):
            assert whole(live.predict("small", INPUTS))
        text = live.get("/metrics")[2].decode()
        assert 'freshet_worker_up{worker="1"} 0.0' in text
        assert "freshet_ready 0.0" in text
    finally:
        os.kill(stopped, signal.SIGCONT)
    until(lambda: all(seen()) and ready()[0] == 200)
    assert workers(live)[1]["pid"] == stopped


def test_workers_share_one_copy_and_end_with_their_supervisor(tmp_path):
    write_package(tmp_path / "repository", users=MANY)
    with LiveServer(tmp_path / "repository", "--workers", "2", log=tmp_path / "serve.log") as server:
        assert server.upload("small", delta_bytes(tmp_path, 1, users=MANY))[0] == 200
        inputs = {"user": list(MANY), "tags": [[]] * len(MANY), "floats": [[0.0] * 4] * len(MANY)}
        spread = [http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=60) for _ in range(2)]
        for connection in spread:
            server.predict("small", inputs, connection)
            # A second read of each row, so that every worker has touched what it maps.
            server.predict("small", inputs, connection)
        children = pids(server)
        everyone = [server.process.pid, *children]
        for name, nbytes in (
            ("freshet-index-user", 16 * len(MANY)),
            ("freshet-arena-user", 16 * len(MANY)),
            ("freshet-meta-user", 16 * len(MANY)),
        ):
            pss, rss = pss_of(everyone, name)
            assert rss >= nbytes, name
            assert pss <= 1.02 * rss, f"{name}: one copy"
        for connection in spread:
            connection.close()
        server.process.kill()
        server.process.wait()
        until(lambda: all(gone(pid) for pid in children))


def test_sigterm_drains_all_workers_and_a_second_ends_them(tmp_path):
    write_package(tmp_path / "repository", users=USERS)
    options = ("--workers", "2", "--drain-s", "600")
    with LiveServer(tmp_path / "repository", *options, log=tmp_path / "serve.log") as server:
        children = pids(server)
        for pid in children:
            os.kill(pid, signal.SIGTERM)
            os.kill(pid, signal.SIGINT)
        with clients(server, 2) as running:
            server.process.send_signal(signal.SIGTERM)
            until(lambda: server.get("/v2/health/ready")[0] == 503)
            for _ in range(4):
                assert server.get("/v2/health/ready")[::2] == (503, b'{"error":"server: draining"}')
                assert whole(server.predict("small", INPUTS))
            assert not any(gone(pid) for pid in children)
        assert [c.failed for c in running] == [[], []]
        started_s = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(timeout=30) == 0
        assert time.monotonic() - started_s < 30
        assert all(gone(pid) for pid in children)
    said = (tmp_path / "serve.log").read_text()
    assert said.count("freshet: ready in") == 1
    assert " workers=2 models=small@1.0 compute=inline (as configured)\n" in said
