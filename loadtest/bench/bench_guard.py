"""`make bench-guard`: what the guard holds of good streams and of faults, and what it costs; loadtest/results/guard.md.

Streams are trained as `freshet train` does it and followed as a server follows them, a delta at a time, while rows of
the stream are asked for. At every 20th delta each fault is put in the place of the next one, judged, and not served.
Faults: scores times 1.1 (the last bias, moved until the mean score is), the rows of the largest table zeroed, those of
the two largest tables swapped, the next delta's change a hundred times, and a stream whose labels are shuffled from a
delta on. Of each it is counted how often it would have been held before the flip.

Costs are of single deltas of 1,000 rows for the benchmark's DeepFM, five with the guard and five without in turn, and
of a request of one row through the engine: looked at for the sample, or not.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from loadtest.load.sides import Ratio, ratio
from loadtest.reports.report import machine, opening, origin, table
from models.bench import bench_delta, write_model
from models.data.source import Batch, Source
from models.training.loop import TrainingRun
from processor.clock import SystemClock
from processor.engine import PredictRequest, Processor, ProcessorConfig
from processor.package.delta import Delta, TableDelta, read_delta, write_delta
from processor.package.repository import Repository
from processor.versions.model import ServedModel
from processor.versions.policy import ModelPolicy
from processor.versions.probation import OutOfLine
from processor.versions.replica import Replica
from processor.versions.served_version import Change, ServedVersion
from processor.watching.delta_guard import OFF, ON, DeltaBounds
from serving.commands.demo import choose

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "loadtest" / "results"
DATA = Path(os.environ.get("FRESHET_DATA", ROOT.parent / "shared" / "data"))
LEARNED, EVERY = 20, 20
BLOCK = 5
"""Deltas in a row with the guard, and without."""
SHUFFLED = 40
"""Deltas of shuffled labels that are waited for."""
FAULTS = ("scores times 1.1", "largest table zeroed", "two tables swapped", "learning rate times 100")
NONE = np.empty(0, np.int64)


class ShuffledLabels:
    """A source whose labels are those of other rows of the same batch, from a row on."""

    def __init__(self, source: Source, since: int) -> None:
        self._source, self._since = source, since

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)

    def batches(self, rows: int, start: int = 0) -> Iterator[Batch]:
        """See Source.batches."""
        random = np.random.default_rng(start)
        for batch in self._source.batches(rows, start):
            shuffled = random.permutation(batch.label) if batch.start >= self._since else batch.label
            yield replace(batch, label=shuffled)


class GoodStream:
    """A stream that is trained, and a server's model that follows it."""

    def __init__(self, data: str, folder: Path, full_rows: int, delta_rows: int, shuffled_after: int = 0) -> None:
        """shuffled_after: deltas after which labels are shuffled, 0 for never."""
        config, source = choose(data, folder)
        publish = replace(config.publish, full_rows=full_rows, delta_rows=delta_rows, snapshot_after=0)
        since = full_rows + shuffled_after * delta_rows
        self._asked = next(source.batches(2048, full_rows))
        self._run = TrainingRun(
            replace(config, publish=publish), ShuffledLabels(source, since) if shuffled_after else source
        )
        self._run.full()
        self._stream = self._run.stream()
        self._folder = folder

        def connect(version: ServedVersion) -> Replica:
            return Replica(version.files, version.control, 0, 1, SystemClock())

        def load(files: Any) -> ServedVersion:
            return ServedVersion(files, 16, SystemClock())

        self.model = ServedModel("ctr", Repository(folder), load, connect, SystemClock())
        self.model.poll()
        replica = self._replica
        inputs = {i.name: self._asked.columns[i.name] for i in replica.manifest.inputs}
        batch = Batch(inputs, self._asked.label, None, 0)
        for first in range(0, len(batch), 8):
            if replica.sample.wanted:
                replica.sample.take(replica.plan.bind(batch.slice(first, first + 8).columns))

    @property
    def version(self) -> ServedVersion:
        return self.model.pick()

    @property
    def _replica(self) -> Replica:
        replicas = self.version.replicas
        assert isinstance(replicas, Replica)
        return replicas

    def follow(self, deltas: int) -> Iterator[str]:
        """Learns, publishes and serves so many deltas: why each was held, "" where it was not; ends with the first."""
        for _ in range(deltas):
            if next(self._stream, None) is None:
                return
            self.model.poll()
            held = self.model.chain(1)
            assert held is not None
            yield held.reason if held.state == "HELD" else ""
            if held.state == "HELD":
                return

    def judged(self, delta: Delta) -> str:
        """The kind of verdict on a delta that is not served whatever it is, "" for none."""
        follower = self.model._followers[1]
        told: list[str] = []

        def examine(change: Change) -> None:
            try:
                follower.probation.examine(self.version, delta, change, True)
            except OutOfLine as error:
                told.append(error.kind)
            raise _NotServed

        with contextlib.suppress(_NotServed):
            self.version.apply(delta, examine=examine)
        return told[0] if told else ""

    def fault(self, name: str) -> Delta:
        """A fault in the place of the next delta."""
        version = self.version
        step = version.position.step
        tables: dict[str, TableDelta] = {}
        dense: dict[str, Any] = {}
        exported, weights = version.export()
        by_size = sorted(exported, key=lambda t: -len(exported[t][0]))
        if name == FAULTS[0]:
            dense = {"linear/bias": self._scaled(weights["linear/bias"])}
        elif name == FAULTS[1]:
            keys, rows = exported[by_size[0]]
            tables = {by_size[0]: TableDelta(keys, np.zeros_like(rows), NONE)}
        elif name == FAULTS[2]:
            count = min(len(exported[t][0]) for t in by_size[:2])
            one, other = (exported[t] for t in by_size[:2])
            tables = {
                by_size[0]: TableDelta(one[0][:count], other[1][:count], NONE),
                by_size[1]: TableDelta(other[0][:count], one[1][:count], NONE),
            }
        else:
            newest = version.files.folder / "deltas" / f"{step}.safetensors"
            tables, dense = self._hundredfold(newest, exported, weights)
        return Delta("ctr", 1, step + 1, step, tables, dense, published_at=time.time())

    def _scaled(self, bias: Any) -> Any:
        """The bias at which the mean score of what is asked for is 1.1 times what it was."""
        scored = self._replica.sample._scored
        assert scored is not None
        scores = scored.outputs["score"].astype(np.float64).clip(1e-6, 1 - 1e-6)
        logits = np.log(scores / (1 - scores))
        low, high = 0.0, 5.0
        for _ in range(40):
            middle = (low + high) / 2
            mean = (1 / (1 + np.exp(-logits - middle))).mean()
            low, high = (middle, high) if mean < 1.1 * scores.mean() else (low, middle)
        return (bias + np.float32(low)).astype(np.float32)

    def _hundredfold(self, newest: Path, exported: Any, weights: Any) -> tuple[dict[str, TableDelta], dict[str, Any]]:
        """The newest delta's change again, a hundred times: from the generation before it."""
        delta, version = read_delta(newest), self.version
        undo = version._undo[-1]
        tables = {}
        for name, changes in delta.tables.items():
            known, before = version.tables[name].look_up(changes.keys, undo.epoch)
            rows = changes.rows.copy()
            rows[known] += 99 * (rows[known] - before)
            tables[name] = TableDelta(changes.keys, rows.astype(np.float32), NONE)
        dense = {n: (t + 99 * (t - undo.dense[n])).astype(np.float32) for n, t in delta.dense.items()}
        return tables, dense


