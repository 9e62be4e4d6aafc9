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

from freshet_serving.models.embedding.variable import Changes
from freshet_serving.models.parallel.rank_trainer import RankTrainer
from freshet_serving.models.parallel.ranks import Array, Ranks, receive_arrays, send_arrays

PARTS = tuple(field.name for field in fields(Changes))


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
    """Header of a command.

    Attributes:
        steps: Steps that rank 0's trainer has taken.
        number: Of the table, or of the batch.
        gives: 1 if arrays follow, else 0.
    """

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


def _table(trainer: RankTrainer, number: int) -> str:
    return list(trainer.own)[number]


def _evict(trainer: RankTrainer, number: int, given: list[Array]) -> list[Array]:
    return [np.array([trainer.evict_local()], np.int64)]


def _clear(trainer: RankTrainer, number: int, given: list[Array]) -> list[Array]:
    trainer.clear_local()
    return []


def _lengths(trainer: RankTrainer, number: int, given: list[Array]) -> list[Array]:
    return [np.array([len(table) for table in trainer.own.values()], np.int64)]


def _export(trainer: RankTrainer, number: int, given: list[Array]) -> list[Array]:
    return as_arrays(trainer.own[_table(trainer, number)].export())


def _changes(trainer: RankTrainer, number: int, given: list[Array]) -> list[Array]:
    return as_arrays(trainer.own[_table(trainer, number)].changes())


def _clear_changed(trainer: RankTrainer, number: int, given: list[Array]) -> list[Array]:
    trainer.own[_table(trainer, number)].clear_changed()
    return []


def _restore(trainer: RankTrainer, number: int, given: list[Array]) -> list[Array]:
    trainer.own[_table(trainer, number)].restore(Changes(*given))
    return []


def _mark(trainer: RankTrainer, number: int, given: list[Array]) -> list[Array]:
    trainer.own[_table(trainer, number)].mark(Changes(*given))
    return []


def _overwrite(trainer: RankTrainer, number: int, given: list[Array]) -> list[Array]:
    keys, rows, removed, rate, step = given
    trainer.own[_table(trainer, number)].overwrite(keys, rows, removed, float(rate[0]), int(step[0]))
    return []


def _filter(trainer: RankTrainer, number: int, given: list[Array]) -> list[Array]:
    return named_arrays(trainer.own[_table(trainer, number)].admission.export())


def _filter_changes(trainer: RankTrainer, number: int, given: list[Array]) -> list[Array]:
    return named_arrays(trainer.own[_table(trainer, number)].admission.changes())


def _restore_filter(trainer: RankTrainer, number: int, given: list[Array]) -> list[Array]:
    trainer.own[_table(trainer, number)].admission.restore(by_name(given))
    return []


def _network(trainer: RankTrainer, number: int, given: list[Array]) -> list[Array]:
    trainer.dense.state.replace(given)
    trainer.count_from(trainer.steps)
    return []


HANDLERS: Mapping[int, Callable[[RankTrainer, int, list[Array]], list[Array]]] = {
    RankCommand.EVICT: _evict,
    RankCommand.CLEAR: _clear,
    RankCommand.LENGTHS: _lengths,
    RankCommand.EXPORT: _export,
    RankCommand.CHANGES: _changes,
    RankCommand.CLEAR_CHANGED: _clear_changed,
    RankCommand.RESTORE: _restore,
    RankCommand.MARK: _mark,
    RankCommand.OVERWRITE: _overwrite,
    RankCommand.FILTER: _filter,
    RankCommand.FILTER_CHANGES: _filter_changes,
    RankCommand.RESTORE_FILTER: _restore_filter,
    RankCommand.NETWORK: _network,
}
"""Handlers: (trainer, number, arrays) -> arrays for rank 0."""


def as_arrays(changes: Changes) -> list[Array]:
    return [getattr(changes, part) for part in PARTS]


def named_arrays(arrays: Mapping[str, Array]) -> list[Array]:
    """Return a filter's arrays (models.embedding.admission), preceded by their names."""
    return [np.frombuffer("\n".join(arrays).encode(), np.uint8), *arrays.values()]


def by_name(arrays: Sequence[Array]) -> dict[str, Array]:
    """Invert named_arrays()."""
    names = arrays[0].tobytes().decode().split("\n") if len(arrays) > 1 else []
    return dict(zip(names, arrays[1:]))
