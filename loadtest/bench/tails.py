"""`make -C loadtest tails`: what a p99 request waits for, undisturbed and disturbed; loadtest/results/tails.md.

A server on its own cores, a client on another, and beside the server a null server on the same cores: the same
processes, port and protocol, whose requests cost as much of a core as the server's but ask nothing of the engine. The
client sends both the same requests, in turn, at a fixed share of what the server reaches: 8 candidates, open loop.
Meanwhile the server, whichever of the two is asked, is disturbed: by deltas of 100,000 changed rows a second; by two
new versions; by a second model that 16 connections keep saturated; by bodies of JSON of nearly 16 MiB, one after
another. So the null server's own ratio is what the disturbance costs anybody who shares the cores. The aim is at most
1.3 times that.

Latency is counted from the instant of sending until the kernel had the reply: the client's own waits are not in it.
Clock, core time and waits for a core are stamped in the server at both ends of each request (stamped_server), and a
latency is divided into parts that add up to it (tail_parts). A loop is late by the time from a tick of 5 ms until it
reads it; a nap is late by the time from its end until its thread has Python's lock, without its own wait for a core.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from freshet_serving.models.bench import write_model
from loadtest.bench.stamped_server import BUSY, rows
from loadtest.bench.tail_disturbances import (
    DISTURBANCES,
    FASTEST,
    MODEL,
    NEIGHBOUR,
    NULL,
    OURS,
    PATIENCE_S,
    UNDISTURBED,
    WARM_S,
    Bed,
    copy_model,
    disturbing,
)
from loadtest.bench.tail_parts import PARTS, lock_late_ms, loop_late_ms, request_parts, thread_sums
from loadtest.load.launch import CommandFailed, RunningServer, serving
from loadtest.load.openloop import Openloop
from loadtest.load.processes import cpu_s, tree
from loadtest.load.sides import Side, order
from loadtest.reports.report import machine, opening, origin, table

RESULTS = Path(__file__).parents[1] / "results"
AIM = 1.3
CAPACITY_S = 1.5
LAYOUTS = {"one process": "1", "two workers": "2"}
STAMPED = "loadtest.bench.stamped_server"
LOAD = 0.3
"""Share of what the server reaches."""


def capacity(bed: Bed) -> float:
    """Return the requests a second that the server answers when the client's connections are always busy."""
    job = bed.job(OURS, rate=FASTEST, seconds=CAPACITY_S, deadline_s=PATIENCE_S)
    with Openloop(job) as client:
        client.started()
        return max(10.0, client.result().achieved)


def run_turn(bed: Bed, side: str, disturbance: str) -> dict[str, Any]:
    """Return the figures of one turn of the client at a server while ours is disturbed."""
    server, replies = bed.servers[side], bed.work / "replies.npy"
    prepared = DISTURBANCES[disturbance](bed)
    job = bed.job(side, replies=str(replies))
    pids = tree(server.pid)
    loops = set(rows(bed.stamps[side])["loop"].tolist())
    with Openloop(job) as client:
        start_s = client.started()
        cpu_before_s, before = cpu_s(pids), thread_sums(pids, loops)
        with disturbing(prepared, start_s + WARM_S, bed.seconds):
            figures = client.result()
        spent_s, after = cpu_s(pids) - cpu_before_s, thread_sums(pids, loops)
    stamps = rows(bed.stamps[side])
    stamps = stamps[stamps["written_ns"] >= int((start_s + WARM_S) * 1e9)]
    parts = request_parts(np.load(replies), stamps)
    tail, own = parts.tail(), parts.with_a_core()
    spent = {name: after[name] - before[name] for name in after}
    # The kernel's sums are of the warm-up too.
    answered = max(1, figures.requests) * (WARM_S + bed.seconds) / bed.seconds
    ticks, naps = loop_late_ms(stamps), lock_late_ms(stamps)
    return {
        "requests": len(parts.latency_ns),
        "failed": figures.failed,
        "p50_ms": parts.quantile_ms(50),
        "p99_ms": parts.quantile_ms(99),
        "own_p99_ms": own.quantile_ms(99),
        "tail_ms": tail.mean_ms(),
        "tail": tail.shares(),
        "own_tail_ms": own.tail().mean_ms(),
        "own_tail": own.tail().shares(),
        "cpu_us": spent_s / answered * 1e6,
        "loop_us": spent["loops"].ran_s / answered * 1e6,
        "waited_us": spent["loops"].waited_s / answered * 1e6,
        "preempted": spent["loops"].preempted / answered,
        "loop_late_ms": float(np.percentile(ticks[:, 0], 99)) if len(ticks) else 0.0,
        "loop_held_ms": float(np.percentile(ticks[:, 1], 99)) if len(ticks) else 0.0,
        "lock_late_ms": float(np.percentile(naps, 99)) if len(naps) else 0.0,
        "client_cores": figures.cores,
        "client_waited": figures.waited,
    }


