"""Train a network on which item comes next: models.training.dense_step with histories instead of labelled rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from freshet_serving.compiler.backends.xla_function import ArraySpec, DeviceArray
from freshet_serving.models.training.batch_part import BatchPart, Write
from freshet_serving.models.training.dense_step import Arguments, DenseStep, fewest_size
from freshet_serving.models.training.next_item_functions import NEVER, NextItemFunctions
from freshet_serving.models.training.worker_pool import even_ranges
from freshet_serving.models.zoo.arch import MIXTURE, USER_VECTOR
from freshet_serving.models.zoo.architectures import NEXT_ITEM
from freshet_serving.models.zoo.dense_input import ColumnSpan, SequenceSpan
from freshet_serving.processor.extensions.top_items.section import item_ranking_note
from freshet_serving.processor.package import Manifest
from freshet_serving.processor.package.item_rows import ItemRows

Float32s = NDArray[np.float32]
Int64s = NDArray[np.int64]

PART_HISTORIES, FEWEST_HISTORIES, NARROWER = 8, 8, 4
FEWEST_CANDIDATES, SIZES = 64, 8
"""Numbers of candidates of executables: powers of two, and SIZES - 1 numbers between each and the next."""


@dataclass(frozen=True, slots=True)
class Targets:
    """Items that the histories of a step are compared with.

    Attributes:
        places: int64 [n, length]: each target's place among the candidates, -1 if it is none of them.
        shares: float32 [n, length]: each target's weight, 0 for no target.
        candidates: float32 [m, d]: rows of items.
        raised: Added to the candidates' logits.
        followed: float32 [n, length, s], each successor's place among the candidates or -1; its share s1; its share s2;
            and [n, length, 2], the target's shares. Empty without successors.
    """

    places: Int64s
    shares: Float32s
    candidates: Float32s
    raised: float
    followed: tuple[Float32s, ...] = ()


class NextItemStep(DenseStep):
    """One optimizer step, called with histories."""

    functions = NextItemFunctions
    numbered: Mapping[str, int] = {"learn": -1}

    def _settings_of(self, function: str) -> str:
        # A user's network depends on unknown code.
        manifest = self._follows_from[0]
        return f"{function} {self._follows_from!r}" if manifest.arch in NEXT_ITEM else ""

    def described(self, manifest: Manifest) -> Manifest:
        """Return the manifest with the network's inputs and outputs, and a note that it ranks items."""
        named = super().described(manifest)
        item = next(f for f in named.features if f.side == "item")
        rows = self.rows
        successors = {"output": MIXTURE, "dim": rows.dim, "count": rows.successors} if rows.successors else None
        return replace(named, notes=named.notes | item_ranking_note(USER_VECTOR, item.name, successors))

    def of_sequence(self, sequence: SequenceSpan, item: ColumnSpan) -> None:
        """Set the sequence in training, with one more event than served, and its column of items."""
        assert isinstance(self._do, NextItemFunctions)
        self._do.sequence, self._do.item = sequence, item
        self._sequence = sequence

    def learn(
        self, rows: int, write: Write, targets: Targets, expected: int = 0
    ) -> tuple[float, list[tuple[int, Float32s]], Float32s]:
        """Compute loss and gradients of histories; move() follows.

        Return the loss, the gradients by the histories in pieces with their first rows, and that by the candidates;
        valid until the next step. The executable for `expected` candidates is compiled at once, instead of one for
        each size up to it.
        """
        parts = self._histories(
            "learn", rows, fewest_size(max(len(targets.candidates), expected), FEWEST_CANDIDATES, SIZES)
        )
        # Compile before threads start.
        self._mover(len(parts))
        state = self.state.held()

        def learned(part: BatchPart) -> list[DeviceArray]:
            part.fill(write)
            self._fill_targets(part, targets)
            return part.compute(state)

        results = self._worker_pool.run([partial(learned, part) for part in parts])
        self._gradients = [result[3] for result in results]
        self.state.passed(results[0][4:])
        self._results = results
        by_candidates = sum(result[2].view()[: len(targets.candidates)] for result in results)
        pieces = [(part.start, result[1].view()[: part.rows]) for part, result in zip(parts, results)]
        return sum(float(result[0].view()) for result in results), pieces, np.ascontiguousarray(by_candidates)

    def states(self, rows: int, write: Write) -> Float32s:
        """Return NextItem.states after each event but the last, float32 [rows, length, d]."""
        state = [self.state.held_vectors()]

        def states_of(part: BatchPart) -> Float32s:
            part.fill(write)
            (states,) = part.compute(state)
            return np.array(states.view()[: part.rows])

        parts = self._histories("states", rows, 0)
        return np.concatenate(self._worker_pool.run([partial(states_of, part) for part in parts]))

    def _histories(self, function: str, rows: int, candidates: int) -> list[BatchPart]:
        ranges = even_ranges(rows, min(self._most, max(1, rows // PART_HISTORIES)))
        return [
            BatchPart(self._io_buffer(function, self._histories_size(stop - start), number, candidates), start, stop)
            for number, (start, stop) in enumerate(ranges)
        ]

    def _histories_size(self, rows: int) -> int:
        """Return the number of histories of a part's executable."""
        full = -(-self._settings.batch_rows // min(self._most, max(1, self._settings.batch_rows // PART_HISTORIES)))
        size = max(full, rows)
        while size // NARROWER >= max(rows, FEWEST_HISTORIES):
            size //= NARROWER
        return size

    def _takes(self, function: str, size: int, distinct: int) -> Arguments:
        """Return the arguments for `size` histories and, of learn(), `distinct` candidates."""
        if function not in ("learn", "states"):
            return super()._takes(function, size, distinct)
        s, item = self._sequence, self.rows.dense
        inputs = {s.name: ArraySpec((size, s.width))}
        vectors, *other = self.state.specs()
        if function == "states":
            return inputs, [], [vectors]
        all_targets = (size * (s.max_length - 1),)
        more = [ArraySpec((distinct, item)), ArraySpec((distinct,)), *[ArraySpec(all_targets)] * 3, ArraySpec((1,))]
        if count := 2 * self.rows.successors:
            more += [ArraySpec((*all_targets, many)) for many in (count, count, count, 2)]
        return inputs, [*more, ArraySpec((1,))], [vectors, *other]

    @property
    def rows(self) -> ItemRows:
        """The items' rows."""
        assert isinstance(self._do, NextItemFunctions)
        return self._do.rows

    @staticmethod
    def _fill_targets(part: BatchPart, targets: Targets) -> None:
        candidates, raised, places, shares, order, count, *followed, _ = part.io_buffer.more
        used = len(targets.candidates)
        candidates[:used], candidates[used:] = targets.candidates, 0.0
        raised[:used], raised[used:] = targets.raised, NEVER
        weights = targets.shares[part.start : part.stop].reshape(-1)
        places[: len(weights)] = targets.places[part.start : part.stop].reshape(-1)
        shares[: len(weights)], shares[len(weights) :] = weights, 0.0
        real = shares > 0
        order[...] = np.concatenate([np.flatnonzero(real), np.flatnonzero(~real)])
        count[0] = real.sum()
        for filled, values in zip(followed, targets.followed):
            # The place of a share of 0 does not matter.
            filled[: len(weights)] = values[part.start : part.stop].reshape(len(weights), -1)
            filled[len(weights) :] = 0.0
