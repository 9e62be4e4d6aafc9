"""`make -C loadtest train`: steps of training beside PyTorch's and Keras'; loadtest/results/train.md.

All sides learn the same rows by the same network in batches of the same size, each in a process of its own, all alive
at once, in turn, again and again; a turn is as many steps as take about --seconds. A ratio is of one round's turns.
Before, each peer tries its settings (threads, compilation, optimizer, steps a call) and goes into the race with the
best of them. Freshet goes as it comes. Aims: a step takes PyTorch 1.5 times as long, and Keras twice as long.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from freshet_serving.processor.cores import available
from loadtest.bench.training.turns import RaceShape
from loadtest.load.launch import CommandFailed, LineProcess
from loadtest.reports.report import RESULTS, begun, opening, store, stored, table

HERE = Path(__file__).parent
WARM_STEPS, TRIED_STEPS, TRIES = 16, 16, 3


@dataclass(frozen=True, slots=True)
class TrainerVariant:
    """One way to run a side. settings: what was chosen for it, in words."""

    name: str
    settings: str
    command: Sequence[str]


class RunningSide(LineProcess):
    """A contestant's process, asked for turns."""

    def __init__(self, variant: TrainerVariant) -> None:
        environment = {**os.environ, "PYTHONPATH": str(HERE.parents[2]), "TF_CPP_MIN_LOG_LEVEL": "3"}
        name = f"{variant.name} ({variant.settings})"
        super().__init__(variant.command, name, stderr=subprocess.DEVNULL, env=environment)

    def learn(self, steps: int) -> dict[str, float]:
        """What a turn of so many steps took (loadtest.bench.training.turns)."""
        spent: dict[str, float] = json.loads(self.ask(json.dumps({"steps": steps})))
        return spent


def keras_ways(shape: RaceShape) -> list[TrainerVariant]:
    """Adam over a table of a million rows moves all of it in each step, so it is tried with few of the others."""
    threads, ways = sorted({1, len(available())}), []
    for count, optimizer, compiled, steps in itertools.product(threads, ("adagrad", "adam"), (0, 1), (1, 16)):
        if optimizer == "adam" and (count != threads[-1] or steps != 1):
            continue
        told = f"{optimizer}, {count} thread(s), jit_compile {bool(compiled)}, {steps} step(s) a call"
        words = (shape.batch_rows, shape.table_rows, count, optimizer, compiled, steps)
        ways.append(TrainerVariant("Keras", told, command(sys.executable, "keras_side.py", *words)))
    return ways


def torch_ways(shape: RaceShape, python: str) -> list[TrainerVariant]:
    ways = []
    for threads, optimizer, compiled in itertools.product(sorted({1, len(available())}), ("adagrad", "adam"), (0, 1)):
        words = ("ids", shape.batch_rows, shape.table_rows, threads, optimizer, compiled)
        told = f"{optimizer}, {threads} thread(s)" + (", torch.compile" if compiled else "")
        ways.append(TrainerVariant("PyTorch", told, command(python, "torch_side.py", *words)))
    return ways


def command(python: str | Path, script: str, *words: Any) -> list[str]:
    return [str(python), str(HERE / script), *map(str, words)]


def freshet(kind: str, *words: Any) -> TrainerVariant:
    """Freshet as it comes; kind: ids or histories."""
    return TrainerVariant("Freshet", "as it comes", command(sys.executable, "freshet_side.py", kind, *words))


def best(ways: Sequence[TrainerVariant], console: Console) -> TrainerVariant | None:
    """The fastest of a peer's ways; None where none runs."""
    tried = []
    for way in ways:
        try:
            with RunningSide(way) as side:
                side.learn(WARM_STEPS)
                seconds = min(side.learn(TRIED_STEPS)["wall_s"] for _ in range(TRIES)) / TRIED_STEPS
        except CommandFailed as error:
            console.print(f"  {error}")
            continue
        console.print(f"  {way.name}, {way.settings}: {seconds * 1e3:.2f} ms a step")
        tried.append((seconds, way))
    return min(tried, key=lambda pair: pair[0])[1] if tried else None


