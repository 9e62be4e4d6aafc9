"""Implement `freshet fleet`: show what the replicas of a repository serve, side by side, and which lag behind."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from freshet_serving.serving.commands.admin_client import TOKEN_VARIABLE

if TYPE_CHECKING:
    from freshet_serving.serving.extensions.fleet.fleet_comparison import FleetReport, VersionComparison

HEADINGS = ("replica", "ready", "model", "generation", "digest", "behind", "stale", "state")
RIGHT = ("behind", "stale")
BETWEEN_S = 0.25
"""Seconds between polls with --wait."""


def fleet(
    replicas: Annotated[
        list[str] | None,
        typer.Argument(help="Addresses of admin ports, such as http://10.0.0.7:8502.", show_default=False),
    ] = None,
    service: Annotated[
        str,
        typer.Option(help="HOST:PORT of a name with one address per replica, such as a headless Kubernetes service."),
    ] = "",
    model: Annotated[str | None, typer.Option(help="Only this model. [all]")] = None,
    timeout: Annotated[float, typer.Option(min=0.05, max=60.0, help="Timeout in seconds for each replica.")] = 2.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    watch: Annotated[
        float, typer.Option(min=0.0, max=3600.0, help="Poll repeatedly at this interval in seconds, until interrupted.")
    ] = 0.0,
    wait: Annotated[
        float,
        typer.Option(min=0.0, max=86400.0, help="Poll until all replicas are healthy, for at most this many seconds."),
    ] = 0.0,
) -> None:
    """Compares the replicas of a repository, and reports those behind, DIVERGED, not ready or unreachable.

    Exits with 0 if all are ready and serve the same newest records, with 1 if not, and with 2 for invalid arguments.
    """
    import signal
    import threading
    import time

    from freshet_serving.processor.errors import BadInput
    from freshet_serving.serving.commands.shutdown_signals import stop_on_signal

    if not replicas and not service:
        raise BadInput("fleet: expected addresses of admin ports or --service HOST:PORT, got neither")
    if watch and wait:
        raise BadInput("fleet: expected --watch or --wait, got both")
    look = _poller(replicas or [], service, os.environ.get(TOKEN_VARIABLE, ""), timeout, model)
    shown: Callable[[FleetReport], str] = _document if as_json else table
    ended = threading.Event()
    if watch or wait:
        handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        stop_on_signal(ended.set)
    try:
        until_s = time.monotonic() + wait
        report = look()
        while wait and not report.healthy and time.monotonic() < until_s and not ended.wait(BETWEEN_S):
            report = look()
        print(shown(report), flush=True)
        while watch and not ended.wait(watch):
            report = look()
            print(shown(report) if as_json else f"\n{shown(report)}", flush=True)
    finally:
        if watch or wait:
            for number, handler in handlers.items():
                signal.signal(number, handler)
    raise typer.Exit(0 if report.healthy else 1)


def _poller(
    replicas: Sequence[str], service: str, token: str, timeout_s: float, model: str | None
) -> Callable[[], FleetReport]:
    """Return a function that polls the fleet once; it resolves the service's addresses again each time."""
    import asyncio

    from freshet_serving.serving.extensions.fleet.fleet_comparison import ReplicaStatus, compare
    from freshet_serving.serving.extensions.fleet.fleet_polling import AdminAddress, check_token, poll_all, resolve

    check_token(token)
    addresses = [AdminAddress.parse(text) for text in dict.fromkeys(replicas)]
    if service:
        AdminAddress.parse(service)

    async def look() -> FleetReport:
        resolved = await resolve(service, timeout_s) if service else []
        distinct = list({(each.host, each.port): each for each in (*addresses, *resolved)}.values())
        statuses = await poll_all(distinct, token, timeout_s, model)
        if service and not resolved:
            statuses.append(ReplicaStatus(service, problem="the name resolves to no address"))
        return compare(statuses, model)

    return lambda: asyncio.run(look())


def table(report: FleetReport) -> str:
    """Format a report as text: a row for each version of each replica, then the problems, then the trainers."""
    from freshet_serving.serving.extensions.fleet.fleet_trainers import trainer_line

    rows: list[tuple[str, ...]] = [HEADINGS]
    listed = {line.where for line in report.lines}
    rows += [_row(line) for line in report.lines]
    rows += [
        (each.where, "-" if each.problem else _ready(each.ready), "", "", "", "", "", each.problem.partition(":")[0])
        for each in report.replicas
        if each.where not in listed
    ]
    widths = [max(map(len, column)) for column in zip(*rows)]
    text = ["  ".join(_cell(*each) for each in zip(row, widths, HEADINGS)).rstrip() for row in rows]
    if report.healthy:
        served = {(line.model, line.version) for line in report.lines}
        text.append(f"all {len(report.replicas)} serve the same, {len(served)} version{'s' * (len(served) != 1)}")
    trainers = [trainer_line(model, status) for model, status in report.trainers.items()]
    return "\n".join([*text, *report.problems, *trainers])


def _cell(text: str, width: int, heading: str) -> str:
    return text.rjust(width) if heading in RIGHT else text.ljust(width)


def _ready(ready: bool) -> str:
    return "yes" if ready else "no"


def _row(line: VersionComparison) -> tuple[str, ...]:
    served = line.standing
    if served is None:
        return line.where, _ready(line.ready), line.model, f"{line.version}.-", "-", f"{line.behind}", "-", line.wrong
    stale = "-" if served.staleness_s is None else f"{served.staleness_s:.1f} s"
    return (
        line.where, _ready(line.ready), line.model, f"{line.version}.{served.step}", served.digest[:12],
        f"{line.behind}", stale, line.wrong or served.state or "-",
    )  # fmt: skip


def _document(report: FleetReport) -> str:
    import json

    return json.dumps({
        "well": report.healthy,
        "problems": report.problems,
        "replicas": [{"replica": s.where, "ready": s.ready, "problem": s.problem} for s in report.replicas],
        "versions": [_version(line) for line in report.lines],
        "trainers": {model: asdict(status) for model, status in report.trainers.items()},
    })  # fmt: skip


def _version(line: VersionComparison) -> dict[str, Any]:
    served = asdict(line.standing) if line.standing else None
    generation = f"{line.version}.{line.standing.step}" if line.standing else None
    return {
        "replica": line.where,
        "model": line.model,
        "version": line.version,
        "generation": generation,
        "records_behind": line.behind,
        "wrong": line.wrong,
        "why": line.why,
        "served": served,
    }
