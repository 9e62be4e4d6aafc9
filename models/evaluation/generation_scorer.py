"""Open any generation in a model's change log and score rows exactly as a server at that generation would.

It uses the same tables, executables, sessions and batches, in this process, and writes nothing. The generation need not
be served: one that was rolled back is opened from the same files while they exist.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.clock import SystemClock
from freshet_serving.processor.columns import Column, slice_column
from freshet_serving.processor.errors import BadInput, FreshetError, NotFound
from freshet_serving.processor.features.limits import RequestLimits
from freshet_serving.processor.generation import Generation
from freshet_serving.processor.package import Manifest
from freshet_serving.processor.repository import ChainLink, ChangeLog, VersionReader, open_repository, open_snapshot
from freshet_serving.processor.sessions.placement import Groups
from freshet_serving.processor.sessions.predictor import Predictor
from freshet_serving.processor.sessions.request import PredictRequest
from freshet_serving.processor.sessions.session_options import SessionConfig
from freshet_serving.processor.versions.replica import Replica
from freshet_serving.processor.versions.routes import Routes
from freshet_serving.processor.versions.served_version import ServedVersion

REQUEST_ROWS = 2048
MOST = 1 << 31
"""Limit of queued rows and ids, and of those in one request: effectively none, as the caller waits for each reply."""
LIMITS = replace(RequestLimits(), max_rows=MOST, max_ids=MOST)


class GenerationScorer(Predictor):
    """A generation that answers requests. Thread-safe, as a Processor is."""

    def __init__(self, repository: str | VersionReader, model: str, generation: Generation | None = None) -> None:
        """Load a generation, by default the one that the newest version serves. Raises NotFound, or FreshetError.

        `repository` may be a version that is open already, such as one that is not committed yet.
        """
        clock = SystemClock()
        if isinstance(repository, str):
            number = generation.version if generation is not None else None
            repository = open_repository(repository).version(model, number)
        self._version = _opened(repository, generation)
        super().__init__(Groups(SessionConfig(max_queue_rows=MOST), clock), clock, LIMITS)
        options = self.groups.of(model).options
        files, control = self._version.files, self._version.control
        threads, runs = options.threads_per_session, options.runs
        replica = Replica(files, control, 0, threads, clock, options.all_cpus, None, runs)
        self._version.attach_replicas(replica)
        self.update_routes({model: Routes(model, {files.manifest.version: replica})})
        self.model = model

    @property
    def generation(self) -> Generation:
        return self._version.generation

    @property
    def description(self) -> Manifest:
        return self._version.manifest

    def outputs(self, labels: Sequence[str]) -> list[str]:
        """Return the output that holds the probability of each label; raise BadInput if the model has none.

        The version's notes name it. Without notes it is `score` for a single label, and the output of the label's name
        for several.
        """
        names = [o.name for o in self.description.outputs if o.columns == 1]
        noted = self.description.notes.get("labels")
        if isinstance(noted, dict) and set(labels) <= set(noted):
            expected = [str(noted[label]) for label in labels]
        elif len(labels) == 1:
            expected = ["score"] if "score" in names or len(names) != 1 else names
        else:
            expected = list(labels)
        if not set(expected) <= set(names):
            got = ", ".join(o.name for o in self.description.outputs)
            raise BadInput(
                f"label: expected outputs {', '.join(expected)} of one column, got a model {self.model!r} with {got}"
            )
        return expected

    def score(self, columns: dict[str, Column], rows: int, outputs: Sequence[str]) -> NDArray[np.float32]:
        """Score rows, by input name: float32 [rows], or [rows, outputs] for several outputs. Raises FreshetError."""
        firsts = range(0, rows, REQUEST_ROWS)
        requests = [PredictRequest(self.model, {n: _part(c, first) for n, c in columns.items()}) for first in firsts]
        parts = []
        for reply in self.batch_process(requests):
            if isinstance(reply, FreshetError):
                raise reply
            parts.append(np.concatenate([reply.outputs[name] for name in outputs], axis=1))
        scores = np.concatenate(parts)
        return scores.reshape(-1) if len(outputs) == 1 else scores

    def rows(self, table: str) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Return a table as of the generation: keys [m], ascending, and rows [m, dim]."""
        return self._version.export()[0][table]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        self._version.close()


def _opened(version: VersionReader, generation: Generation | None) -> ServedVersion:
    change_log = ChangeLog(version)
    change_log.look()
    link = _link(change_log, generation)
    record = change_log.history.snapshot(link)
    served = ServedVersion(version if record is None else open_snapshot(version, record), 0, SystemClock())
    links = []
    for before in change_log.history.back(link):
        if before.digest == served.digest:
            break
        links.append(before)
    for delta in reversed(links):
        served.apply(change_log.read_delta(delta), delta.digest)
    return served


def _link(change_log: ChangeLog, generation: Generation | None) -> ChainLink:
    history = change_log.history
    if generation is None:
        return history.target
    link = history.on_line(generation.step) or history.known(generation.step)
    if link is None:
        raise NotFound(
            f"generation {generation} of model {history.model!r} is not in the repository: version {history.version}"
            f" has had steps 0 to {history.top}"
        )
    return link


def _part(column: Column, first: int) -> Column:
    return slice_column(column, first, min(first + REQUEST_ROWS, len(column)))
