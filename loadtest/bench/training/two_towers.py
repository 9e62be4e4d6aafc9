"""`make -C loadtest two-towers`: Recall@100 of `two_tower` beside a plain PyTorch one; loadtest/results/two-towers.md.

Both learn the same pairs of MovieLens-1M, ratings of 4 and 5 in order of time, and are judged on those of the newest
fifth of the events, whose item is ranked among all items. Both have the same columns (among them the LENGTH newest
items that the user had liked before), widths, loss, sampling, optimizers, rates, batches and epochs; each draws its own
first weights, order and further items. Seeds alternate. The PyTorch side (two_towers_torch) computes its figures by
code of its own, and knows the items' shares of all events from the beginning. Each seed's figures are kept when they
are there; the command goes on where it was stopped.

With --events instead, over so many events of a made-up log.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from freshet_serving.compiler.progress import SilentReporter
from freshet_serving.models.config.train_config import parse_config
from freshet_serving.models.evaluation.generation_scorer import GenerationScorer
from freshet_serving.models.evaluation.retrieval_evaluation import rank_pairs
from freshet_serving.models.training.retrieval_run import RetrievalRun
from loadtest.bench import needs
from loadtest.bench.event_logs import TASTES, event_log
from loadtest.reports.report import machine, opening, origin, table

HERE = Path(__file__).parent
RESULTS = HERE.parents[1] / "results"
DATA = Path(os.environ.get("FRESHET_DATA", HERE.parents[3] / "shared" / "data"))
TORCH_PYTHON = os.environ.get("FRESHET_TORCH_PYTHON", str(HERE.parents[2] / ".venv/torch/bin/python"))
AIM, NEWEST, LENGTH = 0.005, 0.2, 20
SETTINGS: dict[str, Any] = {
    "dim": 16,
    "hidden": [256, 128],
    "vector_dim": 32,
    "negatives": 1024,
    "batch_rows": 1024,
    "epochs": 3,
    "learning_rate": 0.05,
    "initial_accumulator": 1e-6,
    "dense_learning_rate": 0.001,
    "scale": 10.0,
    "init_scale": 0.01,
}
"""What both sides have in common."""
LISTS = ("genres", "history")
SHOWN = {"freshet": "Freshet", "torch": "PyTorch"}
SIDES = tuple(SHOWN)

Figures = dict[str, float]


def movielens(folder: Path) -> tuple[dict[str, Any], int]:
    """Return the columns of what users liked, in order of time, and how many of the rows are learned."""
    with gzip.open(folder / "events.csv.gz") as file:
        rows = np.loadtxt(file, delimiter=",", skiprows=1, usecols=range(4))
    user, movie = rows[:, 1].astype(np.int64), rows[:, 2].astype(np.int64)
    liked = rows[:, 3] > 0
    known: dict[int, list[str]] = {}
    for line in (folder / "movies.dat").read_text("latin-1").splitlines():
        number, title, genres = line.split("::")
        known[int(number)] = [title.strip()[-5:-1], *genres.split("|")]
    kinds = {name: n for n, name in enumerate(sorted({g for _, *genres in known.values() for g in genres}))}
    people = [line.split("::") for line in (folder / "users.dat").read_text("latin-1").splitlines()]
    about = {int(number): (int(gender == "F"), int(age), int(work)) for number, gender, age, work, _ in people}
    names, genders = movie[liked].tolist(), [about[u] for u in user[liked].tolist()]
    columns: dict[str, Any] = {"user_id": user[liked], "movie_id": movie[liked]}
    columns |= {name: np.array([g[i] for g in genders]) for i, name in enumerate(("gender", "age", "occupation"))}
    columns["year"] = np.array([int(known[m][0]) for m in names])
    columns["genres"] = [[kinds[g] for g in known[m][1:]] for m in names]
    columns["history"] = histories(columns["user_id"], columns["movie_id"])
    return columns, int(liked[: round(len(liked) * (1 - NEWEST))].sum())


def made_up(events: int) -> tuple[dict[str, Any], int]:
    """Return the same of a made-up log."""
    log = event_log(TASTES, 1, events).columns
    user, item = log["user_id"].astype(np.int64), log["item_id"].astype(np.int64)
    columns: dict[str, Any] = {"user_id": user, "movie_id": item, "gender": user % 2, "age": user % 7}
    columns |= {"occupation": user % 5, "year": item % 10, "genres": [[i % 4, i % 5] for i in item.tolist()]}
    return columns | {"history": histories(user, item)}, round(len(user) * (1 - NEWEST))


def histories(users: Any, items: Any) -> list[list[int]]:
    """Return the LENGTH newest items of each row's user before it."""
    before: dict[int, list[int]] = {}
    made = []
    for user, item in zip(users.tolist(), items.tolist()):
        own = before.get(user, [])
        made.append(own)
        before[user] = [*own, item][-LENGTH:]
    return made


