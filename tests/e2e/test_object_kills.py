"""kill -9 of publisher or trainer and of both servers at random: nothing recorded is lost, both serve one digest.

FRESHET_KILL_ROUNDS kills (3 if not set), at moments drawn by FRESHET_KILL_SEED; a third of the one that writes and of
each server. A server that was killed begins with the mirror that it had, or, every fourth time, with none.
"""

import json
import os
import random
import shutil
import threading
import time

import pytest

from tests.e2e.test_kills import SEED
from tests.support.object_stage import MODEL, PublishingProcess, ReplicaSet, served, upload_package
from tests.support.waiting import until

pytestmark = [pytest.mark.kills, pytest.mark.e2e, pytest.mark.long]

ROUNDS = int(os.environ.get("FRESHET_KILL_ROUNDS", "3"))
LIFE_S = 1.0


class KilledPublisher(threading.Thread):
    """Publishes ten times a second, as a start with no mirror brings all of it; after a kill another process goes on.
    published: steps that it was told are there."""

    def __init__(self, start):
        super().__init__(daemon=True)
        self.start_process, self.process = start, start()
        self.published, self.ended, self.changing = [], threading.Event(), threading.Lock()

    def run(self):
        seed = 0
        while not self.ended.is_set():
            seed += 1
            process = self.process
            try:
                self.published.append(process.publish(50, seed)[0])
                self.ended.wait(0.1)
            except (OSError, ValueError):
                # It was killed: what it was about may be there or not.
                until(lambda process=process: self.process is not process or self.ended.is_set())

    def kill(self):
        self.process.kill()
        self.process = self.start_process()


def records_of(address, model):
    """(kind, step) of every record of version 1's chain, as the store has them."""
    from freshet_serving.processor.extensions.object_stores.object_store import open_store

    store = open_store(address)
    keys = sorted(store.keys(f"{model}/1/chain"))
    found = [json.loads(store.get(key).data) for key in keys]
    assert [record["number"] for record in found] == list(range(1, len(found) + 1))
    return [(record["kind"], record["step"]) for record in found]


class KilledServers:
    """Two servers of a repository, of which one is killed and comes again with the mirror that it had, or with none."""

    def __init__(self, fleet, draw):
        self.fleet, self.draw = fleet, draw

    def kill(self, number):
        process = self.fleet.servers[number].process
        process.kill()
        process.wait()
        if self.draw.random() < 0.25:
            shutil.rmtree(self.fleet.mirrors[number])
        self.fleet.start(number).wait_ready()


def test_published_deltas_survive_every_kill_and_reach_both_servers(store, tmp_path):
    draw = random.Random(f"objects {SEED}")
    env = {**os.environ, "FRESHET_MIRROR": str(tmp_path / "writer")}
    address = store.address("kills")
    upload_package(store, address, tmp_path / "package")
    publisher = KilledPublisher(lambda: PublishingProcess(address, env, tmp_path / "publish.log"))
    with ReplicaSet(address, env, tmp_path, 2) as fleet:
        servers = KilledServers(fleet, draw)
        publisher.start()
        for life in range(ROUNDS):
            told = len(publisher.published)
            until(lambda told=told: len(publisher.published) > told)
            time.sleep(draw.random() * LIFE_S)
            victim = draw.randrange(3)
            if victim == 2:
                publisher.kill()
            else:
                servers.kill(victim)
            print(f"life {life}: killed {('server 0', 'server 1', 'the publisher')[victim]}, {told} published")
        publisher.ended.set()
        publisher.join()
        publisher.process.close()
        there = [step for kind, step in records_of(address, MODEL) if kind == "delta"]
        assert set(publisher.published) <= set(there)
        assert len(set(there)) == len(there)
        until(lambda: fleet.generations() == [f"1.{there[-1]}"] * 2)
        assert len(set(fleet.digests())) == 1


@pytest.mark.tensorflow
def test_training_survives_every_kill_and_learns_each_event_once(store, tmp_path, monkeypatch):
    pytest.importorskip("tensorflow", reason="training needs the train extra")
    from tests.e2e.following import MODEL as TRAINED
    from tests.e2e.following import FolderEvents, FollowingTrainer, learned, sent
    from tests.e2e.test_follow_kills import Feeder

    draw = random.Random(f"trained {SEED}")
    monkeypatch.setenv("FRESHET_MIRROR", str(tmp_path / "writer"))
    env = dict(os.environ)
    address, events = store.address("trained"), FolderEvents(tmp_path / "clicks")
    events.send(600)
    own = {"repository": address, "trainer_folder": str(tmp_path / "repository")}
    trainer = FollowingTrainer(tmp_path, events.path, delta_seconds=0.2, snapshot_after=20, **own)
    feeder = Feeder(events, draw)
    trainer.start()
    try:
        until(lambda: trainer.metrics().get("freshet_train_version") == 1)
        with ReplicaSet(address, env, tmp_path, 2) as fleet:
            servers = KilledServers(fleet, draw)
            feeder.start()
            for life in range(ROUNDS):
                until(lambda: trainer.metrics().get("freshet_train_deltas_total", 0) > 0)
                time.sleep(draw.random() * LIFE_S)
                before, victim = records_of(address, TRAINED), draw.randrange(3)
                if victim == 2:
                    trainer.kill()
                    trainer.start()
                else:
                    servers.kill(victim)
                assert records_of(address, TRAINED)[: len(before)] == before
                print(f"life {life}: killed {('server 0', 'server 1', 'the trainer')[victim]}, {len(before)} records")
            feeder.ended.set()
            feeder.join()
            until(lambda: trainer.metrics().get("freshet_train_position") == events.count)
            assert trainer.end() == 0, trainer.log.read_text()[-3000:]
            assert learned(trainer.checkpoints) == sent(events.count)
            newest = records_of(address, TRAINED)[-1][1]
            until(lambda: [server.generation(TRAINED) for server in fleet.servers] == [f"1.{newest}"] * 2)
            assert len({served(server, TRAINED)["digest"] for server in fleet.servers}) == 1
    finally:
        feeder.ended.set()
        trainer.close()
