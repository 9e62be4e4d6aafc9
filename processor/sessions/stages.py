"""Run what sessions have filled: the seam of an extension behind the sessions of a group (processor.ports).

A group without stages has None in their place, and its sessions run their batches themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from freshet_serving.processor.clock import Clock
from freshet_serving.processor.ports import ENGINE, missing
from freshet_serving.processor.sessions.session import Session
from freshet_serving.processor.versions.replica import Replica
from freshet_serving.processor.watching import SessionStats, StatsBlock

OPTION = "device_stages"
STAGING_PER_STAGE = 2


class Stages(Protocol):
    """The stages of one group, on threads of their own; `stats` is what each has done."""

    stats: list[SessionStats]

    def session(self, number: int) -> Session:
        """Return a new session, by its number, that fills batches and hands them to the stages."""

    def blocks(self, replica: Replica) -> list[StatsBlock]:
        """Return the statistics blocks of a replica's batches."""

    def close(self) -> None:
        """Run and answer what has been filled, then end. The sessions that fill must have ended before."""


def staging_count(stages: int) -> int:
    """Return the number of staging buffers: for each stage one running and one waiting, plus one being filled."""
    return STAGING_PER_STAGE * stages + 1


def check_stages(stages: int, field: str = "") -> None:
    """Raise BadInput, which prefixes the option with `field`, if stages are requested that no extension has."""
    if stages and ENGINE.get("stages", OPTION) is None:
        raise missing(field + OPTION, OPTION)


def open_stages(stages: int, readers: Sequence[int], clock: Clock, cpus: frozenset[int]) -> Stages:
    """Start the stages of a group, with staging_count(stages) unused reader slots, on these cores or any.

    Raises BadInput without the extension.
    """
    check_stages(stages)
    opened: Stages = ENGINE.get("stages", OPTION)(stages, readers, clock, cpus)
    return opened
