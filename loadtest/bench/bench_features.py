"""`make -C loadtest features`: a user id and item ids against all features sent; loadtest/results/features.md.

One model, trained on synthetic clicks: six features of a user, from hashes in a redis-server of its own, and thirty of
an item, from an entity of the package. The same requests are made twice, once with the user's id and the items' ids
alone and once with every feature; the replies are compared to the bit before anything is timed. Front end, codec,
lookups, engine and the read of Redis run in this process, on one connection; its processor time over a run of requests
is divided by their number, the two sides take turns, and the time of the dense executable, measured alone, is taken off
both. The user's features are read from Redis in every request: their cache is off.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import redis
from rich.console import Console

from freshet_serving.models.config.train_config import parse_config
from freshet_serving.models.training.loop import TrainingRun
from freshet_serving.processor.engine import Processor
from freshet_serving.processor.extensions.online_features.store_settings import parse_store
from loadtest.bench import needs
from loadtest.bench.front import FrontEnd
from loadtest.bench.pairs import Pair, compare
from loadtest.load.encoding import InputTensor, Signature, encode_kserve
from loadtest.load.payload import Payload, of_requests
from loadtest.reports.report import RESULTS, begun, opening, store, table

USERS, ITEMS, EVENTS = 200, 2_000, 6_000
ITEM_IDS, ITEM_STRINGS, ITEM_FLOATS = 12, 5, 13
USER_IDS, USER_FLOATS = 3, 3
BODIES, REQUESTS, ROUNDS = 32, 40, 30
AIMS = {"json": (0.5, 20), "binary": (1.3, 12)}
ITEM_KINDS = {f"i{n}": "id" for n in range(ITEM_IDS)}
ITEM_KINDS |= {f"s{n}": "string" for n in range(ITEM_STRINGS)} | {f"x{n}": "float" for n in range(ITEM_FLOATS)}
USER_KINDS = {f"u{n}": "id" for n in range(USER_IDS)} | {f"v{n}": "float" for n in range(USER_FLOATS)}
DATATYPES = {"id": "INT64", "string": "BYTES", "float": "FP32"}


@dataclass(frozen=True, slots=True)
class FeatureValues:
    """The features of all users and of all items, by name."""

    user: Mapping[str, Any]
    item: Mapping[str, Any]

    @classmethod
    def draw(cls) -> FeatureValues:
        random = np.random.default_rng(7)
        return cls(_columns(USER_KINDS, USERS, random), _columns(ITEM_KINDS, ITEMS, random))


def _columns(kinds: Mapping[str, str], rows: int, random: np.random.Generator) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for name, kind in kinds.items():
        if kind == "id":
            made[name] = random.integers(0, 1_000_000, rows)
        elif kind == "string":
            made[name] = [f"{name} of kind {n}" for n in random.integers(0, 500, rows)]
        else:
            made[name] = random.normal(size=rows).astype(np.float32)
    return made


def train(folder: Path, values: FeatureValues) -> Path:
    """Train the model on clicks whose features are joined by key; returns the repository."""
    random = np.random.default_rng(11)
    pq.write_table(pa.table({"item_id": np.arange(ITEMS), **values.item}), folder / "items.parquet")
    user, item = random.integers(0, USERS, EVENTS), random.integers(0, ITEMS, EVENTS)
    events = {"user_id": user, "item_id": item, "clicked": (random.random(EVENTS) < 0.3).astype(np.float64)}
    events |= {name: np.asarray(column)[user] for name, column in values.user.items()}
    pq.write_table(pa.table(events), folder / "clicks.parquet")
    settings = parse_config(
        {
            "model": {"name": "ranker", "arch": "deepfm", "hidden": [16]},
            "data": {"path": str(folder / "clicks.parquet"), "label": "clicked"},
            "features": {
                "user_id": {"kind": "id", "side": "user", "dim": 8},
                "item_id": {"kind": "id", "side": "item", "dim": 8},
                **{name: {"kind": kind, "side": "user", **_dim(kind)} for name, kind in USER_KINDS.items()},
                **{name: {"kind": kind, "side": "item", **_dim(kind)} for name, kind in ITEM_KINDS.items()},
            },
            "entities": {
                "item": {"key": "item_id", "path": str(folder / "items.parquet"), "columns": list(ITEM_KINDS)}
            },
            "online_features": {
                "user": {
                    "key": "user_id",
                    "store": "main",
                    "format": "hash",
                    "features": list(USER_KINDS),
                    "types": {name: "int64" if kind == "id" else "double" for name, kind in USER_KINDS.items()},
                    "timeout_ms": 1000,
                }
            },
            "publish": {"repository": str(folder / "repository"), "full_rows": EVENTS, "delta_rows": 0},
        }
    )
    run = TrainingRun(settings)
    try:
        run.full()
    finally:
        run.stop()
    return folder / "repository"


def _dim(kind: str) -> dict[str, int]:
    return {} if kind == "float" else {"dim": 8}


def fill_store(port: int, values: FeatureValues) -> None:
    with redis.Redis(port=port) as client:
        for user in range(USERS):
            client.hset(f"user:{user}", mapping={name: repr(values.user[name][user].item()) for name in USER_KINDS})


def requests(values: FeatureValues, candidates: int, sent: bool, binary: bool) -> Payload:
    """Predict requests of one user and some items each. sent: they have every feature, not ids alone. binary: KServe v2
    with binary tensors instead of TensorFlow Serving's JSON."""
    random = np.random.default_rng(candidates)
    made, bodies = [], []
    for number in range(BODIES):
        user, items = int(random.integers(USERS)), random.choice(ITEMS, candidates, replace=False)
        columns: dict[str, Any] = {"user_id": np.array([user]), "item_id": items}
        if sent:
            columns |= {name: np.asarray(column)[[user]] for name, column in values.user.items()}
            columns |= {name: np.asarray(column)[items] for name, column in values.item.items()}
        if binary:
            kinds = {"user_id": "id", "item_id": "id", **USER_KINDS, **ITEM_KINDS}
            inputs = tuple(InputTensor(name, DATATYPES[kinds[name]]) for name in columns)
            lists = {n: c.tolist() if kinds[n] == "string" else c for n, c in columns.items()}
            made.append(encode_kserve(Signature("ranker", inputs, ("score",)), lists, number))
        else:
            bodies.append(json.dumps({"inputs": {n: c.tolist() for n, c in columns.items()}}).encode())
    return of_requests(made) if binary else Payload("/v1/models/ranker:predict", tuple(bodies))