def race(sides: Sequence[TrainerVariant], rounds: int, seconds: float, console: Console) -> dict[str, Any]:
    """Each side's turns: seconds a step by round, on the clock and of processors."""
    with contextlib.ExitStack() as stack:
        running = [stack.enter_context(RunningSide(side)) for side in sides]
        steps = []
        for side in running:
            side.learn(WARM_STEPS)
            steps.append(max(10, round(seconds * TRIED_STEPS / side.learn(TRIED_STEPS)["wall_s"])))
        turns: dict[str, list[list[float]]] = {side.name: [] for side in sides}
        for number in range(rounds):
            order = range(len(running)) if number % 2 else range(len(running))[::-1]
            for i in order:
                spent = running[i].learn(steps[i])
                turns[sides[i].name].append([spent["wall_s"] / steps[i], spent["cpu_s"] / steps[i]])
            told = ", ".join(f"{name} {values[-1][0] * 1e3:.2f} ms" for name, values in turns.items())
            console.print(f"  round {number + 1}: {told}")
    return {"settings": {side.name: side.settings for side in sides}, "turns": turns}


def ratios(result: dict[str, Any], peer: str) -> list[float]:
    """By round, how many times Freshet's steps the peer's take."""
    turns = result["turns"]
    return [theirs[0] / ours[0] for theirs, ours in zip(turns[peer], turns["Freshet"])]


def page(results: dict[str, Any]) -> str:
    races = {tuple(map(int, shape.split())): result for shape, result in results["races"].items()}
    rows = [
        [f"{batch:,}", f"{ids:,}", *side_cells(result, name, batch)]
        for (batch, ids), result in races.items()
        for name in result["turns"]
    ]
    return "\n".join([*opening("Training", __doc__, results), table(["batch", "ids", *CELLS], rows), ""])


CELLS = ("side", "settings", "ms a step", "rows a second", "processor ms", "times Freshet's step")


def side_cells(result: dict[str, Any], name: str, batch: int) -> list[str]:
    """Return CELLS of a side in one race; batch: rows of a batch."""
    wall, cpu = (statistics.median(values) for values in zip(*result["turns"][name]))
    times = "1"
    if name != "Freshet":
        found = ratios(result, name)
        times = f"**{statistics.median(found):.2f}** ({min(found):.2f} to {max(found):.2f})"
    figures = [f"{wall * 1e3:.2f}", f"{batch / wall:,.0f}", f"{cpu * 1e3:.2f}", times]
    return [name, result["settings"][name], *figures]


def arguments(target: str, description: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"make -C loadtest {target}", description=description)
    add = parser.add_argument
    add("--rounds", type=int, default=7)
    add("--seconds", type=float, default=4.0, help="length of a turn")
    add("--batches", type=int, nargs="+", help="rows of a step")
    add("--out", type=Path, default=RESULTS)
    return parser


def main() -> None:
    parser = arguments("train", __doc__)
    parser.set_defaults(batches=[4096, 512])
    parser.add_argument("--table-rows", type=int, default=1_000_000, help="ids of each feature")
    named = os.environ.get("FRESHET_TORCH_PYTHON", "")
    parser.add_argument("--torch", default=named, help="a Python that has torch and numpy")
    options = parser.parse_args()
    console = Console(stderr=True, highlight=False)
    results = {"races": {}} | stored(options.out, "train") | begun("train")
    for batch_rows in options.batches:
        shape = RaceShape(batch_rows, options.table_rows)
        console.print(f"[bold]batches of {batch_rows:,}[/bold]")
        peers = [best(keras_ways(shape), console)]
        if options.torch:
            peers.append(best(torch_ways(shape, options.torch), console))
        else:
            console.print("  PyTorch: not measured, --torch or FRESHET_TORCH_PYTHON is to name a Python that has it")
        sides = [freshet("ids", batch_rows, options.table_rows), *filter(None, peers)]
        found = race(sides, options.rounds, options.seconds, console)
        results["races"][f"{batch_rows} {options.table_rows}"] = found
        store(options.out, "train", results, page(results))
    print(page(results))


if __name__ == "__main__":
    main()
