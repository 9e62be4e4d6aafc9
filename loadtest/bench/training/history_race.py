"""`make -C loadtest train-histories`: steps of DIN beside FuxiCTR's and a plain PyTorch loop; train-histories.md.

All sides learn the same rows of MovieLens-1M, shuffled, by the same network (embeddings of 16 numbers, histories of 50
events, layers 64 for the weight of an event and 128, 64 after it) in batches of the same size, each in a process of its
own, in turn, again and again; a turn is as many steps as take about --seconds. A ratio is of one round's turns. Before,
each peer tries one thread and all. Peers learn by Adam; Freshet goes as it comes and reads, transforms and looks up
each row; peers have rows of embeddings in memory. FuxiCTR runs its own train_step.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from freshet_serving.processor.cores import available
from loadtest.bench import needs
from loadtest.bench.training.race import TrainerVariant, best, race, ratios, side_cells
from loadtest.bench.training.sequence_quality import DATA, HERE, PEER_PYTHON, RESULTS, VENV
from loadtest.bench.training.sequence_rows import SequenceRows
from loadtest.reports.report import machine, opening, origin, store

BATCHES = (2048, 512)
ARCH = "din"
LEAST = 1.0


def ways(name: str, script: str, words: Sequence[str]) -> list[TrainerVariant]:
    """Return a peer's ways to run: with one thread and with all."""
    command = [str(PEER_PYTHON), str(HERE / script), *words]
    return [
        TrainerVariant(name, f"{count} thread(s)", ["env", f"OMP_NUM_THREADS={count}", *command])
        for count in sorted({1, len(available())})
    ]


def contestants(rows: SequenceRows, data: Path, file: Path, batch_rows: int, console: Console) -> list[TrainerVariant]:
    """Return Freshet and the best way of each peer that runs."""
    words = [str(data), str(rows.all), ARCH, str(batch_rows)]
    ours = TrainerVariant("Freshet", "as it comes", [sys.executable, str(HERE / "history_side.py"), *words])
    peers = [
        best(ways("FuxiCTR", "fuxictr_din_side.py", [str(file), str(batch_rows), "0.001", "0", "0", "0"]), console),
        best(ways("PyTorch", "torch_din_side.py", [str(file), str(batch_rows)]), console),
    ]
    return [ours, *(peer for peer in peers if peer is not None)]


def page(results: Mapping[str, Any]) -> str:
    """train-histories.md."""
    lines = opening("Training of histories", __doc__ or "", results)
    lines += [f"The first {results['rows']:,} rows. Other work on the machine: {results['load']}.", ""]
    lines += ["| batch | side | settings | ms a step | rows a second | processor ms | times Freshet's step | aim |"]
    lines += ["|---:|---|---|---:|---:|---:|---:|---|"]
    for batch, result in ((int(batch), result) for batch, result in results["races"].items()):
        for name in result["turns"]:
            reached = name != "Freshet" and statistics.median(ratios(result, name)) >= LEAST
            met = "" if name == "Freshet" else f"{LEAST}: {'yes' if reached else 'no'}"
            lines.append(f"| {batch:,} | {side_cells(result, name, batch)} | {met} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(prog="make -C loadtest train-histories", description=__doc__)
    add = parser.add_argument
    add("--rounds", type=int, default=7)
    add("--seconds", type=float, default=4.0, help="length of a turn")
    add("--rows", type=int, default=100_000, help="the first so many; 0: all")
    add("--batches", type=int, nargs="+", default=list(BATCHES))
    add("--data", type=Path, default=DATA, help="folder with ml-1m; FRESHET_DATA")
    add("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    console, data = Console(stderr=True, highlight=False), needs.movielens(arguments.data)
    needs.interpreter(PEER_PYTHON, VENV)
    rows = SequenceRows(data, arguments.rows)
    results: dict[str, Any] = {"rows": rows.all, "races": {}, "machine": machine()}
    results |= {"origin": origin("-C loadtest train-histories", "ARGS", sys.argv[1:])}
    results["load"] = f"{os.getloadavg()[0]:.1f} processes waited for {len(available())} cores when it began"
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "rows.npz"
        arrays, sizes = rows.coded()
        np.savez(file, **(arrays | {"sizes": np.array(json.dumps(sizes))}))  # type: ignore[arg-type]
        for batch_rows in arguments.batches:
            console.print(f"[bold]batches of {batch_rows:,}[/bold]")
            sides = contestants(rows, data, file, batch_rows, console)
            results["races"][str(batch_rows)] = race(sides, arguments.rounds, arguments.seconds, console)
            store(arguments.out, "train-histories", results, page(results))
    print(page(results))


if __name__ == "__main__":
    main()