class _NotServed(Exception):
    pass


def measure(data: str, folder: Path, full_rows: int, delta_rows: int, deltas: int, say: Callable[[str], None]) -> Any:
    """One stream: good deltas that were held, and how often each fault would have been."""
    stream = GoodStream(data, folder / "good", full_rows, delta_rows)
    served, held = 0, list[str]()
    faults: dict[str, Counter[str]] = {name: Counter() for name in FAULTS}
    while served + len(held) < deltas:
        before = served + len(held)
        for reason in stream.follow(1):
            served, held = served + (not reason), held + [reason] * bool(reason)
            if reason:
                stream.model.release(1)
        if served + len(held) == before:
            break
        if served >= LEARNED and served % EVERY == 0:
            for name in FAULTS:
                faults[name][stream.judged(stream.fault(name)) or "served"] += 1
    say(f"{served} deltas served, {len(held)} held; {faults}")
    shuffled = GoodStream(data, folder / "shuffled", full_rows, delta_rows, shuffled_after=LEARNED)
    found = list(shuffled.follow(LEARNED + SHUFFLED))
    at = next((n - LEARNED + 1 for n, reason in enumerate(found) if reason), 0)
    say(f"shuffled labels: held at delta {at} of {len(found)}: {found[-1]}")
    preview = stream.model.vigilance.preview_s
    return {
        "deltas": served + len(held),
        "held": held,
        "faults": {name: dict(counts) for name, counts in faults.items()},
        "shuffled": {"at": at, "deltas": len(found) - LEARNED, "reason": found[-1]},
        "preview_ms": preview.total / max(1, sum(preview.counts)) * 1e3,
    }


