"""Attribute a score to the events of a history, by leaving one event at a time out.

The score without an event is that of the same request without it: later events move one place down, and times count
from the newest event that is left. The same executable computes it, under the same generation.

This holds for every network over histories. The changes need not add up to the score: a network lets events interact.

Rejected: attention weights. Each belongs to one layer and one head, and says nothing about the values that it weighs or
the layers above; din and hstu do not normalise them; in sasrec and hstu an event also acts through later ones. An
imported network does not name them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.extensions.explaining.movers import changes, largest_change
from freshet_serving.processor.package import SequenceEntry

MOST_EVENTS = 256
BUDGET_S, LEAST_EVENTS = 2.0, 8

Rows = NDArray[np.float32]


def event_effects(
    sequence: SequenceEntry,
    history: Rows,
    events: int,
    scores: Mapping[str, Rows],
    score: Callable[[Rows], Mapping[str, Rows]],
    row_s: float,
) -> list[dict[str, Any]]:
    """Return how far the score falls without each of the newest events, as JSON, the oldest of them first.

    There are at most MOST_EVENTS, and fewer, but not below LEAST_EVENTS, if they would take longer than BUDGET_S, a row
    taking `row_s`. The sequence's input is float32 [width]; `scores` are those with all events.
    """
    in_time = max(LEAST_EVENTS, int(BUDGET_S / max(row_s, 1e-9)))
    first = max(0, events - min(MOST_EVENTS, in_time))
    if first == events:
        return []
    without = score(np.stack([without_event(sequence, history, events, n) for n in range(first, events)]))
    effects = []
    for n in range(events - first):
        by_output = changes(scores, {name: rows[n] for name, rows in without.items()})
        effects.append({"score_change": largest_change(by_output), "outputs": by_output})
    return effects


def without_event(sequence: SequenceEntry, history: Rows, events: int, event: int) -> Rows:
    """Return a sequence's input, float32 [width], without one event, by its place from 0 for the oldest."""
    shortened, places = history.copy(), sequence.max_length
    for column in sequence.columns:
        # A column of floats has rows of 0, and its values in place of a mask.
        dim = column.width // places - 1
        mask = column.offset + dim * places
        _close(shortened[column.offset : mask].reshape(places, dim), events, event)
        _close(shortened[mask : mask + places], events, event)
    if sequence.time:
        seconds = shortened[sequence.width - places :]
        _close(seconds, events, event)
        if event == events - 1:
            seconds[: events - 1] -= seconds[max(0, events - 2)]
    return shortened


def _close(values: Rows, events: int, event: int) -> None:
    """Move the values of later events one place down, in place."""
    values[event : events - 1] = values[event + 1 : events].copy()
    values[events - 1] = 0.0
