"""Watch the trainers of a repository's models, by the file that each replaces every few seconds.

Invariants
- An age counts from when this server saw the file change: the trainer's clock may be wrong, and a file's modification
  time may be another machine's. After a start, ages begin at zero.
- A report that cannot be read changes nothing: the one before stays, its age grows, and one line says so.
- A run that has ended is never silent. One that was killed cannot report it, and becomes silent.
- poll() is called by one thread; standings() by any: it is one dictionary, replaced whole.

Costs: a stat for each model and poll, a read of at most MAX_TRAINER_NBYTES after a change. No request to an object
store: the mirror's listing brings the file (processor.extensions.object_stores). A replacement changes the model's
folder, which the next polls list for two seconds (FolderWatch): 40 listings of 0.2 ms every ten seconds, a thousandth
of a core for each model in training.

Rejected: the trainer's own metrics port (no server knows its address, and a batch run is gone when it is scraped), and
the age of the newest delta (a stream may be quiet, and a nightly run publishes once a day).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from freshet_serving.processor.errors import FreshetError
from freshet_serving.processor.package import read_file
from freshet_serving.processor.repository import (
    MAX_TRAINER_NBYTES,
    TRAINER,
    Repository,
    TrainerReport,
    TrainerState,
    parse_trainer_report,
)
from freshet_serving.processor.versions.changes import WarningMessage

SILENT_S = 120.0
"""Age from which a running trainer counts as silent: several reports, and a listing of an object store every 30 s."""


@dataclass(frozen=True, slots=True)
class TrainerStanding:
    """Newest report of a trainer, and the seconds since this server saw it change."""

    report: TrainerReport
    age_s: float

    @property
    def running(self) -> bool:
        return self.report.state is TrainerState.RUNNING

    @property
    def silent(self) -> bool:
        """True if the trainer should report and does not: it is dead, or cut off from the repository."""
        return self.running and self.age_s >= SILENT_S

    @property
    def problem(self) -> str:
        """Reason why somebody should look at the trainer; "" for none."""
        report = self.report
        if self.silent:
            return f"trainer silent for {duration(self.age_s)}"
        if report.state is TrainerState.REFUSED:
            return f"trainer's newest version was refused by the gate{_because(report.gate)}"
        if report.state is TrainerState.FAILED:
            return f"trainer failed{_because(report.error)}"
        if report.trouble and self.running:
            return f"trainer cannot read its stream: {report.trouble}"
        if report.store_trouble and self.running:
            return f"trainer cannot write histories, and publishes nothing: {report.store_trouble}"
        if report.held and self.running:
            return f"trainer's guard holds deltas: {report.held}"
        if report.stale_tables and self.running:
            return f"trainer joins old tables: the newest content of {report.stale_tables} cannot be read"
        return ""

    def describe(self) -> dict[str, Any]:
        return {**asdict(self.report), "age_s": round(self.age_s, 1), "silent": self.silent, "problem": self.problem}


@dataclass(frozen=True, slots=True)
class _Seen:
    """Newest report of a model that could be read, or None, and the file's identity and content (empty: no report).

    `told` is the event that was reported last.
    """

    file: tuple[int, int, int]
    content: bytes = b""
    report: TrainerReport | None = None
    changed_s: float = 0.0
    told: str = ""


class TrainerWatch:
    """The trainers of one repository, as this server sees them."""

    def __init__(self, repository: Repository, now_s: Callable[[], float]) -> None:
        self._repository, self._now_s = repository, now_s
        self._seen: dict[str, _Seen] = {}

    def poll(self, models: Iterable[str]) -> list[str]:
        """Read these models' changed reports; return a line for each trainer that ended, failed or fell silent."""
        now_s = self._now_s()
        lines, seen = list[str](), dict[str, _Seen]()
        for model in models:
            now = self._look(model, self._seen.get(model), now_s, lines)
            if now is not None:
                seen[model] = _told(model, now, now_s, lines)
        self._seen = seen
        return lines

    def standings(self) -> Mapping[str, TrainerStanding]:
        """Return the standing of each model's trainer that has reported. Thread-safe."""
        now_s = self._now_s()
        return {
            model: TrainerStanding(seen.report, max(0.0, now_s - seen.changed_s))
            for model, seen in self._seen.items()
            if seen.report is not None
        }

    def _look(self, model: str, before: _Seen | None, now_s: float, lines: list[str]) -> _Seen | None:
        path = self._repository.root / model / TRAINER
        try:
            status = os.stat(path)
            file = status.st_ino, status.st_mtime_ns, status.st_size
            if before is not None and file == before.file:
                return before
            content = read_file(path, MAX_TRAINER_NBYTES).tobytes()
            if before is not None and content == before.content:
                return replace(before, file=file)
            report = parse_trainer_report(content)
        except FileNotFoundError:
            return None
        except OSError:
            return before
        except FreshetError as error:
            lines.append(WarningMessage(f"{model} ignores the trainer's report: {error}"))
            return replace(before or _Seen(file), file=file, content=b"")
        return _Seen(file, content, report, now_s, before.told if before else "")


def duration(seconds: float) -> str:
    """Return a duration for people, such as "11 min"."""
    minutes = int(seconds) // 60
    if minutes < 1:
        return f"{int(seconds)} s"
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def _told(model: str, seen: _Seen, now_s: float, lines: list[str]) -> _Seen:
    """Add a line when the trainer falls silent, writes again, or its run ends; return what is known now."""
    if seen.report is None:
        return seen
    standing = TrainerStanding(seen.report, max(0.0, now_s - seen.changed_s))
    event = "silent" if standing.silent else f"{seen.report.run} {seen.report.state}"
    if event == seen.told:
        return seen
    if standing.silent or seen.report.state in (TrainerState.FAILED, TrainerState.REFUSED):
        lines.append(WarningMessage(f"{model} {standing.problem}"))
    elif seen.told == "silent":
        lines.append(f"{model} trainer reports again: {seen.report.state}")
    elif seen.told:
        lines.append(f"{model} trainer: {seen.report.state}")
    return replace(seen, told=event)


def _because(reason: str) -> str:
    return f": {reason}" if reason else ""
