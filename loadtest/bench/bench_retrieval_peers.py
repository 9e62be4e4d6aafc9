"""`make -C loadtest retrieval-peers`: best items beside vector indexes; loadtest/results/retrieval-peers.md.

The same vectors of 50 float32, in clusters as learned ones are, are searched for the 100 best by product: by our exact
scan of a table's codes, and by HNSW of usearch and of qdrant-edge, with the smallest breadth of search (32 to 1,024)
that finds 0.95 of them, or else the largest. Filters are on a number that 1, 10 or 50 % of the items pass; usearch has
none in Python, so more items are fetched until enough pass. Beside it is its exact search over the items that pass,
whose vectors are gathered for each query. Then a tenth of the vectors changes, again and again: rows and codes are
made anew, items of an index are replaced and, with qdrant-edge, the index is optimized. Each side runs in a process of
its own, by turns, several times; figures are processor seconds of the whole process, and medians of the runs. "While a
tenth changes each second": what one core answers in the rest of the second. Memory is what the process grows by,
vectors and filtered column included, over the bytes of the vectors. HNSW grows slowly with the number of items, a scan
in proportion to it. Runs are kept by the number of items; the command goes on where it was stopped.

Our lists are held against faiss-cpu's IndexFlatIP over the items that pass, as they are after each delta: while a delta
of a tenth comes each second, and codes of changed rows are made, lists are asked for without a filter and with each.
"""

# mypy: allow-untyped-calls

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from loadtest.bench.needs import refuse
from loadtest.bench.retrieval_peer import SHARES
from loadtest.reports.report import machine, opening, origin, table

RESULTS = Path(__file__).parents[2] / "loadtest" / "results"
PEER = Path(__file__).parent / "retrieval_peer.py"
OURS = [sys.executable, "-m", "loadtest.bench.retrieval_side"]
PEERS = ("usearch, exact", "usearch", "qdrant-edge")
MISSING = (
    "Peers were not measured: FRESHET_RETRIEVAL_PYTHON is to name a Python with usearch, qdrant-edge-py, faiss-cpu."
)


def answer_of(command: Sequence[str]) -> Any:
    """Return what a side prints."""
    # Memory that is freed goes back at once, on each side, so what a process grows by is what it holds.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "1048576"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        refuse(f"{' '.join(command)}: {done.stderr.strip().splitlines()[-1:]}")
    return json.loads(done.stdout)


def measure(
    runs: dict[str, list[Any]], commands: dict[str, list[str]], repeats: int, report: Callable[[], None]
) -> None:
    """Complete the runs of each side, by turns; report after each."""
    for repeat in range(repeats):
        for name, command in list(commands.items())[:: -1 if repeat % 2 else 1]:
            if len(runs.setdefault(name, [])) > repeat:
                continue
            runs[name].append(answer_of(command))
            print(f"{name}: {runs[name][-1]}", flush=True)
            report()


def check(python: str, rows: int, seconds: float) -> dict[str, Any]:
    """Return how many of our lists, of so many seconds under deltas, are those of faiss; "" as python for no faiss."""
    with tempfile.TemporaryDirectory() as folder:
        lists = str(Path(folder) / "lists.npz")
        checked: dict[str, Any] = answer_of([*OURS, str(rows), str(seconds), lists])
        return checked | (answer_of([python, str(PEER), "faiss", str(rows), lists]) if python else {})


def told(values: Sequence[float], form: str) -> str:
    """Return the median, and the smallest and the largest of several values."""
    middle, low, high = (format(value, form) for value in (statistics.median(values), min(values), max(values)))
    return middle if low == high else f"{middle} ({low} to {high})"


def beside_changes(run: dict[str, Any]) -> float:
    """Return the queries that one core answers in a second in which a tenth of the items changes."""
    change_s = statistics.median(change["change_s"] for change in run["changing"])
    query_s = statistics.median(change["query_s"] for change in run["changing"])
    return max(0.0, 1 - float(change_s)) / float(query_s)


def page(results: dict[str, Any]) -> str:
    """Return the report."""
    lines = opening("Best items beside vector indexes", __doc__ or "", results)
    for rows, of_size in sorted(results["sizes"].items(), key=lambda item: int(item[0])):
        lines += tables_of(int(rows), of_size)
    return "\n".join(lines)