@contextmanager
def served(repository: Path, redis_port: int) -> Iterator[FrontEnd]:
    """The model behind the HTTP front end of this process."""
    stores = [parse_store("main", {"url": f"redis://127.0.0.1:{redis_port}/0", "cache_ttl_s": 0})]
    front = FrontEnd(repository, None, 1, online_stores=stores)
    try:
        yield front
    finally:
        front.close()


def dense_ns(processor: Processor, candidates: int) -> float:
    """Processor time of the dense executables for a request, in nanoseconds: measured by running them alone."""
    replica = processor.host.predictor.replica("ranker")
    graph, buffers = replica.graphs.undivided, replica.borrow_buffers()
    with replica.pinned(0) as state:
        executables = state.executables[graph.name]
        cover = graph.costs.bucket_plan(candidates)
        runs = [buffers.get(executables[bucket], graph.name)[2] for bucket in cover]
        for run in runs * 20:
            run()
        began_ns = time.process_time_ns()
        for run in runs * 200:
            run()
        return (time.process_time_ns() - began_ns) / 200


def measure(front: FrontEnd, values: FeatureValues, form: str, candidates: int, rounds: int) -> dict[str, Any]:
    """Compare both kinds of requests; raise SystemExit if their replies differ.

    Returns:
        Processor time of a request outside the dense executable, of ids by_key and with every feature sent; the median
        of their ratio over pairs, with quartiles; bytes of a request.
    """
    by_key, sent = (requests(values, candidates, full, form == "binary") for full in (False, True))
    sides = [payload.messages("x", {}) for payload in (by_key, sent)]
    for one, other in zip(*sides):
        if scores(front.ask(one), form) != scores(front.ask(other), form):
            raise SystemExit(f"{form}, {candidates} items: a request of ids scores otherwise than with its features")
    dense, outside_ns = dense_ns(front.processor, candidates), [0]

    def side(messages: Sequence[bytes]) -> None:
        began_ns = time.process_time_ns()
        for number in range(REQUESTS):
            front.ask(messages[number % len(messages)])
        outside_ns[0] += time.process_time_ns() - began_ns - int(dense * REQUESTS)

    # The clock advances by what a side took outside the dense executable.
    pair = Pair(form, partial(side, sides[0]), partial(side, sides[1]), REQUESTS, "request")
    found = compare(pair, rounds, lambda: outside_ns[0])
    by_key_nbytes, sent_nbytes = (float(np.mean([len(body) for body in payload.bodies])) for payload in (by_key, sent))
    nbytes = {"by_key_nbytes": by_key_nbytes, "sent_nbytes": sent_nbytes}
    times = {"by_key_us": found.a_ns / 1e3, "sent_us": found.b_ns / 1e3}
    quartiles = {"ratio": found.ratio.median, "low": found.ratio.low, "high": found.ratio.high}
    return {"form": form, "candidates": candidates, **times, **quartiles, **nbytes}


