"""Operations that rank 0 sends to all ranks: an operation code, its numbers, and optional arrays for each rank.

Rank 0 alone decides, so ranks cannot disagree. Every rank, rank 0 included, runs an operation's handler and returns
arrays if it has a result. What is written to tables goes to each rank separately, and what is read comes back so
(models.parallel.gathered_table merges it).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from enum import IntEnum
from typing import NamedTuple

import numpy as np

from freshet_serving.models.embedding.variable import Changes, EmbeddingVariable
from freshet_serving.models.parallel.rank_trainer import RankTrainer
from freshet_serving.models.parallel.ranks import Array, Ranks, receive_arrays, send_arrays
from freshet_serving.models.training.trainer import Trainer

PARTS = tuple(field.name for field in fields(Changes))
Handler = Callable[[RankTrainer, int, list[Array]], list[Array]]
"""(trainer, number of the command, its arrays) -> arrays for rank 0."""


class RankCommand(IntEnum):
    """Operation codes. Each has a handler in HANDLERS, except the batch operations and END."""

    END = 0
    LEARN = 1
    SCORE = 2
    POOL = 3
    EVICT = 4
    CLEAR = 5
    LENGTHS = 6
    EXPORT = 7
    CHANGES = 8
    CLEAR_CHANGED = 9
    RESTORE = 10
    MARK = 11
    OVERWRITE = 12
    FILTER = 13
    FILTER_CHANGES = 14
    RESTORE_FILTER = 15
    NETWORK = 16


class CommandHeader(NamedTuple):
    """Header of a command: rank 0's steps, the number of the table or batch, and 1 in `gives` if arrays follow."""

    operation: int
    steps: int
    number: int = 0
    gives: int = 0


def send_command(ranks: Ranks, order: CommandHeader, arrays_by_rank: Sequence[Sequence[Array]] | None = None) -> None:
    """Send a command to all other ranks, with arrays by rank."""
    head = np.array(order._replace(gives=int(arrays_by_rank is not None)), np.int64)
    for to in range(1, ranks.size):
        ranks.send(to, head)
    for to, arrays in enumerate((arrays_by_rank or ())[1:], 1):
        send_arrays(ranks, to, arrays)


def receive_command(ranks: Ranks) -> tuple[CommandHeader, list[Array]]:
    """Receive rank 0's next command and its arrays; raise RankFailed if another rank cannot go on."""
    order = CommandHeader(*ranks.receive(0).view(np.int64).tolist())
    return order, receive_arrays(ranks, 0) if order.gives else []


def _on_table(act: Callable[[EmbeddingVariable, list[Array]], list[Array] | None]) -> Handler:
    """Return a handler that acts on the table with the command's number."""
    return lambda trainer, number, arrays: act([*trainer.own.values()][number], arrays) or []


def _overwrite(table: EmbeddingVariable, arrays: list[Array]) -> None:
    keys, rows, removed, rate, step = arrays
    table.overwrite(keys, rows, removed, float(rate[0]), int(step[0]))


def _clear(trainer: RankTrainer, number: int, arrays: list[Array]) -> list[Array]:
    Trainer.clear(trainer)
    return []


def _network(trainer: RankTrainer, number: int, arrays: list[Array]) -> list[Array]:
    trainer.dense.state.replace(arrays)
    trainer.count_from(trainer.steps)
    return []


HANDLERS: Mapping[int, Handler] = {
    RankCommand.EVICT: lambda trainer, *_: [np.array([Trainer.evict(trainer)], np.int64)],
    RankCommand.CLEAR: _clear,
    RankCommand.LENGTHS: lambda trainer, *_: [np.array([*map(len, trainer.own.values())], np.int64)],
    RankCommand.EXPORT: _on_table(lambda table, _: as_arrays(table.export())),
    RankCommand.CHANGES: _on_table(lambda table, _: as_arrays(table.changes())),
    RankCommand.CLEAR_CHANGED: _on_table(lambda table, _: table.clear_changed()),
    RankCommand.RESTORE: _on_table(lambda table, arrays: table.restore(Changes(*arrays))),
    RankCommand.MARK: _on_table(lambda table, arrays: table.mark(Changes(*arrays))),
    RankCommand.OVERWRITE: _on_table(_overwrite),
    RankCommand.FILTER: _on_table(lambda table, _: named_arrays(table.admission.export())),
    RankCommand.FILTER_CHANGES: _on_table(lambda table, _: named_arrays(table.admission.changes())),
    RankCommand.RESTORE_FILTER: _on_table(lambda table, arrays: table.admission.restore(by_name(arrays))),
    RankCommand.NETWORK: _network,
}


def as_arrays(changes: Changes) -> list[Array]:
    return [getattr(changes, part) for part in PARTS]


def named_arrays(arrays: Mapping[str, Array]) -> list[Array]:
    """Return a filter's arrays (models.embedding.admission), preceded by their names."""
    return [np.frombuffer("\n".join(arrays).encode(), np.uint8), *arrays.values()]


def by_name(arrays: Sequence[Array]) -> dict[str, Array]:
    """Invert named_arrays()."""
    names = arrays[0].tobytes().decode().split("\n") if len(arrays) > 1 else []
    return dict(zip(names, arrays[1:]))
