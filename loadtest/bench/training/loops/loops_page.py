"""The report of the training loops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from loadtest.bench.training.loops.followed import EQUAL, FAILED, REFUSED, WRONG, Loop
from loadtest.reports.report import opening, table


def page(loops: Sequence[Loop], doc: str, about: Mapping[str, Any]) -> str:
    """Return training-loops.md.

    Args:
        loops: What became of each network's loop.
        doc: How it was measured.
        about: machine() and origin() of the run.
    """
    counts = {
        verdict: [loop for loop in loops if loop.verdict == verdict] for verdict in (EQUAL, WRONG, REFUSED, FAILED)
    }
    requests = sum(loop.requests for loop in loops)
    said = ", ".join(f"{len(those)} {verdict}" for verdict, those in counts.items())
    header = ["network", "package", "deltas", "requests", "off by at most", "verdict", "seconds"]
    rows = [
        [loop.network, loop.served, loop.deltas, loop.requests, f"{loop.worst:.1e}", loop.verdict, round(loop.seconds)]
        for loop in loops
    ]
    lines = opening("Training loops", doc, about)
    lines += [f"{len(loops)} networks, {requests} requests: {said}.", "", table(header, rows)]
    reasons = [f"- {loop.network}: {loop.verdict}, {loop.message}" for loop in loops if loop.message]
    return "\n".join([*lines, *(["", *reasons] if reasons else [])]) + "\n"


def passed(loops: Sequence[Loop]) -> bool:
    """Return whether nothing was wrong or failed."""
    return all(loop.verdict in (EQUAL, REFUSED) for loop in loops)
