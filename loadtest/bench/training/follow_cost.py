"""`make -C loadtest follow-cost`: what following costs with histories and entities; results/follow-cost.md.

Three models of one shop's log follow a Redis stream each, in processes of their own, beside one real server of all:
`deepfm` over flat features; `din` over histories from events, which the trainer writes to an online store; and the same
with the items' category from an entity. In turn each gets a window of events, and the others wait.

Event to served: from before the window's first event is written until a reply of the server carries the generation that
has learned it, asked every few milliseconds with a user's id and an item, for which the store has the history.
Processor time is the trainer's from there until it is at rest again, a thousand events. Ratios are of the same round.
"""

from __future__ import annotations

import argparse
import http.client
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from loadtest.bench import needs
from loadtest.bench.event_logs import LAST_TWO, event_log
from loadtest.bench.training.follow_race import redis_sender
from loadtest.bench.training.follower import Follower, following, wait
from loadtest.load.launch import HOST, serving
from loadtest.reports.report import machine, opening, origin

RESULTS = Path(__file__).parents[2] / "results"
STARTUP_S, WINDOW_S, ASK_S, REST_S, WARM_ROUNDS = 1800.0, 300.0, 0.003, 0.3, 3
USER = '[features.user_id]\nkind = "id"\nside = "user"\n'
ITEM = '[features.item_id]\nkind = "id"\nside = "item"\n'
CATEGORY = '[features.category]\nkind = "id"\nside = "item"\n'
HISTORY = """[sequences.history]
columns = { item = "item_id" }
tables = { item = "item_id" }
from_events = "user_id"
where = "label"
store = "main"
"""
ENTITY = '[entities.item]\nkey = "item_id"\npath = "items.parquet"\ncolumns = ["category"]\n'
MODELS = {
    "flat": ("deepfm", USER + ITEM + CATEGORY),
    "histories": ("din", USER + ITEM + CATEGORY + HISTORY),
    "histories-entities": ("din", USER + ITEM + CATEGORY + HISTORY + ENTITY),
}


@dataclass(slots=True)
class Side:
    """One model that follows.

    Attributes:
        name: Its name.
        send: Writes rows to its stream.
        trainer: Its trainer.
        served_s: Seconds from event to served, by window.
        cpu_s: Processor seconds of a thousand events, by window.
        moved: Windows that changed the score of their last event's user.
    """

    name: str
    send: Callable[[dict[str, Any]], None]
    trainer: Follower
    served_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    moved: int = 0


