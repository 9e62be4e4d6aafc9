"""The report of a campaign: what was done, what it cost, what must not have happened."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Outcome:
    """What came of one field. done, skipped: by kind. counts: of requests. faults: texts; changes: by way.
    guarded: what guards wrote, by kind."""

    setup: str
    seconds: float
    done: Counter = field(default_factory=Counter)
    skipped: dict = field(default_factory=dict)
    counts: Counter = field(default_factory=Counter)
    changes: Counter = field(default_factory=Counter)
    acknowledged: int = 0
    guarded: Counter = field(default_factory=Counter)
    faults: list = field(default_factory=list)


# What must not have happened, by the kinds of Tally.fault.
NEVER = {
    "wrong or mixed replies": ("wrong", "unreadable"),
    "acknowledged generations lost": ("lost",),
    "servers that did not come to serve the newest": ("behind", "not whole again", "not replaced", "no end"),
    "requests lost that nothing excuses": ("refused", "lost reply"),
    "changes refused that nothing excuses": ("change refused",),
    "strangers, bad files and bad deltas answered wrong": ("hostile", "bad delta", "bad file", "torn file"),
    "mistakes of this harness": ("harness",),
}


def page(outcomes, seed, command):
    counts = sum((o.counts for o in outcomes), Counter())
    done = sum((o.done for o in outcomes), Counter())
    lines = [
        "# Faults",
        "",
        f"`{command}`, seed {seed}: {done.total():,} injections in {sum(o.seconds for o in outcomes) / 60:.0f} "
        f"minutes, {counts['checked']:,} replies recomputed for the generation that they name, "
        f"{sum(o.changes.total() for o in outcomes):,} changes of repositories, {counts['quiet']:,} times that all was "
        "quiet and every server had to serve the newest generation.",
        "",
        "| what must not happen | seen |",
        "|---|---:|",
        *(f"| {text} | {sum(counts[kind] for kind in kinds)} |" for text, kinds in NEVER.items()),
        "",
        "What it cost, each lost while something was done that excuses it: requests in flight on a process that was "
        "killed, refused while it was started anew.",
        "",
        "| lost to | requests |",
        "|---|---:|",
        *(f"| {kind} | {n:,} |" for kind, n in sorted(counts.items()) if " by " in kind),
        f"| shed by a full queue | {counts['shed']:,} |",
        "",
        "| injected | " + " | ".join(o.setup for o in outcomes) + " |",
        "|---|" + "---:|" * len(outcomes),
    ]
    for kind in sorted(set(done) | {k for o in outcomes for k in o.skipped}):
        cells = [f"{o.done[kind]:,}" if kind not in o.skipped or o.done[kind] else "-" for o in outcomes]
        lines.append(f"| {kind} | " + " | ".join(cells) + " |")
    rows = {"replies checked": lambda o: o.counts["checked"], "changes": lambda o: o.changes.total(),
            "generations acknowledged, on disk at the end": lambda o: o.acknowledged,
            "held by a guard": lambda o: o.guarded["hold"], "released automatically": lambda o: o.guarded["release"],
            "taken back by a guard": lambda o: o.guarded["rollback"]}  # fmt: skip
    lines += [f"| **{text}** | " + " | ".join(f"{of(o):,}" for o in outcomes) + " |" for text, of in rows.items()]
    faults = [f"- {o.setup}: {text}" for o in outcomes for text in o.faults]
    return "\n".join([*lines, "", *(["## Faults", "", *faults, ""] if faults else [])])
