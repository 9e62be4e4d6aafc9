"""The page of `make bench`: ratios with their goals, then what they were made of. No hosts, no paths."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from loadtest.reports.report import spread, table, told

Document = Mapping[str, Any]


def markdown(results: Iterable[Document]) -> str:
    """results: as in bench.json, in order."""
    results = list(results)
    parts = [
        "# Benchmarks",
        "Every figure is a ratio of two things measured in turn in one run on one machine: the median over rounds, "
        "from the lower to the upper quartile unless a note says otherwise. Absolute figures are given for "
        "orientation; they are those of a machine that others share.",
        summary(results),
    ]
    for result in results:
        parts += [f"## {result['title']}", _conditions(result)]
        if result["rows"]:
            rows = [[_text(r["what"]), *_ratio(r), _goal(r)] for r in result["rows"]]
            parts.append(table(["ratio", "median", "from, to", "rounds", "goal"], rows))
        if result["checks"]:
            checks = [[_text(what), "yes" if held else "NO", _text(seen)] for what, held, seen in result["checks"]]
            parts.append(table(["what must hold", "held", "seen"], checks))
        if result["facts"]:
            parts.append(
                table(["measured", "figure"], [[_text(what), _text(figure)] for what, figure in result["facts"]])
            )
        parts += [f"Not run: {_text(name)}: {_text(why)}" for name, why in result["refused"].items()]
        parts += result["notes"]
    return "\n\n".join(parts) + "\n"


def summary(results: Iterable[Document]) -> str:
    """The ratios that have a goal, and the checks, as one table."""
    rows = []
    for result in results:
        rows += [[_text(r["what"]), told(r["ratio"]["median"]), _goal(r)] for r in result["rows"] if r["goal"]]
        rows += [[_text(what), _text(seen), "met" if held else "NOT met"] for what, held, seen in result["checks"]]
    return table(["what", "figure", "goal"], rows)


def unmet(results: Iterable[Document]) -> list[str]:
    """What of the results fell short of its goal, or did not hold."""
    found = []
    for result in results:
        found += [r["what"] for r in result["rows"] if r["met"] is False]
        found += [what for what, held, _ in result["checks"] if not held]
    return found


def _conditions(result: Document) -> str:
    m, s, made = result["machine"], result["settings"], result["origin"]
    quick = " Quick run: too short to rely on." if s["quick"] else ""
    servers = "; ".join(f"{name}: {layout}" for name, layout in result["layouts"].items())
    turns = f", turns of {s['seconds']:g} s" if s["seconds"] else ""
    return (
        f"`{made['command']}`, {made['date']}. {m['cores']} cores of {m['cpu']}, Python {m['python']}, load average "
        f"before {m['load_average']}; {s['rounds']} rounds{turns}, 26 tables of {s['table_rows']} rows."
        + (f" Servers: {servers}." if servers else "")
        + quick
    )


def _ratio(row: Document) -> list[str]:
    r = row["ratio"]
    return [told(r["median"]), spread(r), str(r["rounds"])]


def _goal(row: Document) -> str:
    if row["goal"] is None:
        return ""
    sign, bound = row["goal"]
    return f"{sign} {bound:g}: {'met' if row['met'] else 'NOT met'}"


def _text(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
