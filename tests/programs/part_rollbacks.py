"""`make -C loadtest part-rollbacks`: parts of a version taken back beside a feed; loadtest/results/part-rollbacks.md.

An engine with its guard on serves a model with features of its users and follows its repository every 50 ms. A process
of its own publishes a delta of 100 users' rows and features, 1 or 20 times a second. Meanwhile the features or the rows
and weights go back by turns, up to 20 generations, again and again at random times. A rollback is done when the engine
says so, and when the files hold, under its generation, the part as it was and the other part as it stood before it.
The model's lock is timed in the thread that rolls back: the longest turn of each call, by the clock, other processes'
turns included, and in the thread's own processor time.

Then an operator holds the newest generation before each rollback: a call that nothing serves must say HELD and name the
command.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import sys
import tempfile
import threading
import time
from functools import partial
from pathlib import Path

import numpy as np

from freshet_serving import Publisher
from freshet_serving.processor.engine import PredictRequest, Processor, ProcessorConfig
from freshet_serving.processor.errors import Conflict
from freshet_serving.processor.generation import Generation
from freshet_serving.processor.repository import ChangeLog, VersionContents, open_repository
from loadtest.reports.report import machine, opening, origin, table
from tests.support import entities
from tests.support.packages import DIM, make_weights, rows_of
from tests.support.waiting import Background

RESULTS = Path(__file__).parents[2] / "loadtest" / "results"
MODEL, USERS, CHANGED = "small", 20_000, 100
RATES = (1, 20)
AIM_MS, BACK, POLL_S, HELD_CALLS = 50.0, 20, 0.05, 20
PARTS, TABLES = ("entities", "model"), ("user", "tag", entities.TABLE)
EACH_S = {1: 0.5, 20: 0.1}
"""By deltas a second, seconds from one rollback to the next, on average."""


class TimedLock:
    """A model's lock that notes, for one thread, how long each of its turns was."""

    def __init__(self, lock: threading.RLock) -> None:
        self._lock, self._depth, self._since_s, self._computed_s = lock, 0, 0.0, 0.0
        self.thread, self.turns_ms, self.computed_ms = 0, [], []

    def __enter__(self) -> None:
        self._lock.acquire()
        self._depth += 1
        if self._depth == 1:
            self._since_s, self._computed_s = time.perf_counter(), time.thread_time()

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if not self._depth and threading.get_ident() == self.thread:
            self.turns_ms.append((time.perf_counter() - self._since_s) * 1e3)
            self.computed_ms.append((time.thread_time() - self._computed_s) * 1e3)
        self._lock.release()


def feed(repository: str, rate: float, pipe) -> None:
    """Publish deltas until the pipe has a word; send how many there were."""
    random, publisher, done = np.random.default_rng(3), Publisher(repository, MODEL), 0
    began_s = time.monotonic()
    while not pipe.poll(max(0.0, began_s + done / rate - time.monotonic())):
        users = np.sort(random.choice(USERS, CHANGED, replace=False))
        rows = rows_of(users, 0) + random.normal(0, 0.01, (CHANGED, DIM)).astype(np.float32)
        weights = {name: value * np.float32(random.uniform(0.999, 1.001)) for name, value in make_weights(0).items()}
        publisher.publish(
            rows={"user": (users, rows)},
            dense=weights if done % 5 == 0 else None,
            entities={"profile": (users, entities.columns(users, int(random.integers(4))))},
        )
        done += 1
    pipe.send(done)


class Feed:
    def __init__(self, repository: Path, rate: float) -> None:
        context = multiprocessing.get_context("spawn")
        self._ours, theirs = context.Pipe()
        self._process = context.Process(target=feed, args=(str(repository), rate, theirs), daemon=True)

    def __enter__(self) -> Feed:
        self._process.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.join()

    def end(self) -> int:
        """End it; returns how many deltas it published."""
        self._ours.send(None)
        return self._ours.recv()


