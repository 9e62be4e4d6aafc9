"""What rank 0 tells all ranks to do, and how they are told: an operation, its numbers, and arrays for each.

Rank 0 alone decides, so ranks cannot disagree. It announces an operation, every rank does its duty, rank 0's own
included, and gives arrays back where there is something to give. Whatever is put into tables comes as arrays for each
rank alone; whatever is asked of tables goes back so (models.parallel.gathered_table puts it together).
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
    """Each with its duty in HANDLERS, but for those of a batch and the end."""

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
    """steps: that rank 0's trainer has taken. number: of the table, or of the batch. gives: whether arrays follow."""

    operation: int
    steps: int
    number: int = 0
    gives: int = 0


def send_command(ranks: Ranks, order: CommandHeader, given: Sequence[Sequence[Array]] | None = None) -> None:
    """Tells all others; given: arrays for each rank."""
    head = np.array(order._replace(gives=int(given is not None)), np.int64)
    for to in range(1, ranks.size):
        ranks.send(to, head)
    for to, arrays in enumerate((given or ())[1:], 1):
        send_arrays(ranks, to, arrays)


def receive_command(ranks: Ranks) -> tuple[CommandHeader, list[Array]]:
    """What rank 0 announces; raises Failed."""
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
"""(trainer, the order's number, its arrays) -> arrays for rank 0."""


def as_arrays(changes: Changes) -> list[Array]:
    return [getattr(changes, part) for part in PARTS]


def named_arrays(arrays: Mapping[str, Array]) -> list[Array]:
    """A filter's arrays (models.embedding.admission), with their names in front."""
    return [np.frombuffer("\n".join(arrays).encode(), np.uint8), *arrays.values()]


def by_name(arrays: Sequence[Array]) -> dict[str, Array]:
    """What named_arrays() was made of."""
    names = arrays[0].tobytes().decode().split("\n") if len(arrays) > 1 else []
    return dict(zip(names, arrays[1:]))