def config_of(log: Path, rows: int, repository: Path, seed: int, settings: dict[str, Any]) -> Any:
    """Return Freshet's training file over the rows."""
    of_user, of_item = {"kind": "id", "side": "user"}, {"kind": "id", "side": "item"}
    several = {"kind": "ids", "combiner": "mean"}
    return parse_config(
        {
            "model": {
                "name": "movies",
                "arch": "two_tower",
                "similarity": "cosine",
                **{key: settings[key] for key in ("hidden", "vector_dim", "negatives")},
            },
            "data": {"path": str(log), "label": "label"},
            "features": {
                **dict.fromkeys(("user_id", "gender", "age", "occupation"), of_user),
                "history": several | {"side": "user", "table": "movie_id"},
                "movie_id": of_item,
                "genres": several | {"side": "item"},
                "year": of_item,
            },
            "train": {
                "optimizer": "adagrad",
                "holdout": 0,
                "shuffle_rows": 1 << 20,
                "seed": seed,
                **{
                    key: settings[key]
                    for key in (
                        *("batch_rows", "epochs", "learning_rate", "initial_accumulator"),
                        "dense_learning_rate",
                    )
                },
            },
            "publish": {"repository": str(repository), "full_rows": rows, "gate": {"mode": "off"}},
        }
    )


def freshet(log: Path, rows: int, folder: Path, seed: int, settings: dict[str, Any]) -> Figures:
    """Train and judge Freshet's side."""
    config = config_of(log, rows, folder / "repository", seed, settings)
    run = RetrievalRun(config, checkpoints=folder / "checkpoints")
    run.full()
    with GenerationScorer(str(folder / "repository"), "movies") as scorer:
        return rank_pairs(scorer, config.data, config, 10, SilentReporter(), rows, 0).figures()


