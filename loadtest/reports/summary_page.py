"""Write docs/reference/figures.md, the ten figures that matter most: `python -m loadtest.reports.summary_page`.

Each line takes its figure, command and date from the stored report, as loadtest.reports.figures_page does for all
figures; a line whose report does not exist yet shows the command that makes it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from loadtest.reports.figures_page import SECTIONS

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "figures.md"
INTRODUCTION = """\
# Performance figures

Ten figures, with the command that measures each again and the date of the stored run. Server, clients and trainer
share two cores. A ratio is the median over rounds in which both sides ran in turn on one machine; "from, to" are its
quartiles.

[All figures](../../loadtest/results/figures.md) has the others, also those that miss their aim;
[loadtest/results/](../../loadtest/results) has the reports. [Benchmarks](../how-to/benchmarks.md) and
[load test](../how-to/loadtest.md) describe how they are measured.

This page is generated from the reports (`make -C loadtest figures`).
"""


@dataclass(frozen=True, slots=True)
class SummaryLine:
    """One line of the page. key: the run of its report. name: the line's title in the section of figures_page."""

    title: str
    key: str
    name: str


LINES = (
    SummaryLine(
        "Freshness: training step finished to first reply that uses it, 150 requests/s, p50 / p99",
        "loadtest-150-a-second",
        "freshness, p50 / p99: upload",
    ),
    SummaryLine(
        "Requests in one minute at saturation with a delta of 10,000 rows every second", "loadtest", "requests"
    ),
    SummaryLine("Latency in that minute, 64 candidates a request, p50 / p99", "loadtest", "latency, p50 / p99"),
    SummaryLine(
        "Server throughput / the same kernels in a bare loop, 64 candidates",
        "saturated",
        "as it starts without options",
    ),
    SummaryLine(
        "Tail latency: p99 with a delta of 100,000 rows every second / without, at 70 % load",
        "deltas",
        "p99 with a delta of 100,000 rows every second over without",
    ),
    SummaryLine(
        "Delta of 1,000,000 rows: end of the upload until served",
        "deltas",
        "1,000,000 rows, from a POST's last byte until served",
    ),
    SummaryLine(
        "Overload: goodput at three times saturation / its peak", "overload", "goodput at three times over its peak"
    ),
    SummaryLine("Throughput / mosec's with the same kernels, 64 candidates", "mosec", "throughput, 64 candidates"),
    SummaryLine(
        "Memory: resident / keys and rows, 20 million rows",
        "tables",
        "20 million rows: resident memory over keys and rows",
    ),
    SummaryLine(
        "Training: PyTorch's time for a step / ours, 4,096 rows",
        "train",
        "PyTorch, 4,096 rows, 20,000 ids a feature",
    ),
)


def page() -> str:
    """Return the page's text."""
    rows = [["what", "figure", "from, to", "aim", "command and date"], ["---"] * 5, *map(_row, LINES)]
    return "\n".join([INTRODUCTION, *(f"| {' | '.join(row)} |" for row in rows), ""])


def _row(line: SummaryLine) -> list[str]:
    section = next(section for section in SECTIONS if section.key == line.key)
    run = section.source().get(section.key)
    figure = run.find(section.lines[line.name]) if run is not None else None
    if run is None or figure is None:
        return [line.title, "not in the reports yet", "", "", f"`{section.command}`"]
    # What a run says of itself begins with its command and date.
    command, date = run.made.split(", ")[:2]
    return [line.title, figure.text, figure.interval, figure.aim, f"{command}, {date.removeprefix('by ')}"]


if __name__ == "__main__":
    PAGE.write_text(page())
