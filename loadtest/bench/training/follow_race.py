"""`make -C loadtest follow`: what it is worth to publish all the time; loadtest/results/follow.md.

`freshet train --follow` learns MovieLens' events in their order, in a process of its own, as they come by a folder of
Parquet files, by a Redis stream and by Kafka. Two engines serve what it publishes: one follows its deltas, the other
looks at the repository once a simulated day. Each stretch of events is scored by both before it is sent to the trainer,
so no score has seen its label, and the learner is the same: the difference is publication alone.

Kafka is librdkafka's mock cluster, in this process: no real broker was at hand. It keeps the last 5 MB of a partition,
so its full version is made of the last KAFKA_ROWS events before the same stretches.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from freshet_serving.compiler.building.auc import auc
from freshet_serving.models.data.movielens import MovieLensSource
from freshet_serving.models.data.source import Batch, Field
from freshet_serving.processor.columns import Strings
from freshet_serving.processor.engine import PredictRequest, Processor, ProcessorConfig
from loadtest.bench import needs
from loadtest.load.launch import free_ports, freshet, started
from loadtest.reports.report import RESULTS, begun, opening, store, table

MODEL = "followed"
KINDS = {"user_id": "id", "movie_id": "id", "gender": "string", "occupation": "id", "year": "id", "age": "id"}
COLUMNS = tuple(Field(name, kind) for name, kind in KINDS.items())
DAY_S = 86_400.0
STARTUP_S, STRETCH_S, LOOK_S = 300.0, 120.0, 0.02
SCORED_ROWS = 500
FULL_ROWS, STRETCH_ROWS, STRETCHES = 500_000, 1_000, 150
KAFKA_ROWS = 25_000

Send = Callable[[dict[str, Any]], None]


def rows_of(batch: Batch) -> dict[str, Any]:
    columns = {name: _plain(column) for name, column in batch.columns.items()}
    assert batch.time is not None
    return columns | {"liked": batch.label.tolist(), "ts": batch.time.tolist()}


def _plain(column: Any) -> list[Any]:
    values: list[Any] = column.tolist()
    return [word.decode() for word in values] if isinstance(column, Strings) else values


@contextmanager
def folder_sender(scratch: Path) -> Iterator[tuple[str, Send]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder = scratch / "events"
    folder.mkdir()

    def send(rows: dict[str, Any]) -> None:
        path = folder / f"{len(list(folder.iterdir())):06}.parquet"
        pq.write_table(pa.table(rows), path.with_name(f".{path.name}"))
        path.with_name(f".{path.name}").rename(path)

    yield str(folder), send


@contextmanager
def redis_sender(scratch: Path) -> Iterator[tuple[str, Send]]:
    import redis

    with needs.redis_server(scratch) as port, redis.Redis(port=port) as client:

        def send(rows: dict[str, Any]) -> None:
            with client.pipeline(transaction=False) as pipeline:
                for values in zip(*rows.values()):
                    pipeline.xadd("events", dict(zip(rows, values)))
                pipeline.execute()

        yield f"redis://127.0.0.1:{port}/events", send


@contextmanager
def kafka_sender(scratch: Path) -> Iterator[tuple[str, Send]]:
    import confluent_kafka as ck

    producer = ck.Producer({"test.mock.num.brokers": 1, "bootstrap.servers": "none", "log_level": 0, "linger.ms": 5})
    broker = next(iter(producer.list_topics(timeout=10).brokers.values()))

    def send(rows: dict[str, Any]) -> None:
        for values in zip(*rows.values()):
            # One partition: events are wanted in their order, whoever sent them.
            producer.produce("events", json.dumps(dict(zip(rows, values))).encode(), partition=0)
            producer.poll(0)
        producer.flush()

    yield f"kafka://{broker.host}:{broker.port}/events", send


SENDERS = {"folder": folder_sender, "redis": redis_sender, "kafka": kafka_sender}


@contextmanager
def following(scratch: Path, config: str) -> Iterator[Callable[[str], float]]:
    """Run `freshet train --follow` with a training file while the block runs; yield what reads one of its metrics.

    A metric is 0 before the trainer answers; RuntimeError once it has ended.
    """
    file, log = scratch / "train.toml", scratch / "train.log"
    file.write_text(config)
    (port,) = free_ports(1)
    command = [*freshet(), "train", "--config", str(file), "--follow", "--metrics-port", str(port)]

    with started(command, log, "freshet train", lambda: True, 0.0, cwd=scratch) as process:

        def value(family: str) -> float:
            if process.poll() is not None:
                raise RuntimeError(log.read_text()[-2000:])
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as reply:
                    lines = reply.read().decode().splitlines()
            except OSError:
                return 0.0
            return next((float(line.split()[-1]) for line in lines if line.startswith(f"{family}{{")), 0.0)

        yield value


def wait(condition: Callable[[], bool], seconds: float, awaited: str) -> None:
    """Wait until a condition holds; raise RuntimeError after so many seconds."""
    give_up_s = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > give_up_s:
            raise RuntimeError(f"{awaited}: waited {seconds:g} s")
        time.sleep(LOOK_S)


def training_file(path: str, repository: Path, full_rows: int) -> str:
    features = [
        line for field in COLUMNS for line in (f"[features.{field.name}]", f'kind = "{field.kind}"', "dim = 16")
    ]
    lines = ["[model]", f'name = "{MODEL}"']
    lines += ["[data]", f'path = "{path}"', 'label = "liked"', 'time = "ts"', *features]
    lines += ["[publish]", f'repository = "{repository}"']
    lines += [f"full_rows = {full_rows}", f"delta_rows = {STRETCH_ROWS}"]
    return "\n".join(lines)


def scores(processor: Processor, batch: Batch) -> np.ndarray:
    found = []
    for first in range(0, len(batch), SCORED_ROWS):
        part = batch.slice(first, min(first + SCORED_ROWS, len(batch)))
        found.append(processor.process(PredictRequest(MODEL, part.columns)).outputs["score"].reshape(-1))
    return np.concatenate(found)


def follow(sender: str, source: MovieLensSource, console: Console) -> dict[str, Any]:
    """Scores of all stretches by both engines, by one way to come."""
    full_rows = KAFKA_ROWS if sender == "kafka" else FULL_ROWS
    labels: list[np.ndarray] = []
    served: dict[str, list[np.ndarray]] = {"fresh": [], "daily": []}
    days, ages = [], []
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        with SENDERS[sender](scratch) as (path, send):
            for batch in source.batches(20_000, FULL_ROWS - full_rows):
                if batch.start >= FULL_ROWS:
                    break
                send(rows_of(batch.slice(0, min(len(batch), FULL_ROWS - batch.start))))
            with following(scratch, training_file(path, scratch / "repository", full_rows)) as value:
                wait(lambda: value("freshet_train_version") >= 1, STARTUP_S, "the full version")
                repository = ProcessorConfig(str(scratch / "repository"), sessions=1)
                wait(lambda: (scratch / "repository" / MODEL / "1" / "model.json").exists(), STARTUP_S, "the version")
                with Processor.initialize(repository) as fresh, Processor.initialize(repository) as daily:
                    day = None
                    for number, batch in enumerate(source.batches(STRETCH_ROWS, FULL_ROWS)):
                        if number == STRETCHES:
                            break
                        assert batch.time is not None
                        if (today := int(batch.time[0] // DAY_S)) != day:
                            day = today
                            daily.poll()
                        labels.append(batch.label)
                        served["fresh"].append(scores(fresh, batch))
                        served["daily"].append(scores(daily, batch))
                        days.append(today)
                        sent_s = time.monotonic()
                        send(rows_of(batch))
                        wait(lambda n=number: value("freshet_train_deltas_total") > n, STRETCH_S, "a delta")  # type: ignore[misc]
                        fresh.poll()
                        ages.append(time.monotonic() - sent_s)
                held = value("freshet_train_windows_held_total")
    label = np.concatenate(labels)
    found = {side: auc(label, np.concatenate(parts)) for side, parts in served.items()}
    console.print(f"  {sender}: {found['fresh']:.4f} fresh, {found['daily']:.4f} once a day, {held:.0f} held")
    return {
        "auc": found,
        "full_rows": full_rows,
        "stretches": {side: [auc(y, s) for y, s in zip(labels, parts)] for side, parts in served.items()},
        "days": days,
        "held": held,
        "sent_to_served_s": float(np.median(ages)),
    }


def page(result: dict[str, Any]) -> str:
    lines = opening("Following a stream", __doc__, result)
    lines += [
        f"The events before number {result['full_rows']:,} made the full version; then {result['stretches']} stretches"
        f" of {result['delta_rows']:,} events, {result['simulated_days']} simulated days.",
        "",
    ]
    heads = ["came by", "full version of", "AUC, fresh", "AUC, once a day", "more", "deltas held"]
    rows = []
    for sender, found in result["senders"].items():
        fresh, daily = found["auc"]["fresh"], found["auc"]["daily"]
        shown = [f"{found['full_rows']:,} events", f"{fresh:.4f}", f"{daily:.4f}", f"{fresh - daily:+.4f}"]
        rows.append([sender, *shown, f"{found['held']:.0f}", f"{found['sent_to_served_s']:.2f}"])
    return "\n".join([*lines, table([*heads, "sent to served, median s"], rows), ""])


def main() -> None:
    parser = argparse.ArgumentParser(prog="make -C loadtest follow", description=__doc__)
    add = parser.add_argument
    add("--data", type=Path, default=needs.DATA, help="folder that has ml-1m; FRESHET_DATA")
    add("--only", default="folder,redis,kafka")
    add("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    folder = needs.movielens(arguments.data)
    if "redis" in arguments.only:
        needs.program("redis-server")
    console = Console(stderr=True, highlight=False)
    source = MovieLensSource(str(folder), COLUMNS)
    senders = {name: follow(name, source, console) for name in arguments.only.split(",")}
    result = {
        **begun("follow"),
        "full_rows": FULL_ROWS,
        "delta_rows": STRETCH_ROWS,
        "stretches": STRETCHES,
        "simulated_days": len(set(next(iter(senders.values()))["days"])),
        "senders": senders,
    }
    text = page(result)
    store(arguments.out, "follow", result, text)
    print(text)


if __name__ == "__main__":
    main()
