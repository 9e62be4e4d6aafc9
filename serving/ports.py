"""Extensions of the server: what answering predictions over HTTP and gRPC does not need (processor.ports)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from freshet_serving.processor.ports import Extensions


@dataclass(frozen=True, slots=True)
class ServerExtension:
    """What an extension offers the server and the `freshet` command.

    Attributes:
        commands: Subcommands by name: functions for typer, or apps of further subcommands, from a call without
            arguments.
        dialects: decode() and encode() of forms of predict requests (serving.http.dialects) by name, from a call.
        metrics: Metric families of models (processor.watching.ModelStats) by subject: functions that yield them.
        regions: What opens regions of shared memory (serving.front.shared_memory.Regions), as "shared_memory", from the
            most bytes that a request may read.
        repository_metrics: Metric families of a repository by subject: functions that yield them.
    """

    commands: Mapping[str, Callable[[], Any]] = field(default_factory=dict)
    dialects: Mapping[str, Callable[[], Any]] = field(default_factory=dict)
    metrics: Mapping[str, Callable[[Sequence[Any]], Iterable[Any]]] = field(default_factory=dict)
    regions: Mapping[str, Callable[[int], Any]] = field(default_factory=dict)
    repository_metrics: Mapping[str, Callable[[Any], Iterable[Any]]] = field(default_factory=dict)


SERVER: Extensions[ServerExtension] = Extensions("freshet_serving.serving.extensions")
"""The extensions of the server."""
