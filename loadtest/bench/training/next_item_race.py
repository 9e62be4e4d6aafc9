"""The next-item part of `make -C loadtest sequence-quality`; loadtest/results/next-item.md.

MovieLens-1M, all ratings, in order of time and then of the file. Each user's last event is the target, the events
before it are learned, every one but the first as a target. All sides: dimension 50, the newest 200 events, two layers,
one head, dropout 0.2, the softmax over all items, Adam at 0.001, batches of 128 users, the same number of epochs, and
figures of the last epoch, none chosen. All items but the user's own are ranked, ties by one rule (leave_one_out.py).
`hstu_next` also reads the times. Ours have `popularity = false`, so that networks are compared without counts.
RecTools' SASRec is its own code in an environment of its own, with its own first values, its places counted from the
newest event and dropout on attention weights. Each side runs in a process of its own on one thread and keeps its
figures after each epoch; a run that was ended goes on there. RecTools runs on a GPU, too, if `--only rectools-gpu` asks
for it: 20 epochs take minutes there, and hours on a core. Aims are judged by the side of RecTools that has more epochs.
Sequences a second are by processor time, because other work shares the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from freshet_serving.models.data.movielens import MovieLensSource
from loadtest.bench import needs
from loadtest.bench.training.leave_one_out import LeaveOneOut
from loadtest.reports.report import machine, opening, origin

HERE = Path(__file__).parent
RESULTS = HERE.parents[1] / "results"
DATA = Path(os.environ.get("FRESHET_DATA", HERE.parents[3] / "shared" / "data"))
PEER_PYTHON = HERE.parents[2] / "build" / "rectools-venv" / "bin" / "python"
PEER, ON_GPU, ARCHS = "rectools", "rectools-gpu", ("sasrec_next", "hstu_next")
SIDES, SEEDS, EPOCHS = (PEER, ON_GPU, *ARCHS), (0, 1, 2), 20
NAMES = {PEER: "RecTools SASRec", ON_GPU: "RecTools SASRec on a GPU"}
GOALS = (("sasrec_next", PEER, -0.005), ("hstu_next", "sasrec_next", 0.005))
"""(side, other side, the least by which the first side's NDCG is to be better)."""

Figures = Mapping[str, Mapping[str, Sequence[Mapping[str, float]]]]
"""By side and seed, the figures of each epoch."""


def split_of(data: Path) -> LeaveOneOut:
    source = MovieLensSource(str(data / "ml-1m"), ())
    whole = next(source.batches(source.count_rows()))
    assert whole.time is not None
    users, items = (np.asarray(whole.columns[name]) for name in ("user_id", "movie_id"))
    return LeaveOneOut(users, items, np.floor(whole.time).astype(np.int64))


def run_sides(work: Path, sides: Sequence[str], seeds: Sequence[int], epochs: int, data: Path) -> None:
    """Run what is missing, seed after seed."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "split.npz"
        np.savez(file, **split_of(data).saved())
        for seed in seeds:
            for side in sides:
                words = [side, str(file), str(work), str(seed), str(epochs), "1"]
                if side in (PEER, ON_GPU):
                    command = [str(PEER_PYTHON), str(HERE / "rectools_side.py"), *words]
                else:
                    command = [sys.executable, "-m", "loadtest.bench.training.next_item_side", *words]
                subprocess.run(command, check=True)


def figures_of(work: Path) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for side in SIDES:
        for seed in SEEDS:
            told = work / f"{side}-{seed}.json"
            if told.exists():
                found.setdefault(side, {})[str(seed)] = json.loads(told.read_text())[:EPOCHS]
    return found


def page(results: Mapping[str, Any]) -> str:
    """next-item.md."""
    sides: Figures = results["sides"]
    lines = opening("Quality of next-item models", __doc__ or "", results)
    lines += [results["load"], ""]
    lines += ["| side | epochs, by seed | NDCG@10, by seed | HR@10, by seed | sequences a second |"]
    lines += ["|---|---|---|---|---:|"]
    for side, seeds in sides.items():
        epochs = ", ".join(str(len(told)) for told in seeds.values())
        ndcg, hits = (", ".join(f"{told[-1][name]:.4f}" for told in seeds.values()) for name in ("ndcg", "hit_rate"))
        a_second = "" if side == ON_GPU else f"{rate(seeds, results):,.0f}"
        lines.append(f"| {NAMES.get(side, side)} | {epochs} | {ndcg} | {hits} | {a_second} |")
    lines += ["", *by_epoch(sides), "", "| aim | difference | met |", "|---|---:|---|"]
    for side, other, least in GOALS:
        if other == PEER:
            # That of the CPU if both have as many.
            other = max((PEER, ON_GPU), key=lambda name: [len(told) for told in sides.get(name, {}).values()])
        pair = [sides.get(name, {}) for name in (side, other)]
        shared = [s for s in pair[0] if s in pair[1]]
        if not shared:
            continue
        upto = min(len(told[s]) for told in pair for s in shared)
        ours, theirs = (statistics.mean(told[s][upto - 1]["ndcg"] for s in shared) for told in pair)
        finished = upto == EPOCHS and len(shared) == len(SEEDS)
        so_far = "" if finished else f" after {upto} epochs of {len(shared)} of {len(SEEDS)} seeds"
        words = f"{NAMES.get(side, side)} at least {NAMES.get(other, other)} {least:+.3f}{so_far}"
        met = ("yes" if ours - theirs >= least else "no") if finished else "open"
        lines.append(f"| {words} | {ours - theirs:+.4f} | {met} |")
    rates = [rate(sides[side], results) for side in ("sasrec_next", PEER) if side in sides]
    if len(rates) == 2:
        ratio = rates[0] / rates[1]
        met = "yes" if ratio >= 1 else "no"
        lines.append(f"| SASRec's sequences a second at least 1.0 of RecTools' | {ratio:.2f} | {met} |")
    return "\n".join(lines) + "\n"


def rate(seeds: Mapping[str, Sequence[Mapping[str, float]]], results: Mapping[str, Any]) -> float:
    """Return sequences a second of processor time, the median epoch's."""
    spent = [epoch["cpu_seconds"] for told in seeds.values() for epoch in told]
    return float(results["users"]) / statistics.median(spent)


def by_epoch(sides: Figures) -> list[str]:
    """Return a table of NDCG by epoch, the mean of the seeds that have it."""
    names = [side for side in sides if sides[side]]
    lines = [
        "| NDCG@10 after epoch | " + " | ".join(NAMES.get(side, side) for side in names) + " |",
        "|---:|" + "---:|" * len(names),
    ]
    for epoch in range(EPOCHS):
        means = []
        for side in names:
            there = [told[epoch]["ndcg"] for told in sides[side].values() if len(told) > epoch]
            means.append(f"{statistics.mean(there):.4f}" if there else "")
        if any(means):
            lines.append(f"| {epoch + 1} | " + " | ".join(means) + " |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--only", nargs="*", choices=SIDES, default=[PEER, *ARCHS], help="sides")
    add("--seeds", nargs="*", type=int, default=list(SEEDS))
    add("--epochs", type=int, default=EPOCHS)
    add("--data", type=Path, default=DATA, help="folder with ml-1m; FRESHET_DATA")
    add("--work", type=Path, default=HERE.parents[2] / "build" / "next-item", help="what it has is not run again")
    add("--load", default="", help="a sentence on what else the machine did")
    add("--page", action="store_true", help="only write the page of what there is")
    arguments = parser.parse_args()
    needs.movielens(arguments.data)
    if PEER in arguments.only and not arguments.page:
        needs.interpreter(PEER_PYTHON, "`make -C loadtest sequence-quality` makes it")
    arguments.work.mkdir(parents=True, exist_ok=True)
    if not arguments.page:
        run_sides(arguments.work, arguments.only, arguments.seeds, arguments.epochs, arguments.data)
    results = {
        "machine": machine(),
        "origin": origin("-C loadtest sequence-quality", "ARGS", []),
        "load": arguments.load,
        "users": len(split_of(arguments.data).targets),
        "sides": figures_of(arguments.work),
    }
    (RESULTS / "next-item.json").write_text(json.dumps(results, indent=1) + "\n")
    (RESULTS / "next-item.md").write_text(page(results))
    print(page(results))


if __name__ == "__main__":
    main()