def scores(reply: bytes, form: str) -> bytes:
    """The part of a reply that holds the scores."""
    body = reply.partition(b"\r\n\r\n")[2]
    return body[body.rindex(b"}") + 1 :] if form == "binary" else body


def page(results: Mapping[str, Any]) -> str:
    lines = opening("Features by key", __doc__ or "", results)
    rows = []
    for f in results["figures"]:
        most, fewer = AIMS[f["form"]]
        aim = f"{most}, 1/{fewer}" if f["candidates"] == 500 else ""
        shown = "{form}|{candidates}|{by_key_us:.0f}|{sent_us:.0f}|**{ratio:.2f}** ({low:.2f} to {high:.2f})"
        shown += "|{by_key_nbytes:,.0f}|{sent_nbytes:,.0f}"
        fewer_nbytes = f"1/{f['sent_nbytes'] / f['by_key_nbytes']:.0f}"
        rows.append([*shown.format_map(f).split("|"), fewer_nbytes, aim])
    heads = ["form", "items", "ids, us", "all sent, us", "ratio", "ids, bytes", "all sent, bytes", "bytes", "aim"]
    return "\n".join([*lines, table(heads, rows), ""])


def main() -> None:
    parser = argparse.ArgumentParser(prog="make -C loadtest features", description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--items", default="100,500", help="items of a request")
    parser.add_argument("--out", default=str(RESULTS / "features.md"))
    options = parser.parse_args()
    needs.program("redis-server")
    console, values = Console(), FeatureValues.draw()
    results = begun("features") | {"figures": []}
    with tempfile.TemporaryDirectory(prefix="freshet-features-") as place, needs.redis_server(Path(place)) as port:
        fill_store(port, values)
        with console.status("training"):
            repository = train(Path(place), values)
        with served(repository, port) as front:
            for form in AIMS:
                for candidates in map(int, options.items.split(",")):
                    with console.status(f"{form}, {candidates} items"):
                        figures = measure(front, values, form, candidates, options.rounds)
                    console.print(f"{form}, {candidates} items: {figures['ratio']:.2f} of the time with all sent")
                    results["figures"].append(figures)
    store(Path(options.out).parent, Path(options.out).stem, results, page(results))


if __name__ == "__main__":
    main()
