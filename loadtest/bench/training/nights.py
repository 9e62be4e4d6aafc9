"""`make -C loadtest nights`: what the gates stop of good and of bad nights; loadtest/results/nights.md.

Each night a small model is trained anew on the newest window of rows of a shop, MovieLens-1M or Criteo, beside a server
that serves the night before's. In one night of three each fault is tried once before the good version, against
the version that is served then: the trainer's gate judges it, and if that lets it pass, the server's gate by the
requests that the server keeps of the day. It is caught if no request would have been answered by it. What is good and
is stopped is a false alarm, and is released. Rows by number of night are the same in every run.

Bounds are the defaults; `--set` changes one of the trainer's. Those of the shop and of MovieLens-1M fixed them, and
Criteo is judged by them: no number was changed on what it showed. (Its largest table could be lost without a loss of
quality that shows. So ids whose row is all 0 count as unknown now, in the bound that there was.) MovieLens-1M showed
that held-out rows of a dozen users differ more than their standard error says, and that a released candidate has to
count as usual; its nights were tried again after that, those of the shop were not.

What each night showed is kept in nights.json, and a run that is begun again goes on with the nights that are left: it
trains the night before once more, as its first version, and both gates learn anew what is usual.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from rich.console import Console

from freshet_serving.compiler.backends import onnxruntime
from freshet_serving.compiler.backends.xla_function import XlaFunction
from freshet_serving.models.config.gate_section import GateConfig, read_gate
from freshet_serving.models.config.train_config import StartOptions, TrainConfig
from freshet_serving.models.data.source import Batch, Schema
from freshet_serving.models.training import dense_step, full_versions
from freshet_serving.models.training.loop import TrainingRun
from freshet_serving.models.training.publication import publish_version
from freshet_serving.models.training.version_review import NOTE_OF_GATE, REFUSED
from freshet_serving.processor.errors import Refused
from freshet_serving.processor.repository import Repository, VersionReader
from loadtest.bench.guard_streams import MODEL, GuardStream
from loadtest.bench.shop_streams import ShopKind
from loadtest.bench.training.night_packages import PACKAGE_FAULTS, wrong_scales
from loadtest.bench.training.night_rows import ROW_FAULTS, NightRows, read_rows, twice
from loadtest.bench.training.night_server import ASKED_ROWS, NightServer
from loadtest.reports.report import machine, opening, origin, table

ROOT = Path(__file__).parents[3]
RESULTS = ROOT / "loadtest" / "results"
DATA = Path(os.environ.get("FRESHET_DATA", ROOT.parent / "shared" / "data"))
ANEW = StartOptions(new_version=True, from_scratch=True)
BUCKETS, BATCH_ROWS = (256,), 256
CONVERT = onnxruntime.to_onnx
NIGHTS, GOOD_NIGHTS = 100, 3
"""Faults are tried in one night of so many."""
KEPT_VERSIONS = 3
REASON_CHARS = 90
GOOD, TWICE = "good nights", "yesterday's rows twice"
TRAINER, SERVER, SERVED = "trainer", "server", ""
BOUNDS = {"a tenth of the rows": 27, "a feature lost": 27, "score x 1.1": 0, TWICE: 0}
"""Nights of 30 in which a fault must be stopped; LEAST_CAUGHT for others, 0 where it is only counted."""
LEAST_CAUGHT, MOST_HELD = 29, 3


@dataclass(frozen=True, slots=True)
class NightStream:
    """One stream of the campaign.

    Attributes:
        stream: Its rows and training file; full_rows is the window.
        step: Rows from night to night.
        number: A column of ids that this campaign reads as a number, where the stream has no numbers; "" for none.
        features: So many first features are read, so that nights are short; 0 for all.
        first: The first row of the first window: before it, MovieLens-1M has times that are not exact here.
    """

    stream: GuardStream
    step: int
    number: str = ""
    features: int = 0
    first: int = 0

    def open(self, data: Path, folder: Path, nights: int, bounds: GateConfig) -> tuple[TrainConfig, Schema, Batch]:
        """Return the training file, and the rows that so many nights read.

        Args:
            data: Folder of the real data.
            folder: The repository.
            nights: Number of nights.
            bounds: The bounds of the trainer's gate.
        """
        config, source = self.stream.open(data, folder, 0)
        rows = read_rows(source, self.first, self.stream.full_rows + nights * self.step + max(self.step, ASKED_ROWS))
        number = {"kind": "float", "table": "", "dim": 0}
        features = [
            dataclasses.replace(feature, **number) if feature.name == self.number else feature  # type: ignore[arg-type]
            for feature in config.features[: self.features or None]
        ]
        names = {feature.name for feature in features}
        columns: dict[str, Any] = {name: column for name, column in rows.columns.items() if name in names}
        fields = [field for field in source.schema.fields if field.name in names]
        if self.number:
            columns[self.number] = columns[self.number].astype(np.float32)
            fields = [dataclasses.replace(f, kind="float") if f.name == self.number else f for f in fields]
        rows, schema = (
            dataclasses.replace(rows, columns=columns),
            dataclasses.replace(source.schema, fields=tuple(fields)),
        )
        publish = dataclasses.replace(config.publish, gate=bounds)
        train = dataclasses.replace(config.train, batch_rows=BATCH_ROWS)
        return dataclasses.replace(config, features=features, publish=publish, train=train), schema, rows


def _shop(halfway: int) -> ShopKind:
    return ShopKind("shop", 0.06, 0.10)


STREAMS = (
    NightStream(GuardStream("a shop", shop=_shop, full_rows=10_000, delta_rows=0), 1000),
    NightStream(
        GuardStream("MovieLens-1M", "ml-1m", "movielens", full_rows=12_000, delta_rows=0), 1000, "age", 800_000
    ),
    NightStream(
        GuardStream("Criteo", "criteo/recoded20k.csv.gz", "criteo", full_rows=10_000, delta_rows=0), 95, features=21
    ),
)


class NightCampaign:
    """The nights of one stream, over one repository."""

    def __init__(self, one: NightStream, config: TrainConfig, schema: Schema, rows: Batch, folder: Path) -> None:
        """Prepare the campaign.

        Args:
            one: The stream.
            config: Its training file, with the gate's bounds.
            schema: The schema of its rows.
            rows: Its rows.
            folder: The repository.
        """
        self._one, self._config, self._schema, self._rows = one, config, schema, rows
        self._repository, self._server = Repository(folder), NightServer(folder)
        self._converted: dict[Any, tuple[bytes, list[str]]] = {}
        self._steps: dict[Any, XlaFunction] = {}

    def first(self, number: int) -> None:
        """Train and serve the version that the next night is compared with."""
        self._good(number, {})

    def night(self, number: int) -> dict[str, Any]:
        """Try one night.

        Args:
            number: Its number, at least 1.

        Returns:
            By fault and GOOD: which gate stopped it, "" if none did; why; and whether a line reports it.
        """
        trials: dict[str, Any] = {}
        if number % GOOD_NIGHTS == 0:
            window = self._window(number)
            bad = {name: change(window) for name, change in ROW_FAULTS.items()} | {TWICE: twice(window, self._one.step)}
            for name, rows in bad.items():
                trials[name] = self._stopped(self._train(rows, self._publish))
        self._good(number, trials)
        return trials

    def _window(self, number: int) -> Batch:
        first = number * self._one.step
        return self._rows.slice(first, first + self._one.stream.full_rows)

    def _good(self, number: int, trials: dict[str, Any]) -> None:
        """Train, try what a package can have wrong if faults are tried at all, and serve the good version."""
        damages = PACKAGE_FAULTS if trials else {}

        def publish(repository: Any, draft: Any, tables: Any, graph: Any, **options: Any) -> VersionReader:
            for name, damage in damages.items():
                with wrong_scales(number // GOOD_NIGHTS):
                    trials[name] = self._stopped(self._publish(repository, *damage(draft, tables, graph), **options))
            return self._publish(repository, draft, tables, graph, **options)

        version = self._train(self._window(number), publish)
        trials[GOOD] = trial = self._offered(version)
        made = version.manifest.version
        if trial["by"] == TRAINER:
            self._repository.release_candidate(MODEL, made)
            trial["server"] = self._server.offer(made)[1]
        if self._server.served != made:
            self._server.release(made)
        for old in self._repository.versions(MODEL)[:-KEPT_VERSIONS]:
            self._repository.storage(MODEL, old).end()
        next_row = number * self._one.step + self._one.stream.full_rows
        self._server.ask(self._rows.slice(next_row, next_row + max(self._one.step, ASKED_ROWS)))

    def _train(self, rows: Batch, publish: Callable[..., VersionReader]) -> VersionReader:
        """Train on rows from new weights; return the version, or the candidate if it is refused."""
        config = dataclasses.replace(
            self._config, publish=dataclasses.replace(self._config.publish, full_rows=len(rows))
        )
        with (
            mock.patch.object(onnxruntime, "to_onnx", self._as_onnx),
            mock.patch.object(dense_step, "XlaFunction", self._as_compiled),
            mock.patch.object(full_versions, "publish_version", publish),
        ):
            run = TrainingRun(config, NightRows(self._schema, rows), start_options=ANEW)
            try:
                return self._repository.version(MODEL, run.full().version)
            except Refused:
                return self._repository.candidate(MODEL, self._repository.candidates(MODEL)[-1])

    def _publish(self, repository: Any, draft: Any, tables: Any, graph: Any, **options: Any) -> VersionReader:
        return publish_version(repository, draft, tables, graph, BUCKETS, **options)

    def _as_onnx(self, graph: Any) -> tuple[bytes, list[str]]:
        """Convert a network once: all nights have the same, and its weights lie elsewhere."""
        key = repr((graph.inputs, graph.outputs, [(name, weight.shape) for name, weight in graph.weights.items()]))
        if key not in self._converted:
            self._converted[key] = CONVERT(graph)
        return self._converted[key]

    def _as_compiled(
        self, function: Callable[..., Any], takes: Sequence[Any], threads: int, settings: str = ""
    ) -> XlaFunction:
        """Trace and compile a step once: all nights have the same, which gets weights and rates with each call."""
        key = function.__qualname__, repr(takes), threads
        if key not in self._steps:
            self._steps[key] = XlaFunction(function, takes, threads, settings)
        return self._steps[key]

    def _offered(self, version: VersionReader) -> dict[str, Any]:
        """Return which gate stops a version, which is offered to the server if the trainer's gate lets it pass."""
        notes, number = version.root_manifest.notes[NOTE_OF_GATE], version.manifest.version
        reported = " ".join(notes["reported"])
        if notes["verdict"] == REFUSED:
            return {"by": TRAINER, "why": notes["reasons"][0], "reported": reported}
        served, why = self._server.offer(number)
        return {"by": SERVED if served else SERVER, "why": why, "reported": reported}

    def _stopped(self, version: VersionReader) -> dict[str, Any]:
        """Return which gate stops a bad version, and remove it."""
        trial, number = self._offered(version), version.manifest.version
        if trial["by"] == TRAINER:
            self._repository.reject_candidate(MODEL, number)
        else:
            self._repository.storage(MODEL, number).end()
            self._server.go_back()
        return trial


