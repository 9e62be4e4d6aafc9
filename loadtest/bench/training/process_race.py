"""`make -C loadtest processes`: two processes of one core each that learn together, beside one of one core;
loadtest/results/train-processes.md.

Both sides are there all the time and take turns, so many steps each, on the same global batches; a ratio is of the rows
a second of one round's turns. Every row of every table is there from the beginning; ids are drawn with a chance of one
over their number. Histories: 8 features of 20 ids a row, 2,048 rows a batch; single ids: 26 features, 4,096 rows, both
with a network of one layer of 16; deepfm: 8 features, 4,096 rows, layers of 256, 128 and 64. Stages are rank 0's, a
step, in milliseconds of processor time but for the last: exchange is what it spends on messages, waiting what of the
exchange is spent waiting, which is rank 0's clock less its processor's. Bytes: what rank 0 sends a step to the other
one, of ids, rows and gradients, and of the batch's rows.

AUC: of 150,000 rows of the synthetic stream, each batch of 256 scored before it is learned, the last half of them.

On paper: as many rows a process at any number of machines, T = look up + step + update + messages, by the processor's
time of one of two processes; the one that is alone likewise. Messages are what a process sends over its line, at most
(N - 1) / (N / 2) of what it sends to one other, and 4 (N - 1) of them, 10 us each. Rank 0 sends all others their rows
of the batch over the same line, ahead of the steps but never faster than the line: what it takes is the floor of a
step. Nothing of this was measured on more than one machine.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from freshet_serving.models.parallel.mpi_launch import mpiexec
from loadtest.bench.training.process_shapes import SHAPES
from loadtest.reports.report import machine, opening, origin, table

RESULTS = Path(__file__).parents[2] / "results"
COMPUTED = ("look up", "step", "update")
STAGES = (*COMPUTED, "exchange")
MACHINES, LINES_GBIT = (2, 8, 16, 64), (10, 25, 100)
MESSAGE_S, SWAPS = 10e-6, 4


class TurnSide:
    """A trainer that waits for turns. processes: 1, alone; more: under mpiexec."""

    def __init__(self, shape: str, processes: int, wire: str = "float32") -> None:
        side = [sys.executable, "-m", "loadtest.bench.training.process_side", shape, wire]
        command = side if processes == 1 else [mpiexec(), "-n", str(processes), *side]
        quiet = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, bufsize=1, env=quiet)
        while self._line() != "ready":
            pass

    def turn(self, steps: int) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{steps}\n")
        answer: dict[str, Any] = json.loads(self._line())
        return {"step_s": answer["wall_s"] / steps, "spent": {k: v / steps for k, v in answer["spent"].items()}}

    def close(self) -> None:
        """Ends it."""
        with self._process:
            pass

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("a side has ended before its turn")
        return line.strip()


def race(shape: str, sides: dict[str, TurnSide], rounds: int, steps: int) -> dict[str, Any]:
    """Turns of every side, by name."""
    turns: dict[str, list[dict[str, Any]]] = {name: [] for name in sides}
    for side in sides.values():
        side.turn(steps)
    for number in range(rounds):
        for name in sides if number % 2 else reversed(sides):
            turns[name].append(sides[name].turn(steps))
    for side in sides.values():
        side.close()
    return {"shape": shape, "turns": turns}


def ratios(turns: dict[str, list[dict[str, Any]]], slow: str, fast: str) -> tuple[float, float, float]:
    """How many times as fast `fast` was in a round: quartiles."""
    found = [a["step_s"] / b["step_s"] for a, b in zip(turns[slow], turns[fast])]
    low, median, high = statistics.quantiles(found, n=4) if len(found) > 1 else found * 3
    return low, median, high


def median_of(turns: Sequence[dict[str, Any]], key: str) -> float:
    return float(statistics.median(turn["spent"][key] for turn in turns))


def on_paper(turns: Sequence[dict[str, Any]], processes: int, line_gbit: float) -> tuple[float, float]:
    """Seconds a step of so many machines, and the share of it that rank 0's line leaves to the others (1: all)."""
    computed_s = sum(median_of(turns, f"{stage} cpu") for stage in COMPUTED)
    line = line_gbit * 1e9 / 8
    sent = median_of(turns, "step bytes") * 2 * (processes - 1) / processes
    step_s = computed_s + sent / line + SWAPS * (processes - 1) * MESSAGE_S
    reader_s = (processes - 1) * median_of(turns, "slice bytes") / line
    return max(step_s, reader_s), min(1.0, step_s / reader_s) if reader_s else 1.0


