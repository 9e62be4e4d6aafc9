"""Print the report of `freshet compile --report`: costs and errors by bucket and backend, and the choice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.table import Table

from freshet_serving.compiler.building.calibrate import Calibration, by_variant
from freshet_serving.compiler.building.recompile import CompileReport
from freshet_serving.compiler.building.subgraph_compiler import title
from freshet_serving.processor.package import ExecutableEntry

LABELS = ("rows a run", "largest error", "new weights, ms")
# Width of a column's frame and of the space on both sides of its content.
FRAME = 3


def print_report(report: CompileReport, console: Console) -> None:
    """Print a row per bucket and a column per variant: median us of one run on one thread; the chosen one is marked.

    Variants that do not fit the width get tables of their own.
    """
    chosen = {bucket: entry.variant for bucket, entry in report.chosen.items()}
    columns = {
        name: _column(name, entries, chosen, report.calibration.flip_ms.get(name, 0.0))
        for name, entries in by_variant(report.calibration.measured).items()
    }
    title = f"{report.manifest.model} {report.manifest.version}: us a run, one thread; * serves these rows"
    console.print(title, highlight=False, markup=False, soft_wrap=not console.is_terminal)
    labels = [*map(str, sorted(chosen)), *LABELS[1:]]
    for names in _fitting(columns, console.width):
        table = Table()
        table.add_column(LABELS[0], no_wrap=True)
        for name in names:
            table.add_column(name, justify="right")
        for number, label in enumerate(labels):
            table.add_row(label, *(columns[name][number] for name in names), end_section=number == len(chosen) - 1)
        console.print(table)
    for line in _lines(report):
        console.print(line, highlight=False, markup=False, soft_wrap=not console.is_terminal)


def _column(name: str, entries: Sequence[ExecutableEntry], chosen: dict[int, str], flip_ms: float) -> list[str]:
    """Return a variant's cells: its cost in each bucket, the largest error, and the cost of new weights."""
    cost_us = {e.bucket: e.cost_us for e in entries}
    cells = [
        f"{cost_us[bucket]:.0f}{'*' if chosen[bucket] == name else ' '}" if bucket in cost_us else "- "
        for bucket in sorted(chosen)
    ]
    return [*cells, f"{max(e.error for e in entries):.0e} ", f"{flip_ms:.1f} "]


def _fitting(columns: dict[str, list[str]], width: int) -> Iterator[list[str]]:
    group: list[str] = []
    used = first = max(map(len, LABELS)) + FRAME + 1
    for name, cells in columns.items():
        needed = max(len(text) for text in (*name.split(), *cells)) + FRAME
        if group and used + needed > width:
            yield group
            group, used = [], first
        group.append(name)
        used += needed
    if group:
        yield group


def _lines(report: CompileReport) -> Iterator[str]:
    yield from report.passes
    for name, change in report.calibration.auc.items():
        yield f"AUC of {name}: {change:+.1e} against TensorFlow"
    for name, other in report.others.items():
        served = ", ".join(f"{e.bucket}: {e.variant} {e.cost_us:.0f} us" for e in _first(other))
        yield f"{title(name)}: {served}"
    for each in (report.calibration, *report.others.values()):
        yield from (f"refused: {line}" for line in each.refused)
    yield from (f"not compiled: {line}" for line in report.skipped)
    yield from report.notes


def _first(calibration: Calibration) -> list[ExecutableEntry]:
    first: dict[int, ExecutableEntry] = {}
    for entry in calibration.chosen():
        first.setdefault(entry.bucket, entry)
    return list(first.values())
