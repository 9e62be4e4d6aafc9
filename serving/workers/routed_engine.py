"""The engine of a worker, as its supervisor's routes say: which replicas answer, and why it is not ready."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from freshet_serving.processor.sessions.predictor import Predictor
from freshet_serving.processor.versions.replica import Replica
from freshet_serving.processor.versions.routes import Routes, VersionStatus
from freshet_serving.processor.versions.traffic import Traffic
from freshet_serving.serving.workers.channel import Message


class Opened(Protocol):
    @property
    def replica(self) -> Replica: ...


class RoutedEngine:
    """A worker's predictor, with what readiness is judged by (serving.lifecycle.Engine).

    `stale` is always "": the supervisor judges staleness, and sets it in the lifecycle.
    """

    def __init__(self, predictor: Predictor) -> None:
        self.predictor = predictor
        self.ready = False
        self.missing = self.stale = ""
        self.concerns: tuple[str, ...] = ()

    def reroute(self, message: Message, opened: Mapping[int, Opened]) -> None:
        """Replace all routes with those of a "routes" message, or none of them if one cannot be followed."""
        routes = {
            name: Routes(
                name,
                {int(number): opened[key].replica for number, key in model["served"].items()},
                model["labels"],
                {status[0]: VersionStatus(*status) for status in model["states"]},
                Traffic.from_json(model["traffic"]),
            )
            for name, model in message["models"].items()
        }
        self.predictor.update_routes(routes)
        self.ready, self.missing = message["ready"], message["missing"]
