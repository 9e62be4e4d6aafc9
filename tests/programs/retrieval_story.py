"""`make -C loadtest retrieval-story`: best items while everything changes; loadtest/results/retrieval-story.md.

A live server of each layout serves a model with two towers, whose items have columns to filter on. Clients, over HTTP
and gRPC, ask without a pause for the best items of one to three users, with random filters, allowed, blocked and seen
items and numbers of items. Meanwhile deltas change rows, records, stocks, categories, users and both towers, remove and
bring back items, much is rolled back, also further than the undo log reaches, and workers are killed. Every list is
computed again by a checker of its own (tests/programs/list_checker.py), which knows what was published and shares no
code with the product, under the generations that the reply names. A request that is sent after a change was
acknowledged has to be answered by that change's generation or a later one.
"""

from __future__ import annotations

import argparse
import http.client
import json
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

import numpy as np

from freshet_serving import Client, Ragged
from freshet_serving.processor.errors import FreshetError
from loadtest.reports.report import machine, opening, origin, store, table
from tests.e2e.servers import ALONE, LiveServer
from tests.programs.list_checker import (
    BRANDS,
    CATEGORIES,
    TAGS,
    USERS,
    Asked,
    Change,
    ListChecker,
    Listed,
    changed,
    first_contents,
    restocked,
)
from tests.programs.live_changes import BEYOND, KILLS, ROLLBACKS, UNDO_DEPTH, LiveChanges
from tests.support.tower_shop import shop_delta, write_shop
from tests.support.towers import MODEL

RESULTS = Path(__file__).parents[2] / "loadtest" / "results"
LAYOUTS = {"alone": ALONE, "two workers": ("--workers", "2")}
ITEMS = 2000
SCHEMES = ("http", "http", "grpc")
ACTIONS = {"rows and records": 24, "stock": 30, "removals": 12, "user tower": 8, "item tower": 6, "everything": 4}
KEPT_STEPS, SHOWN = 300, 5
IN_STOCK = [[1, None], {"not": 0}]
NUMBERS = (1, 3, 10, 100, 10_000)


def random_filter(random):
    """A filter of up to four clauses; None for none."""

    def words(of, most=3):
        return [str(word) for word in random.choice([*of, "nobody's"], random.integers(1, most + 1), replace=False)]

    clauses = {
        "stock": [*IN_STOCK, [2, 5], {"in": [1, 3, 5]}, True],
        "price": [[None, 20], [9.9, None], [float(random.integers(0, 20)), 30.1], {"not": [5, 10]}],
        "rating": [[3, None], {"not": [None, 2.5]}, {"in": [0.5, 1, 4.5]}],
        "brand": [words(BRANDS), {"not": words(BRANDS)}, words(BRANDS)[0]],
        "tags": [words(TAGS), {"not": words(TAGS, 1)[0]}, words(TAGS)],
        "category": [{"in": random.integers(0, CATEGORIES + 1, 2).tolist()}, {"not": {"in": [1, 2]}}, [2, 4]],
    }
    names = random.permutation(list(clauses))[: random.integers(0, 5)]
    chosen = {str(name): clauses[name][random.integers(0, len(clauses[name]))] for name in names}
    return chosen or None


def random_request(ids, random):
    users = random.integers(0, USERS + 1, random.integers(1, 4)).tolist()
    lists = {}
    for name, share, most in (("allow", 0.2, 400), ("block", 0.4, 60), ("seen", 0.4, 60)):
        if random.random() < share:
            positions = range(len(users) if random.random() < 0.5 else 1)
            lists[name] = [random.choice(ids, random.integers(0, most)).tolist() for _ in positions]
            lists[name][0].append(2**62)
    return Asked(users, int(random.choice(NUMBERS)), random_filter(random), lists)


def ask_http(connection, asked):
    """A reply over HTTP, without the product's client."""
    inputs = {"user": asked.users, **asked.lists}
    if asked.wanted is not None:
        inputs["filter"] = [json.dumps(asked.wanted)]
    headers = {"content-type": "application/json", "x-top-items": str(asked.k)}
    connection.request("POST", f"/v1/models/{MODEL}:predict", json.dumps({"inputs": inputs}), headers)
    reply = connection.getresponse()
    data = reply.read()
    if reply.status != 200:
        raise RuntimeError(f"status {reply.status}: {data[:300]!r}")
    outputs, step = json.loads(data)["outputs"], step_of(reply.getheader("x-model-generation"))
    of = step_of(reply.getheader("x-item-generation") or f"1.{step}")
    return Listed(step, of, outputs["item_ids"], outputs["scores"], int(reply.getheader("x-unfilled") or 0))


