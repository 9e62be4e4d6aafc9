"""A process of user_memory.py: events of many users, as a run follows them, saves them and reads them again.

It says on its standard output what it begins to do, and at last its own figures as JSON.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from freshet_serving.models.data.user_events import EventRules, UserEvents
from freshet_serving.processor.columns import Column, Strings
from freshet_serving.processor.package import array_crc32, map_file, parse_tensors, write_tensors

KINDS = ("ids", "ids")
BATCH_ROWS, DELTA_ROWS = 4096, 100_000
START_S = 1.7e9


def say(phase: str) -> None:
    print(phase, flush=True)


def keys_of(users: np.ndarray, texts: bool) -> Column:
    """Users as a log has them: numbers, or texts of 16 letters."""
    return Strings.of([f"user-{user:011}" for user in users.tolist()]) if texts else users


def followed(events: UserEvents, order: np.ndarray, rounds: int, texts: bool) -> None:
    """Adds an event of each user a round, in another order each time, as a run reads them and saves deltas."""
    random, row, saved = np.random.default_rng(1), 0, 0
    for _ in range(rounds):
        random.shuffle(order)
        for first in range(0, len(order), BATCH_ROWS):
            users = order[first : first + BATCH_ROWS]
            keys, times = keys_of(users, texts), START_S + row + np.arange(float(len(users)))
            events.add(row, keys, times, np.ones(len(users), bool), [users % 1000, users % 20])
            events.seen(row, keys, times)
            row += len(users)
            if row - saved >= DELTA_ROWS:
                if events.increment(row) is None:
                    events.full(row)
                events.settle(row)
                saved = row


def saved(events: UserEvents, path: Path) -> None:
    """Writes a whole part as a checkpoint has it."""
    arrays = events.full(events.position)
    sums = {name: array_crc32(array) for name, array in arrays.items()}
    with open(path, "wb") as file:
        write_tensors(file, arrays, {"checksums": json.dumps(sums)})


def read(events: UserEvents, path: Path) -> None:
    """Verifies and takes over what saved() wrote."""
    tensors = parse_tensors(map_file(path), path.name)
    sums = json.loads(tensors.metadata["checksums"])
    assert all(array_crc32(array) == sums[name] for name, array in tensors.arrays.items())
    events.restore([tensors.arrays])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--users", type=int, required=True)
    add("--events", type=int, required=True)
    add("--memory-mb", type=int, required=True)
    add("--texts", action="store_true")
    add("--resume", action="store_true", help="read the file instead of following")
    add("file", type=Path)
    options = parser.parse_args()

    def fresh() -> UserEvents:
        stored = "strings" if options.texts else ""
        return UserEvents(EventRules(50), KINDS, options.file.parent, options.memory_mb << 20, stored)

    # What is loaded on first use counts as the process.
    small, path = fresh(), options.file.with_suffix(".small")
    followed(small, np.arange(1000), 2, options.texts)
    saved(small, path)
    read(fresh(), path)
    del small
    order = np.arange(options.users)
    say("begin")
    events = fresh()
    if options.resume:
        say("resume")
        read(events, options.file)
    else:
        say("follow")
        followed(events, order, options.events, options.texts)
        say("save")
        saved(events, options.file)
    say("end")
    figures: dict[str, Any] = {
        "users": len(events),
        "budgeted_nbytes": events.nbytes,
        "file_nbytes": events.file_nbytes,
    }
    figures["table_nbytes"] = events._table_nbytes(0)
    say(json.dumps(figures))


if __name__ == "__main__":
    main()
