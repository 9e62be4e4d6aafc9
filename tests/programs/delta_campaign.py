"""`make -C loadtest campaign`: deltas and rollbacks of all parts under load, checked; loadtest/results/campaign.md.

A live server of each layout is asked without a pause for scores of keys alone, whose features are an entity of the
model. Meanwhile two publishers, one of features, one of rows and weights, publish by turns, and what is served goes
back whole, by the features alone or by the model alone, some steps or further than the undo log reaches; now and then
the deltas are compacted into a snapshot. Every reply is held against the generation that it names by a checker that
reads the version's files itself (tests/programs/generation_checker.py). At the end the server is started again.

How long replies take is measured by a process of its own: publishers, checker and clients share one, and its threads
wait for each other.
"""

from __future__ import annotations

import argparse
import http.client
import json
import multiprocessing
import sys
import tempfile
import threading
import time
from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np

from freshet_serving import Publisher
from freshet_serving.processor.repository import ChangeLog, open_repository
from freshet_serving.processor.tables.compaction import compact
from loadtest.reports.report import machine, opening, origin, store, table
from tests.e2e.servers import ALONE, LiveServer
from tests.processor.backends.artefacts import make_weights
from tests.programs.generation_checker import GenerationChecker
from tests.support import entities
from tests.support.packages import rows_of, tag_id
from tests.support.waiting import Background, until

RESULTS = Path(__file__).parents[2] / "loadtest" / "results"
LAYOUTS = {"alone": ALONE, "two workers": ("--workers", "2")}
REQUESTS = [[0, 3, 7, 3, 12, 55], [5], list(range(20)), [1, 2, 4, 6, 99, 1], [19, 0], list(range(0, 30, 2))]
USERS, TAGS = range(20), ["a", "b", "c"]
CLIENTS, NEAR, FAR = 2, 12, 60
COMPACT_EVERY, SHOWN_EVERY = 300, 200
ACTIONS = {"features": 36, "rows": 18, "weights": 14, "all three": 20, "features removed": 4}
ROLLBACKS = {"whole": 4, "features alone": 2, "model alone": 2}
SEEN_S = 60
PAUSE_S = 0.005


class Prober:
    """A process that asks now and then, and knows how long that took."""

    def __init__(self, port):
        context = multiprocessing.get_context("spawn")
        self._ours, theirs = context.Pipe()
        self._process = context.Process(target=_probe, args=(port, theirs), daemon=True)

    def __enter__(self):
        self._process.start()
        self._ours.recv()
        return self

    def __exit__(self, *_):
        self._process.join(SEEN_S)

    def times_ms(self):
        """End it; returns the milliseconds of each reply."""
        self._ours.send(None)
        return self._ours.recv()


def _probe(port, pipe):
    connection, times_ms = http.client.HTTPConnection("127.0.0.1", port, timeout=60), []
    ask(connection, 0, form=0)
    pipe.send(None)
    while not pipe.poll(PAUSE_S):
        began_s = time.monotonic()
        ask(connection, len(times_ms) % len(REQUESTS), form=0)
        times_ms.append((time.monotonic() - began_s) * 1e3)
    pipe.send(times_ms)


