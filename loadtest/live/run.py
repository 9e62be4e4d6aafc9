"""One checked run from nothing to a report: repository, server, load, prober, figures.

Once load has begun there is a report, whatever ends the run: it shows what there was until then, and why there is no
more.
"""

from __future__ import annotations

import contextlib
import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from loadtest.live import score_plan as plans
from loadtest.live.delta_files import pending
from loadtest.live.prober import Prober
from loadtest.live.usage import Usage
from loadtest.load.launch import HOST, CommandFailed, RunningServer, environment, prepare, serving
from loadtest.load.measurements import Measurements
from loadtest.reports.live_page import page
from loadtest.reports.report import machine, origin, store, summarize

ROOT = Path(__file__).parents[2]
PUBLISH = ("admin", "folder", "both")
REQUESTS = 32
SETTLE_S = 10.0
RECORD = "record.json"
STOP_TIMEOUT_S = 15
# Locust imports for seconds and its users wait for their last replies: past this something hangs.
GRACE_S = 120.0
MIN_SECONDS = 2


@dataclass(frozen=True, slots=True)
class RunSettings:
    """Settings of a run of `python -m loadtest`. publish: admin | folder | both (first half, second half)."""

    seconds: int = 60
    users: int = 16
    rows: int = 64
    table_rows: int = 100_000
    delta_rows: int = 10_000
    delta_every_s: float = 1.0
    publish: str = "both"
    json_share: float = 0.25
    rate: float = 0.0
    serve: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        least = {"seconds": MIN_SECONDS, "users": 1, "rows": 1, "table_rows": 1, "delta_rows": 1, "rate": 0}
        most = {"delta_every_s": self.seconds, "json_share": 1}
        for name, bound in {**least, "delta_every_s": 0.01, "json_share": 0}.items():
            value, limit = getattr(self, name), most.get(name, math.inf)
            if not bound <= value <= limit:
                allowed = f"{bound} to {limit}" if name in most else f"{bound} or more"
                raise ValueError(f"{name}: expected {allowed}, got {value}")
        if self.publish not in PUBLISH:
            raise ValueError(f"publish: expected one of {', '.join(PUBLISH)}, got {self.publish!r}")


def run(settings: RunSettings, say: Callable[[str], object], arguments: Sequence[str] = ()) -> dict[str, Any]:
    """Runs the test in a temporary folder; returns the summary, of which `error` says why a run ended before its time.
    arguments: of the command that asked for it. Raises CommandFailed, ValueError where no load has begun."""
    facts = machine()
    with tempfile.TemporaryDirectory(prefix="freshet-loadtest-") as folder:
        root = Path(folder)
        repository, deltas = root / "repository", root / "deltas"
        count = math.floor(settings.seconds / settings.delta_every_s)
        say(f"writing the model, 26 tables of {settings.table_rows} rows, and {count} deltas")
        version = prepare(repository, deltas, settings.table_rows, settings.delta_rows, count)
        say("working out the scores of every generation")
        chain = [path for _, path in pending(deltas, 0)]
        plan = plans.build(version, chain, REQUESTS, settings.rows)
        plan.save(root / "plan.safetensors")
        signature = plans.signature_of(json.loads((version / "model.json").read_bytes()))
        watchers: tuple[Prober, Usage] | None = None
        error, began_s = "", time.monotonic()
        try:
            with serving(repository, root / "serve.log", list(settings.serve)) as server:
                say(f"ready in {server.ready_s:.2f} s; {settings.users} users for {settings.seconds} s")
                began_s = time.monotonic()
                watchers = Prober(HOST, server.http_port, signature, plan), Usage(server.pid)
                with contextlib.ExitStack() as stack:
                    for watcher in watchers:
                        watcher.start()
                        stack.callback(watcher.stop)
                    _locust(settings, server, root, version / "deltas")
                    if published := _record(root, began_s)["deltas"]:
                        watchers[0].wait_until_seen(published[-1]["generation"], SETTLE_S)
        except (CommandFailed, KeyboardInterrupt) as failure:
            if watchers is None:
                raise
            say(str(failure))
            # What follows the first line is a log, with the paths of this machine.
            error = str(failure).partition("\n")[0] or "stopped by hand"
        prober, usage = watchers
        about = {
            "machine": facts,
            "settings": {
                **asdict(settings),
                "requests": REQUESTS,
                "tolerance": plans.TOLERANCE,
                "clear": plans.CLEAR,
                "moved_share": round(float(plans.moved(plan).mean()), 4),
            },
            "origin": origin("loadtest", "LOADTEST_ARGS", arguments),
            "layout": server.layout,
            "ready_s": round(server.ready_s, 2),
            "error": error,
        }
        return summarize(_record(root, began_s), prober.summary(), usage.samples, about)


def _locust(settings: RunSettings, server: RunningServer, root: Path, publish_folder: Path) -> None:
    """Runs the load generator to its end in a process of its own; it leaves its record. Raises CommandFailed."""
    options = {
        "--host": server.host,
        "--admin": server.admin,
        "--model": "bench",
        "--users": settings.users + 1,
        "--spawn-rate": settings.users + 1,
        "--run-time": f"{settings.seconds}s",
        "--stop-timeout": STOP_TIMEOUT_S,
        "--json-share": settings.json_share,
        "--rate": settings.rate,
        "--deltas": root / "deltas",
        "--delta-every-s": settings.delta_every_s,
        "--publish": settings.publish,
        "--publish-folder": publish_folder,
        "--plan": root / "plan.safetensors",
        "--record": root / RECORD,
    }
    arguments = [text for name, value in options.items() for text in (name, str(value))]
    command = [sys.executable, "-m", "locust", "-f", str(ROOT / "loadtest" / "live" / "locustfile.py")]
    log = root / "locust.log"
    with open(log, "wb") as out:
        # Its summary tables go aside: the report is ours. Progress comes on stderr.
        process = subprocess.Popen(
            [*command, "--headless", "--only-summary", "--skip-log", *arguments],
            stdout=out,
            env=environment(ROOT),
        )
    try:
        process.wait(settings.seconds + GRACE_S)
    except subprocess.TimeoutExpired:
        raise CommandFailed("locust: did not end in time") from None
    except KeyboardInterrupt:
        # A terminal interrupts it too: it ends in order, and leaves its record.
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_TIMEOUT_S)
        raise
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    if not (root / RECORD).exists():
        raise CommandFailed(f"locust: exit code {process.returncode}, and no record")


def _record(root: Path, began_s: float) -> dict[str, Any]:
    """What the load generator recorded; nothing, from an instant on, where it did not come to that."""
    try:
        document: dict[str, Any] = json.loads((root / RECORD).read_bytes())
    except (OSError, ValueError):
        return Measurements(began_s).document()
    return document


def name_of(settings: RunSettings) -> str:
    """The name of a report: another one where the load is not what the server can do, but a rate that was asked for."""
    return f"loadtest-{settings.rate:g}-a-second" if settings.rate else "loadtest"


def write_report(summary: dict[str, Any], out: Path, name: str) -> Path:
    """Writes <name>.html and its figures as <name>.json; returns the path of the page."""
    store(out, name, summary, page(summary, name), "html")
    return out / f"{name}.html"
