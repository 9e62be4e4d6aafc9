"""`make -C loadtest train-histories`: steps of DIN beside FuxiCTR's and a plain PyTorch loop; train-histories.md.

All sides learn the same rows of MovieLens-1M, shuffled, by the same network (embeddings of 16 numbers, histories of 50
events, layers 64 for the weight of an event and 128, 64 after it) in batches of the same size, each in a process of its
own, in turn, again and again; a turn is as many steps as take about --seconds. A ratio is of one round's turns. Before,
each peer tries one thread and all. Peers learn by Adam; Freshet goes as it comes and reads, transforms and looks up
each row; peers have rows of embeddings in memory. FuxiCTR runs its own train_step.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from freshet_serving.processor.cores import available
from loadtest.bench import needs
from loadtest.bench.training.race import CELLS, TrainerVariant, arguments, best, command, freshet, race, ratios
from loadtest.bench.training.race import side_cells as cells_of
from loadtest.bench.training.sequence_quality import PEER_PYTHON, VENV
from loadtest.bench.training.sequence_rows import SequenceRows
from loadtest.reports.report import begun, opening, store, table

LEAST = 1.0


def ways(name: str, script: str, *words: Any) -> list[TrainerVariant]:
    """Return a peer's ways to run: with one thread and with all."""
    return [
        TrainerVariant(
            name, f"{count} thread(s)", ["env", f"OMP_NUM_THREADS={count}", *command(PEER_PYTHON, script, *words)]
        )
        for count in sorted({1, len(available())})
    ]


def page(results: Mapping[str, Any]) -> str:
    lines = opening("Training of histories", __doc__ or "", results)
    lines += [f"The first {results['rows']:,} rows. Other work on the machine: {results['load']}.", ""]
    rows = []
    for batch, result in ((int(batch), result) for batch, result in results["races"].items()):
        for name in result["turns"]:
            reached = name != "Freshet" and statistics.median(ratios(result, name)) >= LEAST
            met = "" if name == "Freshet" else f"{LEAST}: {'yes' if reached else 'no'}"
            rows.append([f"{batch:,}", *cells_of(result, name, batch), met])
    return "\n".join([*lines, table(["batch", *CELLS, "aim"], rows), ""])


def main() -> None:
    parser = arguments("train-histories", __doc__)
    parser.set_defaults(batches=[2048, 512])
    parser.add_argument("--rows", type=int, default=100_000, help="the first so many; 0: all")
    parser.add_argument("--data", type=Path, default=needs.DATA, help="folder with ml-1m; FRESHET_DATA")
    options = parser.parse_args()
    console, data = Console(stderr=True, highlight=False), needs.movielens(options.data)
    needs.interpreter(PEER_PYTHON, VENV)
    rows = SequenceRows(data, options.rows)
    results: dict[str, Any] = {"rows": rows.all, "races": {}} | begun("train-histories")
    results["load"] = f"{os.getloadavg()[0]:.1f} processes waited for {len(available())} cores when it began"
    with tempfile.TemporaryDirectory() as folder:
        file = rows.save_coded(Path(folder) / "rows.npz")
        for batch_rows in options.batches:
            console.print(f"[bold]batches of {batch_rows:,}[/bold]")
            peers = [
                best(ways("FuxiCTR", "fuxictr_din_side.py", file, batch_rows, 0.001, 0, 0, 0), console),
                best(ways("PyTorch", "torch_side.py", "histories", file, batch_rows), console),
            ]
            sides = [freshet("histories", batch_rows, data, rows.all), *filter(None, peers)]
            results["races"][str(batch_rows)] = race(sides, options.rounds, options.seconds, console)
            store(options.out, "train-histories", results, page(results))
    print(page(results))


if __name__ == "__main__":
    main()