def ask_grpc(client, asked):
    inputs = {"user": np.array(asked.users)}
    for name, lists in asked.lists.items():
        splits = np.cumsum([0, *map(len, lists)])
        inputs[name] = Ragged(np.array([i for ids in lists for i in ids], np.int64), splits)
    if asked.wanted is not None:
        inputs["filter"] = [json.dumps(asked.wanted)]
    reply = client.predict(MODEL, inputs, top_items=asked.k)
    step = step_of(reply.generation)
    of = step_of(reply.item_generation) if reply.item_generation else step
    return Listed(step, of, *(reply.outputs[name].tolist() for name in ("item_ids", "scores")), reply.unfilled)


def step_of(generation):
    return int(generation.partition(".")[2])


class Story(LiveChanges):
    """A server's contents and its clients. Its lock guards the checker and the counts too."""

    def __init__(self, live, folder, contents, seed):
        super().__init__(live, MODEL, folder, np.random.default_rng(seed), ACTIONS | {ROLLBACKS: 8, KILLS: 2})
        self._seed, self._stop, self._ids = seed, threading.Event(), contents.ids
        self.checker, self.counts, self.problems, self.lost = ListChecker(), Counter(), [], []
        self.checker.contents[0] = contents
        self.named = set()

    # Changes, by one thread.

    def delta(self, kind, step):
        change, after = self._changed(kind, self.checker.contents[self.line[-1]])
        with self.lock:
            self.checker.contents[step] = after
            self.checker.forget(self.forgotten(KEPT_STEPS))
        return shop_delta(after, change, step, self.line[-1])

    def _changed(self, name, before):
        """A random change of a kind, and the contents after it."""
        random, n = self.random, len(self._ids)

        def some(of, most):
            return random.choice(of, min(len(of), random.integers(1, most)), replace=False).tolist()

        listed = np.flatnonzero(before.there)
        if name == "stock":
            put = some(listed, 300)
            return Change(put=put), restocked(before, put, random, random.choice([0.2, 0.9]))
        towers = {"user tower": ("u",), "item tower": ("i",), "everything": ("u", "i", "scale", "bias")}
        change = Change(dense=towers.get(name, ()))
        if name == "user tower":
            change = Change(users=some(range(USERS), 4), dense=("u", *some(["scale", "bias"], 2)))
        elif name == "removals":
            items, categories = some(range(n), 80), some(range(CATEGORIES), 3)
            half, split = len(items) // 2, len(categories) // 2
            removed = [at for at in some(listed, 120) if at not in items[:half]]
            change = Change(items[:half], items[:half], removed, items[half:], categories[:split], categories[split:])
        elif name != "item tower":
            categories = some(range(CATEGORIES), 3) if random.random() < 0.3 else []
            change = Change(some(range(n), 200), some(range(n), 200), categories=categories, dense=change.dense)
        return change, changed(before, change, random)

    # Clients, each by a thread of its own.

    def __enter__(self):
        self._threads = [threading.Thread(target=self._ask_on, args=(n,), daemon=True) for n in range(len(SCHEMES))]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        for thread in self._threads:
            thread.join(120)
            if thread.is_alive():
                self.problems.append("a client waits for a reply without end")

    def _ask_on(self, number):
        random, scheme = np.random.default_rng((self._seed, number)), SCHEMES[number]
        client = Client(self.live.address(scheme), timeout_s=60) if scheme == "grpc" else None
        connection = http.client.HTTPConnection("127.0.0.1", self.live.http_port, timeout=60)
        while not self._stop.is_set():
            asked, acknowledged = random_request(self._ids, random), self.acknowledged
            try:
                listed = ask_grpc(client, asked) if client else ask_http(connection, asked)
            except (OSError, http.client.HTTPException, FreshetError, RuntimeError) as error:
                self.lost.append(f"{type(error).__name__}: {error}")
                connection.close()
                continue
            with self.lock:
                self._check(asked, listed, acknowledged)
        if client:
            client.close()

    def _check(self, asked, listed, acknowledged):
        problem = self.checker.problem(asked, listed)
        if not problem and self.is_stale(listed.step, acknowledged):
            problem = f"a reply is of step {listed.step}; acknowledged before was {self.order[acknowledged - 1]}"
            self.counts["stale"] += 1
        if problem:
            self.counts["wrong"] += 1
            self.problems.append(problem)
        self.named.add(listed.step)
        self.counts["replies"] += 1
        self.counts["lists"] += len(listed.ids)
        self.counts["items"] += sum(map(len, listed.ids))
        self.counts["filtered"] += asked.wanted is not None
        in_stock = (asked.wanted or {}).get("stock") in IN_STOCK
        self.counts["in stock"] += in_stock * sum(map(len, listed.ids))
        self.counts["sold out"] += in_stock and "sold out" in problem
        self.counts["lagging"] += listed.of != listed.step
        self.counts["unfilled"] += listed.unfilled > 0


