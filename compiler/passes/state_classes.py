"""Derive of the user's part what a change of its history leaves as it was: the class of a user's state.

    token-local  what it computes of an event follows from that event alone, wherever the event lies
    causal       what it computes of an event follows from that event and earlier ones
    whole        anything else

and whether an event that is appended leaves what was computed of all earlier events (exact), of all but the newest of
them (last), or not (none).

The graph is not analysed but run on random numbers with random weights: every place of a history is changed in turn,
and what changes is compared to the bit. A dependence that no random number shows has no effect on scores; one that
shows anywhere refuses the class. Weights are random because learned ones may hide a dependence, as HSTU's last product,
which begins at zero.

An output holds a number of columns for each event, one event after another or one number of all events after another.
An output without such columns may depend on no event.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from freshet_serving.compiler.dense.dense_graph import DenseGraph
from freshet_serving.processor.package import SequenceEntry

TOKEN_LOCAL, CAUSAL, WHOLE_STATE = "token-local", "causal", "whole"
EXACT, LAST, NO_APPEND = "exact", "last", "none"
LEAST_PLACES = 4
TRIALS = 2
SCALE = 0.3
"""Deviation of random weights: large enough to tell, and small enough that no softmax is one event's alone."""
Rows = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class StateClass:
    """The class of a user's state: its name, EXACT, LAST or NO_APPEND, and what decided, for people."""

    name: str
    append: str
    why: str

    @property
    def note(self) -> dict[str, str]:
        return {"class": self.name, "append": self.append, "why": self.why}

    def __str__(self) -> str:
        return f"user state: {self.name}, append {self.append}: {self.why}"


def state_class(user: DenseGraph, sequences: Sequence[SequenceEntry]) -> StateClass:
    """Return the class of what a graph of the user computes.

    Its inputs of sequences have the places that `sequences` say, or the first of them.
    """
    read = [s for s in sequences if s.name in user.inputs]
    if len(read) != 1:
        return StateClass(WHOLE_STATE, NO_APPEND, f"expected one history, got {len(read)}")
    probe = _Probe(user, read[0])
    if probe.length < LEAST_PLACES:
        return StateClass(WHOLE_STATE, NO_APPEND, f"expected {LEAST_PLACES} or more events, got {probe.length}")
    ranges = [probe.reach(seed) for seed in range(TRIALS)]
    causal = _first_reason(ranges, lambda place, at: place >= at, "an earlier event's")
    if causal:
        return StateClass(WHOLE_STATE, NO_APPEND, causal)
    append, altered = max(
        (probe.append(seed) for seed in range(TRIALS)), key=lambda found: [EXACT, LAST, NO_APPEND].index(found[0])
    )
    more = f"; an appended event changes {', '.join(altered)} of earlier ones" if altered else ""
    local = _first_reason(ranges, lambda place, at: place == at, "a later event's")
    if local:
        return StateClass(CAUSAL, append, local + more)
    if not all(probe.moves(seed) for seed in range(TRIALS)):
        return StateClass(CAUSAL, append, f"what is computed of an event depends on its place{more}")
    return StateClass(TOKEN_LOCAL, append, f"what is computed of an event follows from that event alone{more}")


Reach = Mapping[str, tuple[int, Mapping[int, NDArray[np.int64]]]]
"""By output, its columns, and by place of a changed event the columns that changed."""


