"""Extensions of the server: what answering predictions over HTTP and gRPC does not need (processor.ports)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from freshet_serving.processor.ports import Extensions


@dataclass(frozen=True, slots=True)
class ServerExtension:
    """What an extension offers the server and the `freshet` command.

    Attributes:
        commands: Subcommands by name: functions for typer, or apps of further subcommands, from a call without
            arguments.
        families: Metric families by a name of their own, from a host of models (processor.versions.host).
        observers: What makes an observer of a process's requests (processor.sessions.observers), by the option that
            asks for it: from the front end's options and the process's name; returns None if the options do not ask.
        counters: Help texts of the observers' counters, by name.
        recordings: What reads recorded requests: "read" the inputs of some from a folder, a model's name, its inputs
            and a number; "find" one by a folder, a model's name and the request's id.
    """

    commands: Mapping[str, Callable[[], Any]] = field(default_factory=dict)
    families: Mapping[str, Callable[[Any], Iterator[Any]]] = field(default_factory=dict)
    observers: Mapping[str, Callable[[Any, str], Any]] = field(default_factory=dict)
    counters: Mapping[str, str] = field(default_factory=dict)
    recordings: Mapping[str, Callable[..., Any]] = field(default_factory=dict)


SERVER: Extensions[ServerExtension] = Extensions("freshet_serving.serving.extensions")
"""The extensions of the server."""
