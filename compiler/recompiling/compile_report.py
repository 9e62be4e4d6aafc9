"""The report of `freshet compile --report`: costs and errors by backend and bucket, what was chosen, what was not."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from compiler.building.calibrate import Calibration, by_variant, variant_name
from compiler.recompiling.recompile import Report
from processor.package.manifest import ExecutableEntry


def print_report(report: Report, console: Console) -> None:
    """Prints a row a variant, a column a bucket: median us of one run on one thread; the chosen one is marked."""
    chosen = {b: variant_name(e) for b, e in report.chosen.items()}
    buckets = sorted(chosen)
    table = Table(
        title=f"{report.manifest.model} {report.manifest.version}: us a run, one thread", title_justify="left"
    )
    for heading in ("backend", *(f"{b} rows" for b in buckets), "largest error", "new weights, ms"):
        table.add_column(heading, justify="left" if heading == "backend" else "right", no_wrap=True)
    calibration = report.calibration
    for name, entries in by_variant(calibration.measured).items():
        cost = {e.bucket: e.cost_us for e in entries}
        cells = [f"{cost[b]:.0f}{'*' if chosen[b] == name else ' '}" if b in cost else "- " for b in buckets]
        error = max(e.error for e in entries)
        table.add_row(name, *cells, f"{error:.1e}", f"{calibration.flip_ms.get(name, 0.0):.1f}")
    console.print(table)
    console.print("* serves this bucket")
    for line in report.passes:
        console.print(line, highlight=False, markup=False)
    for name, change in calibration.auc.items():
        console.print(f"AUC of {name}: {change:+.1e} against TensorFlow", highlight=False)
    for role, other in report.others.items():
        served = ", ".join(f"{e.bucket}: {variant_name(e)} {e.cost_us:.0f} us" for e in _first(other))
        console.print(f"the {role}'s part: {served}", highlight=False, markup=False)
    for each in (calibration, *report.others.values()):
        for line in each.refused:
            console.print(f"refused: {line}", highlight=False, markup=False)
    for line in report.skipped:
        console.print(f"not compiled: {line}", highlight=False, markup=False)


def _first(calibration: Calibration) -> list[ExecutableEntry]:
    """What serves each bucket."""
    first: dict[int, ExecutableEntry] = {}
    for entry in calibration.chosen():
        first.setdefault(entry.bucket, entry)
    return list(first.values())
