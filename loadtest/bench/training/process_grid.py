"""`make -C loadtest processes-grid`: what several processes learn beside what one learns, by every optimizer;
loadtest/results/train-processes-grid.md.

On the same global batches of 256 rows of the synthetic stream: ids of users have a row once they came twice, items
leave after 40 steps, tags by their norm, gradients are clipped. Scores are of the 256 rows that follow 100 batches, as
far as any of them is off; AUC is of the last half of all rows, each batch scored before it is learned. Aims: 1e-5 and
1e-4.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from freshet_serving.models.embedding.optimizer import OPTIMIZERS
from loadtest.bench.training.process_race import RESULTS, said_by
from loadtest.reports.report import machine, opening, origin, table

PROCESSES = (2, 3, 4)
AIMED_SCORES, AIMED_AUC = 1e-5, 1e-4


def learned(optimizer: str, processes: int, rows: int) -> tuple[NDArray[np.float32], float]:
    """Scores after 100 batches, and the AUC."""
    said = said_by(processes, "--rows", str(rows), "--optimizer", optimizer)
    return np.frombuffer(bytes.fromhex(said["scores"]), np.float32), float(said["auc"])


def page(results: dict[str, Any]) -> str:
    """train-processes-grid.md."""
    lines = opening("Several processes and one", __doc__ or "", results)
    rows = []
    for optimizer, found in results["optimizers"].items():
        cells = [f"{of['scores']:.1e}, {of['auc'] - found['auc']:+.6f}" for of in found["processes"].values()]
        rows.append([optimizer, f"{found['auc']:.5f}", *cells])
    header = ["optimizer", "AUC of one", *(f"{n}: scores off by, AUC" for n in PROCESSES)]
    return "\n".join([*lines, table(header, rows)]) + "\n"


def passed(results: dict[str, Any]) -> bool:
    """Whether all are within both aims."""
    return all(
        of["scores"] <= AIMED_SCORES and abs(of["auc"] - found["auc"]) <= AIMED_AUC
        for found in results["optimizers"].values()
        for of in found["processes"].values()
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="make -C loadtest processes-grid", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=list(OPTIMIZERS), default=list(OPTIMIZERS))
    parser.add_argument("--rows", type=int, default=60_000)
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    console = Console(stderr=True, highlight=False)
    made = origin("-C loadtest processes-grid", "ARGS", sys.argv[1:])
    results: dict[str, Any] = {"machine": machine(), "origin": made, "rows": arguments.rows, "optimizers": {}}
    for optimizer in arguments.only:
        wanted, auc = learned(optimizer, 1, arguments.rows)
        found: dict[str, Any] = {"auc": auc, "processes": {}}
        for processes in PROCESSES:
            scores, many = learned(optimizer, processes, arguments.rows)
            found["processes"][processes] = {"scores": float(np.abs(scores - wanted).max()), "auc": many}
        results["optimizers"][optimizer] = found
        console.print(optimizer, found)
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "train-processes-grid.json").write_text(json.dumps(results, indent=1) + "\n")
    (arguments.out / "train-processes-grid.md").write_text(page(results))
    print(page(results))
    sys.exit(not passed(results))


if __name__ == "__main__":
    main()
