"""A server's model before which the nights' versions are offered, in process: no HTTP, a clock that is moved by hand.

Whatever the trainer's gate lets pass is a version of the repository, which the next poll finds. Before it answers a
request, the server's gate scores by it the requests that are kept of the version before.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from freshet_serving.models.data.source import Batch
from freshet_serving.processor.clock import FakeClock
from freshet_serving.processor.extensions.guard.guard import guard_of
from freshet_serving.processor.repository import RELEASE, Repository, root_hash
from freshet_serving.processor.versions.model import ServedModel
from freshet_serving.processor.versions.replica import Replica
from freshet_serving.processor.versions.served_version import ServedVersion
from freshet_serving.processor.watching import UNJUDGED
from loadtest.bench.guard_streams import MODEL

DAY_S = 86_400.0
ASKED_ROWS, REQUEST_ROWS = 256, 4


class NightServer:
    """One server's model."""

    def __init__(self, folder: Path, model: str = MODEL) -> None:
        """Take a repository; nothing is loaded before offer().

        Args:
            folder: The repository.
            model: Name of the model.
        """
        self._clock = clock = FakeClock()
        self._repository = repository = Repository(folder)

        def connect(version: ServedVersion) -> Replica:
            return Replica(version.files, version.control, 0, 1, clock)

        def load(files: Any) -> ServedVersion:
            return ServedVersion(files, 16, clock)

        self._model = ServedModel(model, repository, load, connect, clock)

    @property
    def served(self) -> int:
        """Number of the version that answers by default; 0 if there is none."""
        default = self._model.routes.default
        return 0 if default is None else default.manifest.version

    def offer(self, number: int) -> tuple[bool, str]:
        """Look for a version.

        Args:
            number: The version.

        Returns:
            True if it is served now; and why it is not, or why the gate could not judge it, or "".
        """
        events = self._model.poll()
        verdict = guard_of(self._model).gate.verdicts.get(number)
        if self.served != number:
            return False, verdict.reason if verdict is not None and verdict.reason else "; ".join(map(str, events))
        return True, f"unjudged: {verdict.reason}" if verdict is not None and verdict.outcome == UNJUDGED else ""

    def release(self, number: int) -> None:
        """Serve a version that is held, as `freshet version release` does."""
        name = self._model.name
        root = root_hash(self._repository.version(name, number).root_manifest)
        self._repository.version_records(name).add(number, root, RELEASE, "it is good", "the campaign")
        self._model.poll()

    def go_back(self) -> None:
        """Serve what is left after a version was removed."""
        self._model.poll()

    def ask(self, rows: Batch) -> None:
        """Send a day's requests.

        Args:
            rows: The day's rows, ASKED_ROWS of which are asked for.
        """
        self._clock.advance(DAY_S)
        replica = self._model.pick().replicas
        assert isinstance(replica, Replica)
        replica.sample.kept()
        chosen = np.linspace(0, len(rows) - 1, min(ASKED_ROWS, len(rows))).astype(np.int64)
        names = [each.name for each in replica.manifest.inputs]
        for request in rows.take(chosen).pieces(REQUEST_ROWS):
            if not replica.sample.wanted:
                return
            inputs = {name: request.columns[name] for name in names}
            replica.sample.take(replica.plan.bind_inputs(inputs), inputs)
