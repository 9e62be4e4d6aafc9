"""Implement `freshet demo`: train, publish and serve a model, keep it fresh, and show the effect live.

It uses three processes, as in production: this one trains and publishes deltas into the repository; `freshet serve`
serves it and picks them up; a traffic process sends single requests all the time. The server scores each event of the
stream before the event is learned; the first published version, frozen, scores the same event. The view compares both.
"""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import deque
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table

from freshet_serving.processor.columns import Ragged, Strings
from freshet_serving.processor.errors import BadInput, NotReady, first_of

if TYPE_CHECKING:
    from freshet_serving.models.config.train_config import TrainConfig
    from freshet_serving.models.data.source import Batch, Source
    from freshet_serving.models.evaluation.quality import ScoredRows
    from freshet_serving.processor.columns import Column

WINDOW_EVENTS = 20_000
READY_TIMEOUT_S = 120.0
DELTA_EVERY_S = 1.0


def demo(
    data: Annotated[str, typer.Option(help="Folder or file of real data. [synthetic stream]")] = "",
    exit_after: Annotated[
        float, typer.Option(help="Seconds of streaming before the demo stops; 0: until Ctrl-C.")
    ] = 0.0,
) -> None:
    """Trains, publishes, serves and keeps a model fresh, with a live view. Ctrl-C stops it.

    The repository is in .demo, which is emptied at the start; the ports are 8501 and 8502, or the next free ones."""
    console, folder = Console(), Path(".demo")
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    config, source = choose(data, folder / "repository")
    show = Demo(console, config, source, folder, *free_ports(8501, 8502))
    try:
        show.run(exit_after)
    except KeyboardInterrupt:
        console.print("stopped")
    finally:
        show.close()


