"""`make -C loadtest verdict`: what judges that others made say; loadtest/results/verdict.md.

Each judge has a command and a page of its own, with everything that it was told and what was scaled down. Here is what
each said last, on the machine and the day that are named beside it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadtest.bench.verdict import loadgen_judge, lookup_race, perf_analyzer_judge

RESULTS = Path(__file__).parents[2] / "results"


@dataclass(frozen=True, slots=True)
class JudgeEntry:
    """One judge: its results' name in loadtest/results, and its sentences of them."""

    name: str
    title: str
    verdicts: Callable[[dict[str, Any]], list[str]]


JUDGES = (
    JudgeEntry("verdict-loadgen", "MLCommons' LoadGen, no MLPerf result", loadgen_judge.verdicts),
    JudgeEntry("verdict-lookup", "FBGEMM's CPU kernel, lookups and pooling", lookup_race.verdicts),
    JudgeEntry("verdict-perf-analyzer", "Triton's perf_analyzer", perf_analyzer_judge.verdicts),
)


def page(folder: Path) -> str:
    """verdict.md, of the results in a folder."""
    assert __doc__ is not None
    lines = ["# Judged by others", "", __doc__.split("\n\n", 1)[1].strip()]
    for judge in JUDGES:
        path = folder / f"{judge.name}.json"
        lines += ["", f"## {judge.title}", ""]
        if not path.exists():
            lines.append(f"Not run yet: `make -C loadtest {judge.name}`.")
            continue
        results = json.loads(path.read_bytes())
        about, made = results["machine"], results["origin"]
        lines += [f"- {sentence}" for sentence in judge.verdicts(results)]
        lines += [
            "",
            f"`{made['command']}`, {made['date']}, {about['cores']} cores of {about['cpu']}; all of it in "
            f"[{judge.name}.md]({judge.name}.md).",
        ]
    return "\n".join(lines) + "\n"


def main() -> None:
    (RESULTS / "verdict.md").write_text(page(RESULTS))
    print(page(RESULTS))


if __name__ == "__main__":
    main()
