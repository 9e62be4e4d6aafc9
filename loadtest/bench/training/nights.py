"""`make -C loadtest nights`: what the gate refuses of good and of bad nights; loadtest/results/nights.md.

Each night a model is trained anew on the newest window of rows of a shop, MovieLens-1M or Criteo, and published over
the version of the night before. A good night that is refused is a false alarm, and is released. Then, on the same rows,
each fault is tried once: the night counts as caught if the version became a candidate, which is then rejected. Bounds
are the defaults; `--set` changes one, so that they can be fixed on two of the streams and judged on the third.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from rich.console import Console

from freshet_serving.models.config.gate_section import read_gate
from freshet_serving.models.config.train_config import StartOptions, TrainConfig
from freshet_serving.models.data.source import Batch, Source
from freshet_serving.models.training import full_versions
from freshet_serving.models.training.loop import TrainingRun
from freshet_serving.models.training.publication import publish_version
from freshet_serving.processor.errors import Refused
from freshet_serving.processor.repository import Repository
from loadtest.bench.guard_streams import MODEL, GuardStream
from loadtest.bench.shop_streams import ShopKind
from loadtest.reports.report import machine, opening, origin, table

ROOT = Path(__file__).parents[3]
RESULTS = ROOT / "loadtest" / "results"
DATA = Path(os.environ.get("FRESHET_DATA", ROOT.parent / "shared" / "data"))
ANEW = StartOptions(new_version=True, from_scratch=True)
OTHER_SEED = 0x5DEECE66D
REASON_CHARS = 60


@dataclass(frozen=True, slots=True)
class NightStream:
    """One stream of the campaign.

    Attributes:
        stream: Its rows and training file; full_rows is the window.
        step: Rows from night to night.
    """

    stream: GuardStream
    step: int


def _shop(halfway: int) -> ShopKind:
    return ShopKind("shop", 0.06, 0.10)


STREAMS = (
    NightStream(GuardStream("a shop", shop=_shop, full_rows=40_000, delta_rows=0), 4000),
    NightStream(GuardStream("MovieLens-1M", "ml-1m", "movielens", full_rows=120_000, delta_rows=0), 20_000),
    NightStream(GuardStream("Criteo", "criteo/recoded20k.csv.gz", "criteo", full_rows=10_000, delta_rows=0), 300),
)

Change = Callable[[Batch], Batch]


class NightRows:
    """The rows of one night: a window of a stream, counted from 0, with something done to each batch."""

    def __init__(self, source: Source, first: int, rows: int, change: Change) -> None:
        """Cut the window.

        Args:
            source: The stream.
            first: First row of the window.
            rows: Number of rows.
            change: Returns a batch as the night has it.
        """
        self._source, self._first, self._rows, self._change = source, first, rows, change
        self.schema = source.schema

    def count_rows(self) -> int:
        return self._rows

    def batches(self, rows: int, start: int = 0) -> Iterator[Batch]:
        """Yield the window's batches (Source.batches)."""
        for batch in self._source.batches(rows, self._first + start):
            at = batch.start - self._first
            if at >= self._rows:
                return
            yield self._change(dataclasses.replace(batch.slice(0, min(len(batch), self._rows - at)), start=at))


def _labels(change: Callable[[Any], Any]) -> Change:
    return lambda batch: dataclasses.replace(batch, label=change(batch.label).astype(np.float32))


def _shuffled(labels: Any) -> Any:
    return np.random.default_rng(len(labels)).permutation(labels)


def _columns(kind: str, change: Callable[[Any], Any]) -> Change:
    """Change the first column of whole numbers or of floats."""

    def changed(batch: Batch) -> Batch:
        columns: dict[str, Any] = dict(batch.columns)
        name = next((n for n, c in columns.items() if isinstance(c, np.ndarray) and c.dtype.kind == kind), "")
        return dataclasses.replace(batch, columns=columns | {name: change(columns[name])} if name else columns)

    return changed


def same(batch: Batch) -> Batch:
    """Return the batch of a good night."""
    return batch


FAULTS: Mapping[str, Change] = {
    "all labels 0": _labels(np.zeros_like),
    "labels inverted": _labels(lambda labels: 1 - labels),
    "labels shuffled": _labels(_shuffled),
    "ids by another seed": _columns("i", lambda ids: ids ^ OTHER_SEED),
    "a feature in other units": _columns("f", lambda values: values * 1000),
    "a feature lost": _columns("f", np.zeros_like),
}
ZEROED, TENTH = "a table zeroed", "a tenth of the rows"


