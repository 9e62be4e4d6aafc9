"""What a check found, as Markdown."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.gpu.steps import Step

PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"


@dataclass(slots=True)
class Outcome:
    """One step. why: of one that was skipped or failed. figures: (what, value). log: its stderr, if it failed."""

    step: str
    result: str = PASSED
    why: str = ""
    seconds: float = 0.0
    processor_s: float = 0.0
    figures: list[list[str]] = field(default_factory=list)
    log: str = ""


def file_name(device: str) -> str:
    """REPORT-<device>.md, with what may stand in a file's name."""
    return f"REPORT-{re.sub(r'[^A-Za-z0-9]+', '-', device).strip('-') or 'unknown'}.md"


def markdown(device: str, about: Mapping[str, str], outcomes: Sequence[Outcome], steps: Mapping[str, Step]) -> str:
    lines = [f"# GPU check: {device}", "", "Written by `make gpu-check` (docs/how-to/gpu.md).", ""]
    lines += ["| | |", "|---|---|", *(f"| {_cell(what)} | {_cell(value)} |" for what, value in about.items()), ""]
    lines += ["| step | what it answers | result | seconds | of at most | seconds of processors |"]
    lines += ["|---|---|---|---|---|---|"]
    for o in outcomes:
        answers, budget_s = steps[o.step].answers, steps[o.step].budget_s
        result = f"{o.result}: {o.why}" if o.why else o.result
        lines.append(f"| {o.step} | {answers} | {_cell(result)} | {o.seconds:.0f} | {budget_s} | {o.processor_s:.1f} |")
    seconds, processor_s = sum(o.seconds for o in outcomes), sum(o.processor_s for o in outcomes)
    budget_s = sum(steps[o.step].budget_s for o in outcomes)
    lines.append(f"| all | | | {seconds:.0f} | {budget_s} | {processor_s:.1f} |")
    for o in outcomes:
        if o.figures and o.step != "about":
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
