"""What became of each window of recorded time: rows, positives in time and late, calibration; as lines of JSON.

A line a window, in one file a day, written anew with every commit as long as anything can change: it is a figure of the
join's state, so a kill loses and repeats nothing. mean_label: of the rows as they are learned, weighted;
expected_label: of positives in time, those that are to come late added by the running share; calibration: the mean
score that was served over expected_label, or once the window is complete over mean_label.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.errors import Corrupt
from freshet_serving.processor.package import atomic_file

Float64s = NDArray[np.float64]


@dataclass(slots=True)
class WindowSums:
    """A window's rows and outcomes. weights: of all rows that were emitted, late ones included; late: labels of late
    positives; unmatched: outcomes of this time without a row."""

    rows: int = 0
    positives: float = 0.0
    late: float = 0.0
    unmatched: int = 0
    scores: float = 0.0
    weights: float = 0.0


_SUMS = tuple(one.name for one in fields(WindowSums))
LAST_S = 1 << 36
"""No time that can be told comes after it."""


class JoinWindows:
    """The windows of a join that may still change. window_s: how long each is."""

    def __init__(self, window_s: float, said: Mapping[str, dict[str, Any]] | None = None) -> None:
        """said: what to_json() gave. Raises Corrupt."""
        self._window_s = window_s
        try:
            self._sums = {int(start): WindowSums(**sums) for start, sums in (said or {}).items()}
        except (TypeError, ValueError, AttributeError, OverflowError):
            raise Corrupt("windows: their sums wanted") from None
        if not all(_are_sums(asdict(sums).values()) for sums in self._sums.values()):
            raise Corrupt("windows: sums that are numbers wanted")

    def to_json(self) -> dict[str, dict[str, Any]]:
        return {str(start): asdict(sums) for start, sums in sorted(self._sums.items())}

    def add(self, times_s: Float64s, **sums: Float64s) -> None:
        """Adds figures of rows of these times, by the names of WindowSums."""
        starts = (np.floor(times_s / self._window_s) * self._window_s).astype(np.int64)
        for start in np.unique(starts).tolist():
            mine, window = starts == start, self._sums.setdefault(start, WindowSums())
            for name, values in sums.items():
                kind = type(getattr(window, name))
                setattr(window, name, getattr(window, name) + kind(values[mine].sum()))

    def lines(self, share: float, complete_before_s: float) -> list[dict[str, Any]]:
        """Of every window, ascending. share: of positives that come late; complete: nothing can come any more."""
        made = []
        for start, sums in sorted(self._sums.items()):
            complete = start + self._window_s <= complete_before_s
            told = {field.name: round(getattr(sums, field.name), 6) for field in fields(sums)}
            label = (sums.positives + sums.late) / sums.weights if sums.weights else 0.0
            expected = sums.positives / (1 - share) / sums.rows if sums.rows else 0.0
            score, against = sums.scores / sums.rows if sums.rows else 0.0, label if complete else expected
            told |= {"mean_score": round(score, 6), "mean_label": round(label, 6)}
            told |= {"expected_label": round(expected, 6), "late_share": round(share, 6)}
            told |= {"calibration": round(score / against, 4) if against else None, "complete": complete}
            made.append({"window": start, "window_s": self._window_s, **told})
        return made

    def forget(self, before_s: float) -> None:
        """Drops windows that ended before: their lines have been written."""
        for start in [start for start in self._sums if start + self._window_s < before_s]:
            del self._sums[start]


def write_lines(folder: Path, lines: list[dict[str, Any]]) -> None:
    """Puts lines into their days' files, in place of those of the same window."""
    days: dict[str, list[dict[str, Any]]] = {}
    for line in lines:
        days.setdefault(time.strftime("%Y-%m-%d", time.gmtime(line["window"])), []).append(line)
    for day, mine in days.items():
        path = folder / f"{day}.jsonl"
        folder.mkdir(exist_ok=True)
        known = {line["window"]: line for line in read_lines(path)} | {line["window"]: line for line in mine}
        with atomic_file(path) as file:
            file.writelines(json.dumps(known[window]).encode() + b"\n" for window in sorted(known))


def newest_lines(folder: Path, most: int) -> list[dict[str, Any]]:
    """The newest windows, ascending, of the report in a folder."""
    found: list[dict[str, Any]] = []
    for path in sorted(folder.glob("*.jsonl"), reverse=True):
        found = [*read_lines(path), *found]
        if len(found) >= most:
            break
    return found[-most:]


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a day; [] for none. What is no line of ours is left out."""
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        return []
    return [said for said in map(_said, lines) if _is_line(said)]


def _said(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _is_line(said: Any) -> bool:
    if not isinstance(said, dict) or type(said.get("window")) is not int or not 0 <= said["window"] < LAST_S:
        return False
    sums = [said.get(name) for name in (*_SUMS, "mean_score", "mean_label", "expected_label")]
    calibration = 0.0 if said.get("calibration", "") is None else said.get("calibration")
    return _are_sums([*sums, calibration]) and type(said.get("complete")) is bool


def _are_sums(values: Iterable[Any]) -> bool:
    return all(type(value) in (int, float) for value in values)
