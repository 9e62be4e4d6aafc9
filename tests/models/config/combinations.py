"""Settings of a training file, each a change of one small file over one small log, to be combined with each other.

A setting is written as a user would write it beside the others: the network of a file with histories reads histories,
a cross takes the history that is there.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

ROWS, FULL_ROWS, BATCH = 128, 96, 32
NAME = "shop"


@dataclass
class Job:
    """What `freshet train` is started with.

    Attributes:
        raw: The parsed file.
        new_version: Whether --new-version follows.
        processes: As in --processes.
    """

    raw: dict[str, Any]
    new_version: bool = False
    processes: int = 1

    def add(self, section: str, **keys: Any) -> None:
        self.raw.setdefault(section, {}).update(keys)

    def table(self, name: str, keys: dict[str, Any]) -> None:
        self.raw.setdefault("tables", {}).setdefault(name, {}).update(keys)


def write_tables(folder):
    """Write the log, in two files of a folder, and the tables of users and items."""
    random = np.random.default_rng(1)
    lengths = random.integers(0, 5, ROWS)
    splits = pa.array(np.append(0, np.cumsum(lengths)).astype(np.int32))
    listed = pa.ListArray.from_arrays(splits, pa.array(random.integers(0, 20, lengths.sum())))
    users, items = random.integers(0, 12, ROWS), random.integers(0, 20, ROWS)
    log = {
        "user": users, "item": items, "action": np.where(items % 2, "buy", "view"), "age": random.random(ROWS) * 50,
        "click": (random.random(ROWS) < 0.4).astype(np.float64), "buy": (random.random(ROWS) < 0.2).astype(np.float64),
        "ts": 1_700_000_000 + 3_600 * np.arange(ROWS), "items": listed,
    }  # fmt: skip
    (folder / "log").mkdir()
    table = pa.table(log)
    pq.write_table(table.slice(0, FULL_ROWS), folder / "log" / "0.parquet")
    pq.write_table(table.slice(FULL_ROWS), folder / "log" / "1.parquet")
    pq.write_table(pa.table({"item": np.arange(20), "category": np.arange(20) % 3}), folder / "items.parquet")
    pq.write_table(pa.table({"user": np.arange(12), "city": np.arange(12) % 4}), folder / "users.parquet")


def _events(job: Job, folder) -> None:
    history = {"columns": {"item": "item", "action": "action"}, "tables": {"item": "item"}, "from_events": "user"}
    job.add("sequences", history=history | {"max_length": 4})
    job.add("model", arch="din")


def _lists(job: Job, folder) -> None:
    job.add("sequences", viewed={"columns": {"item": "items"}, "tables": {"item": "item"}, "max_length": 4})
    job.add("model", arch="din")


def _next_item(job: Job, folder) -> None:
    if "history" not in job.raw.get("sequences", {}):
        _events(job, folder)
    job.raw["sequences"]["history"] |= {"ties": "file", "columns": {"item": "item"}}
    job.add("model", arch="sasrec_next", layers=1, dropout=0.0)
    del job.raw["model"]["hidden"]
    job.add("train", epochs=1)


def _crosses(job: Job, folder) -> None:
    if "sequences" not in job.raw:
        _lists(job, folder)
        job.add("model", arch="deepfm")
    name = "history" if "history" in job.raw["sequences"] else "viewed"
    pair = {"cross": [f"{name}.item", "item"], "take": -2, "decay": "position", "buckets": 1_000, "dim": 4}
    job.add("features", pair=pair)


def _labels(job: Job, folder) -> None:
    job.add("data", label=["click", "buy"])
    if job.raw["model"]["arch"] != "sasrec_next":
        job.add("model", arch="mmoe", experts=2)
        del job.raw["model"]["hidden"]


def _online(job: Job, folder) -> None:
    if job.raw["model"]["arch"] == "sasrec_next":
        features, types = ["history.item"], {"history.item": "int64_list"}
    else:
        features, types = ["age"], {"age": "float"}
        job.add("features", age={"kind": "float", "side": "user"})
    group = {"key": "user", "format": "hash", "features": features, "types": types}
    if "user_table" in job.raw and job.raw["model"]["arch"] != "sasrec_next":
        job.raw["user_table"]["user"]["serve"] = "online"
    job.add("online_features", user=group)


def _entities(job: Job, folder) -> None:
    if job.raw["model"]["arch"] == "sasrec_next":
        job.add("features", category={"kind": "id", "dim": 4})
        job.raw["sequences"]["history"]["columns"] |= {"category": "category"}
    else:
        job.add("features", category={"kind": "id", "side": "item", "dim": 4})
    job.add("entities", item={"key": "item", "path": str(folder / "items.parquet"), "columns": ["category"]})


def _user_table(job: Job, folder) -> None:
    job.add("features", city={"kind": "id", "dim": 4})
    if job.raw["model"]["arch"] == "sasrec_next":
        job.raw["sequences"]["history"]["columns"] |= {"city": "city"}
    job.add("user_table", user={"key": "user", "path": str(folder / "users.parquet"), "columns": ["city"]})


def _wide(job: Job, folder) -> None:
    for name in {"item", "pair"} & job.raw["features"].keys():
        job.raw["features"][name]["wide"] = True


def _counts(job: Job, folder) -> None:
    for name in {"item", "pair", "category", "city"} & job.raw["features"].keys():
        job.raw["features"][name]["counts"] = True


def _processes(job: Job, folder) -> None:
    job.processes = 2


def _new_version(job: Job, folder) -> None:
    job.new_version = True


SETTINGS = {
    "events": _events,
    "lists": _lists,
    "next_item": _next_item,
    "entities": _entities,
    "user_table": _user_table,
    "online": _online,
    "crosses": _crosses,
    "labels": _labels,
    "wide": _wide,
    "counts": _counts,
    "processes": _processes,
    "new_version": _new_version,
    "int8": lambda job, folder: job.add("publish", table_dtype="int8"),
    "int8_network": lambda job, folder: job.add("publish", precision="int8", max_error=0.01, max_auc_change=1.0),
    "loss": lambda job, folder: job.add("model", loss="tests.models.parallel.losses:plain"),
    "follow": lambda job, folder: job.add("data", follow=True),
    "admission": lambda job, folder: job.table("item", {"admit_after": 2}),
    "memory": lambda job, folder: job.table("user", {"memory_mb": 1}),
    "hashed": lambda job, folder: job.table("user", {"hash": "quotient_remainder", "hash_rows": 8}),
    "gate": lambda job, folder: job.add("publish", gate={"held_out_drop": 0.9, "rows": 0.1}),
    "guard": lambda job, folder: job.add("guard", auc_drop=0.9),
}  # fmt: skip
"""By name, in the order in which they change a file."""
PAIRS = [*combinations(SETTINGS, 2)]
TRIPLES = [*combinations(SETTINGS, 3)]
FIELDS = {
    "next_item lists": "sequences",
    "next_item crosses": "features.pair.cross",
    "next_item labels": "model.arch",
    "next_item wide": "features.item.wide",
    "next_item counts": "features.item.counts",
    "next_item int8_network": "publish.precision",
    "next_item loss": "model.loss",
    "next_item memory": "tables.user",
    "next_item hashed": "tables.user",
    "next_item guard": "guard.auc_drop",
    "labels wide": "features.item.wide",
    "labels counts": "features.item.counts",
    "counts loss": "features.item.counts",
    "events labels": "sequences.history",
    "lists labels": "sequences.viewed",
}


INEXACT = {"int8_network": 0.01}
"""Settings under which scores are not those of the trainer to the last bit, each with how far they may be off."""


def _in_order(names) -> tuple[str, ...]:
    return tuple(name for name in SETTINGS if name in names)


REFUSED = {_in_order(pair.split()): field for pair, field in FIELDS.items()}
"""Pairs that do not fit, with the key that the line names."""
REPAIRED = {("events", "labels"): "crosses", ("lists", "labels"): "crosses"}
"""Pairs that do not fit alone, each with a setting beside which they do: it makes features of the history."""
REFUSED_LATER = {("next_item", "processes"): "--processes: expected 1 for a next-item network"}
"""Pairs that are refused once the run has opened the data, with the beginning of the line."""


def pairs_of(names) -> set[tuple[str, str]]:
    """Return the pairs of some settings."""
    return set(combinations(_in_order(names), 2))


def settings_together(inexact=()) -> list[tuple[str, ...]]:
    """Return a few large sets of settings that fit each other and have every pair that does.

    Args:
        inexact: Names of INEXACT settings: each set has one of them, and every pair of theirs is in a set. Left out:
            sets of exact settings alone.
    """
    left_out = INEXACT.keys() - {*inexact}
    refused = REFUSED.keys() | REFUSED_LATER.keys() | {pair for pair in PAIRS if {*pair} & left_out}
    missing = [pair for pair in PAIRS if pair not in refused and (not inexact or {*pair} & {*inexact})]
    sets = list[tuple[str, ...]]()
    while missing:
        together = list(missing[0])
        while more := [s for s in SETTINGS if s not in together and not pairs_of([*together, s]) & refused]:
            new = [len((pairs_of([*together, s]) - pairs_of(together)) & set(missing)) for s in more]
            together.append(more[new.index(max(new))])
        sets.append(_in_order(together))
        missing = [pair for pair in missing if pair not in pairs_of(together)]
    return sets


def training_job(names, folder, repository) -> Job:
    """Return what training is started with under some settings.

    Args:
        names: Names of the settings.
        folder: Where write_tables has written.
        repository: Folder of the models.
    """
    job = Job({
        "model": {"name": NAME, "arch": "deepfm", "hidden": [4]},
        "data": {"path": str(folder / "log"), "format": "parquet", "label": "click", "time": "ts"},
        "features": {
            "user": {"kind": "id", "side": "user", "dim": 4},
            "item": {"kind": "id", "side": "item", "dim": 4},
        },
        "train": {"batch_rows": BATCH, "optimizer": "adagrad", "learning_rate": 0.1, "seed": 1},
        "publish": {"repository": str(repository), "full_rows": FULL_ROWS, "delta_rows": ROWS - FULL_ROWS},
    })  # fmt: skip
    for name in _in_order(names):
        SETTINGS[name](job, folder)
    return job
