"""Name the parts of a server that its extensions are made from (serving.ports)."""

from __future__ import annotations

from concurrent.futures import Executor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from freshet_serving.serving.access.credentials import AccessControl
from freshet_serving.serving.lifecycle import Availability
from freshet_serving.serving.serve_config import ServeConfig
from freshet_serving.serving.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from freshet_serving.processor.versions.host import ModelHost


@dataclass(frozen=True, slots=True)
class ServerParts:
    """Parts of one server; it owns them, starts and stops them.

    Attributes:
        workers: Number of processes that answer.
        data_address: Host and port of the HTTP data port.
        bulk: Runs long operations at low priority; None if one process answers.
    """

    config: ServeConfig
    workers: int
    lifecycle: Availability[ModelHost]
    metrics: Metrics
    access: AccessControl
    data_address: tuple[str, int]
    bulk: Executor | None
