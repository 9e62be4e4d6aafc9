"""What a check found, as Markdown."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"


@dataclass(slots=True)
class Outcome:
    """One step. why: of one that was skipped or failed. figures: (what, value). log: its stderr, if it failed."""

    step: str
    meaning: str
    result: str = PASSED
    why: str = ""
    seconds: float = 0.0
    figures: list[list[str]] = field(default_factory=list)
    log: str = ""


def file_name(device: str) -> str:
    """REPORT-<device>.md, with what may stand in a file's name."""
    return f"REPORT-{re.sub(r'[^A-Za-z0-9]+', '-', device).strip('-') or 'unknown'}.md"


def markdown(device: str, about: Mapping[str, str], outcomes: Sequence[Outcome]) -> str:
    lines = [f"# GPU check: {device}", "", "Written by `make gpu-check` (docs/how-to/gpu.md).", ""]
    lines += ["| | |", "|---|---|", *(f"| {_cell(what)} | {_cell(value)} |" for what, value in about.items()), ""]
    lines += ["| step | result | seconds |", "|---|---|---|"]
    for o in outcomes:
        why = f": {o.why}" if o.why else ""
        lines.append(f"| {o.step} | {o.result}{_cell(why)} | {o.seconds:.0f} |")
    for o in outcomes:
        if o.figures:
            lines += ["", f"## {o.step}", "", *_table(o.figures)]
    return "\n".join([*lines, ""])


def _table(figures: Sequence[Sequence[str]]) -> list[str]:
    """Figures in a column; those of several ways ("way, what") in a column for each way."""
    split = [(what.partition(", ")[::2], value) for what, value in figures]
    ways = list(dict.fromkeys(way for (way, _), _ in split))
    if len(ways) == 1 or not all(what for (_, what), _ in split):
        return ["| | |", "|---|---|", *(f"| {_cell(what)} | {_cell(value)} |" for what, value in figures)]
    cells = dict(split)
    lines = [f"| | {' | '.join(map(_cell, ways))} |", "|---|" + "---|" * len(ways)]
    for what in dict.fromkeys(what for (_, what), _ in split):
        lines.append(f"| {_cell(what)} | {' | '.join(_cell(cells.get((way, what), '')) for way in ways)} |")
    return lines


def _cell(text: str) -> str:
    return " ".join(str(text).replace("|", "/").split())
