"""Report each window of recorded time as a line of JSON: rows, positives in time and late, calibration.

There is one line a window and one file a day. Lines are rewritten with every commit while they can change. They are
derived from the join's state, so a kill loses and repeats nothing.
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
        positives: Sum of labels that came in time.
        late: Sum of labels of late positives.
        unmatched: Outcomes of this time without a row.
        scores: Sum of served scores.
        weights: Sum of the weights of all emitted rows, late ones included.
    """

    rows: int = 0
    positives: float = 0.0
    late: float = 0.0
    unmatched: int = 0
    scores: float = 0.0
    weights: float = 0.0


_SUMS = tuple(one.name for one in fields(WindowSums))
LAST_S = 1 << 36
"""Upper bound of timestamps in a report, in seconds."""


class JoinWindows:
    """The windows of a join that may still change."""

    def __init__(self, window_s: float, said: Mapping[str, dict[str, Any]] | None = None) -> None:
        """Restore windows.

        Args:
            window_s: Length of a window.
            said: Output of to_json(), or None for no windows.

        Raises:
            Corrupt: `said` is invalid.
        """
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
        """Add figures of rows to their windows.

        Args:
            times_s: Times of the rows, float64 [n].
            **sums: Figures [n], by field name of WindowSums.
        """
        starts = (np.floor(times_s / self._window_s) * self._window_s).astype(np.int64)
        for start in np.unique(starts).tolist():
            mine, window = starts == start, self._sums.setdefault(start, WindowSums())
            for name, values in sums.items():
                kind = type(getattr(window, name))
                setattr(window, name, getattr(window, name) + kind(values[mine].sum()))

    def lines(self, share: float, complete_before_s: float) -> list[dict[str, Any]]:
        """Return the line of every window, ascending.

        Args:
            share: Estimated share of positives that come late.
            complete_before_s: Windows that end by this time are complete: no more outcomes can come.
        """
        made = []
        for start, sums in sorted(self._sums.items()):
            complete = start + self._window_s <= complete_before_s
            entry = {field.name: round(getattr(sums, field.name), 6) for field in fields(sums)}
            label = (sums.positives + sums.late) / sums.weights if sums.weights else 0.0
            expected = sums.positives / (1 - share) / sums.rows if sums.rows else 0.0
            score, against = sums.scores / sums.rows if sums.rows else 0.0, label if complete else expected
            entry |= {"mean_score": round(score, 6), "mean_label": round(label, 6)}
            entry |= {"expected_label": round(expected, 6), "late_share": round(share, 6)}
            entry |= {"calibration": round(score / against, 4) if against else None, "complete": complete}
            made.append({"window": start, "window_s": self._window_s, **entry})
        return made

    def forget(self, before_s: float) -> None:
        """Drop windows that ended before before_s; their lines have been written."""
        for start in [start for start in self._sums if start + self._window_s < before_s]:
            del self._sums[start]


def write_lines(folder: Path, lines: list[dict[str, Any]]) -> None:
    """Write lines to their days' files, replacing lines of the same window.

    Args:
        folder: Folder of the report.
        lines: One line a window.
    """
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
    """Return the newest windows of a report, ascending.

    Args:
        folder: Folder of the report.
        most: Maximum number of windows.
    """
    found: list[dict[str, Any]] = []
    for path in sorted(folder.glob("*.jsonl"), reverse=True):
        found = [*read_lines(path), *found]
        if len(found) >= most:
            break
    return found[-most:]


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the valid lines of a day; [] if the file does not exist."""
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