class Engine(Background):
    """A processor that follows its repository and is asked meanwhile."""

    def __init__(self, repository: Path) -> None:
        config = ProcessorConfig(str(repository), sessions=1)
        self.processor = Processor.initialize(config)
        self.model = self.processor.host.catalogue[MODEL]
        self.lock = TimedLock(self.model._lock)
        self.lock.thread = threading.get_ident()
        self.model._lock = self.lock
        self.failures = []
        super().__init__(partial(self._again, act) for act in (self._ask, self.processor.poll))

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        self.processor.close()

    @property
    def generation(self) -> Generation:
        return self.model.pick().generation

    def _ask(self) -> None:
        users = np.random.default_rng(time.monotonic_ns()).integers(0, USERS, 8)
        self.processor.process(PredictRequest(MODEL, {"user": users}))

    def _again(self, act) -> None:
        while not self.ended.wait(POLL_S):
            try:
                act()
            except Exception as error:
                self.failures.append(f"{type(error).__name__}: {error}")


def take_back(repository: Path, rate: float, count: int, seed: int) -> dict:
    """Take parts back beside a feed; returns the figures."""
    random, done, refused, longest_ms = np.random.default_rng(seed), [], [], []
    computed_ms = []
    with Engine(repository) as engine, Feed(repository, rate) as beside:
        first = engine.generation.step
        while engine.generation.step < first + 2:
            time.sleep(POLL_S)
        began_s = time.monotonic()
        for number in range(count):
            time.sleep(random.uniform(0, 2) * EACH_S.get(rate, 1 / rate))
            step = engine.generation.step
            past, only = max(0, step - int(random.integers(1, BACK + 1))), PARTS[number % 2]
            engine.lock.turns_ms.clear()
            engine.lock.computed_ms.clear()
            try:
                reply = engine.processor.rollback(MODEL, Generation(1, past), only=only)
            except Exception as error:
                refused.append(f"{only}: {type(error).__name__}: {error}"[:200])
            else:
                done.append((only, past, step, reply.generation.step))
            longest_ms.append(max(engine.lock.turns_ms, default=0.0))
            computed_ms.append(max(engine.lock.computed_ms, default=0.0))
        seconds = time.monotonic() - began_s
        deltas = beside.end()
        failures = engine.failures
    wrong = differences(Replayed(repository), done)
    return {
        "rate": rate, "asked": count, "done": len(done), "refused": refused[:5], "wrong": wrong[:5], "deltas": deltas,
        "a_second": round(deltas / seconds, 1), "seconds": round(seconds), "failures": failures[:5],
        "median_ms": round(float(np.median(longest_ms)), 1), "most_ms": round(max(longest_ms), 1),
        "over": sum(ms > AIM_MS for ms in longest_ms), "computed_ms": round(max(computed_ms), 1),
    }  # fmt: skip


class Replayed:
    """The generations of a version's line, each part of each as one number: equal numbers, equal rows."""

    def __init__(self, repository: Path) -> None:
        files = open_repository(repository).version(MODEL, 1)
        change_log = ChangeLog.of(files, whole=True)
        links = list(change_log.history.back(change_log.history.head))[::-1]
        first = VersionContents(files, change_log, links[0])
        self._values: dict[tuple, int] = {}
        self._sums = dict.fromkeys(PARTS, 0)
        for name in TABLES:
            self._put(name, *first.table(name))
        for name, weights in first.dense.items():
            self._put(name, [0], [weights])
        self.sums = {links[0].step: dict(self._sums)}
        self.before, self.restores = {}, {}
        for parent, link in itertools.pairwise(links):
            delta = change_log.read_delta(link)
            for name, changed in delta.tables.items():
                self._put(name, changed.keys, changed.rows)
                for key in changed.removed:
                    self._set(name, int(key), 0)
            for name, weights in delta.dense.items():
                self._put(name, [0], [weights])
            self.sums[link.step], self.before[link.step] = dict(self._sums), parent.step
            if delta.restores is not None:
                self.restores[link.step] = delta.restores

    def _put(self, name: str, keys, rows) -> None:
        for key, row in zip(keys, rows):
            self._set(name, int(key), hash((name, int(key), np.ascontiguousarray(row).tobytes())))

    def _set(self, name: str, key: int, value: int) -> None:
        part = PARTS[name != TABLES[-1]]
        self._sums[part] ^= self._values.get((name, key), 0) ^ value
        self._values[name, key] = value


