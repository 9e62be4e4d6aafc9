"""Report each window of recorded time as a line of JSON: rows, positives in time and late, calibration.

One line a window and one file a day. Lines are rewritten with every commit while they can change, from the join's
state, so a kill loses and repeats nothing.
- mean_label: weighted mean label of the rows as emitted for training.
- expected_label: share of positives in time, scaled up by the current estimate of the late share.
- calibration: mean served score over expected_label, or over mean_label once the window is complete.
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
    """Sums over the rows and outcomes of a window.

    Attributes:
        positives: Of labels that came in time.
        late: Of labels of late positives.
        unmatched: Outcomes of this time without a row.
        weights: Of all emitted rows, late ones included.
    """

    rows: int = 0
    positives: float = 0.0
    late: float = 0.0
    unmatched: int = 0
    scores: float = 0.0
    weights: float = 0.0


_SUMS = tuple(sums.name for sums in fields(WindowSums))
LAST_S = 1 << 36
"""Upper bound of timestamps in a report, in seconds."""


class JoinWindows:
    def __init__(self, window_s: float, said: Mapping[str, dict[str, Any]] | None = None) -> None:
        """Restore windows of window_s seconds from to_json(), or start with none. Raises Corrupt."""
        self._window_s = window_s
        try:
            self._sums = {int(start): WindowSums(**sums) for start, sums in (said or {}).items()}
        except (TypeError, ValueError, AttributeError, OverflowError):
            raise Corrupt("windows: expected sums for each window") from None
        if not all(_are_sums(asdict(sums).values()) for sums in self._sums.values()):
            raise Corrupt("windows: expected numbers as sums")

    def to_json(self) -> dict[str, dict[str, Any]]:
        return {str(start): asdict(sums) for start, sums in sorted(self._sums.items())}

    def add(self, times_s: Float64s, **sums: Float64s) -> None:
        """Add figures [n] of rows, by field name of WindowSums, to the windows of their times [n]."""
        starts = (np.floor(times_s / self._window_s) * self._window_s).astype(np.int64)
        for start in np.unique(starts).tolist():
            rows, window = starts == start, self._sums.setdefault(start, WindowSums())
            for name, values in sums.items():
                kind = type(getattr(window, name))
                setattr(window, name, getattr(window, name) + kind(values[rows].sum()))

    def lines(self, share: float, complete_before_s: float) -> list[dict[str, Any]]:
        """Return the line of every window, ascending; those that end by complete_before_s can have no more outcomes.

        `share` is the estimated share of positives that come late.
        """
        lines = []
        for start, sums in sorted(self._sums.items()):
            complete = start + self._window_s <= complete_before_s
            entry = {field.name: round(getattr(sums, field.name), 6) for field in fields(sums)}
            label = (sums.positives + sums.late) / sums.weights if sums.weights else 0.0
            expected = sums.positives / (1 - share) / sums.rows if sums.rows else 0.0
            score, against = sums.scores / sums.rows if sums.rows else 0.0, label if complete else expected
            entry |= {"mean_score": round(score, 6), "mean_label": round(label, 6)}
            entry |= {"expected_label": round(expected, 6), "late_share": round(share, 6)}
            entry |= {"calibration": round(score / against, 4) if against else None, "complete": complete}
            lines.append({"window": start, "window_s": self._window_s, **entry})
        return lines

    def forget(self, before_s: float) -> None:
        """Drop windows that ended before before_s; their lines have been written."""
        for start in [start for start in self._sums if start + self._window_s < before_s]:
            del self._sums[start]


def write_lines(folder: Path, lines: list[dict[str, Any]]) -> None:
    """Write lines, one a window, to their days' files, replacing lines of the same window."""
    days: dict[str, list[dict[str, Any]]] = {}
    for line in lines:
        days.setdefault(time.strftime("%Y-%m-%d", time.gmtime(line["window"])), []).append(line)
    for day, new in days.items():
        path = folder / f"{day}.jsonl"
        folder.mkdir(exist_ok=True)
        by_window = {line["window"]: line for line in [*read_lines(path), *new]}
        with atomic_file(path) as file:
            file.writelines(json.dumps(by_window[window]).encode() + b"\n" for window in sorted(by_window))


def newest_lines(folder: Path, most: int) -> list[dict[str, Any]]:
    """Return the newest windows of a report, at most `most`, ascending."""
    lines: list[dict[str, Any]] = []
    for path in sorted(folder.glob("*.jsonl"), reverse=True):
        lines = [*read_lines(path), *lines]
        if len(lines) >= most:
            break
    return lines[-most:]


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the valid lines of a day; [] if the file does not exist."""
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        return []
    return [entry for entry in map(_parsed, lines) if _is_line(entry)]


def _parsed(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _is_line(entry: Any) -> bool:
    if not isinstance(entry, dict) or type(entry.get("window")) is not int or not 0 <= entry["window"] < LAST_S:
        return False
    sums = [entry.get(name) for name in (*_SUMS, "mean_score", "mean_label", "expected_label")]
    calibration = 0.0 if entry.get("calibration", "") is None else entry.get("calibration")
    return _are_sums([*sums, calibration]) and type(entry.get("complete")) is bool


def _are_sums(values: Iterable[Any]) -> bool:
    return all(type(value) in (int, float) for value in values)
