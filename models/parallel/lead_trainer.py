"""Rank 0's trainer: a Trainer with whole tables, as the run, its checkpoints and its change log expect.

Each method announces an operation and does this rank's share of it (models.parallel.commands). Batches go to the other
ranks when they are transformed, ahead of learning, on a separate channel; commands name them by number.

Invariants: one operation at a time, whichever threads call. Batches are learned in ascending order of their numbers,
some never. Weights assigned to the network, from a checkpoint for example, reach every process before the next batch is
learned or scored. close() ends all ranks and is always called.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.models.config.model_section import ONE_LABEL, NetworkConfig
from freshet_serving.models.config.table_sections import TableConfig
from freshet_serving.models.config.train_section import TrainSettings
from freshet_serving.models.data.prefetch import PrefetchPipeline
from freshet_serving.models.data.source import Batch
from freshet_serving.models.parallel.batch_slices import encoded, slice_of
from freshet_serving.models.parallel.commands import HANDLERS, CommandHeader, RankCommand, send_command
from freshet_serving.models.parallel.gathered_table import GatheredTable
from freshet_serving.models.parallel.rank_trainer import NO_ROWS, RankTrainer
from freshet_serving.models.parallel.ranks import Array, Bytes, Ranks, receive_arrays
from freshet_serving.models.training.losses import mean_shares
from freshet_serving.models.training.trainer import BoundBatch
from freshet_serving.processor.columns import Column
from freshet_serving.processor.package import Manifest

Float32s = NDArray[np.float32]
NUMBER_NBYTES, NO_MORE = 8, 0


@dataclass(frozen=True, slots=True)
class SharedBatch(BoundBatch):
    """A transformed batch of which `bound`, `label` and `share` (weights in the whole loss) are this rank's rows.

    The other ranks identify their slices by `number`.
    """

    label: Float32s
    share: Float32s
    number: int


class LeadTrainer(RankTrainer):
    """The trainer of rank 0."""

    def __init__(
        self,
        ranks: Ranks,
        batches: Ranks,
        manifest: Manifest,
        settings: TrainSettings,
        network: NetworkConfig = ONE_LABEL,
        fusion: Mapping[str, str] | None = None,
        tables: Mapping[str, TableConfig] | None = None,
        scratch: Path | None = None,
    ) -> None:
        """Create the trainer; `batches` is the channel for batches sent ahead of their operations on `ranks`."""
        super().__init__(ranks, manifest, settings, network, fusion, tables, scratch)
        self.tables = {name: GatheredTable(self, n, table) for n, (name, table) in enumerate(self.own.items())}
        # Single processes have tiers, and do not report them.
        self.tiers = {}
        self.batches, self._numbered = batches, 0
        self._turn, self._numbering = threading.RLock(), threading.Lock()
        self._told: tuple[Any, int] = (None, 0)
        self._inputs = [i.name for i in manifest.inputs]

    @property
    def processes(self) -> int:
        return self.ranks.size

    def transform(self, batch: Batch) -> SharedBatch:
        """Send every rank its slice of a batch and bind this rank's rows. Thread-safe."""
        with self.profile.timed("transform"):
            rows, share = len(batch), mean_shares(len(batch), batch.weight)
            slices = [slice_of(rows, to, self.processes) for to in range(self.processes)]
            messages = [encoded(batch.columns, self._inputs, batch.label, share, *s) for s in slices[1:]]
            with self._numbering:
                self._numbered += 1
                number = self._numbered
                for to, message in enumerate(messages, 1):
                    self.batches.post(to, _numbered(number, message))
            local = batch.slice(*slices[0])
            bound = self.plan.bind_inputs(local.columns) if len(local) else NO_ROWS
            return SharedBatch(batch, bound, local.label, share[: len(local)], number)

    def with_prefetched_rows(
        self, items: PrefetchPipeline, works: Callable[[Any], list[BoundBatch]] = lambda work: [work]
    ) -> PrefetchPipeline:
        """Return the items unchanged: rows on disk are read only when a batch names them."""
        return items

    def learn(self, given: Batch | BoundBatch) -> float:
        work = given if isinstance(given, SharedBatch) else self.transform(_batch(given))
        with self._turn:
            self._announce_batch(RankCommand.LEARN, work)
            return self.learn_local(work.bound, work.label, work.share)

    def score(self, given: Mapping[str, Column] | BoundBatch) -> Float32s:
        work = self._shared(given)
        with self._turn:
            self._announce_batch(RankCommand.SCORE, work)
            scores = [
                self.score_local(work.bound),
                *(receive_arrays(self.ranks, of)[0] for of in range(1, self.processes)),
            ]
            return np.concatenate([each for each in scores if len(each)])

    def learn_scored(self, work: BoundBatch) -> tuple[float, Float32s]:
        scores = self.score(work)
        return self.learn(work), scores

    def dense_inputs(self, given: Mapping[str, Column] | BoundBatch) -> dict[str, Float32s]:
        work = self._shared(given)
        with self._turn:
            self._announce_batch(RankCommand.POOL, work)
            local = self.pool_local(work.bound)
            parts = [[*local.values()], *(receive_arrays(self.ranks, of) for of in range(1, self.processes))]
            return {name: np.concatenate(arrays) for name, arrays in zip(local, zip(*parts))}

    def evict(self) -> int:
        return sum(int(count[0]) for (count,) in self.call_all(RankCommand.EVICT))

    def clear(self) -> None:
        self.call_all(RankCommand.CLEAR)

    def call_all(
        self, operation: RankCommand, number: int = 0, given: Sequence[Sequence[Array]] | None = None
    ) -> list[list[Array]]:
        """Run an operation on every rank (models.parallel.gathered_table.RankRpc)."""
        with self._turn:
            send_command(self.ranks, CommandHeader(operation, self.steps, number), given)
            local = HANDLERS[operation](self, number, list(given[0]) if given is not None else [])
            return [local, *(receive_arrays(self.ranks, of) for of in range(1, self.processes))]

    def close(self, failed: str = "") -> None:
        """End all ranks; `failed` is the reason if the run did not complete."""
        if failed:
            self.ranks.fail(failed)
            return
        send_command(self.ranks, CommandHeader(RankCommand.END, self.steps))
        for to in range(1, self.processes):
            self.batches.send(to, _numbered(NO_MORE, np.empty(0, np.uint8)))

    def _shared(self, work: Mapping[str, Column] | BoundBatch) -> SharedBatch:
        if isinstance(work, SharedBatch):
            return work
        if isinstance(work, BoundBatch):
            return self.transform(work.batch)
        labels = len(self.dense.arch.outputs)
        rows = self.plan.bind_inputs(work).rows
        label = np.zeros((rows, labels) if labels > 1 else rows, np.float32)
        return self.transform(Batch(dict(work), label, None, 0))

    def _announce_batch(self, operation: RankCommand, work: SharedBatch) -> None:
        state = self.dense.state
        if self._told != (state, state.assigned):
            self._told = state, state.assigned
            self.call_all(RankCommand.NETWORK, 0, [state.arrays()] * self.processes)
            self._told = state, state.assigned
        send_command(self.ranks, CommandHeader(operation, self.steps, work.number))


def _batch(work: Batch | BoundBatch) -> Batch:
    return work.batch if isinstance(work, BoundBatch) else work


def _numbered(number: int, message: Bytes) -> Bytes:
    return np.concatenate([np.array([number], np.int64).view(np.uint8), message])


def unnumbered(message: Bytes) -> tuple[int, Bytes]:
    """Split a message into the batch's number and its slice."""
    return int(message[:NUMBER_NBYTES].view(np.int64)[0]), message[NUMBER_NBYTES:]