class Asker:
    """A connection to the server. Raises RuntimeError if a reply is an error or lacks a feature of the store."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection(HOST, port, timeout=30)

    def serves(self, model: str) -> bool:
        """Return whether the server has a version of a model ready."""
        self._connection.request("GET", f"/v2/models/{model}/ready")
        reply = self._connection.getresponse()
        reply.read()
        return reply.status == 200

    def ask(self, model: str, columns: dict[str, list[int]]) -> tuple[str, float]:
        """Return the generation and the score of one row."""
        body = json.dumps({"inputs": columns})
        self._connection.request("POST", f"/v1/models/{model}:predict", body)
        reply = self._connection.getresponse()
        text = reply.read()
        if reply.status != 200:
            raise RuntimeError(f"{model}: {text[:500]!r}")
        outputs = json.loads(text)["outputs"]
        outputs = outputs["score"] if isinstance(outputs, dict) else outputs
        return str(reply.headers["x-model-generation"]), float(np.ravel(outputs)[0])


def window_of(columns: dict[str, Any], name: str, first: int, rows: int) -> dict[str, Any]:
    """Return rows as a model's stream has them: its category is the entity's if it has one."""
    names = ["user_id", "item_id", "label", "time"] + ([] if "entities" in name else ["category"])
    return {column: columns[column][first : first + rows].tolist() for column in names}


def training_file(name: str, path: str, repository: Path, options: argparse.Namespace) -> str:
    arch, features = MODELS[name]
    return (
        f'[model]\nname = "{name}"\narch = "{arch}"\n[data]\npath = "{path}"\nlabel = "label"\ntime = "time"\n'
        f'{features}[publish]\nrepository = "{repository}"\nfull_rows = {options.full_rows}\n'
        f"delta_rows = {options.window_rows}\n"
    )


def measured(side: Side, asker: Asker, rows: dict[str, Any], counts: bool) -> None:
    """Send one window, and wait until it is served."""
    probe = {"user_id": rows["user_id"][-1:], "item_id": rows["item_id"][-1:]}
    if "category" in rows:
        probe["category"] = rows["category"][-1:]
    before, score = asker.ask(side.name, probe)
    cpu_s, began_s = side.trainer.cpu_s(), time.monotonic()
    side.send(rows)
    while (answer := asker.ask(side.name, probe))[0] == before:
        if time.monotonic() - began_s > WINDOW_S:
            raise RuntimeError(f"{side.name}: no delta within {WINDOW_S:g} s")
        time.sleep(ASK_S)
    served_s = time.monotonic() - began_s
    time.sleep(REST_S)
    if counts:
        side.served_s.append(served_s)
        side.cpu_s.append((side.trainer.cpu_s() - cpu_s) / len(rows["label"]) * 1000)
        side.moved += answer[1] != score


def raced(options: argparse.Namespace) -> dict[str, Any]:
    """Return the figures of all models."""
    total = options.full_rows + (options.windows + WARM_ROUNDS) * options.window_rows
    columns = event_log(LAST_TWO, 1, total).columns
    with tempfile.TemporaryDirectory(dir=options.scratch) as place, ExitStack() as stack:
        scratch, sides, store = Path(place), list[Side](), ""
        for name in options.models:
            folder = scratch / name
            folder.mkdir()
            items, first = np.unique(columns["item_id"], return_index=True)
            entities = pa.table({"item_id": items, "category": columns["category"][first]})
            pq.write_table(entities, folder / "items.parquet")
            path, send = stack.enter_context(redis_sender(folder))
            # One store for all; the first model's server has it.
            store = store or f"main={path.rpartition('/')[0]}"
            config = training_file(name, path, scratch / "repository", options)
            where = ["--online-store", store] if "store" in MODELS[name][1] else []
            send(window_of(columns, name, 0, options.full_rows))
            sides.append(Side(name, send, stack.enter_context(following(folder, config, where))))
        for side in sides:
            wait(lambda side=side: side.trainer.value("freshet_train_version") >= 1, STARTUP_S, side.name)  # type: ignore[misc]
        server = stack.enter_context(serving(scratch / "repository", scratch / "serve.log", ["--online-store", store]))
        asker = Asker(server.http_port)
        for name in options.models:
            wait(lambda name=name: asker.serves(name), STARTUP_S, f"{name}: served")  # type: ignore[misc]
        until_s = time.monotonic() + 60 * options.minutes
        for window in range(-WARM_ROUNDS, options.windows):
            if time.monotonic() > until_s and window > 0:
                break
            first = options.full_rows + (window + WARM_ROUNDS) * options.window_rows
            for side in sides if window % 2 else sides[::-1]:
                measured(side, asker, window_of(columns, side.name, first, options.window_rows), window >= 0)
            if window >= 0 and window % 5 == 4:
                print(f"window {window + 1}", {s.name: round(s.served_s[-1], 2) for s in sides}, flush=True)
        return {
            side.name: {
                "served_s": [round(value, 4) for value in side.served_s],
                "cpu_s": [round(value, 4) for value in side.cpu_s],
                "moved": side.moved,
            }
            for side in sides
        }


def page(stored: dict[str, Any]) -> str:
    """Return the report."""
    models = stored["models"]
    flat = next(iter(models.values()))
    lines = [
        "| model | event to served, p50 s | p99 s | p50 over flat's | processor time, s a thousand events |"
        " over flat's | windows that moved the score |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for name, figures in models.items():
        p50, p99 = np.quantile(figures["served_s"], [0.5, 0.99])
        slower = statistics.median(a / b for a, b in zip(figures["served_s"], flat["served_s"]))
        dearer = statistics.median(a / b for a, b in zip(figures["cpu_s"], flat["cpu_s"]))
        lines.append(
            f"| {name} | {p50:.2f} | {p99:.2f} | {slower:.2f} | {statistics.median(figures['cpu_s']):.2f} |"
            f" {dearer:.2f} | {figures['moved']} of {len(figures['served_s'])} |"
        )
    text = f"Windows of {stored['window_rows']:,} events after a version of {stored['full_rows']:,}; ratios are medians"
    return "\n".join([*lines, "", f"{text} over rounds."])


def main() -> None:
    """Run the benchmark, and write the report."""
    parser = argparse.ArgumentParser(prog="make -C loadtest follow-cost", description=__doc__)
    add = parser.add_argument
    add("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    add("--full-rows", type=int, default=30_000)
    add("--window-rows", type=int, default=1_000)
    add("--windows", type=int, default=100)
    add("--minutes", type=float, default=30.0, help="after which no window begins")
    add("--scratch", type=Path, help="a folder on a disk, by default that of temporary files")
    add("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    needs.program("redis-server")
    stored: dict[str, Any] = {
        "machine": machine(),
        "origin": origin("-C loadtest follow-cost", "ARGS", sys.argv[1:]),
        "full_rows": options.full_rows,
        "window_rows": options.window_rows,
        "models": raced(options),
    }
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "follow-cost.json").write_text(json.dumps(stored, indent=1) + "\n")
    lines = [*opening("What following costs", __doc__ or "", stored), page(stored), ""]
    (options.out / "follow-cost.md").write_text("\n".join(lines))


if __name__ == "__main__":
    main()