def measure(layout: str, options: argparse.Namespace, work: Path, console: Console) -> dict[str, Any]:
    """Return the figures of one layout, of each disturbance and both servers by round."""
    repository = work / "repository"
    write_model(repository, options.rows)
    copy_model(repository, MODEL, NEIGHBOUR)
    # Of its own: what is published to ours is nothing to it.
    repositories = {OURS: repository, NULL: work / "null"}
    shutil.copytree(repository, repositories[NULL])
    theirs, ours = client_and_server_cores()
    with contextlib.ExitStack() as stack:
        stamps = {side: work / f"{side} stamps" for side in (OURS, NULL)}
        for folder in stamps.values():
            folder.mkdir()
        np.zeros(1, np.int64).tofile(stamps[NULL] / BUSY)
        stack.enter_context(pinned(theirs))
        servers: dict[str, RunningServer] = {}
        bed = Bed(work, servers, stamps, repository, options.rows, options.seconds, int(options.json_mib * (1 << 20)))
        for side in (OURS, NULL):
            nbytes = 0 if side == OURS else bed.reply_nbytes()
            program = [sys.executable, "-m", STAMPED, str(stamps[side]), str(nbytes)]
            arguments = ["--workers", LAYOUTS[layout], "--compute", "inline"]
            start = serving(repositories[side], work / f"{side}.log", arguments, program=program)
            with pinned(ours):
                servers[side] = stack.enter_context(start)
        bed.rate = LOAD * capacity(bed)
        busy_us = run_turn(bed, OURS, UNDISTURBED)["loop_us"] - run_turn(bed, NULL, UNDISTURBED)["loop_us"]
        np.memmap(stamps[NULL] / BUSY, np.int64, "r+")[0] = max(0, int(busy_us * 1e3))
        console.print(f"{layout}: {bed.rate:.0f} requests/s, of which the null server is busy {busy_us:.0f} us each")
        sides = [
            Side(f"{side}, {disturbance}", partial(run_turn, bed, side, disturbance))
            for disturbance in DISTURBANCES
            for side in (OURS, NULL)
        ]
        turns: dict[str, list[Mapping[str, Any]]] = {each.name: [] for each in sides}
        for number in range(options.rounds):
            for each in order(sides, number):
                figures = each.turn()
                turns[each.name].append(figures)
                shown = ", ".join(f"{name} {figures[name]:.3g}" for name in ("p99_ms", "own_p99_ms", "failed"))
                console.print(f"{each.name}: {shown}", markup=False)
    return {"rate": bed.rate, "busy_us": busy_us, "turns": turns}


def client_and_server_cores() -> tuple[set[int], set[int]]:
    """Return the client's core, the last, and the server's, all others; one core is both's."""
    *others, last = sorted(os.sched_getaffinity(0))
    return {last}, set(others) or {last}


@contextlib.contextmanager
def pinned(cores: Collection[int]) -> Iterator[None]:
    """Keep this thread, and what it starts, to these cores while the block runs."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def median(turns: Mapping[str, Any], side: str, disturbance: str, name: str) -> float:
    """Return the median of a figure over rounds."""
    return statistics.median([float(turn[name]) for turn in turns[f"{side}, {disturbance}"]])


def p99_ratio(turns: Mapping[str, Any], side: str, disturbance: str, name: str = "p99_ms") -> float:
    """Return the median over rounds of p99 disturbed by undisturbed."""
    pairs = zip(turns[f"{side}, {disturbance}"], turns[f"{side}, {UNDISTURBED}"])
    return statistics.median([float(on[name] / max(1e-6, off[name])) for on, off in pairs])


def tail_table(turns: Mapping[str, Any], name: str) -> str:
    """Return a p99 and its ratios, ours beside the null server's."""
    heads = ["disturbed by", "p99, ms", "null server's", "p99 ratio", "null server's", f"of that (aim {AIM})"]
    lines = []
    for disturbance in DISTURBANCES:
        shown = [f"{median(turns, side, disturbance, name):.2f}" for side in (OURS, NULL)]
        own, null = (p99_ratio(turns, side, disturbance, name) for side in (OURS, NULL))
        ratios = ["", "", ""] if disturbance == UNDISTURBED else [f"{own:.2f}", f"{null:.2f}", f"**{own / null:.2f}**"]
        lines.append([disturbance, *shown, *ratios])
    return table(heads, lines)


