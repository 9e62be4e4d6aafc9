"""Implement `freshet join`: match recordings with outcomes, to rows that `freshet train` learns from."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table

from freshet_serving.processor.errors import FreshetError, NotReady
from freshet_serving.serving.commands.admin_client import AdminClient, quoted
from freshet_serving.serving.commands.shutdown_signals import stop_on_signal

if TYPE_CHECKING:
    from freshet_serving.models.streams.join_run import JoinStatus, ScoreSums

TELL_TIMEOUT_S = 5.0
SHOWN_WINDOWS = 12


def join(
    recordings: Annotated[str, typer.Option(help="Folder of the servers' recordings.")],
    outcomes: Annotated[
        str, typer.Option(help="Outcomes: a folder of Parquet files, redis://host/stream or kafka://host/topic.")
    ],
    out: Annotated[str, typer.Option(help="Folder to write the labelled rows to.")],
    model: Annotated[str, typer.Option(help="Model of the recordings. [the only one]")] = "",
    key: Annotated[
        str,
        typer.Option(help="What identifies an outcome's row within its request: row, or a feature such as item_id."),
    ] = "row",
    request_column: Annotated[str, typer.Option(help="Outcome column with the request id.")] = "request",
    time_column: Annotated[str, typer.Option(help="Outcome column with the event time.")] = "time",
    value_column: Annotated[
        str, typer.Option(help="Outcome column with the label, 0 to 1. [every outcome is a 1]")
    ] = "",
    score: Annotated[str, typer.Option(help="Output that is a probability. [the first]")] = "",
    wait: Annotated[float, typer.Option(help="Seconds to wait for an outcome of a row.")] = 600.0,
    late: Annotated[
        float, typer.Option(help="Seconds during which a late outcome still corrects a row; 0: never.")
    ] = 86400.0,
    lag: Annotated[
        float, typer.Option(help="Seconds until recordings and outcomes are complete enough to read.")
    ] = 120.0,
    every: Annotated[float, typer.Option(help="Seconds between output files.")] = 30.0,
    file_rows: Annotated[int, typer.Option(help="Maximum rows per output file.")] = 16384,
    window: Annotated[float, typer.Option(help="Seconds per window of the report.")] = 600.0,
    follow: Annotated[bool, typer.Option("--follow", help="Keep running and join new data.")] = False,
    admin: Annotated[str, typer.Option(help="Admin port to report calibration to, such as http://host:8502.")] = "",
    metrics_port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port that serves /metrics for Prometheus; 0: off.")
    ] = 0,
    metrics_host: Annotated[str, typer.Option(help="Address to bind --metrics-port to.")] = "127.0.0.1",
) -> None:
    """Joins recorded requests with their outcomes to labelled rows. Run it again after a crash to continue."""
    from freshet_serving.models.runs.train_metrics import serve_metrics
    from freshet_serving.models.streams.join_metrics import JoinMetrics
    from freshet_serving.models.streams.join_run import JoinRun
    from freshet_serving.models.streams.join_settings import JoinSettings

    settings = JoinSettings(
        recordings, outcomes, out, model, key, request_column, time_column, value_column, score, wait, late, lag, every,
        window, file_rows, follow,
    )  # fmt: skip
    console = Console()
    teller = CalibrationReporter(AdminClient(admin, timeout_s=TELL_TIMEOUT_S), console) if admin else None
    run = JoinRun(settings, tell=teller, note=lambda text: console.print(text, highlight=False, markup=False))
    stop_on_signal(run.stop)
    if metrics_port:
        serve_metrics(JoinMetrics(lambda: run.model, run.status), metrics_host, metrics_port)
    if follow and console.is_terminal:
        with Live(console=console, get_renderable=lambda: line(run.status(), time.time()), transient=True):
            run.run()
    else:
        run.run()
    console.print(report(run.status(), Path(out)), highlight=False)


class CalibrationReporter:
    """Reports calibration, the outcomes of the scores of each generation, to a server's admin port.

    If the server does not answer, reporting resumes with the next file; if it refuses one generation, the others are
    still reported. Joined rows are written regardless of whether reporting succeeds.
    """

    def __init__(self, client: AdminClient, console: Console) -> None:
        self._client, self._console = client, console
        self._trouble = ""

    def __call__(self, model: str, sums: Mapping[str, ScoreSums]) -> None:
        trouble = ""
        for generation, each in sums.items():
            evidence = {"generation": generation, "scores": each.scores, "labels": each.labels, "rows": each.rows}
            try:
                self._client.send_json("POST", f"/admin/models/{quoted(model)}/calibration", evidence)
            except NotReady as error:
                trouble = str(error)
                break
            except FreshetError as error:
                # For example, its version is no longer loaded; another may be.
                trouble = str(error)
        if trouble and trouble != self._trouble:
            self._console.print(f"could not report calibration: {trouble}", highlight=False, markup=False)
        self._trouble = trouble


def line(status: JoinStatus, unix_s: float) -> str:
    """Describe the progress of a join in one line."""
    counts = status.counts
    progress = f"{counts.rows:,} rows, {counts.positives:,} positives, {counts.late:,} late, {status.waiting:,} wait"
    if math.isfinite(status.outcomes_s):
        progress += f", {max(0.0, unix_s - status.outcomes_s):,.0f} s behind"
    return f"{progress}; {status.trouble}" if status.trouble else progress


def report(status: JoinStatus, out: Path) -> Table:
    """Return a table with the counts of all outcomes and rows, and the newest windows of the join's output folder."""
    from freshet_serving.models.streams.join_run import WINDOWS
    from freshet_serving.models.streams.join_windows import newest_lines

    counts = status.counts
    fates = {
        "late": counts.late,
        "too late": counts.too_late,
        "unmatched": counts.unmatched,
        "duplicates": counts.duplicates,
        "not sound": status.rejected,
        "ambiguous": counts.ambiguous,
        "repeated rows": counts.repeated,
        "retried rows": counts.retried,
        "disowned rows": counts.disowned,
        "lost rows": counts.lost,
        "lost recordings": status.lost_files,
        "files set aside": status.files_aside,
    }
    by_fate = ", ".join(f"{count:,} {name}" for name, count in fates.items() if count)
    title = f"{counts.rows:,} rows, {counts.positives:,} positives in time" + (f", {by_fate}" if by_fate else "")
    title += f"; {status.waiting:,} rows wait, {status.held:,} outcomes wait for a row"
    table = Table(title=title, box=None, pad_edge=False, title_justify="left")
    for name in ("window", "rows", "positives", "late", "unmatched", "mean score", "mean label", "calibration"):
        table.add_column(name, justify="left" if name == "window" else "right")
    for window in newest_lines(out / WINDOWS, SHOWN_WINDOWS):
        began = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(window["window"]))
        sums = [f"{window[name]:,.0f}" for name in ("rows", "positives", "late", "unmatched")]
        label = window["mean_label" if window["complete"] else "expected_label"]
        calibration = "" if window["calibration"] is None else f"{window['calibration']:.3f}"
        table.add_row(began, *sums, f"{window['mean_score']:.4f}", f"{label:.4f}", calibration)
    return table
