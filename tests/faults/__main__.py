"""`make faults`: see tests.faults. FAULTS_ARGS="--minutes 5 --seed 2 --only default".

Ends with 1 when anything happened that must not. Another run with the same seed draws the same kinds in the same order;
what they meet is never quite the same.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.faults.damage import Skipped
from tests.faults.field import SETUPS, Field
from tests.faults.injections import INJECTIONS
from tests.faults.page import Outcome, page

RESULTS = Path(__file__).parents[2] / "loadtest" / "results"
# Of the minutes.
SHARES = {"default": 0.32, "one process": 0.26, "memory budget": 0.12, "Redis": 0.12, "two servers": 0.12}
SHARES["a clock that steps"] = 0.06
QUIET_EVERY = 40


def campaign(setup, seconds, seed, folder, kinds=INJECTIONS, most=sys.maxsize):
    """One field for so long, or so many injections; its Outcome."""
    draw, outcome = random.Random(f"{seed} {setup.name}"), Outcome(setup.name, seconds)
    with Field(folder, setup, seed) as field:
        number, give_up_s = 0, time.monotonic() + seconds
        while time.monotonic() < give_up_s and number < most:
            injection = draw.choices(kinds, [k.weight for k in kinds])[0]
            number += 1
            try:
                injection.run(field, draw)
                outcome.done[injection.name] += 1
            except Skipped as why:
                outcome.skipped[injection.name] = str(why)
            except Exception as error:
                field.tally.fault("harness", f"{injection.name}: {error!r}")
            if number % QUIET_EVERY == 0:
                field.quiet()
                left_s = max(0.0, give_up_s - time.monotonic())
                print(f"{setup.name}: {outcome.done.total()} injections, {field.tally.counts['checked']} replies "
                      f"checked, {len(field.tally.faults)} faults, {left_s:.0f} s left", flush=True)  # fmt: skip
        field.quiet()
        outcome.changes = field.committer.counts.copy()
        outcome.acknowledged = len(field.committer.acknowledged)
        outcome.guarded = Counter(kind for _, _, kind in field.committer.guarded)
    outcome.counts, outcome.faults = field.tally.counts, field.tally.faults
    return outcome


def main() -> int:
    """0 when nothing happened that must not."""
    parser = argparse.ArgumentParser(prog="make faults", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0, help="in all [60]")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="setups, separated by commas: " + ", ".join(SETUPS))
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the report")
    options = parser.parse_args()
    names = [name.strip() for name in options.only.split(",") if name.strip()] or list(SETUPS)
    whole = sum(SHARES[name] for name in names)
    root = Path(tempfile.mkdtemp(prefix="freshet-faults-"))
    outcomes = []
    for n, name in enumerate(names):
        folder = root / str(n)
        folder.mkdir()
        seconds = options.minutes * 60 * SHARES[name] / whole
        outcomes.append(campaign(SETUPS[name], seconds, options.seed, folder))
        shutil.rmtree(folder, ignore_errors=True)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "faults.md").write_text(page(outcomes, options.seed, "make faults"))
    print(page(outcomes, options.seed, "make faults"))
    return 1 if any(o.faults for o in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
