"""Extensions of the server: what answering predictions over HTTP and gRPC does not need (processor.ports)."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from freshet_serving.processor.ports import ENGINE, Extensions


class Routes(Protocol):
    """Routes of the admin port."""

    def add_to(self, app: Any) -> None:
        """Add the routes to a FastAPI application."""


class AdminPort(Protocol):
    """The port for changes."""

    def start(self) -> None:
        """Begin to answer, on a thread of its own."""

    def end(self) -> None:
        """Stop; wait for a bounded time."""


class Importer(Protocol):
    """Brings models into the repository that are no packages. Used by one thread at a time, except for close()."""

    def announce(self) -> list[str]:
        """Return the models that readiness waits for."""

    def poll(self) -> list[str]:
        """Do what is due without blocking, and return lines for the log."""

    def close(self) -> None:
        """End what is running."""


@dataclass(frozen=True, slots=True)
class ServerExtension:
    """The parts that an extension offers the server and the `freshet` command.

    Attributes:
        commands: Subcommands by name: functions for typer, or apps of further subcommands, from a call without
            arguments.
        dialects: decode() and encode() of forms of predict requests (serving.http.dialects) by name, from a call.
        metrics: Metric families by subject, from a host of models (processor.versions.host) and the snapshots of its
            models (processor.watching.ModelStats).
        regions: Opens regions of shared memory (serving.front.shared_memory.Regions), from the most bytes that a
            request may read.
        admin_port: The admin port, from serving.server_parts.ServerParts and a socket that listens.
        admin_routes: Routes of the admin port, by the last part of their path, from serving.server_parts.ServerParts.
        importer: The importer, from the options and the host of the models.
        observers: Creates an observer of a process's requests (processor.sessions.observers), by the option that
            asks for it, from the front end's options and the process's name; None if the options do not ask.
        recordings: Reads recorded requests: "read" the inputs of some from a folder, a model's name, its inputs
            and a number; "find" one by a folder, a model's name and the request's id.
    """

    commands: Mapping[str, Callable[[], Any]] = field(default_factory=dict)
    dialects: Mapping[str, Callable[[], Any]] = field(default_factory=dict)
    metrics: Mapping[str, Callable[[Any, Sequence[Any]], Iterable[Any]]] = field(default_factory=dict)
    regions: Callable[[int], Any] | None = None
    admin_port: Callable[[Any, socket.socket], AdminPort] | None = None
    admin_routes: Mapping[str, Callable[[Any], Routes]] = field(default_factory=dict)
    importer: Callable[[Any, Any], Importer] | None = None
    observers: Mapping[str, Callable[[Any, str], Any]] = field(default_factory=dict)
    recordings: Mapping[str, Callable[..., Any]] = field(default_factory=dict)


SERVER: Extensions[ServerExtension] = Extensions("freshet_serving.serving.extensions", ENGINE)
