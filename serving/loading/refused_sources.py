"""Refuse plain SavedModels, Keras and ONNX files by name, in a server without the extension that imports them.

Costs: a list of each model's versions, once in LOOK_EVERY_S.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from freshet_serving.processor.errors import FreshetError
from freshet_serving.processor.ports import missing
from freshet_serving.processor.repository import FILE_SUFFIXES, Repository
from freshet_serving.processor.versions.changes import FailureMessage
from freshet_serving.processor.versions.routes import END, VersionStatus

LOOK_EVERY_S = 5.0


class Host(Protocol):
    """The part of processor.versions.host.ModelHost that receives the status of versions."""

    def tell(self, model: str, status: VersionStatus) -> None: ...


class RefusedSources:
    """Reports each source once, in place of an importer (serving.ports.Importer)."""

    def __init__(
        self, repository: Path, models: Sequence[str], host: Host, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        """Prepare to watch a repository; `models` are the only ones to report, empty for all."""
        self._folder, self._models, self._host, self._now_s = repository, frozenset(models), host, now_s
        self._next_s = 0.0
        self._reported: set[tuple[str, int]] = set()

    def announce(self) -> list[str]:
        """Return no model: readiness waits for none of them."""
        return []

    def poll(self) -> list[str]:
        now_s = self._now_s()
        if now_s < self._next_s:
            return []
        self._next_s = now_s + LOOK_EVERY_S
        try:
            repository = Repository(self._folder)
            sources = {
                (model, version): path
                for model in repository.models()
                if not self._models or model in self._models
                for version, path in repository.sources(model).items()
            }
        except (OSError, FreshetError):
            # The processor's own poll reports a repository that cannot be read.
            return []
        new = {key: path for key, path in sources.items() if key not in self._reported}
        self._reported = set(sources)
        return [self._refuse(*key, path) for key, path in sorted(new.items())]

    def close(self) -> None:
        """Do nothing: nothing runs."""

    def _refuse(self, model: str, version: int, path: Path) -> FailureMessage:
        source = repr(path.name[:64]) if path.suffix in FILE_SUFFIXES else "a SavedModel"
        why = str(missing(f"importing {source}", "auto_import"))
        self._host.tell(model, VersionStatus(version, END, why))
        return FailureMessage(f"{model} version {version} refused: {why}")
