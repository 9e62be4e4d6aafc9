"""Find the records that end a change log, and commit the repair that sets them aside.

The reader's side is processor.repository.log.repair. Only what a start does not read is cut: a start begins at the
snapshot that the newest sound record names, so a damaged record before it does not count, and stays.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from freshet_serving.processor.errors import Corrupt, Diverged, NotReady
from freshet_serving.processor.package import SUFFIX
from freshet_serving.processor.repository.log.chain_record import DELTA, REPAIR, ChainRecord, record_name
from freshet_serving.processor.repository.log.change_log import ChangeLog
from freshet_serving.processor.repository.log.dropped_deltas import STEP
from freshet_serving.processor.repository.log.history import MAX_STEP_AHEAD, ChainLink, History
from freshet_serving.processor.repository.log.log_reader import EmptyRecord
from freshet_serving.processor.repository.log.repair import RecordsDigest, read_record
from freshet_serving.processor.repository.storage import VersionStorage
from freshet_serving.processor.repository.version import DELTAS

MOST_TRIES = 500


@dataclass(frozen=True, slots=True)
class DamagedRecords:
    """Records that a repair would set aside, with the error of the first and the digest over all of them.

    `top` is the highest step that they, or earlier records and files, may have used; `cut` describes each that is a
    valid record by itself.
    """

    first: int
    last: int
    why: str
    sha256: str
    top: int
    cut: tuple[str | None, ...]


def find_damage(change_log: ChangeLog) -> DamagedRecords | None:
    """Return the records that end a log, from the first invalid one on; None if it is sound.

    Nothing was read from the log yet, or it was passed here before. Raises NotReady while a record is being written.
    """
    if change_log.history.number == 0:
        for number in range(change_log.storage.newest(record_name), 0, -1):
            with contextlib.suppress(Diverged, EmptyRecord):
                change_log.begin_at_snapshot(number)
                break
    try:
        change_log.look()
        if change_log.storage.has(record_name(change_log.history.number + 1)):
            # The record is new, or still empty.
            new_records = change_log.look()
            if not new_records:
                raise NotReady(
                    f"record {change_log.history.number + 1}: another process may be writing it; try again in a minute"
                )
    except (Diverged, EmptyRecord) as error:
        damage = assess(change_log.storage, change_log.history, str(error), change_log.check_record)
        return damage if damage is not None else find_damage(change_log)
    return None


def find_damaged_file(change_log: ChangeLog) -> tuple[ChainLink, str] | None:
    """Return the generation before the oldest served delta with a bad file, and the reason; None if all are sound.

    find_damage() has read the log. Raises NotReady if a file cannot be read now.
    """
    history, damaged = change_log.history, None
    for link in history.back(history.target):
        if link.record is None or link.record.kind != DELTA:
            continue
        try:
            change_log.bring_delta(link)
            change_log.read_delta(link)
        except (Corrupt, Diverged) as error:
            damaged = history.links[link.parent], str(error)
    return damaged


def repair(
    change_log: ChangeLog, first: int, reason: str = "", unix_s: Callable[[], float] = time.time
) -> ChainRecord | None:
    """Commit that the records from `first` on, which end the log (as for find_damage()), are set aside.

    Returns None if `first` is sound, or another writer was faster. Raises SigningKeyRequired, BadInput or NotReady;
    nothing is written then.
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
            # The record as it was written, with its signature if there is one.
            return change_log.history.events[-1]
    raise NotReady("change log: other writers write to it all the time; try again")


def assess(
    storage: VersionStorage, history: History, why: str, check: Callable[[ChainRecord, bytes], None]
) -> DamagedRecords | None:
    """Return what a repair would set aside after a history; None if there is a repair by now that passes `check`."""
    first, marks, cut = history.number + 1, RecordsDigest(), list[str | None]()
    # A record without a readable step may have used the step after those before it.
    steps, unnamed = [history.top, *_named_steps(storage.folder)], 0
    for number in itertools.count(first):
        data = read_record(storage, number)
        if data is None:
            break
        if marks.repair(data, number, first, check) is not None:
            return None
        marks.add(number, data)
        named = _readable_steps(data)
        steps, unnamed = [*steps, *named], 0 if named else unnamed + 1
        cut.append(_described(data, number))
    most = history.top + MAX_STEP_AHEAD
    top = min(most, max(step for step in steps if step <= most) + unnamed)
    return DamagedRecords(first, number - 1, why, marks.digest(), top, tuple(cut))


def _readable_steps(data: bytes) -> list[int]:
    try:
        raw = json.loads(data)
        return [raw[name] for name in ("step", "top") if type(raw.get(name)) is int]
    except (ValueError, RecursionError, AttributeError):
        return []


def _named_steps(folder: Path) -> list[int]:
    """Return the steps of delta files by their names: <step>.safetensors, <step>-<digest>.safetensors."""
    try:
        names = [path.name for path in (folder / DELTAS).iterdir()]
    except OSError:
        return []
    stems = [name.removesuffix(SUFFIX).partition("-")[0] for name in names if name.endswith(SUFFIX)]
    return [int(stem) for stem in stems if STEP.fullmatch(stem)]


def _described(data: bytes, number: int) -> str | None:
    try:
        record = ChainRecord.from_bytes(data, number)
    except Corrupt:
        return None
    return f"{record.kind} {record.version}.{record.step}"