def differences(line: Replayed, done: list[tuple[str, int, int, int]]) -> list[str]:
    """What the files hold otherwise than the rollbacks promised. done: part, generation asked for, before, reached."""
    wrong = []
    for only, past, before, reached in done:
        steps = [step for step in line.sums if before <= step <= reached]
        # None, where the part had not changed since; what is at `before` is of an earlier rollback.
        restored = [step for step in steps if step > before and line.restores.get(step) == past]
        other = PARTS[PARTS.index(only) - 1]
        right = [
            step
            for step in restored or steps
            if line.sums[step][only] == line.sums[past][only]
            and (not restored or line.sums[step][other] == line.sums[line.before[step]][other])
        ]
        if not right:
            wrong.append(f"{only} to 1.{past}: not what 1.{reached} or one before it has")
    return wrong


def hold(repository: Path, count: int) -> dict:
    """Take a part back behind a gate, again and again; returns how many said so, and were served once released."""
    random, publisher, said, served = np.random.default_rng(5), Publisher(repository, MODEL), 0, 0
    with Engine(repository) as engine:
        for _ in range(count):
            users = np.sort(random.choice(USERS, CHANGED, replace=False))
            publisher.take_served()
            publisher.publish(entities={"profile": (users, entities.columns(users, int(random.integers(4))))})
            engine.processor.poll()
            before = engine.generation
            ChangeLog.of(open_repository(repository).version(MODEL, 1)).hold("looked at")
            try:
                engine.processor.rollback(MODEL, Generation(1, before.step - 1), only="entities")
            except Conflict as error:
                text = str(error)
                said += "HELD" in text and "freshet delta release" in text and engine.generation == before
            served += engine.model.release(1).step > before.step
    return {"asked": count, "said": said, "served": served}


def page(results: dict) -> str:
    lines = opening("Parts taken back beside a feed", __doc__ or "", results)
    lines += [
        f"Load average before the run: {results['machine']['load_average']}. Limit of the lock: {AIM_MS:g} ms.",
        "",
    ]
    heads = ["deltas a second", "published", "done", "refused", "wrong", "lock, median, ms", "longest, ms"]
    heads += [f"above {AIM_MS:g} ms", "longest, ms of processor time", "failures"]
    rows = [
        [f"{facts['rate']} (came to {facts['a_second']})", facts["deltas"], f"{facts['done']} of {facts['asked']}",
         facts["asked"] - facts["done"], len(facts["wrong"]), facts["median_ms"], facts["most_ms"],
         facts["over"], facts["computed_ms"], len(facts["failures"])]
        for facts in results["feeds"]
    ]  # fmt: skip
    lines += [table(heads, rows), ""]
    held = results["held"]
    lines += [
        f"Behind a gate: {held['said']} of {held['asked']} said HELD and the command, and {held['served']} were served "
        "once released.",
        "",
    ]
    for facts in results["feeds"]:
        lines += [f"- {text}" for key in ("refused", "wrong", "failures") for text in facts[key]]
    return "\n".join(lines).rstrip() + "\n"


def main() -> int:
    """0 when every part went back, and no turn of the lock was longer than its limit."""
    parser = argparse.ArgumentParser(prog="make -C loadtest part-rollbacks", description=__doc__)
    parser.add_argument("--rollbacks", type=int, default=100, help="beside each feed")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", default=str(RESULTS / "part-rollbacks.md"))
    options = parser.parse_args()
    results = {"machine": machine(), "origin": origin("-C loadtest part-rollbacks", "ARGS", sys.argv[1:]), "feeds": []}
    with tempfile.TemporaryDirectory(prefix="freshet-parts-") as folder:
        for rate in RATES:
            repository = Path(folder) / str(rate)
            entities.write_package(repository, users=range(USERS))
            results["feeds"].append(take_back(repository, rate, options.rollbacks, options.seed))
            print(results["feeds"][-1], flush=True)
        results["held"] = hold(repository, min(options.rollbacks, HELD_CALLS))
        print(results["held"], flush=True)
    Path(options.out).write_text(page(results))
    met = all(
        figures["done"] == figures["asked"]
        and not figures["wrong"]
        and not figures["failures"]
        and figures["most_ms"] <= AIM_MS
        for figures in results["feeds"]
    )
    held = results["held"]
    return int(not met or held["said"] != held["asked"] or held["served"] != held["asked"])


if __name__ == "__main__":
    sys.exit(main())
