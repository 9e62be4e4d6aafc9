"""`make bench-tables`: tables at scale, under a memory budget, and of smaller rows; loadtest/results/tables.md."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

from loadtest.bench import dtypes, scale
from loadtest.bench import memory_budget as tiers
from loadtest.reports.report import machine, origin
from models.data.formats import MOVIELENS_EVENTS

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "loadtest" / "results"
DATA = Path(os.environ.get("FRESHET_DATA", ROOT.parent / "shared" / "data")) / "ml-1m"


def main() -> None:
    parser = argparse.ArgumentParser(prog="make bench-tables", description=__doc__)
    parser.add_argument("--rows", type=int, default=scale.SIZES[-1], help="of the large table")
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--data", type=Path, default=DATA, help="MovieLens-1M")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    m, made = machine(), origin("bench-tables", "BENCH_ARGS", sys.argv[1:])
    about = f"{m['cores']} cores of {m['cpu']}, load average before {m['load_average']}; {arguments.rounds} rounds"
    page = ["# Tables", "", f"`{made['command']}`, {made['date']}. {about}; medians. Ratios are the result."]
    page += ["", f"## {arguments.rows:,} rows of dim 16", "", "| what | figure |", "|---|---|"]
    with tempfile.TemporaryDirectory(prefix="freshet-bench-") as folder:
        page += [f"| {name} | {value:.3f} |" for name, value in scale.measure(Path(folder), arguments.rows, 9).items()]
    page += ["", f"## A tenth of the rows in memory, Zipf {tiers.EXPONENT}, page cache warm", ""]
    page += [f"- {line}" for line in tiers.measure(tiers.ROWS, arguments.rounds)]
    page += ["", "## Rows of other types, MovieLens-1M, the last 20 % scored", ""]
    if any((arguments.data / name).is_file() for name in MOVIELENS_EVENTS):
        page += dtypes.table(dtypes.measure(arguments.data))
    else:
        page.append("Not measured: no MovieLens-1M at --data.")
    arguments.out.mkdir(parents=True, exist_ok=True)
    text = "\n".join(page) + "\n"
    (arguments.out / "tables.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