def tables_of(count: int, results: dict[str, Any]) -> list[str]:
    """Return the lines about a number of items."""
    runs, checked = {name: found for name, found in results["runs"].items() if found}, results["checked"]

    def rate_of(share: float) -> Callable[[Any], float]:
        return lambda run: 1 / float(run["shares"][str(share)]["query_s"])

    def recall_of(share: float) -> Callable[[Any], float]:
        return lambda run: float(run["shares"][str(share)]["recall"])

    def median_of(name: str) -> Callable[[Any], float]:
        return lambda run: statistics.median(change[name] for change in run["changing"])

    def row(text: str, value: Callable[[Any], float], form: str) -> list[str]:
        return [text, *(told([value(run) for run in runs[name]], form) for name in runs)]

    rows = []
    for share in SHARES:
        text = "no filter" if share == 1 else f"filter that {share:.0%} pass"
        rows += [
            row(f"queries a processor second, {text}", rate_of(share), ",.0f"),
            row(f"of the best items found, {text}", recall_of(share), ".3f"),
        ]
    rows += [
        row("processor seconds of a change of a tenth", median_of("change_s"), ".3f"),
        row("queries a second of one core while a tenth changes each second", beside_changes, ",.0f"),
        row("of the best items found, after the last change", lambda run: run["changing"][-1]["recall"], ".3f"),
        row("processor seconds to build it", lambda run: run["build_s"], ".2f"),
        row("memory, over the vectors' bytes", lambda run: run["memory"], ".2f"),
    ]
    lines = [table([f"{count:,} items", *runs], rows), ""]
    uncoded = told([run["uncoded"]["query_s"] / run["shares"]["1.0"]["query_s"] for run in runs["Freshet"]], ".1f")
    lines += [f"Runs: {', '.join(f'{name} {len(found)}' for name, found in runs.items())}.", ""]
    lines += [f"Until the codes of changed rows are made, a query of ours takes {uncoded} times as long.", ""]
    if "lists" not in checked:
        return [*lines, MISSING, ""]
    heads = ["under one delta a second", ""]
    figures = [
        ["deltas", checked["deltas"]], ["lists", f"{checked['lists']:,}"],
        ["equal to faiss's", f"{checked['equal']:,}"],
        ["equal up to ties within 1e-6", f"{checked['equal_up_to_ties']:,}"],
        ["largest difference of a tie", f"{checked['worst']:.1e}"],
    ]  # fmt: skip
    return [*lines, table(heads, figures), ""]


def main(arguments: list[str]) -> int:
    """Measure, and write the report; return 1 if a list is not that of faiss."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3, help="changes of a tenth of the items in a run")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each side")
    parser.add_argument("--checked", type=float, default=20, help="seconds of lists that are held against faiss")
    python = os.environ.get("FRESHET_RETRIEVAL_PYTHON", "")
    parser.add_argument("--python", default=python, help="a Python that has usearch, qdrant-edge-py and faiss-cpu")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    kept, python = options.out / "retrieval-peers.json", options.python
    results = {"sizes": {}} | (json.loads(kept.read_text()) if kept.exists() else {})
    results |= {"machine": machine(), "origin": origin("-C loadtest retrieval-peers", "ARGS", arguments)}
    of_size = results["sizes"].setdefault(str(options.rows), {})
    if of_size.get("rounds") != options.rounds:
        of_size.update(rounds=options.rounds, runs={})
    of_size["checked"] = checked = check(python, options.rows, options.checked)
    print(checked, flush=True)

    def report() -> None:
        kept.write_text(json.dumps(results, indent=1) + "\n")
        (options.out / "retrieval-peers.md").write_text(page(results))

    peers = {name: [python, str(PEER), name] for name in PEERS} if python else {}
    sizes = [str(options.rows), str(options.rounds)]
    sides = {"Freshet": OURS, **peers}
    measure(of_size["runs"], {name: [*side, *sizes] for name, side in sides.items()}, options.repeats, report)
    return int(checked.get("lists", 0) != checked.get("equal_up_to_ties", 0))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
