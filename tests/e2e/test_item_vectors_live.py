"""Best items by vectors of two towers, over the network: each list is of the generations that its reply names.

Deltas of rows and of towers, removals, rollbacks and killed workers, in both layouts; every list is computed again.
"""

import os
import signal
import threading
from dataclasses import replace

import numpy as np
import pytest

from freshet_serving import Client
from freshet_serving.processor.errors import FreshetError
from freshet_serving.processor.package.delta import write_delta
from tests.e2e.servers import ALONE, LiveServer
from tests.e2e.test_workers_live import replaced
from tests.support.towers import MODEL, USERS, World, assert_best, change, write_towers
from tests.support.waiting import until

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.long,
    pytest.mark.unguarded("each delta has a matrix of its own, so all scores move"),
]

ITEMS, K = range(3000), 9
LAYOUTS = {"alone": ALONE, "workers": ("--workers", "2")}


class Site:
    """A live server, and the world of each generation that it has served."""

    def __init__(self, server, folder, world):
        self.server, self.folder, self.step = server, folder, 0
        self.worlds = {0: world}
        self.found, self.failed = [], []

    @property
    def world(self):
        return self.worlds[self.step]

    def publish(self, **more):
        step = self.server.next_step(MODEL)
        after, delta = change(self.world, step, **more)
        write_delta(self.folder / "upload", replace(delta, parent_step=self.step))
        self.worlds[step] = after
        status, reply = self.server.upload(MODEL, (self.folder / "upload").read_bytes())
        assert status == 200, reply
        self.step = step

    def roll_back(self, step):
        asked = {"generation": f"1.{step}", "reason": "worse"}
        status, reply = self.server.post_json(f"/admin/models/{MODEL}/rollback", asked)
        assert status == 200, reply
        self.step = step

    def ask(self, client, user):
        self.found.append((user, client.predict(MODEL, {"user": np.array([user])}, top_items=K)))
        return self.found[-1][1]

    def ask_on(self, scheme, ended):
        with Client(self.server.address(scheme), timeout_s=60) as client:
            turn = 0
            while not ended.is_set():
                turn += 1
                try:
                    self.ask(client, USERS[turn % len(USERS)])
                except FreshetError as error:
                    self.failed.append(error)

    def settle(self):
        """Wait until vectors do not lag."""
        with Client(self.server.address(), timeout_s=60) as client:
            until(lambda: not self.ask(client, 1).item_generation)

    def check(self):
        """Check every list; return how many were of lagging vectors."""
        different = {(u, p.generation, p.item_generation, p.outputs["scores"].tobytes()): p for u, p in self.found}
        assert len(different) == len({key[:3] for key in different}), "lists of the same generations differ"
        for (user, *_), prediction in different.items():
            world = self.worlds[step_of(prediction.generation)]
            of = self.worlds[step_of(prediction.item_generation)] if prediction.item_generation else world
            outputs = prediction.outputs
            assert_best(outputs["item_ids"][0], outputs["scores"][0], world, of, user, K)
        return sum(bool(key[2]) for key in different)


def step_of(generation):
    return int(generation.partition(".")[2])


@pytest.fixture(scope="module", params=LAYOUTS.values(), ids=LAYOUTS)
def site(request, tmp_path_factory):
    folder, world = tmp_path_factory.mktemp("vectors"), World.first(ITEMS)
    write_towers(folder / "repository", world)
    options = (*request.param, "--delta-guard", "off", "--undo-depth", "8")
    with LiveServer(folder / "repository", *options, log=folder / "serve.log") as server:
        yield Site(server, folder, world)


def test_every_list_is_of_the_generations_that_its_reply_names(site):
    ended = threading.Event()
    asking = [threading.Thread(target=site.ask_on, args=(scheme, ended)) for scheme in ("http", "grpc")]
    for thread in asking:
        thread.start()
    rng = np.random.default_rng(3)

    def some(most=40):
        return [int(item) for item in rng.integers(0, 3100, most)]

    try:
        site.publish(items=some(), put=some(10))
        site.publish(users=[1, 2], dense=["user", "score"])
        site.publish(categories=[2], removed=some(20))
        before = site.step
        site.publish(dense=["item"], removed=some(20))
        site.publish(items=some(), put=some(10))
        site.roll_back(before)
        site.publish(dense=["user", "item", "score"], put=some(5))
        site.settle()
        victim = kill_a_worker(site.server)
        site.publish(items=some(), removed=some(10))
        site.publish(dense=["item"])
        if victim:
            until(lambda: replaced(site.server, 0, victim))
        site.settle()
        site.roll_back(before)
        site.settle()
        site.publish(put=some(10))
    finally:
        ended.set()
        for thread in asking:
            thread.join(60)
    assert site.check() > 0
    # A killed worker may have had each client's connection.
    assert len(site.failed) <= 4, site.failed[:3]


def test_lag_is_a_metric_and_a_description(site):
    site.publish(dense=["item"])
    site.settle()
    text = site.server.get("/metrics")[2].decode()
    assert f'freshet_model_item_vectors_lag_steps{{model="{MODEL}"}} 0.0' in text
    assert f'freshet_model_item_vectors_lag_seconds{{model="{MODEL}"}} 0.0' in text


def test_candidates_beside_the_number_are_ranked(site):
    with Client(site.server.address(), timeout_s=60) as client:
        items = np.array([7, 3, 2999, 5000])
        best = client.predict(MODEL, {"user": np.array([1]), "item": items}, top_items=3)
        scored = client.predict(MODEL, {"user": np.array([1]), "item": items[:3]}).outputs["score"][:, 0]
    order = np.argsort(-scored)
    assert best.outputs["item_ids"].tolist() == [items[order].tolist()]
    np.testing.assert_allclose(best.outputs["scores"][0], scored[order], atol=1e-5)


def kill_a_worker(server):
    """Kill a worker, if there are any; return its process."""
    running = server.about().get("workers")
    if not running:
        return None
    os.kill(running[0]["pid"], signal.SIGKILL)
    return running[0]["pid"]
