"""One network's loop: imported, served in this process, and compared with its framework after each delta.

Deltas are not guarded: a network that learns from labels at random moves as no good stream does.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.compiler.imports.importing import import_model
from freshet_serving.compiler.imports.samples_required import SamplesRequired
from freshet_serving.processor.engine import PredictRequest, Processor, ProcessorConfig
from freshet_serving.processor.errors import FreshetError
from freshet_serving.processor.generation import OFF
from freshet_serving.processor.package import Manifest
from freshet_serving.processor.repository import open_repository
from loadtest.bench.foreign_models.trial import columns, key_of
from loadtest.bench.training.loops.side import read_requests

CLOSE = 1e-5
EQUAL, WRONG, REFUSED, FAILED = "equal", "wrong", "refused", "failed"


class Stopped(Exception):
    """A loop that goes no further: `verdict` is REFUSED or FAILED."""

    def __init__(self, verdict: str, message: str) -> None:
        super().__init__(message)
        self.verdict = verdict


@dataclass(slots=True)
class Loop:
    """What became of a network's loop.

    Attributes:
        network: Its name.
        verdict: EQUAL, WRONG, REFUSED or FAILED.
        message: Why it was refused or failed, or which delta was the first with another score.
        served: What serves it: its tables, weights and stage.
        deltas: Deltas that were compared.
        requests: Requests that were compared.
        worst: The largest difference of a score, relative to scores above 1.
        seconds: How long it took, with the import.
    """

    network: str
    verdict: str = EQUAL
    message: str = ""
    served: str = ""
    deltas: int = 0
    requests: int = 0
    worst: float = 0.0
    seconds: float = 0.0


class SideProcess:
    """A framework's process (loops.side)."""

    def __init__(self, command: Sequence[str], root: Path, environment: Mapping[str, str], log: Path) -> None:
        """Start it.

        Args:
            command: The command.
            root: The folder that it runs in.
            environment: Its environment.
            log: File for its stderr.
        """
        with open(log, "wb") as out:
            self._process = subprocess.Popen(
                command, cwd=root, env=dict(environment), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=out
            )

    def ask(self, **command: str) -> dict[str, Any]:
        """Return the answer to a command. Raises Stopped if it was refused or failed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(command).encode() + b"\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = b""
        if not line:
            raise Stopped(FAILED, "the framework's process ended")
        answered: dict[str, Any] = json.loads(line)
        for key, verdict in (("refused", REFUSED), ("failed", FAILED)):
            if key in answered:
                raise Stopped(verdict, str(answered[key]))
        return answered

    def __enter__(self) -> SideProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Closes its stdin, at which it ends, and waits for it.
        self._process.__exit__(None, None, None)


def follow(
    ask: Callable[..., dict[str, Any]], network: str, folder: Path, deltas: int, counted: Callable[[], None]
) -> Loop:
    """Run a network's loop.

    Args:
        ask: Asks the framework's process (SideProcess.ask).
        network: The network's name.
        folder: An empty folder.
        deltas: Number of deltas.
        counted: Called after each delta.
    """
    loop, began_s = Loop(network), time.monotonic()
    try:
        _follow(ask, loop, folder, deltas, counted)
    except Stopped as stopped:
        loop.verdict, loop.message = stopped.verdict, str(stopped)
    except FreshetError as error:
        loop.verdict, loop.message = (FAILED if loop.served else REFUSED), str(error)
    loop.seconds = round(time.monotonic() - began_s, 1)
    return loop


def _follow(
    ask: Callable[..., dict[str, Any]], loop: Loop, folder: Path, deltas: int, counted: Callable[[], None]
) -> None:
    repository, requests = folder / "repository", folder / "requests.npz"
    source = Path(ask(do="build", network=loop.network, folder=str(folder))["source"])
    _import(source, repository, loop.network)
    manifest = open_repository(str(repository)).version(loop.network, None).manifest
    config = ProcessorConfig(repository=str(repository), delta_guard=OFF)
    with Processor.initialize(config) as processor:
        loop.served = served_by(manifest)
        ask(do="attach", repository=str(repository), model=loop.network)
        for _ in range(deltas):
            generation = ask(do="learn", requests=str(requests))["generation"]
            processor.poll()
            for inputs, expected in read_requests(requests):
                reply = processor.process(PredictRequest(loop.network, columns(manifest, inputs)))
                if str(reply.generation) != generation:
                    raise Stopped(FAILED, f"expected generation {generation} to be served, got {reply.generation}")
                apart = difference(reply.outputs, expected)
                loop.requests += 1
                if not apart <= CLOSE and loop.verdict == EQUAL:
                    loop.verdict, loop.message = WRONG, f"first at generation {generation}, by {apart:.1e}"
                loop.worst = max(loop.worst, apart)
            loop.deltas += 1
            counted()


def _import(source: Path, repository: Path, model: str) -> None:
    try:
        import_model(source, repository, model)
    except SamplesRequired as error:
        raise Stopped(REFUSED, str(error)) from None


def served_by(manifest: Manifest) -> str:
    """Return in a few words what a package is made of."""
    weights = len(manifest.stage_weights)
    stage = f", stage of {manifest.stage.runtime} with {weights} weights" if manifest.stage is not None else ""
    return f"{len(manifest.tables) - weights} tables, {len(manifest.dense)} dense weights{stage}"


def difference(outputs: Mapping[str, NDArray[Any]], expected: Mapping[str, NDArray[Any]]) -> float:
    """Return the largest difference of a score, relative to scores above 1; infinity for another shape or no number."""
    names = {key_of(name): name for name in outputs}
    if len(outputs) == len(expected) == 1:
        # Frameworks name a single output as they like.
        names = {key_of(next(iter(expected))): next(iter(outputs))}
    worst = 0.0
    for name, scores in expected.items():
        served = outputs.get(names.get(key_of(name), ""))
        if served is None or served.size != scores.size:
            return float("inf")
        target = scores.reshape(-1).astype(np.float64)
        apart = np.abs(served.reshape(-1).astype(np.float64) - target) / np.maximum(1, np.abs(target))
        worst = max(worst, float(np.nan_to_num(apart, nan=np.inf).max(initial=0.0)))
    return worst
