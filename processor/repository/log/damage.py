"""What ends a chain, and the repair that lets it go on (processor.repository.log.repair): the writer's side.

Invariant: only what a start does not read is cut. Damage is what a start meets: it begins at the snapshot that the
newest sound record names, so a record that is damaged behind that snapshot is none, and stays where it is.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from freshet_serving.processor.repository.log.chain_record import REPAIR, ChainRecord, record_name
from freshet_serving.processor.repository.log.history import MAX_STEP_AHEAD, History
from freshet_serving.processor.repository.log.change_log import ChangeLog
from freshet_serving.processor.repository.log.scrub import STEP
from freshet_serving.processor.repository.log.repair import EmptyRecord, RecordsDigest
from freshet_serving.processor.errors import Corrupt, Diverged, NotReady
from freshet_serving.processor.repository.version import DELTAS
from freshet_serving.processor.package import SUFFIX
from freshet_serving.processor.repository.storage import VersionStorage

MOST_TRIES = 500


@dataclass(frozen=True, slots=True)
class DamagedRecords:
    """Records of a chain that a repair would set aside.

    first, last: their numbers. why: what is wrong with the first. sha256: of all of them. top: the highest step that
    they, or what was there before, may have used. cut: of each that is a record by itself, in words; others None.
    """

    first: int
    last: int
    why: str
    sha256: str
    top: int
    cut: tuple[str | None, ...]


def find_damage(change_log: ChangeLog) -> DamagedRecords | None:
    """What ends the chain of a version, None where nothing does: the first record that is none, and all after it.

    Args:
        ledger: of the version; nothing of it has been read, or this has.

    Raises:
        NotReady: a record is just being written, or the repository cannot be read.
    """
    if change_log.history.number == 0:
        for number in range(change_log.storage.newest(record_name), 0, -1):
            with contextlib.suppress(Diverged, EmptyRecord):
                change_log.begin_at_snapshot(number)
                break
    try:
        change_log.look()
        if change_log.storage.has(record_name(change_log.history.number + 1)):
            # It has come since, or is empty still.
            came = change_log.look()
            if not came:
                raise NotReady(
                    f"record {change_log.history.number + 1}: somebody may be writing it; try again in a minute"
                )
    except (Diverged, EmptyRecord) as error:
        damage = assess(change_log.storage, change_log.history, str(error), change_log.check_record)
        return damage if damage is not None else find_damage(change_log)
    return None


def repair(
    change_log: ChangeLog, first: int, reason: str = "", unix_s: Callable[[], float] = time.time
) -> ChainRecord | None:
    """Commits that the records from `first` on are set aside.

    Args:
        ledger: see find_damage().
        first: number of the record that ends the chain.
        reason: kept in the record.
        unix_s: the clock.

    Returns:
        The repair; None where that record is sound, or somebody else was faster.

    Raises:
        SigningKeyRequired, BadInput, NotReady: nothing is written.
    """
    change_log.may_write()
    for _ in range(MOST_TRIES):
        damage = find_damage(change_log)
        if damage is None or damage.first != first:
            return None
        record = change_log.history.next(
            REPAIR, change_log.history.head, number=damage.last + 1, since=first, top=damage.top, sha256=damage.sha256,
            at=unix_s(), reason=reason,
        )  # fmt: skip
        if change_log.create(record):
            # As it was written: signed, where that is asked for.
            return change_log.history.events[-1]
    raise NotReady("chain: others are writing to it all the time; try again")


def assess(
    storage: VersionStorage, history: History, why: str, check: Callable[[ChainRecord, bytes], None]
) -> DamagedRecords | None:
    """What a repair would set aside; None where there is one, which has come since.

    Args:
        place: the version's.
        history: the records before the first that is none.
        why: what is wrong with that.
        check: see find_repair().
    """
    first, marks, cut = history.number + 1, RecordsDigest(), list[str | None]()
    # A record that does not tell its step may have used the one after those before it.
    steps, untold = [history.top, *_named_steps(storage.folder)], 0
    for number in itertools.count(first):
        data = marks.read(storage, number)
        if data is None:
            break
        if marks.repair(data, number, first, check) is not None:
            return None
        marks.add(number, data)
        told = _told_steps(data)
        steps, untold = [*steps, *told], 0 if told else untold + 1
        cut.append(_in_words(data, number))
    most = history.top + MAX_STEP_AHEAD
    top = min(most, max(step for step in steps if step <= most) + untold)
    return DamagedRecords(first, number - 1, why, marks.digest(), top, tuple(cut))


def _told_steps(data: bytes) -> list[int]:
    """The steps that a record speaks of, also one that is none."""
    try:
        raw = json.loads(data)
        return [raw[name] for name in ("step", "top") if type(raw.get(name)) is int]
    except (ValueError, RecursionError, AttributeError):
        return []


def _named_steps(folder: Path) -> list[int]:
    """The steps of the files of deltas, by their names: <step>.safetensors, <step>-<digest>.safetensors."""
    try:
        names = [path.name for path in (folder / DELTAS).iterdir()]
    except OSError:
        return []
    stems = [name.removesuffix(SUFFIX).partition("-")[0] for name in names if name.endswith(SUFFIX)]
    return [int(stem) for stem in stems if STEP.fullmatch(stem)]


def _in_words(data: bytes, number: int) -> str | None:
    try:
        record = ChainRecord.from_bytes(data, number)
    except Corrupt:
        return None
    return f"{record.kind} {record.version}.{record.step}"
