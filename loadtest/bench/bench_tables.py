"""`make -C loadtest tables`: tables at scale, in a memory budget, of smaller rows; loadtest/results/tables.md."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from freshet_serving.models.data.formats import MOVIELENS_EVENTS
from loadtest.bench import dtypes, scale
from loadtest.bench import memory_budget as tiers
from loadtest.reports.report import machine, origin, table

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "loadtest" / "results"
DTYPES = "Rows of other types, MovieLens-1M, the last 20 % scored"
DATA = Path(os.environ.get("FRESHET_DATA", ROOT.parent / "shared" / "data")) / "ml-1m"


def main() -> None:
    parser = argparse.ArgumentParser(prog="make -C loadtest tables", description=__doc__)
    parser.add_argument("--rows", type=int, default=scale.SIZES[-1], help="of the large table")
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--data", type=Path, default=DATA, help="MovieLens-1M")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    document = {"machine": machine(), "origin": origin("-C loadtest tables", "ARGS", sys.argv[1:])}
    with tempfile.TemporaryDirectory(prefix="freshet-bench-") as folder:
        found = scale.measure(Path(folder), arguments.rows, 9)
    sections = {
        f"{arguments.rows:,} rows of dim {scale.DIM}": {what: f"{figure:.3g}" for what, figure in found.items()},
        f"A tenth of the rows in memory, Zipf {tiers.EXPONENT}, page cache warm": tiers.measure(
            tiers.ROWS, arguments.rounds
        ),
    }
    if any((arguments.data / name).is_file() for name in MOVIELENS_EVENTS):
        sections[DTYPES] = dtypes.told_of(dtypes.measure(arguments.data))
    else:
        print(f"not measured, no MovieLens-1M at --data: {DTYPES}", file=sys.stderr)
    document["sections"] = sections
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "tables.json").write_text(json.dumps(document, indent=1) + "\n")
    (arguments.out / "tables.md").write_text(page(document))
    print(page(document))


def page(document: dict[str, Any]) -> str:
    """The report's page."""
    m, made = document["machine"], document["origin"]
    parts = [
        "# Tables",
        f"`{made['command']}`, {made['date']}. {m['cores']} cores of {m['cpu']}, load average before "
        f"{m['load_average']}; medians over rounds. Ratios are the result.",
    ]
    for title, figures in document["sections"].items():
        parts += [f"## {title}", table(["what", "figure"], figures.items())]
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    main()
