"""`make -C loadtest feast`: features that Feast wrote to Redis, read by both; loadtest/results/feast.md.

Feast runs in an environment of its own (feast_side.py): it makes a feature repository, applies it, writes features to a
redis-server through its own online store and write_to_online_store, and answers get_online_features. Freshet reads the
same Redis and the same registry.db without Feast. Compared to the bit: each value of each type, for several views,
several join keys, a feature service with an alias and mapped join keys, entities that are missing, features that are
null. Where the two differ on purpose, the table says so: Feast's own server calls what is missing PRESENT with a null,
and answers a value beyond its time to live, which in training its offline store leaves out; Freshet says NOT_FOUND and
EXPIRED, and DAMAGED of numbers that are infinite as float32, which no model accepts.

The first times are of one user's features, in process on both sides, one call after another: no server, no network but
loopback. The last table is of a store in trouble, which store_outages.py makes.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from freshet_serving.processor.clock import SystemClock
from freshet_serving.processor.columns import Column, Ragged, Strings
from freshet_serving.processor.extensions.online_features.group_sections import parse_group
from freshet_serving.processor.extensions.online_features.online_columns import OnlineColumns, Status
from freshet_serving.processor.extensions.online_features.opening import open_stores
from freshet_serving.processor.extensions.online_features.reader import OnlineFeatures
from freshet_serving.processor.extensions.online_features.section import FeatureGroup
from freshet_serving.processor.extensions.online_features.store_settings import OnlineStoreSettings
from freshet_serving.processor.extensions.online_features.value_types import VALUE_TYPES
from loadtest.bench import needs
from loadtest.bench.store_outages import GOAL_MS, TIMEOUT_MS, Outage, measure_outages, redis_server
from loadtest.reports.report import machine, opening, origin, table

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "loadtest" / "results"
SIDE = Path(__file__).with_name("feast_side.py")
NO_FEAST = "no Python has feast[redis]==0.67.0: name one in FRESHET_FEAST_PYTHON"
VENV_PYTHON = ROOT / "build" / "feast-venv" / "bin" / "python"
PROJECT = "shop"
TIMED_READS, OUTAGE_READS = 1000, 500
KINDS = ("int64", "double", "float", "string", "bool", "int32", "bytes", "unix_timestamp")
TIMED = [f"types:{kind}_0" for kind in KINDS]
TIMED += [f"types:{kind}_{n}" for kind in ("int64", "double") for n in range(1, 9)]
TIMED += ["profile:age", "profile:segment", "profile:spend", "history:items", "history:times", "history:tags"]

# What the store holds is written down in feast_side.py: user 7 has everything, 8's profile is two days old with a time
# to live of a day, 9 has an age alone, 10 nothing.
REQUESTS: dict[str, dict[str, Any]] = {
    "one user, every type": {"features": "types:*", "entities": {"user_id": [7]}},
    "four users, three views": {
        "features": ["profile:age", "profile:segment", "profile:spend", "profile:unset", "history:items",
                     "history:times", "history:tags"],
        "entities": {"user_id": [7, 8, 9, 10, 7]},
    },
    "two join keys": {
        "features": ["region:visits", "region:notes", "profile:age"],
        "entities": {"user_id": [7, 7, 7, 8], "country": ["de", "fr", "es", "de"]},
    },
    "a feature service": {
        "service": "ranking", "entities": {"user_id": [7, 9], "home_country": ["fr", "de"]},
    },
    "a string key": {"features": ["by_country:value"], "entities": {"country": ["de", "it", "äöü"]}},
    "an int32 key": {"features": ["by_small:value"], "entities": {"small": [-3, 5, 4]}},
    "a bytes key": {"features": ["by_blob:value"], "entities": {"blob": ["00ff7b787d", b"frame".hex(), "00"]}},
    "a timestamp key": {"features": ["by_moment:value"], "entities": {"moment": [1_700_000_000, 1_600_000_000, 0]}},
}  # fmt: skip


@dataclass(slots=True)
class Comparison:
    """Answers of both sides.

    Attributes:
        values: Values compared.
        types: Types of values among them.
        different: A line for each value that is not the same to the bit.
        statuses: How often each pair of statuses (Feast's, ours) was met.
        counts: Values compared by request.
    """

    values: int = 0
    types: set[str] = field(default_factory=set)
    different: list[str] = field(default_factory=list)
    statuses: dict[tuple[str, str], int] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)


def feast_python() -> str:
    """Return a Python that has Feast, or ""."""
    named = os.environ.get("FRESHET_FEAST_PYTHON", "")
    return named or (str(VENV_PYTHON) if VENV_PYTHON.exists() else "")


def run_feast(python: str, *words: str, sent: Any = None) -> Any:
    """Run Feast's side and return what it prints.

    Args:
        python: The Python that has Feast.
        words: Arguments.
        sent: What it reads, as JSON.
    """
    # Feast reports its use to its makers unless told not to.
    environment = os.environ | {"FEAST_USAGE": "False", "PYTHONPATH": ""}
    text = "" if sent is None else json.dumps(sent)
    command = [python, "-W", "ignore", str(SIDE), *words]
    result = subprocess.run(command, input=text, capture_output=True, text=True, check=False, env=environment)
    if result.returncode:
        raise RuntimeError(f"Feast's side failed: {result.stderr[-2000:]}")
    return json.loads(result.stdout.strip().splitlines()[-1])


def group_of(request: Mapping[str, Any], folder: Path, features: Sequence[str]) -> FeatureGroup:
    """Return the group that reads what a request asks for, from the registry that Feast has written.

    Args:
        request: One of REQUESTS.
        folder: Feast's folder.
        features: References of its features.
    """
    section: dict[str, Any] = {"key": list(request["entities"]), "project": PROJECT, "registry": "registry.db"}
    section |= {"service": request["service"]} if "service" in request else {"features": list(features)}
    return parse_group("user", section | {"timeout_ms": 5000.0}, folder)


def columns_of(entities: Mapping[str, Sequence[Any]]) -> dict[str, Column]:
    """Return a request's keys as columns; bytes are in hexadecimal."""
    found: dict[str, Column] = {}
    for key, values in entities.items():
        if key == "blob":
            found[key] = Strings.of([bytes.fromhex(value) for value in values])
        else:
            found[key] = Strings.of(list(values)) if isinstance(values[0], str) else np.array(values, np.int64)
    return found


def raw_of(column: Column, row: int) -> Any:
    """Return a row's value in the form of feast_side.raw_of()."""
    if isinstance(column, Ragged):
        start, end = int(column.row_splits[row]), int(column.row_splits[row + 1])
        if isinstance(column.values, Strings):
            return [text.hex() for text in column.values.tolist()[start:end]]
        return column.values[start:end].tobytes().hex()
    return column.tolist()[row].hex() if isinstance(column, Strings) else column[row : row + 1].tobytes().hex()


def compare(python: str, port: int, folder: Path) -> Comparison:
    """Have Feast write, and compare what both sides read.

    Args:
        python: A Python that has Feast.
        port: Port of an empty redis-server.
        folder: An empty folder, for Feast's registry.
    """
    written = run_feast(python, "write", str(folder), str(port))
    types = next(row["values"] for row in written if row["view"] == "types")
    features_of = {
        name: [f"types:{n}" for n in types]
        if request.get("features") == "types:*"
        else list(request.get("features", []))
        for name, request in REQUESTS.items()
    }
    asked = [
        {k: v for k, v in request.items() if k != "features"}
        | ({"features": features_of[name]} if features_of[name] else {})
        for name, request in REQUESTS.items()
    ]
    answers = run_feast(python, "answer", str(folder), str(port), sent=asked)
    stores = open_stores([OnlineStoreSettings("main", f"redis://127.0.0.1:{port}")], SystemClock())
    found = Comparison()
    try:
        for (name, request), answer in zip(REQUESTS.items(), answers):
            group = group_of(request, folder, features_of[name])
            features = OnlineFeatures([group], stores, {}, SystemClock())
            read = features.read(features.keys_of(columns_of(request["entities"])))
            _compare(name, group, answer, read, found)
    finally:
        stores["main"].store.close()
    return found


def _compare(name: str, group: FeatureGroup, answer: Any, read: OnlineColumns, found: Comparison) -> None:
    names = {one: i for i, one in enumerate(answer["names"])}
    alias = {"region": "home"} if "home__visits" in names else {}
    for feature in group.features:
        i = names[f"{alias.get(feature.view, feature.view)}__{feature.feature}"]
        column = read.columns[feature.input]
        for row, (value, status) in enumerate(zip(answer["values"][i], answer["statuses"][i])):
            ours = Status(int(column.status[row]))
            theirs = "PRESENT" if status == 1 else str(status)
            pair = (f"{theirs}, null" if value is None else theirs, ours.name)
            found.statuses[pair] = found.statuses.get(pair, 0) + 1
            found.values += 1
            found.counts[name] = found.counts.get(name, 0) + 1
            if ours is Status.PRESENT:
                found.types.add(feature.type)
            same = raw_of(column.values, row) == value if ours is Status.PRESENT else value is None
            infinite = ours is Status.DAMAGED and _is_infinite(feature.type, value)
            if not same and not infinite and ours is not Status.EXPIRED:
                found.different.append(f"{name}: {feature.view}:{feature.feature}, row {row}: {ours.name}")


def _is_infinite(kind: str, value: Any) -> bool:
    """Return True if a value has a number that float32 has no room for."""
    dtype = VALUE_TYPES[kind].dtype
    if value is None or dtype is None or dtype.kind != "f":
        return False
    with np.errstate(over="ignore"):
        return bool(np.isinf(np.frombuffer(bytes.fromhex(value), dtype).astype(np.float32)).any())


def measure(python: str, port: int, folder: Path) -> dict[str, list[float]]:
    """Return seconds of reads of thirty features of one user: Feast's, ours from Redis, ours from memory."""
    request = {"features": TIMED, "entities": {"user_id": [7]}, "times": TIMED_READS}
    theirs = run_feast(python, "answer", str(folder), str(port), sent=[request])[0]["times_s"]
    group = parse_group("user", {"key": "user_id", "project": PROJECT, "registry": "registry.db", "features": TIMED,
                                 "timeout_ms": 1000.0}, folder)  # fmt: skip
    times = {"Feast": theirs}
    entities: dict[str, Column] = {"user_id": np.array([7], np.int64)}
    for name, ttl_s in (("Freshet, from Redis", 0.0), ("Freshet, from its cache", 3600.0)):
        settings = OnlineStoreSettings("main", f"redis://127.0.0.1:{port}", cache_ttl_s=ttl_s)
        stores = open_stores([settings], SystemClock())
        features = OnlineFeatures([group], stores, {}, SystemClock())
        taken = []
        for _ in range(TIMED_READS):
            began = time.perf_counter()
            features.read(features.keys_of(entities))
            taken.append(time.perf_counter() - began)
        stores["main"].store.close()
        times[name] = taken
    return times


def page(
    found: Comparison, times: Mapping[str, Sequence[float]], outages: Sequence[Outage], about: Mapping[str, Any]
) -> str:
    """Return the report.

    Args:
        found: What was compared.
        times: Seconds of each side's reads.
        outages: Reads of a store in each of its states.
        about: The machine and origin of the figures.
    """
    lines = [
        *opening("Feast's features, read by Freshet", __doc__ or "", about),
        f"Load average before the run: {about['machine']['load_average']}.",
        "",
        f"{found.values} values of {len(found.types)} types compared with feast 0.67.0; {len(found.different)} differ.",
        "",
        *(f"- {line}" for line in found.different[:50]),
        table(["request", "values compared"], [[name, str(count)] for name, count in found.counts.items()]),
        "",
        table(
            ["Feast's own answer", "Freshet's", "values"],
            [[theirs, ours, str(count)] for (theirs, ours), count in sorted(found.statuses.items())],
        ),
        "",
        table(
            [f"{len(TIMED)} features of one user, a list of 256 among them", "p50 ms", "p99 ms"],
            [
                [name, *(f"{1000 * float(np.percentile(seconds, share)):.2f}" for share in (50, 99))]
                for name, seconds in times.items()
            ],
        ),
        "",
        f"Freshet's reads of one user each from a store in trouble, timeout_ms = {TIMEOUT_MS:g}, no cache; the goal is "
        f"{GOAL_MS:g} ms.",
        "",
        table(
            ["the store", "p50 ms", "p99 ms", "most ms", "beyond the goal", "values", "keys lost"],
            [
                [
                    outage.state,
                    *(f"{float(np.percentile(outage.times_ms, share)):.2f}" for share in (50, 99, 100)),
                    str(sum(taken > GOAL_MS for taken in outage.times_ms)),
                    counted(outage.values),
                    counted(outage.losses),
                ]
                for outage in outages
            ],
        ),
        "",
    ]
    return "\n".join(lines)


def counted(counts: Mapping[str, int]) -> str:
    """Return counts in words."""
    return ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in counts.items()) or "none"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the report")
    out = parser.parse_args().out
    console, python = Console(), feast_python()
    needs.program("redis-server")
    if not python:
        needs.refuse(NO_FEAST)
    about = {"machine": machine(), "origin": origin("-C loadtest feast", "ARGS", sys.argv[1:])}
    with redis_server() as port, tempfile.TemporaryDirectory() as folder:
        found = compare(python, port, Path(folder))
        times = measure(python, port, Path(folder))
    outages = measure_outages(OUTAGE_READS)
    text = page(found, times, outages, about)
    (out / "feast.md").write_text(text)
    console.print(text)
    return 1 if found.different else 0


if __name__ == "__main__":
    sys.exit(main())