def story(folder, options, seconds, seed):
    """One server; returns its figures."""
    folder.mkdir(parents=True)
    contents = first_contents(ITEMS, np.random.default_rng(seed))
    write_shop(folder / "repository", contents)
    arguments = (*options, "--delta-guard", "off", "--undo-depth", str(UNDO_DEPTH))
    with LiveServer(folder / "repository", *arguments, log=folder / "serve.log") as live:
        pauses, ends_s = np.random.default_rng((seed, 9)), time.monotonic() + seconds
        with Story(live, folder, contents, seed) as current:
            while time.monotonic() < ends_s and len(current.problems) < SHOWN:
                try:
                    current.act()
                except (RuntimeError, OSError, KeyError) as error:
                    current.problems.append(f"{type(error).__name__}: {error}")
                    break
                time.sleep(pauses.random() * 0.4)
    if len(current.lost) > len(SCHEMES) * current.done[KILLS]:
        often = ", ".join(f"{count} {text}" for text, count in Counter(current.lost).most_common(SHOWN))
        current.problems.append(f"{len(current.lost)} requests without an answer: {often}")
    figures = {"done": dict(current.done), "counts": dict(current.counts), "generations": len(current.named)}
    return figures | {"lost": len(current.lost), "problems": current.problems[:SHOWN], "seconds": round(seconds)}


def page(results):
    lines = opening("Best items while everything changes", __doc__ or "", results)
    kinds, layouts = [*ACTIONS, ROLLBACKS, BEYOND, KILLS], results["layouts"]
    counts = {
        "replies": "replies checked", "filtered": "of them with a filter", "lists": "lists", "items": "items in them",
        "in stock": "items that had to be in stock", "lagging": "replies of vectors that lagged",
        "unfilled": "unfilled replies", "wrong": "wrong replies", "sold out": "of them with items out of stock",
        "stale": "of them older than a change acknowledged before",
    }  # fmt: skip
    rows = [["minutes", *(f"{facts['seconds'] / 60:.1f}" for facts in layouts.values())]]
    rows += [[kind, *(facts["done"].get(kind, 0) for facts in layouts.values())] for kind in kinds]
    rows += [[text, *(f"{facts['counts'].get(n, 0):,}" for facts in layouts.values())] for n, text in counts.items()]
    rows.append(["generations that replies name", *(facts["generations"] for facts in layouts.values())])
    lost = "without an answer; at most one a client for each kill"
    rows.append([lost, *(facts["lost"] for facts in layouts.values())])
    problems = [f"- {layout}: {problem}" for layout, facts in layouts.items() for problem in facts["problems"]]
    return "\n".join([*lines, table(["", *layouts], rows), "", *problems, *([""] if problems else [])])


def main() -> int:
    """0 when every list was that of the generations that its reply names."""
    parser = argparse.ArgumentParser(prog="make -C loadtest retrieval-story", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30, help="of both layouts together [30]")
    parser.add_argument("--seed", type=int, default=1, help="[1]")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the report")
    options = parser.parse_args()
    about = {"machine": machine(), "origin": origin("-C loadtest retrieval-story", "ARGS", sys.argv[1:])}
    results = about | {"layouts": {}}
    with tempfile.TemporaryDirectory(prefix="freshet-retrieval-") as folder:
        for number, (layout, arguments) in enumerate(LAYOUTS.items()):
            seconds = options.minutes * 60 / len(LAYOUTS)
            figures = story(Path(folder) / str(number), arguments, seconds, options.seed + number)
            results["layouts"][layout] = figures
            print(f"{layout}: {figures}", flush=True)
    store(options.out, "retrieval-story", results, page(results))
    return int(any(figures["problems"] for figures in results["layouts"].values()))


if __name__ == "__main__":
    sys.exit(main())
