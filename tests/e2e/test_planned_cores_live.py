"""Real servers that plan the cores of their groups while they answer, and deltas come; and a trainer that borrows."""

import contextlib
import json
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from freshet_serving.processor.cores import available
from tests.e2e.askers import askers, problems
from tests.e2e.following import FolderEvents, FollowingTrainer
from tests.e2e.servers import LiveServer
from tests.e2e.test_deltas_live import INPUTS, USERS, delta_bytes, expected_of
from tests.e2e.test_workers_live import replaced, workers
from tests.support.extensions import needs
from tests.support.packages import write_package
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.long, needs("core_planner")]

STEPS, PAUSE_S = 3, 0.02
"""Deltas, and seconds between requests of a client: it takes half a minute until a core is given back."""
CONFIG = '[groups.small]\np99_ms = 50\n[groups.rest]\nmodels = ["*"]\n'


two_cores = pytest.mark.skipif(len(available()) < 2, reason="needs two cores")


@pytest.mark.unguarded("a delta brings other weights altogether")
@pytest.mark.parametrize("processes", ["1", pytest.param("2", marks=two_cores)])
def test_planned_groups_answer_with_the_scores_of_their_generations(tmp_path, processes):
    write_package(tmp_path / "repository", users=USERS)
    (tmp_path / "serve.toml").write_text(CONFIG)
    options = ("--config", str(tmp_path / "serve.toml"), "--workers", processes)
    with LiveServer(tmp_path / "repository", *options, log=tmp_path / "log") as server:
        with askers(server, INPUTS, expected_of, pause_s=PAUSE_S) as running:
            for step in range(1, STEPS + 1):
                assert server.upload("small", delta_bytes(tmp_path, step))[0] == 200
            until(lambda: "requests/s" in groups(server)["small"]["planned"]["why"], within_s=60)
            planned = groups(server)["small"]["planned"]
        assert planned["cores"] >= 1
        assert groups(server)["rest"]["planned"]["weight"] == 1.0
        status, reply = server.post_json("/admin/groups/small", {"sessions": 2}, "PUT")
        assert (status, "cores are planned" in reply["error"]) == (400, True)
        assert problems(running) == []
        if processes == "2":
            new_worker_computes_on_the_cores_of_the_plan(server)


def new_worker_computes_on_the_cores_of_the_plan(server):
    victim = workers(server)[0]["pid"]
    os.kill(victim, signal.SIGKILL)
    until(lambda: replaced(server, 0, victim))
    pids = [worker["pid"] for worker in workers(server)]

    def ask():
        with contextlib.suppress(OSError):
            server.predict("small", INPUTS)

    def planned():
        return frozenset(groups(server)["small"]["planned"]["cpus"])

    until(lambda: planned() < available() and all(planned() in affinities(pid) for pid in pids), ask)
    metrics = server.get("/metrics")[2].decode()
    assert f'freshet_group_cores{{group="small"}} {len(planned())}.0' in metrics


@two_cores
@pytest.mark.parametrize("processes", ["1", "2"])
def test_core_moves_and_is_lent_while_requests_are_answered(tmp_path, processes):
    """A group that has had all cores at the start gives one back half a minute later."""
    write_package(tmp_path / "repository", users=USERS)
    (tmp_path / "serve.toml").write_text('[groups.all]\nmodels = ["*"]\np99_ms = 500\n')
    options = ("--config", str(tmp_path / "serve.toml"), "--workers", processes)
    with LiveServer(tmp_path / "repository", *options, log=tmp_path / "log") as server:
        with askers(server, INPUTS, expected_of, pause_s=PAUSE_S) as running:
            assert groups(server)["all"]["planned"]["cores"] == len(available())
            until(lambda: groups(server)["all"]["planned"]["cores"] < len(available()), within_s=120)
            (loan,) = (tmp_path / "repository" / ".cores").glob("*.json")

            def lends_the_rest():
                own = set(groups(server)["all"]["planned"]["cpus"])
                return set(json.loads(loan.read_text())["lent"]) == available() - own

            until(lends_the_rest)
            asked = running[0].answered
            until(lambda: running[0].answered > asked + 25)
        assert problems(running) == []
    assert not loan.exists()


@two_cores
@pytest.mark.tensorflow
def test_follower_gives_a_core_back_between_a_few_deltas(tmp_path):
    pytest.importorskip("tensorflow", reason="training needs the train extra")
    from freshet_serving.processor.extensions.core_planner.lent_cores import Lender

    source = FolderEvents(tmp_path / "clicks")
    source.send(600)
    trainer = FollowingTrainer(tmp_path, source.path, delta_seconds=0.3)
    trainer.repository.mkdir(exist_ok=True)
    low, high, took_s, most_deltas = min(available()), max(available()), [], 0
    lender, stop = Lender(trainer.repository), threading.Event()
    lender.write(frozenset({high}), low)

    def send():
        while not stop.wait(0.05):
            source.send(500)

    sender = threading.Thread(target=send)
    trainer.start()
    try:
        until(lambda: trainer.metrics().get("freshet_train_version") == 1)
        sender.start()
        for _ in range(5):
            for lent in ({high}, set()):
                deltas = trainer.metrics()["freshet_train_deltas_total"]
                lender.write(frozenset(lent), low)
                written_s = time.monotonic()
                until(lambda lent=lent: affinities(trainer.process.pid) == {frozenset(lent or {low})})
                took_s.append(time.monotonic() - written_s)
                most_deltas = max(most_deltas, trainer.metrics()["freshet_train_deltas_total"] - deltas)
            position = trainer.metrics()["freshet_train_position"]
            until(lambda position=position: trainer.metrics()["freshet_train_position"] > position)
        print(f"seconds until all threads had moved: {max(took_s):.3f} at most, {sorted(took_s)[5]:.3f} at the median")
        # A second on an idle machine; on a busy one its deltas are as late as the move.
        assert most_deltas <= 8
        lender.close()
        until(lambda: affinities(trainer.process.pid) == {available()})
    finally:
        stop.set()
        trainer.close()
        if sender.ident is not None:
            sender.join()
    assert "Traceback" not in trainer.log.read_text()


def affinities(pid):
    """The sets of cores that the threads of a process may run on."""
    found = set()
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            found.add(frozenset(os.sched_getaffinity(int(task.name))))
    return found


def groups(server):
    return server.about()["groups"]