def least_caught(fault: str, nights: int) -> int:
    """Return in how many nights a fault must be stopped; 0 if it is only counted.

    Args:
        fault: The fault.
        nights: Number of nights.
    """
    least = BOUNDS.get(fault, LEAST_CAUGHT)
    return nights - (nights * (30 - least)) // 30 if least else 0


def page(document: Mapping[str, Any]) -> str:
    """Return the report."""
    lines = opening("What the gates stop of good and of bad nights", __doc__ or "", document)
    for stream, nights in document["streams"].items():
        names = dict.fromkeys(name for night in nights.values() for name in night)
        rows = [_row(name, [night[name] for night in nights.values() if name in night]) for name in names]
        head = ["night", "stopped", "by the trainer's gate", "by the server's", "reported", "expected", "a reason"]
        lines += [f"## {stream}", "", f"Nights that ran: {len(nights)} of {NIGHTS}.", "", table(head, rows), ""]
    good = [night[GOOD] for nights in document["streams"].values() for night in nights.values()]
    stopped = sum(trial["by"] != SERVED for trial in good)
    allowed = MOST_HELD * len(good) // 300
    lines += [f"Good nights in all: {stopped} of {len(good)} were stopped, at most {allowed} may be.", ""]
    for stream, nights in document["streams"].items():
        for number, night in nights.items():
            if night[GOOD]["by"] != SERVED:
                lines += [f"- {stream}, night {number}: {night[GOOD]['by']}'s gate: {night[GOOD]['why']}"]
    for stream, why in document["skipped"].items():
        lines += [f"{stream} was not tried: {why}.", ""]
    return "\n".join(lines).rstrip() + "\n"


