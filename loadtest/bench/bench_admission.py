"""`make -C loadtest admission`: what admission, eviction, hashed tables save and cost; loadtest/results/admission.md.

Each table is cut by its order: 80 % are learned in one epoch, with what `freshet train` chooses, and the rest is
scored. Rows and bytes (of the embeddings alone, float32) are those of all tables at the end; every setting is for all
tables of ids but those that have 100 rows or fewer without it. Rows are evicted 20 times a run, as with deltas. In
training an id that waits for its row has a counter of some 40 bytes besides, or its share of a filter, made here for as
many ids as come. A hashed table has the rate that is chosen over the rows of an id, as the id moves by all of them at
once; in one line it has the whole rate. AUC is the mean over seeds, its difference that to the run of all rows of the
same seed, with the lowest and the highest.

Collisions: of the ids that were learned, the share that has all of its rows in common with another one. Default: of the
looked-up ids of the scored rows, repeats counted, the share that read no row of their own.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter
from rich.console import Console

from freshet_serving.compiler.building.auc import auc
from freshet_serving.models.config.table_sections import TableConfig
from freshet_serving.models.data.prefetch import PrefetchPipeline
from freshet_serving.models.data.source import Batch
from freshet_serving.models.embedding.multi_hash import key_transform
from freshet_serving.models.training.defaults import chosen
from freshet_serving.models.training.spec import draft, measure_log_odds, measure_scaling, share_of_ones
from freshet_serving.models.training.trainer import Trainer
from freshet_serving.processor.features.bound_request import BatchView
from freshet_serving.processor.features.key_codes import CODES
from freshet_serving.processor.tables.table import descriptors
from loadtest.bench.labelled_tables import TABLES, FirstRows, LabelledTable
from loadtest.reports.report import machine, opening, origin, table

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "loadtest" / "results"
DATA = Path(os.environ.get("FRESHET_DATA", ROOT.parent / "shared" / "data"))
MEASURED = ("Criteo, 20,000 rows", "MovieLens-1M")
LEARNED, SWEEPS, SMALL, SCORED_ROWS = 0.8, 20, 100, 8192
ADMITTED = (2, 3, 5, 10)
KEPT_SHARES = (0.5, 0.2, 0.1)
NORMS = (0.03, 0.1)
HASHED_SHARES = (0.5, 0.2, 0.1, 0.05, 0.02)
WHOLE_RATE_SHARE = 0.05
LOST = 0.003
"""Of the AUC, at which the literature has binary codes 20 times smaller."""
KINDS = ("quotient_remainder", "k_way", "binary_code")
FLOAT_NBYTES = 4
SHAPES = {"all rows": "k*", "admission": "C0o-", "admission, filter": "C0x", "eviction, steps": "C1s-"}
SHAPES |= {"eviction, norm": "C2d-", "admission and eviction": "C6P"}
SHAPES |= {"quotient_remainder": "C3^-", "k_way": "C4v-", "binary_code": "C5p-"}
SHAPES |= {"binary_code, whole rate": "C5x"}


class SparedTable:
    """One table opened, with its first rows to learn and the others to score. rows: 0 for all."""

    def __init__(self, table: LabelledTable, data: Path, rows: int = 0) -> None:
        source, features = table.open(data / table.data)
        self._config = table.config(features)
        self._all = FirstRows(source, min(rows or sys.maxsize, source.count_rows() or 0))
        self._learned = FirstRows(source, round(self._all.count_rows() * LEARNED))
        self._settings = chosen(
            self._config.train, self._config.features, self._learned.count_rows(), share_of_ones(self._learned)
        )
        self._scaling = measure_scaling(self._learned, self._config.features)
        self._log_odds = measure_log_odds(self._learned)
        self._ids: dict[str, np.ndarray] = {}

    def settings(self) -> Iterator[tuple[str, str, dict[str, TableConfig]]]:
        """(what, how much, tables) of every setting; the first one, all rows, must have been measured before others."""
        yield "all rows", "", {}
        for after in ADMITTED:
            yield "admission", f"at {after}", self._for_all(TableConfig(admit_after=after))
        filters = {
            name: TableConfig(admit_after=ADMITTED[0], admit_by="bloom", admit_ids=len(ids))
            for name, ids in self._ids.items()
            if len(ids) > SMALL
        }
        yield "admission, filter", f"at {ADMITTED[0]}", filters
        steps = self._steps()
        kept = [max(1, round(steps * share)) for share in KEPT_SHARES]
        for after in kept:
            evicted = self._for_all(TableConfig(evict_after_steps=after))
            yield "eviction, steps", f"after {after} of {steps} steps", evicted
        both = self._for_all(TableConfig(admit_after=ADMITTED[0], evict_after_steps=kept[-1]))
        yield "admission and eviction", f"at {ADMITTED[0]}, after {kept[-1]} steps", both
        for norm in NORMS:
            yield "eviction, norm", f"below {norm:g}", self._for_all(TableConfig(evict_below_norm=norm))
        for kind in KINDS:
            for share in HASHED_SHARES:
                yield kind, f"{share:.0%}", self._hashed(kind, share)
        yield "binary_code, whole rate", f"{WHOLE_RATE_SHARE:.0%}", self._hashed("binary_code", WHOLE_RATE_SHARE, True)

    def measure(self, tables: dict[str, TableConfig], seed: int) -> dict[str, float]:
        """Rows, bytes, AUC and the rest, of one run."""
        config = replace(self._config, tables=tables)
        settings = replace(self._settings, seed=seed)
        trainer = Trainer(draft(config, self._scaling), settings, tables=tables)
        trainer.dense.set_initial_bias(self._log_odds)
        every = max(1, self._steps() // SWEEPS)
        with PrefetchPipeline(self._learned.batches(settings.batch_rows), trainer.transform) as works:
            for work in works:
                trainer.learn(work)
                if trainer.steps % every == 0:
                    trainer.evict()
        labels, scores = [], []
        lookups = np.zeros(2, np.int64)
        for batch in self._all.batches(SCORED_ROWS, self._learned.count_rows()):
            labels.append(batch.label)
            scores.append(trainer.score(batch.columns))
            lookups += _lookups(trainer, batch)
        if not tables:
            self._ids = {name: table.export().keys for name, table in trainer.tables.items()}
        held = {name: (len(table), table.dim) for name, table in trainer.tables.items()}
        return {
            "rows": sum(rows for rows, _ in held.values()),
            "nbytes": sum(rows * dim * FLOAT_NBYTES for rows, dim in held.values()),
            "auc": float(auc(np.concatenate(labels), np.concatenate(scores))),
            "default": float(lookups[1] / max(1, lookups[0])),
            "collisions": self._collisions(tables),
        }

    def _collisions(self, tables: dict[str, TableConfig]) -> float:
        ids, alike = 0, 0
        for name, known in self._ids.items():
            table = tables.get(name, TableConfig())
            ids += len(known)
            if table.hash:
                _, counts = np.unique(_keys(table, known), axis=0, return_counts=True)
                alike += int(counts[counts > 1].sum())
        return alike / max(1, ids)

    def _for_all(self, table: TableConfig) -> dict[str, TableConfig]:
        return {name: table for name, ids in self._ids.items() if len(ids) > SMALL}

    def _hashed(self, kind: str, share: float, whole_rate: bool = False) -> dict[str, TableConfig]:
        """Tables of a share of the rows that there are without; whole_rate: not over the rows of an id."""
        tables = {}
        for name, ids in self._ids.items():
            if len(ids) > SMALL:
                own = {"learning_rate": self._settings.learning_rate} if whole_rate else {}
                tables[name] = TableConfig(hash=kind, hash_rows=max(4, round(len(ids) * share)), train=own)
        return tables

    def _steps(self) -> int:
        return self._learned.count_rows() // self._settings.batch_rows


def _keys(table: TableConfig, ids: np.ndarray) -> np.ndarray:
    """Of a hashed table, [n, keys of an id]."""
    sizes = key_transform("t", "x", 0, table.hash, table.hash_rows, table.hash_codes).integers[1:]
    return CODES[table.hash](ids, *sizes)


def _lookups(trainer: Trainer, batch: Batch) -> np.ndarray:
    """Ids of a batch, and those without a row."""
    bound = trainer.plan.bind_inputs(batch.columns)
    view = BatchView.of(descriptors([t.descriptor() for t in trainer.own.values()]), 0, bound)
    trainer.plan.fill(view, np.empty((bound.rows, trainer.plan.width), np.float32))
    found: np.ndarray = view.counts.sum(axis=0)
    return found


def summary(what: str, amount: str, runs: list[dict[str, float]]) -> dict[str, Any]:
    """A setting's line: means over seeds, and each seed's AUC."""
    means = {key: float(np.mean([run[key] for run in runs])) for key in runs[0]}
    return {"what": what, "amount": amount} | means | {"aucs": [run["auc"] for run in runs]}


def page(document: dict[str, Any]) -> str:
    """admission.md."""
    lines = opening("Admission, eviction, hashed tables", __doc__, document)
    for name, results in document["tables"].items():
        whole = results[0]
        lines += [f"## {name}", "", f"Seeds: {len(whole['aucs'])}.", "", f"![{name}]({picture(name)})", ""]
        header = ["what", "how much", "rows", "MB", "times smaller", "AUC", "difference", "default", "collisions"]
        lines += [table(header, (_cells(r, whole) for r in results)), ""]
        lines += [f"The smallest of each that costs no more than {LOST:.1%} of the AUC, and none where none does:", ""]
        kinds = [what for what in SHAPES if what != "all rows"]
        lines += [table(["what", "how much", "times smaller"], (_smallest(k, results) for k in kinds)), ""]
    return "\n".join(lines)


def _cells(r: dict[str, Any], whole: dict[str, Any]) -> list[str]:
    apart = [a - b for a, b in zip(r["aucs"], whole["aucs"])]
    return [
        r["what"],
        r["amount"],
        f"{r['rows']:,.0f} ({r['rows'] / whole['rows']:.0%})",
        f"{r['nbytes'] / 1e6:.2f}",
        f"{whole['nbytes'] / r['nbytes']:.1f}",
        f"{r['auc']:.4f}",
        f"{np.mean(apart):+.4f} ({min(apart):+.4f} to {max(apart):+.4f})",
        f"{r['default']:.2%}",
        f"{r['collisions']:.2%}",
    ]


def _smallest(what: str, results: list[dict[str, Any]]) -> list[str]:
    whole = results[0]
    good = [r for r in results if r["what"] == what and r["auc"] >= whole["auc"] * (1 - LOST)]
    if not good:
        return [what, "none", ""]
    best = min(good, key=lambda r: r["nbytes"])
    return [what, best["amount"], f"{whole['nbytes'] / best['nbytes']:.1f}"]


def picture(name: str) -> str:
    return f"admission-{name.partition(',')[0].lower()}.png"


def draw(name: str, results: list[dict[str, Any]], path: Path) -> None:
    """AUC by rows that are saved, by bytes, and by collisions."""
    figure = Figure(figsize=(15, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, 3)
    whole = results[0]
    shown = {"rows saved": {what for what in SHAPES if not what.startswith(KINDS)}, "bytes, times smaller": set(SHAPES)}
    shown["ids that share all of their rows"] = {"all rows", *(what for what in SHAPES if what.startswith(KINDS))}
    for panel, (label, kinds) in zip(panels, shown.items()):
        for what, shape in SHAPES.items():
            some = [r for r in results if r["what"] == what and what in kinds]
            across = {
                "rows saved": [1 - r["rows"] / whole["rows"] for r in some],
                "bytes, times smaller": [whole["nbytes"] / r["nbytes"] for r in some],
                "ids that share all of their rows": [r["collisions"] for r in some],
            }
            if some:
                panel.plot(across[label], [r["auc"] for r in some], shape, label=what, markersize=5)
        panel.axhline(whole["auc"], color="0.8", linewidth=1, zorder=0)
        panel.set_xlabel(label)
        panel.set_ylabel("AUC")
        if label.startswith("bytes"):
            panel.set_xscale("log")
            panel.xaxis.set_major_formatter("{x:g}")
            panel.xaxis.set_minor_formatter(NullFormatter())
        panel.legend(fontsize=7)
    figure.suptitle(name)
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(prog="make -C loadtest admission", description=__doc__)
    parser.add_argument("--only", default="", help="tables whose names hold this")
    parser.add_argument("--rows", type=int, default=0, help="of each table, from the first on; 0: all")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--data", type=Path, default=DATA, help="folder with ml-1m and criteo; FRESHET_DATA")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    console = Console(stderr=True, highlight=False)
    document: dict[str, Any] = {"machine": machine(), "origin": origin("-C loadtest admission", "ARGS", sys.argv[1:])}
    document["tables"] = {}
    arguments.out.mkdir(parents=True, exist_ok=True)
    for name in MEASURED:
        if arguments.only not in name:
            continue
        if not (arguments.data / TABLES[name].data).exists():
            console.print(f"{name}: not at --data")
            continue
        console.print(f"[bold]{name}[/bold]")
        spared = SparedTable(TABLES[name], arguments.data, arguments.rows)
        runs: dict[tuple[str, str], list[dict[str, float]]] = {}
        for seed in range(arguments.seeds):
            for what, amount, tables in spared.settings():
                run = spared.measure(tables, seed)
                runs.setdefault((what, amount), []).append(run)
                console.print(f"  {seed}: {what} {amount}: {run['rows']:,.0f} rows, AUC {run['auc']:.4f}")
            results = document["tables"][name] = [summary(*setting, each) for setting, each in runs.items()]
            draw(name, results, arguments.out / picture(name))
            (arguments.out / "admission.json").write_text(json.dumps(document, indent=1) + "\n")
            (arguments.out / "admission.md").write_text(page(document))
    print(page(document))


if __name__ == "__main__":
    main()