def _zeroed(publish: Callable[..., Any]) -> Callable[..., Any]:
    """Return a publication whose largest table is all zeros."""

    def damaged(repository: Any, draft: Any, tables: Any, *rest: Any, **options: Any) -> Any:
        largest = max(tables, key=lambda name: len(tables[name][0]))
        changed = {name: (keys, 0 * rows if name == largest else rows) for name, (keys, rows) in tables.items()}
        return publish(repository, draft, changed, *rest, **options)

    return damaged


class NightCampaign:
    """The nights of one stream, over one repository."""

    def __init__(self, one: NightStream, config: TrainConfig, source: Source, folder: Path) -> None:
        """Prepare the campaign.

        Args:
            one: The stream.
            config: Its training file, with the gate's bounds.
            source: Its rows.
            folder: The repository.
        """
        self._one, self._config, self._source = one, config, source
        self._repository = Repository(folder)

    def night(self, number: int) -> dict[str, str]:
        """Try one night; return by fault, and "" for the good night, why it was refused, "" if it was not."""
        first, rows = number * self._one.step, self._one.stream.full_rows
        reasons = {"": self._train(NightRows(self._source, first, rows, same), rows, keep=True)}
        if not number:
            return reasons
        for name, change in FAULTS.items():
            reasons[name] = self._train(NightRows(self._source, first, rows, change), rows)
        reasons[TENTH] = self._train(NightRows(self._source, first + rows - rows // 10, rows // 10, same), rows // 10)
        with mock.patch.object(full_versions, "publish_version", _zeroed(publish_version)):
            reasons[ZEROED] = self._train(NightRows(self._source, first, rows, same), rows)
        return reasons

    def _train(self, source: NightRows, rows: int, keep: bool = False) -> str:
        """Train and publish a version, which stays only if it is the good night's; return why it was refused."""
        publish = dataclasses.replace(self._config.publish, full_rows=rows)
        run = TrainingRun(dataclasses.replace(self._config, publish=publish), source, start_options=ANEW)
        try:
            number, reason = run.full().version, ""
        except Refused:
            number = self._repository.candidates(MODEL)[-1]
            reason = str(self._repository.candidate(MODEL, number).manifest.notes["gate"]["reasons"][0])
        if reason and keep:
            self._repository.release_candidate(MODEL, number)
        elif reason:
            self._repository.reject_candidate(MODEL, number)
        elif not keep:
            self._repository.storage(MODEL, number).end()
        return reason


def page(document: Mapping[str, Any]) -> str:
    """Return the report."""
    lines = opening("What the gate refuses of good and of bad nights", __doc__ or "", document)
    for stream, nights in document["streams"].items():
        faults = list(dict.fromkeys(name for night in nights for name in night))
        rows = []
        for name in faults:
            tried = [night[name] for night in nights if name in night]
            reasons = [reason for reason in tried if reason]
            usual = max(set(reasons), key=reasons.count)[:REASON_CHARS] if reasons else ""
            rows.append([name or "good nights", f"{len(reasons)} of {len(tried)}", usual.replace("|", "/")])
        lines += [f"## {stream}", "", table(["night", "refused", "a reason"], rows), ""]
    for stream, why in document["skipped"].items():
        lines += [f"{stream} was not tried: {why}.", ""]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="make -C loadtest nights", description=__doc__)
    parser.add_argument("--nights", type=int, default=30, help="of each stream")
    parser.add_argument("--only", default="", help="streams whose names hold this")
    parser.add_argument("--set", action="append", default=[], metavar="BOUND=NUMBER", help="a bound of [publish.gate]")
    parser.add_argument("--data", type=Path, default=DATA, help="folder with ml-1m and criteo; FRESHET_DATA")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    bounds = read_gate({key: float(value) for key, _, value in (each.partition("=") for each in arguments.set)})
    document: dict[str, Any] = {
        "machine": machine(),
        "origin": origin("-C loadtest nights", "ARGS", sys.argv[1:]),
        "streams": {},
        "skipped": {},
    }
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    for one in STREAMS:
        name = one.stream.name
        if arguments.only not in name:
            continue
        if one.stream.data and not (arguments.data / one.stream.data).exists():
            document["skipped"][name] = "its rows are not in the folder of --data"
            continue
        with tempfile.TemporaryDirectory() as folder:
            config, source = one.stream.open(arguments.data, Path(folder), 0)
            config = dataclasses.replace(config, publish=dataclasses.replace(config.publish, gate=bounds))
            campaign = NightCampaign(one, config, source, Path(folder))
            nights = document["streams"][name] = []
            for number in range(arguments.nights):
                nights.append(campaign.night(number))
                console.print(f"{name}, night {number}: {json.dumps(nights[-1])}")
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "nights.json").write_text(json.dumps(document, indent=1) + "\n")
    (arguments.out / "nights.md").write_text(page(document))
    print(page(document))


if __name__ == "__main__":
    main()