def torch(python: str, arrays: Path, rows: int, seed: int, settings: dict[str, Any]) -> Figures:
    """Train and judge PyTorch's side, in its own environment."""
    command = [python, str(HERE / "two_towers_torch.py"), str(arrays), str(rows), str(seed), json.dumps(settings)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise SystemExit(f"PyTorch's side failed: {ended.stderr[-2000:]}")
    figures: Figures = json.loads(ended.stdout.splitlines()[-1])
    return figures


def written(columns: dict[str, Any], folder: Path) -> tuple[Path, Path]:
    """Write the rows for both sides: a table, and arrays of the same."""
    log, arrays = folder / "log.parquet", folder / "log.npz"
    count = len(columns["user_id"])
    pq.write_table(pa.table(columns | {"label": np.ones(count, np.float32)}), log)
    flat: dict[str, Any] = {name: values for name, values in columns.items() if name not in LISTS}
    for name in LISTS:
        flat[f"{name}.values"] = np.array([v for values in columns[name] for v in values], np.int64)
        flat[f"{name}.splits"] = np.cumsum([0, *map(len, columns[name])])
    np.savez(arrays, **flat)
    return log, arrays


def page(results: dict[str, Any]) -> str:
    """Return the report."""
    lines = opening("Retrieval by two towers", __doc__ or "", results)
    common = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in results["settings"].items())
    lines += [f"{results['learned']:,} pairs are learned, {results['judged']:,} judged. Settings: {common}.", ""]
    seeds: dict[str, dict[str, Figures]] = results["seeds"]
    rows = [
        [seed, *(f"{sides[side][name]:.4f}" if side in sides else "-" for name in names() for side in SIDES)]
        for seed, sides in seeds.items()
    ]
    lines += [table(["seed", *(f"{name}, {SHOWN[side]}" for name in names() for side in SIDES)], rows), ""]
    both = [sides for sides in seeds.values() if len(sides) == len(SIDES)]
    if both:
        behind = [sides["torch"]["recall@100"] - sides["freshet"]["recall@100"] for sides in both]
        spread = f", standard deviation {statistics.stdev(behind):.4f}" if len(behind) > 1 else ""
        lines += [
            f"PyTorch's Recall@100 less Freshet's: {statistics.mean(behind):+.4f} on average{spread}. At most {AIM} was"
            f" aimed at: {'met' if statistics.mean(behind) <= AIM else 'missed'}.",
            "",
        ]
    return "\n".join(lines)


def kept_seeds(kept: Path, expected: dict[str, Any]) -> dict[str, dict[str, Figures]]:
    """Return the seeds' figures of an earlier run with the same rows and settings."""
    stored = json.loads(kept.read_text()) if kept.exists() else {}
    same = all(stored.get(name) == value for name, value in expected.items())
    return stored["seeds"] if same else {}


def names() -> tuple[str, ...]:
    """Return the figures that are compared."""
    return ("recall@100", "recall@10", "ndcg@10")


def main(arguments: list[str]) -> int:
    """Run both sides, and write the report and the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=SETTINGS["epochs"])
    parser.add_argument("--events", type=int, default=0, help="of a made-up log, in place of MovieLens-1M")
    parser.add_argument("--pairs", type=int, default=0, help="learn and judge so many of the newest pairs only")
    parser.add_argument("--torch", default=TORCH_PYTHON, help="a Python that has torch and numpy; '' for none")
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    if options.torch:
        needs.interpreter(Path(options.torch), "name one that has torch in FRESHET_TORCH_PYTHON")
    columns, rows = made_up(options.events) if options.events else movielens(needs.movielens(options.data))
    if options.pairs:
        # Histories have what was before, too.
        columns, rows = {n: c[-options.pairs :] for n, c in columns.items()}, round(options.pairs * (1 - NEWEST))
    settings = SETTINGS | {"epochs": options.epochs}
    about = {"machine": machine(), "origin": origin("-C loadtest two-towers", "ARGS", arguments)}
    race = {"settings": settings, "learned": rows, "judged": len(columns["user_id"]) - rows}
    kept = options.out / "two-towers.json"
    seeds = kept_seeds(kept, race)
    results = about | race | {"seeds": seeds}
    with tempfile.TemporaryDirectory() as made:
        log, arrays = written(columns, Path(made))
        for seed in range(1, options.seeds + 1):
            of_seed = seeds.setdefault(str(seed), {})
            folder = Path(made, str(seed))
            folder.mkdir()
            for side in SIDES if seed % 2 else SIDES[::-1]:
                if side in of_seed:
                    continue
                if side == "freshet":
                    of_seed[side] = freshet(log, rows, folder, seed, settings)
                elif options.torch:
                    of_seed[side] = torch(options.torch, arrays, rows, seed, settings)
                print(seed, side, of_seed.get(side), flush=True)
                # A run that is stopped has its figures so far.
                kept.write_text(json.dumps(results, indent=1) + "\n")
                (options.out / "two-towers.md").write_text(page(results))
    (options.out / "two-towers.md").write_text(page(results))
    print(page(results))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
