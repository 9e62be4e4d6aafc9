"""`make -C loadtest bench-state`: what memory for users saves of a request's processor time; results/state.md.

Two engines in one process answer the same requests in turn: one keeps what it computed of users (`user_state_mb`),
the other computes each user once a request. 256 candidates, full histories of items by Zipf (exponent 0.8), 64 floats a
row, 2 layers of 64, one thread. A ratio is the time without the store over the time with it, by pair of turns: its
median of the pairs, and in brackets its lower quartile. Deltas are published and served between turns, outside of what
is timed.

- **none**: no deltas. 95 % of the requests are of users who came before, popular ones more often (Zipf).
- **default**: a delta a second with the rows of 100 events, and new dense weights in each, as `freshet train`
  publishes. Each user comes back after 30 seconds. No state is exact then: what is measured is what the store costs.
- **dense_every**: the same with new dense weights once in 60 seconds (`[publish] dense_every`).

Time is that of the stream: ten requests and a delta are a second of it. Before the first pair both engines answer
requests until the store has decided how many users to look for, and users of the first ones have come back.

Hits and requests that were not looked for are shares of the requests that are timed. Networks, lengths and kinds of
deltas that the last run left out keep the figures of earlier runs.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from freshet_serving.processor.columns import Column, Ragged
from freshet_serving.processor.counter_block import by_name
from freshet_serving.processor.engine import PredictRequest, Processor, ProcessorConfig
from freshet_serving.processor.package.delta import Delta, TableDelta
from freshet_serving.processor.repository.log.change_log import ChangeLog
from freshet_serving.processor.repository.model_repository import Repository
from loadtest.bench.history_models import CANDIDATES, ITEMS, USERS, published
from loadtest.reports.report import machine, opening, origin, table

RESULTS = Path(__file__).parents[1] / "results"
CASES = (("hstu", 256), ("hstu", 1024), ("hstu", 4096), ("stca", 1024))
NONE, DEFAULT, DENSE_EVERY = DELTAS = ("none", "default", "dense_every")
AIMS = {("hstu", 1024, NONE): 2.5, ("hstu", 4096, NONE): 5.5, ("stca", 1024, DENSE_EVERY): 1.4}
LEAST = 0.97
ZIPF, RETURNING, EVENTS, DENSE_S, BACK_S, REQUESTS = 0.8, 0.95, 100, 60, 30, 10
"""Events and requests are of one second."""
MEGABYTES, WARM_REQUESTS, WARM_S = 4096, 6000, 120.0


@dataclass(frozen=True, slots=True)
class StateFigures:
    """One network at one length under one kind of deltas.

    Attributes:
        plain_us: Microseconds of the processor a request without the store.
        kept_us: The same with it.
        ratio: Lower quartile and median of the first over the second.
        hits: Share of the timed requests whose user was kept.
        unasked: Share of those that were not looked for.
    """

    network: str
    length: int
    deltas: str
    plain_us: float
    kept_us: float
    ratio: list[float]
    hits: float
    unasked: float


class Stream:
    """Requests of users in the order of time."""

    def __init__(self, network: str, length: int, deltas: str) -> None:
        """Begin without users; `network` is the model.

        Args:
            network: The model.
            length: Events of each history.
            deltas: One of DELTAS: without deltas popular users come more often, else each after BACK_S.
        """
        self.network, self._length, self._deltas = network, length, deltas
        self._random = np.random.default_rng(length)
        self._users: list[Mapping[str, Column]] = []
        self._chances = np.arange(1, ITEMS + 1) ** -ZIPF
        self._chances /= self._chances.sum()
        self._sent = 0

    def items(self, count: int) -> np.ndarray:
        """Return items, popular ones more often."""
        return self._random.choice(ITEMS, count, p=self._chances)

    def next(self) -> PredictRequest:
        """Return the next request."""
        self._sent += 1
        user = self._user()
        return PredictRequest(self.network, {**user, "item": self.items(CANDIDATES)})

    def _user(self) -> Mapping[str, Column]:
        users = self._users
        if self._deltas != NONE and self._sent > BACK_S * REQUESTS:
            return users[self._sent % len(users)]
        if self._deltas == NONE and len(users) > 20 and self._random.random() < RETURNING:
            return users[int(len(users) * self._random.random() ** (1 / (1 - ZIPF)))]
        columns: dict[str, Column] = {
            "user": self._random.integers(0, USERS, 1),
            "history.item": Ragged.of([self.items(self._length).tolist()]),
        }
        if self.network == "hstu":
            times = np.sort(self._random.integers(0, 10**6, self._length))
            columns["history.time"] = Ragged.of([times.tolist()])
        users.append(columns)
        return columns


class Deltas:
    """Publishes a delta for each second of a stream."""

    def __init__(self, repository: Path, stream: Stream, processor: Processor, deltas: str) -> None:
        self._log = ChangeLog.of(Repository(repository).version(stream.network))
        self._stream, self._processor, self._kind, self._second = stream, processor, deltas, 0
        self._random = np.random.default_rng(1)

    def publish(self) -> bool:
        """Publish the delta of the next second; return False if there are none."""
        if self._kind == NONE:
            return False
        self._second += 1
        model = self._stream.network
        version = self._processor.host.catalogue[model].pick(None)
        keys = {"user": self._random.integers(0, USERS, EVENTS), "item": self._stream.items(EVENTS)}
        tables = {}
        for spec in version.manifest.tables:
            changed = np.unique(keys[spec.name])
            rows = self._random.normal(0, 0.3, (len(changed), spec.dim)).astype(np.float32)
            tables[spec.name] = TableDelta(changed, rows, np.empty(0, np.int64))
        dense: dict[str, np.ndarray] = {}
        if self._kind == DEFAULT or not self._second % DENSE_S:
            dense = {name: value * np.float32(1.0001) for name, value in version.dense.items()}
        served = version.generation.step
        self._log.publish(Delta(model, 1, self._second, served, tables, dense, published_at=time.time()))
        return True


def spent_s(processor: Processor, requests: Sequence[PredictRequest]) -> float:
    """Return seconds of the processor."""
    started_s = time.process_time()
    for request in requests:
        processor.process(request)
    return time.process_time() - started_s


def measure(published_at: Path, network: str, length: int, deltas: str, rounds: int, warm: int) -> StateFigures:
    """Measure one kind of deltas on a copy of a published model.

    Args:
        published_at: The repository.
        network: The model.
        length: Events of each history.
        deltas: One of DELTAS.
        rounds: Pairs of turns.
        warm: Most requests before the first pair.
    """
    with tempfile.TemporaryDirectory(prefix="freshet-state-") as place:
        repository = Path(place) / "models"
        shutil.copytree(published_at, repository)
        options: dict[str, Any] = {"sessions": 1, "compute": "inline", "delta_guard": "off"}
        store = ProcessorConfig(str(repository), user_state_mb=MEGABYTES, **options)
        with (
            Processor.initialize(store) as kept,
            Processor.initialize(ProcessorConfig(str(repository), **options)) as plain,
        ):
            stream = Stream(network, length, deltas)
            log = Deltas(repository, stream, kept, deltas)

            def turn() -> list[PredictRequest]:
                if log.publish():
                    kept.poll(), plain.poll()
                return [stream.next() for _ in range(REQUESTS)]

            began_s, warmed = time.monotonic(), 0
            while warmed < min(warm, BACK_S * REQUESTS) or (warmed < warm and time.monotonic() - began_s < WARM_S):
                spent_s(kept, turn())
                warmed += REQUESTS
            first = turn()
            spent_s(kept, first), spent_s(plain, first)
            ours: list[float] = []
            theirs: list[float] = []
            counts = np.zeros(2)

            def looked() -> np.ndarray:
                counted = by_name(kept.predictor.replica(network).counted(), "user_state")
                return np.array([counted["hits"], counted["unasked"]], float)

            requests = first
            for n in range(rounds):
                earlier, requests = requests, turn()
                sides = ((kept, ours), (plain, theirs))[:: 1 if n % 2 else -1]
                # What a delta left in the processor's caches is of the side that applied it last.
                for side, _ in sides:
                    spent_s(side, earlier[-1:])
                counts -= looked()
                for side, times in sides:
                    times.append(spent_s(side, requests) / REQUESTS)
                counts += looked()
            answer, expected = (side.process(requests[-1]).outputs["score"] for side in (kept, plain))
            np.testing.assert_allclose(answer, expected, rtol=1e-4, atol=1e-5)
    ratios = [without / with_ for without, with_ in zip(theirs, ours)]
    low = statistics.quantiles(ratios, n=4)[0] if len(ratios) > 1 else ratios[0]
    shares = (counts / (rounds * REQUESTS)).tolist()
    plain_us, kept_us = (statistics.median(times) * 1e6 for times in (theirs, ours))
    return StateFigures(network, length, deltas, plain_us, kept_us, [low, statistics.median(ratios)], *shares)


def page(results: Mapping[str, Any]) -> str:
    """state.md."""
    lines, rows = opening("User state", __doc__ or "", results), []
    for f in (StateFigures(**figures) for figures in results["figures"]):
        aim = AIMS.get((f.network, f.length, f.deltas), LEAST)
        shown = f"**{f.ratio[1]:.2f}** ({f.ratio[0]:.2f})"
        shares = [f"{f.hits:.0%}", f"{f.unasked:.0%}"]
        rows.append(
            [f.network, f"{f.length:,}", f.deltas, *shares, f"{f.plain_us:,.0f}", f"{f.kept_us:,.0f}", shown, str(aim)]
        )
    heads = [
        "network",
        "events",
        "deltas",
        "hits",
        "not looked for",
        "without, us",
        "with the store, us",
        "ratio",
        "aim",
    ]
    return "\n".join([*lines, table(heads, rows), ""])


def main() -> None:
    parser = argparse.ArgumentParser(prog="make -C loadtest bench-state", description=__doc__)
    add = parser.add_argument
    add("--rounds", type=int, default=15)
    add("--warm", type=int, default=WARM_REQUESTS, help="most requests before the first pair")
    add("--lengths", type=int, nargs="+", default=sorted({length for _, length in CASES}))
    add("--networks", nargs="+", default=["hstu", "stca"], choices=["hstu", "stca"])
    add("--deltas", nargs="+", default=list(DELTAS), choices=DELTAS)
    add("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    console = Console(stderr=True, highlight=False)
    stored = options.out / "state.json"
    results: dict[str, Any] = json.loads(stored.read_bytes()) if stored.exists() else {"figures": []}
    results |= {"machine": machine(), "origin": origin("-C loadtest bench-state", "ARGS", sys.argv[1:])}
    cases = [case for case in CASES if case[0] in options.networks and case[1] in options.lengths]
    for network, length in cases:
        with tempfile.TemporaryDirectory(prefix="freshet-state-") as place:
            published(Path(place), network, length)
            for deltas in options.deltas:
                figures = measure(Path(place), network, length, deltas, options.rounds, options.warm)
                console.print(asdict(figures))
                order = [(*case, each) for case in CASES for each in DELTAS]
                of = {(f["network"], f["length"], f["deltas"]): f for f in [*results["figures"], asdict(figures)]}
                results["figures"] = [of[key] for key in order if key in of]
                stored.write_text(json.dumps(results, indent=1) + "\n")
                (options.out / "state.md").write_text(page(results))


if __name__ == "__main__":
    main()