def page(results: dict[str, Any]) -> str:
    """train-processes.md."""
    lines = opening("Several processes", __doc__ or "", results)
    header = ["shape", "two against one, rows a second", "ms a step: one, two", "processor time: one, two"]
    header += [f"{stage}: one, two" for stage in STAGES] + ["waiting", "bytes a step", "of rows"]
    lines += [table(header, map(_cells, results["shapes"])), ""]
    wire = results["wire"]
    low, median, high = ratios(wire["turns"], "float32", "float16")
    sent = [median_of(wire["turns"][name], "step bytes") for name in ("float32", "float16")]
    lines += [
        f"float16 on the way ({wire['shape']}): {sent[1] / sent[0]:.2f} of the bytes, **{median:.2f}** ({low:.2f} to"
        f" {high:.2f}) times as fast between two cores of one machine.",
        "",
        table(["what learns the synthetic stream", "AUC"], [[k, f"{v:.5f}"] for k, v in results["auc"].items()]),
        "",
        "On paper, rows a second of N machines over those of one that is alone, and of them the share that rank 0's"
        " line leaves:",
        "",
    ]
    header = ["shape", "line, Gbit/s", *(f"{n} machines" for n in MACHINES)]
    rows = []
    for each in results["shapes"]:
        two = each["turns"]["two"]
        one_s = sum(median_of(each["turns"]["one"], f"{stage} cpu") for stage in COMPUTED)
        for gbit in LINES_GBIT:
            cells = []
            for n in MACHINES:
                step_s, left = on_paper(two, n, gbit)
                # Of two processes each has half of the rows that one has.
                cells.append(f"{n / 2 * one_s / step_s:.1f}" + (f" ({left:.0%})" if left < 1 else ""))
            rows.append([each["shape"], str(gbit), *cells])
    return "\n".join([*lines, table(header, rows)]) + "\n"


def _cells(result: dict[str, Any]) -> list[str]:
    turns = result["turns"]
    low, median, high = ratios(turns, "one", "two")
    each = [turns["one"], turns["two"]]

    def ms(key: str) -> str:
        return ", ".join(f"{1e3 * median_of(side, key):.1f}" for side in each)

    waited = median_of(each[1], "exchange") - median_of(each[1], "exchange cpu")
    return [
        result["shape"],
        f"**{median:.2f}** ({low:.2f} to {high:.2f})",
        ", ".join(f"{1e3 * statistics.median(turn['step_s'] for turn in side):.1f}" for side in each),
        ms("cpu"),
        *(ms(f"{stage} cpu") for stage in STAGES),
        f"{1e3 * waited:.1f}",
        f"{median_of(each[1], 'step bytes'):,.0f}",
        f"{median_of(each[1], 'slice bytes'):,.0f}",
    ]


def said_by(processes: int, *options: str) -> dict[str, str]:
    """What so many processes say of the synthetic stream (process_auc), by its first word."""
    side = [sys.executable, "-m", "loadtest.bench.training.process_auc", *options]
    command = side if processes == 1 else [mpiexec(), "-n", str(processes), *side]
    quiet = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    said = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=quiet).stdout
    return {words[0]: words[1] for line in said.splitlines() if (words := line.split())[:1] in (["auc"], ["scores"])}


def auc_of(processes: int, wire: str) -> float:
    """Of the synthetic stream."""
    return float(said_by(processes, "--wire", wire)["auc"])


def main() -> None:
    parser = argparse.ArgumentParser(prog="make -C loadtest processes", description=__doc__)
    add = parser.add_argument
    add("--only", nargs="+", choices=list(SHAPES), default=list(SHAPES))
    add("--rounds", type=int, default=15)
    add("--steps", type=int, default=20, help="of a turn")
    add("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    console = Console(stderr=True, highlight=False)
    results: dict[str, Any] = {"machine": machine(), "origin": origin("-C loadtest processes", "ARGS", sys.argv[1:])}
    results["shapes"] = []
    for shape in arguments.only:
        sides = {"one": TurnSide(shape, 1), "two": TurnSide(shape, 2)}
        results["shapes"].append(race(shape, sides, arguments.rounds, arguments.steps))
        console.print(" | ".join(_cells(results["shapes"][-1])))
    sides = {wire: TurnSide(arguments.only[0], 2, wire) for wire in ("float32", "float16")}
    results["wire"] = race(arguments.only[0], sides, arguments.rounds, arguments.steps)
    results["auc"] = {
        "one process": auc_of(1, "float32"),
        "two, float32 on the way": auc_of(2, "float32"),
        "two, float16 on the way": auc_of(2, "float16"),
    }
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "train-processes.json").write_text(json.dumps(results, indent=1) + "\n")
    (arguments.out / "train-processes.md").write_text(page(results))
    print(page(results))


if __name__ == "__main__":
    main()