def costs(folder: Path, rounds: int, rows: int, say: Callable[[str], None]) -> Any:
    """Milliseconds and processor time of deltas with the guard and without, and of requests."""
    write_model(folder, rows)
    config = ProcessorConfig(str(folder), sessions=1, compute="inline", policies={})
    sides: dict[str, list[tuple[float, float]]] = {ON: [], OFF: []}
    requests: dict[str, list[float]] = {"looked at": [], "not": []}
    random = np.random.default_rng(0)
    with Processor.initialize(config) as processor:
        model = processor.catalogue["bench"]
        manifest = model.pick().manifest

        def inputs(count: int) -> Any:
            ids = random.integers(0, rows, (count, 26))
            return {"ids": ids, "floats": random.standard_normal((count, 13)).astype(np.float32)}

        for _ in range(40):
            processor.process(PredictRequest("bench", inputs(8)))
        path = folder / "next"
        for step in range(1, (2 * rounds // (BLOCK - 1) + 3) * BLOCK):
            mode = (ON, OFF)[step // BLOCK % 2]
            model.policy = ModelPolicy(delta_guard=DeltaBounds(mode=mode))
            write_delta(path, bench_delta(manifest, step, 1000))
            data = path.read_bytes()
            began_s, cpu_s = time.perf_counter(), time.process_time()
            model.apply_bytes(data)
            # The first of a block scores both states: what it stands on was not looked at.
            if step >= 2 * BLOCK and step % BLOCK:
                sides[mode].append(((time.perf_counter() - began_s) * 1e3, (time.process_time() - cpu_s) * 1e3))
        replica = processor.replica("bench")
        one = PredictRequest("bench", inputs(1))
        for n in range(2 * rounds):
            looked = n % 2 == 0
            # A sample that is full is what nearly every request meets; one that is never full takes every request.
            replica.sample.wanted = looked
            replica.sample._most = 1 << 60
            began_s = time.process_time()
            for _ in range(200):
                processor.process(one)
            requests["looked at" if looked else "not"].append((time.process_time() - began_s) / 200 * 1e6)
            replica.sample._gathered.clear()
        preview = model.vigilance.preview_s
    found = {
        "delta_ms": {mode: [wall for wall, _ in each] for mode, each in sides.items()},
        "delta_cpu_ms": {mode: [cpu for _, cpu in each] for mode, each in sides.items()},
        "request_cpu_us": requests,
        "preview_ms": preview.total / max(1, sum(preview.counts)) * 1e3,
    }
    for what, sides_of in found.items():
        if isinstance(sides_of, dict):
            say(f"{what}: " + ", ".join(f"{side} {statistics.median(each):.2f}" for side, each in sides_of.items()))
    return found


def page(document: Any) -> str:
    """The report."""
    lines = [*opening("Guard", __doc__ or "", document)]
    rows = []
    for name, found in document["streams"].items():
        rows.append([name, f"{found['deltas']:,}", str(len(found["held"])), f"{found['preview_ms']:.1f} ms"])
    lines += [table(["stream", "good deltas", "of them held", "a preview"], rows), ""]
    rows = []
    for name, found in document["streams"].items():
        for fault, counts in found["faults"].items():
            whole, served = sum(counts.values()), counts.get("served", 0)
            kinds = ", ".join(f"{kind} {n}" for kind, n in sorted(counts.items()) if kind != "served")
            rows.append([name, fault, f"{whole - served} of {whole}", kinds])
        shuffled = found["shuffled"]
        at = f"at delta {shuffled['at']}" if shuffled["at"] else f"not within {shuffled['deltas']} deltas"
        rows.append([name, "labels shuffled", at, shuffled["reason"] or "by the trainer's own guard, or by labels"])
    lines += [table(["stream", "fault", "held before the flip", "by"], rows), ""]
    cost = document.get("costs")
    if cost:
        rows = []
        for what, key, (some, others) in (
            ("a delta of 1,000 rows, ms", "delta_ms", (ON, OFF)),
            ("its processor time, ms", "delta_cpu_ms", (ON, OFF)),
            ("processor time of a request that is added to the sample, us", "request_cpu_us", ("looked at", "not")),
        ):
            with_, without = cost[key][some], cost[key][others]
            count = min(len(with_), len(without))
            with_, without = with_[:count], without[:count]
            rows.append(
                [
                    what,
                    f"{statistics.median(with_):.2f}",
                    f"{statistics.median(without):.2f}",
                    _spelled(ratio(with_, without)),
                ]
            )
        lines += [table(["what", "with the guard", "without", "ratio"], rows), ""]
    return "\n".join(lines)


def _spelled(found: Ratio) -> str:
    return f"{found.median:.2f} ({found.low:.2f} to {found.high:.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(prog="make bench-guard", description=__doc__)
    parser.add_argument("--deltas", type=int, default=1000, help="of each stream")
    parser.add_argument("--rounds", type=int, default=100, help="of deltas whose cost is measured")
    parser.add_argument("--rows", type=int, default=100_000, help="of each of the benchmark's tables")
    parser.add_argument("--data", type=Path, default=DATA, help="folder with ml-1m; FRESHET_DATA")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    console = Console(stderr=True, highlight=False)
    document: dict[str, Any] = {"machine": machine(), "origin": origin("bench-guard", "BENCH_ARGS", sys.argv[1:])}
    document["streams"] = {}
    movielens = arguments.data / "ml-1m"
    streams = {"MovieLens-1M, a delta every 200 ratings": (str(movielens), 800_000, 200)} if movielens.exists() else {}
    if not streams:
        console.print("MovieLens-1M: not at --data")
    streams["synthetic, a delta every 2,000 events"] = ("", 200_000, 2000)
    arguments.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as work:
        for n, (name, (data, full_rows, delta_rows)) in enumerate(streams.items()):
            console.print(f"[bold]{name}[/bold]")
            found = measure(data, Path(work) / str(n), full_rows, delta_rows, arguments.deltas, console.print)
            document["streams"][name] = found
        document["costs"] = costs(Path(work) / "bench", arguments.rounds, arguments.rows, console.print)
    (arguments.out / "guard.json").write_text(json.dumps(document, indent=1) + "\n")
    (arguments.out / "guard.md").write_text(page(document))
    print(page(document))


if __name__ == "__main__":
    main()
