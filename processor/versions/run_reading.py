"""Read a run of consecutive deltas of a change log, folded into one, up to the first that cannot be applied."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

from freshet_serving.processor.errors import FreshetError
from freshet_serving.processor.generation import Position
from freshet_serving.processor.package import DeltaRun
from freshet_serving.processor.repository import ChainLink, ChangeLog
from freshet_serving.processor.versions.delta_checks import DeltaEntry, entry_of
from freshet_serving.processor.versions.served_version import ServedVersion


@dataclass(slots=True)
class ReadRun:
    """The deltas of a run that could be read, folded; `stopped` is the error at the first that could not."""

    run: DeltaRun = field(default_factory=DeltaRun)
    links: list[ChainLink] = field(default_factory=list)
    entries: list[DeltaEntry] = field(default_factory=list)
    stopped: FreshetError | None = None

    @classmethod
    def of(cls, change_log: ChangeLog, version: ServedVersion, ahead: Sequence[ChainLink]) -> Self:
        """Read deltas, in order, that lead on from what a version serves."""
        manifest, taken = version.manifest, cls()
        step = version.position.step
        for link in ahead:
            try:
                delta = change_log.read_delta(link)
                at = Position(manifest.model, manifest.version, 0, step)
                at.check_parent(delta.model, delta.version, delta.step, delta.parent_step, delta.compacted)
                delta.check_fits(manifest)
            except FreshetError as error:
                taken.stopped = error
                break
            taken.run.add(delta)
            taken.links.append(link)
            taken.entries.append(entry_of(delta, link.digest))
            step = delta.step
        return taken