class Load(Background):
    """Clients that ask one after another; every reply is kept until it is checked."""

    def __init__(self, port, folder):
        super().__init__(partial(self._ask, n) for n in range(CLIENTS))
        self._port = port
        self._checker, self._checking = GenerationChecker(folder, REQUESTS), threading.Lock()
        self.checked, self.problems, self.generations = 0, [], Counter()

    def seen(self, generation):
        """Wait until another reply names the generation, or there is a problem."""
        before = self.generations[generation]
        until(lambda: self.generations[generation] > before or self.problems, within_s=SEEN_S)

    def _ask(self, number):
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
        at = number
        while not self.ended.is_set() and not self.problems:
            at += 1
            try:
                generation, scores = ask(connection, at % len(REQUESTS), form=at // len(REQUESTS) % 3)
            except Exception as error:
                self.problems.append(f"no reply: {error!r}")
                return
            with self._checking:
                if problem := self._checker.problem(generation, at % len(REQUESTS), scores):
                    self.problems.append(problem)
                self.checked += 1
                self.generations[generation] += 1
        connection.close()


def ask(connection, request, form):
    """(generation, scores) of one of the requests, in one of three forms of JSON."""
    users = REQUESTS[request]
    path, body, outputs_of = [
        ("/v1/models/small:predict", {"inputs": {"user": users}}, lambda reply: reply["outputs"]),
        ("/v1/models/small:predict", {"instances": [{"user": user} for user in users]}, lambda r: r["predictions"]),
        (
            "/v2/models/small/infer",
            {"inputs": [{"name": "user", "shape": [len(users)], "datatype": "INT64", "data": users}]},
            lambda reply: reply["outputs"][0]["data"],
        ),
    ][form]
    connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
    reply = connection.getresponse()
    data = reply.read()
    if reply.status != 200:
        raise RuntimeError(f"status {reply.status}: {data[:200]!r}")
    return reply.getheader("x-model-generation"), np.ravel(outputs_of(json.loads(data)))


class Campaign:
    """Changes of one served version, each of them random and large enough to move scores."""

    def __init__(self, live, repository, seed):
        self._live, self._random, self._content = live, np.random.default_rng(seed), 0
        self._repository = repository
        self._features, self._trainer = Publisher(repository, "small"), Publisher(repository, "small")
        self._line, self._top = [0], 0
        self.done = Counter()

    @property
    def served(self):
        return f"1.{self._line[-1]}"

    def act(self):
        """Publish a delta or take something back; returns whether the version was changed."""
        weights = ACTIONS | (ROLLBACKS if len(self._line) > 1 else {})
        names = list(weights)
        name = names[self._random.choice(len(names), p=np.array(list(weights.values())) / sum(weights.values()))]
        back = name in ROLLBACKS
        published = self._take_back(name) if back else self._publish(name)
        if published:
            self.done[name] += 1
            if self.done.total() % COMPACT_EVERY == 0:
                files = open_repository(self._repository).version("small", 1)
                compact(files, ChangeLog.of(files))
        return published

    @property
    def deltas(self):
        """How many were published, without those of rollbacks."""
        return sum(self.done[name] for name in ACTIONS)

    def _publish(self, name):
        self._content += 1
        users = self._random.choice(USERS, self._random.integers(1, 9), replace=False)
        # Small enough that no score is so near to 0 or 1 that others look like it.
        content = self._content % 997 / 64
        rows = {"user": (users, rows_of(users, content))}
        if self._random.random() < 0.3:
            rows["tag"] = (TAGS, rows_of([tag_id(tag) for tag in TAGS], content))
        profiles = {"profile": (users, entities.columns(users, self._content))}
        weights = make_weights(self._content)
        publisher = self._features if name.startswith("features") else self._trainer
        publisher.take_served()
        if name == "features":
            publisher.publish(entities=profiles)
        elif name == "features removed":
            publisher.publish(removed={"entities.profile": users})
        elif name == "rows":
            publisher.publish(rows=rows)
        elif name == "weights":
            publisher.publish(dense=weights)
        else:
            publisher.publish(rows=rows, dense=weights, entities=profiles)
        return self._published(publisher)

    def _published(self, publisher):
        step = publisher.generation.step
        if step <= self._top:
            return False
        self._top = step
        self._line.append(step)
        return True

    def _take_back(self, name):
        far = self._random.random() < 0.1
        span = min(FAR if far else NEAR, len(self._line) - 1)
        at = len(self._line) - 1 - int(self._random.integers(1, span + 1))
        generation = f"1.{self._line[at]}"
        if name == "whole":
            self._rollback({"generation": generation})
            del self._line[at + 1 :]
            return True
        only = "entities" if name == "features alone" else "model"
        if self._random.random() < 0.5:
            self._features.take_served()
            self._features.restore(generation, only)
            return self._published(self._features)
        step = int(self._rollback({"generation": generation, "only": only})["generation"].partition(".")[2])
        if step <= self._top:
            return False
        self._top = step
        self._line.append(step)
        return True

    def _rollback(self, body):
        # The server has to serve what is taken back.
        until(lambda: self._live.generation("small") == self.served, within_s=SEEN_S)
        status, reply = self._live.post_json("/admin/models/small/rollback", body)
        if status != 200:
            raise RuntimeError(f"rollback to {body}: {reply}")
        return reply


def campaign(folder, options, deltas, seed):
    """One server; returns its figures."""
    folder.mkdir(parents=True)
    version = entities.write_package(folder / "repository")
    began_s = time.monotonic()
    arguments = [*options, "--delta-guard", "off"]
    with LiveServer(folder / "repository", *arguments, log=folder / "serve.log") as live:
        changes = Campaign(live, folder / "repository", seed)
        pauses = np.random.default_rng((seed, 1))
        with Load(live.http_port, version) as load, Prober(live.http_port) as prober:
            while changes.deltas < deltas and not load.problems:
                # Some changes come alone, others while the server still applies those before.
                if changes.act() and pauses.random() < 0.4:
                    load.seen(changes.served)
                if changes.done.total() % SHOWN_EVERY == 0:
                    print(f"{changes.done.total()} changes, {load.checked} replies", flush=True)
            load.seen(changes.served)
            times_ms = prober.times_ms()
    with (
        LiveServer(folder / "repository", *arguments, log=folder / "serve.log") as live,
        Load(live.http_port, version) as again,
    ):
        again.seen(changes.served)
    figures = {"done": dict(changes.done), "replies": load.checked + again.checked, "named": len(load.generations)}
    figures |= {"problems": (load.problems + again.problems)[:5], "probes": len(times_ms)}
    figures |= {"p99_ms": round(np.quantile(times_ms, 0.99)), "slowest_ms": round(max(times_ms))}
    return figures | {"seconds": round(time.monotonic() - began_s)}


def page(results):
    lines = opening("Features, rows and weights change under load", __doc__ or "", results)
    kinds = [*ACTIONS, *ROLLBACKS]
    rows = []
    for layout, facts in results["layouts"].items():
        done = facts["done"]
        rows.append(
            [layout, f"{sum(done.get(n, 0) for n in ACTIONS):,}", f"{sum(done.get(n, 0) for n in ROLLBACKS):,}",
             f"{facts['replies']:,}", f"{facts['named']:,}", "; ".join(facts["problems"]) or "0", facts["seconds"],
             facts["p99_ms"], facts["slowest_ms"]]
        )  # fmt: skip
    heads = ["layout", "deltas", "rollbacks", "replies checked", "generations named", "wrong or failed", "seconds"]
    heads += ["p99, ms", "slowest, ms"]
    lines += [table(heads, rows), ""]
    rows = [[layout, *(facts["done"].get(kind, 0) for kind in kinds)] for layout, facts in results["layouts"].items()]
    lines += ["Changes by what they changed; the last three are rollbacks.", "", table(["layout", *kinds], rows), ""]
    return "\n".join(lines)


def main() -> int:
    """0 when every reply was of the generation that it named."""
    parser = argparse.ArgumentParser(prog="make -C loadtest campaign", description=__doc__)
    parser.add_argument("--deltas", type=int, default=2000, help="of each layout, beside rollbacks")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", default=str(RESULTS / "campaign.md"))
    options = parser.parse_args()
    results = {"machine": machine(), "origin": origin("-C loadtest campaign", "ARGS", sys.argv[1:]), "layouts": {}}
    with tempfile.TemporaryDirectory(prefix="freshet-campaign-") as folder:
        for number, (layout, arguments) in enumerate(LAYOUTS.items()):
            figures = campaign(Path(folder) / str(number), arguments, options.deltas, options.seed + number)
            results["layouts"][layout] = figures
            print(f"{layout}: {figures}", flush=True)
    store(Path(options.out).parent, Path(options.out).stem, results, page(results))
    return int(any(figures["problems"] for figures in results["layouts"].values()))


if __name__ == "__main__":
    sys.exit(main())