def _first_reason(
    ranges: Sequence[Reach], allowed: Callable[[NDArray[np.int64], int], NDArray[np.bool_]], of_what: str
) -> str:
    """Return why an output has columns that change with events that they may not change with; "" if none has."""
    for reach in ranges:
        for name, (columns, changed) in reach.items():
            for place, indices in changed.items():
                if not len(indices):
                    continue
                length = max(changed) + 1
                if columns % length:
                    return f"{name} depends on events and has no columns for each"
                each = columns // length
                if not any(allowed(at, place).all() for at in (indices // each, indices % length)):
                    return f"{name}: changing an event changes {of_what}"
    return ""


class _Probe:
    """Runs a graph of the user on random histories of `length` places."""

    def __init__(self, user: DenseGraph, s: SequenceEntry) -> None:
        self._user, self._name = user, s.name
        width = user.inputs[s.name][1] or 0
        # A graph for shorter histories has the first places of every column.
        self.length = length = width * s.max_length // s.width
        values, masks, at = list[NDArray[np.int64]](), list[NDArray[np.int64]](), 0
        for c in s.columns:
            # A column of floats has its values in place of a mask.
            dim = c.width // s.max_length - 1
            values.append(at + np.arange(dim * length).reshape(length, dim))
            at += dim * length
            (masks if c.table else values).append(at + np.arange(length)[:, None])
            at += length
        self._values, self._masks = np.concatenate(values, 1), np.concatenate(masks, 1)
        self._times = at + np.arange(length if s.time else 0)

    def reach(self, seed: int) -> Reach:
        """Return what changes with the event of some places."""
        random, run = self._begin(seed)
        inputs = self._inputs(random, self.length)
        base, length = run(inputs), self.length
        changed: dict[str, dict[int, NDArray[np.int64]]] = {name: {} for name in base}
        for place in sorted({0, 1, length // 2, length - 2, length - 1}):
            rows = inputs[self._name].copy()
            rows[0, self._values[place]] = random.standard_normal(self._values.shape[1])
            if len(self._times) and place < length - 1:
                rows[0, self._times[place]] += 100.0
            other = run({**inputs, self._name: rows})
            for name in base:
                changed[name][place] = np.flatnonzero(base[name][0] != other[name][0])
        return {name: (base[name].shape[1], changed[name]) for name in base}

    def append(self, seed: int) -> tuple[str, list[str]]:
        """Return whether earlier events stay when one is appended (EXACT, LAST, NO_APPEND), and outputs that do not."""
        random, run = self._begin(seed)
        events = self.length - 1
        after = self._inputs(random, self.length)
        before = {**after, self._name: after[self._name].copy()}
        rows = before[self._name]
        rows[0, [*self._values[events], *self._masks[events]]] = 0.0
        if len(self._times):
            rows[0, self._times] = np.maximum(rows[0, self._times] - rows[0, self._times[events - 1]], 0.0)
        earlier, later = run(before), run(after)
        first = dict.fromkeys(earlier, events)
        for name in earlier:
            changed = np.flatnonzero(earlier[name][0] != later[name][0])
            if len(changed):
                each = max(1, earlier[name].shape[1] // self.length)
                first[name] = max(int((changed // each).min()), int((changed % self.length).min()))
        newest = min(first.values())
        append = EXACT if newest >= events else LAST if newest == events - 1 else NO_APPEND
        return append, [name for name, place in first.items() if place < events]

    def moves(self, seed: int) -> bool:
        """Report whether what is computed of events moves with them to other places."""
        random, run = self._begin(seed)
        inputs = self._inputs(random, self.length)
        rows, order = inputs[self._name].copy(), random.permutation(self.length)
        for columns in (self._values, self._masks, *([self._times[:, None]] if len(self._times) else [])):
            rows[0, columns] = inputs[self._name][0, columns[order]]
        original, permuted = run(inputs), run({**inputs, self._name: rows})
        return all(self._moved(original[name][0], permuted[name][0], order) for name in original)

    def _moved(self, before: Rows, after: Rows, order: NDArray[np.int64]) -> bool:
        if np.array_equal(before, after):
            return True
        by_event, by_column = before.reshape(self.length, -1), before.reshape(-1, self.length)
        moved = by_event[order].reshape(-1), by_column[:, order].reshape(-1)
        return any(np.allclose(after, rows, rtol=1e-5, atol=1e-6) for rows in moved)

    def _begin(self, seed: int) -> tuple[np.random.Generator, Callable[[Mapping[str, Rows]], Mapping[str, Rows]]]:
        random = np.random.default_rng(seed)
        weights = {
            name: (random.standard_normal(array.shape) * SCALE).astype(np.float32)
            for name, array in sorted(self._user.weights.items())
        }
        return random, lambda inputs: self._user.run(inputs, weights)

    def _inputs(self, random: np.random.Generator, events: int) -> dict[str, Rows]:
        """Return one random user with a history of so many events, whose times are whole seconds."""
        shapes = self._user.spec.input_shapes(1)
        inputs = {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
        rows = inputs[self._name]
        rows[0, self._masks.reshape(-1)] = np.repeat(np.arange(self.length) < events, self._masks.shape[1])
        if len(self._times):
            gaps = random.integers(1, 1000, self.length)
            rows[0, self._times] = np.cumsum(gaps[::-1])[::-1] - gaps[-1]
        return inputs