def parts_table(turns: Mapping[str, Any], name: str) -> str:
    """Return the parts of our requests at and above p99, in percent of their latency."""
    lines = [["mean latency, ms", *(f"{median(turns, OURS, other, f'{name}_ms'):.2f}" for other in DISTURBANCES)]]
    for part in PARTS:
        shares = [
            statistics.mean(turn[name][part] for turn in turns[f"{OURS}, {disturbance}"])
            for disturbance in DISTURBANCES
        ]
        lines.append([f"{part}, %", *(f"{100 * share:.0f}" for share in shares)])
    return table(["requests at and above p99", *DISTURBANCES], lines)


ACCOUNTS = {
    "loop late at p99, ms": ("loop_late_ms", 1.0, 2),
    "without its waits for a core, ms": ("loop_held_ms", 1.0, 2),
    "Python's lock late at p99, ms": ("lock_late_ms", 1.0, 2),
    "core time a request, all threads, us": ("cpu_us", 1.0, 0),
    "core time a request, loops, us": ("loop_us", 1.0, 0),
    "loops' waits for a core, us a request": ("waited_us", 1.0, 0),
    "loops' cores taken away, a thousand requests": ("preempted", 1e3, 0),
    "the client: cores that it took": ("client_cores", 1.0, 2),
    "the client: share of its time without a core": ("client_waited", 1.0, 2),
    "failed": ("failed", 1.0, 0),
}


def accounts_table(turns: Mapping[str, Any], side: str) -> str:
    """Return what the kernel and the probes counted at a server."""
    lines = [
        [name, *(f"{scale * median(turns, side, disturbance, key):.{digits}f}" for disturbance in DISTURBANCES)]
        for name, (key, scale, digits) in ACCOUNTS.items()
    ]
    return table([side, *DISTURBANCES], lines)


def page(document: Mapping[str, Any]) -> str:
    """Write tails.md: one chapter a run that is kept."""
    lines: list[str] = []
    for label, run in document["runs"].items():
        if not lines:
            lines = [*opening("What a p99 request waits for", __doc__ or "", run)[:-3]]
        about, made = run["machine"], run["origin"]
        measured = f"{about['cores']} cores ({about['cpu']}), {made['date']}, `{made['command']}`"
        turns_of = f"{run['rounds']} rounds, turns of {run['seconds']:g} s"
        before = f"the load average before it was {about['load_average']}, of others on the same cores"
        lines += ["", f"## {label.capitalize()}", "", f"{measured}; {turns_of}; {before}."]
        for layout, figures in run["layouts"].items():
            turns = figures["turns"]
            lines += ["", f"### {layout.capitalize()}", "", f"{figures['rate']:.0f} requests a second.", ""]
            without = "Without what each request waited for a core, which a neighbour on the machine may cause:"
            accounts = [accounts_table(turns, side) for side in (OURS, NULL)]
            own = [tail_table(turns, "own_p99_ms"), parts_table(turns, "own_tail")]
            for text in (tail_table(turns, "p99_ms"), parts_table(turns, "tail"), without, *own, *accounts):
                lines += [text, ""]
    return "\n".join(lines)


def main() -> int:
    """Measure, and keep the run under its label beside the others."""
    parser = argparse.ArgumentParser(prog="make -C loadtest tails", description=__doc__)
    add = parser.add_argument
    add("--label", default="now", help="name of this run in the report, as before or after")
    add("--rounds", type=int, default=2)
    add("--seconds", type=float, default=6.0, help="of a turn")
    add("--rows", type=int, default=50_000, help="of each table")
    add("--json-mib", type=float, default=16.0)
    add("--layouts", nargs="+", default=list(LAYOUTS), choices=list(LAYOUTS))
    add("--out", type=Path, default=RESULTS)
    options, console = parser.parse_args(), Console(stderr=True, highlight=False)
    kept = options.out / "tails.json"
    document = json.loads(kept.read_text()) if kept.exists() else {"runs": {}}
    run: dict[str, Any] = {"machine": machine(), "origin": origin("-C loadtest tails", "ARGS", sys.argv[1:])}
    run |= {"rounds": options.rounds, "seconds": options.seconds, "layouts": {}}
    try:
        for layout in options.layouts:
            with tempfile.TemporaryDirectory(prefix="freshet-tails-") as folder:
                run["layouts"][layout] = measure(layout, options, Path(folder), console)
    except CommandFailed as error:
        print(f"tails: {error}", file=sys.stderr)
        return 2
    document["runs"][options.label] = run
    kept.write_text(json.dumps(document, indent=1) + "\n")
    (options.out / "tails.md").write_text(page(document))
    print(page(document))
    return 0


if __name__ == "__main__":
    sys.exit(main())