def choose(data: str, repository: Path) -> tuple[TrainConfig, Source]:
    """Return the configuration and data of the demo.

    Args:
        data: A MovieLens folder or Criteo file; "" for the synthetic stream.
        repository: Folder to publish to.
    """
    from freshet_serving.models.config.train_config import parse_config
    from freshet_serving.models.data.formats import format_of
    from freshet_serving.models.data.open_data import default_features, open_source
    from freshet_serving.models.data.synthetic import SyntheticSource
    from freshet_serving.models.data.synthetic import default_features as synthetic_features

    publish: dict[str, Any] = {"repository": str(repository), "full_rows": 200_000, "delta_rows": 2000}
    model = {"name": "ctr", "hidden": [256, 128]}
    if not data:
        raw = {"model": model, "data": {"path": "synthetic", "label": "label", "format": "parquet"}, "publish": publish}
        return parse_config(raw | {"features": synthetic_features()}), SyntheticSource(drift_rows=600_000)
    form = format_of(data)
    if form not in ("movielens", "criteo"):
        raise BadInput("data: expected a MovieLens folder or a Criteo file; for your own table use `freshet train`")
    raw = {"model": model, "data": {"path": data, "format": form}, "features": default_features(form, data)}
    source = open_source(parse_config(raw | {"publish": publish}).data, parse_config(raw).features)
    rows = source.count_rows() or 0
    publish |= {"full_rows": int(rows * 0.8), "delta_rows": max(50, min(2000, rows // 100))}
    return parse_config(raw | {"publish": publish}), source


def _scored() -> ScoredRows:
    from freshet_serving.models.evaluation.quality import ScoredRows

    return ScoredRows()


@dataclass(slots=True)
class ViewFigures:
    requests_per_s: float = 0.0
    p50_ms: float = 0.0
    p99_ms: float = 0.0
    failed: int = 0
    generation: str = ""
    freshness_ms: deque[float] = field(default_factory=lambda: deque(maxlen=4096))
    served: ScoredRows = field(default_factory=_scored)
    frozen: ScoredRows = field(default_factory=_scored)
    events: int = 0


class Demo:
    """The three processes of a demo: run() starts and shows them, close() ends them."""

    def __init__(
        self, console: Console, config: TrainConfig, source: Source, folder: Path, http_port: int, admin_port: int
    ) -> None:
        self._console, self._config, self._source, self._folder = console, config, source, folder
        self._http, self._admin = f"http://127.0.0.1:{http_port}", f"http://127.0.0.1:{admin_port}"
        self._ports = ("--http-port", str(http_port), "--grpc-port", "0", "--admin-port", str(admin_port))
        self._children: list[subprocess.Popen[str]] = []
        self._frozen: Any = None
        self.figures = ViewFigures()

    def run(self, exit_after_s: float) -> None:
        from freshet_serving.compiler.progress import progress_bars
        from freshet_serving.models.training.loop import TrainingRun

        console, publish = self._console, self._config.publish
        with progress_bars(console) as reporter:
            run = TrainingRun(self._config, self._source, reporter=reporter)
            generation = run.full()
        console.print(
            f"version {generation.version} published after {publish.full_rows} events; "
            f"held-out AUC {run.held_out.auc():.4f}, log-loss {run.held_out.log_loss():.4f}",
            highlight=False,
        )
        self._freeze()
        started_s = time.monotonic()
        self._serve()
        console.print(
            f"freshet serve is ready after {time.monotonic() - started_s:.1f} s at {self._http}", highlight=False
        )
        self._print_hints()
        self._start_traffic()
        self._stream(run, exit_after_s)
        self._print_summary()

    def close(self) -> None:
        for child in reversed(self._children):
            child.terminate()
        for child in reversed(self._children):
            try:
                child.wait(timeout=35)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
            if child.stdout is not None:
                child.stdout.close()
        if self._frozen is not None:
            self._frozen.close()

    def _stream(self, run: Any, exit_after_s: float) -> None:
        started_s = time.monotonic()
        next_s = started_s + DELTA_EVERY_S
        with Live(self._view(), console=self._console, refresh_per_second=4, transient=True) as live:
            for generation in run.stream(before=self._score):
                self.figures.freshness_ms.append(self._wait_served(str(generation), run.state.finished_at))
                self._read_traffic()
                live.update(self._view())
                if exit_after_s and time.monotonic() - started_s >= exit_after_s:
                    return
                time.sleep(max(0.0, next_s - time.monotonic()))
                next_s = max(next_s + DELTA_EVERY_S, time.monotonic())

    def _score(self, batch: Batch) -> None:
        """Score a batch with the server and with the frozen version, before the trainer learns it."""
        from freshet_serving.processor.engine import PredictRequest

        body = json.dumps({"inputs": {name: as_json(c) for name, c in batch.columns.items()}}).encode()
        self.figures.generation, outputs = self._predict(body)
        served = np.array(outputs, np.float32).reshape(-1)
        frozen = self._frozen.process(PredictRequest(self._config.model.name, batch.columns)).outputs["score"]
        self.figures.served.add(batch.label, served)
        self.figures.frozen.add(batch.label, frozen.reshape(-1).copy())
        self.figures.events += len(batch)

    def _wait_served(self, generation: str, finished_at: float) -> float:
        """Return the milliseconds from the end of the training step to the first reply of its generation."""
        deadline_s = time.monotonic() + 30
        while time.monotonic() < deadline_s:
            if self._predict(self._probe)[0] == generation:
                return (time.time() - finished_at) * 1e3
            time.sleep(0.002)
        raise NotReady(f"generation {generation} was not served within 30 s")

    def _predict(self, body: bytes) -> tuple[str, list[Any]]:
        """Send a predict request and return the reply's (generation, outputs)."""
        request = urllib.request.Request(f"{self._http}/v1/models/{self._config.model.name}:predict", body)
        with urllib.request.urlopen(request, timeout=30) as reply:
            return reply.headers["x-model-generation"], json.load(reply)["outputs"]

    def _freeze(self) -> None:
        """Open a processor over a copy of the version without deltas: the frozen model."""
        from freshet_serving.processor.engine import Processor, ProcessorConfig

        name = self._config.model.name
        shutil.copytree(self._folder / "repository" / name / "1", self._folder / "frozen" / name / "1")
        self._frozen = Processor.initialize(ProcessorConfig(str(self._folder / "frozen"), sessions=1))

    def _serve(self) -> None:
        command = [sys.executable, "-P", "-m", "freshet_serving", "serve"]
        options = ["--repository", str(self._folder / "repository"), *self._ports]
        log = open(self._folder / "serve.log", "w")  # noqa: SIM115
        child = subprocess.Popen([*command, *options], stdout=log, stderr=log, text=True)
        log.close()
        self._children.append(child)
        deadline_s = time.monotonic() + READY_TIMEOUT_S
        while time.monotonic() < deadline_s:
            if child.poll() is not None:
                raise NotReady(f"freshet serve exited during its start; see {self._folder / 'serve.log'}")
            try:
                with urllib.request.urlopen(f"{self._http}/v2/health/ready", timeout=5):
                    return
            except (urllib.error.URLError, ConnectionError):
                time.sleep(0.02)
        raise NotReady(f"freshet serve was not ready within {READY_TIMEOUT_S:.0f} s; see {self._folder / 'serve.log'}")

    def _start_traffic(self) -> None:
        batch = first_of(self._source.batches(256))
        bodies = []
        for i in range(0, 256, 4):
            columns = batch.slice(i, i + 4).columns
            bodies.append(json.dumps({"inputs": {name: as_json(c) for name, c in columns.items()}}))
        self._probe = bodies[0].encode()
        path = self._folder / "traffic.json"
        path.write_text(json.dumps({"path": f"/v1/models/{self._config.model.name}:predict", "bodies": bodies}))
        command = [sys.executable, "-P", "-m", "freshet_serving.serving.commands.demo_traffic", self._http, str(path)]
        self._traffic = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self._children.append(self._traffic)

    def _read_traffic(self) -> None:
        """Read the traffic process's newest line, without blocking."""
        import select

        stdout = self._traffic.stdout
        while stdout is not None and select.select([stdout], [], [], 0)[0]:
            line = stdout.readline()
            if not line:
                return
            report = json.loads(line)
            self.figures.requests_per_s = report["requests_per_s"]
            self.figures.p50_ms, self.figures.p99_ms = report["p50_ms"], report["p99_ms"]
            self.figures.failed += report["failed"]

    def _view(self) -> Table:
        figures = self.figures
        fresh = np.array(figures.freshness_ms or [np.nan])
        table = Table(title=f"freshet demo: model {self._config.model.name}", min_width=64)
        for heading in ("what", "now"):
            table.add_column(heading)
        rows = {
            "generation served": figures.generation or "-",
            "requests a second (4 candidates each)": f"{figures.requests_per_s:.0f}",
            "latency p50 / p99": f"{figures.p50_ms:.2f} / {figures.p99_ms:.2f} ms",
            "failed requests": str(figures.failed),
            "freshness: from end of step to served, last / p99": f"{fresh[-1]:.0f} / {np.percentile(fresh, 99):.0f} ms",
            "events scored, then learned": str(figures.events),
            "AUC served / frozen version 1, newest 20,000": self._aucs(WINDOW_EVENTS),
            "AUC served / frozen version 1, all": self._aucs(),
        }
        for name, value in rows.items():
            table.add_row(name, value)
        return table

    def _aucs(self, newest: int = 0) -> str:
        return f"{self.figures.served.auc(newest):.4f} / {self.figures.frozen.auc(newest):.4f}"

    def _print_hints(self) -> None:
        name = self._config.model.name
        batch = first_of(self._source.batches(2))
        example = json.dumps({"inputs": {n: as_json(c) for n, c in batch.columns.items()}})
        self._console.print("try:", highlight=False)
        for line in (
            f"curl -si {self._http}/v1/models/{name}:predict -d '{example}'",
            f"curl -s {self._http}/v1/models/{name}",
            f"curl -s {self._admin}/admin/models",
            f"curl -s {self._http}/metrics",
        ):
            self._console.print(f"  {line}", highlight=False, soft_wrap=True, markup=False)
        self._console.print(f"console: {self._admin}/", highlight=False)

    def _print_summary(self) -> None:
        self._console.print(self._view())
        served, frozen = self.figures.served.auc(), self.figures.frozen.auc()
        verdict = "beats" if served > frozen else "does not beat"
        self._console.print(
            f"over {self.figures.events} events the served, delta-refreshed model (AUC {served:.4f}) "
            f"{verdict} the frozen version 1 (AUC {frozen:.4f})",
            highlight=False,
        )


def as_json(column: Column) -> list[Any]:
    """Return a column in the form of TensorFlow Serving's columnar JSON."""
    if isinstance(column, Strings):
        return [s.decode() for s in column.tolist()]
    if isinstance(column, Ragged):
        flat, splits = as_json(column.values), column.row_splits.tolist()
        return [flat[a:b] for a, b in zip(splits, splits[1:])]
    return list(column.tolist())


def free_ports(*first_ports: int) -> list[int]:
    """Return distinct free loopback ports, one for each given port: it or the next free one above. Raises BadInput."""
    with ExitStack() as bound:
        # Each port stays bound until all are found, so that no two are the same.
        return [_bound(port, bound) for port in first_ports]


def _bound(first: int, bound: ExitStack) -> int:
    for port in range(first, min(first + 50, 1 << 16)):
        probe = bound.enter_context(socket.socket())
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
            probe.listen()
        except OSError:
            continue
        return int(probe.getsockname()[1])
    raise BadInput(f"ports: expected a free port from {first} to {first + 49}, got none")
