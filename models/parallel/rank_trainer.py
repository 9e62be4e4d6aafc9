"""One process's share of a training step over several processes: HybridBackend's synchronous hybrid parallelism.

A batch's rows are divided between processes, and so are every table's, by shard of their ids
(models.embedding.id_shards); every process has the whole network. A step equals that of one process, except for the
order of float sums:

ids         of the process's batch rows, each once with its number of occurrences, go to their owners, which find or
            create rows; admission counts all occurrences in the batch
rows        come back; an id without a row reads zeros. The network computes the process's own batch rows, each with
            its weight in the loss of the whole batch
gradients   of table rows go back, summed per row; the network's gradient is cut into pieces, one for each process
totals      of these pieces go to all processes. Gradients of a row, or of a weight, are added up in rank order; then
            each row is updated once, by its owner, and the network by the same step everywhere, to the same bits

Each of the four is a barrier: models.parallel.ranks.swap. Every process takes part in every step, even without rows.
The network's gradient is summed within a process before it is sent, so a step is a function of state, batch, cores and
number of processes.

Invariants: network and optimizer are equal, to the bit, in every process after every step. A row is in one process.
Row numbers in _asked are valid from the look-up to the update of a step: rows move between tiers only before it. Rows
on disk are not read ahead, because their owner is known only when a batch names them.
Cost: docs/how-to/distributed-training.md.

Rejected: networks whose rows see one another, since each process sees its own rows only; overlapping a step's exchange
with the previous step, since a batch reads what the one before has written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.models.config.model_section import ONE_LABEL, NetworkConfig
from freshet_serving.models.config.table_sections import TableConfig
from freshet_serving.models.config.train_section import TrainSettings
from freshet_serving.models.embedding import kernels
from freshet_serving.models.embedding.id_shards import SHARDS
from freshet_serving.models.parallel import id_kernels
from freshet_serving.models.parallel.batch_ids import BatchIds
from freshet_serving.models.parallel.batch_slices import slice_of
from freshet_serving.models.parallel.number_wire import NumberMessage, from_wire, to_wire
from freshet_serving.models.parallel.ranks import Array, Bytes, Ranks, packed, unpacked
from freshet_serving.models.training.batch_part import Write, write_rows
from freshet_serving.models.training.trainer import FEW_IDS, Pieces, Trainer
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.features.bound_request import BoundRequest
from freshet_serving.processor.package import Manifest
from freshet_serving.processor.tables.table import descriptors

Int64s = NDArray[np.int64]
Float32s = NDArray[np.float32]

NOTHING, NO_TIMES, NO_SUMS = np.empty(0, np.uint8), np.empty(0, np.int64), np.empty(0, np.float32)
NO_ROWS = BoundRequest(0, 0, b"", ())
TENDED_STEPS = 64
"""Steps between two compactions of the logs of rows on disk."""


@dataclass(frozen=True, slots=True)
class RequestedRows:
    """Rows of one table that the processes have requested: row numbers int64 [n], by process from ends[p] on."""

    refs: Int64s
    ends: Int64s


class RankTrainer(Trainer):
    """A Trainer with a share of every table, which does its share (*_local) of operations that rank 0 announces.

    learn_local, score_local and pool_local are collective. A run uses rank 0's trainer (models.parallel.lead_trainer).
    """

    def __init__(
        self,
        ranks: Ranks,
        manifest: Manifest,
        settings: TrainSettings,
        network: NetworkConfig = ONE_LABEL,
        fusion: Mapping[str, str] | None = None,
        tables: Mapping[str, TableConfig] | None = None,
        scratch: Path | None = None,
    ) -> None:
        """As Trainer's. Raises BadInput if the network's rows see one another, or there are too many processes."""
        if ranks.size > SHARDS:
            raise BadInput(f"processes: expected at most {SHARDS:,}, got {ranks.size:,}")
        super().__init__(manifest, settings, network, fusion, tables, scratch, ranks.rank, ranks.size)
        if not self.dense.rows_are_alone:
            raise BadInput(
                "model: several processes need a network and a loss that treat each row alone; statistics or"
                " losses over a batch take one process"
            )
        self.ranks = ranks
        self._ids = {name: BatchIds(name, table.dim, ranks.size) for name, table in self.own.items()}
        self._asked: dict[str, RequestedRows] = {}
        # By process: the slice of its ids in each table's ids.
        self._parts: list[list[slice]] = []

    def learn_local(self, bound: BoundRequest, label: Float32s, share: Float32s) -> float:
        """Take a step on this process's rows, with their weights in the whole loss; return that loss."""
        if bound.rows:
            self.dense.ready(bound.rows, self._same(bound))
        alone = bound.ids < FEW_IDS
        with self.profile.timed("look up"):
            for table in self.own.values():
                table.shrink_to_budget()
            refs = self._begin(bound)
        self._fetch(insert=True)
        with self.profile.timed("look up"), self._pooling(bound) as write:
            if bound.rows:
                self.dense.fill(write, alone)
        loss, grads = 0.0, Pieces()
        with self.profile.timed_process("step"):
            self._set_rates(self.steps)
            if bound.rows:
                loss, grads = self.dense.gradients(label, share)
        self.steps += 1
        with self.profile.timed("update"):
            for ids in self._ids.values():
                ids.begin_gradients()
            self._worker_pool.run(self._additions(bound, refs, grads), alone)
        loss, messages = self._exchange_gradients(loss, bool(bound.rows))
        with self.profile.timed("update"):
            self._worker_pool.run([self.dense.move, *self._own_moves(messages)], alone)
        if self.steps % TENDED_STEPS == 0:
            for table in self.own.values():
                if table.tiers is not None:
                    table.tiers.compact_log()
        return loss

    def score_local(self, bound: BoundRequest) -> Float32s:
        """Return the scores of this process's rows of a batch."""
        self._begin(bound)
        self._fetch(insert=False)
        if not bound.rows:
            return np.zeros(0, np.float32)
        with self._pooling(bound) as write:
            return self.dense.score(bound.rows, write)

    def pool_local(self, bound: BoundRequest) -> dict[str, Float32s]:
        """Return the dense graph's inputs for this process's rows of a batch."""
        self._begin(bound)
        self._fetch(insert=False)
        return self._pooled(bound)

    def _begin(self, bound: BoundRequest) -> dict[int, Int64s]:
        """Load the rows' ids; return by feature the position of each value among its table's distinct ids."""

        def begin(name: str) -> list[tuple[int, Int64s]]:
            if not bound.rows:
                self._ids[name].begin(np.empty(0, np.int64))
                return []
            rows, values = zip(*self._values(name, bound))
            if len(values) == 1:
                return [(rows[0], self._ids[name].begin(values[0]))]
            refs = self._ids[name].begin(np.concatenate(values))
            return list(zip(rows, np.split(refs, np.cumsum([len(ids) for ids in values])[:-1])))

        positions = self._worker_pool.run([partial(begin, name) for name in self._ids], bound.ids < FEW_IDS)
        ends = [ids.ends.tolist() for ids in self._ids.values()]
        self._parts = [[slice(*each[p : p + 2]) for each in ends] for p in range(self.ranks.size)]
        return dict(item for table in positions for item in table)

    def _fetch(self, insert: bool) -> None:
        """Fetch the row of every id of the batch; `insert` creates rows for admitted ids."""
        with self.profile.timed("look up"):
            asks = [self._ask(to, insert) for to in range(self.ranks.size)]
        with self.profile.timed("exchange"):
            asked = self.ranks.swap(asks)
        with self.profile.timed("look up"):
            answers = self._answers(asked, insert)
        with self.profile.timed("exchange"):
            answered = self.ranks.swap(answers)
        with self.profile.timed("look up"):
            for of, message in enumerate(answered):
                if of != self.ranks.rank:
                    numbers, at = from_wire(unpacked(message)), 0
                    for ids, part in zip(self._ids.values(), self._parts[of]):
                        rows = ids.rows[part].reshape(-1)
                        rows[:] = numbers[at : at + len(rows)]
                        at += len(rows)

    def _ask(self, to: int, insert: bool) -> Bytes:
        """Build the request to another process: ids by table, their number, and with `insert` their occurrences."""
        if to == self.ranks.rank:
            return NOTHING
        tables = list(zip(self._ids.values(), self._parts[to]))
        counts = np.array([part.stop - part.start for _, part in tables], np.int64)
        message: list[Array | Sequence[Array]] = [counts, [ids.ids[part] for ids, part in tables]]
        if insert:
            message.append([ids.times[part].astype(np.int32) for ids, part in tables])
        return packed(message)

    def _answers(self, asked: Sequence[Bytes], insert: bool) -> list[Bytes]:
        """Return replies with the rows that others requested; the own rows are copied into place."""
        me = self.ranks.rank
        keys, times = list[list[Int64s]](), list[list[Array]]()
        for of, message in enumerate(asked):
            if of == me:
                tables = list(zip(self._ids.values(), self._parts[of]))
                keys.append([ids.ids[part] for ids, part in tables])
                times.append([ids.times[part] for ids, part in tables])
                continue
            counts, ids_of_all, *times_of_all = unpacked(message)
            ends = np.cumsum(counts)[:-1]
            keys.append(np.split(ids_of_all, ends))
            times += [np.split(each, ends) for each in times_of_all]
        dims = [table.dim for table in self.own.values()]
        messages = [
            NumberMessage([] if to == me else [len(ids) * dim for ids, dim in zip(keys[to], dims)], self.settings.wire)
            for to in range(self.ranks.size)
        ]

        def answer(number: int, name: str) -> None:
            table, ids = self.own[name], [each[number] for each in keys]
            ends = np.cumsum([0, *map(len, ids)])
            with table.reading():
                if insert:
                    come = np.concatenate([each[number] for each in times], dtype=np.int64)
                    refs = table.insert(np.concatenate(ids), come)
                else:
                    refs = table.find(np.concatenate(ids))
                for to, (first, last) in enumerate(zip(ends.tolist(), ends[1:].tolist())):
                    if to == me:
                        rows = self._ids[name].rows[self._parts[to][number]]
                    else:
                        rows = messages[to].parts[number].reshape(-1, table.dim)
                    table.read(refs[first:last], rows)
            self._asked[name] = RequestedRows(refs, ends)

        calls = [partial(answer, number, name) for number, name in enumerate(self.own)]
        self._worker_pool.run(calls, sum(map(len, (ids for each in keys for ids in each))) < FEW_IDS)
        return [message.packed() for message in messages]

    @contextmanager
    def _pooling(self, bound: BoundRequest) -> Iterator[Write]:
        tables = descriptors([ids.descriptor() for ids in self._ids.values()])
        yield write_rows(self.run, tables, bound)

    # Gradients.

    def _additions(self, bound: BoundRequest, refs: Mapping[int, Int64s], grads: Pieces) -> list[Any]:
        """Return calls that add up the gradients of the batch's ids."""
        calls: list[Any] = []
        for name, ids in self._ids.items() if bound.rows else ():
            values = sum(len(refs[i]) for i, _ in self._readers[name])
            parts = self._worker_pool.size if values * self._worker_pool.size > bound.ids and values > FEW_IDS else 1
            into = np.empty(0, np.int64), ids.sums, ids.met
            for part in range(parts):
                calls.append(partial(self._add_up, name, ids.place, part, parts, bound, refs, grads, *into))
        return calls

    def _exchange_gradients(self, loss: float, has_rows: bool) -> tuple[float, list[list[Array]]]:
        """Exchange gradients with all processes; afterwards the network has the gradient of the whole batch.

        Return the loss of the whole batch, and by process `met` and `sums` of the rows that it has read here, over all
        tables; nothing for the own process.
        """
        with self.profile.timed("update"):
            gradient = self.dense.gradient() if has_rows else np.zeros(self.dense.weights_count, np.float32)
            cuts = [slice(*slice_of(len(gradient), to, self.ranks.size)) for to in range(self.ranks.size)]
            messages = [self._gradient_message(to, loss, gradient[cuts[to]]) for to in range(self.ranks.size)]
        with self.profile.timed("exchange"):
            received = [unpacked(message) for message in self.ranks.swap(messages)]
        with self.profile.timed("update"):
            total, whole_loss = np.array(received[0][1]), float(received[0][0][0])
            for head, piece, *_ in received[1:]:
                total += piece
                whole_loss += float(head[0])
        with self.profile.timed("exchange"):
            pieces = self.ranks.swap([total] * self.ranks.size)
        self.dense.replace_gradient(np.concatenate(pieces).view(np.float32))
        return whole_loss, [rest for _, _, *rest in received]

    def _gradient_message(self, to: int, loss: float, piece: Float32s) -> Bytes:
        head = [np.array([loss]), piece]
        if to == self.ranks.rank:
            return packed(head)
        tables = list(zip(self._ids.values(), self._parts[to]))
        met = [ids.met[part].astype(np.int32) for ids, part in tables]
        return packed([*head, met, *to_wire([ids.sums[part].reshape(-1) for ids, part in tables], self.settings.wire)])

    def _own_moves(self, messages: Sequence[Sequence[Array]]) -> list[Any]:
        """Return calls that update this process's rows by all processes' gradients, in rank order."""
        me, calls = self.ranks.rank, list[Any]()
        met = [message[0].astype(np.int64) if message else NO_TIMES for message in messages]
        sums = [from_wire(list(message[1:])) if message else NO_SUMS for message in messages]
        at = np.zeros((2, self.ranks.size), np.int64)
        every = sum(int(asked.ends[-1]) for asked in self._asked.values())
        for number, name in enumerate(self.own):
            asked = self._asked[name]
            counts, (dim, ids) = np.diff(asked.ends), (self.own[name].dim, self._ids[name])
            gradients = [
                (m[i : i + n], s[j : j + n * dim].reshape(-1, dim))
                for m, s, i, j, n in zip(met, sums, *at.tolist(), counts.tolist())
            ]
            gradients[me] = ids.met[self._parts[me][number]], ids.sums[self._parts[me][number]]
            at += np.array([counts, counts * dim])
            rows = int(asked.ends[-1])
            parts = self._worker_pool.size if rows * self._worker_pool.size > every and rows > FEW_IDS else 1
            place = self.own[name].place
            calls += [partial(self._own_move, name, place, part, parts, asked, gradients) for part in range(parts)]
        return calls

    def _own_move(
        self,
        name: str,
        place: NDArray[np.int32],
        part: int,
        parts: int,
        asked: RequestedRows,
        gradients_by_rank: Sequence[tuple[Int64s, Float32s]],
    ) -> None:
        touched, sums, met = self._scratch_of(name, part, int(asked.ends[-1]))
        count, ends = 0, asked.ends.tolist()
        for (times, gradients), first, last in zip(gradients_by_rank, ends, ends[1:]):
            batch = (asked.refs[first:last], times, gradients, part, parts, place, touched, sums, met)
            count = id_kernels.add_up(*batch, count)
        kernels.forget(place, touched[:count])
        self._take_step(name, touched[:count], sums[:count], met[:count])
