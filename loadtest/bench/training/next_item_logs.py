"""`make -C loadtest next-item`: default files of next-item networks on logs that differ; results/next-item-logs.md.

What users liked in six made-up logs (loadtest.bench.event_logs), each for another reason, and the first rows of
MovieLens-1M; each seed draws another log. The file names its columns and the history, and neither steps, rates nor
widths but `dim`. Each user's last event is the target and comes last in the log; users with fewer than three events are
left out. Counts (models.evaluation.next_item_baselines) are of the same events, and so is what RecTools' SASRec learns,
of the same width and length, with its own settings otherwise and the number of epochs below. All items but the user's
own are ranked, ties by one rule. Each result is kept when it is there; the command goes on where it was stopped.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.models.config.train_config import parse_config
from freshet_serving.models.evaluation.next_item_baselines import LAST_ITEM, LAST_TWO, POPULARITY
from freshet_serving.models.training.next_item_run import NextItemRun
from loadtest.bench import event_logs, needs
from loadtest.bench.training.leave_one_out import LeaveOneOut
from loadtest.reports.report import RESULTS, begun, opening, store, stored, table

PEER_PYTHON = needs.ROOT / "build" / "rectools-venv" / "bin" / "python"
KINDS = {kind.name: kind for kind in event_logs.KINDS}
MOVIELENS = "MovieLens-1M"
LOGS, ROWS, SEEDS, DIM, LENGTH, TOP, FEWEST = (*KINDS, MOVIELENS), (20_000, 100_000), (1, 2), 50, 50, 10, 3
PEER, PEER_EPOCHS = "RecTools SASRec", 20
SASREC, HSTU = OURS = ("sasrec_next", "hstu_next")
RIVALS = (POPULARITY, LAST_TWO, PEER)
NEAR = 0.005
"""Aim: how far a network may be behind the best of RIVALS."""

Int64s = NDArray[np.int64]


def events_of(name: str, seed: int, data: Path, rows: int) -> tuple[Int64s, Int64s, Int64s]:
    """Return users, items and times of the first rows' events of a log, each user's last event after all others."""
    if name == MOVIELENS:
        from freshet_serving.models.data.movielens import MovieLensSource

        batch = next(MovieLensSource(str(data / "ml-1m"), ()).batches(rows))
        assert batch.time is not None
        users, items = (np.asarray(batch.columns[column], np.int64) for column in ("user_id", "movie_id"))
        times = np.floor(batch.time).astype(np.int64)
    else:
        columns = event_logs.event_log(KINDS[name], seed, rows).columns
        liked = columns["label"] > 0
        users, items, times = (columns[column][liked] for column in ("user_id", "item_id", "time"))
    many = np.bincount(users)[users] >= FEWEST
    users, items, times = users[many], items[many], times[many]
    last = np.zeros(len(users), bool)
    last[len(users) - 1 - np.unique(users[::-1], return_index=True)[1]] = True
    order = np.argsort(last, kind="stable")
    return users[order], items[order], times[order]


def ours(arch: str, events: tuple[Int64s, Int64s, Int64s], seed: int) -> dict[str, float]:
    """Return the NDCG of the default file and of counts, and the processor seconds of the run."""
    users, items, times = events
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log.csv"
        # Last events come last; no network reads their times.
        clock = np.maximum.accumulate(times)
        lines = [f"{user},{item},{time},1" for user, item, time in zip(*map(np.ndarray.tolist, (users, items, clock)))]
        log.write_text("\n".join(["user_id,item_id,time,liked", *lines]) + "\n")
        history: dict[str, Any] = {
            "columns": {"item": "item_id"},
            "tables": {"item": "item_id"},
            "from_events": "user_id",
            "ties": "file",
            "max_length": LENGTH,
            **({"time": "time"} if arch == HSTU else {}),
        }
        raw = {
            "model": {"name": "next", "arch": arch},
            "data": {"path": str(log), "label": "liked", "time": "time"},
            "features": {
                "user_id": {"kind": "id", "side": "user"},
                "item_id": {"kind": "id", "side": "item", "dim": DIM},
            },
            "sequences": {"history": history},
            "train": {"seed": seed, "holdout": len(np.unique(users)) / len(users)},
            "publish": {"repository": str(Path(folder) / "repository"), "full_rows": len(users)},
        }
        run = NextItemRun(parse_config(raw), checkpoints=Path(folder) / "checkpoints")
        run.run()
        counts = run.counted()
        return {arch: run.ranked.result().ndcg} | {name: result.ndcg for name, result in counts.results().items()}


def peer(events: tuple[Int64s, Int64s, Int64s], seed: int) -> float:
    users, items, times = events
    order = np.lexsort((np.arange(len(users)), times))
    split = LeaveOneOut(users[order], items[order], times[order])
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "split.npz"
        np.savez(file, **split.saved())
        script = Path(__file__).with_name("rectools_side.py")
        words = map(str, (PEER_PYTHON, script, file, seed, PEER_EPOCHS, LENGTH))
        told = subprocess.run([*words], check=True, stdout=subprocess.PIPE, text=True).stdout
        return float(json.loads(told.splitlines()[-1])["ndcg"])


def page(results: Mapping[str, Any]) -> str:
    lines = opening("The default next-item file on logs of events", __doc__ or "", results)
    lines += [f"RecTools learns {PEER_EPOCHS} epochs.", ""]
    sides = [POPULARITY, LAST_ITEM, LAST_TWO, PEER, *OURS]
    lines += ["NDCG@10, the mean of the seeds that all sides of a row have; seeds in brackets if a side has fewer.", ""]
    rows = [
        [f"{int(rows):,}", log, *_cells(seeds, sides)]
        for rows, logs in results["logs"].items()
        for log, seeds in logs.items()
        if any(SASREC in told for told in seeds.values())
    ]
    lines += [table(["rows", "log", "seeds", *sides, "difference", "met"], rows), ""]
    best = ", ".join(RIVALS)
    lines += [f"The difference is that of `{SASREC}` and the best of {best}; the aim is at least {-NEAR}."]
    return "\n".join([*lines, f"`{HSTU}` ran on some logs alone.", ""])


def _cells(seeds: Mapping[str, Mapping[str, float]], sides: Sequence[str]) -> list[str]:
    """Return the cells of a log: seeds, the means of the sides, the difference, and whether the aim is met."""
    there = [side for side in sides if any(side in told for told in seeds.values())]
    whole = [told for told in seeds.values() if set(there) - {HSTU} <= set(told)]
    means = {side: [told[side] for told in whole if side in told] for side in there}
    rivals = [statistics.mean(means[side]) for side in RIVALS if means.get(side)]
    behind = round(statistics.mean(means[SASREC]) - max(rivals), 4) if means[SASREC] and rivals else float("nan")
    cells = [""] * len(sides)
    for number, side in enumerate(sides):
        if values := means.get(side):
            fewer = f" ({len(values)})" if len(values) < len(whole) else ""
            cells[number] = f"{statistics.mean(values):.4f}{fewer}"
    return [str(len(whole)), *cells, f"{behind:+.4f}", "yes" if behind >= -NEAR else "no"]


def main() -> None:
    parser = argparse.ArgumentParser(prog="make -C loadtest next-item", description=__doc__)
    add = parser.add_argument
    add("--only", nargs="*", choices=[*OURS, PEER], default=[SASREC, PEER], help="sides")
    add("--logs", nargs="*", choices=LOGS, default=list(LOGS))
    add("--seeds", nargs="*", type=int, default=list(SEEDS))
    add("--rows", nargs="*", type=int, default=list(ROWS), help="rows of each log")
    add("--data", type=Path, default=needs.DATA, help="folder with ml-1m; FRESHET_DATA")
    add("--out", type=Path, default=RESULTS, help="what its next-item-logs.json has is not run again")
    options = parser.parse_args()
    results = {"logs": {}} | stored(options.out, "next-item-logs") | begun("next-item")
    logs = [log for log in options.logs if log != MOVIELENS or (options.data / "ml-1m").exists()]
    for seed, rows, log in itertools.product(options.seeds, options.rows, logs):
        told = results["logs"].setdefault(str(rows), {}).setdefault(log, {}).setdefault(str(seed), {})
        missing = [side for side in options.only if side not in told]
        events = events_of(log, seed, options.data, rows) if missing else None
        for side in missing:
            assert events is not None
            told |= {PEER: peer(events, seed)} if side == PEER else ours(side, events, seed)
            print(rows, log, seed, told, flush=True)
            store(options.out, "next-item-logs", results, page(results))
    print(page(results))


if __name__ == "__main__":
    main()