def _row(name: str, trials: Sequence[Mapping[str, Any]]) -> list[str]:
    by = [trial["by"] for trial in trials]
    stopped, least = len(by) - by.count(SERVED), least_caught(name, len(by))
    expected = f"at least {least}" if least else "counted"
    if name == GOOD:
        expected = "see below"
    elif stopped < least:
        expected += ", missed"
    reasons = [trial["why"] for trial in trials if trial["by"] != SERVED]
    usual = max(set(reasons), key=reasons.count)[:REASON_CHARS].replace("|", "/") if reasons else ""
    reported = sum(bool(trial["reported"]) for trial in trials)
    counts = [f"{stopped} of {len(by)}", by.count(TRAINER), by.count(SERVER), reported]
    return [name, *map(str, counts), expected, usual]


def main() -> None:
    parser = argparse.ArgumentParser(prog="make -C loadtest nights", description=__doc__)
    parser.add_argument("--first", type=int, default=1, help="number of the first night")
    parser.add_argument("--nights", type=int, default=NIGHTS, help="number of the last one, of each stream")
    parser.add_argument("--only", default="", help="streams whose names hold this")
    parser.add_argument("--set", action="append", default=[], metavar="BOUND=NUMBER", help="a bound of [publish.gate]")
    parser.add_argument("--data", type=Path, default=DATA, help="folder with ml-1m and criteo; FRESHET_DATA")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    bounds = read_gate({key: float(value) for key, _, value in (each.partition("=") for each in arguments.set)})
    arguments.out.mkdir(parents=True, exist_ok=True)
    kept = arguments.out / "nights.json"
    document: dict[str, Any] = json.loads(kept.read_text()) if kept.exists() else {"streams": {}}
    document |= {"machine": machine(), "origin": origin("-C loadtest nights", "ARGS", sys.argv[1:]), "skipped": {}}
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    for one in STREAMS:
        name = one.stream.name
        if arguments.only not in name:
            continue
        if one.stream.data and not (arguments.data / one.stream.data).exists():
            document["skipped"][name] = "its rows are not in the folder of --data"
            continue
        nights = document["streams"].setdefault(name, {})
        with tempfile.TemporaryDirectory() as folder:
            config, schema, rows = one.open(arguments.data, Path(folder), arguments.nights, bounds)
            campaign = NightCampaign(one, config, schema, rows, Path(folder))
            left = [number for number in range(arguments.first, arguments.nights + 1) if str(number) not in nights]
            if left:
                campaign.first(left[0] - 1)
            for number in left:
                nights[str(number)] = campaign.night(number)
                console.print(f"{name}, night {number}: {json.dumps(nights[str(number)])}")
                kept.write_text(json.dumps(document, indent=1) + "\n")
    (arguments.out / "nights.md").write_text(page(document))


if __name__ == "__main__":
    main()
