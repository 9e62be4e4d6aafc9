"""The page of `make -C loadtest models`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from loadtest.bench.foreign_models.catalogue import ForeignEntry
from loadtest.bench.foreign_models.row_copy import CONSTANT, FOLLOWS, HALF, REFUSED, UNTOLD
from loadtest.bench.foreign_models.trial import STAGE, WHOLE
from loadtest.reports.report import opening, table

SERVED = (WHOLE, STAGE)
UNTRIED: dict[str, Any] = {"status": "not tried", "message": ""}
ABOUT = """Page of foreign models.

Each model of a committed list (loadtest/bench/foreign_models/*.toml) is built by its framework in an environment
of its own, with 200 rows of inputs and what the framework makes of them; imported by `freshet import`; served in
process; and compared. Served means that every output is served, within 1e-5 (absolute or relative) of the framework;
whatever else happens counts as a miss, refusals and models that could not be built included.

*Tables*: tables of the package, which take deltas. *Row copy*: of the tables that the framework has, those that follow:
one row is published as a copy of another, and both ids then score alike in every place where the model looks the table
up. *refused*: publishing such a row is refused, since the package reads it as a constant too. *constant*: no table of
the package has the row, and no place follows. *half served*: published and served, and some places follow, some not.
*Seconds*: of processor time of the import, start of Python and TensorFlow included; *S*: the importer needed samples.
"""


def page(listed: Sequence[ForeignEntry], aim: int, about: Mapping[str, Any]) -> str:
    """Return the report.

    Args:
        listed: The models.
        aim: How many of them are to be served.
        about: machine(), origin() and results by model; models without one count as misses.
    """
    results = {entry.name: about["results"].get(entry.name, UNTRIED) for entry in listed}
    served = sum(found["status"] in SERVED for found in results.values())
    copied = Counter(row["verdict"] for found in results.values() for row in found.get("row_copy", []))
    lines = opening("Models of other frameworks", ABOUT, about)
    lines += [
        f"**{served} of {len(listed)} served** (aim: {aim}); their tables: {copied[FOLLOWS]} follow deltas in every "
        f"use, {copied[REFUSED]} refuse them, {copied[CONSTANT]} are constants, {copied[HALF]} are half served, "
        f"{copied[UNTOLD]} could not be checked.",
        "",
    ]
    families = list(dict.fromkeys((entry.family, entry.title) for entry in listed))
    summary = ("family", "models", "whole", "with a stage", "missed", "tables", "follow", "refused", "constant", "half")
    lines += [table(summary, [_summary(title, _of(family, listed), results) for family, title in families]), ""]
    for family, title in families:
        lines += [f"## {title}", ""]
        header = ("model", "outcome", "abs / rel error", "tables", "row copy", "seconds", "note")
        lines += [table(header, [_row(entry, results[entry.name]) for entry in _of(family, listed)]), ""]
    return "\n".join(lines)


def _of(family: str, listed: Sequence[ForeignEntry]) -> list[ForeignEntry]:
    return [entry for entry in listed if entry.family == family]


def _summary(title: str, mine: Sequence[ForeignEntry], results: Mapping[str, Any]) -> list[Any]:
    found = [results[entry.name] for entry in mine]
    statuses = Counter(one["status"] for one in found)
    copied = Counter(row["verdict"] for one in found for row in one.get("row_copy", []))
    missed = len(mine) - sum(statuses[status] for status in SERVED)
    tables = sum(one.get("tables", 0) for one in found)
    counts = [copied[verdict] for verdict in (FOLLOWS, REFUSED, CONSTANT, HALF)]
    return [title, len(mine), statuses[WHOLE], statuses[STAGE], missed, tables, *counts]


def _row(entry: ForeignEntry, found: Mapping[str, Any]) -> list[Any]:
    error = f"{found['abs']:.0e} / {found['rel']:.0e}" if "abs" in found else ""
    rows = found.get("row_copy", [])
    follow = sum(row["verdict"] == FOLLOWS for row in rows)
    notes = [entry.about, found["message"]]
    notes += [f"{row['table']}: {row['verdict']} ({', '.join(row['uses'])})" for row in rows if row["uses"]]
    notes += ["the whole model is the stage"] if found.get("stage") == "whole" else []
    copied = f"{follow} of {len(rows)}" if rows else ""
    seconds = f"{found['processor_s']:.1f}{' S' if found.get('samples') else ''}" if "processor_s" in found else ""
    note = "; ".join(note.replace("|", "/") for note in notes if note)
    return [entry.name, found["status"], error, found.get("tables", ""), copied, seconds, note]
