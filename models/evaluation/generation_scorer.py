"""One generation of a model, any of its chain, opened to score rows as a server at it answers them: the same tables,
executables, sessions and batches, in this process, and nothing written.

It need not be the one that is served: one that was rolled back is opened from the same files, while they are there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from freshet_serving.models.data.source import slice_column
from freshet_serving.processor.clock import SystemClock
from freshet_serving.processor.columns import Column
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
from freshet_serving.processor.versions.served_version import ServedVersion

REQUEST_ROWS = 2048
MOST = 1 << 31
"""Rows and ids that may wait or be asked for at once: whoever asks here reads no faster than is answered."""


class GenerationScorer(Predictor):
    """A generation that answers requests. Thread-safe, as a Processor is."""

    def __init__(self, repository: str, model: str, generation: Generation | None = None) -> None:
        """generation: by default what the newest version serves. Raises FreshetError where it cannot be opened,
        NotFound where there is none."""
        clock = SystemClock()
        number = generation.version if generation is not None else None
        self._version = _opened(open_repository(repository).version(model, number), generation)
        super().__init__(Groups(SessionConfig(max_queue_rows=MOST, max_queue_ids=MOST), clock), clock, _limits())
        options = self.groups.of(model).options
        files, control = self._version.files, self._version.control
        threads, runs = options.threads_per_session, options.runs
        self._replica = Replica(files, control, 0, threads, clock, options.all_cpus, None, runs)
        self._version.attach_replicas(self._replica)
        self.model = model

    @property
    def generation(self) -> Generation:
        return self._version.generation

    @property
    def description(self) -> Manifest:
        """The version's manifest."""
        return self._version.manifest

    def outputs(self, labels: Sequence[str]) -> list[str]:
        """The output that is the probability of each label: as the version notes it, else `score` of one, those of
        their names of several. Raises BadInput where the model has none such."""
        names = [o.name for o in self.description.outputs if o.columns == 1]
        noted = self.description.notes.get("labels")
        if isinstance(noted, dict) and set(labels) <= set(noted):
            wanted = [str(noted[label]) for label in labels]
        elif len(labels) == 1:
            wanted = ["score"] if "score" in names or len(names) != 1 else names
        else:
            wanted = list(labels)
        if not set(wanted) <= set(names):
            there = ", ".join(o.name for o in self.description.outputs)
            raise BadInput(f"label: outputs {', '.join(wanted)} of one column wanted, {self.model!r} has {there}")
        return wanted

    def score(self, columns: dict[str, Column], rows: int, outputs: Sequence[str]) -> NDArray[np.float32]:
        """Scores [rows], or [rows, outputs] of several; columns: by the manifest's inputs. Raises FreshetError."""
        firsts = range(0, rows, REQUEST_ROWS)
        requests = [PredictRequest(self.model, {n: _part(c, first) for n, c in columns.items()}) for first in firsts]
        parts = []
        for reply in self.batch_process(requests):
            if isinstance(reply, FreshetError):
                raise reply
            parts.append(np.concatenate([reply.outputs[name] for name in outputs], axis=1))
        scores = np.concatenate(parts)
        return scores.reshape(-1) if len(outputs) == 1 else scores

    def replica(self, model: str, version: int | None = None, label: str | None = None) -> Replica:
        """See Predictor.replica: there is only one."""
        return self._replica

    def route(
        self, model: str, version: int | None = None, label: str | None = None, key: bytes | None = None
    ) -> Replica:
        """See Predictor.route: there is only one."""
        return self._replica

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
    for one in change_log.history.back(link):
        if one.digest == served.digest:
            break
        links.append(one)
    for one in reversed(links):
        served.apply(change_log.read_delta(one), one.digest)
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


def _limits() -> RequestLimits:
    return replace(RequestLimits(), max_rows=MOST, max_ids=MOST)
