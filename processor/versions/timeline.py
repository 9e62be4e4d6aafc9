"""Timeline of a version: its newest records in a form for people, each with its state on this server.

Any thread may call it while the writer goes on: links and events are immutable and copied in one step, so a timeline is
at most one record behind. It takes no lock, walks over as many links as it reports, and reads the header of at most
MOST_READ files of deltas that are not served yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from itertools import islice
from typing import Any

from freshet_serving.processor.errors import FreshetError
from freshet_serving.processor.package import rows_of_file
from freshet_serving.processor.repository import DELTA, ChainLink, ChainRecord, History
from freshet_serving.processor.versions.delta_checks import DeltaEntry
from freshet_serving.processor.versions.log_applier import LogApplier
from freshet_serving.processor.versions.served_version import ServedVersion
from freshet_serving.processor.watching import Figure

MOST, MOST_READ = 500, 100
STATES = SERVED, CURRENT, UNDONE, WAITS = "served", "current", "undone", "waits"
"""State of a delta: part of what is served, the newest part of it, undone, or not served yet."""


def timeline(version: ServedVersion, log_applier: LogApplier, most: int) -> dict[str, Any]:
    """Return at most `most` newest records of a version, newest first, as a JSON-able dict."""
    history, entries = log_applier.change_log.history, log_applier.checks.log.entries()
    links = [link for link in islice(reversed(history.links.values()), most) if link.record is not None]
    records = [*(link.record for link in links if link.record), *islice(reversed(history.events), most)]
    records = sorted(records, key=lambda record: record.number, reverse=True)[:most]
    states = _states(history, links, version.digest)
    number = version.manifest.version
    waiting = [link for link in links if states[link.digest] == WAITS and link.digest not in entries][:MOST_READ]
    rows = {link.digest: _rows(log_applier, link) for link in waiting}
    return {
        "model": version.manifest.model,
        "version": number,
        "generation": str(version.generation),
        "published_at": version.manifest.created_at,
        "chain": asdict(log_applier.status),
        "gate": f"{number}.{history.gate.step}" if history.gate else None,
        "first": f"{number}.{history.base.step}",
        "entries": [_entry(version, record, states, entries, rows) for record in records],
    }


def _rows(log_applier: LogApplier, link: ChainLink) -> int | None:
    """Return the rows of a delta that this server has not read yet; None if its file cannot be read."""
    try:
        return rows_of_file(log_applier.change_log.path_of(link))
    except FreshetError:
        return None


def _states(history: History, links: list[ChainLink], served: str) -> dict[str, str]:
    if not links:
        return {}
    lowest = min(link.step for link in links)
    states = {link.digest: UNDONE for link in links}
    # Deltas newer than the served one are waiting; older ones are part of what is served.
    state = WAITS if any(link.digest == served for link in history.back(history.head)) else SERVED
    for link in history.back(history.head):
        if link.step < lowest:
            break
        if link.digest == served:
            state = SERVED
        states[link.digest] = CURRENT if link.digest == served else state
    return states


def _entry(
    version: ServedVersion,
    record: ChainRecord,
    states: dict[str, str],
    entries: dict[str, DeltaEntry],
    rows: dict[str, int | None],
) -> dict[str, Any]:
    number = record.version
    entry: dict[str, Any] = {
        "number": record.number,
        "kind": record.kind,
        "generation": f"{number}.{record.step}",
        "parent": f"{number}.{record.parent_step}",
        "at": record.at,
        "reason": record.why,
    }
    if record.kind != DELTA:
        return entry
    served = entries.get(record.digest)
    return {
        **entry,
        "digest": record.digest,
        "nbytes": record.nbytes,
        "rows": served.rows if served else rows.get(record.digest),
        "state": states.get(record.digest, UNDONE),
        "in_memory": version.step_of(record.digest) is not None,
        "here": _here(served) if served else None,
    }


def _here(entry: DeltaEntry) -> dict[str, Any]:
    figures = [figure._asdict() for figure in entry.figures]
    return {**asdict(entry), "figures": figures, "score_shift": score_shift(entry.figures)}


def score_shift(figures: Sequence[Figure]) -> float | None:
    """Return the mean score's move, for the output that moved furthest; None if nothing was scored."""
    return max((figure.value for figure in figures if figure.kind == "bias"), default=None)
